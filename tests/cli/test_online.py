"""`synther online`: what it prints, what it refuses, which options become which plan."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from synther.agents.drq_v2 import DrQv2Config
from synther.agents.sac import REDQ_CONFIG, SAC_CONFIG, SACConfig
from synther.cli import online
from synther.errors import ConfigError
from synther.experiments.specs import OnlinePixelRun, OnlineRun, Synthetic, SyntheticLatents
from synther.presets import PRESETS

QUICK = (
    *("--steps", "24", "--evaluate-every", "12", "--checkpoint-every", "12", "--learning-starts", "6", "--seeds", "2"),
    *("--episodes", "1", "--workers", "1", "--device", "cpu", "--tensorboard", "off"),
    *("--agent.width", "8", "--agent.depth", "1", "--agent.batch-size", "8"),
)


VERB = online.online
PAPER = {"preset": "paper", "changes": PRESETS["paper"].to_json()}


@pytest.fixture
def planned(monkeypatch, tmp_path) -> Callable[..., OnlineRun]:
    """The plan that would have been run."""
    found: list[OnlineRun] = []

    def kept(plan, folder, prior, progress):
        found.append(plan)
        raise KeyboardInterrupt

    def plan(*arguments: object) -> OnlineRun:
        monkeypatch.setattr("synther.experiments.online.train_to", kept)
        with pytest.raises(KeyboardInterrupt):
            online.online([*map(str, arguments), "--out", str(tmp_path / "out")])
        return found[-1]

    return plan


def test_a_table_for_a_person_and_an_object_for_a_machine(run, tiny, tmp_path):
    upsampled = ("--synthetic", "--refresh-every", "12", "--samples", "20", *tiny)
    command = ("Pendulum-v1", "--utd", "2", "--out", tmp_path / "run", *upsampled, *QUICK)
    text = run(*command, "--quiet")
    assert text.startswith("sac_synther in Pendulum-v1, 2 seeds: mean ± std")
    lines = [line.split() for line in text.splitlines() if line.strip()]
    assert [line[:2] for line in lines[1:3]] == [["final", "return"], ["best", "return"]]
    assert lines[1][-3:] == ["after", "24", "steps"]
    assert "environments" in text
    assert "generators" in text
    found = json.loads(run(*command, "--json", "--quiet"))
    assert (found["env"], found["agent"], found["env_steps"]) == ("Pendulum-v1", "sac_synther", 24)
    described = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (described["agent"]["utd"], described["upsampling"]["samples"]) == (2, 20)
    with pytest.raises(ConfigError, match="other options: agent"):
        run(*command, "--utd", "3", "--quiet")


def test_the_agent_chooses_the_defaults_of_its_options(planned):
    assert planned("A-v0").config == SAC_CONFIG
    assert planned("A-v0", "--agent", "redq").config == REDQ_CONFIG
    assert planned("A-v0", "--agent", "redq", "--agent=sac").config == SAC_CONFIG
    assert planned("A-v0", "--agent=redq", "--utd", 5, "--agent.width", 64).config == SACConfig(
        num_critics=10, utd=5, width=64
    )
    assert planned("A-v0", "--utd", 20, "--agent.num-critics", 3).config == SACConfig(num_critics=3, utd=20)


def test_options_become_a_run(planned):
    run = planned("A-v0", "--steps", "200K", "--seeds", 3, "--seed", 5, "--precision", "float32", "--device", "cpu")
    expected = OnlineRun("out", "A-v0", steps=200_000, seeds=3, seed=5, precision="float32", device="cpu")
    assert planned("A-v0", "--n-step", 3).n_step == 3
    assert replace(run, agent={}) == expected
    run = planned("A-v0", "--synthetic", "--preset", "paper", "--refit", "scratch", "--ratio", 0.25, "--samples", "2M")
    assert run.synthetic == Synthetic(**PAPER, samples=2_000_000, ratio=0.25, refit="scratch")
    run = planned("A-v0", "--synthetic", "--preset", "laptop", "--fit.steps", 7)
    assert run.synthetic.settings() == PRESETS["laptop"].changed(fit={"steps": 7})
    assert run.synthetic.samples == 100_000  # on a CPU


def test_options_of_agents_that_see(planned):
    walker = "dm_control/walker-walk-v0"
    run = planned(walker, "--pixels")
    assert (replace(run, agent={}), run.config) == (OnlinePixelRun("out", walker), DrQv2Config())
    run = planned(walker, "--pixels", "--steps", "50K", "--seeds", 2, "--agent.width", 64, "--learning-starts", 9)
    assert run.config == DrQv2Config(width=64)
    assert replace(run, agent={}) == OnlinePixelRun("out", walker, steps=50_000, seeds=2, learning_starts=9)
    latents = ("--synthetic", "--preset", "paper", "--updates-per-refresh", "7K", "--samples", "1K")
    expected = SyntheticLatents(**PAPER, samples=1_000, updates=7_000)
    assert planned(walker, "--pixels", *latents).synthetic == expected
    assert planned(walker, "--pixels", *latents[:3]).synthetic == SyntheticLatents(**PAPER)

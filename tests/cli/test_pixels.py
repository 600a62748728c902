"""`synther pixels`: the whole road on tiny frames, what it prints, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from synther.cli import pixels
from synther.cli.online import OnlinePixels
from synther.cli.options import parse
from synther.errors import ConfigError
from synther.experiments.specs import PixelRun
from synther.pixels import evaluation, files
from synther.presets import preset

from ..experiments import seeing

VERB = pixels.pixels
AGENT = ("--agent.width", "8", "--agent.depth", "1", "--agent.batch-size", "4")
QUICK = ("--updates", "4", "--measure-every", "2", "--episodes", "2", "--device", "cpu", "--tensorboard", "off")


@pytest.fixture
def playing(monkeypatch) -> None:
    seeing.play_here(monkeypatch)


@pytest.fixture
def dark(monkeypatch) -> None:
    monkeypatch.setattr(evaluation, "obstacle", lambda env_id: "cannot draw frames here")


@pytest.fixture(scope="module")
def frames(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "frames.hdf5"
    files.write(seeing.frames(env_id="dm_control/a-b-v0"), path)
    return path


def test_the_whole_road(run, playing, frames, tiny, tmp_path, caplog):
    caplog.set_level("INFO", "synther")
    one, latents, made, two = (tmp_path / name for name in ("one", "latents", "synthetic", "two"))
    text = run("train", "drq_bc", frames, "--out", one, "--seeds", 2, *QUICK, *AGENT, "--quiet")
    assert text.startswith("drq_bc on frames: mean ± std")
    assert "after 4 updates" in text
    assert json.loads((one / "run.json").read_text())["agent"]["width"] == 8
    assert "seed-1" in run("encode", one, frames, "--out", latents, "--device", "cpu", "--json")
    (start,) = (message for message in caplog.messages if message.startswith("encoding"))
    for part in ("8 times each", f"2 agents of {one}", "on cpu", f"to {latents}"):
        assert part in start
    text = run("upsample", latents, "--out", made, "--samples", 30, "--device", "cpu", *tiny)
    assert text.startswith("synthetic latents of 2 seeds")
    started = [message for message in caplog.messages if message.startswith(("fitting", "sampling"))]
    assert [message.split()[:3] for message in started] == [
        ["fitting", "2", "models"],
        *2 * [["sampling", "30", "rows"]],
    ]
    found = json.loads(run("retrain", one, made, "--out", two, *QUICK, "--json", "--quiet"))
    assert (found["updates"], found["folder"]) == (4, str(two))
    assert len(found["arms"]["latents"]["final"]["scores"]) == 2
    again = json.loads(run("evaluate", two, "--episodes", 3, "--json", "--quiet"))
    assert again["arms"]["latents"]["final"]["updates"] == 4
    assert len((two / "episodes.jsonl").read_text().splitlines()) == 6
    assert run("retrain", one, latents, "--out", tmp_path / "real", *QUICK, "--no-evaluate", "--quiet")


def test_in_the_dark_the_evaluation_is_left_to_others(run, dark, frames, tmp_path, caplog):
    command = ("train", "bc", frames, "--out", tmp_path / "run", "--seeds", 1, *QUICK, *AGENT)
    assert f"none yet: synther pixels evaluate {tmp_path / 'run'}" in run(*command)
    assert "the agents are trained, but not evaluated: cannot draw frames here" in caplog.text
    caplog.clear()
    run(*command, "--no-evaluate")
    assert "cannot draw" not in caplog.text
    with pytest.raises(ConfigError, match="cannot draw frames here"):
        run("evaluate", tmp_path / "run")


def test_options_become_a_plan(run, frames, monkeypatch, tmp_path):
    found: list[PixelRun] = []

    def kept(plan, frames, folder, progress):
        found.append(plan)
        raise KeyboardInterrupt

    monkeypatch.setattr("synther.experiments.pixels.train_to", kept)
    words = ("--seeds", 3, "--seed", 5, "--env-id", "dm_control/point_mass-easy-v0", "--precision", "tf32")
    with pytest.raises(KeyboardInterrupt):
        run("train", "bc", frames, "--out", tmp_path / "run", *words, "--updates", "1K", "--agent.nstep", 2)
    (plan,) = found
    assert (list(plan.all_seeds), plan.env_id, plan.config.nstep) == ([5, 6, 7], "dm_control/point_mass-easy-v0", 2)
    assert (plan.updates, plan.precision, type(plan.config).__name__) == (1_000, "tf32", "NoisyBCConfig")


@pytest.mark.parametrize("kind", [pixels.Upsample, OnlinePixels])
def test_our_presets_suit_latents_and_the_papers_are_what_they_say(kind):
    needed = ["latents", "--out", "out", "--device", "cpu"]
    auto = parse("verb", kind, needed).settings()
    assert auto == preset("laptop", noise={"p_mean": -0.4}, data={"scaling": "standard", "residuals": "none"})
    assert parse("verb", kind, [*needed, "--preset", "laptop"]).settings() == auto
    assert parse("verb", kind, [*needed, "--preset", "paper"]).settings() == preset("paper")

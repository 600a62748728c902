"""What an online run of pixel agents leaves behind, what a refresh changes, and runs that are stopped."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
import torch

from synther import Synthesizer
from synther.agents.agent import Agent
from synther.agents.rows import Arm
from synther.diffusion.fit import Diverged
from synther.errors import ConfigError, DataError
from synther.experiments import record
from synther.experiments import refresh as refreshing
from synther.experiments.refresh import Generators, LatentRefreshing
from synther.experiments.results import Log, Result
from synther.experiments.specs import OnlinePixelRun
from synther.folder import RunFolder
from synther.pixels.experience import FrameExperience
from synther.pixels.files import read
from synther.pixels.learner import PixelLearner
from synther.pixels.policy import load_pixel_policy
from synther.pixels.vector_env import PixelVectorEnv
from synther.replay import refit as refitting
from synther.synthesizer.together import fit_models

from ...pixels.lamps import Doors, Lamps
from ..online.runs import refreshes
from ..seeing import files
from ..trainings import logged, stop, stop_at_each
from .runs import LEGS, PLAN, SYNTHETIC, TIMES, run, same


def test_what_a_run_leaves_behind(finished):
    assert [file for file in files(finished) if "/" not in file] == [
        "checkpoint.safetensors", "clock.json", "generator-3-0000000024.safetensors",
        "generator-4-0000000024.safetensors", "log.jsonl", "refreshes.json", "result.json", "run.json",
    ]  # fmt: skip
    assert [file for file in files(finished) if "seed-3/" in file] == [f"frames/seed-3/{end:010}.hdf5" for end in LEGS]
    assert [line["env_steps"] for line in logged(finished)] == TIMES
    result = Result.from_json(json.loads((finished / "result.json").read_text()))
    assert [standing.updates for standing in result.curves["drq_v2_synther"]] == TIMES
    assert set(result.seconds_of) == {
        "training", "waiting", "checkpoints", "environments", "evaluations", "latents"
    }  # fmt: skip
    policy = load_pixel_policy(finished / "checkpoint.safetensors")
    assert policy.act(np.zeros((1, 9, 15, 15), np.uint8)).shape == (2, 1, 1)
    assert Synthesizer.load(finished / "generator-4-0000000024.safetensors").layout.width == 203
    found = [(entry["seed"], entry["added"], entry["steps"]) for entry in refreshes(finished)]
    assert found == [(3, 12, 10), (4, 12, 10), (3, 24, 2), (4, 24, 2)]  # the second fits are warm
    assert all(entry["kept"] and entry["rows"] > 3 and entry["held_out"] > 0 for entry in refreshes(finished))
    frames = read(finished / "frames" / "seed-3")
    assert (frames.env_id, frames.action_repeat) == ("dm_control/walker-walk-v0", 2)
    starts, ends = frames.episodes
    assert len(frames) - len(starts) == 30  # a decision a step
    assert set(LEGS) <= set(np.cumsum(ends - starts - 1).tolist())  # no episode goes on over the end of a segment
    assert frames.discount.min() == 0
    assert frames.returns().sum() != 0


@pytest.fixture
def refreshed(monkeypatch):
    """Weights before and after each refresh, as runs go on."""
    seen: list[tuple[dict, dict]] = []
    whole = LatentRefreshing.refresh

    def watched(own, step, progress):
        before = {name: tensor.clone() for name, tensor in own.learner.state().items()}
        whole(own, step, progress)
        seen.append((before, {name: tensor.clone() for name, tensor in own.learner.state().items()}))

    monkeypatch.setattr(LatentRefreshing, "refresh", watched)
    return seen


def test_a_refresh_trains_the_heads_and_nothing_else(refreshed, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(refreshing, "Agent", lambda *given, **how: made.append(Agent(*given, **how)) or made[-1])
    run(tmp_path, replace(PLAN, steps=13))
    (agent,) = made
    assert [member.arm for member in agent.members] == [
        Arm((0, 1), (0.5, 0.5), 0), Arm((2, 3), (0.5, 0.5), 2)
    ]  # fmt: skip
    real = [entry["rows"] for entry in refreshes(tmp_path)]
    assert agent.rows.lengths == [real[0], 20, real[1], 20]
    # Two updates of twenty: the noise has fallen by a tenth of its way, and stays there.
    assert agent.config.stddev_start == agent.config.stddev_end == pytest.approx(0.91)
    assert agent.updates == 5
    ((before, after),) = refreshed
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    heads = {"actor", "critics", "target_critics"}
    moments = {f"{name}_adam.{kind}" for name in ("actor", "critics") for kind in ("mean", "square")}
    assert changed == heads | moments | {"target_critic_trunk"}


def test_the_control_spends_the_same_updates_on_real_latents(refreshed, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(refreshing, "Agent", lambda *given, **how: made.append(Agent(*given, **how)) or made[-1])
    run(tmp_path, replace(PLAN, steps=13, synthetic=replace(SYNTHETIC, copies=True)))
    (agent,) = made
    assert [member.arm for member in agent.members] == [Arm((0,), (1.0,), 0), Arm((1,), (1.0,), 1)]
    assert agent.updates == SYNTHETIC.updates
    assert not [file for file in files(tmp_path) if "generator" in file]
    ((before, after),) = refreshed
    assert not torch.equal(before["actor"], after["actor"])


def test_shadows_reach_worlds_evaluations_and_frames(tmp_path, monkeypatch):
    sizes = []

    class Shaded(Lamps):
        def __init__(self, *given, shadow_size=None, **how):
            sizes.append(shadow_size)
            super().__init__(*given, **how)

    run(tmp_path, replace(PLAN, steps=9, seeds=1, synthetic=None, shadow_size=64), make_env=Shaded)
    assert sizes == [64, 64]  # the world of the seed, and that of its evaluation
    assert read(tmp_path / "frames" / "seed-3").shadow_size == 64


def test_a_seed_without_a_generator_learns_from_real_latents_and_a_diverged_one_not_at_all(
    refreshed, tmp_path, monkeypatch, caplog
):
    def spoilt(models, rows, **options):
        made = fit_models(models, rows, **options)
        return [Diverged("the loss is nan after 7 steps"), *made[1:]]

    def encoded(learner, **options):
        found = whole(learner, **options)
        return [found[0], None]

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, "synther"):
        patched.setattr(refitting, "fit_models", spoilt)
        whole = refreshing.encode_own
        patched.setattr(refreshing, "encode_own", encoded)
        run(tmp_path, replace(PLAN, steps=13))
    (message,) = caplog.messages
    assert message.startswith("the refresh of seed 3 after 12 steps failed")
    ((before, after),) = refreshed
    assert not torch.equal(before["actor"][0], after["actor"][0])
    assert torch.equal(before["actor"][1], after["actor"][1])
    assert [(entry["seed"], entry["kept"]) for entry in refreshes(tmp_path)] == [(3, False)]


STOPS = [
    (PixelVectorEnv, "step", False, 5),  # before there is a checkpoint
    (FrameExperience, "save", True, 1),  # frames are there, and no checkpoint
    (PixelLearner, "save", True, 2),  # a refresh is due
    (refitting, "fit_models", True, 1),  # generators were fitted, and not kept
    (Synthesizer, "sample", False, 2),  # they were
    (PixelLearner, "take_heads", True, 1),
    (PixelLearner, "train", True, 2),
    (Log, "append", True, 1),  # it was measured, and no checkpoint written
    (Generators, "tidy", False, 1),
    (PixelVectorEnv, "step", True, 5),
    (RunFolder, "finish", False, 1),  # all is done but the result
]
"""Whose call, by number, a run is stopped before or after, in the order of time."""


def test_stopped_again_and_again(finished, tmp_path):
    assert list(stop_at_each(STOPS, run, tmp_path)) == STOPS
    run(tmp_path)
    assert same(finished, tmp_path)


def test_stopped_after_the_ring_has_wrapped_around(tmp_path):
    plan = replace(PLAN, capacity=14, synthetic=None, steps=27, evaluate_every=27)
    run(tmp_path / "whole", plan)
    stop(lambda: run(tmp_path / "run", plan), FrameExperience, "save", True, 3)
    run(tmp_path / "run", plan)
    assert same(tmp_path / "whole", tmp_path / "run")


def test_lost_frames_are_noticed(tmp_path, monkeypatch):
    plan = replace(PLAN, steps=12, synthetic=None)
    with monkeypatch.context() as patched:
        patched.setattr(record, "origin", lambda device: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(tmp_path, plan)
    (tmp_path / "frames" / "seed-4" / "0000000009.hdf5").unlink()
    with pytest.raises(ConfigError, match="has lost frames"):
        run(tmp_path, plan)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"update_every": 0}, "update_every"),
        ({"steps": 0}, "steps"),
        ({"env_options": {"a": 1}}, "env_options"),
        ({"capacity": 4}, "at least 5 frames"),
        ({"size": 9}, "at least 15 x 15 pixels"),
        ({"learning_starts": PLAN.config.nstep - 1}, r"agent\.nstep"),
        ({"checkpoint_every": PLAN.config.nstep - 1}, r"agent\.nstep"),
    ],
    ids=str,
)
def test_what_cannot_be_leaves_no_folder(change, named, tmp_path):
    with pytest.raises((ConfigError, DataError), match=named):
        run(tmp_path / "run", replace(PLAN, **change))
    assert not (tmp_path / "run").exists()


def test_a_world_that_fails_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(Lamps, "fault", "reward")
    with pytest.raises(DataError, match="of seed 3 returned the reward nan in decision 0"):
        run(tmp_path / "run", make_env=Lamps)


def test_when_it_is_refreshed_and_the_defaults_of_drq_v2():
    assert [step for step in LEGS if PLAN.is_refreshed(step)] == [12, 24]
    assert [step for step in LEGS if replace(PLAN, learning_starts=12).is_refreshed(step)] == [24]
    plan = OnlinePixelRun("a", "A", steps=500_000)
    agent = plan.config
    assert (agent.learning_rate, agent.nstep, agent.tau, agent.batch_size) == (1e-4, 3, 0.01, 256)
    assert (plan.learning_starts, plan.update_every, plan.repeat, plan.capacity) == (2_000, 2, 2, 1_000_000)
    assert agent.stddev_updates * plan.update_every == 500_000
    assert (plan.arm, PLAN.arm) == ("drq_v2", "drq_v2_synther")
    assert plan.frames == 525_050


def test_another_process_has_just_come_to_the_end(tmp_path):
    plan, results = replace(PLAN, synthetic=None, steps=12), []

    def slowly(*given, **how) -> Doors:
        if not results:
            results.append(None)
            results[0] = run(tmp_path, plan)
        return Doors(*given, **how)

    assert run(tmp_path, plan, slowly) == results[0]

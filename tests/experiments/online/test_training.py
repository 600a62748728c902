"""What an online run leaves behind, what it learns, and what becomes of one that goes wrong."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from synther import Synthesizer, formats, read, write
from synther.agents.learner import Learner
from synther.agents.policy import load_policy
from synther.data.episodes import n_step_rows
from synther.data.transitions import Transitions
from synther.diffusion.fit import Diverged
from synther.envs.vector_env import VectorEnv
from synther.errors import ConfigError, DataError, SyntherError
from synther.experiments.online import train_to
from synther.experiments.refresh import Generators
from synther.experiments.results import Log, Result
from synther.folder import RunFolder
from synther.replay import adapting
from synther.replay import refit as refitting
from synther.replay.experience import Experience
from synther.synthesizer.together import fit_models

from .. import pendulum
from ..pendulum import Guessed
from ..trainings import files, logged, stop, stop_at_each
from .runs import LEGS, PLAN, SMALL, SYNTHETIC, TIMES, refreshes, run, same

pytestmark = pytest.mark.usefixtures("quick")

POINT = replace(PLAN, env_id="Point-v0", synthetic=None, steps=20, seed=0, episodes=1)
POINT = replace(POINT, learning_starts=6, checkpoint_every=8)


def test_what_a_run_leaves_behind(finished):
    assert files(finished) == [
        "checkpoint.safetensors", "clock.json", "generator-3-0000000040.safetensors",
        "generator-4-0000000040.safetensors", "log.jsonl", "refreshes.json", "replay.npz", "result.json", "run.json",
    ]  # fmt: skip
    assert [line["env_steps"] for line in logged(finished)] == TIMES
    result = Result.from_json(json.loads((finished / "result.json").read_text()))
    assert result.updates == 55
    assert [standing.updates for standing in result.curves["sac_synther"]] == TIMES
    assert set(result.seconds_of) == {"training", "waiting", "checkpoints", "environments", "generators"}
    assert sum(result.seconds_of.values()) == pytest.approx(result.seconds)
    assert min(result.seconds_of.values()) > 0
    agent = load_policy(finished / "checkpoint.safetensors")
    assert agent.act(np.zeros((1, 3))).shape == (2, 1, 1)
    assert Synthesizer.load(finished / "generator-4-0000000040.safetensors").record.rows == 40
    found = [(entry["seed"], entry["added"], entry["rows"], entry["steps"]) for entry in refreshes(finished)]
    assert found == [(3, 20, 20, 20), (4, 20, 20, 20), (3, 40, 40, 4), (4, 40, 40, 4)]  # the second fits are warm
    assert all(entry["kept"] and entry["held_out"] > 0 for entry in refreshes(finished))


def test_actions_are_chosen_before_the_updates_of_the_step_before(tmp_path, monkeypatch):
    """So that a GPU trains while the environments take the next step. After a reset, no update is under way."""
    happened: list[tuple[str, int]] = []

    def noted(owner, method):
        original = getattr(owner, method)

        def noting(self, *given, **named):
            step = {"step": lambda: given[1], "reset": lambda: given[0]}.get(method, lambda: self.steps)()
            happened.append((method, step))
            return original(self, *given, **named)

        monkeypatch.setattr(owner, method, noting)

    for owner, methods in ((Learner, ("choose", "train")), (VectorEnv, ("reset", "step"))):
        for method in methods:
            noted(owner, method)
    run(tmp_path / "run", replace(PLAN, synthetic=None, steps=18, learning_starts=13, checkpoint_every=15))
    assert happened == [
        ("reset", 0), *(("step", step) for step in range(13)), ("choose", 13),
        ("step", 13), ("choose", 14), ("train", 14),
        ("step", 14), ("train", 15),
        ("reset", 15), ("choose", 15),
        ("step", 15), ("choose", 16), ("train", 16),
        ("step", 16), ("choose", 17), ("train", 17),
        ("step", 17), ("train", 18),
    ]  # fmt: skip


def test_agents_are_kept_on_the_way(tmp_path):
    """Also the ones of a checkpoint that a run was stopped at, before it was copied."""
    plan = replace(PLAN, synthetic=None, steps=31, keep_every=15)
    stop(lambda: run(tmp_path / "run", plan), Learner, "save", True, 1)
    assert not (tmp_path / "run" / "kept").exists()
    run(tmp_path / "run", plan)
    assert [file.name for file in sorted((tmp_path / "run" / "kept").iterdir())] == ["15.safetensors", "30.safetensors"]
    run(tmp_path / "short", replace(plan, steps=15, keep_every=None))
    seen = np.ones((1, 3))
    names = "run/kept/15.safetensors", "short/checkpoint.safetensors", "run/kept/30.safetensors"
    kept, short, later = (load_policy(tmp_path / name).act(seen) for name in names)
    np.testing.assert_array_equal(kept, short)
    assert (later != kept).any()


def test_rows_are_those_of_the_environment_in_order(finished):
    rows = read(finished / "replay.npz")
    assert (len(rows), rows.env_id) == (110, "Pendulum-v1")
    assert not rows.terminal.any()
    assert rows.action_space is not None
    for seed in range(2):
        own = rows[55 * seed : 55 * (seed + 1)]
        assert (np.flatnonzero(own.timeout) + 1).tolist() == LEGS
        going = ~own.timeout[:-1]
        np.testing.assert_array_equal(own.observation[1:][going], own.next_observation[:-1][going])
        assert (own.observation[1:][~going] != own.next_observation[:-1][~going]).any(1).all()
    assert len(np.unique(rows.observation, axis=0)) == 110
    assert np.abs(rows.action).max() > 1.0  # of a box that reaches to 2


def test_members_together_act_and_learn_as_each_alone(finished, tmp_path):
    run(tmp_path / "alone", replace(PLAN, seeds=1, seed=4))
    alone, rows = read(tmp_path / "alone" / "replay.npz"), read(finished / "replay.npz")
    np.testing.assert_allclose(alone.observation, rows.observation[55:], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(alone.action, rows.action[55:], rtol=1e-2, atol=1e-3)


def test_without_upsampling_and_from_scratch(tmp_path):
    run(tmp_path / "real", replace(PLAN, synthetic=None))
    run(tmp_path / "scratch", replace(PLAN, synthetic=replace(SYNTHETIC, refit="scratch")))
    assert [line["env_steps"] for line in logged(tmp_path / "real")] == TIMES
    assert not (tmp_path / "real" / "refreshes.json").exists()
    assert [entry["steps"] for entry in refreshes(tmp_path / "scratch")] == [20] * 4
    one, other = (load_file(tmp_path / name / "checkpoint.safetensors")["actor"] for name in ("real", "scratch"))
    assert not one.equal(other)


def test_a_run_that_ends_within_a_segment_cannot_be_extended(finished):
    with pytest.raises(ConfigError, match="--checkpoint-every"):
        run(finished, replace(PLAN, steps=60))


def test_lost_rows_are_noticed_and_a_lost_record_of_refreshes_is_no_end(tmp_path):
    run(tmp_path / "end", replace(POINT, steps=16))
    rows = read(tmp_path / "end" / "replay.npz")
    for other in (rows[:-1], rows[:16], replace(rows, timeout=None)):
        write(other, tmp_path / "end" / "replay.npz")
        with pytest.raises(ConfigError, match="lost rows"):
            run(tmp_path / "end", replace(POINT, steps=32))
    stop(lambda: run(tmp_path / "middle"), formats, "write", False, 1)
    (tmp_path / "middle" / "refreshes.json").unlink()
    shutil.copytree(tmp_path / "middle", tmp_path / "lost")
    (tmp_path / "lost" / "experience" / "0000000015.safetensors").unlink()
    with pytest.raises(ConfigError, match="lost rows"):
        run(tmp_path / "lost")
    assert run(tmp_path / "middle").updates == 55


@pytest.fixture
def spoil(monkeypatch):
    """Of some seeds of a refresh, by their number of rows, the fit diverges; returns how many were fitted each time."""

    def spoiling(places: dict[int, list[int]]) -> list[int]:
        fitted: list[int] = []

        def spoilt(models, rows, **options):
            fitted.append(len(rows))
            made = fit_models(models, rows, **options)
            for place in places.get(len(rows[0]), []):
                made[place] = Diverged("the loss is nan after 7 steps")
            return made

        monkeypatch.setattr(refitting, "fit_models", spoilt)
        return fitted

    return spoiling


def test_a_refit_that_diverges_keeps_the_old_generator_also_in_a_stopped_run(tmp_path, spoil, monkeypatch, caplog):
    """The rows of the old generator are drawn again, and nothing is fitted again."""
    fitted = spoil({40: [0]})
    with caplog.at_level(logging.WARNING, "synther"):
        run(tmp_path / "whole")
    (message,) = caplog.messages
    assert message.startswith("the refresh of seed 3 after 40 steps failed")
    assert message.endswith("the loss is nan after 7 steps")
    assert "generator-3-0000000020.safetensors" in files(tmp_path / "whole")
    assert [entry["kept"] for entry in refreshes(tmp_path / "whole")] == [True, True, False, True]
    assert fitted == [2, 2]
    with monkeypatch.context() as patched:
        patched.setattr(Generators, "tidy", lambda own: 1 / 0 if own.newest(1, 40) == 40 else None)
        with pytest.raises(ZeroDivisionError):
            run(tmp_path / "run")
    run(tmp_path / "run")
    assert fitted == [2, 2, 2, 2]
    assert same(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize(("at", "steps"), [(1, 0), (18, 17)])
def test_an_environment_that_fails_takes_no_rows_with_it(at, steps, tmp_path):
    with pytest.raises(DataError, match="Point-v0 of seed 0") as failure:
        run(tmp_path, replace(POINT, env_options={"fault": "raises", "at": at}))
    file = tmp_path / "replay.npz"
    assert file.exists() == bool(steps)
    if steps:
        assert str(failure.value).endswith(f"the {steps} steps before it are in {file}")
        rows = read(file)
        assert len(rows) == 2 * steps
        assert rows.timeout[[steps - 1, -1]].all()
    assert not (tmp_path / "result.json").exists()


def test_an_evaluation_that_fails_takes_no_rows_either(tmp_path, monkeypatch):
    def failed(own):
        raise DataError("the episode was not over")

    monkeypatch.setattr(pendulum.Guessed, "result", failed)
    with pytest.raises(DataError, match=r"the episode was not over; the 16 steps before it"):
        run(tmp_path, POINT)
    assert len(read(tmp_path / "replay.npz")) == 32


def test_a_seed_that_diverges_is_told_and_the_others_go_on(tmp_path, monkeypatch, caplog):
    whole = Learner.train

    def diverging(learner):
        whole(learner)
        if learner.rounds == 3:
            learner.algorithm.state()["actor"][0] = np.nan

    monkeypatch.setattr(Learner, "train", diverging)
    with caplog.at_level(logging.WARNING, "synther"):
        result = run(tmp_path, POINT)
    assert caplog.messages == ["seed 0 of arm 'sac' has diverged after 10 updates: excluded from means"]
    assert result.diverged == {"sac": (0,)}
    assert [standing.returns[0] for standing in result.curves["sac"]] == [None, None]
    assert len(read(tmp_path / "replay.npz")) == 40
    with pytest.raises(SyntherError, match="all 1 members have diverged"):
        run(tmp_path / "all", replace(POINT, seeds=1))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"env_id": "Nowhere-v0"}, DataError),
        ({"env_options": {"fault": "discrete"}}, ConfigError),
        ({"env_id": "CartPole-v1"}, ConfigError),
        ({"synthetic": replace(SYNTHETIC, ratio=0.01)}, ConfigError),
        ({"device": "abacus"}, ConfigError),
    ],
    ids=str,
)
def test_what_cannot_be_run_leaves_no_folder(change, error, tmp_path):
    with pytest.raises(error):
        run(tmp_path / "run", replace(POINT, **change))
    assert not (tmp_path / "run").exists()


def test_learns_to_bring_a_point_to_the_origin(tmp_path):
    agent = {"width": 32, "batch_size": 32, "learning_rate": 2e-2, "discount": 0.5, "tau": 0.1}
    plan = replace(POINT, agent=agent, steps=150, learning_starts=50, checkpoint_every=75, env_options={"reach": 3.0})
    run(tmp_path, plan)
    starts = np.linspace(-1, 1, 21, dtype=np.float32)[:, None]
    best = 3 * np.clip(-2 * starts[:, 0], -1, 1)
    found = load_policy(tmp_path / "checkpoint.safetensors").act(starts)[..., 0]
    assert (((found - best) ** 2).mean(1) < 0.1 * (best**2).mean()).all()


STOPS = [
    (VectorEnv, "step", False, 8),  # before there is a checkpoint
    (Learner, "train", True, 5),  # after the first one
    (refitting, "fit_models", False, 1),
    (Synthesizer, "save", True, 1),  # one of two generators is kept,
    (Synthesizer, "save", True, 2),  # both are,
    (Synthesizer, "sample_blocks", False, 2),  # and the rows of one are drawn
    (Experience, "save", True, 1),  # rows are there, and no checkpoint
    (Guessed, "result", False, 1),
    (Log, "append", True, 1),
    (Learner, "save", True, 1),  # of a leg that no refresh follows
    (Learner, "save", True, 1),  # a refresh is due
    (refitting, "fit_models", True, 1),  # generators were fitted from those before, and not kept
    (Synthesizer, "save", True, 1),
    (Synthesizer, "sample_blocks", False, 2),
    (Generators, "tidy", True, 1),
    (VectorEnv, "step", False, 4),
    (Learner, "save", True, 1),
    (Learner, "save", True, 1),  # the last step
    (formats, "write", True, 1),
    (RunFolder, "finish", False, 1),  # all is done but the result
]
"""Whose call, by number, a run is stopped before or after, in the order of time."""


def test_stopped_again_and_again(finished, tmp_path):
    reached = []
    for _ in stop_at_each(STOPS, run, tmp_path):
        reached.append(max((int(file.stem) for file in (tmp_path / "experience").glob("0*")), default=0))
    assert reached == [0, 15, *[20] * 4, *[30] * 4, *[40] * 6, 45, *[55] * 3]
    run(tmp_path)
    assert same(finished, tmp_path)


def test_a_first_fit_that_diverges_leaves_the_seed_without_a_generator(tmp_path, spoil):
    spoil({20: [0]})
    run(tmp_path)
    kept = [(entry["seed"], entry["added"], entry["kept"]) for entry in refreshes(tmp_path)]
    assert kept == [(3, 20, False), (4, 20, True), (3, 40, True), (4, 40, True)]


def test_generators_learn_n_step_rows(tmp_path, monkeypatch):
    plan, seen = replace(PLAN, steps=21, n_step=3, env_options={"max_episode_steps": 8}), {}
    whole = Generators.fit
    monkeypatch.setattr(Generators, "fit", lambda self, step, real, progress: (
        seen.update(real), whole(self, step, real, progress)))  # fmt: skip
    run(tmp_path, plan)
    rows = read(tmp_path / "replay.npz")
    for member, real in seen.items():
        expected = n_step_rows(rows[21 * member : 21 * member + 20], 3, 0.99, whole=True)
        assert real.rows.equals(expected)
        assert (len(expected), real.gone) == (6 + 5 + 3, 0)  # of 8 and 7 steps, and of the 5 after the checkpoint


def test_prior_data_of_another_task_leaves_nothing_behind(tmp_path):
    wide = pendulum.swings()
    wide = replace(wide, observation=np.tile(wide.observation, 2), next_observation=np.tile(wide.next_observation, 2))
    with pytest.raises(DataError, match="prior"):
        train_to(replace(PLAN, prior="wide"), tmp_path / "run", prior=wide, progress=False)
    with pytest.raises(ConfigError, match="prior"):
        train_to(replace(PLAN, prior="nothing"), tmp_path / "run", progress=False)
    with pytest.raises(DataError, match="n_step"):
        train_to(replace(PLAN, prior="mixed up", n_step=2), tmp_path / "run", prior=pendulum.swings(), progress=False)
    assert not (tmp_path / "run").exists()


def test_stopped_again_and_again_while_evaluations_are_slow(finished, tmp_path, monkeypatch):
    monkeypatch.setattr(pendulum.Guess, "slow", True)
    for call in (17, 18, 12, 3):
        stop(lambda: run(tmp_path), VectorEnv, "step", True, call)
    run(tmp_path)
    assert same(finished, tmp_path)


DISCRETE = {"env_id": "CartPole-v1", "algorithm": "dqn", "steps": 30, "n_step": 3}
PRIOR = {"algorithm": "simba", "agent": {**SMALL, "critic_width": 8}, "prior": "swings", "steps": 30, "n_step": 2}
VARIANTS = {
    "the buffer has wrapped around": ({"capacity": 18}, 44),
    "copies of real rows": ({"synthetic": replace(SYNTHETIC, copies=True)}, 48),
    "prior data": ({**PRIOR, "synthetic": replace(SYNTHETIC, relevance="td_error")}, 25),
    "discrete actions": ({**DISCRETE, "synthetic": replace(SYNTHETIC, relevance="reward", relevant=0.5)}, 25),
}


@pytest.mark.parametrize(("change", "step"), VARIANTS.values(), ids=VARIANTS)
def test_other_runs_resume(change, step, tmp_path):
    plan = replace(PLAN, **change)
    prior = pendulum.linked() if plan.prior else None
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train_to(plan, whole, prior=prior, progress=False)
    stop(lambda: train_to(plan, stopped, prior=prior, progress=False), VectorEnv, "step", False, step)
    train_to(plan, stopped, prior=prior, progress=False)
    assert same(whole, stopped)
    assert bool(list(whole.glob("generator-*"))) != plan.synthetic.copies
    actions = read(whole / "replay.npz").action
    assert (actions.ndim == 1 and set(actions.tolist()) == {0, 1}) == (plan.algorithm == "dqn")
    if prior:
        with pytest.raises(ConfigError, match="prior"):  # other data
            train_to(replace(plan, steps=45), stopped, prior=pendulum.linked(seed=1), progress=False)


def test_copies_of_real_rows_are_other_batches(tmp_path):
    """The control has no generator and learns from real rows alone."""
    for name, synthetic in (("copies", replace(SYNTHETIC, copies=True)), ("real", None)):
        run(tmp_path / name, replace(PLAN, synthetic=synthetic, steps=25))
    ends = [load_file(tmp_path / name / "checkpoint.safetensors")["actor"] for name in ("copies", "real")]
    assert not torch.equal(*ends)


ADAPTING = replace(PLAN, synthetic=replace(SYNTHETIC, refresh="auto"), checkpoint_every=20, steps=65)
ADAPTING_STOPS = [
    (Synthesizer, "save", True, 1),  # one of two first generators is kept
    (Generators, "looked", True, 3),
    (Generators, "looked", False, 4),
    (Synthesizer, "save", False, 1),  # of a seed whose rows have changed
    (Synthesizer, "save", True, 1),
    (Generators, "tidy", True, 1),
    (RunFolder, "finish", False, 1),
]


def test_without_drift_a_refresh_comes_as_late_as_it_may(tmp_path, monkeypatch):
    monkeypatch.setattr(adapting, "drift", lambda *given: adapting.Drift(1.0, 1.0, False))
    run(tmp_path, ADAPTING)
    assert [(entry["number"], entry["seed"], entry["added"]) for entry in refreshes(tmp_path)] == [
        (0, 3, 20), (0, 4, 20), (1, 3, 60), (1, 4, 60),
    ]  # fmt: skip
    looks = json.loads((tmp_path / "looks.json").read_text())["looks"]
    assert [look["added"] for look in looks if look["seed"] == 3] == [*range(24, 61, 4), 64]


def test_each_seed_is_refreshed_when_its_own_rows_change_also_after_stops(tmp_path, monkeypatch):
    def drift(model: Synthesizer, unseen: Transitions, newest: Transitions) -> adapting.Drift:
        """By chance, but the same for the same rows."""
        assert len(newest) == 4
        assert not np.isin(unseen.reward, newest.reward).any()
        return adapting.Drift(1.0, 1.0, int(1e4 * abs(newest.reward.sum())) % 4 == 0)

    monkeypatch.setattr(adapting, "drift", drift)
    run(tmp_path / "whole", ADAPTING)
    looks = json.loads((tmp_path / "whole" / "looks.json").read_text())["looks"]
    asked = {(look["seed"], look["added"]) for look in looks if look["refresh"]}
    assert {(entry["seed"], entry["added"]) for entry in refreshes(tmp_path / "whole")} == asked | {(3, 20), (4, 20)}
    assert len({seed for seed, _ in asked}) == 2
    assert len({added for _, added in asked}) > 1
    for _ in stop_at_each(ADAPTING_STOPS, lambda folder: run(folder, ADAPTING), tmp_path / "stopped"):
        pass
    run(tmp_path / "stopped", ADAPTING)
    assert same(tmp_path / "whole", tmp_path / "stopped")
    again = json.loads((tmp_path / "stopped" / "looks.json").read_text())["looks"]
    assert sorted(map(str, again)) == sorted(map(str, looks))

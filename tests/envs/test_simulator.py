from __future__ import annotations

import sys
from collections.abc import Iterator
from copy import copy
from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from synther.envs import simulator
from synther.envs.making import opened
from synther.envs.rollout import rollout
from synther.envs.simulator import SUPPORTED, describe, judge_of, simulate, supports
from synther.envs.suite_tasks import SuiteTask
from synther.envs.tasks import opened_task
from synther.errors import DataError, MissingExtra

from ..support.processes import Here
from ..support.watch import Watch

CLIPPED = ("Hopper", "Walker2d", "InvertedDoublePendulum")
"""Tasks whose observed velocities are clipped to [-10, 10]."""

ROUNDING = {np.dtype(np.float64): 1e-9, np.dtype(np.float32): 1e-6}
"""How near nine rows of ten must be: contacts multiply the rounding of a recorded state some ten thousand times."""

WORST = 1e-4
"""How near every row must be: at a contact or a stop MuJoCo's solver goes on from its last solution, here from none."""

NEAR = {"Humanoid": (1e-3, 0.01), "HumanoidStandup": (1e-3, 1e-3), "Ant": (WORST, 0.1)}
"""Instead, for tasks that leave something out of the observation: next observation and reward."""


@pytest.fixture(scope="module", autouse=True)
def models_are_compiled_once() -> Iterator[None]:
    """MuJoCo takes a tenth of a second for each model of the suite, and these tests load most of them twice."""
    from dm_control.mujoco.wrapper import core

    whole, known = core.MjModel.from_xml_string, {}

    def compiled(text: str | bytes, assets: dict[str, bytes] | None = None) -> object:
        key = text, tuple(sorted((assets or {}).items()))
        if key not in known:
            known[key] = whole(text, assets)
        return copy(known[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core.MjModel, "from_xml_string", compiled)
        yield


@pytest.mark.parametrize("env_id", SUPPORTED)
def test_a_rollout_comes_out_again(env_id: str) -> None:
    rows = rollout(env_id, 120 if env_id.startswith(CLIPPED) else 60, seed=1)
    following, rewards, terminals = simulate(env_id, rows.observation, rows.action, processes=1)
    known = np.ones(len(rows), bool)
    if env_id.startswith(CLIPPED):
        known = np.abs(rows.observation).max(1) < 10
    assert known.sum() > 20
    off = (np.abs(following - rows.next_observation) / (1 + np.abs(rows.next_observation))).max(1)[known]
    off_reward = np.abs(rewards - rows.reward)[known]
    task = env_id.split("-")[0]
    worst, worst_reward = NEAR.get(task, (WORST, WORST))
    assert off.max() < worst
    assert off_reward.max() < worst_reward
    if task not in NEAR:
        assert np.quantile(off, 0.9) < ROUNDING[rows.observation.dtype]
        assert np.quantile(off_reward, 0.9) < ROUNDING[rows.observation.dtype]
    np.testing.assert_array_equal(terminals[known], rows.terminal[known])
    assert np.abs(following - rows.observation).max() > 10 * worst  # it does not just stand still


@pytest.mark.parametrize(
    ("name", "hidden"), [("hopper-hop", 1), ("walker-run", 2), ("finger-turn_hard", 0), ("swimmer-swimmer6", 3)]
)
def test_suite_rows_are_those_of_the_flatten_wrapper(name: str, hidden: int) -> None:
    with opened(f"dm_control/{name}-v0") as env, opened_task(f"dm_control/{name}-v0") as task:
        flat = gymnasium.wrappers.FlattenObservation(env)
        flat.action_space.seed(2)
        flat.reset(seed=2)
        for _ in range(5):
            observation, *_ = flat.step(flat.action_space.sample())
        theirs = env.unwrapped.physics.data
        assert isinstance(task, SuiteTask)
        assert task.columns == len(observation)
        assert task.place(observation, np.zeros(task.action_shape))
        ours = task.physics.data
        for turned in (np.sin, np.cos):  # an angle is known up to whole turns
            np.testing.assert_allclose(turned(ours.qpos[hidden:]), turned(theirs.qpos[hidden:]), atol=1e-12)
        seen = slice(hidden if name.startswith("swimmer") else 0, None)
        np.testing.assert_allclose(ours.qvel[seen], theirs.qvel[seen], atol=1e-12)


def test_a_walkers_joints_follow_from_its_orientations_to_the_ends_of_their_ranges() -> None:
    with opened("dm_control/walker-walk-v0") as env, opened_task("dm_control/walker-walk-v0") as task:
        assert isinstance(task, SuiteTask)
        env.reset(seed=0)
        physics, random = env.unwrapped.physics, np.random.default_rng(0)
        low, high = physics.model.jnt_range[3:].T
        for share in (0.0, 1.0, *random.uniform(-0.1, 1.1, 20)):  # limits are soft
            joints = low + share * (high - low)
            with physics.reset_context():
                physics.data.qpos[:] = [random.normal(), random.normal(), random.uniform(-20, 20), *joints]
            seen = env.unwrapped.task.get_observation(physics)
            row = np.concatenate([np.ravel(seen[name]) for name in ("height", "orientations", "velocity")])
            assert task.place(row, np.zeros(6))
            np.testing.assert_allclose(task.physics.data.qpos[3:], joints, atol=1e-12)
            np.testing.assert_allclose(task.physics.data.xmat, physics.data.xmat, atol=1e-12)
            np.testing.assert_allclose(task.physics.data.qpos[0], physics.data.qpos[0], atol=1e-12)


@pytest.mark.parametrize(
    ("name", "observation", "reward"),
    [
        ("reacher-hard", [0.3, 0.4, 0.0, 0.0, 0.0, 0.0], 1.0),
        ("reacher-hard", [0.3, 0.4, 0.024, 0.0, 0.0, 0.0], 1.0),  # finger 0.01 and target 0.015 touch
        ("reacher-hard", [0.3, 0.4, 0.026, 0.0, 0.0, 0.0], 0.0),
        ("reacher-easy", [0.3, 0.4, 0.026, 0.0, 0.0, 0.0], 1.0),
        ("pendulum-swingup", [1.0, 0.0, 0.0], 1.0),
        ("pendulum-swingup", [-1.0, 0.0, 0.0], 0.0),
        ("acrobot-swingup_sparse", [0.0, 0.0, 1.0, 1.0, 0.0, 0.0], 1.0),
        ("acrobot-swingup_sparse", [0.0, 0.0, 1.0, -1.0, 0.0, 0.0], 0.0),
        ("cartpole-balance", [0.0, 1.0, 0.0, 0.0, 0.0], 1.0),
        ("cartpole-balance_sparse", [0.3, 1.0, 0.0, 0.0, 0.0], 0.0),  # the cart is off the middle
        ("point_mass-easy", [0.0, 0.0, 0.0, 0.0], 1.0),
        ("swimmer-swimmer6", [0.0] * 18 + [0.0] * 5 + [0.0, 0.0], 1.0),
        ("finger-turn_easy", [0.0, 0.0, 0.0, 0.0, 0.13, 0.0, 0.13, 0.0, 0.0, 0.0, 0.0, 0.0], 1.0),
        ("finger-turn_easy", [0.0, 0.0, 0.0, 0.0, 0.13, 0.13, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], 0.0),
        ("ball_in_cup-catch", [0.0, 0.0, 0.0, 0.35, 0.0, 0.0, 0.0, 0.0], 1.0),  # the ball starts 0.4 below the cup
        ("ball_in_cup-catch", [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], 0.0),
    ],
)
def test_rewards_at_states_whose_reward_is_known(name: str, observation: list[float], reward: float) -> None:
    with opened_task(f"dm_control/{name}-v0") as task:
        still = np.zeros(task.action_shape)
        assert task.place(np.array(observation), still)
        answer = task.step(still)
    assert answer[1:] == (pytest.approx(reward, abs=1e-3), False)


@pytest.mark.parametrize("env_id", ["Hopper-v5", "Humanoid-v5", "Reacher-v4", "dm_control/hopper-hop-v0"])
def test_a_row_does_not_depend_on_the_rows_around_it(env_id: str) -> None:
    rows = rollout(env_id, 60)
    together = simulate(env_id, rows.observation, rows.action, processes=1)
    order = np.random.default_rng(0).permutation(len(rows))
    shuffled = simulate(env_id, rows.observation[order], rows.action[order], processes=1)
    for one, other in zip(together, shuffled, strict=True):
        np.testing.assert_array_equal(one[order], other)


@pytest.mark.parametrize(("cores", "rows", "expected"), [(8, 19, 0), (8, 30, 3), (2, 50, 2), (1, 50, 0)])
def test_another_process_is_started_only_for_enough_rows(cores: int, rows: int, expected: int, monkeypatch) -> None:
    started: list[int] = []

    class Noted(Here):
        def __init__(self, count: int) -> None:
            self.count = count
            started.append(count)

    monkeypatch.setattr(simulator, "CHUNK_ROWS", 5)
    monkeypatch.setattr(simulator, "WORKER_ROWS", 10)
    monkeypatch.setattr(simulator, "cores", lambda: cores)
    monkeypatch.setattr(simulator, "Workers", Noted)
    simulate("Pendulum-v1", np.ones((rows, 3)), np.zeros((rows, 1)))
    assert started == [expected] * bool(expected)


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "dm_control/cheetah-run-v0"])
@pytest.mark.parametrize("size", [1e9, 1e12])
def test_a_state_that_blows_up_is_marked_and_leaves_no_log(env_id, size, tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    rows = rollout(env_id, 3)
    observations = rows.observation.copy()
    observations[1, 8:] = size
    following, rewards, _ = simulate(env_id, observations, rows.action, processes=1)
    assert np.isnan(following).all(1).tolist() == [False, True, False]
    assert np.isnan(rewards).tolist() == [False, True, False]
    np.testing.assert_allclose(following[2], rows.next_observation[2], atol=1e-6)
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr().err == ""


HIDDEN = ("quadruped-walk", "humanoid-run", "point_mass-hard", "lqr-lqr_2_1")
"""Tasks whose observations do not tell their state."""


def test_wrong_arguments_are_named() -> None:
    observations, actions = np.zeros((2, 3)), np.zeros((2, 1))
    for env_id, seen, acted, named in (
        ("Pusher-v5", observations, actions, "'Pusher-v5' .*Hopper-v4, .*walker-run"),
        ("cheetah-run", observations, actions, "'dm_control/cheetah-run-v0'"),
        ("dm_control/cheetah-run", observations, actions, "'dm_control/cheetah-run-v0'"),
        *((f"dm_control/{name}-v0", observations, actions, "recorded state") for name in HIDDEN),
        ("Hopper-v5", observations, actions, r"observations .*\(rows, 11\)"),
        ("Pendulum-v1", observations, actions[:, 0], r"actions .*\(2, 1\)"),
        ("Pendulum-v1", 0.0, actions, "observations"),
        ("Pendulum-v1", observations[:0], actions[:0], "observations"),
        ("Pendulum-v1", observations * np.nan, actions, "finite"),
    ):
        with pytest.raises(DataError, match=named):
            simulate(env_id, seen, acted)
    with pytest.raises(DataError, match="processes"):
        simulate("Pendulum-v1", observations, actions, processes=0)
    with pytest.raises(DataError, match="recorded state"):
        describe("Pusher-v5")


def test_descriptions() -> None:
    assert describe("Walker2d-v5") == "Walker2d-v5 in MuJoCo"
    assert describe("Pendulum-v1") == "Pendulum-v1 in Gymnasium"
    assert describe("dm_control/cheetah-run-v0") == "dm_control cheetah-run"
    assert supports("dm_control/cheetah-run-v0")
    assert not any(supports(f"dm_control/{name}-v0") for name in HIDDEN)


@pytest.mark.parametrize("library", ["dm_control", "dm_control.suite", "shimmy"])
def test_without_the_suite_the_extra_is_named(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    use, given = (rollout, (5,)) if library == "shimmy" else (simulate, (np.zeros((1, 17)), np.zeros((1, 6))))
    with pytest.raises(MissingExtra, match=rf"{library.partition('.')[0]}.*synther\[dmc\]"):
        use("dm_control/cheetah-run-v0", *given)


def test_the_environment_is_asked_as_it_was_made_in_other_processes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"frame_skip": 1, "forward_reward_weight": 3.0, "max_episode_steps": 7}
    with opened("Hopper-v5", **options) as env:
        rows = rollout(env, 40)
    following, rewards, terminals = simulate("Hopper-v5", rows.observation, rows.action, options=options)
    np.testing.assert_allclose(following, rows.next_observation, atol=1e-6)
    np.testing.assert_allclose(rewards, rows.reward, atol=1e-6)
    np.testing.assert_array_equal(terminals, rows.terminal)
    assert np.abs(simulate("Hopper-v5", rows.observation, rows.action)[0] - rows.next_observation).max() > 0.1
    monkeypatch.setattr(simulator, "CHUNK_ROWS", 15)
    watch = Watch()
    spread = simulate("Hopper-v5", rows.observation, rows.action, options=options, processes=2, progress=watch)
    for one, other in zip((following, rewards, terminals), spread, strict=True):
        np.testing.assert_array_equal(one, other)
    assert (watch.phases[0][1], watch.amounts) == (40, [15, 15, 10])


def test_options_that_cannot_be_asked_about() -> None:
    rows = np.zeros((1, 12)), np.zeros((1, 3))
    with pytest.raises(DataError, match="'Hopper-v5' to a recorded state"):
        simulate("Hopper-v5", *rows, options={"exclude_current_positions_from_observation": False})
    name, rows = "dm_control/cheetah-run-v0", (np.zeros((1, 17)), np.zeros((1, 6)))
    with pytest.raises(DataError, match="made with the options"):
        simulate(name, *rows, options={"task_kwargs": {"random": 1}})
    assert simulate(name, *rows, options={"max_episode_steps": 5})[0].shape == (1, 17)


def test_n_step_rows_are_not_judged() -> None:
    rows = replace(rollout("Pendulum-v1", 5, seed=0), extra={"discount": np.full(5, 0.9)})
    assert "n-step" in str(judge_of(rows, "Pendulum-v1", named=False))
    with pytest.raises(DataError, match="n-step"):
        judge_of(rows, "Pendulum-v1", named=True)
    assert not isinstance(judge_of(rows.without_extra(), "Pendulum-v1", named=True), DataError)

"""Episodes of policies in environments, rows of them, and how rows of several episodes are put together."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from itertools import pairwise
from typing import Any, cast

import gymnasium
import numpy as np
import pytest

from synther.data import spaces
from synther.envs import episodes
from synther.envs.episodes import SIDE_BY_SIDE, Step, action_box, play
from synther.envs.making import opened
from synther.envs.policies import MlpPolicy, Policy, UniformPolicy
from synther.envs.recording import _Share
from synther.envs.rollout import rollout
from synther.envs.workers import Workers
from synther.errors import DataError, MissingExtra
from synther.progress import Silent

from .places import Counting, Named

IDLE = MlpPolicy(((np.zeros((2, 1)), np.zeros(1)),))


def steps_of(envs: list[Any], policy: Policy = IDLE, keys: list[tuple[int, ...]] | None = None) -> list[list[Step]]:
    taken: list[list[Step]] = [[] for _ in envs]
    for slot, step in play(envs, "Counting-v0", policy, keys or [(slot,) for slot in range(len(envs))]):
        taken[slot].append(step)
    return taken


class Highest:
    """Takes the float32 next to 0.1, which is above it, and notes what it sees."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def act(self, observation: Any, rng: np.random.Generator) -> Any:
        self.seen.append(observation.copy())
        return np.full((len(observation), 1), 0.1, np.float32)


def test_an_environment_may_write_into_the_action() -> None:
    class Writing(Counting):
        def step(self, action: Any) -> Any:
            taken = float(action[0])
            action *= 0
            return (self.place, taken, *super().step(action)[2:])

    chance = UniformPolicy(np.full(1, -1.0, np.float32), np.ones(1, np.float32))
    (steps,) = steps_of([Writing(6)], chance)
    assert [float(step.action[0]) for step in steps] == [step.reward for step in steps]
    assert len({step.reward for step in steps}) == 6


def test_every_episode_runs_to_its_own_end_and_no_further() -> None:
    envs = [Counting(3), Counting(6, terminates=False), Counting(1)]
    first, second, third = steps_of(envs)
    assert [env.steps for env in envs] == [3, 6, 1]
    assert [step.observation.tolist() for step in first] == [[0, 0], [1, -1], [2, -2]]
    assert [step.next_observation.tolist() for step in first] == [[1, -1], [2, -2], [3, -3]]
    assert [step.reward for step in second] == [1, 2, 3, 4, 5, 6]
    assert [step.terminal for step in first] == [False, False, True]
    assert not any(step.timeout for step in first)  # a terminal state at the time limit is terminal
    assert not any(step.terminal for step in second)
    assert [step.timeout for step in second] == [False] * 5 + [True]
    assert len(third) == 1


def test_no_more_is_played_than_anybody_wants(monkeypatch) -> None:
    envs = [Counting(3), Counting(10**9)]
    played = list(play(envs, "Counting-v0", IDLE, [(0,), (1,)], most=5))
    assert [env.steps for env in envs] == [3, 5]
    assert [slot for slot, _ in played].count(1) == 5
    assert not any(step.timeout for slot, step in played if slot == 1)  # which whoever wants no more says
    monkeypatch.setattr(episodes, "LONGEST", 20)
    assert len(steps_of([Counting(20)])[0]) == 20
    with pytest.raises(DataError, match="20 steps"):
        steps_of([Counting(21)])


def test_an_episode_does_not_depend_on_those_beside_it() -> None:
    """Bit by bit, in a simulator that would show any difference: a hopper that falls."""
    rng = np.random.default_rng(0)
    layers = tuple((rng.normal(size=(a, b)) / 4, rng.normal(size=b)) for a, b in pairwise((11, 64, 64, 3)))
    keys: list[tuple[int, ...]] = [(7, 0), (7, 1), (7, 2)]
    with opened("Hopper-v5") as one, opened("Hopper-v5") as two, opened("Hopper-v5") as three:
        together = steps_of([one, two, three], MlpPolicy(layers), keys)
        fewer = steps_of([three, one], MlpPolicy(layers), keys[:2])
        (alone,) = steps_of([two], MlpPolicy(layers), keys[:1])
    assert len({len(episode) for episode in together}) > 1
    for beside, by_itself in ((together[0], alone), (together[0], fewer[0]), (together[1], fewer[1])):
        np.testing.assert_array_equal([s.next_observation for s in beside], [s.next_observation for s in by_itself])
        assert [s.reward for s in beside] == [s.reward for s in by_itself]


def test_keys_seed_the_environment_and_the_draws() -> None:
    with opened("Pendulum-v1") as env:
        chance = UniformPolicy(*action_box(env, "Pendulum-v1"))
        first, again, other = (steps_of([env], chance, [key])[0] for key in ((1, 2), (1, 2), (2, 1)))
    np.testing.assert_array_equal([s.action for s in first], [s.action for s in again])
    np.testing.assert_array_equal([s.observation for s in first], [s.observation for s in again])
    assert len(first) == 200
    assert first[-1].timeout
    assert not np.array_equal(first[0].observation, other[0].observation)
    assert not np.array_equal(first[0].action, other[0].action)


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ("reset", r"reset\(seed=\d+\): RuntimeError: no power"),
        ("step", r"step 2 after reset\(seed=\d+\): RuntimeError: wires crossed"),
        ("observation", "nan in observation column 1"),
        ("reward", "reward inf in step 2"),
        ("old reset", r"reset\(seed=\d+\): TypeError"),
        ("old step", r"step 2 after reset\(seed=\d+\): ValueError"),
        ("shape", r"3 numbers in step 2 after reset\(seed=\d+\)"),
    ],
)
@pytest.mark.parametrize("end", [3, 9])  # the last step of the episode, or one on its way
def test_a_broken_environment_is_named(bad: str, text: str, end: int) -> None:
    with pytest.raises(DataError, match=f"Counting-v0 .*{text}"):
        steps_of([Counting(9), Counting(end, bad=(2, bad))])


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        (((np.zeros((3, 1)), np.zeros(1)),), "its 2 observation columns"),
        (((np.zeros((2, 2)), np.zeros(2)),), r"actions of shape \(5, 2\), expected \(5, 1\)"),
        (((np.full((2, 1), np.nan), np.zeros(1)),), "it has diverged"),
    ],
)
def test_a_policy_that_does_not_fit(layers: Any, text: str) -> None:
    with pytest.raises(DataError, match=f"Counting-v0: .*{text}"):
        steps_of([Counting(3)], MlpPolicy(layers))


def test_whole_numbers_leave_room_for_real_ones_and_dictionaries_become_columns() -> None:
    class Halves(Counting):
        """Begins with an integer, as somebody writes `np.array([0])`."""

        def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
            here, info = super().reset(**given)
            return here.astype(np.int64), info

        def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
            place, *rest = super().step(action)
            return place + 0.5, *rest  # type: ignore[return-value]

    policy = Highest()
    steps_of([Halves(3)], policy)
    assert [observation[0, 0] for observation in policy.seen] == [0, 1.5, 2.5]
    (taken,) = steps_of([Named(2)], MlpPolicy(((np.zeros((4, 1)), np.zeros(1)),)))
    assert [step.next_observation.tolist() for step in taken] == [[1, -1, 1, 0], [2, -2, 0, 1]]


def test_the_highest_action_lies_within_bounds_of_more_digits() -> None:
    """The policy always gets as many rows: a product with one row may be rounded otherwise than one with five."""
    env, policy = Counting(2), Highest()
    env.action_space = gymnasium.spaces.Box(-0.1, 0.1, (1,), np.float64)
    (taken,) = steps_of([env], policy)
    assert [step.action.tolist() for step in taken] == [[0.1], [0.1]]
    steps_of([Counting(2), Counting(4), Counting(3)], policy)
    assert {observation.shape for observation in policy.seen} == {(SIDE_BY_SIDE, 2)}
    for space in (gymnasium.spaces.Box(-1, 1, (1,), np.int32), gymnasium.spaces.Discrete(2)):
        env.action_space = space
        with pytest.raises(DataError, match="Box"):
            action_box(env, "Counting-v0")


def test_rows_are_the_true_ones_of_an_environment() -> None:
    rows = rollout("Pendulum-v1", 50, seed=3)
    assert (rows.env_id, rows.action_space, len(rows)) == ("Pendulum-v1", (spaces.Box((-2.0,), (2.0,)),), 50)
    np.testing.assert_array_equal(rows.observation[1:], rows.next_observation[:-1])
    env = gymnasium.make("Pendulum-v1")
    observation, _ = env.reset(seed=3)
    np.testing.assert_array_equal(rows.observation[0], observation)
    for row in range(50):
        observation, reward, *_ = env.step(rows.action[row])
        np.testing.assert_array_equal(rows.next_observation[row], observation)
        assert rows.reward[row] == pytest.approx(reward)
    first, again, other = (rollout("CartPole-v1", 60, seed=seed) for seed in (5, 5, 6))
    assert first.equals(again)
    assert not first.equals(other)
    assert (first.action.shape, first.action.dtype.kind) == ((60,), "i")
    assert first.action_space == (spaces.Discrete(2),)


def test_terminals_and_timeouts() -> None:
    rows = rollout(Counting(end=4), 10)
    assert np.flatnonzero(rows.terminal).tolist() == [3, 7]
    assert np.flatnonzero(rows.timeout).tolist() == [9]
    assert rows.next_observation[:, 0].tolist() == [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
    assert rows.observation[:, 0].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    cut = rollout(Counting(end=5, terminates=False), 10)
    assert not cut.terminal.any()
    assert np.flatnonzero(cut.timeout).tolist() == [4, 9]
    assert not rollout(Counting(end=4), 8).timeout.any(), "an episode that ends with the last step is not cut"


def test_policy_sees_the_raw_observation_and_may_reuse_its_array() -> None:
    out = np.zeros(1, np.float32)

    def policy(seen: Any) -> np.ndarray:
        out[:] = seen["place"][0] / 10
        return out

    rows = rollout(Named(4), 4, policy=policy)
    np.testing.assert_allclose(rows.action[:, 0], [0, 0.1, 0.2, 0.3])
    assert rows.observation.tolist() == [[count, -count, 1, 0] for count in range(4)]
    assert spaces.width(rows.observation_space or ()) == 4


def test_refusals(monkeypatch) -> None:
    strange = Counting()
    strange.action_space = gymnasium.spaces.Dict({"a": gymnasium.spaces.Discrete(2)})
    for env, steps, text in (
        ("CartPole-v1", 0, "steps"),
        ("Hoper-v5", 5, "Hoper-v5"),
        (gymnasium.make_vec("CartPole-v1", 2), 5, "vector environment"),
        (strange, 5, "Dict"),
        (Counting(bad=(6, "step")), 10, "step 6: RuntimeError: wires crossed"),
        (Counting(bad=(6, "observation")), 10, "nan in observation column 1 at step 6"),
        (Counting(bad=(6, "reward")), 10, "reward inf at step 6"),
    ):
        with pytest.raises(DataError, match=text):
            rollout(env, steps)
    with pytest.raises(DataError, match="outside the space"):
        rollout(Counting(), 5, policy=lambda observation: np.full(1, 1.5, np.float32))
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(MissingExtra, match=r"synther\[gym\]"):
        rollout("CartPole-v1", 5)


def test_how_the_environment_was_made_is_kept():
    rows = rollout("gymnasium.envs.classic_control:Pendulum-v1", 5)
    assert (rows.env_id, rows.env_options) == ("gymnasium.envs.classic_control:Pendulum-v1", None)
    env = gymnasium.make("Pendulum-v1", g=5.0, max_episode_steps=7)
    rows = rollout(env, 10)
    assert (rows.env_id, rows.env_options) == ("Pendulum-v1", {"g": 5.0, "max_episode_steps": 7})
    assert np.flatnonzero(rows.timeout).tolist() == [6, 9]


class Players:
    """Every piece is two episodes of three rows: one that ends in a terminal state, and one that is cut."""

    count = 1

    def submit(self, *work: Any) -> Future[dict[str, np.ndarray]]:
        places = np.arange(6.0)
        columns = {name: places[:, None] for name in ("observation", "action", "next_observation")}
        played: Future[dict[str, np.ndarray]] = Future()
        played.set_result({**columns, "reward": places, "terminal": places == 2, "timeout": places == 5})
        return played


@pytest.mark.parametrize(
    ("wanted", "terminals", "timeouts"),
    [(3, [2], []), (2, [], [1]), (4, [2], [3]), (6, [2], [5]), (9, [2, 8], [5]), (10, [2, 8], [5, 9])],
)
def test_the_last_row_is_cut_unless_it_is_terminal(wanted: int, terminals: list[int], timeouts: list[int]) -> None:
    share = _Share("Made-v0", "{}", UniformPolicy(np.zeros(1), np.ones(1)), (2, 0, 0), limit=3)
    with Silent().phase("roll out", wanted) as phase:
        rows = share.rows(wanted, cast(Workers, Players()), phase)
    assert np.flatnonzero(rows.terminal).tolist() == terminals
    assert np.flatnonzero(rows.timeout).tolist() == timeouts
    assert rows.reward.tolist() == (list(range(6)) * 2)[:wanted]

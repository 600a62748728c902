from __future__ import annotations

from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import pytest

from synther.envs import episodes
from synther.envs.episodes import SIDE_BY_SIDE, Step, action_box, play
from synther.envs.making import opened
from synther.envs.policies import MlpPolicy, Policy, UniformPolicy
from synther.errors import DataError

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

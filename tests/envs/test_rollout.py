from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

from synther.data import spaces
from synther.envs.rollout import rollout
from synther.errors import DataError, MissingExtra

from .places import Counting, Named


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

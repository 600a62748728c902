from __future__ import annotations

import math

import numpy as np
import pytest

from synther.assess import learners
from synther.assess.dynamics import dynamics_error, next_errors, predicted, reward_errors
from synther.assess.features import Features
from synther.assess.standard import Standard
from synther.assess.terminals import TerminalJudge, agreement
from synther.data import termination
from synther.data.transitions import Transitions
from synther.errors import DataError


def rows(count: int = 200, seed: int = 0) -> Transitions:
    """A world of two columns: the action turns the state, the reward is how far it went."""
    rng = np.random.default_rng(seed)
    state, action = rng.normal(size=(count, 2)), rng.uniform(-1, 1, (count, 1))
    step = 0.3 * np.hstack([action, np.sin(state[:, :1])])
    return Transitions(
        observation=state.astype(np.float32),
        action=action.astype(np.float32),
        reward=(5 + np.abs(action[:, 0])).astype(np.float32),
        next_observation=(state + step).astype(np.float32),
    )


def test_dynamics_error_is_a_median_in_deviations() -> None:
    real = rows()
    assert dynamics_error(real, real.next_observation, real) == 0
    std = real.next_observation.std(0, dtype=float)
    assert dynamics_error(real, real.next_observation + 2 * std, real) == pytest.approx(4, rel=1e-5)
    one_column = real.next_observation + np.array([3, 0]) * std
    assert dynamics_error(real, one_column, real) == pytest.approx(4.5, rel=1e-5)
    few = rows(5)
    truth = few.next_observation.astype(float)
    for unfollowed, error in ((2, 0), (3, math.inf)):
        truth[:unfollowed] = np.nan
        assert dynamics_error(few, truth, few) == error


def test_constant_columns_and_one_row() -> None:
    real = rows()
    real.next_observation[:, 1] = 7
    truth = real.next_observation.copy()
    truth[:, 1] = 1e6
    assert dynamics_error(real[:1], truth[:1], real) == 0
    with pytest.raises(DataError, match="no scale"):
        dynamics_error(real[:1], truth[:1], real[:1])
    with pytest.raises(DataError, match="shape"):
        dynamics_error(real, truth[:, :1], real)
    with pytest.raises(DataError, match="3 observation columns, not 2"):
        next_errors(real, truth, Standard.of(np.zeros((4, 3))))


def test_reward_errors() -> None:
    real = rows()
    scale = Standard.of(real.reward[:, None])
    assert (reward_errors(real, real.reward, scale) == 0).all()
    far = reward_errors(real, real.reward + 3 * real.reward.std(dtype=float), scale)
    np.testing.assert_allclose(far, 9, rtol=1e-4)
    assert reward_errors(real[:1], [math.nan], scale).tolist() == [math.inf]
    with pytest.raises(DataError, match="no scale"):
        reward_errors(real[:1], real.reward[:1], Standard.of(np.ones((5, 1))))
    with pytest.raises(DataError, match="shape"):
        reward_errors(real, real.reward[:, None], scale)


def test_networks_know_a_world_they_have_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learners, "WIDTH", 64)
    real, other = rows(2_000), rows(500, 1)
    features = Features.of(real)
    pool = np.arange(len(real))
    networks = learners.fit(features.decision(real), features.outcome(real), [[pool]] * 2, learners.squared, seed=0)
    following, reward = predicted(networks, features, other)
    scale = Standard.of(real.next_observation)
    floor = np.median(next_errors(other, following, scale))
    still = np.median(next_errors(other, other.observation, scale))
    assert floor < 0.01 * still
    assert np.abs(reward - other.reward).mean() < 0.05


def flags(text: str) -> np.ndarray:
    return np.array([letter == "1" for letter in text])


def test_agreement() -> None:
    found = agreement(flags("110000"), flags("101100"))
    assert (found.correct, found.precision, found.recall) == (pytest.approx(0.5), 0.5, pytest.approx(1 / 3))
    perfect = agreement(flags("0100"), flags("0100"))
    assert (perfect.correct, perfect.precision, perfect.recall) == (1, 1, 1)
    never = agreement(flags("0"), flags("0"))
    assert (never.correct, never.precision, never.recall) == (1, None, None)
    assert agreement(flags("00"), flags("01")).recall == 0


def falling(count: int, seed: int) -> Transitions:
    """A world that ends where its first column falls below -2."""
    rng = np.random.default_rng(seed)
    here, there = rng.normal(size=(2, count, 2))
    return Transitions(here, rng.normal(size=(count, 1)), np.zeros(count), there, terminal=there[:, 0] < -2)


def test_thresholds_judge_where_they_explain_the_real_terminals() -> None:
    real, other = falling(6_000, 0), falling(4_000, 1)
    judge = TerminalJudge(Features.of(real), real, seed=0)
    assert agreement(judge(other), other.terminal).correct > 0.998


def test_a_network_that_judges_rare_terminals_does_not_look_at_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(termination, "learn", lambda *rows_and_seed: None)
    monkeypatch.setattr(learners, "WIDTH", 32)
    real, other = falling(6_000, 0), falling(4_000, 1)
    judge = TerminalJudge(Features.of(real), real, seed=0)
    found = agreement(judge(other), other.terminal)
    assert real.terminal.mean() < 0.03
    assert found.precision is not None
    assert found.recall is not None
    assert min(found.precision, found.recall) > 0.7
    flipped = Transitions(other.observation, other.action, other.reward, other.next_observation, ~other.terminal)
    assert np.array_equal(judge(flipped), judge(other))


@pytest.mark.parametrize("value", [False, True])
def test_where_all_flags_are_the_same_so_is_the_answer(value: bool) -> None:
    real = falling(30, 0)
    same = Transitions(real.observation, real.action, real.reward, real.next_observation, np.full(30, value))
    assert (TerminalJudge(Features.of(same), same, seed=0)(real) == value).all()

"""Rare large rewards have to come where, and as large as, in real rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from synther.assess.features import Features
from synther.assess.figure import Figure
from synther.assess.payouts import Usual, agreement, figures, place
from synther.data.transitions import Transitions


def jackpot(count: int, seed: int) -> Transitions:
    """Where the second column is large, a third of the rows pay 5 and more, as the third column says."""
    draw = np.random.default_rng(seed)
    here, action = draw.normal(size=(count, 3)), draw.uniform(-1, 1, (count, 1))
    pays = (here[:, 1] > 1.6) & (draw.random(count) < 0.3)
    reward = 0.1 * here[:, 0] + 0.05 * draw.normal(size=count) + pays * (8 + 2 * here[:, 2])
    return Transitions(*(each.astype(np.float32) for each in (here, action, reward, 0.9 * here)))


REAL, HELD_OUT, OTHER = jackpot(8_000, 0), jackpot(4_000, 1), jackpot(8_000, 2)
PAID = np.flatnonzero(OTHER.reward > 2)


def found(synthetic: Transitions) -> dict[str, Figure]:
    return figures(Features.of(REAL), REAL, synthetic, HELD_OUT, seed=0)


def paying(rewards: np.ndarray) -> Transitions:
    return replace(OTHER, reward=rewards.astype(np.float32))


def off(figure: Figure) -> float:
    """By how much it is below that of real rows, in what chance explains."""
    assert figure.value is not None
    assert figure.real is not None
    return (figure.real - figure.value) / figure.chance


def test_other_real_rows_are_like_real_rows():
    told = found(OTHER)
    assert set(told) == {"payout_mean", "payout_place", "payout_size"}
    assert all(abs(off(figure)) < 2 for figure in told.values())
    assert told["payout_place"].real > 0.8
    assert told["payout_size"].real > 0.8


def test_payouts_in_random_rows_are_noticed():
    told = found(paying(np.random.default_rng(0).permutation(OTHER.reward)))
    assert abs(off(told["payout_mean"])) < 2
    assert off(told["payout_place"]) > 3
    assert abs(told["payout_place"].value) < 0.3


def test_payouts_of_random_sizes_are_noticed():
    reward = OTHER.reward.copy()
    reward[PAID] = np.random.default_rng(0).permutation(reward[PAID])
    told = found(paying(reward))
    assert abs(off(told["payout_place"])) < 2
    assert off(told["payout_size"]) > 3


def test_payouts_that_are_gone_or_small_are_noticed():
    small = np.where(OTHER.reward > 2, OTHER.reward / 4, OTHER.reward)
    assert off(found(paying(small))["payout_mean"]) > 3
    gone = found(paying(np.minimum(OTHER.reward, 0.4)))
    assert set(gone) == {"payout_mean"}
    assert gone["payout_mean"].value == 0


@pytest.mark.parametrize(
    "reward",
    [
        np.random.default_rng(0).normal(size=5_000),
        np.random.default_rng(0).exponential(size=5_000),
        np.where(np.arange(5_000) % 5 == 0, 10.0, 0.01 * np.arange(5_000) / 5_000),
        np.where(np.arange(5_000) % 500 == 0, 10.0, 0.01 * np.arange(5_000) / 5_000),
        np.ones(5_000),
        np.ones(1),
    ],
    ids=["normal", "exponential", "a fifth", "ten rows", "constant", "one row"],
)
def test_rewards_without_payouts_have_none(reward: np.ndarray):
    assert Usual.of(reward) is None


def test_place_and_size_at_their_best_and_worst():
    pays = np.array([False, False, True, True])
    assert place(np.array([0.0, 1.0, 2.0, 3.0]), pays) == (1.0, 0.0)
    assert place(np.array([2.0, 3.0, 0.0, 1.0]), pays) == (-1.0, 0.0)
    assert place(np.zeros(4), pays) == (0.0, 0.0)
    assert agreement(np.arange(4.0), 2 * np.arange(4.0))[0] == pytest.approx(1)
    assert agreement(np.arange(4.0), -np.arange(4.0))[0] == pytest.approx(-1)
    assert agreement(np.ones(4), np.arange(4.0)) == (0.0, 0.0)

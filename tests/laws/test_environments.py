"""What `benchmarks/environments.py` knows of each environment holds on real rows, and not on wrong ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import environments
import numpy as np
import pytest

from synther import Transitions

ROWS = 600
NEEDS = {"minigrid": "minigrid", "obstacles": "minigrid", "lunarlander": "Box2D", "lunarlander-continuous": "Box2D"}
NEEDS |= {"bipedalwalker": "Box2D", "ant": "mujoco"}


@pytest.fixture(params=environments.ENVIRONMENTS)
def name(request: pytest.FixtureRequest) -> str:
    chosen = str(request.param)
    if chosen in NEEDS:
        pytest.importorskip(NEEDS[chosen])
    return chosen


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_real_rows_are_right_and_shuffled_ones_wrong(name: str, tmp_path: Path) -> None:
    real = environments.rows_of(name, tmp_path, ROWS, 0)
    assert len(real) == ROWS
    assert real.equals(environments.rows_of(name, tmp_path, ROWS, 0))
    if name == "reacher":  # beyond its limit, at 3, an elbow looks as if it were at the other limit
        real = real[np.abs(np.arctan2(real.observation[:, 3], real.observation[:, 1])) < 3]
    right, wrong = (environments.ENVIRONMENTS[name].measure(real, rows) for rows in (real, _shuffled(real)))
    if "transitions" in right:
        assert right["transitions"] == 1
        assert wrong["transitions"] < 0.9
    if "off" in right:
        assert right["off"] < 1e-3
        assert wrong["off"] > 0.1
        assert right["reward_off"] < 1e-6
        assert right["terminals"] == 1
    if name == "obstacles":
        assert right["observations"] == 1
        unseen = replace(real, observation=real.observation[:, ::-1])
        assert environments.ENVIRONMENTS[name].measure(real, unseen)["observations"] < 0.6
    if name == "ant":
        assert right["half_in_contact"] < 0.001
        shuffled = replace(real, observation=np.random.default_rng(0).permuted(real.observation, axis=0))
        assert environments.ENVIRONMENTS[name].measure(real, shuffled)["half_in_contact"] > 0.03
    if "disagreement" in right:
        assert right["disagreement"] == 1
        assert wrong["disagreement"] > 10


def _shuffled(rows: Transitions) -> Transitions:
    return replace(rows, next_observation=np.roll(rows.next_observation, 37, 0))


def test_episodes_continue_until_they_end(tmp_path: Path) -> None:
    rows = environments.rows_of("cartpole", tmp_path, ROWS, 1)
    over = rows.terminal | np.asarray(rows.timeout)
    assert over[-1]
    np.testing.assert_array_equal(rows.next_observation[:-1][~over[:-1]], rows.observation[1:][~over[:-1]])


def test_a_grid_has_48_observations() -> None:
    pytest.importorskip("minigrid")
    observations, transitions = environments.minigrid_truth()
    assert len(observations) == 48
    assert {after for _, _, after in transitions} | {before for before, _, _ in transitions} == observations


def test_rules_of_blackjack() -> None:
    def allowed(state: tuple[int, int, int], action: int, after: tuple[int, int, int], reward: int, end: bool) -> bool:
        row = Transitions(np.array([state]), np.array([action]), np.array([reward]), np.array([after]), np.array([end]))
        return bool(environments.blackjack_possible(row)[0])

    assert allowed((15, 3, 0), 0, (15, 3, 0), 1, True)
    assert not allowed((15, 3, 0), 0, (15, 3, 0), 0, False)  # sticking ends the hand
    assert allowed((15, 3, 0), 1, (25, 3, 0), -1, True)
    assert not allowed((15, 3, 0), 1, (26, 3, 0), -1, True)  # no card is worth 11 then
    assert not allowed((15, 3, 0), 1, (25, 3, 0), 0, False)
    assert allowed((10, 3, 0), 1, (21, 3, 1), 0, False)
    assert not allowed((10, 3, 0), 1, (11, 3, 0), 0, False)  # that ace counts 11
    assert allowed((15, 3, 1), 1, (12, 3, 0), 0, False)
    assert not allowed((15, 3, 1), 1, (17, 4, 1), 0, False)  # the dealer's card stays

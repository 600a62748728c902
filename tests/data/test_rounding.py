"""Numbers that a sensor rounds come back rounded, and spread as in real rows."""

from __future__ import annotations

import json

import numpy as np
import pytest

from synther.data.kinds import Codebook, Integer
from synther.data.lattices import Step, _Lines, _with_heaps
from synther.data.preparing import Prepared, prepare
from synther.data.residuals import Residuals
from synther.data.rounding import Cells
from synther.data.transitions import Transitions

from ..support.layouts import decoded

ROWS = 12_000


def sensors(
    step: float, noise: float, *, discrete: bool = False, most: float = np.inf, centre: float = 0.0
) -> Transitions:
    """Two columns near `centre` that are pushed, and drift back. They show multiples of `step`, at most `most` of them
    from the centre."""
    draw = np.random.default_rng(0)
    action = draw.integers(0, 3, ROWS) if discrete else draw.uniform(-1, 1, (ROWS, 1))
    push = 3 * noise * (action[:, None] - 1.0 if discrete else action)
    here = 4 * noise * draw.normal(size=(ROWS, 2))
    there = 0.8 * here + push + noise * draw.normal(size=(ROWS, 2))
    shown = [(centre + np.clip(np.rint(each / step), -most, most) * step).astype(np.float32) for each in (here, there)]
    reward = (push[:, 0] - 0.2 * np.abs(shown[1] - centre).sum(1)).astype(np.float32)
    return Transitions(shown[0], action.astype(np.int64 if discrete else np.float32), reward, shown[1])


def prepared(rows: Transitions) -> Prepared:
    return prepare(rows, "quantile", "onehot", True, residuals="bent", counted=True)


def off(rows: Transitions, real: Transitions) -> np.ndarray:
    """How far next observations are from a line that is fitted to real rows."""

    def given(each: Transitions) -> np.ndarray:
        return np.column_stack([each.observation, each.action.reshape(len(each), -1), np.ones(len(each))])

    weights = np.linalg.lstsq(given(real), real.next_observation.astype(np.float64), rcond=None)[0]
    return np.asarray(rows.next_observation - given(rows) @ weights)


def drawn_apart(found: Prepared) -> Transitions:
    """What comes back if all that is left of outcomes has to do with nothing else in a row."""
    matrix, draw = found.matrix.copy(), np.random.default_rng(1)
    for step in found.scaler.residuals.steps[:2]:
        matrix[:, step.column] = draw.permutation(matrix[:, step.column])
    return decoded(found, matrix)


VARIANTS = {
    "half degrees": {"step": 0.5, "noise": 0.3, "centre": 20.0},
    "coarse": {"step": 1.0, "noise": 0.4},
    "fine": {"step": 0.01, "noise": 0.02},
    "three actions": {"step": 0.1, "noise": 0.15, "discrete": True},
    "ends of a converter": {"step": 1 / 256, "noise": 1 / 256, "most": 6},
    "whole numbers": {"step": 1.0, "noise": 1.0, "centre": 30.0},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_outcomes_spread_as_in_real_rows(variant: str):
    """Without a line, up to 3.3 times as far: what is left then has to tell all that the action does."""
    real = sensors(**VARIANTS[variant])
    found = prepared(real)
    assert sum(bool(step.slopes) for step in found.scaler.residuals.steps) == 2
    fake = drawn_apart(found)
    assert set(np.unique(fake.next_observation)) <= set(np.unique([real.observation, real.next_observation]))
    spread = off(fake, real).std(0) / off(real, real).std(0)
    np.testing.assert_allclose(spread, 1, atol=0.03)


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_come_back(variant: str):
    real = sensors(**VARIANTS[variant])
    found = prepared(real)
    again = decoded(found, found.matrix)
    np.testing.assert_array_equal(again.next_observation, real.next_observation)
    np.testing.assert_array_equal(again.observation, real.observation)
    assert Residuals.from_json(json.loads(json.dumps(found.scaler.residuals.to_json()))) == found.scaler.residuals


def test_steps_of_earlier_files_have_no_line():
    told = prepared(sensors(1.0, 0.4)).scaler.residuals.to_json()
    earlier = {**told, "steps": [{name: step[name] for name in step if name != "slopes"} for step in told["steps"]]}
    assert not any(step.slopes for step in Residuals.from_json(json.loads(json.dumps(earlier))).steps)


def test_a_reward_follows_from_what_comes_out():
    """A line in half degrees bends at each of them."""
    real = sensors(0.5, 0.3, centre=20.0)
    found = prepared(real)
    fake = drawn_apart(found)
    told = 0.9 * fake.action[:, 0] - 0.2 * np.abs(fake.next_observation - 20).sum(1)
    assert np.abs(fake.reward - told).mean() < 0.1 * real.reward.std()


def stepping(rows: Transitions) -> Step:
    (step,) = prepared(rows).scaler.residuals.steps
    return step


def test_a_switch_is_no_rounded_number():
    """A gear that goes up or down where the pedal is far enough from the middle: its steps only look like noise."""
    draw = np.random.default_rng(0)
    gear, pedal = draw.integers(0, 100, ROWS), draw.uniform(-1, 1, (ROWS, 1))
    there = gear + np.select([pedal[:, 0] > 0.3, pedal[:, 0] < -0.3], [1, -1])
    rows = [each.astype(np.float32) for each in (gear[:, None] / 2, pedal, pedal[:, 0], there[:, None] / 2)]
    assert not stepping(Transitions(*rows)).slopes


def test_whole_multiples_of_others_stay():
    """A stock grows by what arrives, and shrinks by what is sold, which depends on the price."""
    draw = np.random.default_rng(0)
    stock, arriving, price = draw.integers(50, 100, ROWS), draw.integers(0, 40, ROWS), draw.uniform(-1, 1, (ROWS, 1))
    sold = draw.poisson(8 - 4 * price[:, 0])
    here = np.column_stack([stock, arriving]).astype(np.float32)
    there = np.column_stack([stock + arriving - sold, arriving[::-1]]).astype(np.float32)
    found = prepared(Transitions(here, price.astype(np.float32), price[:, 0].astype(np.float32), there))
    step = found.scaler.residuals.steps[0]
    names, scale = found.layout.names, found.scaler.scale
    told = {names[one]: weight * scale[step.column] / scale[one] for one, weight in step.inputs}
    assert told == pytest.approx({"observation[0]": 1, "observation[1]": 1})
    assert step.slopes
    fake = drawn_apart(found)
    sold_again = fake.observation.sum(1) - fake.next_observation[:, 0]
    assert sold_again.min() >= 0
    assert np.corrcoef(sold_again, price[:, 0])[0, 1] == pytest.approx(np.corrcoef(sold, price[:, 0])[0, 1], abs=0.03)


@pytest.mark.parametrize(("discrete", "kind"), [(False, Integer), (True, Codebook)])
def test_a_few_whole_numbers_are_categories_unless_they_are_rounded(discrete: bool, kind: type):
    """Where actions are discrete too, tables tell every outcome."""
    rows = sensors(1.0, 0.7, discrete=discrete)
    assert len(np.unique(rows.observation)) <= 32
    assert {type(one) for one in prepared(rows).layout.observation} == {kind}


def test_numbers_inside_their_cells_are_distributed_like_the_others():
    draw = np.random.default_rng(0)
    ranks = np.quantile(draw.normal(size=100_000), np.linspace(0, 1, 257))
    exact = draw.normal(size=50_000)
    shown = np.clip(np.rint(exact), -1, 1)
    cells = Cells.of(shown, 1.0, shown == -1, shown == 1)
    found = cells.drawn(ranks, draw)
    np.testing.assert_array_equal(np.clip(np.rint(found), -1, 1), shown)
    np.testing.assert_allclose(
        np.quantile(found, [0.01, 0.1, 0.5, 0.9]), np.quantile(exact, [0.01, 0.1, 0.5, 0.9]), atol=0.05
    )


def test_a_column_that_spans_less_than_a_step_of_its_residual_has_no_line():
    """Each of its values is at both ends of its range."""
    draw = np.random.default_rng(0)
    numbers, given = draw.integers(0, 4, 2_000), draw.normal(size=(2_000, 2))
    step = Step(0, ((1, 1.0),), 0.0, 1.0, low=0.0, high=0.5, first=0.0, unit=1.0, most=3)
    lines = _Lines(given, [0, 1])
    with np.errstate(invalid="raise"):
        found, bits = lines.with_line(step, draw.choice([0.0, 0.5], 2_000), numbers.astype(np.float64), [])
    assert found is None
    assert bits == pytest.approx(2, abs=0.01)


def test_an_outcome_that_is_always_at_an_end_of_its_range_has_a_spread():
    """Nothing of it is inside, so that all rows tell how much its residual varies."""
    draw = np.random.default_rng(0)
    own = np.where(draw.random(2_000) < 0.5, 0.0, 12.0)
    before = draw.integers(0, 13, 2_000)
    step = Step(0, ((1, 1.0),), 0.0, 1.0, low=0.0, high=12.0, first=-12.0, unit=1.0, most=24)
    with np.errstate(invalid="raise"):
        found = _with_heaps(step, own, own - before, [])
    assert found.scale == pytest.approx((own - before).std())

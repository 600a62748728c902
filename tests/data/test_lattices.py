"""Whole numbers keep the arithmetic of their world in generated rows."""

from __future__ import annotations

import json

import numpy as np
import pytest

from synther import Synthesizer
from synther.data.lines import Straight, Units
from synther.data.preparing import Prepared, prepare
from synther.data.residuals import Residuals
from synther.data.transitions import Transitions
from synther.data.values import grain_of

from ..support.layouts import decoded


def shop(count: int = 20_000) -> Transitions:
    """A stock that grows by what was ordered and shrinks by what is sold. Every third customer finds nothing nice."""
    random = np.random.default_rng(0)
    stock, arriving, order = (
        random.integers(0, 100, count),
        random.integers(0, 11, count),
        random.integers(0, 11, count),
    )
    sold = np.minimum(stock + arriving, random.poisson(5, count))
    lost = 3 * (random.random(count) < 0.1)
    left = stock + arriving - sold
    return Transitions(
        observation=np.stack([stock, arriving], 1).astype(np.float32),
        action=order,
        reward=(5.0 * sold - 2 * order - 7 * (order > 0) - left - lost).astype(np.float32),
        next_observation=np.stack([left, order], 1).astype(np.float32),
    )


def prepared(rows: Transitions) -> Prepared:
    return prepare(rows, "quantile", "onehot", True, residuals="bent", counted=True)


def arithmetic(rows: Transitions) -> tuple[np.ndarray, np.ndarray]:
    """What was sold, and what the reward lacks."""
    sold = rows.observation.sum(1) - rows.next_observation[:, 0]
    order = rows.action
    return sold, 5 * sold - 2 * order - 7 * (order > 0) - rows.next_observation[:, 0] - rows.reward


def test_the_weights_are_those_of_the_world():
    found = prepared(shop())
    names, scale = found.layout.names, found.scaler.scale
    stock, reward = found.scaler.residuals.steps
    told = {names[one]: weight * scale[stock.column] / scale[one] for one, weight in stock.inputs}
    assert told == pytest.approx({"observation[0]": 1} | {f"observation[1]={n}": n / 2 for n in range(11)})
    told = {names[one]: weight * scale[reward.column] / scale[one] for one, weight in reward.inputs}
    assert told["next_observation[0]"] == pytest.approx(-6)
    assert told["action=7"] - told["action=0"] == pytest.approx(-10.5)  # codes go from -1 to 1
    assert (reward.unit * scale[reward.column], reward.most) == (pytest.approx(3), 1)
    assert Residuals.from_json(json.loads(json.dumps(found.scaler.residuals.to_json()))) == found.scaler.residuals


def test_rows_come_back_and_keep_the_arithmetic_whatever_is_generated():
    real = shop()
    found = prepared(real)
    again = decoded(found, found.matrix)
    np.testing.assert_array_equal(again.reward, real.reward)
    np.testing.assert_array_equal(again.next_observation[:, 0], real.next_observation[:, 0])
    noise = np.random.default_rng(1).normal(size=found.matrix.shape)
    made = decoded(found, noise)
    inside = (made.reward > real.reward.min()) & (made.reward < real.reward.max())
    assert inside.mean() > 0.99
    assert set(arithmetic(made)[1][inside].tolist()) == {0.0, 3.0}


def test_a_short_fit_sells_what_can_be_sold():
    network = {"width": 64, "depth": 2, "embedding": 16}
    fit = {"steps": 250, "learning_rate": 4e-3, "evaluate_every": 250}
    model = Synthesizer("laptop", fit=fit, network=network).fit(shop(), progress=False)
    fake = model.sample(4_000, seed=0, progress=False)
    sold, lacks = arithmetic(fake)
    assert np.isin(lacks, (0, 3)).mean() > 0.99
    assert np.mean(lacks == 3) == pytest.approx(0.1, abs=0.03)
    assert sold.std() == pytest.approx(arithmetic(shop())[0].std(), rel=0.15)


def test_noise_is_left_as_it_is():
    """Neither weights that tell nothing, nor a reward that whole multiples do not explain."""
    random = np.random.default_rng(0)
    here, other = random.integers(0, 200, (2, 5_000))
    there = here + random.integers(-2, 3, 5_000)
    reward = np.rint(100 * np.sin(here / 20))
    rows = Transitions(np.stack([here, other], 1) * 1.0, other % 3, reward, np.stack([there, other[::-1]], 1) * 1.0)
    found = prepared(rows)
    first, _ = found.scaler.residuals.steps
    assert [found.layout.names[one] for one in first.columns] == ["next_observation[0]", "observation[0]"]
    assert "reward" in {found.layout.names[one] for one in found.scaler.residuals.outcomes}


def test_the_grain_of_numbers():
    assert grain_of([0.0, 0.1, 0.3, 0.30000001 + 0.5]) == pytest.approx(0.1)
    assert grain_of([0.0, 0.1, 0.25]) == 0
    assert grain_of((0.008 * np.arange(-2_000, 2_000)).astype(np.float32).tolist()) == pytest.approx(0.008)
    assert grain_of(np.sort(np.random.default_rng(0).random(100)).tolist()) == 0
    assert grain_of([-1e308, 0.0, 1e308]) == 0
    assert grain_of([0.0, 5e-324, 1e300]) == 0


@pytest.mark.parametrize("share", [0.1, 0.7, 1.0])
def test_lines_are_those_of_least_squares_also_where_columns_say_the_same(share: float):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(3_000, 4))
    x = np.column_stack([x, x[:, 1], np.zeros(3_000)])
    y = x[:, 0] - 2 * x[:, 1] + 0.3 + np.where(x[:, 2] > 0, 0.5, 0.0)
    known = x[:, 2] <= np.quantile(x[:, 2], share)
    lines = Straight(x)
    slopes, level = lines.fit(y, known)
    best = np.linalg.lstsq(np.column_stack([x, np.ones(3_000)])[known], y[known], rcond=None)[0]
    np.testing.assert_allclose([*slopes, level], best, atol=1e-6)
    np.testing.assert_allclose(lines(slopes, level), x @ slopes + level, atol=1e-12)


@pytest.mark.parametrize("value", [0.0, 0.1, np.cos(np.pi / 2), 1e9 / 3])
def test_a_column_that_never_changes_has_a_unit_of_one(value):
    """Though its mean is rounded, and so its std is not 0."""
    x = np.c_[np.full(5_000, value), np.linspace(-1, 1, 5_000)]
    np.testing.assert_allclose(Units.of(x).std, [1, x[:, 1].std()])


def test_a_stock_is_sold_out_as_often_as_the_demand_says():
    """What remains of a clipped stock says nothing about the stock before: exchanged among rows, it leads to the share
    of empty shelves that follows from the demand."""
    random = np.random.default_rng(0)
    stock, demand = random.integers(0, 200, 40_000), random.poisson(30, 40_000)
    price = random.normal(size=40_000)
    before, after = (np.stack([each, price], 1) for each in (stock, np.maximum(stock - demand, 0)))
    real = Transitions(before, np.zeros((40_000, 1), np.float32), np.zeros(40_000), after)
    found = prepare(real, "standard", "onehot", True, residuals="linear")
    back = decoded(found, found.matrix)
    assert np.array_equal(back.next_observation[:, 0], after[:, 0])
    column = found.layout.names.index("next_observation[0]")
    exchanged = found.matrix.copy()
    exchanged[:, column] = random.permutation(exchanged[:, column])
    made = decoded(found, exchanged)
    for held in (25, 30, 36):
        chance = np.mean(random.poisson(30, 1_000_000) >= held)
        of_these = made.next_observation[made.observation[:, 0] == held, 0]
        assert np.mean(of_these == 0) == pytest.approx(chance, abs=3 * np.sqrt(chance * (1 - chance) / len(of_these)))
    kept = json.loads(json.dumps(found.scaler.residuals.to_json()))
    assert found.scaler.residuals == Residuals.from_json(kept)


def test_what_remains_spreads_alike_on_every_day():
    """On Saturdays more customers come, and their number varies more: as its root does. On Sundays none come."""
    random = np.random.default_rng(0)
    customers = np.array([3, 4, 5, 6, 9, 14, 0])
    day, stock = random.integers(0, 7, 40_000), random.integers(50, 200, 40_000)
    left = stock - random.poisson(customers[day])
    before, after = (np.stack([each, day], 1).astype(np.float32) for each in (stock, left))
    real = Transitions(before, np.zeros((40_000, 1), np.float32), np.zeros(40_000), after)
    found = prepare(real, "standard", "onehot", True, residuals="linear")
    assert np.array_equal(decoded(found, found.matrix).next_observation, real.next_observation)
    remains = found.matrix[:, found.layout.names.index("next_observation[0]")]
    assert [remains[day == each].std() for each in range(7)] == pytest.approx([1.0] * 6 + [0.0], abs=0.01)
    assert np.abs(remains).max() < 10
    slopes = found.scaler.log_slope(found.layout.pack(real))
    saturday, monday = (np.exp(-slopes[day == each][0]) for each in (5, 0))
    assert saturday / monday == pytest.approx(np.sqrt(14 / 3), rel=0.03)

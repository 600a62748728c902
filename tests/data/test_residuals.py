"""Outcomes as what a regression leaves of them: nothing is lost, and what follows from a row follows exactly."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from synther.data import residuals as residuals_module
from synther.data.lattices import Grid
from synther.data.preparing import prepare
from synther.data.residuals import Regression, Residuals, Restorer
from synther.data.scaling import Scaler
from synther.data.transitions import Transitions

from ..support.layouts import decoded


def unit(columns: np.ndarray) -> np.ndarray:
    """Of mean 0 and deviation 1."""
    return (columns - columns.mean(0)) / columns.std(0)


def some_rows(count: int = 4_000, noise: float = 0.05) -> np.ndarray:
    """Three given columns; then one of them with a little noise, one that is noise, and a sum of those."""
    random = np.random.default_rng(0)
    given = random.normal(size=(count, 3))
    first = given[:, 0] + noise * random.normal(size=count)
    second = random.normal(size=count)
    third = given[:, 1] - 2 * given[:, 2] + 0.5 * second
    return unit(np.column_stack([given, first, second, third]))


def fitted(rows: np.ndarray, **options: object) -> Residuals:
    found = Residuals.fit(rows, [0, 1, 2], [3, 4, 5], **options)
    assert found is not None
    return found


def test_what_follows_from_the_row_leaves_nothing_and_comes_back_exactly_whatever_is_generated():
    """Small noise becomes a column of mean 0 and deviation 1, which the given columns do not explain."""
    rows = some_rows(noise=0.05)
    found = fitted(rows)
    taken = rows.copy()
    found.take_out(taken)
    assert found.scale[found.outcomes.index(3)] == pytest.approx(0.05, rel=0.05)
    np.testing.assert_allclose(taken[:, [3, 4]].std(0), 1, atol=1e-9)
    np.testing.assert_allclose(taken[:, [3, 4]].mean(0), 0, atol=1e-9)
    assert np.abs(np.corrcoef(taken[:, :5].T)[3, :3]).max() < 1e-6
    assert np.array_equal(taken[:, :3], rows[:, :3])
    assert np.abs(taken[:, 5]).max() * found.scale[found.outcomes.index(5)] < 1e-7
    generated = np.random.default_rng(1).normal(size=(500, 6))
    generated[:, 5] = np.clip(generated[:, 5], -1, 1)
    found.put_back(generated)
    slopes = np.linalg.lstsq(rows[:, [0, 1, 2, 4]], rows[:, 5], rcond=None)[0]
    # A column of which nothing is left is scaled by no more than SMALLEST.
    np.testing.assert_allclose(generated[:, 5], generated[:, [0, 1, 2, 4]] @ slopes, rtol=0, atol=1.01e-4)


def test_a_bent_regression_explains_a_sine_and_a_straight_one_does_not():
    random = np.random.default_rng(0)
    given = random.uniform(-1.7, 1.7, (16_000, 2))
    rows = unit(np.column_stack([given, np.sin(3 * given[:, 0]) + 0.01 * random.normal(size=16_000)]))
    straight, bent = (Residuals.fit(rows, [0, 1], [2], bent=bent) for bent in (False, True))
    assert straight.scale[0] > 0.9
    assert bent.scale[0] < 0.03
    assert [place for place, _ in bent.knots] == [0]
    assert straight.knots == ()


def test_a_bent_regression_follows_a_curve_into_its_outer_hundredths():
    random = np.random.default_rng(0)
    x = random.normal(size=60_000)
    rows = unit(np.column_stack([x, np.sin(3 * x)]))
    found = Residuals.fit(rows, [0], [1], bent=True)
    left = rows.copy()
    found.take_out(left)
    outer = np.abs(rows[:, 0]) > np.quantile(np.abs(rows[:, 0]), 0.98)
    assert (left[outer, 1] * found.scale[0]).std() < 0.3  # where a line that goes on is off by 0.6
    assert found.scale[0] < 0.08


def shaped_rows(count: int = 20_000) -> np.ndarray:
    """A state, its next value, and a reward, whose noises are 0.1: of a curve in the next value."""
    random = np.random.default_rng(0)
    state = random.normal(size=count)
    following = 0.9 * state + 0.1 * random.normal(size=count)
    reward = following + np.sin(2 * following) + 0.1 * random.normal(size=count)
    return np.column_stack([state, following, reward])


def test_a_reward_that_is_a_curve_in_the_next_observation_has_no_more_than_its_noise_left():
    """Of two columns that explain each other, the product of what is left is that of their noises."""
    raw = shaped_rows()
    rows, std = unit(raw), raw.std(0)
    plain, shaped = (Residuals.fit(rows, [0], [1, 2], bent=True, shaped=chosen) for chosen in ([], [2]))
    noises = [
        np.prod([found.scale[place] * std[column] for place, column in enumerate(found.outcomes)])
        for found in (plain, shaped)
    ]
    assert noises[0] > 0.0105
    assert noises[1] == pytest.approx(0.01, rel=0.03)
    assert [(shape.column, shape.inputs) for shape in shaped.shapes] == [(2, (1,))]
    moved = Residuals.from_json(json.loads(json.dumps(shaped.to_json()))).moved([0, 1, 2], [3, 1, 0])
    there = rows[:, [2, 1, 1, 0]].copy()
    moved.take_out(there)
    moved.put_back(there)
    np.testing.assert_allclose(there, rows[:, [2, 1, 1, 0]], rtol=0, atol=1e-12)


def test_generated_rewards_follow_the_curve_wherever_the_next_observation_goes():
    """Beyond all real rows the curve goes on as a line."""
    raw = shaped_rows()
    mean, std = raw.mean(0), raw.std(0)
    found = Residuals.fit((raw - mean) / std, [0], [1, 2], bent=True, shaped=[2])
    generated = np.random.default_rng(1).normal(size=(20_000, 3))
    generated[:, 0] = (raw[:, 0] - mean[0]) / std[0]
    found.put_back(generated)
    _, following, reward = (generated * std + mean).T
    off = reward - following - np.sin(2 * following)
    assert off.std() == pytest.approx(0.1, rel=0.05)
    generated[:, 1] = 100.0
    assert np.isfinite(generated).all()


@pytest.mark.parametrize("scaling", ["none", "minmax"])
def test_a_reward_that_is_not_scaled_has_no_shape(scaling):
    matrix = shaped_rows()
    scaler = Scaler.fit(
        matrix, ["standard", "standard", scaling], regression=Regression([0], [1, 2], bent=True, shaped=[2])
    )
    assert scaler.residuals.shapes == ()
    np.testing.assert_allclose(scaler.inverse(scaler.transform(matrix)), matrix, rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", ["the state", "noise"])
def test_a_reward_has_no_shape_where_other_columns_explain_it(case):
    raw = shaped_rows()
    random = np.random.default_rng(1)
    raw[:, 2] = random.normal(size=len(raw)) + (np.sin(2 * raw[:, 0]) if case == "the state" else 0.0)
    assert Residuals.fit(unit(raw), [0], [1, 2], bent=True, shaped=[2]).shapes == ()


@pytest.mark.parametrize("count", [2_000, 30_000])
def test_an_outcome_that_a_line_makes_less_simple_stays_as_it_is(count):
    """A reward of 0.001 in most rows and of 1 in some: a line explains a part of its variance, and leaves numbers that
    vary a hundred times as much as the small ones."""
    random = np.random.default_rng(0)
    state = random.normal(size=(count, 2))
    following = 0.9 * state[:, 0] + 0.1 * random.normal(size=count)
    heavy = state[:, 1] + 0.3 * random.standard_t(3, count)
    chance = random.uniform(size=count)
    reward = np.exp(4 * state[:, 0] - 7).clip(max=1.0) * random.uniform(0.5, 1.5, count)
    rows = unit(np.column_stack([state, following, heavy, chance, reward]))
    every = [2, 3, 4, 5]
    assert {*Residuals.fit(rows, [0, 1], every, bent=True, optional=every).outcomes} == {2, 3, 4}
    assert Residuals.fit(rows, [0, 1], [5], bent=True, optional=[5]) is None
    assert Residuals.fit(rows, [0, 1], [5], bent=True).outcomes == (5,)


def test_an_outcome_of_which_most_are_one_number_is_regressed_as_ever():
    random = np.random.default_rng(0)
    state = random.normal(size=(20_000, 1))
    rows = unit(np.column_stack([state, np.where(state[:, 0] > 1, state[:, 0], 0.0)]))
    assert Residuals.fit(rows, [0], [1], bent=True, optional=[1]).outcomes == (1,)


def switched(count: int = 6_000, noise: float = 0.02) -> Transitions:
    """Two coordinates and a flag: an action of 0 moves, 1 damps, and 2 mirrors the first one. The flag stops the
    second one."""
    random = np.random.default_rng(0)
    x, flag, action = random.normal(size=(count, 2)), random.integers(2, size=count), random.integers(3, size=count)
    first = np.select([action == 0, action == 1], [x[:, 0] + 0.5, 0.9 * x[:, 0]], -x[:, 0])
    second = np.where(flag == 1, 0.0, x[:, 1] + 0.1 * x[:, 0])
    there = np.c_[np.c_[first, second] + noise * random.normal(size=(count, 2)), random.integers(2, size=count)]
    return Transitions(np.c_[x, flag], action, random.normal(size=count), there, np.zeros(count, bool))


def test_what_an_action_or_a_flag_decides_about_a_number_is_taken_out():
    real = switched()
    found = prepare(real, "standard", "onehot", True, residuals="bent")
    residuals = found.scaler.residuals
    names = [found.layout.names[column] for column in residuals.given]
    pairs = {tuple(names[place] for place in pair) for pair in residuals.products}
    assert pairs <= {(flag, number) for flag in names for number in ("observation[0]", "observation[1]")}
    assert ("observation[2]", "observation[1]") in pairs
    for column in (0, 1):
        place = residuals.outcomes.index(found.layout.names.index(f"next_observation[{column}]"))
        left = residuals.scale[place] * found.scaler.scale[residuals.outcomes[place]]
        assert left == pytest.approx(0.02, rel=0.1)
    np.testing.assert_allclose(decoded(found, found.matrix).next_observation, real.next_observation, atol=1e-5)
    moved = found.matrix.copy()
    moved[:, :2] += 0.5 * np.random.default_rng(1).normal(size=(len(moved), 2)).astype(np.float32)
    made = decoded(found, moved)
    mirrored = made.action == 2
    off = made.next_observation[mirrored, 0] + made.observation[mirrored, 0]
    assert off.std() == pytest.approx(0.02, rel=0.15)
    assert residuals == Residuals.from_json(json.loads(json.dumps(residuals.to_json())))
    assert prepare(real, "standard", "onehot", True, residuals="linear").scaler.residuals.products == ()


PRODUCTS = {
    "of two numbers": lambda x: x[:, 0] * x[:, 1],
    "of three numbers": lambda x: x[:, 0] * x[:, 1] * x[:, 2],
    "of a flag, a number and a square": lambda x: x[:, 3] * x[:, 0] * x[:, 1] ** 2,
    "of two pairs": lambda x: x[:, 0] * x[:, 1] - 0.1 * x[:, 2] * x[:, 3],
}


@pytest.mark.parametrize("law", PRODUCTS.values(), ids=PRODUCTS)
def test_a_product_of_columns_leaves_no_more_than_the_noise(law):
    random = np.random.default_rng(0)
    x = np.c_[random.normal(size=(6_000, 3)), random.choice([-1.0, 1.0], 6_000)]
    rows = np.c_[x, unit(law(x) + x[:, 2])]
    noise = 0.05 * random.normal(size=6_000)
    rows[:, 4] += noise
    found = Residuals.fit(rows, [0, 1, 2, 3], [4], bent=True)
    assert found is not None
    assert found.scale[0] == pytest.approx(0.05, rel=0.05)
    generated = rows.copy()
    found.take_out(generated)
    columns = torch.from_numpy(generated.T.copy())
    Restorer(found, columns.device)(columns)
    np.testing.assert_allclose(columns.T, rows, atol=1e-9)
    straight = Residuals.fit(rows, [0, 1, 2, 3], [4])
    assert straight is not None
    assert straight.scale[0] > 0.5


def test_products_that_explain_nothing_are_left_out():
    random = np.random.default_rng(0)
    rows = np.c_[some_rows(), unit(random.integers(2, size=(4_000, 2)).astype(float))]
    found = Residuals.fit(rows, [0, 1, 2, 6, 7], [3, 4, 5], bent=True)
    assert found is not None
    assert found.products == ()


def test_a_product_with_a_flag_is_found_among_many_columns():
    random = np.random.default_rng(0)
    x = np.c_[random.normal(size=(8_000, 40)), random.choice([-1.0, 1.0], 8_000)]
    rows = np.c_[x, unit(x[:, 7] * x[:, 40] + 0.05 * random.normal(size=8_000))]
    found = Residuals.fit(rows, range(41), [41], bent=True)
    assert found is not None
    assert found.products == ((40, 7),)


def test_products_of_columns_that_nearly_follow_from_each_other_do_not_multiply_their_errors():
    random = np.random.default_rng(0)
    height, tilt = random.normal(size=(2, 20_000))
    beams = unit(np.stack([height + 0.003 * beam * (tilt + height**2) for beam in range(6)], 1))
    rows = np.c_[beams, unit(height * tilt) + 0.05 * random.normal(size=20_000)]
    found = Residuals.fit(rows, range(6), [6], bent=True)
    assert found is not None
    generated = rows.copy()
    found.take_out(generated)
    generated[:, :6] += 0.02 * random.normal(size=(20_000, 6))  # as a network may be off
    found.put_back(generated)
    assert (generated - rows)[:, 6].std() < 0.2


def test_a_regression_is_not_bent_for_noise_or_for_few_rows():
    rows = some_rows(16_000)
    assert Residuals.fit(rows, [0, 1, 2], [3, 4], bent=True).knots == ()
    curved = rows[:1_000].copy()
    curved[:, 3] = unit(np.sin(3 * curved[:, 0]))
    assert Residuals.fit(curved, [0, 1, 2], [3], bent=True).knots == ()


def test_bends_in_columns_that_nearly_follow_from_each_other_do_not_multiply_their_errors():
    """As beams of a distance sensor do over flat ground."""
    random = np.random.default_rng(0)
    height, tilt = random.normal(size=(2, 20_000))
    beams = [height + 0.003 * beam * (tilt + np.abs(height)) for beam in range(6)]
    noise = 0.05 * random.normal(size=(20_000, 2))
    outcomes = np.stack([np.abs(height), np.sin(3 * height) + 0.1 * tilt], 1) + noise
    rows = unit(np.column_stack([*beams, outcomes]))
    found = Residuals.fit(rows, range(6), [6, 7], bent=True)
    assert found is not None
    assert found.knots
    generated = rows.copy()
    found.take_out(generated)
    generated[:, :6] += 0.02 * random.normal(size=(20_000, 6))  # as a network may be off
    found.put_back(generated)
    assert (generated - rows)[:, 6:].std(0).max() < 0.2


@pytest.mark.parametrize("given", [[], [0, 1, 2]])
def test_nothing_is_fitted_where_nothing_is_given_or_too_few_rows_are_there(given: list[int]):
    rows = some_rows()
    assert Residuals.fit(rows[:59], given, [3, 4, 5]) is None
    assert (Residuals.fit(rows[:60], given, [3, 4, 5]) is None) == (not given)
    assert Residuals.fit(rows, given, []) is None


def test_more_rows_than_are_needed_change_nothing(monkeypatch: pytest.MonkeyPatch):
    rows = some_rows(9_000)
    thin = fitted(rows[::3])
    monkeypatch.setattr(residuals_module, "MOST_ROWS", 3_000)
    assert fitted(rows) == thin


def lattice(count: int = 3_000) -> np.ndarray:
    """A number in steps of 0.1, whether it grew, shrank or stayed, and a reward that follows from where it went."""
    random = np.random.default_rng(0)
    here = random.integers(-30, 31, count) / 10
    there = here + random.integers(-1, 2, count) / 10
    return np.column_stack([here, random.normal(size=count), there, 3 * there - here])


def test_outcomes_on_a_lattice_are_compared_with_their_last_value():
    raw = lattice()
    rows, scale = unit(raw), raw.std(0)
    steps = Grid({}, steps=[(2, 0)]).fit(rows, {column: column for column in range(4)}, scale, [0, 1])
    assert [step.columns for step in steps] == [(2, 0)]
    found = Residuals.fit(rows, [0, 1], [2, 3], steps)
    assert found.outcomes == (3,)
    assert found.replaced == (3, 2)
    assert found.free == (0, 1)
    taken = rows.copy()
    found.take_out(taken)
    values = np.unique(taken[:, 2].round(9))
    assert len(values) == 3
    np.testing.assert_allclose(np.diff(values), values[1] - values[0], atol=1e-8)
    assert taken[:, 2].std() == pytest.approx(1)
    assert found.scale[0] == residuals_module.SMALLEST  # the reward follows from both
    found.put_back(taken)
    np.testing.assert_allclose(taken, rows, rtol=0, atol=1e-9)
    alone = Residuals.fit(rows[:, :3], [0, 1], [2], steps)
    assert alone.outcomes == ()
    taken = rows[:, :3].copy()
    alone.take_out(taken)
    assert len(np.unique(taken[:, 2].round(9))) == 3
    Residuals.from_json(json.loads(json.dumps(alone.to_json()))).put_back(taken)
    np.testing.assert_allclose(taken, rows[:, :3], rtol=0, atol=1e-12)


def test_a_scaler_passes_over_columns_that_never_change():
    matrix = np.column_stack([some_rows(), np.full(4_000, 3.0), np.full(4_000, 7.0)])
    regression = Regression([0, 1, 2, 6], [3, 4, 5, 7])
    scaler = Scaler.fit(matrix, ["standard"] * 8, regression=regression)
    assert scaler.residuals.given == (0, 1, 2)
    assert sorted(scaler.residuals.outcomes) == [3, 4, 5]
    np.testing.assert_allclose(scaler.inverse(scaler.transform(matrix)), matrix, rtol=0, atol=1e-10)


def test_columns_that_take_no_part_may_lie_anywhere():
    rows = some_rows()
    order = [9, 3, 0, 9, 5, 9, 1, 4, 2]  # 9 takes no part
    other = np.random.default_rng(7).normal(size=(4_000, 1))
    matrix = np.concatenate([rows, np.tile(other, 4)], 1)[:, order]
    regression = Regression([2, 6, 8], [1, 7, 4])
    scaler = Scaler.fit(matrix, ["standard"] * 9, regression=regression)
    alone = Scaler.fit(rows, ["standard"] * 6, regression=Regression([0, 1, 2], [3, 4, 5]))
    assert scaler.residuals.given == (2, 6, 8)
    expected, scaled = alone.transform(rows), scaler.transform(matrix)
    taking_part = [place for place, column in enumerate(order) if column != 9]
    np.testing.assert_allclose(scaled[:, taking_part], expected[:, [order[p] for p in taking_part]], rtol=0, atol=1e-6)
    np.testing.assert_allclose(scaler.inverse(scaled), matrix, rtol=0, atol=1e-10)


def test_outcomes_that_are_not_scaled_are_left_as_they_are():
    matrix = some_rows()
    kinds = ["standard", "standard", "none", "none", "standard", "minmax"]
    scaler = Scaler.fit(matrix, kinds, regression=Regression([0, 1, 2], [3, 4, 5]))
    assert scaler.residuals.outcomes == (4,)
    assert np.array_equal(scaler.transform(matrix)[:, 3], matrix[:, 3])
    none = Scaler.fit(matrix, ["standard"] * 3 + ["none"] * 3, regression=Regression([0, 1, 2], [3, 4, 5]))
    assert none.residuals is None


@pytest.mark.parametrize("kind", ["standard", "blend", "quantile"])
@pytest.mark.parametrize("bent", [False, True])
def test_a_scaler_with_residuals_goes_there_and_back_after_a_file_too(kind: str, bent: bool):
    rows = some_rows(8_000)
    rows[:, 4] = unit(np.sin(3 * rows[:, 0]) + 0.1 * rows[:, 4])
    matrix = rows * [1, 10, 0.1, 5, 1e-3, 100] + [0, 3, -1, 1e3, 0, 7]
    scaler = Scaler.fit(matrix, [kind] * 6, regression=Regression([0, 1, 2], [3, 4, 5], bent=bent))
    assert bool(scaler.residuals.knots) == bent
    again = Scaler.from_json(json.loads(json.dumps(scaler.to_json(), allow_nan=False)))
    assert again == scaler
    scaled = scaler.transform(matrix)
    np.testing.assert_allclose(scaled[:, :4].std(0), 1, atol=0.1)
    np.testing.assert_allclose(again.inverse(scaled), matrix, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["minmax", "standard", "blend", "quantile"])
@pytest.mark.parametrize("case", ["plain", "bent", "lattice"])
def test_log_slope_is_the_logarithm_of_the_determinant(kind: str, case: str):
    """Of the numerical Jacobian of the whole row, at a few rows that lie between the knots of their curves."""
    if case == "lattice":
        matrix = lattice()
        matrix[:, 3] += 0.3 * np.random.default_rng(5).normal(size=len(matrix))
        regression = Regression([0, 1], [2, 3], Grid({}, steps=[(2, 0)]))
    else:
        random = np.random.default_rng(4)
        matrix = some_rows(8_000) * [1, 10, 0.1, 5, 0.02, 100] + [0, 3, -1, 50, 0, 7]
        matrix[:, 5] += 20 * random.normal(size=8_000)
        regression = Regression([0, 1, 2], [3, 4, 5], bent=True) if case == "bent" else None
    kinds = [kind] * matrix.shape[1]
    if case == "lattice":
        kinds[0] = kinds[2] = "standard"  # whose curves would have steps
    scaler = Scaler.fit(matrix, kinds, regression=regression)
    width = matrix.shape[1]
    rows = matrix[:12] + 1e-5 * matrix.std(0)
    step = 1e-7 * matrix.std(0)
    agree = 0
    for row, expected in zip(rows, scaler.log_slope(rows), strict=True):
        forward = scaler.transform(row + np.diag(step)) - scaler.transform(row[None])
        backward = scaler.transform(row[None]) - scaler.transform(row - np.diag(step))
        if not np.allclose(forward, backward, rtol=1e-4, atol=1e-12):
            continue  # a knot in between
        jacobian = ((forward + backward) / (2 * step[:, None])).T
        assert jacobian.shape == (width, width)
        sign, logarithm = np.linalg.slogdet(jacobian)
        assert sign == 1
        assert logarithm == pytest.approx(expected, abs=1e-4)
        agree += 1
    assert agree >= 6


def world(count: int = 6_000, tenths: bool = False) -> Transitions:
    """A point that moves by its new velocity times 0.05, or by a tenth or not at all."""
    random = np.random.default_rng(0)
    position, velocity = random.normal(size=(2, count))
    action = random.uniform(-1, 1, count)
    if tenths:
        position = random.integers(-30, 31, count) / 10
    new_velocity = 0.9 * velocity + 0.1 * action + 0.02 * random.normal(size=count)
    new_position = position + (random.integers(-1, 2, count) / 10 if tenths else 0.05 * new_velocity)
    return Transitions.of(
        observation=np.column_stack([position, velocity]),
        action=action[:, None],
        reward=2 * new_velocity - 0.1 * action + 5 * position,
        next_observation=np.column_stack([new_position, new_velocity]),
        terminal=random.random(count) < 0.05,
    )


@pytest.mark.parametrize("kind", ["linear", "bent"])
def test_a_law_of_the_world_holds_in_every_generated_row(kind: str):
    prepared = prepare(world(), "standard", "onehot", spikes=True, residuals=kind)
    generated = np.random.default_rng(1).normal(size=(1_000, prepared.matrix.shape[1]))
    rows = decoded(prepared, generated)
    moved = rows.next_observation[:, 0] - rows.observation[:, 0]
    assert np.abs(moved - 0.05 * rows.next_observation[:, 1]).max() < 1e-3
    (box,) = prepared.layout.action
    inside = (rows.action[:, 0] > box.low) & (rows.action[:, 0] < box.high)  # others are clipped after all
    told = 2 * rows.next_observation[:, 1] - 0.1 * rows.action[:, 0] + 5 * rows.observation[:, 0]
    assert inside.mean() > 0.8
    assert np.abs(rows.reward - told)[inside].max() < 3e-3
    plain = prepare(world(), "standard", "onehot", spikes=True)
    assert plain.scaler.residuals is None
    rows = decoded(plain, np.random.default_rng(1).normal(size=(1_000, plain.matrix.shape[1])))
    assert np.abs(rows.next_observation[:, 0] - rows.observation[:, 0] - 0.05 * rows.next_observation[:, 1]).max() > 1


def test_residuals_are_prepared_to_deviation_1_in_the_order_that_is_asked_for():
    real = world()
    noise = np.random.default_rng(1).normal(size=len(real))
    real = replace(real, reward=(real.reward + 0.01 * noise).astype(np.float32))  # no formula computes it
    prepared = prepare(real, "standard", "onehot", False, residuals="linear")
    names = prepared.layout.names
    place = names.index("next_observation[1]")
    assert prepared.matrix[:, place].std() == pytest.approx(1, abs=1e-3)
    found = prepared.scaler.residuals
    assert names[found.outcomes[0]] == "next_observation[1]", "the most random outcome explains the others"
    assert {names[column] for column in found.free} == {"observation[0]", "observation[1]", "action[0]"}
    asked = ("next_observation[0]", "reward", "never[3]", "next_observation[1]")
    again = prepare(real, "standard", "onehot", False, residuals="linear", order=asked)
    kept = [names[column] for column in again.scaler.residuals.outcomes]
    assert kept == ["next_observation[0]", "reward", "next_observation[1]"]


def test_generated_steps_stay_on_the_lattice():
    prepared = prepare(world(tenths=True), "standard", "onehot", spikes=True, residuals="linear")
    layout, scaler = prepared.layout, prepared.scaler
    assert [layout.names[step.column] for step in scaler.residuals.steps] == ["next_observation[0]"]
    place = layout.names.index("next_observation[0]")
    assert len(np.unique(prepared.matrix[:, place].round(4))) == 3
    smeared = prepared.matrix + 0.05 * np.random.default_rng(1).normal(size=prepared.matrix.shape)
    rows = decoded(prepared, smeared)
    tenths = (rows.next_observation[:, 0] - rows.observation[:, 0]) * 10
    assert np.abs(tenths - np.rint(tenths)).max() < 1e-9
    assert set(np.rint(tenths)) == {-1.0, 0.0, 1.0}
    real = world(tenths=True)
    assert np.mean(np.rint(tenths) == np.rint(10 * (real.next_observation - real.observation)[:, 0])) > 0.95


@pytest.mark.parametrize("modes", [2, 3])
def test_what_follows_from_the_mode_of_the_next_state_fits_the_mode_that_comes_out(modes: int):
    """A heating that is on, off or on half power: the next temperature fits it, whichever is generated."""
    random = np.random.default_rng(0)
    mode, following = random.integers(0, modes, (2, 4_000))
    heat = np.array([0.0, 2.0, 5.0])

    def columns(temperature: np.ndarray, of: np.ndarray) -> np.ndarray:
        return np.column_stack([temperature, of if modes == 2 else np.eye(modes)[of]])

    temperature, action = random.normal(size=4_000), random.uniform(-1, 1, (4_000, 1))
    warmer = 0.9 * temperature + heat[following] + 0.05 * random.normal(size=4_000)
    real = Transitions(columns(temperature, mode), action, temperature, columns(warmer, following))
    found = prepare(real, "standard", "onehot", spikes=True, residuals="linear")
    noisy = found.matrix.copy()
    for place in found.layout.nominal_outcomes:
        noisy[:, place.matrix] += random.normal(size=noisy[:, place.matrix].shape)
    made = decoded(found, noisy)
    shown = made.next_observation[:, 1:]
    now = shown[:, 0].astype(int) if modes == 2 else shown.argmax(1)
    assert np.mean(now != following) > 0.05, "noise has changed some modes"
    left = made.next_observation[:, 0] - 0.9 * made.observation[:, 0] - heat[now]
    assert left.std() == pytest.approx(0.05, rel=0.1)


@pytest.mark.parametrize("residuals", ["linear", "bent"])
def test_a_line_is_exact_inside_a_range_whatever_happens_at_its_ends(residuals):
    """A car that stops at a wall: its place is the last one and its new speed, but where it stopped."""
    draw = np.random.default_rng(0)
    place, speed = draw.uniform(-1, 1, 8_000), 0.1 * draw.normal(size=8_000)
    push = draw.uniform(-1, 1, (8_000, 1))
    place[:200] = -1.0
    then = speed + 0.05 * push[:, 0] + 0.02 * np.cos(3 * place)
    stopped = place + then < -1
    then = np.where(stopped, 0.0, then)
    there = np.c_[np.where(stopped, -1.0, place + then), then]
    real = Transitions(np.c_[place, speed], push, draw.normal(size=8_000), there, np.zeros(8_000, bool))
    found = prepare(real, "standard", "onehot", True, residuals=residuals)
    noise = np.random.default_rng(1).normal(size=found.matrix.shape).astype(np.float32)
    still = [name == "next_observation[0]" or "=" in name for name in found.layout.names]  # what remains, and flags
    noise[:, still] = 0.0
    made = decoded(found, found.matrix + 0.2 * noise)
    new = made.next_observation[:, 0]
    inside = (new > -0.95) & (new < there[:, 0].max()) & ~stopped
    off = made.next_observation[:, 0] - made.observation[:, 0] - made.next_observation[:, 1]
    assert np.abs(off[inside]).max() < 1e-4


def test_gaps_of_given_columns_come_back_as_they_were():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(2_000, 2)).clip(-1, 1)
    x[x[:, 0] == 1, 0] += 0.3
    rows = np.c_[x, x[:, 0] + 0.1 * draw.normal(size=2_000)]
    found = Residuals.fit(rows, [0, 1], [2], ends={0: (-2.0, 1.0)})
    assert found is not None
    assert found.ends == ((0, -2.0, 1.0),)
    back = rows.copy()
    found.take_out(back)
    found.put_back(back)
    np.testing.assert_allclose(back, rows, atol=1e-12)

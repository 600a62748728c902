"""Columns that often stay exactly as they are do so in generated rows too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from synther import Synthesizer
from synther.data import layout_json
from synther.data.numbers import Bounded, Spiked
from synther.data.preparing import Prepared, prepare
from synther.data.transitions import Transitions
from synther.errors import FormatError
from synther.relevance.discrete import DiscreteLaw
from synther.relevance.dynamics import plain_layout

from ..support.layouts import decoded, through_json

ROWS = 6_000


def chance(bid: np.ndarray) -> np.ndarray:
    """That a bid wins."""
    return 1 / (1 + np.exp(-4 * bid))


def rows(seed: int = 0, count: int = ROWS, dtype: str = "float32") -> Transitions:
    """A budget that a won auction lowers, an object that is moved in the plane if it was won, and a temperature."""
    draw = np.random.default_rng(seed)
    budget, bid, price = draw.uniform(20, 90, count), draw.normal(size=count), draw.gamma(3, 0.5, count)
    place, warm = draw.normal(size=(count, 2)), draw.normal(size=count)
    won = draw.random(count) < chance(bid)
    here = np.c_[budget, place, warm].astype(dtype)
    there = here.copy()
    there[won, 0] -= price[won].astype(dtype)
    there[won, 1:3] += 0.3 * draw.normal(size=(int(won.sum()), 2)).astype(dtype)
    there[:, 3] = 0.9 * warm + 0.1 * draw.normal(size=count)
    return Transitions(here, bid[:, None].astype(np.float32), draw.normal(size=count), there)


def stays(made: Transitions) -> np.ndarray:
    return made.next_observation == made.observation


def prepared(real: Transitions, residuals: str = "linear", scaling: str = "standard") -> Prepared:
    return prepare(real, scaling, "onehot", True, residuals=residuals)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scaling", ["standard", "quantile"])
def test_what_stays_comes_back_exactly_and_what_changes_nearly(dtype, scaling):
    real = rows(dtype=dtype)
    found = prepared(real, "bent", scaling)
    assert [one.column for one in found.layout.held] == [0, 1, 2]
    assert through_json(found.layout) == found.layout
    back = decoded(found, found.matrix)
    np.testing.assert_array_equal(stays(back), stays(real))
    np.testing.assert_allclose(back.next_observation, real.next_observation, atol=2e-5)


def test_in_whatever_row_a_budget_stays_or_falls_and_both_coordinates_stay_together():
    found = prepared(rows())
    noise = np.random.default_rng(1).normal(size=found.matrix.shape)
    made = decoded(found, (found.matrix + 0.7 * noise).astype(np.float32))
    same = stays(made)
    assert 0.2 < same[:, 0].mean() < 0.8
    assert (made.next_observation[:, 0] <= made.observation[:, 0]).all()
    np.testing.assert_array_equal(same[:, 1], same[:, 2])
    assert not same[:, 3].any()


def measured(count: int = ROWS, digits: int | None = 1) -> Transitions:
    """A temperature that is measured anew in 40 % of the rows, as a flag tells, and a weight."""
    draw = np.random.default_rng(5)
    last, weight, push = draw.normal(size=count), draw.normal(size=count), draw.uniform(-1, 1, (count, 1))
    new = (draw.random(count) < 0.4).astype(float)
    reading = 0.8 * last + 0.5 * push[:, 0] + 0.2 * draw.normal(size=count)
    if digits is not None:
        last, reading = last.round(digits), reading.round(digits)
    here = np.c_[last, weight, draw.integers(0, 2, count)]
    there = np.c_[np.where(new > 0, reading, last), 0.9 * weight + 0.1 * draw.normal(size=count), new]
    return Transitions(here, push, draw.normal(size=count), there)


@pytest.mark.parametrize("digits", [None, 1])
def test_a_sensor_without_a_new_reading_shows_its_last_one(digits):
    """A rounded reading is often the last one even if it is new."""
    real = measured(digits=digits)
    found = prepare(real, "quantile", "onehot", True, residuals="bent", counted=True)
    (held,) = found.layout.held
    assert (held.column, held.flag) == (0, (2, 0.0))
    assert bool(held.levels) == (digits is not None)
    assert through_json(found.layout) == found.layout
    np.testing.assert_allclose(decoded(found, found.matrix).next_observation, real.next_observation, atol=1e-6)
    noise = np.random.default_rng(1).normal(size=found.matrix.shape)
    made = decoded(found, found.matrix + 0.5 * noise)
    old = made.next_observation[:, 2] == 0
    assert 0.2 < old.mean() < 0.9
    assert stays(made)[old, 0].all()
    assert stays(made)[~old, 0].mean() < 0.2
    if digits is not None:
        assert np.isin(made.next_observation[:, 0], held.levels).all()


def test_a_clipped_sensor_of_few_values_is_not_held():
    real = measured()
    for rows in (real.observation, real.next_observation):
        rows[:, 0] = rows[:, 0].clip(-0.5, 0.5)
    assert prepared(real).layout.held == ()


def test_paper_and_columns_of_another_kind_hold_nothing():
    real = rows()
    assert prepared(real, "none").layout.held == ()
    draw = np.random.default_rng(2)
    here = np.c_[draw.normal(size=ROWS), draw.integers(0, 900, ROWS), draw.normal(size=ROWS), 1e7 + draw.random(ROWS)]
    there = here.copy()  # a copy
    there[:, 1] += draw.integers(-2, 3, ROWS)  # a number on a lattice
    there[:, 2] += 0.1 * draw.normal(size=ROWS)
    there[:5, 2] = here[:5, 2]  # too rarely the same
    there[:, 3] += 0.5 * draw.normal(size=ROWS)  # often the same, because float32 has steps of 1 there
    few = Transitions(here.astype(np.float32), real.action, real.reward, there.astype(np.float32))
    assert stays(few)[:, 3].mean() > 0.3
    assert prepared(few).layout.held == ()


def test_a_column_is_not_held_if_a_regression_predicts_its_changes():
    """Such as the height of a body, which rests where its speed is 0."""
    draw = np.random.default_rng(3)
    real = rows()
    speed = np.where(draw.random(ROWS) < 0.4, 0.0, draw.normal(size=ROWS))
    height = draw.uniform(1, 9, ROWS)
    here = np.c_[height, speed].astype(np.float32)
    there = np.c_[here[:, 0] + 0.1 * here[:, 1], 0.9 * speed + 0.01 * draw.normal(size=ROWS)].astype(np.float32)
    falls = Transitions(here, real.action, real.reward, there)
    assert stays(falls)[:, 0].mean() > 0.3
    assert prepared(falls).layout.held == ()


def test_dynamics_models_see_next_values():
    real, layout = rows(), prepared(rows()).layout
    plain = plain_layout(layout)
    assert plain.held == ()
    np.testing.assert_allclose(plain.unpack(plain.pack(real)).next_observation, real.next_observation)


def test_a_damaged_file_is_refused():
    entry = layout_json.to_json(prepared(rows()).layout)
    with pytest.raises(FormatError, match="held"):
        layout_json.from_json(entry | {"held": [{"column": 3, "low": 0.0, "high": 1.0}]})
    with pytest.raises(FormatError, match="held"):
        layout_json.from_json(entry | {"held": [{"column": 0, "low": float("nan"), "high": 1.0}]})
    entry = layout_json.to_json(prepared(measured()).layout)
    (held,) = entry["held"]
    for wrong, expected in (
        ({"flag": [1, 0.0]}, "two values"),
        ({"line": held["line"] | {"weights": [1.0]}}, "weights"),
        ({"line": held["line"] | {"off": [0.0]}}, "quantiles"),
    ):
        with pytest.raises(FormatError, match=expected):
            layout_json.from_json(entry | {"held": [held | wrong]})


def test_a_short_fit_knows_when_a_column_stays():
    small = {"network": {"width": 32, "depth": 2}, "fit": {"steps": 400}, "sampler": {"steps": 8}}
    model = Synthesizer("laptop", device="cpu", **small).fit(rows(), progress=False)
    made = model.sample(20_000, seed=1, progress=False)
    changes = ~stays(made)[:, 0]
    np.testing.assert_array_equal(changes, ~stays(made)[:, 1])
    wanted = chance(made.action[:, 0])
    for low, high in ((0.02, 0.2), (0.2, 0.8), (0.8, 0.98)):
        part = (wanted >= low) & (wanted < high)
        assert changes[part].mean() == pytest.approx(wanted[part].mean(), rel=0.3)
    given = rows(seed=5, count=500)
    told = model.sample(given={"observation": given.observation, "action": given.action}, seed=2, progress=False)
    np.testing.assert_array_equal(told.observation, given.observation)
    assert stays(told)[:, 0].mean() == pytest.approx(1 - chance(given.action[:, 0]).mean(), abs=0.1)


def test_kinds_are_changes_with_a_flag():
    layout = prepared(rows()).layout
    budget, place, other, warm = layout.next_observation
    assert isinstance(budget, Spiked) and budget.high < 0 and budget.spikes == (0.0,)  # noqa: PT018
    assert isinstance(place, Spiked) and place.low < 0 < place.high  # noqa: PT018
    assert place.tied == other.tied == budget.tied
    assert not isinstance(warm, (Spiked, Bounded))
    assert replace(layout, held=()) != layout


def at_a_wall(count: int = ROWS) -> Transitions:
    """A point that stays where it is if the step would lead into a wall, in some 5 % of the rows."""
    draw = np.random.default_rng(0)
    here, action = draw.uniform(-1, 1, (count, 2)), draw.uniform(-1, 1, (count, 2))
    there = here + 0.2 * action + 0.01 * draw.normal(size=here.shape)
    inside = (np.abs(there[:, 0]) < 0.1) & (np.abs(there[:, 1]) < 0.4)
    there[inside] = here[inside]
    return Transitions.of(observation=here, action=action, reward=draw.normal(size=count), next_observation=there)


def test_a_point_at_a_wall_stays_although_its_other_steps_follow_from_the_action():
    real = at_a_wall()
    assert 0.02 < stays(real).mean() < 0.1
    found = prepared(real, "bent", "quantile")
    assert [one.column for one in found.layout.held] == [0, 1]
    left = found.matrix[:, [found.layout.names.index(f"next_observation[{column}]") for column in (0, 1)]]
    where = stays(real)[:, 0]
    assert left[where].std(0) == pytest.approx(left[~where].std(0), rel=0.2)  # no outliers where it stays
    made = decoded(found, found.matrix + 0.2 * np.random.default_rng(1).normal(size=found.matrix.shape))
    same = stays(made)
    np.testing.assert_array_equal(same[:, 0], same[:, 1])
    off = (made.next_observation - made.observation - 0.2 * made.action)[~same[:, 0]]
    assert off.std(0) == pytest.approx([0.01, 0.01], rel=0.15)


def test_a_value_that_stays_since_nothing_moves_it_needs_no_flag():
    """The height of a body that lies on the ground follows from its speed, which is 0."""
    draw = np.random.default_rng(0)
    height, speed = draw.uniform(0, 1, ROWS), draw.normal(size=ROWS)
    speed[draw.random(ROWS) < 0.2] = 0.0
    here, there = np.c_[height, speed], np.c_[height + 0.1 * speed, speed]
    real = Transitions.of(observation=here, action=speed[:, None], reward=height, next_observation=there)
    assert all(one.column != 0 for one in prepared(real).layout.held)


def test_flags_of_columns_that_stay_are_not_cut_in_the_noise_of_flags_that_are_not_set():
    assert all(limit > 0 for limit in prepared(at_a_wall()).layout.lowest_thresholds)


def test_a_place_that_follows_from_the_next_speed_still_does():
    """A ball stops at a wall: its place stays, and its speed is 0."""
    draw = np.random.default_rng(0)
    place, speed, push = draw.uniform(-1, 1, ROWS), draw.normal(size=ROWS), draw.uniform(-1, 1, ROWS)
    faster = 0.8 * speed + 0.4 * push + 0.1 * draw.normal(size=ROWS)
    faster[draw.random(ROWS) < 0.05] = 0.0
    here, there = np.c_[place, speed], np.c_[place + 0.1 * faster, faster]
    real = Transitions.of(observation=here, action=push[:, None], reward=place, next_observation=there)
    found = prepared(real, "bent", "quantile")
    assert [(one.column, one.line) for one in found.layout.held] == [(0, None)]
    made = decoded(found, found.matrix + 0.3 * np.random.default_rng(1).normal(size=found.matrix.shape))
    moves = ~stays(made)[:, 0] & (made.next_observation[:, 1] != 0)
    off = made.next_observation[:, 0] - made.observation[:, 0] - 0.1 * made.next_observation[:, 1]
    assert moves.mean() > 0.8
    assert np.mean(np.abs(off[moves]) < 1e-6) > 0.995  # a few are clipped to the range of the data


def test_held_columns_beside_spikes_and_categories_have_probabilities_of_staying():
    """The regression of a held column knows the columns of the layout. Probabilities are learned with other columns."""
    real = at_a_wall(3_000)
    spiked = np.where(np.random.default_rng(2).random(3_000) < 0.2, 0.0, real.observation[:, 0] ** 2 + 1)
    real = Transitions.of(
        observation=np.c_[real.observation, spiked],
        action=real.action,
        reward=real.reward,
        next_observation=np.c_[real.next_observation, spiked[::-1]],
    )
    layout = prepared(real).layout
    assert [one.column for one in layout.held if one.line is not None] == [0, 1]
    law = DiscreteLaw.fit(real, layout, steps=10)
    assert law is not None
    assert {"next_observation[0]"} <= {*law.names}
    assert np.isfinite(law.log_likelihood(real)).all()


def headings(count: int = ROWS, seed: int = 0) -> Transitions:
    """A robot whose heading stays as it is unless it is steered by more than 0.6."""
    draw = np.random.default_rng(seed)
    angle, action = draw.uniform(-np.pi, np.pi, count), draw.uniform(-1, 1, (count, 1))
    speed = draw.normal(size=count)
    steered = np.abs(action[:, 0]) > 0.6
    here = np.c_[np.cos(angle), speed, np.sin(angle)].astype(np.float32)
    angle = angle + 0.5 * action[:, 0] + 0.05 * draw.normal(size=count)
    there = np.where(steered[:, None], np.c_[np.cos(angle), speed, np.sin(angle)], here).astype(np.float32)
    there[:, 1] = 0.9 * speed + 0.1 * draw.normal(size=count)
    return Transitions.of(observation=here, action=action, reward=draw.normal(size=count), next_observation=there)


def test_a_heading_stays_as_a_whole_or_turns():
    real = headings()
    found = prepared(real, "bent", "quantile")
    assert [(one.column, one.sine) for one in found.layout.held] == [(0, 2)]
    assert through_json(found.layout) == found.layout
    back = decoded(found, found.matrix)
    np.testing.assert_array_equal(stays(back), stays(real))
    np.testing.assert_allclose(back.next_observation, real.next_observation, atol=2e-6)
    made = decoded(found, found.matrix + 0.3 * np.random.default_rng(1).normal(size=found.matrix.shape))
    same = stays(made)
    np.testing.assert_array_equal(same[:, 0], same[:, 2])
    assert 0.4 < same[:, 0].mean() < 0.8
    np.testing.assert_allclose(np.linalg.norm(made.next_observation[:, [0, 2]], axis=1), 1, rtol=1e-6)


def test_a_short_fit_knows_when_a_heading_stays():
    small = {"network": {"width": 32, "depth": 2}, "fit": {"steps": 400}, "sampler": {"steps": 8}}
    model = Synthesizer("laptop", device="cpu", **small).fit(headings(), progress=False)
    asked = headings(count=2_000, seed=1)
    given = {"observation": asked.observation, "action": asked.action}
    same = stays(model.sample(given=given, seed=2, progress=False))[:, 0]
    steering = np.abs(asked.action[:, 0])
    assert same[steering < 0.4].mean() > 0.8
    assert same[steering > 0.8].mean() < 0.2
    (law,) = [one for one in DiscreteLaw.fit(headings(), model._model.layout, steps=10).groups if one.outputs.flags]
    assert law.outputs.flags == 1


def purses(dtype: str = "float32", unit: float = 1.0) -> Transitions:
    """Money that a purchase lowers, to exactly 0 if it is not enough."""
    draw = np.random.default_rng(0)
    money, action = draw.uniform(0, 60, ROWS) * (draw.random(ROWS) > 0.1), draw.uniform(-1, 1, (ROWS, 1))
    price = draw.exponential(20, ROWS)
    here = (unit * np.c_[money, draw.normal(size=ROWS)]).astype(dtype)
    there = here.copy()
    bought = action[:, 0] > 0.3
    there[bought, 0] = np.maximum(here[bought, 0] - unit * price[bought], 0)
    there[:, 1] = (unit * draw.normal(size=ROWS)).astype(dtype)
    return Transitions.of(observation=here, action=action, reward=draw.normal(size=ROWS), next_observation=there)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("residuals", ["linear", "bent"])
def test_money_stays_falls_or_is_spent_to_exactly_nothing(dtype, residuals):
    real = purses(dtype)
    emptied = (real.next_observation[:, 0] == 0) & ~stays(real)[:, 0]
    assert 0.05 < emptied.mean() < 0.2
    found = prepared(real, residuals, "quantile")
    assert [(one.column, [spike for _, spike in one.landings]) for one in found.layout.held] == [(0, [0.0])]
    assert found.layout.flag_names[1:3] == ("next_observation[0] stays", "next_observation[0] becomes 0.0")
    assert through_json(found.layout) == found.layout
    back = decoded(found, found.matrix)
    np.testing.assert_array_equal(stays(back), stays(real))
    np.testing.assert_array_equal(back.next_observation[:, 0] == 0, real.next_observation[:, 0] == 0)
    np.testing.assert_allclose(back.next_observation, real.next_observation, atol=0.1 if dtype == "float16" else 1e-4)


def test_a_step_that_is_not_to_a_spike_does_not_end_there():
    real = purses()
    found = prepared(real, "bent", "quantile")
    where = [number for number, name in enumerate(found.layout.names) if name.startswith("next_observation[0]=")]
    moved = found.matrix + 0.5 * np.random.default_rng(1).normal(size=found.matrix.shape)
    moved[:, where] = found.matrix[:, where]  # neither flag changes
    made = decoded(found, moved)
    full = made.observation[:, 0] > 0
    empty = made.next_observation[full, 0] == 0
    assert full.sum() > 4_000
    np.testing.assert_array_equal(stays(made)[full, 0], stays(real)[full, 0])
    np.testing.assert_array_equal(empty, (real.next_observation[full, 0] == 0) & ~stays(real)[full, 0])
    assert made.next_observation[full, 0][~empty].min() > 0


def test_float16_has_no_number_for_a_step_to_a_spike_if_steps_are_large():
    real = purses("float16", unit=1000.0)
    assert real.observation.max() > 32_768
    found = prepared(real)
    assert found.layout.held == ()
    assert np.isfinite(decoded(found, found.matrix).next_observation).all()


@pytest.mark.parametrize(
    "damage", [{"sine": 9}, {"landings": [[1.0, 2.0]]}, {"landings": [[float("inf"), 0.0]]}, {"landings": [[1.0]]}]
)
def test_a_damaged_entry_of_a_heading_is_refused(damage):
    entry = layout_json.to_json(prepared(headings()).layout)
    (held,) = entry["held"]
    with pytest.raises(FormatError, match="held"):
        layout_json.from_json(entry | {"held": [held | damage]})


def test_dynamics_models_see_next_headings():
    real = headings()
    plain = plain_layout(prepared(real).layout)
    assert plain.held == ()
    np.testing.assert_allclose(plain.unpack(plain.pack(real)).next_observation, real.next_observation, atol=1e-6)


def test_a_number_that_an_action_leaves_as_it_is_stays_although_other_steps_follow_from_the_action():
    draw = np.random.default_rng(0)
    place, action = draw.normal(size=ROWS), draw.integers(3, size=ROWS)
    step = np.array([0.0, 1.0, -1.0])[action] * (1 + 0.05 * draw.normal(size=ROWS))
    real = Transitions.of(
        observation=place[:, None],
        action=action,
        reward=draw.normal(size=ROWS),
        next_observation=(place + step)[:, None],
    )
    found = prepared(real, "bent", "quantile")
    assert [one.column for one in found.layout.held] == [0]
    made = decoded(found, found.matrix + 0.1 * np.random.default_rng(1).normal(size=found.matrix.shape))
    np.testing.assert_array_equal(stays(made)[:, 0], action == 0)


@pytest.mark.parametrize("is_often_at_0", [False, True])
def test_a_body_at_rest_is_not_held_if_tiny_changes_are_rounded(is_often_at_0):
    """Its place changes at speeds of all sizes, also by less than float32 can show."""
    draw = np.random.default_rng(0)
    place, action = draw.uniform(1, 2, ROWS), draw.uniform(-1, 1, (ROWS, 1))
    speed = draw.normal(size=ROWS) * np.where(draw.random(ROWS) < 0.4, 10.0 ** -draw.uniform(0, 12, ROWS), 1)
    if is_often_at_0:
        place[draw.random(ROWS) < 0.1] = 0.0
    after = place + 0.1 * speed * (1 + 0.1 * draw.normal(size=ROWS))
    here, there = (
        side.astype(np.float32) for side in (np.c_[place, speed], np.c_[after, 0.9 * speed + 0.1 * action[:, 0]])
    )
    real = Transitions.of(observation=here, action=action, reward=draw.normal(size=ROWS), next_observation=there)
    assert stays(real)[:, 0].mean() > 0.05
    assert prepared(real).layout.held == ()

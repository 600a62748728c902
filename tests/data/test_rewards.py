"""Rewards that follow from the rest of a row come back as it says."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from synther.data import layout_json
from synther.data.decoding import Decoder
from synther.data.kinds import Derived
from synther.data.layout import Layout
from synther.data.preparing import Prepared, prepare
from synther.data.rewards import with_exact_formula
from synther.data.transitions import Transitions
from synther.errors import FormatError, SyntherError

from ..support.layouts import decoded, through_json

ROWS = 6_000


def parts(discrete: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Observations, actions and next observations of a linear world, with a point on a circle and a goal that is
    always the same."""
    draw = np.random.default_rng(3)
    here, push = draw.normal(size=(ROWS, 3)), draw.uniform(-1, 1, (ROWS, 2))
    there = 0.9 * here + 0.3 * np.c_[push, push[:, :1]] + 0.1 * draw.normal(size=here.shape)
    angle, goal = draw.uniform(-np.pi, np.pi, ROWS), np.full((ROWS, 2), (0.7, -0.4))

    def seen(place: np.ndarray, angle: np.ndarray) -> np.ndarray:
        return np.c_[place, np.cos(angle), np.sin(angle), goal].astype(np.float32)

    action = draw.integers(0, 4, ROWS) if discrete else push.astype(np.float32)
    return seen(here, angle), action, seen(there, angle + 0.2 * push[:, 0])


def rows(reward: np.ndarray, discrete: bool = False) -> Transitions:
    here, action, there = parts(discrete)
    return Transitions(here, action, reward.astype(np.float32), there, np.zeros(ROWS, bool))


def prepared(real: Transitions, residuals: str = "linear") -> Prepared:
    return prepare(real, "standard", "onehot", True, residuals=residuals)


def squares(s, a, t):
    return -(s[:, 0] ** 2 + 0.5 * s[:, 0] * s[:, 1] + 0.1 * (a**2).sum(1)) + s[:, 2]


def distance(s, a, t):
    return -np.hypot(t[:, 0] - t[:, 5], t[:, 1] - t[:, 6]) - 0.2 * np.abs(a[:, 0] - s[:, 2])


def gain(s, a, t):
    """A price times an amount; the nearer to a goal than before, the better."""
    return 5 * s[:, 2] * (t[:, 0] - s[:, 0]) - np.hypot(t[:, 0], t[:, 1]) + np.hypot(s[:, 0], s[:, 1])


def change(s, a, t):
    return t[:, 1] + s[:, 0] ** 2 + s[:, 2] * t[:, 0]


def angle(s, a, t):
    return -(np.arctan2(s[:, 4], s[:, 3]) ** 2) - 0.1 * s[:, 0] ** 2


@pytest.mark.parametrize("law", [squares, distance, gain, angle])
def test_a_reward_that_follows_from_a_row_comes_back_for_whatever_row(law):
    real = rows(law(*parts()))
    found = prepared(real)
    layout = found.layout
    assert layout.formula is not None
    assert through_json(layout) == layout
    assert isinstance(layout.reward[0], Derived)
    noise = np.random.default_rng(0).normal(size=found.matrix.shape).astype(np.float32)
    made = Decoder(layout, found.scaler)(torch.from_numpy(found.matrix + 0.3 * noise)).rows
    expected = law(made.observation, made.action, made.next_observation)
    assert np.abs(made.reward - expected).max() < 2e-3 * real.reward.std()
    assert np.abs(made.observation - real.observation).max() > 0.5


def test_a_formula_can_be_read():
    told = {law: prepared(rows(law(*parts()))).layout.computed for law in (squares, distance, angle)}
    assert told[squares][0].startswith("reward = observation[2] - observation[0]²")
    assert "- 0.1 action[0]²" in told[squares][0]
    near = "|next_observation[0], next_observation[1] - next_observation[5], next_observation[6]|"
    assert told[distance] == (f"reward = -{near} - 0.2 |action[0] - observation[2]|",)
    told_by_change = prepared(rows(change(*parts()))).layout.computed
    assert told_by_change == ("reward = next_observation[1] + observation[0]² + observation[2] next_observation[0]",)
    assert told[angle] == ("reward = -angle(observation[3], observation[4])² - 0.1 observation[0]²",)


def test_what_a_formula_leaves_is_kept():
    """Noise comes back as it was, and no reward is lost."""
    noisy = squares(*parts()) + 0.1 * np.random.default_rng(1).normal(size=ROWS)
    real = rows(noisy)
    found = prepared(real)
    assert found.layout.formula is not None
    left = found.layout.pack(real)[:, found.layout.names.index("reward")]
    assert left.std() == pytest.approx(0.1, rel=0.05)
    back = decoded(found, found.matrix)
    np.testing.assert_allclose(back.reward, real.reward, atol=1e-4)


@pytest.mark.parametrize("residuals", ["linear", "bent"])
def test_a_linear_reward_fits_the_limits_of_a_queue(residuals):
    """Half of the queues are empty, and most rewards are one of two numbers."""
    draw = np.random.default_rng(6)
    here, action = draw.exponential(2, (ROWS, 1)), draw.integers(0, 2, ROWS)
    there = np.maximum(here + draw.exponential(2, (ROWS, 1)) - 2 - 4 * action[:, None], 0)
    real = Transitions(here, action, -0.1 * there[:, 0] - action, there, np.zeros(ROWS, bool))
    found = prepared(real, residuals)
    assert found.layout.computed == ("reward = -action - 0.1 next_observation[0]",)
    made = decoded(found, 1.5 * np.random.default_rng(7).normal(size=found.matrix.shape))
    np.testing.assert_allclose(made.reward, -0.1 * made.next_observation[:, 0] - made.action, atol=1e-6)


def test_a_fixed_cost_of_what_is_often_zero_is_computed():
    """Each order costs 4 beside its price, and an empty stock costs 3."""
    draw = np.random.default_rng(6)
    stock, demand = draw.uniform(0, 40, (ROWS, 1)), draw.gamma(4, 3, (ROWS, 1))
    order = np.where(draw.random((ROWS, 1)) < 0.3, 0, draw.uniform(1, 20, (ROWS, 1)))
    stock, order, demand = (each.astype(np.float32) for each in (stock, order, demand))
    left = np.maximum(stock + order - demand, 0)
    paid = 5 * (stock + order - left) - 2 * order - 0.5 * left - 4 * (order > 0) - 3 * (left == 0)
    real = Transitions(np.c_[stock, demand[::-1]], order, paid[:, 0], np.c_[left, demand], np.zeros(ROWS, bool))
    found = prepared(real, "bent")
    assert isinstance(found.layout.reward[0], Derived)
    made = decoded(found, found.matrix + 0.3 * np.random.default_rng(7).normal(size=found.matrix.shape))
    left, sold = made.next_observation[:, 0], made.observation[:, 0] + made.action[:, 0] - made.next_observation[:, 0]
    expected = 5 * sold - 2 * made.action[:, 0] - 0.5 * left - 4 * (made.action[:, 0] > 0) - 3 * (left == 0)
    assert 0.2 < (made.action == 0).mean() < 0.4
    np.testing.assert_allclose(made.reward, expected, atol=2e-3)
    assert through_json(found.layout) == found.layout


@pytest.mark.parametrize("law", [squares, lambda s, a, t: np.maximum(a[:, 0], 0) * s[:, 0] + a[:, 1] * s[:, 0]])
def test_a_formula_is_exact_beside_what_terminals_cost(law):
    """Terminals are few, and what they cost is not far from other rewards."""
    here, action, there = parts()
    action = np.c_[np.maximum(action[:, 0], 0), action[:, 1:]]
    paid, ends = law(here, action, there), there[:, 0] > 2
    real = Transitions(here, action, paid - 2.5 * ends, there, ends)
    found = prepared(real)
    assert isinstance(found.layout.reward[0], Derived)
    assert found.layout.terminal_reward == pytest.approx(-2.5, abs=1e-5)
    assert found.layout.computed[0].endswith(" - 2.5 terminal")
    np.testing.assert_allclose(decoded(found, found.matrix).reward, real.reward, atol=2e-5)
    drawn = replace(real, reward=paid - np.random.default_rng(8).uniform(2, 3, ROWS) * ends)
    np.testing.assert_allclose(decoded(prepared(drawn), prepared(drawn).matrix).reward, drawn.reward, atol=1e-4)


def test_one_row_that_differs_is_not_lost():
    paid = squares(*parts())
    paid[4321] += 7.0
    found = prepared(rows(paid))
    assert found.layout.formula is not None
    back = decoded(found, found.matrix)
    np.testing.assert_allclose(back.reward, paid, atol=1e-3)


def test_actions_without_an_order_have_a_price_each():
    here, action, there = parts(discrete=True)
    cost = np.array([0.0, 3.0, -1.0, 0.5])[action] * here[:, 0] - there[:, 1] ** 2
    real = rows(cost, discrete=True)
    layout = prepared(real).layout
    assert isinstance(layout.reward[0], Derived)
    np.testing.assert_allclose(layout.unpack(layout.pack(real)).reward, real.reward, atol=1e-4)


def counted() -> Transitions:
    """The reward is the number of twelve flags that are set, less 2 for the third action."""
    draw = np.random.default_rng(4)
    here, action = draw.integers(0, 2, (ROWS, 12)), draw.integers(0, 4, ROWS)
    there = np.where(draw.random(here.shape) < 0.1, 1 - here, here)
    paid = there.sum(1) - 2.0 * (action == 2)
    here, paid, there = (part.astype(np.float32) for part in (here, paid, there))
    return Transitions(here, action, paid, there, np.zeros(ROWS, bool))


def test_a_count_follows_from_what_is_counted():
    """A reward of few whole numbers, in a world without any real number."""
    real = counted()
    found = prepare(real, "standard", "onehot", True, residuals="linear", counted=True)
    assert isinstance(found.layout.reward[0], Derived)
    assert "-2 [action = 2] + next_observation[0]" in found.layout.computed[0]
    flipped = found.matrix.copy()
    flipped[:, 3:12] *= -1
    made = decoded(found, flipped)
    assert (made.observation != real.observation).any()
    np.testing.assert_array_equal(made.reward, made.next_observation.sum(1) - 2 * (made.action == 2))


def test_a_count_that_one_row_contradicts_is_generated():
    real = counted()[:2_000]
    layout = Layout.infer(real, spikes=True)
    assert with_exact_formula(layout, real).formula is not None
    real.reward[77] += 1
    assert with_exact_formula(layout, real) == layout


def test_the_price_of_terminals_is_not_added_to_a_count():
    real = counted()[:2_000]
    real = replace(real, terminal=real.next_observation.sum(1) > 8)
    found = prepare(real, "standard", "onehot", True, residuals="linear", terminal_reward=3.0)
    assert isinstance(found.layout.reward[0], Derived)
    np.testing.assert_array_equal(decoded(found, found.matrix).reward, real.reward)


def test_the_length_of_a_step_is_a_reward():
    here, _, there = parts()
    real = rows(-np.linalg.norm(there[:, :2] - here[:, :2], axis=1) + 0.5 * there[:, 2])
    (told,) = prepared(real).layout.computed
    step = "|next_observation[0], next_observation[1] - observation[0], observation[1]|"
    assert told == f"reward = 0.5 next_observation[2] - {step}"


@pytest.mark.parametrize(
    "law",
    [
        lambda s, a, t: s[:, 0] - 2 * a[:, 0] + 1e-3 * np.random.default_rng(0).normal(size=len(s)),  # a line does
        lambda s, a, t: np.sin(5 * s[:, 0]) + np.exp(t[:, 1]),  # nothing does
        lambda s, a, t: (s[:, 0] > 0.3).astype(float),  # no number
        lambda s, a, t: np.random.default_rng(0).normal(size=len(s)),
    ],
)
def test_where_no_formula_helps_there_is_none(law):
    assert prepared(rows(law(*parts()))).layout.formula is None


def test_special_values_of_a_reward_are_left_to_itself_where_a_formula_misses_them():
    here, _, there = parts()
    cut = np.maximum(there[:, 0] ** 2 + here[:, 1] ** 2, 0.3)
    assert prepared(rows(cut)).layout.formula is None


def test_a_formula_is_refused_that_small_errors_of_a_row_would_spoil():
    """Two columns are the same but for a thousandth, and their difference is what is paid for."""
    here, action, there = parts()
    here[:, 1] = here[:, 0] + 1e-3 * np.random.default_rng(5).normal(size=ROWS)
    pay = 1e3 * np.abs(here[:, 1] - here[:, 0])
    real = Transitions(here, action, pay.astype(np.float32), there, np.zeros(ROWS, bool))
    assert prepared(real).layout.formula is None


def test_no_formula_without_residuals_or_with_few_rows():
    real = rows(squares(*parts()))
    assert prepared(real, "none").layout.formula is None
    assert prepared(real[:500]).layout.formula is None


@pytest.mark.parametrize(
    "change",
    [
        {"weights": [1.0]},
        {"inputs": [["observation", 99, None]]},
        {"level": "high"},
        {"terms": [{"name": "sum", "inputs": [0], "minus": []}]},
        {"terms": [{"name": "product", "inputs": [0], "minus": []}], "weights": [1.0]},
        {"terms": [{"name": "column", "inputs": [77], "minus": []}], "weights": [1.0]},
    ],
)
def test_files_with_a_wrong_formula_are_refused(change):
    told = layout_json.to_json(prepared(rows(squares(*parts()))).layout)
    told["formula"] |= change
    with pytest.raises(SyntherError, match=r"layout\.formula"):
        layout_json.from_json(json.loads(json.dumps(told)))


def test_a_terminal_keeps_its_price_beside_a_formula():
    here, action, there = parts()
    real = replace(rows(squares(here, action, there)), terminal=there[:, 2] > 1.5)
    real = replace(real, reward=(real.reward - 50 * real.terminal).astype(np.float32))
    found = prepare(real, "standard", "onehot", True, residuals="linear", terminal_reward=-50.0)
    assert found.layout.formula is not None
    back = decoded(found, found.matrix)
    np.testing.assert_allclose(back.reward, real.reward, atol=1e-3)


@pytest.mark.parametrize("scale", [1e-9, 1e6])
def test_formulas_do_not_depend_on_units(scale):
    here, action, there = parts()
    real = rows(scale * squares(here, action, there))
    layout = prepared(real).layout
    assert isinstance(layout.reward[0], Derived)
    np.testing.assert_allclose(layout.unpack(layout.pack(real)).reward, real.reward, atol=1e-4 * scale)


def test_numbers_whose_squares_overflow_have_no_formula():
    here, action, there = (part.astype(np.float64) for part in parts())
    here[:, 0] *= 1e200
    real = Transitions(here, action, squares(*parts()), there, np.zeros(ROWS, bool))
    assert prepared(real).layout.formula is None


@pytest.mark.parametrize("period", [2 * np.pi, 360.0])
def test_a_reward_of_sine_and_cosine_of_a_circular_column_is_computed(period):
    """A boat is paid for what it makes to the north, and for its heading: a number, in degrees a whole one."""
    draw = np.random.default_rng(0)
    heading, speed = period * draw.random(10_000), draw.uniform(0, 3, 10_000)
    turned = (heading + period * 0.05 * draw.normal(size=10_000)) % period
    if period == 360:
        heading, turned = np.floor(heading), np.floor(turned)
    angle, wind = 2 * np.pi * turned / period, draw.normal(size=(2, 10_000))
    faster = speed + 0.1 * draw.normal(size=10_000)
    here, there = np.column_stack([heading, speed, wind[0]]), np.column_stack([turned, faster, wind[1]])
    reward = faster * np.cos(angle) - 0.5 * np.sin(angle) + 0.1 * wind[0]
    rows = Transitions(here, draw.normal(size=(10_000, 1)), reward, there)
    found = prepare(rows, "quantile", "onehot", True, residuals="bent")
    (text,) = found.layout.computed
    assert "cos(" in text
    assert "0.5 sin(" in text
    made = decoded(found, draw.normal(size=found.matrix.shape))
    angle = 2 * np.pi * made.next_observation[:, 0] / period
    told = made.next_observation[:, 1] * np.cos(angle) - 0.5 * np.sin(angle) + 0.1 * made.observation[:, 2]
    assert np.abs(made.reward - told).max() < 1e-4
    assert through_json(found.layout) == found.layout


def from_point(s, a, t):
    return -2 * np.hypot(t[:, 0] - 1, t[:, 1] + 0.5) - 0.1 * (a**2).sum(1) + s[:, 2]


def set_points(s, a, t):
    return -np.abs(t[:, 0] - 0.7) - 0.5 * np.abs(t[:, 1] + 0.3)


def nearer(s, a, t):
    return np.hypot(s[:, 0] - 1, s[:, 1] + 0.5) - np.hypot(t[:, 0] - 1, t[:, 1] + 0.5)


@pytest.mark.parametrize(
    ("law", "text"),
    [
        (from_point, "- 2 |next_observation[0] - 1, next_observation[1] + 0.5|"),
        (set_points, "- 0.5 |next_observation[1] + 0.3|"),
        (nearer, "|next_observation[0] - 1, next_observation[1] + 0.5| - |observation[0] - 1, observation[1] + 0.5|"),
    ],
)
@pytest.mark.parametrize("paid", [0.0, 10.0])
def test_a_goal_that_is_in_no_column_is_found(law, text, paid):
    """A distance from a place, two set points, and progress towards a place. A bonus is paid at the end."""
    here, action, there = parts()
    ended = np.hypot(there[:, 0] - 1, there[:, 1] + 0.5) < 0.4
    real = replace(rows(law(here, action, there) + paid * ended), terminal=ended)
    found = prepared(real)
    (told,) = found.layout.computed
    assert text in told
    assert ("10 terminal" in told) == (paid > 0)
    assert isinstance(found.layout.reward[0], Derived)
    assert through_json(found.layout) == found.layout
    made = decoded(found, found.matrix + 0.3 * np.random.default_rng(0).normal(size=found.matrix.shape))
    expected = law(made.observation, made.action, made.next_observation) + paid * made.terminal
    assert np.abs(made.reward - expected).max() < 1e-4


def test_formulas_without_distances_of_one_hot_groups_come_first():
    """The room follows from the position. A distance between the two was right in all these rows, but only in them."""
    draw = np.random.default_rng(0)
    here, action = (draw.uniform(-1, 1, (20_000, 2)) for _ in range(2))
    there = np.clip(here + 0.1 * action + 0.02 * draw.normal(size=here.shape), -1, 1)
    before, after = (
        np.column_stack([at, np.eye(3)[np.searchsorted([-0.3, 0.3], at[:, 0])]]).astype(np.float32)
        for at in (here, there)
    )
    reward = -np.abs(after[:, :2]).sum(1)
    layout = prepared(Transitions(before, action.astype(np.float32), reward, after)).layout
    assert layout.formula is not None
    assert {(one.field, one.column) for one in layout.formula.inputs} == {
        ("next_observation", 0),
        ("next_observation", 1),
    }


@pytest.mark.parametrize("wrong", [{"centre": [1.0]}, {"centre": [1.0, float("nan")]}, {"centre": []}])
def test_a_damaged_point_is_refused(wrong):
    entry = layout_json.to_json(prepared(rows(from_point(*parts()))).layout)
    terms = [term | wrong if term["name"] == "point" else term for term in entry["formula"]["terms"]]
    with pytest.raises(FormatError, match=r"layout\.formula"):
        layout_json.from_json(entry | {"formula": entry["formula"] | {"terms": terms}})

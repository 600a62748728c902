"""Discrete outcomes that follow from discrete columns: found, drawn with their shares, and left alone elsewhere."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from synther import Synthesizer, Transitions
from synther.data import layout_json
from synther.data.kinds import Drawn
from synther.data.layout import Layout
from synther.data.preparing import prepare
from synther.data.tables import _counted, with_tables
from synther.errors import FormatError

SLIP = 0.2
ENDS = 9


def world(rows: int = 20_000, seed: int = 0) -> Transitions:
    """Columns: a place from 0 to 9 that slips, a timer, a task of three (one-hot), a tenth that is kept half of the
    time, and two real numbers. The reward is the next place."""
    draw = np.random.default_rng(seed)
    action = draw.integers(0, 2, rows)
    way = np.where((draw.random(rows) < SLIP) == (action == 1), -1, 1)
    place, timer = draw.integers(0, ENDS + 1, rows), draw.integers(0, 20, rows)
    task = np.eye(3)[draw.integers(0, 3, rows)]
    tenth = draw.binomial(4, 0.4, (2, rows)) / 10
    numbers = draw.normal(size=(rows, 2))
    moved = np.clip(place + way, 0, ENDS)
    s = np.column_stack([place, timer, task, tenth[0], numbers])
    kept = np.where(draw.random(rows) < 0.5, tenth[0], tenth[1])
    following = np.column_stack(
        [moved, (timer + 1) % 20, task, kept, 0.9 * numbers + 0.1 * draw.normal(size=(rows, 2))]
    )
    return Transitions(s.astype(np.float32), action, moved.astype(np.float32), following.astype(np.float32))


def inferred(rows: Transitions) -> Layout:
    return with_tables(Layout.infer(rows, spikes=True), rows)


def drawn_names(layout: Layout) -> dict[str, set[str]]:
    """Each outcome that is drawn from a table, and what it follows from."""
    names = [place.names[0] for place in layout.places]
    return {names[table.outcome]: {names[parent] for parent in table.parents} for table in layout.following}


@pytest.fixture(scope="module")
def real() -> Transitions:
    return world()


@pytest.fixture(scope="module")
def layout(real) -> Layout:
    return inferred(real)


def test_terminals_that_are_decided_elsewhere_are_in_no_table(real, layout):
    ended = replace(real, terminal=real.reward == ENDS)
    found = Layout.infer(ended, spikes=True)
    assert drawn_names(with_tables(found, ended))["terminal"] == {"reward"}
    assert drawn_names(with_tables(found, ended, decided=True)) == drawn_names(layout)


def test_each_outcome_follows_from_what_decides_it(layout):
    assert drawn_names(layout) == {
        "next_observation[0]": {"observation[0]", "action"},
        "next_observation[1]": {"observation[1]"},
        "next_observation[2]": {"observation[2]"},
        "next_observation[5]": {"observation[5]"},
        "reward": {"next_observation[0]"},
    }


def test_rows_come_back_from_tables_of_binary_codes(real):
    layout = with_tables(Layout.infer(real, "bits", spikes=True), real)
    assert drawn_names(layout).keys() >= {"next_observation[1]", "next_observation[2]"}
    back = layout.unpack(layout.pack(real))
    np.testing.assert_array_equal(back.next_observation[:, :5], real.next_observation[:, :5])


def test_rows_come_back_and_the_numbers_of_the_matrix_are_normal_and_depend_on_nothing(real, layout):
    matrix = layout.pack(real)
    back = layout.unpack(matrix)
    for name, array in real.modelled().items():
        np.testing.assert_array_equal(back.modelled()[name], array)
    columns = [layout.names.index(name) for name in layout.names if name.endswith(".drawn")]
    assert len(columns) == 5
    numbers = matrix[:, columns]
    margin = 4 / np.sqrt(len(real))
    assert np.abs(numbers.mean(0)).max() < margin
    assert np.abs(numbers.std(0) - 1).max() < margin
    others = np.column_stack([real.observation, real.action, numbers])
    assert np.abs(np.corrcoef(others.T)[-5:] - np.eye(5, others.shape[1], others.shape[1] - 5)).max() < 2 * margin


def test_any_noise_becomes_steps_that_exist_with_their_shares(real, layout):
    matrix = layout.pack(world(seed=1))
    columns = [layout.names.index(name) for name in layout.names if name.endswith(".drawn")]
    matrix[:, columns] = np.random.default_rng(2).normal(size=(len(matrix), 5))
    rows = layout.unpack(matrix)
    s, following = rows.observation, rows.next_observation
    inside = (s[:, 0] > 0) & (s[:, 0] < ENDS)
    step = (following - s)[inside, 0]
    assert set(step) == {-1.0, 1.0}
    slips = step != np.where(rows.action[inside] == 1, 1, -1)
    assert slips.mean() == pytest.approx(SLIP, abs=4 * np.sqrt(SLIP * (1 - SLIP) / len(slips)))
    np.testing.assert_array_equal(following[:, 1], (s[:, 1] + 1) % 20)
    np.testing.assert_array_equal(following[:, 2:5], s[:, 2:5])
    np.testing.assert_array_equal(rows.reward, following[:, 0])
    stays = np.mean(following[:, 5] == s[:, 5])
    assert stays == pytest.approx(np.mean(real.next_observation[:, 5] == real.observation[:, 5]), abs=0.02)


def test_a_combination_that_was_never_seen_is_as_without_its_last_value():
    """The outcome is the first of two values, except where both are 2. Both being 1 is never seen."""
    draw = np.random.default_rng(0)
    one, other = draw.integers(0, 3, (2, 30_000))
    known = (one != 1) | (other != 1)
    one, other = one[known], other[known]
    outcome = np.where((one == 2) & (other == 2), 0, one)
    table = _counted(2, [0, 1], {0: one, 1: other, 2: outcome}, {0: 3, 1: 3, 2: 3})
    assert table.parents == (0, 1)
    assert table.shares[4] == (0.0, 1.0, 0.0)
    assert table.shares[8] == (1.0, 0.0, 0.0)


def test_a_code_that_was_never_seen_is_some_value(real):
    rows = real[real.observation[:, 1] != 7]
    known = inferred(rows)
    matrix = known.pack(rows)
    timer = [known.names.index(f"observation[1]={value}") for value in (7, 8)]
    matrix[:, timer] = [1.0, -1.0]  # a code of the timer that these rows lack
    assert np.isin(known.unpack(matrix).next_observation[:, 1], np.arange(20)).all()


def changed(rows: Transitions, following: np.ndarray, terminal: np.ndarray | None = None) -> Transitions:
    return Transitions(rows.observation, rows.action, rows.reward, following, terminal)


@pytest.mark.parametrize(
    "which", ["explained by a real number", "rarely so", "explains a real number", "ends with one"]
)
def test_what_real_numbers_have_a_part_in_is_generated(which):
    rows = world()
    following, terminal = rows.next_observation.copy(), None
    if which == "explained by a real number":
        following[:, 0] = np.where(rows.observation[:, 6] > 1.5, 0, following[:, 0])
    elif which == "rarely so":
        following[:, 0] = np.where(np.abs(rows.observation[:, 6]) > 3, 0, following[:, 0])
    elif which == "explains a real number":
        following[:, 6] += 0.1 * (following[:, 0] - rows.observation[:, 0])
    else:
        terminal = (following[:, 0] == 5) & (following[:, 6] > 0)
    found = drawn_names(inferred(changed(rows, following, terminal)))
    assert "next_observation[0]" not in found
    assert "terminal" not in found
    assert {"next_observation[1]", "next_observation[2]"} <= found.keys()


def test_terminals_follow_from_discrete_columns_where_those_decide_them():
    rows = world()
    ends = changed(rows, rows.next_observation, rows.next_observation[:, 0] == 5)
    layout = inferred(ends)
    assert drawn_names(layout)["terminal"] in ({"next_observation[0]"}, {"reward"})  # which are the same here
    matrix = layout.pack(ends)
    matrix[:, layout.names.index("terminal.drawn")] = np.random.default_rng(0).normal(size=len(matrix))
    np.testing.assert_array_equal(layout.unpack(matrix).terminal, ends.terminal)
    at_random = changed(rows, rows.next_observation, np.random.default_rng(0).random(len(rows)) < 0.005)
    assert "terminal" not in drawn_names(inferred(at_random))


@pytest.mark.parametrize(
    "chance",
    [
        lambda numbers, action: np.where(action == 1, numbers[:, 0], -numbers[:, 0]),  # which arm suits the context
        lambda numbers, action: 2 * numbers[:, 0] * numbers[:, 1],
    ],
)
def test_an_outcome_that_follows_from_numbers_and_an_action_together_has_no_table(real, chance):
    """On average over the actions, no number tells anything."""
    draw, numbers = np.random.default_rng(1), real.observation[:, 6:]
    won = draw.random(len(real)) < 1 / (1 + np.exp(-chance(numbers, real.action)))
    names = drawn_names(inferred(replace(real, reward=won.astype(np.float32))))
    assert "reward" not in names
    assert "next_observation[1]" in names


def test_an_outcome_that_follows_from_numbers_and_one_of_many_items_has_no_table():
    """Each product of an item and a number tells about a hundredth of the rows."""
    draw = np.random.default_rng(2)
    item = draw.choice(100, 20_000, p=draw.dirichlet(np.full(100, 0.3)))  # some are hardly ever shown
    taste, likes = draw.normal(size=(20_000, 5)), 0.8 * draw.normal(size=(100, 5))
    won = draw.random(20_000) < 1 / (1 + np.exp(2 - (taste * likes[item]).sum(1)))
    rows = Transitions(taste, item, won.astype(np.float64), taste[::-1], np.zeros(20_000, bool))
    assert inferred(rows).following == ()
    by_chance = replace(rows, reward=(draw.random(20_000) < 0.2).astype(np.float64))
    assert len(inferred(by_chance).following) == 1


def test_few_rows_have_no_tables():
    assert inferred(world(900)).following == ()


def test_tables_are_kept_in_a_file_and_others_are_refused(layout):
    told = json.loads(json.dumps(layout_json.to_json(layout)))
    assert layout_json.from_json(told) == layout
    earlier = {**told, "following": [{**table, "shift": 0.0, "scale": 1.0} for table in told["following"]]}
    assert layout_json.from_json(earlier) == layout
    assert sum(isinstance(kind, Drawn) for kind in layout.kinds) == 5
    without = {key: value for key, value in told.items() if key != "following"}
    first = told["following"][0]
    for wrong in (
        without,
        {**told, "following": told["following"][1:]},
        {**told, "following": [{**first, "parents": [99]}, *told["following"][1:]]},
        {**told, "following": [{**first, "shares": first["shares"][1:]}, *told["following"][1:]]},
        {**told, "following": [{**first, "shares": [[0.5] * 3] * len(first["shares"])}, *told["following"][1:]]},
        {**told, "following": [{**first, "outcome": "x"}, *told["following"][1:]]},
    ):
        with pytest.raises(FormatError):
            layout_json.from_json(wrong)


def test_a_hasty_fit_makes_no_step_that_cannot_be(real, tmp_path):
    model = Synthesizer("laptop", device="cpu", fit={"steps": 30}, network={"width": 32, "depth": 1})
    model.fit(real, progress=False).save(tmp_path / "model")
    rows = Synthesizer.load(tmp_path / "model", device="cpu").sample(2_000, seed=0, progress=False)
    s, following = rows.observation, rows.next_observation
    np.testing.assert_array_equal(following[:, 1], (s[:, 1] + 1) % 20)
    np.testing.assert_array_equal(following[:, 2:5], s[:, 2:5])
    inside = (s[:, 0] > 0) & (s[:, 0] < ENDS)
    assert set((following - s)[inside, 0]) <= {-1.0, 1.0}


@pytest.mark.parametrize("outcome", [2.0, 0.0])
def test_a_next_state_that_is_always_the_same_follows_from_nothing(outcome: float):
    here = np.random.default_rng(0).integers(0, 5, (4_000, 1)).astype(float)
    rows = Transitions(here, here[:, 0].astype(int) % 2, here[:, 0], np.full_like(here, outcome))
    layout = with_tables(Layout.infer(rows, spikes=True), rows)
    assert layout.unpack(layout.pack(rows)).equals(rows)


def queues(rows: int, seed: int, hidden: bool) -> Transitions:
    """Two queues. What leaves the one that is served is known only to the reward, if it is `hidden`: then no table can
    draw the next queues."""
    draw = np.random.default_rng(seed)
    before = draw.binomial(24, 0.3, (rows, 2))
    action = draw.integers(2, size=rows)
    left = np.minimum(draw.poisson(2.0, rows), before[np.arange(rows), action])
    after = before + draw.poisson(0.8, (rows, 2))
    after[np.arange(rows), action] -= left
    reward = left.astype(float) + draw.normal(size=rows) if hidden else draw.normal(size=rows)
    return Transitions(before.astype(np.float32), action, reward, after.astype(np.float32), np.zeros(rows, bool))


def kinds_of(rows: Transitions, field: str = "next_observation", integers: Any = "categorical") -> list[str]:
    layout = prepare(rows, "standard", "onehot", True, integers, "linear", counted=True).layout
    return [type(kind).__name__ for kind in getattr(layout, field)]


def test_a_count_is_ordered_where_no_table_draws_it():
    assert kinds_of(queues(20_000, 0, hidden=True)) == ["Integer", "Integer"]
    assert kinds_of(queues(20_000, 0, hidden=False)) == ["Drawn", "Drawn"]
    named = queues(20_000, 0, hidden=True)  # the same with other names for the values, which have no order
    names = np.random.default_rng(1).permutation(40).astype(np.float32)
    sides = (names[side.astype(int)] for side in (named.observation, named.next_observation))
    mixed = Transitions(next(sides), named.action, named.reward, next(sides), named.terminal)
    assert kinds_of(mixed) == ["Codebook", "Codebook"]


def lanes(many: int, rows: int = 20_000) -> Transitions:
    """Queues that are served together. Tables draw the next ones."""
    draw = np.random.default_rng(0)
    before, action = draw.binomial(24, 0.3, (rows, many)), draw.integers(0, 2, rows)
    after = np.maximum(before - 2 * action[:, None], 0) + draw.poisson(0.8, before.shape)
    return Transitions(before.astype(np.float32), action, draw.normal(size=rows), after.astype(np.float32))


@pytest.mark.parametrize(("many", "kind"), [(2, "Codebook"), (6, "Levels")])
def test_many_counts_are_ordered_also_where_tables_draw_them(many: int, kind: str):
    assert {*kinds_of(lanes(many), "observation")} == {kind}
    assert {*kinds_of(lanes(many))} == {"Drawn"}


@pytest.mark.parametrize("slip", [0.0, 0.2, 0.6])
def test_rooms_of_a_grid_are_no_counts_although_steps_are_short(slip: float):
    """Rooms are numbered row by row. A number beside them keeps the world from being small and discrete."""
    draw = np.random.default_rng(0)
    place, asked = draw.integers(0, 5, (20_000, 2)), draw.integers(0, 4, 20_000)
    way = np.where(draw.random(20_000) < slip, draw.integers(0, 4, 20_000), asked)
    moved = np.clip(place + np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])[way], 0, 4)
    number = draw.normal(size=(2, 20_000))
    here, there = (np.column_stack([side @ [5, 1], own]) for side, own in zip((place, moved), number, strict=True))
    rows = Transitions(here.astype(np.float32), asked, number[0], there.astype(np.float32))
    assert kinds_of(rows, "observation")[0] == "Codebook"
    assert kinds_of(rows)[0] == "Drawn"


def test_a_stock_that_is_often_sold_out_is_a_count():
    draw = np.random.default_rng(0)
    stock, order, price = draw.integers(0, 21, 20_000), draw.integers(0, 6, 20_000), draw.uniform(1, 2, 20_000)
    sold = np.minimum(stock, draw.poisson(6 / price))
    left = np.minimum(stock - sold + order, 20)
    here, there = np.column_stack([stock, price]), np.column_stack([left, draw.uniform(1, 2, 20_000)])
    rows = Transitions(here.astype(np.float32), order, sold * price, there.astype(np.float32))
    assert kinds_of(rows)[0] == "Integer"


def test_stocks_of_several_products_are_counts_too():
    """Three orders have too many values together, and are not told apart. What was ordered arrives a step later."""
    draw = np.random.default_rng(0)
    stock, coming, order = (draw.integers(0, size, (6_000, 3)) for size in (21, 6, 6))
    left = np.maximum(stock - draw.poisson(3, stock.shape), 0) + coming
    here, there = np.column_stack([stock, coming]), np.column_stack([np.minimum(left, 20), order])
    reward = (stock + coming - left).sum(1) + draw.normal(size=len(stock))
    for orders in (order, order.astype(np.float32)):
        rows = Transitions(here.astype(np.float32), orders, reward, there.astype(np.float32))
        assert kinds_of(rows) == ["Integer"] * 3 + ["Drawn"] * 3

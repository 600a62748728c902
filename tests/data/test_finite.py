"""Values without an order that nobody declared: integers, whole observations, one-hot groups, whole worlds."""

from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np
import pytest

from synther import row_table
from synther.codes import code_width, decode_index, encode_index
from synther.data import inference, kinds, spaces
from synther.data.kinds import (
    Binary,
    Categorical,
    Codebook,
    Constant,
    Continuous,
    Derived,
    Integer,
    OneHot,
    from_json,
    to_json,
)
from synther.data.layout import Layout
from synther.data.preparing import prepare
from synther.data.transitions import Transitions
from synther.errors import DataError
from synther.row_table import RowTable

from ..support.layouts import through_json

RANDOM = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def the_same_numbers_in_any_order_of_tests() -> None:
    global RANDOM
    RANDOM = np.random.default_rng(0)


def rows_of(observation: np.ndarray, /, **changes: Any) -> Transitions:
    count = len(observation)
    given: dict[str, Any] = {
        "observation": observation,
        "action": np.random.default_rng(1).uniform(-1, 1, (count, 1)),
        "reward": np.random.default_rng(2).normal(size=count),
        "next_observation": observation[::-1].copy(),
        "terminal": np.zeros(count, bool),
    }
    return Transitions.of(**(given | changes))


def numbers(count: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=(count, 1))


class TestCodebook:
    ROWS = ((-1.0, 300.0), (0.0, 2.0), (0.0, 256.0), (1.0, 1.0), (2.0, -5.0))

    @pytest.mark.parametrize("coding", ["onehot", "bits"])
    def test_every_row_comes_back(self, coding: kinds.Coding):
        kind = Codebook(self.ROWS, coding)
        source = np.array(self.ROWS)[[4, 0, 0, 2, 1, 3]]
        matrix = kind.encode(source)
        assert matrix.shape == (6, 5 if coding == "onehot" else 3)
        assert np.array_equal(kind.decode(matrix), source)
        assert from_json(json.loads(json.dumps(to_json(kind)))) == kind
        decoded = kind.decode(RANDOM.normal(scale=3, size=(500, kind.matrix_width)))
        assert {tuple(row) for row in decoded.tolist()} == set(self.ROWS)

    def test_a_row_has_its_place_whatever_its_bytes_its_type_and_the_sign_of_zero(self):
        """In memory 256.0 and -1.0 sort otherwise than as numbers; in the book they have the order of numbers."""
        kind = Codebook(self.ROWS)
        assert np.array_equal(kind.encode(np.array(self.ROWS[::-1])), (2 * np.eye(5) - 1)[::-1])
        for dtype in (np.float32, np.int64, ">f8", ">i4"):
            assert kind.encode(np.array(self.ROWS).astype(dtype)).argmax(1).tolist() == [0, 1, 2, 3, 4]
        assert kind.encode(np.array([[-0.0, 2.0]])).argmax() == 1

    def test_other_rows_are_known_as_such(self):
        kind = Codebook(self.ROWS)
        strange = np.array([[0.0, 2.0], [0.0, 300.0], [2.0, -5.0], [9.0, 9.0], [-9.0, -9.0]])
        assert kind.misfit(strange).tolist() == [False, True, False, True, True]
        with pytest.raises(DataError):
            Codebook(self.ROWS[:1])

    def test_labels_are_unique_and_belong_to_the_row(self):
        names = ("observation[0]", "observation[1]")
        labels = Codebook(self.ROWS).labels(names)
        assert len(set(labels)) == 5
        fewer = Codebook(self.ROWS[:2] + self.ROWS[3:])
        assert fewer.labels(names) == labels[:2] + labels[3:]
        assert labels[0].startswith("observation#")
        assert Codebook(self.ROWS, "bits").labels(names) == tuple(f"observation[0].bit{bit}" for bit in (2, 1, 0))
        single = Codebook(((-2.0,), (3.0,), (1e6 + 1,)))
        assert single.labels(("reward",)) == ("reward=-2", "reward=3", "reward=1000001")


class TestIntegers:
    def test_a_few_integers_are_categories_and_only_those_that_were_seen(self):
        values = RANDOM.choice([2, 3, 9], (1_000, 1))
        rows = rows_of(np.concatenate([numbers(1_000), values], 1), reward=RANDOM.choice([-1, 0, 10], 1_000))
        layout = Layout.infer(rows)
        assert layout.observation == (Continuous(), Codebook(((2.0,), (3.0,), (9.0,))))
        assert layout.reward == (Codebook(((-1.0,), (0.0,), (10.0,))),)
        assert layout.unpack(layout.pack(rows)).equals(rows)
        generated = layout.unpack(RANDOM.normal(size=(300, layout.width)))
        assert set(generated.observation[:, 1]) == {2, 3, 9}
        ordered = Layout.infer(rows, integers="ordered")
        assert (ordered.observation[1], ordered.reward[0]) == (Integer(2, 9), Integer(-1, 10))

    @pytest.mark.parametrize(("values", "categories"), [(32, True), (33, False)])
    def test_more_than_32_are_ordered_and_a_warning_says_so(self, values, categories, caplog):
        inference._warn_of_integers.cache_clear()
        column = np.resize(np.arange(values) * 7, 5_000)[:, None]
        with caplog.at_level(logging.WARNING):
            for _ in range(2):  # a refresh does not repeat the warning
                layout = Layout.infer(rows_of(np.concatenate([numbers(5_000), column], 1)))
        assert isinstance(layout.observation[1], Codebook if categories else Integer)
        warning = "1 observation columns hold more than 32 different integers (the first is column 1)"
        assert caplog.text.count(warning) == (0 if categories else 1)

    def test_a_value_that_a_sample_does_not_hold_is_known_all_the_same(self, monkeypatch: pytest.MonkeyPatch):
        reward = np.random.default_rng(0).choice([0.0, 1.0, 2.0], 2_000)
        reward[1_234] = 100.0
        rows = rows_of(numbers(2_000), reward=reward)
        drawn = inference.sample(rows, 500)
        assert 100.0 not in drawn["reward"]
        monkeypatch.setattr(inference, "sample", lambda rows: drawn)
        layout = Layout.infer(rows)
        assert layout.unpack(layout.pack(rows)).equals(rows)

    def test_integers_that_hardly_come_again_are_ordered(self):
        column = np.arange(100)[:, None] % 25  # eight of each, in observations and next observations
        layout = Layout.infer(rows_of(np.concatenate([numbers(100), column], 1)))
        assert layout.observation[1] == Integer(0, 24)

    def test_integers_that_float64_cannot_tell_apart_are_no_categories(self):
        column = np.resize([2**60, 2**60 + 1, 2**60 + 2], 1_000)[:, None]
        layout = Layout.infer(rows_of(column))
        assert isinstance(layout.observation[0], Integer)

    def test_declared_values_are_left_as_they_are_declared(self):
        rows = rows_of(np.resize([0, 1, 3], 1_000)[:, None], observation_space=(spaces.Discrete(5),))
        assert Layout.infer(rows).observation == (Categorical(5),)


class TestWholeObservations:
    def grid(self, states: int, count: int) -> np.ndarray:
        """Rows of four small integers, of which only some exist."""
        known = np.random.default_rng(5).permutation(7**4)[:states]
        known = np.stack([known // 7**place % 7 for place in range(4)], 1)
        return known[np.random.default_rng(6).integers(states, size=count)]

    @pytest.mark.parametrize("coding", ["onehot", "bits"])
    def test_observations_that_come_again_and_again_are_one_category(self, coding: kinds.Coding):
        observation = self.grid(48, 4_000)
        rows = rows_of(observation)
        layout = Layout.infer(rows, coding)
        (book,) = layout.observation
        assert isinstance(book, Codebook)
        assert book.rows == tuple(sorted(map(tuple, np.unique(observation, axis=0).astype(float).tolist())))
        assert layout.next_observation == layout.observation
        assert layout.unpack(layout.pack(rows)).equals(rows)
        generated = layout.unpack(RANDOM.normal(size=(500, layout.width)))
        assert {tuple(row) for row in generated.observation.tolist()} <= set(map(tuple, observation.tolist()))
        assert through_json(layout) == layout
        assert len(set(layout.names)) == layout.width

    def test_an_observation_that_was_never_seen_is_refused(self):
        observation = self.grid(48, 4_000)
        layout = Layout.infer(rows_of(observation))
        strange = observation.copy()
        strange[7] = 9
        with pytest.raises(DataError, match=r"observation\[0\] .* row 7"):
            layout.pack(rows_of(strange, next_observation=observation))

    @pytest.mark.parametrize(("states", "one"), [(1_024, True), (1_025, False)])
    def test_not_more_than_1024(self, states: int, one: bool):
        state = np.resize(np.arange(states), 12 * states)
        layout = Layout.infer(rows_of(np.stack([state, 7 * state % 2_003], 1)))
        assert [type(kind) for kind in layout.observation] == ([Codebook] if one else [Integer, Integer])

    @pytest.mark.parametrize(("side", "one"), [(8, True), (9, False)])
    def test_not_where_each_column_varies_by_itself_and_takes_fewer_values(self, side: int, one: bool):
        state = np.resize(np.arange(side**2), 30 * side**2)
        layout = Layout.infer(rows_of(np.stack([state // side, state % side], 1)))
        assert len(layout.observation) == (1 if one else 2)
        assert all(isinstance(kind, Codebook) for kind in layout.observation)

    def test_not_where_many_were_seen_once(self):
        """As many of those to come have then never been seen."""
        observation = self.grid(48, 4_000)
        once = np.stack([np.arange(60) + 10, np.arange(60), np.zeros(60), np.zeros(60)], 1)
        few = np.concatenate([observation, once[:20]])
        many = np.concatenate([observation, once])
        assert len(Layout.infer(rows_of(few, next_observation=few[0] + 0 * few)).observation) == 1
        assert len(Layout.infer(rows_of(many, next_observation=many[0] + 0 * many)).observation) == 4

    def test_not_beside_a_real_number_or_where_they_are_to_be_ordered(self):
        states = self.grid(48, 4_000)
        assert len(Layout.infer(rows_of(np.concatenate([states, numbers(4_000)], 1))).observation) == 5
        assert len(Layout.infer(rows_of(states), integers="ordered").observation) == 4

    def test_chunks_make_no_difference(self, monkeypatch: pytest.MonkeyPatch):
        rows = rows_of(self.grid(48, 4_000))
        whole = Layout.infer(rows)
        monkeypatch.setattr(inference, "CHUNK", 333)
        assert Layout.infer(rows) == whole


class TestOneHotGroups:
    def group(self, size: int, count: int = 1_000, seed: int = 0) -> np.ndarray:
        return np.eye(size)[np.random.default_rng(seed).integers(size, size=count)]

    def found(self, *columns: np.ndarray, coding: kinds.Coding = "onehot", **changes: Any) -> tuple[kinds.Kind, ...]:
        rows = rows_of(np.concatenate([numbers(1_000), *columns], 1), **changes)
        layout = Layout.infer(rows, coding)
        assert layout.unpack(layout.pack(rows)).equals(rows)
        return layout.observation[1:]

    @pytest.mark.parametrize("coding", ["onehot", "bits"])
    def test_neighbours_of_which_one_is_always_set_are_a_group(self, coding: kinds.Coding):
        assert self.found(self.group(5), coding=coding) == (OneHot(5, coding),)

    def test_a_number_in_between_parts_them(self):
        group = self.group(4)
        parted = self.found(group[:, :2], numbers(1_000), group[:, 2:])
        assert parted == (Binary(0, 1), Binary(0, 1), Continuous(), Binary(0, 1), Binary(0, 1))
        between = self.found(self.group(3), numbers(1_000), self.group(3, seed=1))
        assert between == (OneHot(3), Continuous(), OneHot(3))

    @pytest.mark.parametrize("field", ["observation", "next_observation"])
    @pytest.mark.parametrize("value", [[0, 0, 0], [1, 1, 0]], ids=["none set", "two set"])
    def test_one_row_that_differs_is_enough_for_none(self, field: str, value: list[int], monkeypatch):
        """Even where a sample of the rows does not hold it."""
        observation = np.concatenate([numbers(1_000), self.group(3)], 1)
        changed = observation.copy()
        changed[500, 1:] = value
        rows = rows_of(observation, **{field: changed})
        for limit in (1 << 17, 20):
            drawn = inference.sample(rows, limit)
            monkeypatch.setattr(inference, "sample", lambda rows, drawn=drawn: drawn)
            assert Layout.infer(rows).observation[1:] == (Binary(0, 1),) * 3
            monkeypatch.undo()

    def test_what_is_a_group_and_what_is_none(self):
        flags = np.random.default_rng(0).integers(2, size=(1_000, 3)).astype(float)
        assert self.found(flags) == (Binary(0, 1),) * 3
        assert self.found(2 * self.group(3)) == (Binary(0, 2),) * 3
        assert self.found(np.ones((1_000, 1)), self.group(3)) == (Constant(1.0), OneHot(3))
        assert self.found(self.group(3), self.group(4, seed=1)) == (OneHot(3), OneHot(4))
        assert self.found(np.insert(self.group(4), 2, 0.0, axis=1)) == (OneHot(5, seen=(0, 1, 3, 4)),)

    def test_actions_have_groups_too(self):
        """Such as a skill, and a number that only some skills use."""
        action = np.concatenate([self.group(4), numbers(1_000)], 1)
        rows = rows_of(numbers(1_000), action=action)
        layout = Layout.infer(rows)
        assert layout.action[0] == OneHot(4)
        assert layout.unpack(layout.pack(rows)).equals(rows)
        action[7, :4] = 1
        assert Layout.infer(rows_of(numbers(1_000), action=action)).action[:4] == (Binary(0, 1),) * 4


def chain(count: int, seed: int = 0) -> Transitions:
    """Five states and two actions; a step to the right succeeds in nine of ten cases, and the last state ends."""
    random = np.random.default_rng(seed)
    state, action = random.integers(4, size=count), random.integers(2, size=count)
    moves = np.where(random.random(count) < 0.9, 2 * action - 1, 0)
    following = np.clip(state + moves, 0, 4)
    return Transitions.of(
        observation=state[:, None].astype(np.int64),
        action=action,
        reward=(following == 4).astype(np.float32) * 2.5,
        next_observation=following[:, None].astype(np.int64),
        terminal=following == 4,
    )


class TestRowTable:
    def test_rows_come_as_often_as_they_came(self):
        rows = chain(20_000)
        layout = Layout.infer(rows)
        table = RowTable.fit(rows, layout)
        assert table.count.sum() == 20_000
        assert len(table.rows) == len(np.unique(self.whole(rows), axis=0)) < 30
        drawn = table.draw(50_000, layout, np.random.default_rng(0))
        assert [getattr(drawn, name).dtype for name in ("observation", "action", "reward", "terminal")] == [
            getattr(rows, name).dtype for name in ("observation", "action", "reward", "terminal")
        ]
        known, real = np.unique(self.whole(rows), axis=0, return_counts=True)
        again, made = np.unique(self.whole(drawn), axis=0, return_counts=True)
        assert np.array_equal(again, known)
        share = real / 20_000
        assert (np.abs(made / 50_000 - share) < 5 * np.sqrt(share / 50_000)).all()
        first, second = (t.draw(100, layout, np.random.default_rng(3)) for t in (table, RowTable(**table.arrays())))
        assert first.equals(second)

    @staticmethod
    def whole(rows: Transitions) -> np.ndarray:
        columns = (rows.observation, rows.action, rows.reward, rows.next_observation, rows.terminal)
        return np.concatenate([column.reshape(len(rows), -1).astype(float) for column in columns], 1)

    def test_numbers_make_no_table(self):
        rows = chain(1_000)
        real = rows_of(numbers(1_000), action=rows.action)
        acted = rows_of(rows.observation, next_observation=rows.next_observation)
        paid = rows_of(rows.observation, action=rows.action, next_observation=rows.next_observation)
        for given in (real, acted, paid):
            assert RowTable.fit(given, Layout.infer(given)) is None
        assert RowTable.fit(rows, Layout.infer(rows, integers="ordered")) is None

    def test_too_many_different_rows_make_no_table(self, monkeypatch: pytest.MonkeyPatch):
        rows = chain(1_000)
        layout = Layout.infer(rows)
        size = len(RowTable.fit(rows, layout).rows)
        monkeypatch.setattr(row_table, "LARGEST", size)
        assert RowTable.fit(rows, layout) is not None
        monkeypatch.setattr(row_table, "LARGEST", size - 1)
        assert RowTable.fit(rows, layout) is None

    def test_pictures_of_symbols_that_have_been_seen_are_in_a_table_though_few_rows_come_twice(self):
        book = RANDOM.integers(0, 2, (1_500, 12))
        seen = book[RANDOM.integers(0, 1_500, (20_000, 2))]
        rows = rows_of(seen[:, 0], next_observation=seen[:, 1], action=RANDOM.integers(0, 4, 20_000))
        table = RowTable.fit(rows, Layout.infer(rows))
        drawn = table.draw(1_000, Layout.infer(rows), np.random.default_rng(0))
        assert {*map(tuple, drawn.observation.tolist())} <= {*map(tuple, book.tolist())}
        narrow = rows_of(seen[:, 0, :7], next_observation=seen[:, 1, :7], action=rows.action)
        assert RowTable.fit(narrow, Layout.infer(narrow)) is None, "few columns are no picture"
        fresh = rows_of(
            RANDOM.integers(0, 2, (5_000, 20)),
            next_observation=RANDOM.integers(0, 2, (5_000, 20)),
            action=rows.action[:5_000],
        )
        assert RowTable.fit(fresh, Layout.infer(fresh)) is None, "most of these were never seen"

    def test_symbols_with_two_names_are_in_a_table_as_they_were(self):
        """Pictures whose second half says the same as the first: a colour that goes with each kind of thing."""
        book = RANDOM.integers(0, 3, (1_500, 12))
        book = np.concatenate([book, np.array([5, 0, 2])[book]], axis=1)
        seen = book[RANDOM.integers(0, 1_500, (20_000, 2))]
        rows = rows_of(seen[:, 0], next_observation=seen[:, 1], action=RANDOM.integers(0, 4, 20_000))
        layout = prepare(rows, "standard", "onehot", True, residuals="linear", counted=True).layout
        assert any(isinstance(kind, Derived) for kind in layout.observation)
        drawn = RowTable.fit(rows, layout).draw(1_000, layout, np.random.default_rng(0))
        for field in (drawn.observation, drawn.next_observation):
            assert {*map(tuple, field.tolist())} <= {*map(tuple, book.tolist())}


@pytest.mark.parametrize("size", [2, 3, 5, 6, 8, 11, 13, 64, 100])
def test_bits_decode_to_the_nearest_valid_code(size: int):
    book = encode_index(np.arange(size), size, "bits")
    assert book.shape == (size, code_width(size, "bits"))
    assert np.array_equal(decode_index(book, size, "bits"), np.arange(size))
    values = np.random.default_rng(size).normal(size=(2000, book.shape[1]))
    assert np.array_equal(decode_index(values, size, "bits"), (values @ book.T).argmax(1))


@pytest.mark.parametrize("kind", [Categorical, OneHot])
def test_codes_have_at_least_two_values_and_a_known_coding(kind: Any):
    for given in ({"size": 1}, {"size": 3, "coding": "gray"}):
        with pytest.raises(DataError):
            kind(**given)


@pytest.mark.parametrize("coding", ["onehot", "bits"])
def test_places_of_a_one_hot_group_that_are_never_set_stay_so(coding):
    """Five states of which 1, 3 and 4 occur, 4 as a next state alone."""
    here, there = np.eye(5)[[1, 3, 3, 1]], np.eye(5)[[3, 4, 1, 1]]
    rows = Transitions(here, np.arange(4) % 2, np.zeros(4), there, observation_space=(spaces.OneHot(5),))
    found = Layout.infer(rows, coding)
    assert found.observation == found.next_observation == (OneHot(5, coding, (1, 3, 4)),)
    assert found.unpack(found.pack(rows)).equals(rows)
    assert through_json(found) == found
    noise = found.unpack(np.random.default_rng(0).normal(size=(200, found.width)))
    for states in (noise.observation, noise.next_observation):
        assert (states.sum(1) == 1).all()
        assert set(states.argmax(1)) == {1, 3, 4}
    if coding == "onehot":
        assert found.names[:3] == ("observation[1]", "observation[3]", "observation[4]")
    with pytest.raises(DataError, match="observation"):
        found.pack(Transitions(np.eye(5)[[0]], [0], [0.0], there[:1], observation_space=(spaces.OneHot(5),)))

"""Rows to the table that TVAE and CTGAN learn, and back."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from synther import Transitions
from synther.baselines import table as module
from synther.baselines.table import Category, Real, Table
from synther.data.spaces import Box, Discrete
from synther.errors import DataError


def mixed(rows: int = 300) -> Transitions:
    """Real columns of very different scales, a constant one, a flag, discrete actions of which two occur."""
    draw = np.random.default_rng(2)
    observation = np.stack(
        [draw.normal(size=rows), 1e6 + 1e-3 * draw.normal(size=rows), np.full(rows, 7.0), draw.random(rows) < 0.3], 1
    )
    action = draw.choice([2, 4], rows)
    return Transitions(
        observation,
        action,
        (1e-7 * draw.normal(size=rows)).astype(np.float32),
        observation[::-1].copy(),
        np.arange(rows) == 5,
        action_space=(Discrete(5, start=1),),
        env_id="Mixed-v0",
    )


@pytest.fixture(scope="module")
def table() -> Table:
    return Table.of(mixed())


def test_every_column_has_its_kind(table):
    kinds = [type(column) for column in table.columns]
    assert kinds == [Real, Real, Category, Category, Real, Real, Real, Category, Category]
    assert [column.seen for column in table.columns if isinstance(column, Category)] == [(0, 1), (1, 3), (0, 1), (0, 1)]
    assert table.code.shape == table.place.shape == (300, 9)


def test_the_encoding_is_a_place_and_one_code_a_column(table):
    encoded = table.encoded()
    assert encoded.shape == (300, table.width)
    start = 0
    for column in table.columns:
        codes = encoded[:, start + isinstance(column, Real) : start + column.width]
        np.testing.assert_array_equal(np.sort(codes, 1)[:, :-1], 0)
        np.testing.assert_array_equal(codes.max(1), 1)
        if isinstance(column, Real):
            assert np.abs(encoded[:, start]).max() <= np.float32(0.99)
        start += column.width


def test_there_and_back(table):
    back, rows = table.decoded(table.encoded()), mixed()
    for name in ("action", "terminal"):
        np.testing.assert_array_equal(getattr(back, name), getattr(rows, name))
        assert getattr(back, name).dtype == getattr(rows, name).dtype
    np.testing.assert_array_equal(back.observation[:, 2:], rows.observation[:, 2:])
    inside = (np.abs(table.place) < 0.99).all(1)
    assert inside.mean() > 0.9
    for name in ("observation", "next_observation", "reward"):
        found, wanted = getattr(back, name)[inside], getattr(rows, name)[inside]
        deviation = wanted.std(axis=0)
        assert (np.abs(found - wanted) <= 1e-5 * deviation).all()
    assert (back.env_id, back.action_space, back.reward.dtype) == ("Mixed-v0", rows.action_space, np.float32)


def test_whatever_a_model_makes_is_a_valid_row(table):
    made = table.decoded(100 * np.random.default_rng(0).normal(size=(500, table.width)))
    assert set(np.unique(made.action)) == {2, 4}
    assert set(np.unique(made.observation[:, 3])) == {0.0, 1.0}
    np.testing.assert_array_equal(made.observation[:, 2], 7.0)


def test_a_model_that_has_diverged_is_told(table):
    made = np.full((3, table.width), np.nan)
    with pytest.raises(DataError, match="diverged"):
        table.decoded(made)


def test_a_share_of_the_rows_loses_no_category(table):
    few = table.take(20, seed=1)
    assert 20 <= len(few) <= 20 + 8
    for number, column in enumerate(table.columns):
        if isinstance(column, Category):
            np.testing.assert_array_equal(np.unique(few.code[:, number]), range(column.width))
    assert few.columns is table.columns
    assert table.take(300) is table
    np.testing.assert_array_equal(few.code, table.take(20, seed=1).code)
    assert not np.array_equal(few.place, table.take(20, seed=2).place[: len(few)])


class Pickling(ThreadPoolExecutor):
    """In the place of processes, which would have to import PyTorch: only what can be sent there and back."""

    def __init__(self, jobs: int, *, mp_context: object) -> None:
        super().__init__(jobs)

    def submit(self, function, /, *given):
        def sent(*given):
            return pickle.loads(pickle.dumps(function(*given)))

        return super().submit(sent, *pickle.loads(pickle.dumps(given)))


def test_other_processes_give_the_same_table(monkeypatch):
    monkeypatch.setattr(module, "WORTH_A_PROCESS", 1)
    monkeypatch.setattr(module, "ProcessPoolExecutor", Pickling)
    rows = replace(mixed(40), action=np.arange(40.0)[:, None], action_space=(Box.uniform(0, 40, 1),))
    here, there = Table.of(rows, jobs=1, seed=3), Table.of(rows, jobs=2, seed=3)
    assert here.columns == there.columns
    np.testing.assert_array_equal(here.code, there.code)
    np.testing.assert_array_equal(here.place, there.place)


@pytest.mark.parametrize(
    ("rows", "text"), [(mixed()[:1], "1 row"), (mixed()[[3, 3, 3]], "3 rows are equal")], ids=["one", "equal"]
)
def test_what_cannot_be_learnt_is_refused(rows, text):
    with pytest.raises(DataError, match=text):
        Table.of(rows)

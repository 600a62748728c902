"""The short way against the long one: the same rows, the same refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from synther.data.spaces import Binary, Box, Discrete, OneHot, Space
from synther.errors import DataError
from synther.replay.synthetic import SyntheticReplay

from .rows import numbered, tiny

Pool = list[list[Any]]
"""Values of one type and shape in a list each, the best one first."""

OBSERVATIONS: Pool = [
    [np.zeros(3, np.float32), np.ones(3, np.float32), np.array([1, np.nan, 0], np.float32)],
    [np.ones(3), np.array([1 / 3, -1e16, 0]), np.full(3, 1e300), np.array([0, 0, -np.inf])],
    [np.array([1, 2, 3]), np.array([1, 2, 2**54 + 2**30 + 1])],
    [np.ones(3, np.longdouble) / 3],
    [np.ones(3, ">f4")],
    [np.zeros(2)],
    [[0.0, 1.0, 2.0], [0.0, np.nan, 0.0]],
    [torch.ones(3), torch.tensor([0.0, np.nan, 0.0])],
]
REWARDS: Pool = [
    [0.5, 1 / 3, 1e17, np.inf],
    [np.float32(1.5)],
    [2, 10**30, 10**400],
    [np.array([0.25])],
    [True],
    ["much"],
]
FLAGS: Pool = [[False, True], [np.bool_(True)], [np.array([True])], [0, 1, 2], [1.0, 0.5]]
TIMEOUTS: Pool = [[False, True], [np.bool_(True)], [1, 2]]
ACTIONS: dict[str, tuple[Space | None, Pool]] = {
    "any real": (None, [[np.zeros(2), np.full(2, -3.4e38), np.full(2, 1e39)], [np.zeros(2, np.float32)]]),
    "any integer": (None, [[3, 2**24, 2**24 + 1, 10**400], [np.int64(-3), np.int64(-(2**24) - 1)], [2.0, 0.5]]),
    "box": (
        (Box.uniform(-1, 1, 2),),
        [[np.ones(2), np.full(2, 1 + 1e-6), np.array([0, 1.1])], [np.array([0, 1]), np.array([0, 2])]],
    ),
    "narrow": (  # a span that float32 cannot divide, and no upper end
        (Box((1000.0, -1.0), (1000.001, np.inf)),),
        [[np.array([1000.0, -1]), np.array([1000.00102, 0]), np.array([1000.0, -1.1])], [np.float32([1000, 3])]],
    ),
    "discrete": ((Discrete(4, start=1),), [[np.int64(1), np.int64(4), np.int64(0)], [4, 5], [2.0, 2.5], [True]]),
    "several": (
        (Discrete(3), Binary(1)),
        [[np.array([2, 1]), np.array([3, 1]), np.array([0, 2])], [np.zeros(2), np.array([0.5, 0])]],
    ),
    "one-hot": ((OneHot(3),), [[np.array([0, 1, 0]), np.array([1, 1, 0])], [np.array([0.0, 1.0, 0.0])]]),
}


def outcome(replay: SyntheticReplay, row: list[Any]) -> str:
    try:
        replay.add(*row)
    except DataError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", ACTIONS)
def test_rows_and_refusals_are_those_of_the_long_way(name):
    space, actions = ACTIONS[name]
    draw = np.random.default_rng(0)
    short, long = (tiny(capacity=50, ratio=0, action_space=space) for _ in range(2))
    taken = 0
    for _ in range(40):
        pools = (OBSERVATIONS, actions, REWARDS, OBSERVATIONS, FLAGS, TIMEOUTS)
        types = [pool[int(len(pool) * draw.random() ** 3)] for pool in pools]  # mostly the first
        good = [values[0] for values in types]
        for field in (None, *range(6)):  # that has another value of the same type
            row = list(good)
            if field is not None:
                row[field] = types[field][draw.integers(len(types[field]))]
            if short.added:
                taken += short.store.shortcut.pack(tuple(row)) is not None
                long.store.shortcut._kinds = None
            assert outcome(short, row) == outcome(long, row)
    assert short.added == long.added > 50
    assert short.transitions().equals(long.transitions())
    assert (taken > 20) == (name != "one-hot")


def test_what_nobody_knows_of_a_timeout():
    replay = tiny()
    rows = [{name: array[0] for name, array in numbered(number, 1).items()} for number in range(4)]
    for number, timeout in enumerate((False, True, None, None)):
        replay.add(**rows[number], timeout=timeout)
        assert (replay.transitions().timeout is None) == (number > 1)


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("count", [1, 5])
def test_rows_of_an_agent_take_it(count, discrete, monkeypatch):
    replay = tiny(ratio=0, action_space=(Discrete(4),) if discrete else (Box.uniform(-1, 1, 2),))
    replay.add(**numbered(0, count, discrete), timeout=np.zeros(count, bool))
    monkeypatch.setattr(replay, "_add_checked", None)  # which nobody calls any more
    for first in range(count, 20 * count, count):
        replay.add(**numbered(first, count, discrete), timeout=np.arange(first, first + count) % 9 == 8)
    rows = replay.transitions()
    for name, array in numbered(0, 20 * count, discrete).items():
        assert np.array_equal(getattr(rows, name), array), name
    assert np.array_equal(rows.timeout, np.arange(20 * count) % 9 == 8)

"""Terminals with the rhythm of a time limit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from synther.data import time_limits
from synther.data.time_limits import time_limit_of, warn_of_time_limit
from synther.data.transitions import Transitions


def rows(*ends: int, count: int = 100) -> Transitions:
    """Terminals at these rows."""
    values = np.random.default_rng(0).normal(size=(count, 2))
    return Transitions(values, values[:, :1], values[:, 0], values + 1, np.isin(np.arange(count), ends))


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    time_limits._warn.cache_clear()


@pytest.mark.parametrize(
    ("ends", "limit"),
    [
        (range(19, 100, 20), 20),
        (range(3, 100, 20), 20),
        ((19, 39, 59, 79), None),  # too few
        ((9, 19, 29, 34, 44, 54), 10),  # four of five
        ((9, 19, 29, 34, 44, 49, 59), None),  # four of six
        ((9, 19, 29, 39, 49, 69), None),  # one episode was longer
        (range(100), None),  # every row is an episode
        ((), None),
    ],
)
def test_the_rhythm(ends: tuple[int, ...], limit: int | None) -> None:
    assert time_limit_of(rows(*ends)) == limit


def test_who_has_marked_timeouts_knows_the_difference() -> None:
    cut = replace(rows(*range(19, 100, 20)), timeout=np.arange(100) == 99)
    assert time_limit_of(cut) is None
    assert time_limit_of(replace(cut, timeout=np.zeros(100, bool))) == 20


def test_one_warning_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        warn_of_time_limit(replace(rows(*range(19, 100, 20)), env_id="Pendulum-v1"))
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "nearly all terminals of 'Pendulum-v1' come every 20 rows" in record.getMessage()
    assert "mark these rows in `timeouts` instead of `terminals`" in record.getMessage()
    warn_of_time_limit(rows(3, 50, 90))
    assert len(caplog.records) == 1

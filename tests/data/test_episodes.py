"""Which rows belong to the same episode, and terminals that look like a time limit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from synther.data.episodes import episode_ids
from synther.data.time_limits import time_limit_of, warn_of_time_limit
from synther.data.transitions import Transitions


def episodes(*lengths: int, marked: bool = True, timeouts: bool = False, columns: int = 3) -> Transitions:
    """Random walks, one after another, each marked at its end."""
    draw = np.random.default_rng(0)
    walks = [draw.normal(size=(length + 1, columns)) for length in lengths]
    last = np.zeros(sum(lengths), bool)
    last[np.cumsum(lengths) - 1] = marked
    return Transitions(
        observation=np.concatenate([walk[:-1] for walk in walks]),
        action=draw.normal(size=(sum(lengths), 1)),
        reward=draw.normal(size=sum(lengths)),
        next_observation=np.concatenate([walk[1:] for walk in walks]),
        terminal=None if timeouts else last,
        timeout=last if timeouts else None,
    )


def numbered(*lengths: int) -> NDArray[np.int64]:
    return np.repeat(np.arange(len(lengths)), lengths)


@pytest.mark.parametrize("marks", [{}, {"timeouts": True}, {"marked": False}], ids=["terminals", "timeouts", "breaks"])
def test_terminals_timeouts_and_breaks_each_end_an_episode(marks) -> None:
    ids = episode_ids(episodes(4, 1, 7, **marks))
    assert ids.dtype == np.int64
    np.testing.assert_array_equal(ids, numbered(4, 1, 7))


def test_a_mark_ends_an_episode_even_where_the_next_row_links() -> None:
    marked = replace(episodes(10), terminal=np.arange(10) == 3)
    np.testing.assert_array_equal(episode_ids(marked), numbered(4, 6))


def test_half_of_the_rows_must_link() -> None:
    rows = episodes(8)
    np.testing.assert_array_equal(episode_ids(rows[[0, 1, 2, 5, 7]]), [0, 0, 0, 1, 2])
    assert episode_ids(rows[[0, 1, 3, 5, 7]]) is None
    np.testing.assert_array_equal(episode_ids(episodes(1, 1, 1)), [0, 1, 2])


def test_rows_of_several_chunks() -> None:
    lengths = [1000] * 140
    np.testing.assert_array_equal(episode_ids(episodes(*lengths, columns=1)), numbered(*lengths))


def ending(*ends: int) -> Transitions:
    """Hundred rows with terminals at these."""
    return replace(episodes(100), terminal=np.isin(np.arange(100), ends))


@pytest.mark.parametrize(
    ("ends", "limit"),
    [
        (range(3, 100, 20), 20),
        ((19, 39, 59, 79), None),  # too few
        ((9, 19, 29, 34, 44, 54), 10),  # four of five
        ((9, 19, 29, 34, 44, 49, 59), None),  # four of six
        ((9, 19, 29, 39, 49, 69), None),  # one episode was longer
        (range(100), None),  # every row is an episode
    ],
)
def test_terminals_at_equal_distances_look_like_a_time_limit(ends, limit: int | None) -> None:
    assert time_limit_of(ending(*ends)) == limit
    assert time_limit_of(replace(ending(*ends), timeout=np.zeros(100, bool))) == limit
    assert time_limit_of(replace(ending(*ends), timeout=np.arange(100) == 99)) is None


def test_a_time_limit_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        warn_of_time_limit(replace(ending(*range(19, 100, 20)), env_id="Rhythm-v0"))
    warn_of_time_limit(ending(3, 50, 90))
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "'Rhythm-v0' come every 20 rows" in record.getMessage()
    assert "`timeouts`" in record.getMessage()

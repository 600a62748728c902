"""Which rows belong to the same episode."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from synther.data.episodes import episode_ids
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


def test_terminals_timeouts_and_breaks_each_end_an_episode() -> None:
    for marks in ({}, {"timeouts": True}, {"marked": False}):
        ids = episode_ids(episodes(4, 1, 7, **marks))
        assert ids is not None
        assert ids.dtype == np.int64
        np.testing.assert_array_equal(ids, numbered(4, 1, 7))


def test_a_mark_ends_an_episode_even_where_the_next_row_links() -> None:
    rows = episodes(10)
    marked = Transitions(rows.observation, rows.action, rows.reward, rows.next_observation, np.arange(10) == 3)
    np.testing.assert_array_equal(episode_ids(marked), numbered(4, 6))


def test_half_of_the_rows_is_enough() -> None:
    rows = episodes(8)
    np.testing.assert_array_equal(episode_ids(rows[[0, 1, 2, 5, 7]]), [0, 0, 0, 1, 2])
    assert episode_ids(rows[[0, 1, 3, 5, 7]]) is None
    np.testing.assert_array_equal(episode_ids(episodes(1)), [0])
    np.testing.assert_array_equal(episode_ids(episodes(1, 1, 1)), [0, 1, 2])


def test_rows_of_several_chunks() -> None:
    lengths = [1000] * 140
    np.testing.assert_array_equal(episode_ids(episodes(*lengths, columns=1)), numbered(*lengths))

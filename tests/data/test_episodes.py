"""Which rows belong to the same episode, n-step rows, and terminals that look like a time limit."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from synther.data.episodes import episode_ids, hold_out, n_step_rows, with_next_actions
from synther.data.transitions import Transitions
from synther.errors import ConfigError, DataError
from synther.synthesizer.time_limits import time_limit_of, warn_of_time_limit


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


def brute_force(rows: Transitions, n: int, discount: float) -> list[tuple[int, float, int]]:
    """Of every n-step row, the first row, the reward and the last row, step by step."""
    found = []
    for first in range(len(rows)):
        total, at, last = 0.0, first, None
        for step in range(n):
            total += discount**step * rows.reward[at]
            if rows.terminal[at] or step == n - 1:
                last = at
                break
            over = rows.timeout is not None and rows.timeout[at]
            if over or at + 1 == len(rows) or (rows.next_observation[at] != rows.observation[at + 1]).any():
                break
            at += 1
        if last is not None:
            found.append((first, total, last))
    return found


@pytest.mark.parametrize("n", [1, 2, 3, 5, 40])
@pytest.mark.parametrize("seed", range(4))
def test_n_step_rows_are_those_of_a_loop(n, seed) -> None:
    draw = np.random.default_rng(seed)
    rows = episodes(*draw.integers(1, 12, 60), marked=False)
    ends = np.append((rows.next_observation[:-1] != rows.observation[1:]).any(1), True)
    kind = draw.integers(3, size=len(rows))  # an episode ends in a terminal, at a time limit, or in a gap
    rows = replace(rows, terminal=ends & (kind == 0), timeout=ends & (kind == 1))
    made, expected = n_step_rows(rows, n, 0.9, whole=True), brute_force(rows, n, 0.9)
    if n == 1:
        assert made is rows
        return
    first, reward, last = (np.array(part) for part in zip(*expected, strict=True))
    assert 0 < len(first) < len(rows)
    assert rows.terminal[last].any()
    np.testing.assert_array_equal(made.observation, rows.observation[first])
    np.testing.assert_array_equal(made.action, rows.action[first])
    np.testing.assert_allclose(made.reward, reward, rtol=1e-12)
    np.testing.assert_array_equal(made.next_observation, rows.next_observation[last])
    np.testing.assert_array_equal(made.terminal, rows.terminal[last])
    assert made.timeout is None


@pytest.mark.parametrize("known", [True, False], ids=["episodes", "shuffled"])
def test_held_out_rows_are_whole_episodes_where_these_are_known(known: bool) -> None:
    rows = episodes(*[7] * 60)
    if not known:
        rows = rows[np.random.default_rng(1).permutation(len(rows))]
    kept, held_out = hold_out(rows, 0.1, seed=3)
    assert len(held_out) == 42
    both = np.concatenate([kept.reward, held_out.reward])
    np.testing.assert_array_equal(np.sort(both), np.sort(rows.reward))
    if known:
        ids = numbered(*[7] * 60)[np.isin(rows.reward, held_out.reward)]
        assert len(np.unique(ids)) == 6
    assert hold_out(rows, 0.1, seed=3)[1].equals(held_out)
    assert not hold_out(rows, 0.1, seed=4)[1].equals(held_out)
    with pytest.raises(DataError, match="leaves no row"):
        hold_out(rows[:1], 0.5, seed=0)


def test_n_step_rows_by_hand() -> None:
    rows = replace(episodes(4), reward=np.array([1, 2, 4, 8]))
    made = n_step_rows(rows, 3, 0.5, whole=True)
    assert made.reward.tolist() == [1 + 1 + 1, 2 + 2 + 2, 4 + 4, 8]
    assert made.terminal.tolist() == [False, True, True, True]
    cut = n_step_rows(replace(rows, terminal=np.zeros(4, bool), timeout=np.arange(4) == 3), 3, 0.5, whole=True)
    assert (cut.reward.tolist(), cut.terminal.tolist()) == ([3, 6], [False, False])
    np.testing.assert_array_equal(cut.next_observation, rows.next_observation[2:])


def test_n_step_rows_need_episodes() -> None:
    with pytest.raises(DataError, match="n_step 3"):
        n_step_rows(episodes(8)[[0, 1, 3, 5, 7]], 3, 0.9, whole=True)
    with pytest.raises(DataError, match="lower n_step"):
        n_step_rows(episodes(2, 3, timeouts=True), 4, 0.9, whole=True)
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(ConfigError, match="n_step"):
            n_step_rows(episodes(2, 3), wrong, 0.9, whole=True)


def one_by_one(rows: Transitions, n: int, discount: float) -> list[tuple[float, float, int]]:
    """Reward, discount and last row of every n-step row, of which cut ones are shorter."""
    found = []
    for first in range(len(rows)):
        total, factor, at = 0.0, 1.0, first
        for step in range(n):
            total += factor * rows.reward[at]
            factor *= discount
            over = rows.terminal[at] or rows.timeout[at] or at + 1 == len(rows)
            if over or step == n - 1 or (rows.next_observation[at] != rows.observation[at + 1]).any():
                break
            at += 1
        found.append((total, factor, at))
    return found


def mixed(seed: int) -> Transitions:
    """Episodes that end in a terminal, at a time limit, or in a gap."""
    draw = np.random.default_rng(seed)
    rows = episodes(*draw.integers(1, 12, 60), marked=False)
    ends = np.append((rows.next_observation[:-1] != rows.observation[1:]).any(1), True)
    kind = draw.integers(3, size=len(rows))
    return replace(rows, terminal=ends & (kind == 0), timeout=ends & (kind == 1))


@pytest.mark.parametrize("n", [1, 3, 40])
@pytest.mark.parametrize("seed", range(2))
def test_n_step_rows_with_their_discounts_are_those_of_a_loop(n, seed) -> None:
    rows = replace(mixed(seed), extra={"goal": np.arange(len(mixed(seed)))})
    made = n_step_rows(rows, n, 0.9)
    reward, discount, last = (np.array(part) for part in zip(*one_by_one(rows, n, 0.9), strict=True))
    np.testing.assert_array_equal(made.observation, rows.observation)
    np.testing.assert_array_equal(made.extra["goal"], rows.extra["goal"])
    np.testing.assert_allclose(made.reward, reward, rtol=1e-12)
    np.testing.assert_allclose(made.extra["discount"], discount, rtol=1e-12)
    np.testing.assert_array_equal(made.next_observation, rows.next_observation[last])
    np.testing.assert_array_equal(made.terminal, rows.terminal[last])
    with pytest.raises(DataError, match="already"):
        n_step_rows(made, 2, 0.9)


@pytest.mark.parametrize("seed", range(2))
def test_next_actions_are_those_of_the_next_row_of_the_episode(seed, caplog) -> None:
    caplog.set_level(logging.INFO)
    rows = mixed(seed)
    ids = numbered(*np.diff(np.flatnonzero(np.append(np.diff(episode_ids(rows), prepend=-1) > 0, True))))
    expected, kept = [], []
    for row in range(len(rows)):
        if row + 1 < len(rows) and ids[row + 1] == ids[row]:
            expected.append(rows.action[row + 1])
        elif rows.terminal[row]:
            expected.append(rows.action[row])
        else:
            continue
        kept.append(row)
    made = with_next_actions(rows)
    np.testing.assert_array_equal(made.observation, rows.observation[kept])
    np.testing.assert_array_equal(made.extra["next_action"], expected)
    assert f"{len(rows) - len(kept)} of {len(rows)}" in caplog.text
    assert made.terminal.sum() == rows.terminal.sum()
    assert len(np.unique(episode_ids(made))) == len(np.unique(ids[kept]))


def test_next_actions_of_n_step_rows_are_those_after_the_last_step() -> None:
    rows = with_next_actions(episodes(6, timeouts=True))
    made = n_step_rows(rows, 3, 0.9)
    np.testing.assert_array_equal(made.extra["next_action"], rows.extra["next_action"][[2, 3, 4, 4, 4]])
    with pytest.raises(DataError, match="with_next_actions before n_step_rows"):
        with_next_actions(n_step_rows(episodes(6), 3, 0.9))
    with pytest.raises(DataError, match="episodes"):
        with_next_actions(episodes(8)[[0, 2, 4, 6]])
    with pytest.raises(ConfigError, match="discount"):
        n_step_rows(episodes(6), 3, 1.5)


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
    assert "'Rhythm-v0' are 20 rows apart" in record.getMessage()
    assert "`timeouts`" in record.getMessage()

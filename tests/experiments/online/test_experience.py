"""The rows of a run: which are the newest, and where episodes end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from synther.experiments.experience import Experience
from synther.replay.columns import Columns

COLUMNS = Columns(1, 1)


def step(number: int) -> np.ndarray:
    """Of two seeds: observation, action, reward, terminal, next observation."""
    return np.array([[number, 0, 0, number == 3, number + 1], [100 + number, 0, 0, 0, 101 + number]], np.float32)


@pytest.fixture
def five(tmp_path: Path) -> Experience:
    """Steps, of which the first two are in a file."""
    found = Experience(tmp_path, COLUMNS)
    for number in range(5):
        found.append(step(number), np.array([False, number == 1]))
        if number == 1:
            found.save()
    return found


def test_the_newest_rows_come_last(five: Experience) -> None:
    for newest, expected in ((1, [4]), (3, [2, 3, 4]), (5, range(5)), (9, range(5))):
        rows = five.rows(newest)
        assert rows.shape == (2, len(expected), COLUMNS.width)
        np.testing.assert_array_equal(rows, np.stack([step(number) for number in expected], axis=1))


def test_an_end_in_a_terminal_state_is_no_cut(five: Experience) -> None:
    rows = five.transitions("Made-v0")
    assert rows.observation[:, 0].tolist() == [0, 1, 2, 3, 4, 100, 101, 102, 103, 104]  # seed after seed
    assert rows.timeout is not None
    assert np.flatnonzero(rows.timeout).tolist() == [4, 6, 9]
    terminal = Experience(five.folder, COLUMNS)
    terminal.append(step(3), np.array([False, False]))
    assert terminal.transitions("Made-v0").timeout.tolist() == [False, True]


def test_what_was_saved_is_taken_up(five: Experience) -> None:
    five.save()
    again = Experience(five.folder, COLUMNS)
    again.load([2, 5], 2, five.folder / "replay.npz")
    assert again.steps == 5
    np.testing.assert_array_equal(again.rows(5), five.rows(5))
    assert again.transitions("Made-v0").timeout.tolist() == [False] * 6 + [True] + [False] * 3

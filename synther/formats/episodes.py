"""Convert episodes to rows and back.

Some files store only one observation per step. `pair` finds the next observation of each row in the row after it,
except at the ends of episodes. `episodes` joins rows to episodes, for formats that store episodes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from synther.data.transitions import Array, Transitions
from synther.errors import DataError, FormatError
from synther.formats.writing import Stream

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pairing:
    """The rows of a recording without next observations that can be completed to transitions.

    row        (M,)  indices of the rows that are kept
    following  (M,)  indices of the rows that hold their next observations
    timeout    (M,)  True for the last kept row of an episode that did not end in a terminal state
    """

    row: Array
    following: Array
    timeout: Array


def pair(rows: int, terminal: Array | None, timeout: Array | None) -> Pairing:
    """Pair each row with the next row of its episode, which holds its next observation.

    The next observation is unknown for the last row of a truncated episode, and for the last row of the recording.
    These rows are left out, and the timeout moves to the row before. A terminal row is kept, with its own observation
    in place of the next one: a TD target masks the value of that observation anyway, and otherwise all terminals would
    be lost.
    """
    if timeout is None:
        raise FormatError(
            "next_observations and timeouts are both missing, so the ends of truncated episodes are unknown, and rows "
            "of different episodes would be paired. "
            "Add next_observations, or timeouts (true on the last step of each truncated episode)"
        )
    ends = np.zeros(rows, bool) if terminal is None else flags("terminals", terminal, rows)
    cut = flags("timeouts", timeout, rows) & ~ends
    cut[-1:] |= ~ends[-1:]
    row = np.flatnonzero(~cut)
    if rows == 0:
        raise DataError("no rows: expected at least one transition")
    if len(row) == 0:
        raise DataError(f"none of the {rows:,} rows has a known next observation: every episode has only one step")
    stand_in = ends[row]
    before_cut = ~stand_in & cut[np.minimum(row + 1, rows - 1)]
    _log.info(
        "the data has no next_observations: %d rows at the ends of truncated episodes are left out, and %d terminal "
        "rows are kept with their own observation as the next one",
        rows - len(row),
        np.count_nonzero(stand_in),
    )
    return Pairing(row, np.where(stand_in, row, row + 1), before_cut)


def paired(fields: dict[str, Array]) -> dict[str, Array]:
    """Return `fields` with next observations. If there are none, they are taken from the next rows (see `pair`)."""
    if "next_observation" in fields:
        return fields
    observation = fields["observation"]
    pairing = pair(len(observation), fields.get("terminal"), fields.get("timeout"))
    check_lengths(fields)
    kept = {name: array[pairing.row] for name, array in fields.items()}
    return {**kept, "next_observation": observation[pairing.following], "timeout": pairing.timeout}


def check_lengths(fields: dict[str, Array]) -> None:
    """Raise an error if the arrays differ in length."""
    rows = len(fields["observation"])
    for name, array in fields.items():
        if len(array) != rows:
            raise DataError(
                f"{name} has {len(array):,} rows, observation has {rows:,}: every array needs one row per step"
            )


def flags(name: str, values: Array, rows: int) -> Array:
    """Return `values`, of shape (rows,) or (rows, 1), as booleans. Raise an error if a value is not 0 or 1."""
    values = values.reshape(-1) if values.ndim == 2 and values.shape[1] == 1 else values
    if values.shape != (rows,):
        raise DataError(f"{name} has shape {values.shape}: expected ({rows},), one value per step")
    if values.dtype.kind not in "biuf" or not np.isin(values, (0, 1)).all():
        raise DataError(f"{name} has other values than 0 and 1: expected booleans")
    return values.astype(bool)


@dataclass(frozen=True)
class Episode:
    """One episode. It has one observation more than steps."""

    observation: Array  # (steps + 1, O)
    action: Array
    reward: Array
    terminated: bool
    truncated: bool


def episodes(stream: Stream) -> Iterator[Episode]:
    """Join rows to episodes, and yield the episodes one at a time.

    An episode ends at a terminal, at a timeout, or with the last row. Within an episode, the next observation of each
    row must be the observation of the next row. Otherwise an error is raised.
    """
    open_parts: list[Transitions] = []
    seen = 0
    for part in stream.parts():
        ends = part.terminal if part.timeout is None else part.terminal | part.timeout
        start = 0
        for end in np.flatnonzero(ends) + 1:
            yield _episode([*open_parts, part[start:end]], seen)
            seen += sum(map(len, open_parts)) + int(end) - start
            open_parts, start = [], int(end)
        if start < len(part):
            open_parts.append(part[start:])
    if open_parts:
        yield _episode(open_parts, seen)


def _episode(parts: list[Transitions], first_row: int) -> Episode:
    rows = parts[0] if len(parts) == 1 else Transitions.concatenate(parts)
    breaks = (rows.next_observation[:-1] != rows.observation[1:]).any(axis=1)
    if breaks.any():
        row = first_row + int(np.argmax(breaks))
        raise DataError(
            f"the rows do not form episodes: row {row:,} is neither terminal nor a timeout, yet its next_observation "
            f"is not the observation of row {row + 1:,}. Write rows without episodes, such as synthetic rows, to "
            ".hdf5, .parquet or .npz"
        )
    return Episode(
        observation=np.concatenate([rows.observation, rows.next_observation[-1:]]),
        action=rows.action,
        reward=rows.reward,
        terminated=bool(rows.terminal[-1]),
        truncated=rows.timeout is not None and bool(rows.timeout[-1]),
    )

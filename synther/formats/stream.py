"""Rows that stay on disk: Parquet files with more rows than should be in memory, which are read in parts.

`StoredRows.sample` reads random rows. `StoredRows.stretches` reads stretches of consecutive rows from random places.
`StoredRows.order` goes through all rows again and again, piece by piece, with a new random order of the pieces each
time. All results depend only on the seed.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from synther import formats
from synther.data.episodes import episode_ends, episode_ids
from synther.data.transitions import Transitions
from synther.errors import ConfigError
from synther.formats import parquet

log = logging.getLogger(__name__)

SAMPLE_ROWS = 2_000_000
"""Maximum number of rows that are read to describe columns or to assess data."""
PIECES = 64
"""Minimum number of different places in the files from which the rows in memory come."""
_SAMPLE, _ORDER = range(2)  # streams of random numbers
_SPREAD = 4
"""For a sample, row groups are read until they hold this many times as many rows. A quarter of each is then taken."""

Flags = NDArray[np.bool_]
Numbers = NDArray[np.int64]


class Piece(NamedTuple):
    """Rows `start` to `stop` of a row group of a file. `first` is the number of its first row among all rows."""

    file: int
    group: int
    start: int
    stop: int
    first: int


class Sample(NamedTuple):
    """A random selection of rows, in their original order."""

    rows: Transitions
    places: Numbers
    """The number of each row among all rows. (n,)"""
    begins: Flags | None
    """Which rows are episode starts, or None if that is unknown. (n,)"""


@dataclass(frozen=True)
class StoredRows:
    """The rows of Parquet files. Only parts of them are in memory at a time."""

    files: parquet.Files

    def __post_init__(self) -> None:
        if "next_observation" not in self.files.keys:
            raise ConfigError(
                f"{self.files.paths[0].parent} has {len(self):,} rows without next_observations, so it must be read as "
                "a whole: add the column, or raise fit.window_rows if the memory is large enough"
            )

    def __len__(self) -> int:
        return len(self.files)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the footers of the files. The values are not hashed, because that would take as long as a fit."""
        return hashlib.sha256(f"stored {len(self)} {self.files.digest}".encode()).hexdigest()

    def pieces(self, most: int) -> list[Piece]:
        """Return all rows in order, cut into pieces of at most `most` rows. Each piece lies within one row group."""
        found, first = [], 0
        for file, groups in enumerate(self.files.groups):
            for group, rows in enumerate(groups):
                count = -(-rows // most)
                cuts = [number * rows // count for number in range(count + 1)] if count else []
                found += [Piece(file, group, a, b, first + a) for a, b in pairwise(cuts)]
                first += rows
        return found

    def read(self, piece: Piece) -> Iterator[tuple[Transitions, Flags | None]]:
        """Yield the rows of a piece in chunks, each with flags for episode starts (None if these are unknown).

        The first row of a file counts as an episode start. The first row of any other row group does not.
        """
        earlier = piece.start > 0
        before: Transitions | None = None
        for rows in self.files.chunks(piece.file, piece.group, piece.start - earlier, piece.stop):
            begins = _begins(rows, before, alone=piece.group == 0)
            before = rows
            if earlier:  # the first row was read only to check whether the next row continues its episode
                if len(rows) == 1:
                    earlier = False
                    continue
                rows, begins = rows[1:], None if begins is None else begins[1:]
                earlier = False
            yield rows, begins

    def sample(self, count: int, seed: int) -> Sample:
        """Read `count` random rows, or all rows if there are fewer.

        If there are many more rows, only some randomly chosen row groups are read, with the same share of rows from
        each.
        """
        count, random = min(count, len(self)), np.random.default_rng((seed, _SAMPLE))
        groups = self.pieces(len(self))
        order = random.permutation(len(groups))
        rows = np.array([piece.stop - piece.start for piece in groups])
        used = int(np.searchsorted(np.cumsum(rows[order]), min(_SPREAD * count, len(self)))) + 1
        chosen = np.sort(order[:used])
        picked = np.sort(random.choice(int(rows[chosen].sum()), count, replace=False))
        parts, places, begins, done = [], [], [], 0
        for place in chosen:
            first = groups[place].first
            for chunk, starts in self.read(groups[place]):
                low, high = np.searchsorted(picked, (done, done + len(chunk)))
                local = picked[low:high] - done
                done, first, before = done + len(chunk), first + len(chunk), first
                if len(local):
                    parts.append(chunk[local])
                    places.append(before + local)
                begins.append(None if starts is None else starts[local])
        known = [starts for starts in begins if starts is not None]
        firsts = np.concatenate(known) if len(known) == len(begins) else None
        return Sample(Transitions.concatenate(parts), np.concatenate(places), firsts)

    def stretches(self, count: int, seed: int) -> Transitions:
        """Read at most `count` rows, as stretches of consecutive rows from random places. Stretches show episodes."""
        pieces = self.pieces(max(1, count // PIECES))
        order = np.random.default_rng((seed, _SAMPLE)).permutation(len(pieces))
        ends = np.cumsum([pieces[place].stop - pieces[place].start for place in order])
        chosen = np.sort(order[: np.searchsorted(ends, count, side="right")])
        return Transitions.concatenate([rows for place in chosen for rows, _ in self.read(pieces[place])])

    def order(self, piece_rows: int, seed: int, without: Numbers) -> Order:
        """Return an endless order of all rows except those with the numbers `without`."""
        return Order(self, self.pieces(piece_rows), seed, np.sort(without))


def _begins(rows: Transitions, before: Transitions | None, alone: bool) -> Flags | None:
    """Return which rows are episode starts, or None if that is unknown.

    `before` is the previous chunk. If it is None, the first row counts as a start if `alone` is true.
    """
    ids = episode_ids(rows)
    if ids is None:
        return None
    first = alone
    if before is not None:
        follows = np.array_equal(before.next_observation[-1], rows.observation[0])
        first = bool(episode_ends(before)[-1]) or not follows
    return np.concatenate([[first], ids[1:] != ids[:-1]])


class Order:
    """An endless order of rows. In each epoch, every row comes once. The pieces come in a new random order in each
    epoch, and the rows of a piece in their original order."""

    def __init__(self, stored: StoredRows, pieces: list[Piece], seed: int, without: Numbers) -> None:
        self._stored, self._pieces, self._seed, self._without = stored, pieces, seed, without
        left_out = [np.diff(np.searchsorted(without, _span(piece)))[0] for piece in pieces]
        self._rows = np.array([piece.stop - piece.start for piece in pieces]) - np.array(left_out)
        self._epoch = lru_cache(maxsize=2)(self._shuffled)

    def __len__(self) -> int:
        """Number of rows in an epoch."""
        return int(self._rows.sum())

    def parts(self, start: int, stop: int) -> Iterator[tuple[int, slice]]:
        """Yield the pieces at positions `start` to `stop` of the order: the number of each piece, and which of its
        rows."""
        while start < stop:
            epoch, offset = divmod(start, len(self))
            order, ends = self._epoch(epoch)
            at = int(np.searchsorted(ends, offset, side="right"))
            rows = int(self._rows[order[at]])
            low = offset - (int(ends[at]) - rows)
            high = min(rows, low + stop - start)
            yield int(order[at]), slice(low, high)
            start += high - low

    def _shuffled(self, epoch: int) -> tuple[Numbers, Numbers]:
        """Return the numbers of the pieces in the order of an epoch, and the positions after their last rows."""
        order = np.random.default_rng((self._seed, _ORDER, epoch)).permutation(len(self._pieces))
        return order, np.cumsum(self._rows[order])

    def read(self, number: int) -> tuple[Transitions, Flags | None]:
        """Return the rows of a piece that are not left out, and flags for episode starts (None if unknown)."""
        piece = self._pieces[number]
        parts, begins = zip(*self._stored.read(piece), strict=True)
        rows = parts[0] if len(parts) == 1 else Transitions.concatenate(parts)
        flags = None if any(each is None for each in begins) else np.concatenate(begins)
        low, high = np.searchsorted(self._without, _span(piece))
        if low == high:
            return rows, flags
        kept = np.ones(len(rows), bool)
        kept[self._without[low:high] - piece.first] = False
        return rows[kept], None if flags is None else flags[kept]


def _span(piece: Piece) -> tuple[int, int]:
    return piece.first, piece.first + piece.stop - piece.start


def stored_rows(source: Any, most: int = SAMPLE_ROWS) -> StoredRows | None:
    """Return the rows of a Parquet file or folder if there are more than `most`. Return None for all other sources."""
    if not isinstance(source, (str, os.PathLike)):
        return None
    path = Path(source).expanduser()
    if not (formats.is_parquet_folder(path) or (path.suffix.lower() in parquet.SUFFIXES and path.is_file())):
        return None
    files = parquet.look(path)
    return StoredRows(files) if len(files) > most else None


def read_at_most(source: Any, seed: int = 0, most: int = SAMPLE_ROWS) -> Transitions:
    """Read all rows of a source (see `formats.read`). If a Parquet file or folder has more than `most` rows, read at
    most `most` of them, as stretches from random places."""
    stored = stored_rows(source, most)
    if stored is None:
        return formats.read(source)
    rows = stored.stretches(most, seed)
    log.info("%s has %s rows; using %s of them, from random places", source, f"{len(stored):,}", f"{len(rows):,}")
    return rows

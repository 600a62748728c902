"""Ring buffer that keeps the newest `capacity` rows on a device."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from synther import compute
from synther.errors import ConfigError, DataError

_REDRAWS = 6
"""How often a draw of an excluded row is repeated. If 1 row in 20 is excluded, 1 draw in 10**9 returns one anyway."""


class Ring:
    """Ring buffer of rows (capacity, width). New rows overwrite the oldest ones."""

    def __init__(self, capacity: int, width: int, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        if capacity < 1:
            raise ConfigError(f"capacity must be at least 1, got {capacity}")
        self.capacity, self.device = capacity, device
        self._make_room(width, dtype)
        self.added = 0
        """Number of rows added so far."""

    def _make_room(self, width: int, dtype: torch.dtype) -> None:
        advice = "lower the capacity or the samples of the replay, or keep it on the CPU"
        with compute.working_on(self.device, advice), torch.inference_mode(False):  # rows may be added in any mode
            self.matrix = torch.empty(self.capacity, width, device=self.device, dtype=dtype)
        self._array = self.matrix.numpy() if self.device.type == "cpu" else None  # a view of it

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(self, rows: NDArray[Any]) -> None:
        """Add any number of rows (N, width), oldest first."""
        if rows.ndim != 2 or rows.shape[1] != self.matrix.shape[1]:
            raise DataError(f"rows have shape {tuple(rows.shape)}: expected (rows, {self.matrix.shape[1]})")
        count = rows.shape[0]
        newest = rows if count <= self.capacity else rows[-self.capacity :]
        kept = newest.shape[0]
        first = (self.added + count - kept) % self.capacity
        until_end = min(kept, self.capacity - first)
        self._put(first, newest[:until_end])
        if until_end < kept:
            self._put(0, newest[until_end:])
        self.added += count

    def _put(self, first: int, rows: NDArray[Any]) -> None:
        if self._array is not None:  # ten times faster than PyTorch for a single row
            self._array[first : first + len(rows)] = rows
        else:
            self.matrix[first : first + len(rows)] = torch.from_numpy(rows)

    def sample(self, count: int, generator: torch.Generator, without: Tensor | None = None) -> Tensor:
        """Draw `count` rows (count, width) uniformly, with replacement.

        `without` is a mask (capacity,) of places that are not drawn. It may only mark a small share of them, see
        `_REDRAWS`.
        """
        if not self.added:
            raise DataError("there are no rows to sample from: add some first")
        drawn = self._places(count, generator)
        if without is not None:
            for _ in range(_REDRAWS):
                drawn = torch.where(without[drawn], self._places(count, generator), drawn)
        return self.matrix[drawn]

    def _places(self, count: int, generator: torch.Generator) -> Tensor:
        return torch.randint(len(self), (count,), generator=generator, device=self.device)

    def by_age(self) -> Tensor:
        """Return a copy of all rows (N, width), oldest first."""
        oldest = self.added % self.capacity if self.added > self.capacity else 0
        return torch.cat([self.matrix[oldest : len(self)], self.matrix[:oldest]])

    def restore(self, rows: Tensor, added: int) -> None:
        """Restore a ring from the `rows` that its `by_age` returned when `added` rows had been added.

        Each row gets its old index.
        """
        if len(rows) != min(added, self.capacity):
            expected = min(added, self.capacity)
            raise DataError(f"expected the {expected} rows of a ring after {added} were added, got {len(rows)}")
        self.added = added - len(rows)
        self.add(rows.numpy())

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, with the rows as a NumPy array.

        Pickling the tensor would move it to shared memory, in this process too. `_array` would then no longer be a
        view of it.
        """
        return {**self.__dict__, "matrix": self.matrix[: len(self)].cpu().numpy(), "_array": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        rows = torch.from_numpy(state["matrix"])
        self._make_room(rows.shape[1], rows.dtype)
        self.matrix[: len(rows)] = rows

"""Replay buffers of online agents, one per seed. Real rows are added at every step, synthetic rows all at once.

All rows are in one tensor. The number of rows, and whether there are synthetic rows, are in tensors too, so that a
captured update stays valid when they change. Read `SeedReplayBuffer` (storage), then `BatchSampler` (drawing).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from synther.agents.rows import Arm, Batch
from synther.compute import put
from synther.errors import ConfigError, DataError
from synther.n_step import windows

Rows = TypeVar("Rows", NDArray[np.float32], Tensor)


class SeedReplayBuffer:
    """Stores the newest `capacity` real rows of each of S members, and `samples` synthetic rows if generated.

    A row consists of observation, action, reward, terminal and next observation, in the units of the environment. `low`
    and `high` (A,) are the action bounds. Actions are stored scaled to [-1, 1]. `prior` (P, width) are rows of earlier
    data, which all members share.
    """

    def __init__(
        self,
        members: int,
        observation: int,
        low: ArrayLike,
        high: ArrayLike,
        *,
        capacity: int,
        samples: int,
        device: torch.device,
        prior: NDArray[np.float32] | None = None,
    ) -> None:
        if capacity < 1 or samples < 0:
            raise ConfigError(f"expected capacity >= 1 and samples >= 0, got {capacity} and {samples}")
        self.low, self.high = np.array(low, np.float32), np.array(high, np.float32)
        if self.low.ndim != 1 or self.low.shape != self.high.shape or not _apart(self.low, self.high):
            raise DataError(f"every action needs finite bounds with low < high, got {low!r} and {high!r}")
        self.observation_size, self.action_size = observation, len(self.low)
        self.capacity, self.samples, self.device = capacity, samples, device
        self.matrix = torch.zeros(members, capacity + samples, 2 * observation + self.action_size + 2, device=device)
        self.added = np.zeros(members, np.int64)
        """Number of real rows added to each member so far."""
        self.generated = [False] * members
        """Whether each member has synthetic rows."""
        self.filled = torch.zeros(members, 1, 1, dtype=torch.int64, device=device)
        self.prior: Tensor | None = None
        if prior is not None:
            if prior.ndim != 2 or prior.shape[1] != self.width:
                found = f"{observation} observation and {self.action_size} action columns"
                raise DataError(f"prior rows have shape {prior.shape}: expected (rows, {self.width}), for {found}")
            scaled = self._scaled(np.array(prior, np.float32), self.low, self.high, prior.shape)
            self.prior = torch.from_numpy(scaled).to(device)

    @property
    def width(self) -> int:
        """Number of columns of a row."""
        return self.matrix.shape[2]

    def __len__(self) -> int:
        """Return the number of real rows of the member that has the fewest."""
        return min(int(self.added.min()), self.capacity)

    def add(self, rows: NDArray[np.float32]) -> None:
        """Add N real rows per member (S, N, width), oldest first. All members must have the same number of rows."""
        self._add(slice(0, len(self.matrix)), rows)

    def add_each(self, rows: Sequence[NDArray[np.float32]]) -> None:
        """Add real rows (N, width) to each member, oldest first. N may differ between members."""
        for member, member_rows in enumerate(rows):
            if len(member_rows):
                self._add(slice(member, member + 1), member_rows[None])

    def _add(self, members: slice, rows: NDArray[np.float32]) -> None:
        """Add the same number of rows to each of `members`, and overwrite the oldest rows if the buffer is full."""
        shape = (members.stop - members.start, rows.shape[1] if rows.ndim == 3 else 1, self.width)
        scaled = self._scaled(np.array(rows, np.float32), self.low, self.high, shape)
        newest = scaled[:, -self.capacity :]
        count = newest.shape[1]
        added = int(self.added[members.start]) + rows.shape[1]
        first = (added - count) % self.capacity
        until_end = min(count, self.capacity - first)
        put(newest[:, :until_end], self.matrix[members, first : first + until_end])
        if until_end < count:
            put(newest[:, until_end:], self.matrix[members, : count - until_end])
        self.added[members] = added
        self.filled[members].fill_(min(added, self.capacity))

    def generate(self, member: int, rows: NDArray[np.float32]) -> None:
        """Replace a member's synthetic rows by new ones (samples, width)."""
        # They are scaled on the device, because they are many. They are stored only after they are checked.
        new = torch.from_numpy(np.require(rows, np.float32, "W")).to(self.device, copy=True)
        low, high = (torch.from_numpy(bound).to(self.device) for bound in (self.low, self.high))
        self.matrix[member, self.capacity :].copy_(self._scaled(new, low, high, (self.samples, self.width)))
        self.generated[member] = True

    def scaled(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a copy of rows (..., width) with actions scaled to [-1, 1]."""
        return self._scaled(np.array(rows, np.float32), self.low, self.high, rows.shape)

    def batch(self, rows: Tensor) -> Batch:
        """Return rows (S, ..., width) as a `Batch`."""
        return Batch.of(rows, self.observation_size, self.action_size)

    def _scaled(self, rows: Rows, low: Rows, high: Rows, shape: tuple[int, ...]) -> Rows:
        """Scale the actions of rows (NumPy or PyTorch) to [-1, 1], in place, and check all values."""
        if tuple(rows.shape) != shape:
            raise DataError(f"expected rows of shape {shape}, got {tuple(rows.shape)}")
        place = slice(self.observation_size, self.observation_size + self.action_size)
        actions = (rows[..., place] - low) * (2 / (high - low)) - 1
        rows[..., place] = actions
        if not (abs(rows) < np.inf).all():  # False for NaN too
            raise DataError("a row has values that are not finite")
        if (abs(actions) > 1 + 1e-4).any():
            raise DataError(f"an action leaves its bounds {self.low.tolist()} and {self.high.tolist()}: clip it")
        return rows


class NStepRows:
    """Turns the rows of consecutive steps into n-step rows. A row is returned as soon as its n steps are known."""

    def __init__(self, rows: SeedReplayBuffer, n: int, discount: float) -> None:
        self.n, self.discount = n, discount
        self._reward = rows.observation_size + rows.action_size
        # The rows of each member that still wait for some of their n steps.
        self._open = [np.zeros((0, rows.width), np.float32) for _ in rows.matrix]

    def add(self, rows: NDArray[np.float32], ends: NDArray[np.bool_] | None = None) -> list[NDArray[np.float32]]:
        """Add N steps (S, N, width). Return the n-step rows (M, width) of each member that are now complete.

        `ends` (S, N) marks rows after which the environment was reset. Terminal rows need no mark.
        """
        expected = len(self._open), rows.shape[1], self._open[0].shape[1]
        if rows.shape != expected:
            raise DataError(f"expected rows of shape {expected}, got {rows.shape}")
        parts = [np.concatenate(pair) for pair in zip(self._open, rows, strict=True)]
        over = [part[:, self._reward + 1] > 0 for part in parts]
        for member_over, marked in zip(over, np.zeros(rows.shape[:2], bool) if ends is None else ends, strict=True):
            member_over[-rows.shape[1] :] |= marked
        starts = np.cumsum([0, *map(len, parts)])
        every, ended = np.concatenate(parts), np.concatenate(over)
        ended[starts[1:] - 1] = True
        terminal = every[:, self._reward + 1] > 0
        found = windows(ended, terminal, every[:, self._reward], self.n, self.discount)
        made = every[found.first]
        made[:, self._reward] = found.reward
        made[:, self._reward + 1 :] = every[found.last, self._reward + 1 :]
        for member, (part, member_over) in enumerate(zip(parts, over, strict=True)):
            since = int(np.flatnonzero(member_over)[-1]) + 1 if member_over.any() else 0
            self._open[member] = part[max(since, len(part) - self.n + 1) :].copy()
        return np.split(made, np.searchsorted(found.first, starts[1:-1]))


class BatchSampler:
    """Draws batches. Real rows come first in a batch, then synthetic rows, with the fraction `ratio`.

    A member without synthetic rows gets only real rows. If there are prior rows, half of the real rows are drawn from
    them, as in RLPD (Ball et al. 2023).
    """

    def __init__(self, rows: SeedReplayBuffer, batch: int, ratio: float) -> None:
        if not 0 <= ratio <= 1:
            raise ConfigError(f"ratio, the synthetic fraction of a batch, must lie in [0, 1], got {ratio}")
        self.rows = rows
        self.real = Arm((0, 1), (1 - ratio, ratio)).counts(batch)[0] if rows.samples else batch
        self.prior = 0 if rows.prior is None else self.real // 2
        members, length = rows.matrix.shape[:2]
        self._first = torch.arange(0, members * length, length, device=rows.device).view(-1, 1, 1)
        self._synthetic = torch.zeros(members, 1, batch, dtype=torch.bool, device=rows.device)
        # A tensor, because a Python number would be copied to the GPU during capture.
        self._samples = torch.tensor(rows.samples, device=rows.device)

    def settle(self) -> None:
        """Draw synthetic rows from now on for the members that have them."""
        for member, has_samples in enumerate(self.rows.generated):
            self._synthetic[member, :, self.real :] = has_samples

    def fill(self, random: Tensor) -> Tensor:
        """Return rows (S, updates, B, width), drawn uniformly with large random integers (S, updates, B)."""
        rows = self.rows
        lengths = torch.where(self._synthetic, self._samples, rows.filled)
        places = self._first + self._synthetic * rows.capacity + random % lengths
        picked = rows.matrix.view(-1, rows.width).index_select(0, places.flatten()).view(*places.shape, rows.width)
        if rows.prior is not None and self.prior:
            chosen = (random[..., : self.prior] % len(rows.prior)).flatten()
            picked[..., : self.prior, :] = torch.unflatten(
                rows.prior.index_select(0, chosen), 0, (*places.shape[:-1], self.prior)
            )
        return picked


def _apart(low: NDArray[np.float32], high: NDArray[np.float32]) -> bool:
    """Return whether all bounds are finite, and each low is below its high."""
    return bool(np.isfinite([low, high]).all() and (low < high).all())

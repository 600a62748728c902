"""The rows that online members learn from: real ones that come with every step, synthetic ones that come all at once.

All of them lie in one tensor. What changes while rows come in (how many there are, whether some are synthetic) is in
tensors too, so that a captured update stays valid.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from synther.agents.rows import Arm, Batch
from synther.errors import ConfigError, DataError

Rows = TypeVar("Rows", NDArray[np.float32], Tensor)


class SeedReplayBuffer:
    """For each of S members the newest `capacity` real rows, and `samples` synthetic ones once there are some.

    A row is observation, action, reward, terminal, next observation, in the environment's own numbers; `low` and `high`
    (A,) are the bounds of its actions, which the agents see within [-1, 1].
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
    ) -> None:
        if capacity < 1 or samples < 0:
            raise ConfigError(f"expected capacity >= 1 and samples >= 0, got {capacity} and {samples}")
        self.low, self.high = np.array(low, np.float32), np.array(high, np.float32)
        if self.low.ndim != 1 or self.low.shape != self.high.shape or not _apart(self.low, self.high):
            raise DataError(f"every action needs finite bounds, low < high, got {low!r} and {high!r}")
        self.observation_size, self.action_size = observation, len(self.low)
        self.capacity, self.samples, self.device = capacity, samples, device
        self.matrix = torch.zeros(members, capacity + samples, 2 * observation + self.action_size + 2, device=device)
        self.added = 0
        """Real rows that every member was ever given."""
        self.generated = [False] * members
        """Whose synthetic rows are there."""
        self.filled = torch.zeros((), dtype=torch.int64, device=device)

    @property
    def width(self) -> int:
        return self.matrix.shape[2]

    def __len__(self) -> int:
        """Real rows that every member has."""
        return min(self.added, self.capacity)

    def add(self, rows: NDArray[np.float32]) -> None:
        """N more real rows for every member (S, N, width), oldest first."""
        shape = (len(self.matrix), rows.shape[1] if rows.ndim == 3 else 1, self.width)
        scaled = self._scaled(np.array(rows, np.float32), self.low, self.high, shape)
        newest = torch.from_numpy(scaled)[:, -self.capacity :]
        count = newest.shape[1]
        first = (self.added + rows.shape[1] - count) % self.capacity
        until_end = min(count, self.capacity - first)
        self.matrix[:, first : first + until_end].copy_(newest[:, :until_end])
        if until_end < count:
            self.matrix[:, : count - until_end].copy_(newest[:, until_end:])
        self.added += rows.shape[1]
        self.filled.fill_(len(self))

    def generate(self, member: int, rows: NDArray[np.float32]) -> None:
        """Put synthetic rows (samples, width) in the place of a member's old ones."""
        # They are many, and scaled where they go; but not in their place before it is known that they are right.
        own = torch.from_numpy(np.require(rows, np.float32, "W")).to(self.device, copy=True)
        low, high = (torch.from_numpy(bound).to(self.device) for bound in (self.low, self.high))
        self.matrix[member, self.capacity :].copy_(self._scaled(own, low, high, (self.samples, self.width)))
        self.generated[member] = True

    def batch(self, rows: Tensor) -> Batch:
        """Rows (S, ..., width) by name."""
        return Batch.of(rows, self.observation_size, self.action_size)

    def _scaled(self, own: Rows, low: Rows, high: Rows, shape: tuple[int, ...]) -> Rows:
        """Rows that are nobody else's, in NumPy or PyTorch, changed so that their actions lie within [-1, 1]."""
        if tuple(own.shape) != shape:
            raise DataError(f"expected rows of shape {shape}, got {tuple(own.shape)}")
        place = slice(self.observation_size, self.observation_size + self.action_size)
        actions = (own[..., place] - low) * (2 / (high - low)) - 1
        own[..., place] = actions
        if not (abs(own) < np.inf).all():  # nor is it where one is no number
            raise DataError("a row has values that are not finite numbers")
        if (abs(actions) > 1 + 1e-4).any():
            raise DataError(f"an action leaves its bounds {self.low.tolist()} and {self.high.tolist()}: clip it")
        return own


class BatchSampler:
    """From which of a member's rows each place in its batches is filled: real ones first, then the synthetic share.

    A member without synthetic rows fills all places with real ones.
    """

    def __init__(self, rows: SeedReplayBuffer, batch: int, ratio: float) -> None:
        if not 0 <= ratio <= 1:
            raise ConfigError(f"ratio, the synthetic share of a batch, must lie in [0, 1], got {ratio}")
        self.rows = rows
        self.real = Arm((0, 1), (1 - ratio, ratio)).counts(batch)[0] if rows.samples else batch
        members, length = rows.matrix.shape[:2]
        self._first = torch.arange(0, members * length, length, device=rows.device).view(-1, 1, 1)
        self._synthetic = torch.zeros(members, 1, batch, dtype=torch.bool, device=rows.device)
        self._samples = torch.tensor(rows.samples, device=rows.device)  # a number would be copied while it is captured

    def settle(self) -> None:
        """Take into account who has synthetic rows by now."""
        for member, there in enumerate(self.rows.generated):
            self._synthetic[member, :, self.real :] = there

    def fill(self, random: Tensor) -> Tensor:
        """Rows (S, updates, B, width) for large random numbers (S, updates, B), each row as likely as any other."""
        rows = self.rows
        lengths = torch.where(self._synthetic, self._samples, rows.filled)
        places = self._first + self._synthetic * rows.capacity + random % lengths
        picked = rows.matrix.view(-1, rows.width).index_select(0, places.flatten())
        return picked.view(*places.shape, rows.width)


def _apart(low: NDArray[np.float32], high: NDArray[np.float32]) -> bool:
    return bool(np.isfinite([low, high]).all() and (low < high).all())

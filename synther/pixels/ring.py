"""Ring buffers of frames for online pixel agents. The device keeps the newest frames of each member.

A new record overwrites the oldest one. An agent can learn from a decision as soon as all records of its n steps have
been added, and until the first frame of its observation is overwritten.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from synther.compute import sent
from synther.errors import ConfigError, DataError
from synther.pixels.encoder import Frame
from synther.pixels.frames import STACK, stack_of
from synther.pixels.store import FrameStore
from synther.pixels.vector_env import Records

Numbers = NDArray[np.int64]


class FrameRing(FrameStore):
    """Keeps the newest `capacity` records of each of S `members`, including resets. Frames have the `size` (C, H, W).

    The entries of a decision are written when the last of its `nstep` records is added. Their index is the index of the
    record before its action: member * capacity + record number % capacity.
    """

    def __init__(
        self,
        members: int,
        size: Frame,
        low: ArrayLike,
        high: ArrayLike,
        nstep: int,
        discount: float,
        *,
        capacity: int,
        device: torch.device,
    ) -> None:
        if capacity < nstep + STACK:
            raise ConfigError(f"capacity must be at least {nstep + STACK} frames, got {capacity}")
        (channels, height, width), places = size, members * capacity
        self.frame = STACK * channels, height, width
        self.low, self.high = (torch.tensor(np.asarray(bound, np.float32), device=device) for bound in (low, high))
        self.images = torch.zeros(places, height, width, channels, dtype=torch.uint8, device=device)
        self.stack, self.next_stack = torch.zeros(2, places, STACK, dtype=torch.int64, device=device)
        self.action = torch.zeros(places, len(self.low), device=device)
        self.reward, self.terminal = torch.zeros(2, places, device=device)
        self.capacity, self._nstep, self._discount = capacity, nstep, discount
        self.added: Numbers = np.zeros(members, np.int64)
        """Number of records added to each member so far. (S,)"""
        self._begun: Numbers = np.zeros(members, np.int64)  # number of the first record of the current episode
        # The newest `nstep` records, for the sum of their rewards. Their index is record number % nstep.
        self._actions = np.zeros((members, nstep, len(self.low)), np.float32)
        self._rewards, self._discounts = np.zeros((2, members, nstep), np.float32)
        # Decisions to learn from, in order: their indices, and the number of the oldest record that each one needs.
        self._listed = torch.zeros(members, capacity, dtype=torch.int64, device=device)
        self._needed: Numbers = np.zeros((members, capacity), np.int64)
        self._ready, self._gone = np.zeros((2, members), np.int64)  # decisions listed so far, and dropped so far

    @property
    def device(self) -> torch.device:
        return self.images.device

    @property
    def counts(self) -> Numbers:
        """Number of decisions that each member can learn from now. (S,)"""
        return self._ready - self._gone

    @property
    def gone(self) -> Numbers:
        """Number of decisions of each member that were overwritten. (S,)"""
        return self._gone.copy()

    def __len__(self) -> int:
        """Number of decisions that the member with the fewest decisions can learn from."""
        return int(self.counts.min())

    def add(self, records: Records, who: Numbers | None = None) -> None:
        """Add one record for each of the members `who` (None: all). It follows the member's previous record."""
        who = np.arange(len(self.added)) if who is None else who
        at = self.added[who]  # number of the new record
        if not records.first[at == 0].all():
            raise DataError("the first record of a member is not a reset: expected whole episodes")
        self._begun[who] = np.where(records.first, at, self._begun[who])
        slot = at % self._nstep
        self._actions[who, slot], self._rewards[who, slot] = records.action, records.reward
        self._discounts[who, slot] = records.discount
        images = np.ascontiguousarray(records.image.transpose(0, 2, 3, 1))
        self.images[self._places(who, at)] = sent(images, self.device)
        self.added[who] += 1
        is_complete = at - self._nstep >= self._begun[who]  # whether the record completes a decision
        if is_complete.any():
            self._list(who[is_complete], at[is_complete])
        self._forget()

    def seen(self) -> Tensor:
        """Return the indices (S, 3) of the frames of each member's current observation."""
        if self.added.min() < 1:
            raise DataError("a member has no records yet: add its first one")
        who = np.arange(len(self.added))
        return self._places(who[:, None], stack_of(self.added - 1, self._begun))

    def at(self, numbers: Tensor) -> Tensor:
        """Convert numbers of decisions (S, ...), counted from each member's oldest decision, to their indices."""
        places = (numbers.flatten(1) + sent(self._gone, self.device).unsqueeze(1)) % self.capacity
        return self._listed.gather(1, places).view_as(numbers)

    def pick(self, random: Tensor) -> Tensor:
        if len(self) < 1:
            raise DataError(
                f"there is nothing to learn from yet: no episode has {self._nstep} decisions; raise learning_starts"
            )
        counts = sent(self.counts, self.device)
        return self.at(random % counts.view(-1, *[1] * (random.dim() - 1)))

    def _list(self, who: Numbers, newest: Numbers) -> None:
        """Write the entries of one decision for each of the members `who`. Its last record has the number `newest`."""
        record, begun = newest - self._nstep, self._begun[who]
        slots = (record[:, None] + 1 + np.arange(self._nstep)) % self._nstep
        rewards, discounts = self._rewards[who[:, None], slots], self._discounts[who[:, None], slots]
        reward, worth = np.zeros(len(who)), np.ones(len(who))
        for step in range(self._nstep):
            reward += worth * rewards[:, step]
            worth *= self._discount * discounts[:, step]
        places = self._places(who, record)
        self.stack[places] = self._places(who[:, None], stack_of(record, begun))
        self.next_stack[places] = self._places(who[:, None], stack_of(newest, begun))
        action = sent(self._actions[who, slots[:, 0]], self.device)
        self.action[places] = ((action - self.low) * (2 / (self.high - self.low)) - 1).clamp_(-1, 1)
        self.reward[places] = sent(reward.astype(np.float32), self.device)
        lost = 1 - worth / self._discount**self._nstep
        self.terminal[places] = sent(lost.astype(np.float32), self.device)
        line = self._ready[who] % self.capacity
        self._listed[sent(who, self.device), sent(line, self.device)] = places
        self._needed[who, line] = stack_of(record, begun)[:, 0]
        self._ready[who] += 1

    def _forget(self) -> None:
        """Drop decisions if their oldest frame was overwritten."""
        members, oldest = np.arange(len(self.added)), self.added - self.capacity
        while True:
            stale = (self._gone < self._ready) & (self._needed[members, self._gone % self.capacity] < oldest)
            if not stale.any():
                return
            self._gone[stale] += 1

    def _places(self, who: Numbers, numbers: Numbers) -> Tensor:
        """Return the indices of records, from their members and their numbers."""
        return sent(who * self.capacity + numbers % self.capacity, self.device)

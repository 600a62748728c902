"""`SyntheticReplay`: a replay buffer for online agents. A share of each batch is synthetic."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from synther.data import spaces
from synther.data.spaces import Space
from synther.data.transitions import FIELDS, Transitions
from synther.errors import DataError
from synther.replay.adapting import Stored
from synther.replay.columns import Batch, Columns
from synther.replay.rows import ReplayOptions, SyntheticRows, check_options, whole
from synther.replay.shortcut import Given
from synther.replay.store import Store


class SyntheticReplay(SyntheticRows):
    """Replay buffer with the newest `capacity` real rows and `samples` synthetic rows.

    The synthetic rows are generated anew after every `refresh_every` real rows.

        replay = SyntheticReplay(1_000_000)
        replay.add(observation, action, reward, next_observation, terminal)
        batch = replay.sample(256)

    `ratio` is the synthetic fraction of a batch. Default `samples`: a million on a GPU, 100,000 on a CPU. `preset` is
    the name of a preset or a `Settings`. `refit="warm"` starts each fit from the previous weights and stops early;
    "scratch" fits a new network, as in the paper. A refresh replaces the fraction `replace` of the synthetic rows,
    oldest first. With `background`, it runs in another process.

    With `relevance`, synthetic rows resemble the most relevant real rows. Relevance is "reward", "return",
    "curiosity", or a function that returns one number for each row. `relevant` is the share of the real rows that
    counts as relevant. `guidance` above 1 generates even more relevant rows.

    `refresh="auto"` refreshes when the generator's loss rises on new rows, instead of at fixed times. `ratio="auto"`
    adapts the ratio: it compares the critics' TD errors in rows that no batch contains with those in other rows.
    `td_error` is a function that returns the critics' TD error of each row.
    """

    withholds = True

    def __init__(
        self,
        capacity: int,
        *,
        action_space: Space | None = None,
        observation_space: Space | None = None,
        **options: Unpack[ReplayOptions],
    ) -> None:
        check_options(options, "capacity", "action_space", "observation_space")
        super().__init__(**options)
        self.capacity = whole("capacity", capacity)
        self.spaces: dict[str, Any] = {"action_space": action_space, "observation_space": observation_space}
        for name, space in self.spaces.items():
            spaces.check_parts(space, name)
        self._store: Store | None = None
        empty = torch.zeros(self.capacity if self.adapts_ratio else 0, dtype=torch.bool, device=self.device)
        self._marks = empty, 0  # which places hold held-out rows, and up to which number of added rows this is known

    @property
    def store(self) -> Store:
        """The store of the real rows. Raises an error if no row was added, because the columns are then unknown."""
        if self._store is None:
            raise DataError("the replay is empty: add rows first")
        return self._store

    @property
    def added(self) -> int:
        """Number of real rows added so far."""
        return 0 if self._store is None else self._store.real.added

    def __repr__(self) -> str:
        self.collect()
        synthetic = 0 if self.synthetic is None else len(self.synthetic)
        rows = f"{len(self):,} of {self.capacity:,} real rows, {synthetic:,} synthetic"
        return f"SyntheticReplay({rows}, ratio {self.mixture.ratio:g}, on {self.device})"

    def __len__(self) -> int:
        """Number of real rows in the buffer."""
        return 0 if self._store is None else len(self._store.real)

    def add(
        self,
        observation: ArrayLike,
        action: ArrayLike,
        reward: ArrayLike,
        next_observation: ArrayLike,
        terminal: ArrayLike,
        timeout: ArrayLike | None = None,
    ) -> None:
        """Add one row or N rows.

        One row: observations (O,), an action (A,) or an integer, the reward as a number, `terminal` and `timeout` as
        flags. N rows: the same with a leading axis N. If a row is invalid, an error is raised and no row is added. A
        refresh that is due runs in this call.

        Reset rows of vector environments are left out: in the step after an episode, Gymnasium's vector environments
        (autoreset mode NEXT_STEP) return a row that leads to the next episode, with reward 0. Such rows are recognised
        if each call adds one row of every environment.
        """
        given = (observation, action, reward, next_observation, terminal, timeout)
        if self._store is None or not self._store.add_fast(given):
            self._add_checked(given)
        self.collect()
        if self.due(self.added, self._stored):
            self.refresh()

    def sample(self, batch_size: int) -> Batch:
        """Draw `batch_size` rows with replacement.

        Before the first refresh all rows are real. After it, the share of synthetic rows is the ratio.
        """
        count, store = whole("batch_size", batch_size), self.store
        self.collect()
        without = self._withheld() if self.adapts_ratio else None
        return store.columns.batch(*self.mixture.draw(store.real, self.synthetic, count, self.generator, without))

    def transitions(self) -> Transitions:
        """Return the real rows, oldest first.

        Timeouts are included if they were always given and each row continues the previous one or starts an episode.
        """
        return self.store.transitions()

    def refresh(self) -> None:
        """Fit on the real rows and generate synthetic rows now, or start both in the background.

        A refresh that is already running in the background is cancelled.
        """
        stored = self._stored()
        self.refresh_on(stored.rows, self.added, gone=stored.gone)

    def _stored(self) -> Stored:
        store = self.store
        return Stored(store.columns.transitions(store.real.by_age().cpu().numpy()), self.added - len(self))

    def _withheld(self) -> Tensor:
        """Return a mask (capacity,) of the places with held-out rows, which no batch contains."""
        marks, known = self._marks
        if known < self.added:
            first = max(known, self.added - self.capacity)
            numbers = np.arange(first, self.added)
            held_out = torch.from_numpy(self.held_out_numbers(numbers)).to(self.device)
            marks[torch.from_numpy(numbers % self.capacity).to(self.device)] = held_out
            self._marks = marks, self.added
        return marks

    def _add_checked(self, given: Given) -> None:
        """Add rows by the slow path, which checks everything. It is used for new types or shapes and invalid rows."""
        fields: dict[str, Any] = dict(zip(FIELDS, given, strict=True))
        try:
            several = np.ndim(fields["observation"]) != 1
        except ValueError:
            raise DataError(
                f"observation is a {type(given[0]).__name__} of unequal parts: expected numbers; env.reset() and "
                "env.step() of Gymnasium return a tuple with the observation first"
            ) from None
        if not several:
            fields = {name: None if value is None else _one_row(value) for name, value in fields.items()}
        rows = Transitions(**fields, **self.spaces)
        store = self._store or Store(Columns.of(rows), self.capacity, self.device)
        if self._store is None:
            self._make_room(store.columns)
        store.add(rows, several=several)
        store.shortcut.learn(given, len(rows))
        self._store = store

    def _described(self) -> dict[str, Any]:
        described = super()._described()
        described["options"] |= {name: spaces.to_json(space) for name, space in self.spaces.items()}
        described["options"]["capacity"] = self.capacity
        if self._store is not None:
            described["store"] |= self._store.to_json()
        return described

    def _tensors(self) -> dict[str, Tensor]:
        return super()._tensors() | ({} if self._store is None else self._store.tensors())

    @classmethod
    def _given(cls, options: dict[str, Any]) -> dict[str, Any]:
        known = {name: spaces.from_json(options[name]) for name in ("action_space", "observation_space")}
        return {**options, **known}

    def _restore(self, store: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        super()._restore(store, tensors)
        self._store = Store.restored(store, tensors, self.device)


def _one_row(value: Any) -> Any:
    return value[None] if isinstance(value, Tensor) else np.asarray(value)[None]

"""Store real rows and their timeouts in a ring buffer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from synther.data.transitions import Transitions
from synther.replay.columns import Columns, Matrix
from synther.replay.ring import Ring
from synther.replay.shortcut import Given, Shortcut


class Store:
    """The newest `capacity` real rows on a device."""

    def __init__(self, columns: Columns, capacity: int, device: torch.device) -> None:
        self.columns, self.shortcut = columns, Shortcut(columns)
        self.real = Ring(capacity, columns.width, device)
        self.timeout = Ring(capacity, 1, torch.device("cpu"), torch.bool)  # not part of a batch
        self.timeouts_known = True
        self._next_step = True  # whether the rows may come from a vector environment with autoreset mode NEXT_STEP
        self._before: tuple[Matrix, NDArray[np.bool_]] | None = None  # last call: rows, and which ended an episode

    def add(self, rows: Transitions, *, several: bool = True) -> None:
        """Add real rows. If a row is invalid, none is added. `several`: whether the caller passed a leading axis."""
        self._put(self.columns.pack(rows), rows.timeout, several)

    def add_fast(self, given: Given) -> bool:
        """Add real rows by the fast path and return True. If it does not apply, add nothing and return False."""
        matrix = self.shortcut.pack(given)
        if matrix is None:
            return False
        self._put(matrix, given[-1], np.ndim(given[0]) > 1)
        return True

    def _put(self, matrix: Matrix, timeout: ArrayLike | None, several: bool) -> None:
        cut = np.zeros((len(matrix), 1), bool) if timeout is None else np.asarray(timeout, bool).reshape(-1, 1)
        reset = self._resets(matrix, cut[:, 0]) if several else None
        if reset is not None:
            matrix, cut = matrix[~reset], cut[~reset]
        self.real.add(matrix)
        self.timeout.add(cut)
        self.timeouts_known &= timeout is not None

    def _resets(self, matrix: Matrix, cut: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
        """Return a mask of the rows that are automatic resets of a vector environment, or None if there are none.

        A reset row starts at the next observation of the environment's previous row, which ended an episode.
        """
        before, self._before = self._before, (matrix, self._terminal(matrix) | cut)
        if not self._next_step or before is None or len(before[0]) != len(matrix) or not before[1].any():
            return None
        places, ended = self.columns.places, self._before[1]
        same = (matrix[:, places["observation"]] == before[0][:, places["next_observation"]]).all(1)
        reset: NDArray[np.bool_] = before[1] & same
        if (reset & (ended | (matrix[:, places["reward"].start] != 0))).any():
            self._next_step = False  # another autoreset mode: these rows are the first rows of episodes, not resets
            return None
        return reset if reset.any() else None

    def transitions(self) -> Transitions:
        """Return the real rows, oldest first.

        Timeouts are included if they were always given and each row continues the previous one or starts an episode.
        """
        matrix, timeout = self.real.by_age().cpu().numpy(), self.timeout.by_age()[:, 0].numpy()
        ended = self._terminal(matrix[:-1]) | timeout[:-1]
        known = self.timeouts_known and bool((ended | self._is_continued(matrix)).all())
        return self.columns.transitions(matrix, timeout if known else None)

    def _terminal(self, matrix: Matrix) -> NDArray[np.bool_]:
        return matrix[:, self.columns.places["terminal"].start] > 0

    def _is_continued(self, matrix: Matrix) -> NDArray[np.bool_]:
        """Return a mask (N - 1,) of the rows that the next row continues: it starts at their next observation."""
        places = self.columns.places
        same: NDArray[np.bool_] = (matrix[:-1, places["next_observation"]] == matrix[1:, places["observation"]]).all(1)
        return same

    def tensors(self) -> dict[str, Tensor]:
        """Return all rows and timeouts, oldest first, to be saved."""
        return {name: getattr(self, name).by_age() for name in ("real", "timeout")}

    def to_json(self) -> dict[str, Any]:
        """Return everything except the rows, as JSON values."""
        described = {"real": [self.real.capacity, self.real.added], "timeouts_known": self.timeouts_known}
        return described | {"columns": self.columns.to_json()}

    @classmethod
    def restored(cls, entry: Mapping[str, Any], tensors: Mapping[str, Tensor], device: torch.device) -> Store:
        """Restore a store from the results of `to_json` and `tensors`, with every row at its old index."""
        capacity, added = entry["real"]
        store = cls(Columns.from_json(entry["columns"]), capacity, device)
        store.timeouts_known = entry["timeouts_known"]
        store.real.restore(tensors["real"], added)
        store.timeout.restore(tensors["timeout"], added)
        return store

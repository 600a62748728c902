"""Real rows in a ring buffer, with what is known of their timeouts."""

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
        self._next_step = True  # whether a vector environment may reset itself in the step after an episode
        self._before: tuple[Matrix, NDArray[np.bool_]] | None = None  # the last call: rows, and which ended

    def add(self, rows: Transitions, *, several: bool = True) -> None:
        """Add real rows. If a row is invalid, none is added. `several` rows have come with a leading axis."""
        self._put(self.columns.pack(rows), rows.timeout, several)

    def add_alike(self, given: Given) -> bool:
        """Add real rows by the fast path if it applies; otherwise return False and add nothing."""
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
        """Which rows are the automatic reset of a vector environment. None if there is no such row."""
        before, self._before = self._before, (matrix, self._terminal(matrix) | cut)
        if not self._next_step or before is None or len(before[0]) != len(matrix) or not before[1].any():
            return None
        places, ended = self.columns.places, self._before[1]
        same = (matrix[:, places["observation"]] == before[0][:, places["next_observation"]]).all(1)
        found: NDArray[np.bool_] = before[1] & same
        if (found & (ended | (matrix[:, places["reward"].start] != 0))).any():
            self._next_step = False  # the environment resets in the same step, and these are first rows of episodes
            return None
        return found if found.any() else None

    def transitions(self) -> Transitions:
        """The real rows, oldest first.

        Timeouts are included if they were always given and each row continues the previous one or starts an episode.
        """
        matrix, timeout = self.real.by_age().cpu().numpy(), self.timeout.by_age()[:, 0].numpy()
        ended = self._terminal(matrix[:-1]) | timeout[:-1]
        known = self.timeouts_known and bool((ended | self._led(matrix)).all())
        return self.columns.transitions(matrix, timeout if known else None)

    def _terminal(self, matrix: Matrix) -> NDArray[np.bool_]:
        return matrix[:, self.columns.places["terminal"].start] > 0

    def _led(self, matrix: Matrix) -> NDArray[np.bool_]:
        """Which rows (except the last) have the next row's observation as their next observation."""
        places = self.columns.places
        led: NDArray[np.bool_] = (matrix[:-1, places["next_observation"]] == matrix[1:, places["observation"]]).all(1)
        return led

    def tensors(self) -> dict[str, Tensor]:
        """All rows, for saving."""
        return {name: getattr(self, name).by_age() for name in ("real", "timeout")}

    def to_json(self) -> dict[str, Any]:
        """Everything except the rows."""
        described = {"real": [self.real.capacity, self.real.added], "timeouts_known": self.timeouts_known}
        return described | {"columns": self.columns.to_json()}

    @classmethod
    def restored(cls, entry: Mapping[str, Any], tensors: Mapping[str, Tensor], device: torch.device) -> Store:
        """Restore a store from `to_json` and `tensors`, with every row at its old index."""
        capacity, added = entry["real"]
        store = cls(Columns.from_json(entry["columns"]), capacity, device)
        store.timeouts_known = entry["timeouts_known"]
        store.real.restore(tensors["real"], added)
        store.timeout.restore(tensors["timeout"], added)
        return store

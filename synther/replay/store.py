"""Real and synthetic rows with the same columns, each in a ring buffer."""

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
    """The newest `capacity` real and `samples` synthetic rows on a device."""

    def __init__(self, columns: Columns, capacity: int, samples: int, device: torch.device) -> None:
        self.columns, self.shortcut = columns, Shortcut(columns)
        self.real = Ring(capacity, columns.width, device)
        self.synthetic = Ring(samples, columns.width, device)
        self.timeout = Ring(capacity, 1, torch.device("cpu"), torch.bool)  # not part of a batch
        self.timeouts_known = True

    def add(self, rows: Transitions) -> None:
        """Add real rows. If a row is invalid, none is added."""
        self._put(self.columns.pack(rows), rows.timeout)

    def add_alike(self, given: Given) -> bool:
        """Add real rows by the fast path if it applies; otherwise return False and add nothing."""
        matrix = self.shortcut.pack(given)
        if matrix is None:
            return False
        self._put(matrix, given[-1])
        return True

    def _put(self, matrix: Matrix, timeout: ArrayLike | None) -> None:
        self.real.add(matrix)
        cut = np.zeros((len(matrix), 1), bool) if timeout is None else np.asarray(timeout).reshape(-1, 1)
        self.timeout.add(cut)
        self.timeouts_known &= timeout is not None

    def cut(self, row: int) -> None:
        """Mark a row (counted from the first ever added) as a timeout, if it is still there and not terminal."""
        place = row % self.real.capacity
        if row >= self.real.added - len(self.real) and not self.real.matrix[place, self.columns.places["terminal"]]:
            self.timeout.matrix[place] = True

    def goes_on_with(self, observation: Tensor) -> bool:
        """Whether the newest row's next observation is this one (O,)."""
        newest = self.real.matrix[(self.real.added - 1) % self.real.capacity].cpu()
        return torch.equal(newest[self.columns.places["next_observation"]], observation.to(torch.float32))

    def transitions(self, environments: int | None = None) -> Transitions:
        """The real rows, oldest first, grouped by environment if `environments` environments took turns.

        Timeouts are included if they were always given and each row continues the previous one or starts an episode.
        With `environments`, a row that does not lead to the next one is a timeout: the environment was reset there.
        """
        matrix, timeout = self.real.by_age().cpu().numpy(), self.timeout.by_age()[:, 0].numpy()
        if environments is not None and self.real.added % environments == 0:  # otherwise some rows come from elsewhere
            whose = np.arange(self.real.added - len(matrix), self.real.added) % environments
            order = np.argsort(whose, kind="stable")
            matrix, timeout = matrix[order], timeout[order]
            timeout[:-1] |= ((np.diff(whose[order]) != 0) | ~self._led(matrix)) & ~self._terminal(matrix[:-1])
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
        return {name: getattr(self, name).by_age() for name in ("real", "synthetic", "timeout")}

    def to_json(self) -> dict[str, Any]:
        """Everything except the rows."""
        rings = {"real": self.real, "synthetic": self.synthetic}
        described: dict[str, Any] = {name: [ring.capacity, ring.added] for name, ring in rings.items()}
        return described | {"columns": self.columns.to_json(), "timeouts_known": self.timeouts_known}

    @classmethod
    def restored(cls, entry: Mapping[str, Any], tensors: Mapping[str, Tensor], device: torch.device) -> Store:
        """Restore a store from `to_json` and `tensors`, with every row at its old index."""
        (capacity, real), (samples, synthetic) = entry["real"], entry["synthetic"]
        store = cls(Columns.from_json(entry["columns"]), capacity, samples, device)
        store.timeouts_known = entry["timeouts_known"]
        for ring, name, added in (
            (store.real, "real", real),
            (store.synthetic, "synthetic", synthetic),
            (store.timeout, "timeout", real),
        ):
            ring.restore(tensors[name], added)
        return store

"""`fingerprint`: a digest by which a data set is recognised again."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Protocol

import numpy as np

from synther.data import spaces
from synther.data.transitions import Transitions


class Known(Protocol):
    """Rows that are not in memory but have a stored digest."""

    @property
    def fingerprint(self) -> str:
        """The digest of the rows."""
        ...


def fingerprint(rows: Transitions | Known) -> str:
    """Return a digest of the values and spaces of `rows`. It shows whether a model or a checkpoint belongs to them."""
    if not isinstance(rows, Transitions):
        return rows.fingerprint
    known: list[Any] = [spaces.to_json(rows.observation_space), spaces.to_json(rows.action_space), rows.env_id]
    if rows.env_options is not None:
        known.append(rows.env_options)
    digest = hashlib.sha256(json.dumps(known).encode())
    for name, array in rows.arrays().items():
        digest.update(f"{name}{array.shape}{array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()

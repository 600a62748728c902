"""Rows as the matrix that a network is fitted on, and what leads back from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from synther.data.checks import check_rows
from synther.data.codes import Coding
from synther.data.layout import Layout
from synther.data.scaling import Scaler, resolve_kinds
from synther.data.transitions import Transitions
from synther.errors import DataError

_CHUNK_ROWS = 1 << 16


@dataclass(frozen=True)
class Prepared:
    """Rows as numbers of deviation 1 or so."""

    layout: Layout
    scaler: Scaler
    matrix: NDArray[np.float32]
    """The rows, packed and scaled. (N, D)"""
    rates: dict[int, float]
    """How often each two-valued column is set."""


def prepare(rows: Transitions, scaling: str | Mapping[str, str], coding: Coding, spikes: bool) -> Prepared:
    """Find out what columns `rows` have and how they are scaled, and do so."""
    check_rows(rows)
    layout = Layout.infer(rows, coding, spikes)
    packed = (layout.pack(chunk) for chunk in rows.chunks(_CHUNK_ROWS))
    scaler = Scaler.fit(packed, resolve_kinds(layout, scaling), layout.names, layout.twins)
    return Prepared(layout, scaler, *_scaled(rows, layout, scaler))


def _scaled(rows: Transitions, layout: Layout, scaler: Scaler) -> tuple[NDArray[np.float32], dict[int, float]]:
    """The matrix, and the rates of its two-valued columns."""
    matrix = np.empty((len(rows), layout.width), np.float32)
    binary = list(layout.binary_columns)
    ones = np.zeros(len(binary))
    for number, chunk in enumerate(rows.chunks(_CHUNK_ROWS)):
        packed = layout.pack(chunk)
        ones += packed[:, binary].sum(0)
        start = number * _CHUNK_ROWS
        with np.errstate(over="ignore"):
            matrix[start : start + len(chunk)] = scaler.transform(packed)
    finite = np.isfinite(matrix).all(0)
    if not finite.all():
        name = layout.names[int(np.argmin(finite))]
        raise DataError(f"{name} is too large for float32 once scaled: choose another scaling for it, or divide it")
    return matrix, dict(zip(binary, (ones / len(rows)).tolist(), strict=True))

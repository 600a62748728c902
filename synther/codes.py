"""Encode unordered integers as rows of -1 and +1 that a diffusion model can learn: one-hot, or as analog bits."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Matrix = NDArray[np.float64]
Coding = Literal["onehot", "bits"]
CODINGS: tuple[Coding, ...] = ("onehot", "bits")

_LARGEST = 1e300  # sums of a few dozen of these stay finite


def code_width(size: int, coding: Coding) -> int:
    """Return the number of matrix columns that encode `size` values."""
    return size if coding == "onehot" else (size - 1).bit_length()


def encode_index(index: Array, size: int, coding: Coding) -> Matrix:
    """Encode integers (N,) from 0 to size - 1 as rows of -1 and +1.

    "onehot" has one column for each value. "bits" are analog bits (Chen et al. 2022), the highest bit first.
    """
    if coding == "bits":
        shifts = np.arange(code_width(size, coding))[::-1]
        return np.asarray(2 * (index[:, None] >> shifts & 1) - 1, np.float64)
    rows = np.full((len(index), size), -1.0)
    rows[np.arange(len(index)), index] = 1.0
    return rows


def decode_index(matrix: Matrix, size: int, coding: Coding) -> NDArray[np.int64]:
    """Return the integer from 0 to size - 1 with the code nearest to each row. (N,)"""
    if coding == "onehot":
        return np.asarray(matrix.argmax(1), np.int64)
    return _nearest_bits(np.clip(matrix, -_LARGEST, _LARGEST), size)


def _nearest_bits(matrix: Matrix, size: int) -> NDArray[np.int64]:
    """Return the integer below `size` with the code of the largest inner product with each row. (N,)

    This needs no table of all codes. A valid code is either `size - 1` itself, or it has a first bit that differs from
    `size - 1`: there `size - 1` has 1 and the code has 0. All lower bits are free, and the signs of the row are the
    best choice for them. So there is only one candidate for each bit.
    """
    bits = matrix.shape[1]
    shifts = np.arange(bits)[::-1]
    top = (size - 1 >> shifts) & 1
    zeros = np.zeros((len(matrix), 1))
    above = np.concatenate([zeros, np.cumsum(matrix * (2.0 * top - 1.0), axis=1)], axis=1)  # (N, bits + 1)
    below = np.concatenate([np.cumsum(np.abs(matrix[:, ::-1]), axis=1)[:, ::-1], zeros], axis=1)
    branch = np.where(top == 1, above[:, :-1] - matrix + below[:, 1:], -np.inf)
    chosen = np.concatenate([branch, above[:, -1:]], axis=1).argmax(1)[:, None]  # `bits` stands for size - 1 itself
    place = np.arange(bits)
    code = np.where(place < chosen, top, (place > chosen) & (matrix > 0))
    return np.asarray((code.astype(np.int64) << shifts).sum(1), np.int64)

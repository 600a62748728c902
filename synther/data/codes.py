"""Integers without an order between them, as rows of -1 and +1 that a diffusion model can learn."""

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
    """How many matrix columns `size` values take."""
    return size if coding == "onehot" else (size - 1).bit_length()


def encode_index(index: Array, size: int, coding: Coding) -> Matrix:
    """0, ..., size - 1 (N,) to rows of -1 and +1: one-hot, or analog bits (Chen et al. 2022), the highest first."""
    if coding == "bits":
        shifts = np.arange(code_width(size, coding))[::-1]
        return np.asarray(2 * (index[:, None] >> shifts & 1) - 1, np.float64)
    rows = np.full((len(index), size), -1.0)
    rows[np.arange(len(index)), index] = 1.0
    return rows


def decode_index(matrix: Matrix, size: int, coding: Coding) -> NDArray[np.int64]:
    """The valid code nearest to each row, as 0, ..., size - 1 (N,)."""
    if coding == "onehot":
        return np.asarray(matrix.argmax(1), np.int64)
    return _nearest_bits(np.clip(matrix, -_LARGEST, _LARGEST), size)


def _nearest_bits(matrix: Matrix, size: int) -> NDArray[np.int64]:
    """The code under `size` with the largest inner product, without a book of all codes.

    A valid code is `size - 1` itself, or it agrees with `size - 1` above some bit that is 1 there, is 0 in that bit,
    and is free below it, where the signs of the row are then the best choice. That leaves one candidate for each bit.
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

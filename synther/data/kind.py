"""`Kind`: what a column holds, and how it is encoded for the diffusion model.

A kind encodes `source_width` columns of a field as `matrix_width` columns of float64, the matrix, and decodes them.
Decoding turns any finite matrix into valid values of the column: whole numbers stay whole, categories stay valid.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Matrix = NDArray[np.float64]

LOWEST_THRESHOLD = 0.05


class Kind(ABC):
    """Abstract base class of all kinds of columns. Its concrete subclasses are final."""

    scaled: ClassVar[bool] = False
    """Whether the matrix columns are scaled before the model sees them."""

    @property
    def source_width(self) -> int:
        """Number of columns of the field."""
        return 1

    @property
    def matrix_width(self) -> int:
        """Number of columns of the matrix."""
        return 1

    @abstractmethod
    def encode(self, source: Array) -> Matrix:
        """Encode columns of a field (N, source_width) as columns of the matrix (N, matrix_width)."""

    @abstractmethod
    def decode(self, matrix: Matrix) -> Array:
        """Decode any finite columns of the matrix (N, matrix_width) to columns of the field (N, source_width)."""

    @property
    def scaled_columns(self) -> tuple[bool, ...]:
        """Whether each column of the matrix is scaled."""
        return (self.scaled,) * self.matrix_width

    @property
    def thresholds(self) -> tuple[float, ...]:
        """Threshold of each flag. A flag is a number near 0 or near 1, computed from the matrix columns, that decides
        between two values: it is set above its threshold."""
        return ()

    @property
    def lowest_threshold(self) -> float:
        """Lower limit of calibrated thresholds. Otherwise a generator with too few set flags could get their right
        share from noise alone."""
        return LOWEST_THRESHOLD

    def flag_labels(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return a name for each flag, made from the `names` of the source columns."""
        return ()

    def with_thresholds(self, thresholds: tuple[float, ...]) -> Kind:
        """Return the same kind with other thresholds of its flags."""
        return self

    @property
    def circle(self) -> float:
        """Period of a circular column, such as 360 for an angle in degrees. 0 if the column is not circular."""
        return 0.0

    @property
    def class_count(self) -> int:
        """Number of different values if they are few and known, else 0."""
        return 0

    def classes(self, source: Array) -> NDArray[np.int64]:
        """Return the number of the value in each row of `source`, counted from 0. (N,)"""
        raise NotImplementedError

    @property
    def expected(self) -> str:
        """Description of the values that this kind can encode, for error messages."""
        return "any number"

    def misfit(self, source: Array) -> NDArray[np.bool_] | None:
        """Return which rows of `source` this kind cannot encode, or None if it can encode all numbers. (N,)"""
        return None

    def labels(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return a name for each matrix column, made from the `names` of the source columns."""
        return names


def first_columns(kinds: Sequence[Kind]) -> list[int]:
    """Return the first column of each kind in its field."""
    return list(accumulate((kind.source_width for kind in kinds), initial=0))[:-1]


def by_column(kinds: Sequence[Kind]) -> dict[int, Kind]:
    """Return the kinds of a field by their first columns, in order."""
    return dict(zip(first_columns(kinds), kinds, strict=True))

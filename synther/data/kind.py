"""`Kind`: what a column holds, and how it enters the matrix that the diffusion model sees and comes back out of it.

A kind turns `source_width` columns of a field into `matrix_width` columns of float64 and back. Decoding takes any
finite matrix to values that the column could really have held: whole numbers stay whole, categories stay valid.
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


class Kind(ABC):
    """Abstract; its subclasses are final."""

    scaled: ClassVar[bool] = False
    """Whether the matrix columns are to be scaled before the model sees them."""

    @property
    def source_width(self) -> int:
        return 1

    @property
    def matrix_width(self) -> int:
        return 1

    @abstractmethod
    def encode(self, source: Array) -> Matrix:
        """Columns of a field (N, source_width) to columns of the matrix (N, matrix_width)."""

    @abstractmethod
    def decode(self, matrix: Matrix) -> Array:
        """The way back, for any finite matrix."""

    @property
    def scaled_columns(self) -> tuple[bool, ...]:
        """`scaled`, for each column of the matrix."""
        return (self.scaled,) * self.matrix_width

    @property
    def thresholds(self) -> tuple[float, ...]:
        """Above which each of its flags is set. A flag is a figure of near 0 or near 1, made from the matrix columns,
        that decides between two values."""
        return ()

    lowest_threshold: ClassVar[float] = 0.05
    """A poor generator is not made to look right by calling noise an event."""

    def flag_labels(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return ()

    def with_thresholds(self, thresholds: tuple[float, ...]) -> Kind:
        return self

    @property
    def class_count(self) -> int:
        """How many different values it has, where these are few and known; else 0."""
        return 0

    def classes(self, source: Array) -> NDArray[np.int64]:
        """Which of these values each row of `source` has, counted from 0. (N,)"""
        raise NotImplementedError

    @property
    def expected(self) -> str:
        """What `misfit` lets through, for an error text."""
        return "any number"

    def misfit(self, source: Array) -> NDArray[np.bool_] | None:
        """Which rows of `source` this kind cannot encode (None: it can encode any)."""
        return None

    def labels(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Names of the matrix columns, made from those of the source columns."""
        return names


def first_columns(kinds: Sequence[Kind]) -> list[int]:
    """The first column of each kind in its field."""
    return list(accumulate((kind.source_width for kind in kinds), initial=0))[:-1]


def by_column(kinds: Sequence[Kind]) -> dict[int, Kind]:
    """The kinds of a field by their first columns, in order."""
    return dict(zip(first_columns(kinds), kinds, strict=True))

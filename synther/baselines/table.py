"""Convert rows to the table that TVAE and CTGAN learn, and back (Xu et al. 2019, Sec. 4.2).

A real column is modelled as a mixture of at most ten Gaussians. Each value becomes the number of one of them (a code)
and a position between -1 and 1 within it. Any other column becomes a category. `ctgan` converts one value at a time,
for every fit. Here whole columns are converted, once for each data set, with the same mixtures.
"""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.data.kinds import Kind
from synther.data.layout import Layout
from synther.data.scaling import Scaler, resolve_kinds
from synther.data.transitions import Transitions
from synther.errors import DataError, MissingExtra

Array = NDArray[Any]

_MOST_GAUSSIANS = 10
_LEAST_WEIGHT = 0.005  # Gaussians with a smaller weight are left out
_MIXTURE_SEED = 42  # the seed with which ctgan fits every mixture
WORTH_A_PROCESS = 2_000
"""Minimum number of rows for which mixtures are fitted in other processes. With fewer rows, starting a process takes
longer than fitting a mixture."""
_STDS = 4.0  # a position of 1 is this many stds from the mean of its Gaussian


@dataclass(frozen=True)
class Real:
    """A column of real numbers, as a mixture of Gaussians."""

    means: tuple[float, ...]
    stds: tuple[float, ...]

    @property
    def width(self) -> int:
        """The number of columns of the encoding: one for the position, and one for each Gaussian."""
        return 1 + len(self.means)


@dataclass(frozen=True)
class Category:
    """A column of values without an order. Only values that occur are stored, because CTGAN cannot learn from a value
    without rows."""

    seen: tuple[int, ...]

    @property
    def width(self) -> int:
        return len(self.seen)


Column = Real | Category


@dataclass(frozen=True, eq=False)
class Table:
    """The rows as codes and positions. Create it with `Table.of(rows)`. Several models can be fitted to one table.

    code   (N, C)  number of the Gaussian, or number of the value in `Category.seen`
    place  (N, C)  position within the Gaussian, or 0 for a category
    """

    layout: Layout
    scaler: Scaler
    columns: tuple[Column, ...]
    code: Array
    place: Array

    @classmethod
    def of(cls, rows: Transitions, *, jobs: int = 1, seed: int = 0) -> Table:
        """Fit the mixtures of `rows`, in `jobs` processes. `seed` decides to which of several overlapping Gaussians a
        value belongs.

        Columns are divided by their std first, because the fit of a mixture adds 1e-6 to each variance. This would blur
        a column of small numbers.
        """
        if len(rows) < 2:
            raise DataError(f"a generator cannot be fitted on {len(rows)} row: expected at least 2, better thousands")
        layout = Layout.infer(rows)
        packed = layout.pack(rows)
        if (packed == packed[:1]).all():
            raise DataError(f"all {len(rows):,} rows are equal: there is no distribution to learn")
        scaler = Scaler.fit(packed, resolve_kinds(layout, "standard"), layout.names, layout.twins)
        scaled = scaler.transform(packed)
        places = list(_places(layout))
        real = {number: where.start for number, (kind, where) in enumerate(places) if kind.scaled}
        work = [
            (scaled[:, column].copy(), np.random.default_rng([seed, number]).random(len(rows)))
            for number, column in real.items()
        ]
        fitted = dict(zip(real, _spread(work, jobs), strict=True))
        columns = [
            fitted[number] if number in fitted else _categories(scaled[:, where])
            for number, (_, where) in enumerate(places)
        ]
        return cls(
            layout,
            scaler,
            tuple(column for column, _, _ in columns),
            np.stack([code for _, code, _ in columns], axis=1).astype(np.int32),
            np.stack([place for _, _, place in columns], axis=1).astype(np.float32),
        )

    def __len__(self) -> int:
        return len(self.code)

    def take(self, count: int, seed: int = 0) -> Table:
        """Return a table of `count` random rows, or all rows if there are fewer. The mixtures stay those of all rows.

        The first row of each value of each category is always included, so that no value is lost. The result may
        therefore have a few more rows.
        """
        if count >= len(self):
            return self
        rows = np.random.default_rng(seed).choice(len(self), size=count, replace=False)
        for number, column in enumerate(self.columns):
            if isinstance(column, Category):
                rows = np.union1d(rows, np.unique(self.code[:, number], return_index=True)[1])
        rows = np.sort(rows)
        return replace(self, code=self.code[rows], place=self.place[rows])

    @property
    def width(self) -> int:
        return sum(column.width for column in self.columns)

    def encoded(self) -> NDArray[np.float32]:
        """Return the matrix that the models learn (N, width): for each column its position, if it is real, and its
        one-hot code."""
        matrix = np.zeros((len(self), self.width), np.float32)
        every = np.arange(len(self))
        start = 0
        for number, column in enumerate(self.columns):
            first = start
            if isinstance(column, Real):
                matrix[:, start] = self.place[:, number]
                first += 1
            matrix[every, first + self.code[:, number]] = 1.0
            start += column.width
        return matrix

    def decoded(self, matrix: Array) -> Transitions:
        """Decode an output of a model (N, width) to rows. The code of a column is that with the largest output."""
        scaled = np.empty((len(matrix), self.layout.width))
        start = 0
        for column, (_, where) in zip(self.columns, _places(self.layout), strict=True):
            part = matrix[:, start : start + column.width].astype(np.float64)
            start += column.width
            if isinstance(column, Real):
                code = part[:, 1:].argmax(1)
                place = np.clip(part[:, 0], -1.0, 1.0) * _STDS
                scaled[:, where.start] = place * np.array(column.stds)[code] + np.array(column.means)[code]
                continue
            value = np.array(column.seen)[part.argmax(1)]
            width = where.stop - where.start
            scaled[:, where] = value[:, None] if width == 1 else value[:, None] == np.arange(width)
        return self.layout.unpack(self.scaler.inverse(scaled))


def _places(layout: Layout) -> Iterator[tuple[Kind, slice]]:
    """Yield each kind that has columns in the layout's matrix, and these columns."""
    start = 0
    for kind in layout.kinds:
        end = start + kind.matrix_width
        if end > start:
            yield kind, slice(start, end)
        start = end


def _categories(part: Array) -> tuple[Category, Array, Array]:
    """Return the category of a flag (N, 1) or of one-hot columns (N, K), and the code and position of each row."""
    value = part[:, 0].astype(np.int64) if part.shape[1] == 1 else part.argmax(1)
    seen, code = np.unique(value, return_inverse=True)
    return Category(tuple(seen.tolist())), code, np.zeros(len(part))


def _spread(work: list[tuple[Array, Array]], jobs: int) -> Iterator[tuple[Real, Array, Array]]:
    """Call `encode` for each column, in `jobs` processes if there are many rows."""
    if min(jobs, len(work)) <= 1 or len(work[0][0]) < WORTH_A_PROCESS:
        yield from map(encode, work)
        return
    # Processes are spawned, because torch may have threads in this process, and a fork could leave their locks locked.
    with ProcessPoolExecutor(min(jobs, len(work)), mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(encode, work)


def encode(work: tuple[Array, Array]) -> tuple[Real, Array, Array]:
    """Fit the mixture of one column. Return it with the code (N,) and position (N,) of each value.

    `work` is a tuple of the values (N,) and uniform random numbers (N,). If Gaussians overlap, one of them is chosen at
    random, with the probability that the value came from it.
    """
    try:
        from sklearn.mixture import BayesianGaussianMixture
        from threadpoolctl import threadpool_limits
    except ImportError:
        raise MissingExtra("scikit-learn", "tabular", "TVAE and CTGAN") from None
    values, uniform = work
    mixture = BayesianGaussianMixture(
        n_components=min(len(values), _MOST_GAUSSIANS),
        weight_concentration_prior_type="dirichlet_process",
        weight_concentration_prior=0.001,
        random_state=_MIXTURE_SEED,
    )
    # One thread is enough, because columns are distributed over processes. The warning that a mixture has not converged
    # after 100 steps is ignored, because this is the usual case.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mixture.fit(values[:, None])
        share = mixture.predict_proba(values[:, None])
    kept = mixture.weights_ > _LEAST_WEIGHT
    means, stds = mixture.means_[kept, 0], np.sqrt(mixture.covariances_[kept, 0, 0])
    cumulative = np.cumsum(share[:, kept] + 1e-6, axis=1)
    code = (cumulative <= uniform[:, None] * cumulative[:, -1:]).sum(1)
    code = np.minimum(code, len(means) - 1)  # rounding can give one too many, if the uniform number is close to 1
    place = np.clip((values - means[code]) / (_STDS * stds[code]), -0.99, 0.99)
    return Real(tuple(means.tolist()), tuple(stds.tolist())), code, place

"""Outcomes (next observation, reward) as what a simple regression on the rest of the row leaves unexplained.

A next observation is mostly the observation itself, moved a little. A network that generates both as columns of
std 1 has to reproduce that agreement to a fraction of its own error, and what is random about an outcome is
small beside that error. Here what a regression can tell is taken out before the network sees a row and put back
afterwards: what remains has std 1, so the network models the randomness of an outcome at full size, and a
relation that is linear (a position that moves by velocity times time) holds exactly in every generated row.

Next observations without an order, such as the mode of a switch, are given too: they come out of the network, and other
outcomes fit what comes out.

The regression is linear in every given column. If it may bend, then at some knots in a few of them, where that helps: a
small network is then spared much of its work, while a large one, which learns the curve itself, is disturbed by the
knots (measured on walker2d: twice the dynamics error). Of an outcome on a lattice (whole numbers, steps of 0.1) only
multiples of others on a lattice are taken out (lattices.py).

NOTE[paper]: the reference generates the next observation itself.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther.data.lattices import SMALLEST, Grid, Step
from synther.data.lines import ROWS_PER_WEIGHT, least_squares, product
from synther.data.quantiles import row_index
from synther.schema import checked

Matrix = NDArray[np.float64]

MOST_ROWS = 1 << 16
"""Rows that a regression is fitted on, evenly drawn from all of them: more change nothing."""
_ERROR = 0.02
"""Error, in stds, that generated columns may have. Where given columns nearly follow from each other, large weights
would multiply it: directions among them that vary less explain nothing, and bends are fitted to inputs that are off by
so much.
"""
_TRIED = 1 << 14  # rows on which bends are tried
_NOTHING = SMALLEST**2  # variance, of 1, below which an outcome explains nothing about others
_EXACT = 1e-3  # stds of an outcome that a line leaves of it, where it is exact
_FEW = 0.25  # share of the rows at the ends of an outcome, up to which lines are fitted to the other rows
_FAR = 1e30  # where a range without an end is said to end
_SIMPLER = 0.1  # nats by which an outcome may become less simple where it is explained
_OFTEN, _MOST = 0.005, 0.5  # share of rows with a number that comes again and again, and of others that are needed
KNOTS = 32
"""Of a bent column."""
MOST_BENT = 8
"""Columns that the regression is bent in, at most."""
WORTH = 0.02
"""Share of an outcome's remaining variance that a bent column has to explain in rows it was not fitted on."""


@dataclass(frozen=True)
class Regression:
    """What is to be explained by what, in columns of the matrix."""

    given: Sequence[int]
    outcomes: Sequence[int]
    grid: Grid = Grid({})  # noqa: RUF009, which is frozen
    """Columns on a lattice."""
    bent: bool = False
    """Whether lines may bend at knots."""
    order: Sequence[int] = ()
    """That of the outcomes in an earlier fit."""
    ends: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """Between which numbers some columns are in rows. Values at both ends are moved out."""
    optional: Sequence[int] = ()
    """Outcomes that stay as they are if a bent line makes them less simple."""
    shaped: Sequence[int] = ()
    """Outcomes that may follow from the others by curves, where lines may bend."""

    def among(self, columns: Collection[int]) -> Regression | None:
        """The same with no other outcomes than `columns`; None where none are left."""
        outcomes = [column for column in self.outcomes if column in columns]
        return replace(self, outcomes=outcomes, grid=self.grid.among(columns)) if outcomes else None

    def fit(
        self, drawn: Matrix, columns: Sequence[int], varies: Sequence[int], shift: Matrix, scale: Matrix
    ) -> Residuals | None:
        """Fit on a sample `drawn` of scaled rows, of which it has the `columns`; only those that vary take part.

        `shift` and `scale` (D,) are what was taken from all columns, and what they were divided by.
        """
        place = {column: columns.index(column) for column in varies}
        given, outcomes, order, optional, shaped = (
            [place[column] for column in chosen if column in place]
            for chosen in (self.given, self.outcomes, self.order, self.optional, self.shaped)
        )
        bent: Any = {"bent": True, "optional": optional, "shaped": shaped} if self.bent else {}
        steps = self.grid.fit(drawn, place, scale, self.given)
        ends = {
            place[column]: tuple(((np.clip(both, -_FAR, _FAR) - shift[column]) / scale[column]).tolist())
            for column, both in self.ends.items()
            if column in place
        }
        found = Residuals.fit(drawn, given, outcomes, steps, order, ends=ends, **bent)
        return None if found is None else found.moved(range(len(columns)), columns)


@dataclass(frozen=True)
class Shape:
    """What other outcomes tell about one by curves, one in each: a reward may be more than a line in the next
    observation."""

    column: int
    inputs: tuple[int, ...]
    ends: tuple[tuple[float, float], ...]
    """The lowest and the highest number of each input. What lies beyond counts as these."""
    knots: tuple[tuple[int, tuple[float, ...]], ...]
    """Places among the inputs, and their knots."""
    weights: tuple[float, ...]
    """Of max(0, x - knot) for each knot."""

    @classmethod
    def fit(cls, rows: Matrix, x: Matrix, column: int, others: Sequence[int]) -> Shape | None:
        """Of a column of `rows` (N, D), in those of the columns `others` that tell more of it than the given columns
        `x` (N, G) do; None if there are none."""
        every, y = np.concatenate([x, rows[:, list(others)]], axis=1), rows[:, [column]]
        left = y - product(every, least_squares(every, y, narrow=_ERROR**2))
        found = bends(every, left)
        own = [(place - x.shape[1], knots) for place, knots in found if place >= x.shape[1]]
        if not own:
            return None
        off = every + _ERROR * np.random.default_rng(0).standard_normal(every.shape)
        weights = least_squares(_bent(off, found)[:, every.shape[1] :], left)[:, 0]
        first = len(weights) - sum(len(knots) for _, knots in own)  # those of the given columns come before
        inputs = [others[place] for place, _ in own]
        ends = zip(rows[:, inputs].min(0).tolist(), rows[:, inputs].max(0).tolist(), strict=True)
        knots = tuple((place, each) for place, (_, each) in enumerate(own))
        return cls(column, tuple(inputs), tuple(ends), knots, tuple(weights[first:].tolist()))

    def __call__(self, rows: Matrix) -> Matrix:
        """What it is in rows (N, D). (N,)"""
        low, high = zip(*self.ends, strict=True)
        inputs = rows[:, list(self.inputs)].clip(low, high)
        return product(_bent(inputs, self.knots)[:, inputs.shape[1] :], np.array(self.weights)[:, None])[:, 0]

    def moved(self, places: Mapping[int, int]) -> Shape:
        """The same for a matrix whose columns are in other places."""
        return replace(self, column=places[self.column], inputs=tuple(places[column] for column in self.inputs))


@dataclass(frozen=True)
class Residuals:
    """Differences of some columns from others, and a regression of the columns `outcomes` on the columns `given`, which
    may be such outcomes on a lattice, and on the outcomes before them in the list.

    Columns are of std 1. The order is that of a pivoted Cholesky factorisation: the outcome that is the least
    explained comes first, so that a new velocity, which is random, explains a new position, which follows from it.
    """

    given: tuple[int, ...]
    outcomes: tuple[int, ...]
    knots: tuple[tuple[int, tuple[float, ...]], ...]
    """Of each bent column: its place among the given ones, and its knots."""
    weights: tuple[tuple[float, ...], ...]
    """For each outcome, those of the given columns, of their gaps, of max(0, x - knot) for each knot, and of the
    outcomes; the last are 0 from its own on."""
    shift: tuple[float, ...]
    scale: tuple[float, ...]
    """Mean and std of what remains of each outcome."""
    steps: tuple[Step, ...] = ()
    """Outcomes on a lattice."""
    ends: tuple[tuple[int, float, float], ...] = ()
    """Places among the given columns, and between which numbers these are, but for a gap at the ends. Such a column is
    two inputs: the number, and the gap."""
    shapes: tuple[Shape, ...] = ()
    """What is taken out of outcomes before the regression, and put back after it."""

    @classmethod
    def fit(
        cls,
        rows: Matrix,
        given: Sequence[int],
        outcomes: Sequence[int],
        steps: Sequence[Step] = (),
        order: Sequence[int] = (),
        *,
        bent: bool = False,
        ends: Mapping[int, tuple[float, float]] = MappingProxyType({}),
        optional: Sequence[int] = (),
        shaped: Sequence[int] = (),
    ) -> Residuals | None:
        """Fit on `rows` (N, D) of std 1; None where there is nothing to explain, or are too few rows.

        `ends` says between which numbers columns are, but for a gap at both ends. `steps` are those of the outcomes
        that lie on a lattice. `order` is that of an earlier fit, to be kept as far as the columns are the same.
        Outcomes that are `optional` stay as they are if a bent line makes them less simple; outcomes that are `shaped`
        may follow from all others by curves.
        """
        moves = {step.column for step in steps}
        given, outcomes = [*given, *sorted(moves)], [column for column in outcomes if column not in moves]
        if steps and not outcomes:
            return cls(tuple(given), (), (), (), (), (), tuple(steps))
        gaps = tuple((given.index(column), *both) for column, both in ends.items() if column in given)
        if not given or not outcomes or len(rows) < ROWS_PER_WEIGHT * (len(given) + len(gaps) + len(outcomes)):
            return None
        rows = rows[:: -(-len(rows) // MOST_ROWS)]
        x = _with_gaps(rows[:, list(given)], gaps)
        if any(column in optional for column in outcomes):
            outcomes = _simpler(x, rows, outcomes, optional)
        if not outcomes:
            return cls(tuple(given), (), (), (), (), (), tuple(steps)) if steps else None
        y = rows[:, list(outcomes)]
        shapes, others = [], [column for column in outcomes if column not in shaped]
        for column in outcomes:
            shape = Shape.fit(rows, x, column, others) if others and column in shaped else None
            if shape is not None:
                shapes.append(shape)
                y[:, outcomes.index(column)] -= shape(rows)
        first = [outcomes.index(column) for column in order if column in outcomes]
        everywhere = np.ones(len(y), bool)
        lines = _Lines(x, y, everywhere, first, bent=bent)
        between = _between(y, [ends.get(column) for column in outcomes])
        if ROWS_PER_WEIGHT * (x.shape[1] + len(outcomes)) < np.count_nonzero(between) < len(y):
            inner = _Lines(x, y, between, first, bent=bent)
            if inner.is_exacter(lines, between):
                lines = inner
        shift, scale = lines.residual.mean(0), np.maximum(lines.residual.std(0), SMALLEST)
        places, knots = lines.places, lines.knots
        return cls(
            tuple(given),
            tuple(outcomes[place] for place in places),
            knots,
            tuple(map(tuple, np.concatenate([lines.direct, np.eye(len(places)) - lines.own]).T.tolist())),
            tuple(shift.tolist()),
            tuple(scale.tolist()),
            tuple(steps),
            gaps,
            tuple(shapes),
        )

    @property
    def replaced(self) -> tuple[int, ...]:
        """Columns that hold something else afterwards."""
        return (*self.outcomes, *(step.column for step in self.steps))

    @property
    def free(self) -> tuple[int, ...]:
        """Columns that outcomes follow from, and that follow from none."""
        return tuple(column for column in self.given if column not in self.replaced)

    def log_scales(self, rows: Matrix) -> Matrix:
        """The sum of the logarithms of what those are divided by, in rows (N, D) of std 1. (N,)"""
        steps = [np.log(step.width(rows)) for step in self.steps]
        return np.asarray(np.log(self.scale).sum() + sum(steps, np.zeros(len(rows))))

    @cached_property
    def _direct(self) -> Matrix:
        """Weights of the given columns and of the knots, (G + H, K)."""
        return np.array(self.weights).T[: -len(self.outcomes)]

    @cached_property
    def _own(self) -> Matrix:
        """1 minus the weights of earlier outcomes, (K, K): residuals are outcomes @ this, less what is given."""
        return np.asarray(np.eye(len(self.outcomes)) - np.array(self.weights).T[-len(self.outcomes) :])

    def _explained(self, rows: Matrix) -> Matrix:
        """What the given columns tell about the outcomes. (N, K)"""
        return product(_bent(_with_gaps(rows[:, list(self.given)], self.ends), self.knots), self._direct)

    def take_out(self, rows: Matrix) -> None:
        """Replace the outcomes of `rows` (N, D), of std 1, by their scaled residuals."""
        for shape in self.shapes:
            rows[:, shape.column] -= shape(rows)
        if self.outcomes:
            residual = product(rows[:, list(self.outcomes)], self._own) - self._explained(rows)
            rows[:, list(self.outcomes)] = (residual - np.array(self.shift)) / np.array(self.scale)
        for step in reversed(self.steps):  # each may follow from those before it
            step.take_out(rows)

    def put_back(self, rows: Matrix) -> None:
        """The reverse of `take_out`."""
        Restorer(self, torch.device("cpu"))(torch.from_numpy(rows).t())

    def moved(self, known: Sequence[int], to: Sequence[int] | None = None) -> Residuals:
        """The same regression for a matrix whose column `to[i]` (i itself, if none is given) is what `known[i]` was."""
        places = {column: place for place, column in enumerate(known)}
        places = places if to is None else {column: to[place] for column, place in places.items()}
        return replace(
            self,
            given=tuple(places[column] for column in self.given),
            outcomes=tuple(places[column] for column in self.outcomes),
            steps=tuple(step.moved(places) for step in self.steps),
            shapes=tuple(shape.moved(places) for shape in self.shapes),
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Residuals:
        found: Residuals = checked(entry, cls, "scaler.residuals")
        return found


class Restorer:
    """Outcomes from their residuals, in rows that lie by columns, (D, N), on a device."""

    def __init__(self, residuals: Residuals, device: torch.device) -> None:
        def tensor(values: Any) -> Tensor:
            return torch.tensor(np.asarray(values), dtype=torch.float64, device=device)

        self._steps = residuals.steps
        self._shapes = [_Shaping(shape, device) for shape in residuals.shapes]
        self._given, self._outcomes = (row_index(each, device) for each in (residuals.given, residuals.outcomes))
        self._has_outcomes = bool(residuals.outcomes)
        if not self._has_outcomes:
            return
        self._shift, self._scale = tensor(residuals.shift)[:, None], tensor(residuals.scale)[:, None]
        self._direct, self._back = tensor(residuals._direct.T), tensor(np.linalg.inv(residuals._own).T)
        self._knots = tensor([knot for _, knots in residuals.knots for knot in knots])[:, None]
        places, low, high = zip(*residuals.ends, strict=True) if residuals.ends else ((), (), ())
        self._gapped = torch.tensor(places, dtype=torch.int64, device=device)
        self._low, self._high = tensor(low)[:, None], tensor(high)[:, None]
        bent = [place for place, knots in residuals.knots for _ in knots]
        self._bent = torch.tensor(bent, dtype=torch.int64, device=device)

    def __call__(self, columns: Tensor) -> None:
        """Replace the residuals in `columns`."""
        for step in self._steps:
            step.put_back(columns)
        if self._has_outcomes:
            inputs = columns[self._given]
            if len(self._gapped):
                moved = inputs.index_select(0, self._gapped)
                numbers = moved.clamp(self._low, self._high)
                inputs = torch.cat([inputs.index_copy(0, self._gapped, numbers), moved - numbers])
            if len(self._bent):
                hinges = inputs.index_select(0, self._bent).sub_(self._knots).clamp_(min=0.0)
                inputs = torch.cat([inputs, hinges])
            residual = (columns[self._outcomes] * self._scale).add_(self._shift)
            columns[self._outcomes] = torch.mm(self._back, residual.add_(torch.mm(self._direct, inputs)))
        for shape in self._shapes:
            shape.put_back(columns)


class _Shaping:
    """A shape, in rows that lie by columns, on a device."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        def tensor(values: Any) -> Tensor:
            return torch.tensor(values, dtype=torch.float64, device=device)

        self._column = shape.column
        self._inputs = row_index([shape.inputs[place] for place, knots in shape.knots for _ in knots], device)
        ends = tensor([shape.ends[place] for place, knots in shape.knots for _ in knots])
        self._low, self._high = ends[:, :1], ends[:, 1:]
        self._knots = tensor([knot for _, knots in shape.knots for knot in knots])[:, None]
        self._weights = tensor([shape.weights])

    def put_back(self, columns: Tensor) -> None:
        inputs = columns[self._inputs].clamp(self._low, self._high)
        columns[self._column] += torch.mm(self._weights, inputs.sub_(self._knots).clamp_(min=0.0))[0]


class _Lines:
    """Lines of outcomes (N, K) in inputs (N, G), fitted to the rows that are `learned` (N,)."""

    def __init__(
        self, x: Matrix, y: Matrix, learned: NDArray[np.bool_], first: Sequence[int], *, bent: bool = False
    ) -> None:
        known, told = x[learned], y[learned]
        slopes = least_squares(known, told, narrow=_ERROR**2)  # (G, K)
        left = told - product(known, slopes)
        self.knots = bends(known, left) if bent else ()
        inputs = _bent(x, self.knots)
        if self.knots:
            off = _bent(known + _ERROR * np.random.default_rng(0).standard_normal(known.shape), self.knots)
            slopes = np.concatenate([slopes, least_squares(off[:, x.shape[1] :], left)])  # (G + H, K)
            left = told - product(inputs[learned], slopes)
        self.places, factor = _pivoted(np.cov(left.T, bias=True).reshape(y.shape[1], -1), first)
        # left[:, places] is residual @ factor.T: each residual is left less its share of the outcomes before it
        self.own = np.asarray(np.linalg.inv(factor).T, np.float64)
        self.direct = slopes[:, self.places] @ self.own
        self.residual = product(y[:, self.places], self.own) - product(inputs, self.direct)

    def is_exacter(self, other: _Lines, rows: NDArray[np.bool_]) -> bool:
        """Whether it leaves next to nothing of an outcome in some rows, of which the other lines leave more. A few rows
        at an end spoil a line that is exact in all others."""
        mine, theirs = (np.empty(len(self.places)) for _ in range(2))
        for lines, left in ((self, mine), (other, theirs)):
            left[lines.places] = lines.residual[rows].std(0)
        return bool(((mine < _EXACT) & (mine < theirs / 10)).any())


def _simpler(x: Matrix, rows: Matrix, outcomes: Sequence[int], optional: Collection[int]) -> list[int]:
    """The `outcomes`, columns of `rows` (N, D), without `optional` ones that get less simple when what bent lines tell
    of them is taken out. Lines are in `x` (N, G) and in other outcomes.

    A reward may nearly always be about 0 and seldom large. A line explains most of its variance, and leaves numbers
    about 0 that vary as much as the line.
    """
    y = rows[:, list(outcomes)]
    lines = _Lines(x, y, np.ones(len(y), bool), (), bent=True)
    left = {outcomes[place]: own for place, own in zip(lines.places, lines.residual.T, strict=True)}

    def is_simpler(column: int) -> bool:
        before = rows[:, column]
        return _spacing(left[column], before) <= _spacing(before, before) + _SIMPLER

    return [column for column in outcomes if column not in optional or is_simpler(column)]


def _spacing(values: NDArray[np.float64], rows: NDArray[np.float64]) -> float:
    """How far values (N,) of neighbouring ranks lie apart: the mean logarithm, which is their entropy (Vasicek 1976) up
    to a constant. Rows in which `rows` (N,) is a number that comes again and again do not count; 0 if most are such."""
    some = slice(None, None, -(-len(rows) // _TRIED))
    _, kind, count = np.unique(rows[some], return_inverse=True, return_counts=True)
    once = np.sort(values[some][count[kind] <= max(2, _OFTEN * len(kind))])
    if len(once) < _MOST * len(kind):
        return 0.0
    apart = round(math.sqrt(len(once)))
    return float(np.log(np.maximum(once[2 * apart :] - once[: -2 * apart], SMALLEST**2)).mean())


def _between(y: Matrix, ends: Sequence[tuple[float, float] | None]) -> NDArray[np.bool_]:
    """The rows of outcomes (N, K) that a line may follow: without those at an end, if these are few."""
    between = np.ones(len(y), bool)
    for values, both in zip(y.T, ends, strict=True):
        if both is not None:
            out = (values < both[0]) | (values > both[1])
            if out.mean() <= _FEW:
                between &= ~out
    return between


def _with_gaps(x: Matrix, ends: Sequence[tuple[int, float, float]]) -> Matrix:
    """The columns of `x` (N, G), some of them without their gaps, and those gaps. (N, G + E)"""
    if not ends:
        return x
    places = [place for place, _, _ in ends]
    numbers = x.copy()
    numbers[:, places] = x[:, places].clip([low for _, low, _ in ends], [high for _, _, high in ends])
    return np.concatenate([numbers, (x - numbers)[:, places]], axis=1)


def _bent(x: Matrix, knots: Sequence[tuple[int, tuple[float, ...]]]) -> Matrix:
    """The columns of `x` (N, G), and max(0, x - knot) for each knot. (N, G + H)"""
    hinges = [np.maximum(x[:, place, None] - np.array(at), 0.0) for place, at in knots]
    return np.concatenate([x, *hinges], axis=1)


def bends(x: Matrix, left: Matrix) -> tuple[tuple[int, tuple[float, ...]], ...]:
    """In which columns of `x` a line with knots explains something of `left` (N, K), judged by every second row.

    The best column comes first, then always the one that explains most of what is left: of columns that nearly follow
    from each other, one is enough.
    """
    every = -(-len(x) // _TRIED)
    x, left = x[::every], left[::every]
    if len(x) < 2 * ROWS_PER_WEIGHT * (x.shape[1] + left.shape[1] + MOST_BENT * KNOTS):
        return ()
    places = []
    for place, column in enumerate(x.T):
        values = np.unique(column[:1000])
        knots = _knots(column) if len(values) >= KNOTS else tuple(values[1:-1].tolist())
        if knots:
            places.append((place, knots))
    chosen: list[tuple[int, tuple[float, ...]]] = []
    while places and len(chosen) < MOST_BENT:
        tried = sorted(((*_bend(x[:, place], left, knots), (place, knots)) for place, knots in places), key=_gain)
        gain, told, best = tried[-1]
        if gain < WORTH:
            break
        left = left - told
        chosen.append(best)
        places = [bend for gain, _, bend in tried[:-1] if gain >= WORTH][-2 * MOST_BENT :]
    return tuple(sorted(chosen))


def _knots(column: NDArray[np.float64]) -> tuple[float, ...]:
    """Most of them evenly between the outer hundredths of a column (N,), and some in these: a line that just went on
    would miss what a curve does there."""
    lowest, low, high, highest = np.quantile(column, [0.001, 0.01, 0.99, 0.999])
    parts = np.linspace(lowest, low, 3), np.linspace(low, high, KNOTS - 4), np.linspace(high, highest, 3)
    every = np.unique(np.concatenate(parts))
    return tuple(every[(column.min() < every) & (every < column.max())].tolist())


def _gain(tried: tuple[float, Matrix, Any]) -> float:
    return tried[0]


def _bend(column: NDArray[np.float64], left: Matrix, knots: tuple[float, ...]) -> tuple[float, Matrix]:
    """The largest share of an outcome's variance that a line with knots in a column (N,) explains, and what it tells
    (N, K). It is fitted to every second row and judged by the others."""
    half = np.arange(len(column)) % 2 == 0
    basis = _bent(column[:, None], ((0, knots),))
    slopes = least_squares(basis[half], left[half])
    told = left[half].mean(0) + product(basis - basis[half].mean(0), slopes)
    variance = np.maximum(left[~half].var(0), _NOTHING)
    gain = 1 - ((left - told)[~half] ** 2).mean(0) / variance
    return float(gain[left.std(0) > SMALLEST].max(initial=0.0)), told


def _pivoted(covariance: Matrix, first: Sequence[int]) -> tuple[list[int], Matrix]:
    """An order of the columns of a covariance (K, K), and the unit lower triangular factor L of the covariance in that
    order, which is L diag L^T. Columns in `first` come first, then always the one with the most variance left."""
    left = covariance.copy()
    count = len(left)
    waiting = list(first) + [None] * (count - len(first))
    places: list[int] = []
    columns = []
    for forced in waiting:
        free = [place for place in range(count) if place not in places]
        place = forced if forced is not None else max(free, key=lambda candidate: left[candidate, candidate])
        places.append(place)
        variance = left[place, place]
        if variance > _NOTHING:
            column = left[:, place] / variance
            left = left - variance * np.outer(column, column)
        else:
            column = np.zeros(count)
        column[[earlier for earlier in places if earlier != place]] = 0.0
        column[place] = 1.0
        columns.append(column)
    return places, np.array(columns).T[places]

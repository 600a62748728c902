"""Replace outcomes (next observation, reward) by the residuals of a simple regression on the rest of the row.

A next observation is nearly equal to the observation. Suppose that a network generates both as columns of std 1. Then
its own error is larger than the small random change between the two. So the part of an outcome that a regression
predicts is subtracted before the network sees a row, and added back to generated rows. The residual is scaled to std 1,
so the network models the randomness of an outcome at full size. A linear relation (a position moves by velocity times
time) holds exactly in every generated row.

Categories of the next observation, such as the mode of a switch, are inputs of the regression too. The network
generates them directly, and the other outcomes are then consistent with the generated categories.

The regression is linear in every given column, and in sine and cosine of circular ones. Optionally it is piecewise
linear, with knots in the few columns where this helps, and has products of up to five columns: a discrete action may
decide how a number changes, or a pole may fall by its speed times the cosine of its angle. Both save a small network
much of its work. A large network learns them itself, and knots disturb it (measured on walker2d: twice the dynamics
error). From an outcome on a lattice (whole numbers, steps of 0.1) only multiples of other columns on a lattice are
subtracted (lattices.py).

Read `Regression` (what to fit), then `Residuals` (the fit, and both directions), then `_LinearFit`.

NOTE[paper]: the reference generates the next observation itself.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther.data.bends import MOST_FACTORS, bends, features, products_of
from synther.data.lattices import SMALLEST, Grid, Step
from synther.data.lines import ROWS_PER_WEIGHT, least_squares, product
from synther.data.quantiles import row_index
from synther.schema import checked

Matrix = NDArray[np.float64]

MOST_ROWS = 1 << 16
"""Maximum number of rows that a regression is fitted on. More rows change nothing."""
_ERROR = 0.02
"""Error of generated columns, in stds, that the regression must tolerate. If given columns are nearly collinear, large
weights would multiply this error. So directions among them with a smaller std are ignored, and knots are fitted to
inputs with noise of this std.
"""
_TRIED = 1 << 14  # number of rows on which entropies are estimated
_NOTHING = SMALLEST**2  # an outcome with less remaining variance than this (of 1) does not explain other outcomes
_EXACT = 1e-3  # a regression is exact if its residual std is below this, in stds of the outcome
_FEW = 0.25  # rows at the ends of an outcome may be left out of the fit if they are at most this share of all rows
_FAR = 1e30  # finite number that stands for an infinite end of a range
_SIMPLER = 0.1  # a residual may have at most this much more entropy, in nats, than the outcome itself
_OFTEN = 0.005  # a value repeats if more than this share of the rows has it
_MOST = 0.5  # share of rows without a repeated value that an entropy estimate needs


@dataclass(frozen=True)
class Regression:
    """Specification of a regression: which columns of the matrix explain which outcomes, and how."""

    given: Sequence[int]
    """Columns that explain."""
    outcomes: Sequence[int]
    """Columns to be explained."""
    grid: Grid = Grid({})  # noqa: RUF009  # a frozen dataclass
    """Columns on a lattice."""
    bent: bool = False
    """Whether the regression may have knots."""
    order: Sequence[int] = ()
    """Order of the outcomes in an earlier fit."""
    ends: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """Range of some columns in the rows. The matrix goes beyond this range: a value at an end is moved outwards."""
    circles: Mapping[int, float] = field(default_factory=dict)
    """Periods of circular columns."""
    optional: Sequence[int] = ()
    """Outcomes that are kept unchanged if a regression with knots increases their entropy."""
    shaped: Sequence[int] = ()
    """Outcomes that may also be a curve in other outcomes (`Shape`). Used only with `bent`."""

    def among(self, columns: Collection[int]) -> Regression | None:
        """Return the same specification with only those outcomes that are in `columns`. None if there are none."""
        outcomes = [column for column in self.outcomes if column in columns]
        return replace(self, outcomes=outcomes, grid=self.grid.among(columns)) if outcomes else None

    def fit(
        self, drawn: Matrix, columns: Sequence[int], varies: Sequence[int], shift: Matrix, scale: Matrix
    ) -> Residuals | None:
        """Fit the regression on a sample of scaled rows. Returns None if there is nothing to explain or too few rows.

        `drawn` holds the given `columns` of the sampled rows. Only columns in `varies` take part. `shift` and `scale`
        (D,) were subtracted from all columns of the matrix, and all columns were divided by them.
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
        turn = {column: 2 * math.pi / period for column, period in self.circles.items() if column in place}
        waves = {
            place[column]: (each * float(scale[column]), each * float(shift[column])) for column, each in turn.items()
        }
        found = Residuals.fit(drawn, given, outcomes, steps, order, ends=ends, waves=waves, **bent)
        return None if found is None else found.moved(range(len(columns)), columns)


@dataclass(frozen=True)
class Shape:
    """Curved part of one outcome: a sum of piecewise linear functions, each of one other outcome.

    For example, a reward may be a nonlinear function of the next observation.
    """

    column: int
    inputs: tuple[int, ...]
    ends: tuple[tuple[float, float], ...]
    """Lowest and highest number of each input. Inputs are clipped to this range."""
    knots: tuple[tuple[int, tuple[float, ...]], ...]
    """Index of each input, and its knots."""
    weights: tuple[float, ...]
    """Weight of max(0, x - knot) for each knot."""

    @classmethod
    def fit(cls, rows: Matrix, x: Matrix, column: int, others: Sequence[int]) -> Shape | None:
        """Fit the shape of an outcome `column` of `rows` (N, D).

        Its inputs are those of the outcomes `others` in which knots explain a part of the column. A linear regression
        and knots in the given columns `x` (N, G) must not explain that part. Returns None if there is no such outcome.
        """
        every, y = np.concatenate([x, rows[:, list(others)]], axis=1), rows[:, [column]]
        left = y - product(every, least_squares(every, y, narrow=_ERROR**2))
        found = bends(every, left)
        bent_others = [(place - x.shape[1], knots) for place, knots in found if place >= x.shape[1]]
        if not bent_others:
            return None
        noisy = every + _ERROR * np.random.default_rng(0).standard_normal(every.shape)
        weights = least_squares(features(noisy, found)[:, every.shape[1] :], left)[:, 0]
        first = len(weights) - sum(len(knots) for _, knots in bent_others)  # weights of the given columns come before
        inputs = [others[place] for place, _ in bent_others]
        ends = zip(rows[:, inputs].min(0).tolist(), rows[:, inputs].max(0).tolist(), strict=True)
        knots = tuple((place, each) for place, (_, each) in enumerate(bent_others))
        return cls(column, tuple(inputs), tuple(ends), knots, tuple(weights[first:].tolist()))

    def __call__(self, rows: Matrix) -> Matrix:
        """Return the value of the shape in each row of `rows` (N, D). (N,)"""
        low, high = zip(*self.ends, strict=True)
        inputs = rows[:, list(self.inputs)].clip(low, high)
        return product(features(inputs, self.knots)[:, inputs.shape[1] :], np.array(self.weights)[:, None])[:, 0]

    def moved(self, places: Mapping[int, int]) -> Shape:
        """Return the same shape with each column number replaced by `places[column]`."""
        return replace(self, column=places[self.column], inputs=tuple(places[column] for column in self.inputs))


@dataclass(frozen=True)
class Residuals:
    """A fitted regression that turns outcomes into residuals and back.

    Each of the columns `outcomes` is explained by the columns `given` and by the outcomes before it in the list. Given
    columns include the outcomes on a lattice, which get their own residuals by `steps`.

    All columns have std 1. The order of the outcomes is that of a pivoted Cholesky factorisation: the outcome that is
    explained the least comes first. So a new velocity, which is random, explains the new position that follows from it.
    """

    given: tuple[int, ...]
    outcomes: tuple[int, ...]
    knots: tuple[tuple[int, tuple[float, ...]], ...]
    """For each bent column, its index among the given columns, and its knots."""
    weights: tuple[tuple[float, ...], ...]
    """For each outcome, the weights of: the given columns, their gaps and waves, max(0, x - knot) for each knot, the
    products, and all outcomes. The weights of the outcome itself and of the outcomes after it are 0."""
    shift: tuple[float, ...]
    """Mean of the residual of each outcome."""
    scale: tuple[float, ...]
    """Std of the residual of each outcome."""
    steps: tuple[Step, ...] = ()
    """Outcomes on a lattice."""
    ends: tuple[tuple[int, float, float], ...] = ()
    """Given columns with values that were moved outwards by a gap: index among the given columns, lowest and highest
    number without the gap. Such a column is two inputs: the number, and the gap."""
    shapes: tuple[Shape, ...] = ()
    """Curves that are subtracted from outcomes before the regression, and added back after it."""
    products: tuple[tuple[int, ...], ...] = ()
    """Sets of two to five given columns, by index, whose products are inputs too."""
    waves: tuple[tuple[int, float, float], ...] = ()
    """Circular given columns: index among the given columns, frequency and phase. The inputs also include
    cos(frequency x + phase) of each, and after them sin(frequency x + phase) of each."""

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
        waves: Mapping[int, tuple[float, float]] = MappingProxyType({}),
        optional: Sequence[int] = (),
        shaped: Sequence[int] = (),
    ) -> Residuals | None:
        """Fit on `rows` (N, D) of std 1. Returns None if there is nothing to explain or too few rows.

        `steps` describe the outcomes on a lattice. `order` is the order of the outcomes in an earlier fit: outcomes in
        it come first and keep that order. `ends`, `optional` and `shaped` are those of `Regression`. `waves` has the
        frequency and the phase of each circular column.
        """
        moves = {step.column for step in steps}
        given, outcomes = [*given, *sorted(moves)], [column for column in outcomes if column not in moves]
        if steps and not outcomes:
            return cls(tuple(given), (), (), (), (), (), tuple(steps))
        gaps, turns = (
            tuple((given.index(column), *both) for column, both in each.items() if column in given)
            for each in (ends, waves)
        )
        count = len(given) + len(gaps) + 2 * len(turns) + len(outcomes)
        if not given or not outcomes or len(rows) < ROWS_PER_WEIGHT * count:
            return None
        rows = rows[:: -(-len(rows) // MOST_ROWS)]
        x = _inputs(rows[:, list(given)], gaps, turns)
        if any(column in optional for column in outcomes):
            outcomes = _simpler(x, rows, outcomes, optional)
        if not outcomes:
            return cls(tuple(given), (), (), (), (), (), tuple(steps)) if steps else None
        y = rows[:, list(outcomes)]
        shapes = []
        others = [column for column in outcomes if column not in shaped]
        for column in outcomes:
            shape = Shape.fit(rows, x, column, others) if others and column in shaped else None
            if shape is not None:
                shapes.append(shape)
                y[:, outcomes.index(column)] -= shape(rows)
        first = [outcomes.index(column) for column in order if column in outcomes]
        everywhere = np.ones(len(y), bool)
        lines = _LinearFit(x, y, everywhere, first, bent=bent)
        between = _between(y, [ends.get(column) for column in outcomes])
        if ROWS_PER_WEIGHT * (x.shape[1] + len(outcomes)) < np.count_nonzero(between) < len(y):
            inner = _LinearFit(x, y, between, first, bent=bent)
            if inner.is_more_exact(lines, between):
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
            lines.products,
            turns,
        )

    @property
    def replaced(self) -> tuple[int, ...]:
        """Columns that `take_out` replaces."""
        return (*self.outcomes, *(step.column for step in self.steps))

    @property
    def free(self) -> tuple[int, ...]:
        """Given columns that `take_out` leaves unchanged."""
        return tuple(column for column in self.given if column not in self.replaced)

    def log_scales(self, rows: Matrix) -> Matrix:
        """Return for each row of `rows` (N, D) the sum of the logarithms of what the outcomes are divided by. (N,)"""
        steps = [np.log(step.width(rows)) for step in self.steps]
        return np.asarray(np.log(self.scale).sum() + sum(steps, np.zeros(len(rows))))

    @cached_property
    def _direct(self) -> Matrix:
        """Weights of the given columns, of their gaps and waves, of the knots and of the products. (G + H, K)"""
        return np.array(self.weights).T[: -len(self.outcomes)]

    @cached_property
    def _own(self) -> Matrix:
        """Identity minus the weights of earlier outcomes (K, K). Residuals are `outcomes @ _own - _explained(rows)`."""
        return np.asarray(np.eye(len(self.outcomes)) - np.array(self.weights).T[-len(self.outcomes) :])

    def _explained(self, rows: Matrix) -> Matrix:
        """Return the part of the outcomes that the given columns predict. (N, K)"""
        x = _inputs(rows[:, list(self.given)], self.ends, self.waves)
        return product(features(x, self.knots, self.products), self._direct)

    def take_out(self, rows: Matrix) -> None:
        """Replace the outcomes of `rows` (N, D), of std 1, by their scaled residuals, in place."""
        for shape in self.shapes:
            rows[:, shape.column] -= shape(rows)
        if self.outcomes:
            residual = product(rows[:, list(self.outcomes)], self._own) - self._explained(rows)
            rows[:, list(self.outcomes)] = (residual - np.array(self.shift)) / np.array(self.scale)
        for step in reversed(self.steps):  # the inputs of a step may include the outcomes of earlier steps
            step.take_out(rows)

    def put_back(self, rows: Matrix) -> None:
        """Replace scaled residuals in `rows` (N, D) by outcomes, in place: the inverse of `take_out`."""
        Restorer(self, torch.device("cpu"))(torch.from_numpy(rows).t())

    def moved(self, known: Sequence[int], to: Sequence[int] | None = None) -> Residuals:
        """Return the same regression with each column number `known[i]` replaced by `to[i]`, by default `i`."""
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
    """Turns residuals back into outcomes, for rows stored column by column (D, N), on a device."""

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
        turning, frequency, phase = zip(*residuals.waves, strict=True) if residuals.waves else ((), (), ())
        self._turning = torch.tensor(turning, dtype=torch.int64, device=device)
        self._frequency, self._phase = tensor(frequency)[:, None], tensor(phase)[:, None]
        # The index of a row of ones, after all other inputs.
        one = len(residuals.given) + len(residuals.ends) + 2 * len(residuals.waves)
        factors = [(*places, *[one] * MOST_FACTORS)[:MOST_FACTORS] for places in residuals.products]
        self._factors = torch.tensor(factors, dtype=torch.int64, device=device).reshape(-1, MOST_FACTORS).t()

    def __call__(self, columns: Tensor) -> None:
        """Replace the residuals in `columns` (D, N) by outcomes, in place."""
        for step in self._steps:
            step.put_back(columns)
        if self._has_outcomes:
            inputs = columns[self._given]
            if len(self._gapped):
                moved = inputs.index_select(0, self._gapped)
                numbers = moved.clamp(self._low, self._high)
                inputs = torch.cat([inputs.index_copy(0, self._gapped, numbers), moved - numbers])
            if len(self._turning):
                angles = inputs.index_select(0, self._turning).mul_(self._frequency).add_(self._phase)
                inputs = torch.cat([inputs, angles.cos(), angles.sin()])
            parts = [inputs]
            if len(self._bent):
                parts.append(inputs.index_select(0, self._bent).sub_(self._knots).clamp_(min=0.0))
            if self._factors.numel():
                padded = torch.cat([inputs, torch.ones_like(inputs[:1])])
                parts.append(padded[self._factors].prod(0))
            inputs = torch.cat(parts) if len(parts) > 1 else inputs
            residual = (columns[self._outcomes] * self._scale).add_(self._shift)
            columns[self._outcomes] = torch.mm(self._back, residual.add_(torch.mm(self._direct, inputs)))
        for shape in self._shapes:
            shape.put_back(columns)


class _Shaping:
    """Adds a shape back, on a device."""

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
        """Add the value of the shape to its column of `columns` (D, N), in place."""
        inputs = columns[self._inputs].clamp(self._low, self._high)
        columns[self._column] += torch.mm(self._weights, inputs.sub_(self._knots).clamp_(min=0.0))[0]


class _LinearFit:
    """Linear regression of outcomes `y` (N, K) on inputs `x` (N, G), fitted to the rows marked in `learned` (N,).

    `first` are the indices of outcomes that come first in the order. `bent` allows knots.
    """

    def __init__(
        self, x: Matrix, y: Matrix, learned: NDArray[np.bool_], first: Sequence[int], *, bent: bool = False
    ) -> None:
        known, target = x[learned], y[learned]
        found = _Features(known, target)
        if bent:
            # Knots may explain in a poor way what products explain well: an action that mirrors a coordinate.
            other = copy(found).add_products()
            found.add_knots().add_products()
            if other.products and other.add_knots().open() < found.open():
                found = other
        self.knots, self.products, slopes, left = found.knots, found.products, found.slopes, found.left
        inputs = features(x, self.knots, self.products)
        self.places, factor = _pivoted(np.cov(left.T, bias=True).reshape(y.shape[1], -1), first)
        # left[:, places] is residual @ factor.T: earlier outcomes also explain a part of what the inputs leave.
        self.own = np.asarray(np.linalg.inv(factor).T, np.float64)
        self.direct = slopes[:, self.places] @ self.own
        self.residual = product(y[:, self.places], self.own) - product(inputs, self.direct)

    def is_more_exact(self, other: _LinearFit, rows: NDArray[np.bool_]) -> bool:
        """Return whether this fit is exact for an outcome for which the `other` fit is not, in the rows marked in
        `rows`. A few rows at an end of the range can spoil a fit that would be exact in all other rows."""
        mine = np.empty(len(self.places))
        theirs = np.empty(len(self.places))
        mine[self.places] = self.residual[rows].std(0)
        theirs[other.places] = other.residual[rows].std(0)
        return bool(((mine < _EXACT) & (mine < theirs / 10)).any())


class _Features:
    """A regression of outcomes `y` (N, K) on inputs `x` (N, G), to which knots and products are added."""

    def __init__(self, x: Matrix, y: Matrix) -> None:
        self._x = x
        self._linear, self.left = _regressed(x, y)
        self._of_hinges, self._of_products = (np.empty((0, y.shape[1])) for _ in range(2))
        self.knots: tuple[tuple[int, tuple[float, ...]], ...] = ()
        self.products: tuple[tuple[int, ...], ...] = ()

    @property
    def slopes(self) -> Matrix:
        """Slopes of the inputs, of the knots and of the products. (G + H + P, K)"""
        return np.concatenate([self._linear, self._of_hinges, self._of_products])

    def open(self) -> float:
        """Return the mean logarithm of the variances of what is left."""
        return float(np.log(np.maximum(self.left.var(0), _NOTHING)).mean())

    def add_knots(self) -> _Features:
        """Add knots in columns where they explain a part of what is left."""
        self.knots = bends(self._x, self.left)
        if self.knots:
            noise = _ERROR * np.random.default_rng(0).standard_normal(self._x.shape)
            self._of_hinges = least_squares(features(self._x + noise, self.knots)[:, self._x.shape[1] :], self.left)
            self.left = self.left - product(features(self._x, self.knots)[:, self._x.shape[1] :], self._of_hinges)
        return self

    def add_products(self) -> _Features:
        """Add products that explain a part of what is left."""
        self.products = products_of(self._x, self.left)
        if self.products:
            slopes, self.left = _regressed(features(self._x, (), self.products), self.left)
            self._linear = self._linear + slopes[: self._x.shape[1]]
            self._of_products = slopes[self._x.shape[1] :]
        return self


def _regressed(x: Matrix, y: Matrix) -> tuple[Matrix, Matrix]:
    """Return the slopes (G, K) of a regression of `y` (N, K) on `x` (N, G), and what it leaves of `y`."""
    slopes = least_squares(x, y, narrow=_ERROR**2)
    return slopes, y - product(x, slopes)


def _simpler(x: Matrix, rows: Matrix, outcomes: Sequence[int], optional: Collection[int]) -> list[int]:
    """Return the `outcomes`, without those `optional` ones that a regression with knots makes harder to model.

    Outcomes are columns of `rows` (N, D). The regression is on `x` (N, G) and on other outcomes. An outcome gets harder
    to model if its residual has a larger entropy. Example: a reward is nearly always about 0 and seldom large. A
    regression explains most of its variance, but the many rewards of about 0 become residuals that vary as much as the
    prediction does.
    """
    y = rows[:, list(outcomes)]
    lines = _LinearFit(x, y, np.ones(len(y), bool), (), bent=True)
    residuals = {outcomes[place]: left for place, left in zip(lines.places, lines.residual.T, strict=True)}

    def is_simpler(column: int) -> bool:
        before = rows[:, column]
        return _entropy(residuals[column], before) <= _entropy(before, before) + _SIMPLER

    return [column for column in outcomes if column not in optional or is_simpler(column)]


def _entropy(values: NDArray[np.float64], column: NDArray[np.float64]) -> float:
    """Estimate the entropy of `values` (N,), up to a constant, by the mean log spacing of order statistics.

    This is the estimator of Vasicek (1976). Rows are left out if their number in `column` (N,) occurs again and again.
    Returns 0 if most rows are left out.
    """
    some = slice(None, None, -(-len(column) // _TRIED))
    _, kind, count = np.unique(column[some], return_inverse=True, return_counts=True)
    rare = np.sort(values[some][count[kind] <= max(2, _OFTEN * len(kind))])
    if len(rare) < _MOST * len(kind):
        return 0.0
    apart = round(math.sqrt(len(rare)))
    return float(np.log(np.maximum(rare[2 * apart :] - rare[: -2 * apart], SMALLEST**2)).mean())


def _between(y: Matrix, ends: Sequence[tuple[float, float] | None]) -> NDArray[np.bool_]:
    """Return which rows of the outcomes `y` (N, K) are not at an end of a range. (N,)

    An outcome with more than a share of `_FEW` of its rows at its ends excludes no row.
    """
    between = np.ones(len(y), bool)
    for values, both in zip(y.T, ends, strict=True):
        if both is not None:
            out = (values < both[0]) | (values > both[1])
            if out.mean() <= _FEW:
                between &= ~out
    return between


def _inputs(x: Matrix, ends: Sequence[tuple[int, float, float]], waves: Sequence[tuple[int, float, float]]) -> Matrix:
    """Return the columns of `x` (N, G), clipped to their `ends`, then the gaps that clipping removed, then cosine and
    sine of circular columns. (N, G + E + 2 W)"""
    parts = [x]
    if ends:
        places = [place for place, _, _ in ends]
        numbers = x.copy()
        numbers[:, places] = x[:, places].clip([low for _, low, _ in ends], [high for _, _, high in ends])
        parts = [numbers, (x - numbers)[:, places]]
    if waves:
        angles = x[:, [place for place, _, _ in waves]] * [each for _, each, _ in waves] + [each for *_, each in waves]
        parts += [np.cos(angles), np.sin(angles)]
    return np.concatenate(parts, axis=1) if len(parts) > 1 else x


def _pivoted(covariance: Matrix, first: Sequence[int]) -> tuple[list[int], Matrix]:
    """Order the columns of a covariance (K, K) and factorise it in that order as L diag L^T.

    Returns the order, and the unit lower triangular factor L. Columns in `first` come first. After them the column with
    the largest remaining variance is always next.
    """
    left = covariance.copy()
    count = len(left)
    places: list[int] = []
    columns = []
    for forced in [*first, *[None] * (count - len(first))]:
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

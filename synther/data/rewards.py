"""Find a formula for the reward in the rest of a row (formulas.py).

A linear regression does not explain such a reward, and a network learns it only approximately. Terms of a formula are
chosen greedily, the one that explains most first. A formula is used if it explains nearly all that a linear regression
leaves. Then the matrix holds the residual of the formula instead of the reward, and the formula is evaluated on each
generated row. So generated rewards fit their rows.

A formula that explains only a part is worse than none, because the network would have to undo its nonlinearity.

Read `with_formula`, then `_found` for the search.

NOTE[paper]: the reference generates the reward like any other column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, combinations_with_replacement
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther.data.categories import OneHot
from synther.data.formulas import DIGITS, Formula, Input, Term, as_fields, values_of
from synther.data.identities import FIELDS
from synther.data.kind import by_column
from synther.data.lines import ROWS_PER_WEIGHT
from synther.data.numbers import Continuous, Spiked
from synther.data.transitions import PAIR, Transitions
from synther.data.values import Derived

if TYPE_CHECKING:
    from synther.data.layout import Layout

LEAVES = 0.04
"""A formula may leave at most this share of the variance that a linear regression leaves, in held-out rows."""
EXACT = 1e-3
"""For a reward with spikes, a formula must be this exact in 999 of 1,000 rows, in stds of the reward."""
ALL_OFF = 2e-5
"""If no row is off by more than this, in stds of the reward, the formula is the reward. The matrix then has no column
for it."""
_NO_MORE = 1e-6  # a regression that leaves at most this share of the reward's variance needs no formula
_DEPENDENT = 1e-5  # a term follows from others if they leave at most this share of its spread
_CHUNK = 1 << 16
_MOST_ROWS = 1 << 15  # maximum number of rows that a formula is fitted on
_TRIED = 1 << 12  # maximum number of rows in which its terms are chosen
_WIDEST = 256  # maximum number of inputs for which a formula is searched
_MOST_INPUTS = 32  # maximum number of columns of a field that terms are made of
_MOST_TERMS = 64  # maximum number of nonlinear terms
_ADDS = 0.01  # minimum share that a term has to explain of the variance that earlier terms leave
_LOSES = 1e-3  # terms are dropped if the residual variance grows by less than this share without them
_ERROR, _STEADY = 0.01, 0.1  # if each column is off by 0.01 of its std, the reward may be off by 0.1 of its std
_EXTREME = 100  # the highest and the lowest hundredth of rewards are where a search for a fixed point starts
_MOST_POINTS, _NEWTON_STEPS = 8, 20  # number of fixed points that are searched to the end, and of steps of each
_PASSES = 5  # number of times that several fixed points are improved in turn
_BETTER = 0.5  # a formula with fixed points leaves at most this share of what a formula without them leaves
_TOGETHER = 0.25  # fixed points that explain less of it, each alone, added up, cannot explain so much together
_LONGEST = 3  # maximum number of neighbouring columns of a length
_WAVES: tuple[Literal["cos", "sin"], ...] = ("cos", "sin")
_MOST_VALUES = 32  # an action with more unordered values is a single input


def with_exact_formula(layout: Layout, rows: Transitions) -> Layout:
    """Return the layout without a reward column if a formula computes the reward of every row exactly.

    This is for rewards that are not continuous, such as a count. The formula may also be linear, because the regression
    in residuals.py is not made for rewards of a few values.
    """
    (kind,) = layout.reward
    if isinstance(kind, (Continuous, Spiked)):
        return layout
    some = rows.shuffled(_MOST_ROWS)
    formula = _found(layout, some, some.reward.astype(np.float64), lines=True)
    if formula is None:
        return layout
    for written in formula.written(float(some.reward.std())):
        computed = (
            written(as_fields(chunk.arrays())).numpy().astype(rows.reward.dtype) for chunk in rows.chunks(_CHUNK)
        )
        if all((own == chunk.reward).all() for own, chunk in zip(computed, rows.chunks(_CHUNK), strict=True)):
            return replace(layout, reward=(Derived(),), formula=written)
    return layout


def with_formula(layout: Layout, rows: Transitions) -> Layout:
    """Return the layout in which the residual of a formula replaces the reward, if a formula is found.

    If the formula is exact in all rows, there is no reward column at all. The formula is searched in rows that go on.
    Terminal rows may have a constant reward in addition.
    """
    (kind,) = layout.reward
    if not isinstance(kind, (Continuous, Spiked)):
        return layout
    if layout.at_end is not None and len(layout.at_end.values) > 1:  # the reward column decides between these values
        return layout
    goes_on = ~rows.terminal
    ends = rows[rows.terminal] if 0.5 <= goes_on.mean() < 1 else None
    others = rows if ends is None else rows[goes_on]
    some = others.shuffled(_MOST_ROWS)
    std = float(some.reward.std(dtype=np.float64))
    reward, marks = some.reward.astype(np.float64), _marks(layout)
    formula = _found(layout, some, reward, lines=True)
    if layout.at_end is not None:
        rows, ends = others, None
    exact = _exact(layout, formula, rows, ends, std)
    if exact is None and marks:
        exact = _exact(layout, _found(layout, some, reward, marks, lines=True), rows, ends, std)
    if exact is not None or formula is None:
        return exact or layout
    price, off = _price(formula, ends, std), np.abs(_left(formula, some))
    follows = ends is None or np.abs(_left(formula, ends) - price).mean() <= off.max()
    is_enough = np.quantile(off, 0.999) <= EXACT * std if isinstance(kind, Spiked) else not formula.is_linear
    if not follows or not is_enough:
        return layout
    return replace(layout, reward=(Continuous(),), formula=formula, terminal_reward=price)


def _exact(
    layout: Layout, formula: Formula | None, rows: Transitions, ends: Transitions | None, std: float
) -> Layout | None:
    """Return the layout without a reward column if the formula, with weights of few digits if possible, is exact in all
    rows. Else return None."""
    for written in formula.written(std) if formula is not None else ():
        price = _price(written, ends, std)
        if all(_is_exact(written, price, chunk, std) for chunk in rows.chunks(_CHUNK)):
            return replace(layout, reward=(Derived(),), formula=written, terminal_reward=price)
    return None


def _left(formula: Formula, rows: Transitions) -> NDArray[np.float64]:
    """Return the rewards minus those that a formula gives. (N,)"""
    return np.asarray(rows.reward - formula(as_fields(rows.arrays())).numpy(), np.float64)


def _price(formula: Formula, ends: Transitions | None, std: float) -> float:
    """Return what terminal rows are paid beside a formula, in a few digits. Returns 0 if there are no such rows."""
    price = 0.0 if ends is None else float(f"{np.median(_left(formula, ends)):.{DIGITS[-1]}g}")
    return price if abs(price) > ALL_OFF * std else 0.0


def _is_exact(formula: Formula, price: float, rows: Transitions, std: float) -> bool:
    """Return whether a formula and the price of terminals give the reward of each row, which may be rounded."""
    off = np.abs(_left(formula, rows) - price * rows.terminal)
    return bool((off <= ALL_OFF * std + np.spacing(np.abs(rows.reward))).all())


def _found(
    layout: Layout, rows: Transitions, reward: NDArray[np.float64], marks: Sequence[Input] = (), *, lines: bool = False
) -> Formula | None:
    """Search a formula for the `reward` (N,) of some rows. Returns None if none is good enough.

    It is fitted to every second row and judged by the others. `marks` are inputs that only linear terms are made of.
    With `lines` the formula may be linear.
    """
    std, fields = float(reward.std()), as_fields(rows.arrays())
    inputs = [*_inputs(layout, fields), *marks]
    few = len(rows) < 2 * ROWS_PER_WEIGHT * (len(inputs) + _MOST_TERMS)
    if not std > 0 or few or not 0 < len(inputs) <= _WIDEST:
        return None
    raw = torch.stack([one(fields) for one in inputs])
    places = {one: place for place, one in enumerate(inputs)}
    last = {
        replace(one, field="next_observation"): place
        for one, place in places.items()
        if one.field == "observation" and one.value is None
    }
    paired = [last.get(one, place) for place, one in enumerate(inputs)]
    mean = raw.mean(1)[paired].tolist()  # observation and next observation share one mean: it cancels in differences
    y = torch.from_numpy(reward / std)
    # Linear terms: a next observation enters as its change, because it is nearly equal to the observation. The most
    # frequent value of a discrete action gets no term, so the weights of the others are relative to it.
    usual = {}
    for place in sorted(range(len(inputs) - len(marks)), key=lambda place: float(raw[place].mean())):
        if inputs[place].value is not None:
            usual[inputs[place].column] = place
    line = [
        Term("column", (place,), () if paired[place] == place else (paired[place],))
        for place in range(len(inputs))
        if place not in usual.values()
    ]
    ground = values_of(line, raw, mean, raw.dtype)
    changes = ground.std(1) / raw[[term.inputs[0] for term in line]].std(1)  # 1 for a column, less for its change
    own = _independent(ground, changes.nan_to_num().sort(descending=True, stable=True).indices)
    line, ground = [line[place] for place in own], ground[own]
    by_line = _Fit(_Table(line, ground, y))
    is_line = by_line.left <= _NO_MORE
    if is_line and not lines:
        return None

    def fitted(chosen: Sequence[Term]) -> _Fit:
        more = values_of(chosen, raw, mean, raw.dtype)
        return _Fit(_Table([*line, *chosen], torch.cat([ground, more]), y)).pruned()

    if is_line:
        chosen, fit = list[Term](), fitted(())
    else:
        some = slice(None, None, -(-raw.shape[1] // _TRIED))
        sample = _Sample(raw[:, some].contiguous(), mean, by_line.residual[some], by_line.table.values[:, some])
        plain = inputs[: len(inputs) - len(marks)]
        groups = _of_groups(layout, plain)
        chosen, fit = _searched(layout, plain, sample, fitted, groups)
        if groups and not fit.left <= LEAVES * by_line.left:
            chosen, fit = _searched(layout, plain, sample, fitted, set())
    if not is_line and not fit.left <= LEAVES * by_line.left:
        return None
    terms = [*line, *chosen]
    zero = [0.0] * len(mean)
    about_zero = _Fit(_Table(terms, values_of(terms, raw, zero, raw.dtype), y)).pruned()
    if about_zero.left <= max(1.1 * fit.left, _NO_MORE):  # a formula without means is easier to read
        fit, mean = about_zero, zero
    formula = Formula(
        tuple(inputs), tuple(mean), tuple(fit.terms), tuple((fit.weights * std).tolist()), fit.level * std
    )
    formula = formula.narrowed()
    return formula if _is_steady(formula, fields, std) else None


def _searched(
    layout: Layout,
    inputs: Sequence[Input],
    sample: _Sample,
    fitted: Callable[[Sequence[Term]], _Fit],
    groups: set[int],
) -> tuple[list[Term], _Fit]:
    """Return terms that explain what a linear regression leaves, and the fit with these terms. Fixed points are
    searched if the other terms do not explain everything. There are no lengths and distances of the inputs `groups`."""
    used = _used(inputs, sample)
    candidates = list(_candidates(inputs, used, layout, groups))
    chosen = sample.chosen(candidates)
    fit = fitted(chosen)
    if fit.left <= _NO_MORE:
        return chosen, fit
    near, everything = _near_points(inputs, used - groups, sample), float(sample.left[1::2].var())
    # A sum of |x - 1| and |y - 2| is nearly a distance of (x, y), so it is searched without lengths.
    for longest, beside in ((_LONGEST, candidates), (1, [term for term in candidates if term.name == "product"])):
        found = sample.points([term for term in near if len(term.inputs) <= longest])
        points = [term for explains, term in found if explains > _ADDS]
        if not points or sum(explains for explains, _ in found) < _TOGETHER * fit.left / everything:
            continue
        terms = sample.refined(sample.chosen([*beside, *points]))
        better = fitted(terms)
        if better.left < _BETTER * fit.left:
            chosen, fit = terms, better
        if fit.left <= _NO_MORE:
            break
    return chosen, fit


def _marks(layout: Layout) -> list[Input]:
    """Return inputs that are 1 where a column has one of its special values, such as an order of 0. Nothing ordered may
    save a fixed cost."""
    found = []
    for place in layout.places:
        side = place.field if place.field == "action" else PAIR[0]
        kind = by_column(getattr(layout, side)).get(place.source.start) if place.field in FIELDS else None
        spikes = kind.spikes if isinstance(kind, Spiked) else ()
        found += [Input(place.field, place.source.start, spike) for spike in spikes]
    return found


def _independent(values: Tensor, order: Tensor) -> list[int]:
    """Return the places of the terms that vary, and are no weighted sum of terms that come earlier in this order.

    `values` (T, N) are those of the terms.
    """
    fitted = values[order, ::2] - values[order, ::2].mean(1, keepdim=True)
    size = torch.linalg.vector_norm(fitted, dim=1)
    _, triangle = torch.linalg.qr(fitted.T, mode="r")
    own = (triangle.diagonal().abs() > _DEPENDENT * size) & (fitted.amax(1) > fitted.amin(1))
    return sorted(order[own].tolist())


def _is_steady(formula: Formula, fields: Mapping[str, Tensor], std: float) -> bool:
    """Return whether small errors of observation, action and step cause only small errors of the reward.

    Collinear columns can have large weights that cancel in real rows. In generated rows, which have small errors, they
    would not cancel.
    """
    draw = torch.Generator().manual_seed(0)

    def moved(values: Tensor) -> Tensor:
        return values + _ERROR * values.std(0) * torch.randn(values.shape, generator=draw, dtype=values.dtype)

    plain = {one.field for one in formula.inputs if one.is_number}
    here, there = fields["observation"], fields["next_observation"]
    action = moved(fields["action"]) if "action" in plain else fields["action"]
    off = {"observation": moved(here), "action": action}
    off["next_observation"] = off["observation"] + moved(there - here)
    for one in formula.inputs:
        if one.value is not None:  # special values of generated columns are exact
            values = fields[one.field][:, one.column]
            off[one.field][:, one.column].masked_fill_(values == one.value, one.value)
    return float((formula(off) - formula(fields)).std()) <= _STEADY * std


class _Table:
    """Values of terms in rows, and their moments for least squares. Fits use every second row; the others judge."""

    def __init__(self, terms: Sequence[Term], values: Tensor, y: Tensor) -> None:
        """`values` (T, N) are those of the terms, and `y` (N,) is the target."""
        self.terms = terms
        self.level, self.spread = values[:, ::2].mean(1), values[:, ::2].std(1)
        self.values = (values - self.level[:, None]) / self.spread[:, None]
        """Values of the terms, scaled to mean 0 and std 1. (T, N)"""
        self.y_level = y[::2].mean()
        self.target = y - self.y_level
        fitted = self.values[:, ::2].contiguous()
        self.moments = fitted @ fitted.T / fitted.shape[1]
        """Covariance of the terms. (T, T)"""
        self.target_moments = fitted @ self.target[::2] / fitted.shape[1]
        """Covariance of each term with the target. (T,)"""
        if not bool(self.moments.isfinite().all()):  # squares of huge numbers overflow
            self.moments = torch.eye(len(values), dtype=torch.float64)


class _Fit:
    """Least squares regression of a reward on some terms of a table."""

    def __init__(self, table: _Table, places: Sequence[int] | None = None) -> None:
        """`places` are the indices of the terms in the table. None means all terms."""
        self.table = table
        self._places = torch.arange(len(table.terms)) if places is None else torch.tensor(places)
        at = self._places
        self.terms = [table.terms[place] for place in at.tolist()]
        self._inverse = torch.linalg.pinv(table.moments[at][:, at], hermitian=True, rtol=1e-12)
        self._scaled = self._inverse @ table.target_moments[at]
        every_weight = torch.zeros_like(table.target_moments).index_copy(0, at, self._scaled)
        self.residual = table.target - every_weight @ table.values
        self.left = float(self.residual[1::2].var())
        """Residual variance in the rows that judge."""
        self._fitted_left = float(self.residual[::2].var())
        self.weights = self._scaled / table.spread[at]
        self.level = float(table.y_level - self.weights @ table.level[at])

    def pruned(self) -> _Fit:
        """Return a fit without the terms that explain nothing beside the others.

        Half of the useless terms are removed at a time, because of two equivalent terms one is still needed.
        """
        # How much the residual variance of the fitted rows grows without each term.
        cost = self._scaled.square() / self._inverse.diagonal().clamp(min=1e-300)
        useless = int((cost < _LOSES * max(self._fitted_left, _NO_MORE)).sum())
        if not useless or len(self.terms) == 1:
            return self
        fewer = _Fit(self.table, self._places[cost.argsort()[-(-useless // 2) :].sort().values].tolist())
        return fewer.pruned() if fewer.left <= 1.1 * max(self.left, _NO_MORE) else self


def _inputs(layout: Layout, fields: Mapping[str, Tensor]) -> list[Input]:
    """Return the inputs of a formula: all columns of observation, action and next observation.

    Constant columns are included, since a goal may be constant. A discrete action gives one input for each value, and a
    circular column gives its cosine and sine too.
    """
    found = []
    circles = {place.source.start: place.kind.circle for place in layout.places if place.field == "observation"}
    values = {place.source.start: place.kind.class_count for place in layout.places if place.field == "action"}
    for field in FIELDS:
        for column in range(fields[field].shape[1]):
            if field == "action" and 2 < values.get(column, 0) <= _MOST_VALUES:
                found += [Input(field, column, value) for value in np.unique(fields[field][:, column]).tolist()]
            else:
                found.append(Input(field, column))
            period = circles.get(column, 0.0) if field != "action" else 0.0
            if period:
                found += [Input(field, column, None, wave, period) for wave in _WAVES]
    return found


@dataclass(frozen=True)
class _Sample:
    """Rows in which the terms of a formula are chosen."""

    raw: Tensor
    """Values of the inputs. (C, N)"""
    mean: Sequence[float]
    """Mean of each input."""
    left: Tensor
    """What a linear regression leaves of the reward. (N,)"""
    ground: Tensor
    """Values of the terms of that regression. (T, N)"""

    def chosen(self, candidates: Sequence[Term]) -> list[Term]:
        """Choose terms greedily that explain what is left.

        This is forward selection by orthogonal least squares: after each choice, the chosen term is projected out of
        all candidates and out of the residual.
        """
        if not candidates:
            return []
        left, ground = self.left.float(), self.ground.float()
        values = values_of(candidates, self.raw, self.mean, torch.float32)
        values -= values.mean(1, keepdim=True)
        size = torch.linalg.vector_norm(values, dim=1).square()
        basis, _ = torch.linalg.qr((ground - ground.mean(1, keepdim=True)).T)
        values.addmm_(values @ basis, basis.T, alpha=-1)
        left = left - left.mean()
        left = left - basis @ (basis.T @ left)
        chosen: list[int] = []
        while len(chosen) < _MOST_TERMS:
            own = torch.linalg.vector_norm(values, dim=1).square()
            explains = torch.where(own > 1e-6 * size, (values @ left).square() / own.clamp(min=1e-30), torch.zeros(()))
            best = int(explains.argmax())
            if not float(explains[best]) > _ADDS * float(left.square().sum()) or not torch.isfinite(explains[best]):
                break
            chosen.append(best)
            direction = values[best] / own[best].sqrt()
            left = left - (direction @ left) * direction
            values.addr_(values @ direction, direction, alpha=-1)
            values[chosen] = 0.0
            if float(left.square().mean()) < 1e-10:
                break
        return [candidates[place] for place in chosen]

    def points(self, near: Sequence[Term]) -> list[tuple[float, Term]]:
        """Return the best fixed points near some others, and the share that each of them explains alone."""
        search = _PointSearch(self.raw, self.left, self.ground)
        return [search.best(term) for term in near[:_MOST_POINTS]]

    def refined(self, terms: Sequence[Term]) -> list[Term]:
        """Return the `terms` with better fixed points, which are found beside all other terms."""
        found = [*terms]
        places = [place for place, term in enumerate(terms) if term.name == "point"]
        for _ in range(_PASSES if len(places) > 1 else 1):
            for place in places:
                others = values_of([*found[:place], *found[place + 1 :]], self.raw, self.mean, self.raw.dtype)
                search = _PointSearch(self.raw, self.left, torch.cat([self.ground, others]))
                _, found[place] = search.best(found[place])
        return found


def _near_points(inputs: Sequence[Input], used: set[int], sample: _Sample) -> list[Term]:
    """Return distances of neighbouring columns from a fixed point, such as a goal that never moves.

    Each point is one step of a search, which starts from the mean of the columns in rows where most is left, or least.
    The points that explain most come first.
    """
    places = {(inputs[place].field, inputs[place].column): place for place in used if inputs[place].is_number}
    blocks: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for size in range(1, _LONGEST + 1):
        for first in range(max((column for _, column in places), default=-1) + 1):
            here, there = (tuple(places.get((side, first + more), -1) for more in range(size)) for side in PAIR)
            blocks += [(block, ()) for block in (here, there) if min(block) >= 0]
            blocks += [(there, here)] if min(*here, *there) >= 0 else []
    search, most = _PointSearch(sample.raw, sample.left, sample.ground), max(1, len(sample.left) // _EXTREME)
    starts = [sample.left.topk(most, largest=largest).indices for largest in (True, False)]

    def nearer(block: tuple[int, ...], minus: tuple[int, ...]) -> tuple[float, Term]:
        """Return the better one of the two starts, after a step."""
        means = (sample.raw[list(block)][:, rows].mean(1).tolist() for rows in starts)
        return max((search.improved(Term("point", block, minus, tuple(mean))) for mean in means), key=_share)

    return [term for _, term in sorted((nearer(*block) for block in blocks), key=_share, reverse=True)]


def _share(found: tuple[float, Term]) -> float:
    return found[0]


class _PointSearch:
    """Gauss-Newton search for a fixed point, the distance from which explains what a regression leaves."""

    def __init__(self, raw: Tensor, left: Tensor, ground: Tensor) -> None:
        """`raw` (C, N) are the values of the inputs, `left` (N,) is to be explained beside the values `ground` (T,
        N)."""
        self._raw = raw
        self._basis, _ = torch.linalg.qr((ground - ground.mean(1, keepdim=True)).T)
        self._left = self._unexplained((left - left.mean())[None])[0]

    def _unexplained(self, values: Tensor) -> Tensor:
        """Return what a regression on the ground leaves of values (K, N) of mean 0."""
        left: Tensor = values - (values @ self._basis) @ self._basis.T
        return left

    def improved(self, term: Term) -> tuple[float, Term]:
        """Return the share of the variance that the term explains, with a point near its own, and the term with the
        best such point inside the range of the columns."""
        centre = self._raw.new_tensor(term.centre)[:, None]
        values = torch.zeros((1 + len(centre), self._raw.shape[1]), dtype=self._raw.dtype)
        for block, sign in ((term.inputs, 1.0), (term.minus, -1.0)):
            if block:
                away = self._raw[list(block)] - centre
                length = away.square().sum(0).sqrt() if len(block) > 1 else away[0].abs()
                values += sign * torch.cat([length[None], away / length.clamp(min=1e-12)])
        values = self._unexplained(values - values.mean(1, keepdim=True))
        moments, explained = values @ values.T, values @ self._left
        if not bool(moments.isfinite().all() & explained.isfinite().all()):  # squares of huge numbers overflow
            return 0.0, term
        weights = torch.linalg.pinv(moments, hermitian=True, rtol=1e-12) @ explained
        share = float(explained @ weights / self._left.square().sum().clamp(min=1e-30))
        block_values = self._raw[list(term.inputs)]
        moved = (centre[:, 0] - weights[1:] / weights[0]).nan_to_num()
        moved = torch.minimum(torch.maximum(moved, block_values.amin(1)), block_values.amax(1))
        return share, replace(term, centre=tuple(moved.tolist()))

    def best(self, term: Term) -> tuple[float, Term]:
        """Return the term with the best point that a search from its own finds, and the share that it explains."""
        explains = 0.0
        for _ in range(_NEWTON_STEPS):
            before = np.array(term.centre)
            explains, term = self.improved(term)
            if np.allclose(before, term.centre, rtol=1e-9, atol=0.0):
                break
        return explains, term


def _used(inputs: Sequence[Input], sample: _Sample) -> set[int]:
    """Return the inputs that terms are made of.

    If a field has too many columns, those are chosen whose squares explain most of what a linear regression leaves.
    """
    squares = (sample.raw - sample.raw.mean(1, keepdim=True)).square().float()
    squares -= squares.mean(1, keepdim=True)
    explained = ((squares @ sample.left.float()).square() / squares.square().sum(1).clamp(min=1e-30)).tolist()
    used: set[int] = set()
    for fields in (("action",), PAIR):
        places = [place for place, one in enumerate(inputs) if one.field in fields]
        score: dict[int, float] = {}
        for place in places:
            column = inputs[place].column
            score[column] = max(explained[place], score.get(column, 0.0))
        best = {*sorted(score, key=lambda column: -score[column])[:_MOST_INPUTS]}
        used |= {place for place in places if inputs[place].column in best}
    return used


def _of_groups(layout: Layout, inputs: Sequence[Input]) -> set[int]:
    """Return the inputs that are columns of one-hot groups. Formulas are searched without their lengths and distances
    first: with other terms, a distance between a position and a group may be right in all real rows by chance."""
    groups = [
        place.source for place in layout.places if place.field == "observation" and isinstance(place.kind, OneHot)
    ]
    columns = {column for group in groups for column in range(group.start, group.stop)}
    return {place for place, one in enumerate(inputs) if one.field in PAIR and one.column in columns}


def _candidates(inputs: Sequence[Input], used: set[int], layout: Layout, groups: set[int]) -> Iterator[Term]:
    """Yield all nonlinear terms that may be in a formula, of the inputs in `used`."""
    places = {(one.field, one.column): place for place, one in enumerate(inputs) if one.is_number and place in used}
    state = sorted(column for field, column in places if field == "observation" and (FIELDS[2], column) in places)
    action = [place for place, one in enumerate(inputs) if one.field == "action" and place in used]
    numbers = [place for place in action if inputs[place].value is None]

    def at(field: str, columns: Sequence[int]) -> tuple[int, ...]:
        return tuple(places[field, column] for column in columns)

    circles = [
        sphere.columns
        for sphere in layout.spheres
        if len(sphere.columns) == 2 and sphere.is_round and {*sphere.columns} <= {*state}
    ]
    figures: list[tuple[Any, Sequence[int]]] = [("product", pair) for pair in combinations_with_replacement(state, 2)]
    alone = sorted({*state} - {inputs[place].column for place in groups})
    blocks = [
        [tuple(range(first, first + size)) for first in alone if {*range(first, first + size)} <= {*alone}]
        for size in range(1, _LONGEST + 1)
    ]
    figures += [("length", block) for own in blocks for block in own]
    figures += [("distance", one + two) for own in blocks for one, two in combinations(own, 2)]
    yield from (Term("distance", at(FIELDS[2], block) + at(FIELDS[0], block)) for own in blocks for block in own)
    figures += [("angle", pair) for first, second in circles for pair in ((first, second), (second, first))]
    for name, columns in figures:
        here, there = at(FIELDS[0], columns), at(FIELDS[2], columns)
        yield Term(name, here)
        yield Term(name, there)
        yield Term(name, there, here)
    for one in state:
        now, then = places[FIELDS[0], one], places[FIELDS[2], one]
        for two in state:
            yield Term("product", (now, places[FIELDS[2], two]), (now, places[FIELDS[0], two]))
        for place in action:
            yield from (Term("product", (place, now)), Term("product", (place, then)))
            yield Term("product", (place, then), (place, now))
        for place in numbers:
            yield from (Term("distance", (place, now)), Term("distance", (place, then)))
    yield from (Term("product", pair) for pair in combinations_with_replacement(numbers, 2))
    waves = [place for place, one in enumerate(inputs) if one.wave and place in used]
    yield from (Term("product", pair) for pair in combinations_with_replacement(waves, 2))
    for place in waves:
        yield from (Term("product", (place, other)) for other in (*places.values(), *action))
    for size in range(1, _LONGEST + 1):
        for first in range(len(numbers) - size + 1):
            yield Term("length", tuple(numbers[first : first + size]))

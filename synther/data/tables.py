"""Which discrete outcomes follow from a few discrete columns alone, so that tables can stand for them (following.py).

An outcome that other columns have a part in stays as it is: one that real numbers explain (a leg that touches the
ground), or that explains real numbers, whose share in it the tables would hide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from synther.data.following import Classes, Following, class_count, class_rows
from synther.data.kinds import Array, Binary, Categorical, Codebook, Drawn, Kind, Levels, Matrix, OneHot
from synther.data.layout import Layout
from synther.data.lines import least_squares
from synther.data.residuals import bends
from synther.data.transitions import ROW_FIELDS, Transitions

MOST_VALUES = 64
"""Of a column, or group of columns, that is counted."""
_MOST_PARENTS = 3
_MOST_SHARES = 1 << 15  # of a table,
_ROWS_PER_CELL = 5  # and rows for each combination of what an outcome follows from
_FEWEST_ROWS = 1_000
_EXPLAINED = 0.02  # share of variance that real numbers may explain of what a table leaves open,
_EXPLAINS = 0.005  # and that this may explain of real numbers
_ERRORS, _SHIFT = 6.0, 0.25  # standard errors, and stds, by which real numbers may be others beside a value
_CERTAIN = 0.05  # share of an outcome's variance that is left to chance
_SAMPLED = 1 << 17  # rows that tables are counted in
_PAIRED = 1 << 14  # rows, and numbers, in which products are looked at
_MOST_PAIRED = 32
_COMMON = 0.01  # variance of a value's share from which products are looked at: of rarer ones chance tells too much
_MOST_PRODUCTS, _RIDGE = 512, 0.5  # that are looked at together, and how small their weights are kept
_DISCRETE = (Binary, Categorical, OneHot, Levels, Codebook)
_NOMINAL, _MOST_NAMES = (Categorical, OneHot, Codebook), 512  # values without an order, as far as they are looked at
_FOLLOWING = ("next_observation", "reward", "terminal")  # each may follow from those before it


def with_tables(layout: Layout, rows: Transitions, decided: bool = False) -> Layout:
    """The same layout with discrete outcomes drawn from tables, where `rows` show that they follow from discrete
    columns alone. Terminals that are `decided` elsewhere take no part."""
    some = rows if len(rows) <= _SAMPLED else rows.subsample(_SAMPLED / len(rows), 0)
    sources = {field: array.reshape(len(some), -1) for field, array in layout.columns_from(some).items()}
    numbers: dict[bool, list[Array]] = {True: [np.empty((len(some), 0))], False: [np.empty((len(some), 0))]}
    discrete, outcomes, names = {}, [], [np.empty((len(some), 0))]
    for number, place in enumerate(layout.places):
        if decided and place.field == "terminal":
            continue
        is_small = 2 <= class_count(place.kind) <= MOST_VALUES
        if isinstance(place.kind, _DISCRETE) and place.field in ROW_FIELDS and is_small:
            discrete[number] = layout.values(number, sources)
            if place.field in _FOLLOWING:
                outcomes.append(number)
        elif isinstance(place.kind, _NOMINAL) and place.field in ("observation", "action"):
            if place.kind.class_count <= _MOST_NAMES:
                names.append(np.eye(place.kind.class_count)[layout.values(number, sources)])
        elif place.kind.matrix_width:
            column = sources[place.field][:, place.source].astype(np.float64)
            numbers[place.field in ("observation", "action")].append(column)
    outcomes.sort(key=lambda number: _FOLLOWING.index(layout.places[number].field))
    ends = [number for number in outcomes if layout.places[number].field == "terminal"]  # which none may come upon
    counts = {number: class_count(layout.places[number].kind) for number in discrete}
    given, after = (np.concatenate(numbers[is_given], axis=1) for is_given in (True, False))
    found = find(discrete, counts, outcomes, given, after, certain=ends, names=np.concatenate(names, axis=1))
    drawn, chosen = {table.outcome for table in found}, {field: list[Kind]() for field in ROW_FIELDS}
    for number, place in enumerate(layout.places):
        if place.field in chosen:
            chosen[place.field].append(Drawn(class_rows(place.kind)) if number in drawn else place.kind)
    return replace(layout, **{field: tuple(own) for field, own in chosen.items()}, following=tuple(found))  # type: ignore[arg-type]


def find(
    discrete: Mapping[int, Classes],
    counts: Mapping[int, int],
    outcomes: Sequence[int],
    given: Matrix,
    after: Matrix,
    certain: Sequence[int] = (),
    names: Matrix | None = None,
) -> list[Following]:
    """Tables for those of the `outcomes` that follow from discrete columns alone.

    `discrete` has the values of each discrete place in some rows, `counts` how many values it has. `given` (N, G) are
    the real numbers of observation and action, `after` (N, A) those of reward and next observation. Outcomes that must
    be `certain` have no table that leaves much to chance. `names` (N, K) are the codes of values that are too many to
    be counted.
    """
    if not outcomes or len(after) < _FEWEST_ROWS:
        return []
    given = _standard(given)
    earlier = [place for place in discrete if place not in outcomes]
    uncounted = np.empty((len(given), 0)) if names is None else names
    values = _standard(np.concatenate([uncounted, *(_codes(discrete, counts, one) for one in earlier)], axis=1))
    found: list[Following] = []
    open_ended: list[Matrix] = []
    for outcome in outcomes:
        table = _counted(outcome, earlier, discrete, counts)
        left = _left(table, discrete)
        spread = _codes(discrete, counts, outcome).var(0).sum()
        is_chance = outcome in certain and left.var(0).sum() > _CERTAIN * spread
        if is_chance or _explained(given, left, values) > _EXPLAINED or _go_with(given, left):
            open_ended.append(_codes(discrete, counts, outcome))
        else:
            found.append(table)
        earlier.append(outcome)
    if not found:
        return []
    others = _standard(np.concatenate([_standard(after), *open_ended], axis=1))
    others = _standard(others - _told(given, others))
    return [
        table
        for table in found
        if _explains(table, discrete, others) <= _EXPLAINS and not _go_with(others, _left(table, discrete))
    ]


def _codes(discrete: Mapping[int, Classes], counts: Mapping[int, int], place: int) -> Matrix:
    """1 for the value that each row has, and else 0. (N, K)"""
    return np.eye(counts[place])[discrete[place]]


def _counted(
    outcome: int, earlier: Sequence[int], discrete: Mapping[int, Classes], counts: Mapping[int, int]
) -> Following:
    """The table with the parents that are worth their number: by the Bayesian information criterion."""
    values, size = discrete[outcome], counts[outcome]
    cells, parents = np.zeros(len(values), np.int64), list[int]()
    best = _criterion(cells, values, size)
    while len(parents) < _MOST_PARENTS:
        most = min(len(values) // _ROWS_PER_CELL, _MOST_SHARES // size)
        tried = []
        for parent in earlier:
            total = math.prod(counts[one] for one in (*parents, parent))
            if parent not in parents and total <= most:
                tried.append((_criterion(cells * counts[parent] + discrete[parent], values, size), parent))
        if not tried or min(tried)[0] >= best:
            break
        best, chosen = min(tried)
        parents.append(chosen)
        cells = cells * counts[chosen] + discrete[chosen]
    sizes = tuple(counts[parent] for parent in parents)
    shares, cells = (np.bincount(values, minlength=size) / len(values))[None], np.zeros(len(values), np.int64)
    for parent in parents:  # a combination that was never seen: as without the last of its values, which tells least
        cells = cells * counts[parent] + discrete[parent]
        shares = np.repeat(shares, counts[parent], axis=0)
        joint = np.bincount(cells * size + values, minlength=shares.size).reshape(shares.shape)
        seen = joint.sum(1, keepdims=True)
        shares = np.where(seen > 0, joint / np.maximum(seen, 1), shares)
    return Following(outcome, tuple(parents), sizes, tuple(map(tuple, shares.tolist())))


def _criterion(cells: Classes, values: Classes, size: int) -> float:
    """Nats that the values cost where the cells are known, and half a logarithm of the rows for each share."""
    _, joint = np.unique(cells * size + values, return_counts=True)
    _, alone = np.unique(cells, return_counts=True)
    nats = float((alone * np.log(alone)).sum() - (joint * np.log(joint)).sum())
    return nats + 0.5 * math.log(len(values)) * (len(joint) - len(alone))


def _left(table: Following, discrete: Mapping[int, Classes]) -> Matrix:
    """Which value each row has, less the share that the table gives it. (N, K)"""
    values = discrete[table.outcome]
    shares = np.array(table.shares)[table.cells(discrete, len(values))]
    return np.asarray(np.eye(shares.shape[1])[values] - shares)


def _explained(given: Matrix, left: Matrix, values: Matrix) -> float:
    """The largest share of a column's variance that a line, a bent line, or products explain: of two real numbers, or
    of one and whether a discrete column has some value. All are of std 1."""
    left = left[:, left.std(0) > 1e-3]
    if not given.shape[1] or not left.shape[1]:
        return 0.0
    if bends(given, left):
        return 1.0
    most, often = _told_share(given, left), left[:: -(-len(given) // _PAIRED), left.var(0) > _COMMON]
    if often.shape[1]:
        given, values = (each[:: -(-len(each) // _PAIRED)] for each in (given, values))
        most = max(most, _told_share(_products(given, often, values), often))
    return most


def _told_share(x: Matrix, left: Matrix) -> float:
    """The largest share of a column's variance that a line in `x` explains, judged by every second row. The line has
    small weights, so that five hundred products that tell nothing do not hide what one tells."""
    half = np.arange(len(x)) % 2 == 0
    mean, std = x[half].mean(0), np.maximum(x[half].std(0), 1e-12)
    known, asked = (x[half] - mean) / std, (x[~half] - mean) / std
    middle, ridge = left[half].mean(0), _RIDGE * len(known) * np.eye(x.shape[1])
    weights = np.linalg.solve(known.T @ known + ridge, known.T @ (left[half] - middle))
    gain = 1 - ((left[~half] - middle - asked @ weights) ** 2).mean(0) / np.maximum(left[~half].var(0), 1e-12)
    return float(gain.max())


def _products(given: Matrix, left: Matrix, values: Matrix) -> Matrix:
    """Real numbers, and the products that what is left goes with most, in every second row: what a hundred items have
    to do with a number is in a hundred products, of which each tells next to nothing."""
    half = np.arange(len(given)) % 2 == 0
    wanted = _standard(left[half])
    factors = [np.concatenate([given[:, place:_MOST_PAIRED], values], axis=1) for place in range(given.shape[1])]
    columns = zip(given.T[:_MOST_PAIRED], factors[:_MOST_PAIRED], strict=True)
    pairs = [partial(np.multiply, column[:, None], own) for column, own in columns]
    goes = [_correlation(make()[half], wanted) for make in pairs]
    ranked = np.sort(np.concatenate([np.zeros(1), *goes]))
    least = ranked[-min(_MOST_PRODUCTS, len(ranked))]
    return np.concatenate([given, *(make()[:, own > least] for make, own in zip(pairs, goes, strict=True))], axis=1)


def _correlation(columns: Matrix, wanted: Matrix) -> Matrix:
    """The largest one of each column with those that are `wanted`, which have mean 0 and std 1."""
    mean, std = columns.mean(0), np.maximum(columns.std(0), 1e-12)
    return np.asarray(np.abs(((columns - mean) / std).T @ wanted).max(1, initial=0.0) / len(columns))


def _go_with(columns: Matrix, left: Matrix) -> bool:
    """Whether columns of std 1, or how far they are from their mean, are others where a value comes unexpectedly.

    A value in a thousand rows explains little of anybody's variance, even if it comes beyond some line alone.
    """
    left = left[:, left.std(0) > 1e-6]
    columns = np.concatenate([columns, _standard(np.abs(columns))], axis=1)
    size = (left**2).sum(0)[:, None]
    together = left.T @ columns
    return bool(((np.abs(together) > _ERRORS * np.sqrt(size)) & (np.abs(together) > _SHIFT * size)).any())


def _explains(table: Following, discrete: Mapping[int, Classes], others: Matrix) -> float:
    """The largest share of the variance of `others`, within a cell of the table, that the outcome explains."""
    values, size = discrete[table.outcome], len(table.shares[0])
    cells = table.cells(discrete, len(values))
    half = np.arange(len(values)) % 2 == 0
    largest = 0.0
    for column in others.T:
        rest = column - _group_means(cells, column, half)
        told = _group_means(cells * size + values, rest, half)
        variance = rest[~half].var()
        if variance > 1e-6:
            largest = max(largest, float(1 - ((rest - told)[~half] ** 2).mean() / variance))
    return largest


def _group_means(groups: Classes, values: Matrix, fitted: NDArray[np.bool_]) -> Matrix:
    """For each row the mean of its group, taken from the rows `fitted`; 0 for a group of fewer than five."""
    count = int(groups.max()) + 1
    seen = np.bincount(groups[fitted], minlength=count)
    totals = np.bincount(groups[fitted], weights=values[fitted], minlength=count)
    means = np.where(seen >= _ROWS_PER_CELL, totals / np.maximum(seen, 1), 0.0)
    return np.asarray(means[groups])


def _told(given: Matrix, others: Matrix) -> Matrix:
    """What a line in real numbers tells about others."""
    return np.asarray(given @ least_squares(given, others)) if given.shape[1] else np.zeros_like(others)


def _standard(columns: Matrix) -> Matrix:
    """Those that vary, with mean 0 and std 1."""
    std = columns.std(0)
    varies = std > 1e-12 * np.maximum(np.abs(columns).max(0, initial=0.0), 1e-300)
    return np.asarray((columns[:, varies] - columns[:, varies].mean(0)) / std[varies])

"""Find discrete outcomes that depend only on a few discrete columns, so that they can be drawn from tables.

Example: the next value of a timer depends only on its last value. following.py has the tables. An outcome is not drawn
from a table if real numbers explain it (such as whether a leg touches the ground), or if it explains real numbers,
because then the network has to generate them together.

`with_tables` prepares the columns, `find` decides which outcomes get a table, and `_counted` builds one table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from synther.data.bends import bends
from synther.data.following import Classes, Following, class_count, class_rows
from synther.data.holding import told_by_flags
from synther.data.kind import by_column
from synther.data.kinds import Array, Binary, Categorical, Codebook, Drawn, Kind, Levels, Matrix, OneHot
from synther.data.layout import Layout
from synther.data.lines import least_squares
from synther.data.transitions import PAIR, ROW_FIELDS, Transitions
from synther.data.wrapping import cosines_and_sines

MOST_VALUES = 64
"""Maximum number of values of a column, or group of columns, that is an outcome or a parent of a table."""
_MOST_PARENTS = 3  # columns that an outcome may depend on
_MOST_SHARES = 1 << 15  # maximum number of entries of a table
_ROWS_PER_CELL = 5  # rows per combination of parent values that are needed at least, on average
_FEWEST_ROWS = 1_000  # rows that are needed to look for tables
_EXPLAINED = 0.02  # maximum share of the variance of a table's residuals that real numbers may explain
_EXPLAINS = 0.005  # maximum share of the variance of real numbers that an outcome may explain
_ERRORS, _SHIFT = 6.0, 0.25  # a mean differs clearly if it is off by more than 6 standard errors and 0.25 stds
_CERTAIN = 0.05  # maximum share of the variance that a table may leave open, for outcomes that must not be random
_SAMPLED = 1 << 17  # rows that the tables are counted in
_PAIRED = 1 << 14  # rows in which products are tested
_MOST_PAIRED = 32  # real numbers that products are formed of
_FEWEST_NAMED = 20  # rows that a value of a category must have to take part in them: rarer ones are outliers
_COMMON = 0.01  # products are tested only for values with this variance of their 0/1 code; rarer ones are too noisy
_MOST_PRODUCTS, _RIDGE = 512, 0.5  # products that are tested in one regression, and its ridge penalty per row
_FEWEST_COUNTS = 8  # different values that a count has at least
_USUAL, _LARGEST_CHANGE = 0.99, 0.5  # share of the changes of a count that are below half of its range
_MANY_VALUES = 64  # number of values of tabled counts together, above which they are ordered
_NEAR_AN_END = 0.25  # share of a count's values that are near the lower end of its range, and near the upper end
_DISCRETE = (Binary, Categorical, OneHot, Levels, Codebook)
_NOMINAL, _MOST_NAMES = (Categorical, OneHot, Codebook), 512  # kinds without an order, and the most values of one
_FOLLOWING = ("next_observation", "reward", "terminal")  # fields of outcomes; each may depend on those before it


def with_tables(layout: Layout, rows: Transitions, decided: bool = False) -> Layout:
    """Return the same layout, with those discrete outcomes drawn from tables that depend only on discrete columns, as
    measured in `rows`. With `decided`, terminals are ignored, because a tree decides about them."""
    some = rows.shuffled(_SAMPLED)
    sources = {field: array.reshape(len(some), -1) for field, array in layout.columns_from(some).items()}
    numbers: dict[bool, list[Array]] = {True: [np.empty((len(some), 0))], False: [np.empty((len(some), 0))]}
    discrete, outcomes, names = {}, [], [np.empty((len(some), 0))]
    held = told_by_flags(layout, rows)
    for number, place in enumerate(layout.places):
        if decided and place.field == "terminal":
            continue
        is_small = 2 <= class_count(place.kind) <= MOST_VALUES
        is_held = place.field == PAIR[1] and place.source.start in held  # its change is generated
        if isinstance(place.kind, _DISCRETE) and place.field in ROW_FIELDS and is_small and not is_held:
            discrete[number] = layout.values(number, sources)
            if place.field in _FOLLOWING:
                outcomes.append(number)
        elif isinstance(place.kind, _NOMINAL) and place.field in ("observation", "action"):
            if place.kind.class_count <= _MOST_NAMES:
                names.append(np.eye(place.kind.class_count)[layout.values(number, sources)])
        elif place.kind.matrix_width:
            column = sources[place.field][:, place.source].astype(np.float64)
            if place.kind.circle:
                column = cosines_and_sines(column, [place.kind.circle])
            numbers[place.field in ("observation", "action")].append(column)
    outcomes.sort(key=lambda number: _FOLLOWING.index(layout.places[number].field))
    ends = [number for number in outcomes if layout.places[number].field == "terminal"]  # these must not be random
    counts = {number: class_count(layout.places[number].kind) for number in discrete}
    given, after = (np.concatenate(numbers[is_given], axis=1) for is_given in (True, False))
    found = find(discrete, counts, outcomes, given, after, certain=ends, names=np.concatenate(names, axis=1))
    drawn, chosen = {table.outcome for table in found}, {field: list[Kind]() for field in ROW_FIELDS}
    for number, place in enumerate(layout.places):
        if place.field in chosen:
            chosen[place.field].append(Drawn(class_rows(place.kind)) if number in drawn else place.kind)
    return replace(layout, **{field: tuple(own) for field, own in chosen.items()}, following=tuple(found))  # type: ignore[arg-type]


def count_columns(layout: Layout, rows: Transitions) -> list[int]:
    """Return the observation columns that are modelled as categories, but count something, such as a queue.

    A network that generates the next count as a category scatters it more than the environment does. It had better
    generate the change. A column is a count if its changes are small and depend little on its value, except near the
    ends of its range: an empty queue does not get shorter. The description length tells: changes given the action take
    no more bits than next values given value and action.

    `layout` has its tables already, and outcomes that are drawn from them are no candidates. Actions that are numbers,
    or have too many values together, are not told apart.
    """
    some = rows.shuffled(_SAMPLED)
    actions, action = np.unique(some.action.reshape(len(some), -1), axis=0, return_inverse=True)
    if len(some) < _FEWEST_ROWS:
        return []
    kinds = by_column(layout.next_observation).items()
    single = [column for column, kind in kinds if isinstance(kind, Codebook) and kind.source_width == 1]
    before, after, cells = some.observation, some.next_observation, action.ravel() * (len(actions) <= MOST_VALUES)
    return [column for column in single if _is_count(before[:, column], after[:, column], cells)]


def ordered_columns(layout: Layout, rows: Transitions) -> list[int]:
    """Return the observation columns that are modelled as categories, but count something, and whose next values are
    drawn from tables of the `layout`. Return none if they have few values together.

    The tables stay, but the observation is ordered. So a network learns how many such columns depend on each other: of
    eight queues with twenty values each, it learns too little. If there are few values, categories are better, because
    what happens may depend on a single value, such as 0.
    """
    some = rows.shuffled(_SAMPLED)
    sources = {field: array.reshape(len(some), -1) for field, array in layout.columns_from(some).items()}
    kinds, found = by_column(layout.observation), list[int]()
    single = {column for column, kind in kinds.items() if isinstance(kind, Codebook) and kind.source_width == 1}
    for table in layout.following:
        outcome = layout.places[table.outcome]
        column = outcome.source.start
        if outcome.field != PAIR[1] or column not in single or len(some) < _FEWEST_ROWS:
            continue
        cells = np.zeros(len(some), np.int64)
        for number in table.parents:
            parent = layout.places[number]
            if (parent.field, parent.source.start) != (PAIR[0], column):
                cells = cells * class_count(parent.kind) + layout.values(number, sources)
        if _is_count(some.observation[:, column], some.next_observation[:, column], cells):
            found.append(column)
    return found if sum(kinds[column].class_count for column in found) > _MANY_VALUES else []


def _is_count(before: Array, after: Array, cells: Classes) -> bool:
    """Return whether a column with these values (N,) and next values (N,) is a count. `cells` (N,) tells apart what its
    changes depend on, such as the action."""
    values, last = np.unique(before, return_inverse=True)
    next_values, following = np.unique(after, return_inverse=True)
    changes, change = np.unique(after.astype(np.float64) - before, return_inverse=True)
    span = float(values[-1]) - float(values[0])
    if len(values) < _FEWEST_COUNTS or np.quantile(np.abs(changes[change]), _USUAL) > _LARGEST_CHANGE * span:
        return False
    near = round(_NEAR_AN_END * len(values))
    inner = np.where((near <= last) & (last < len(values) - near), near, last)  # one number for all values in between
    by_value, by_change = (
        _criterion(cells * len(values) + known, outcome, size)
        for known, outcome, size in ((last, following, len(next_values)), (inner, change, len(changes)))
    )
    return by_change <= by_value


def find(
    discrete: Mapping[int, Classes],
    counts: Mapping[int, int],
    outcomes: Sequence[int],
    given: Matrix,
    after: Matrix,
    certain: Sequence[int] = (),
    names: Matrix | None = None,
) -> list[Following]:
    """Return tables for those of the `outcomes` that depend only on discrete columns.

    `discrete` holds the class (N,) of each discrete place in some rows, and `counts` its number of classes. `given`
    (N, G) are the real numbers of observation and action, `after` (N, A) those of reward and next observation. An
    outcome in `certain` gets a table only if the table leaves little to chance. `names` (N, K) are the one-hot codes of
    columns with too many categories for a table.
    """
    if not outcomes or len(after) < _FEWEST_ROWS:
        return []
    given = _standard(given)
    earlier = [place for place in discrete if place not in outcomes]
    uncounted = np.empty((len(given), 0)) if names is None else names
    values = _standard(np.concatenate([uncounted, *(_codes(discrete, counts, one) for one in earlier)], axis=1))
    found: list[Following] = []
    generated: list[Matrix] = []  # codes of the outcomes without a table
    for outcome in outcomes:
        table = _counted(outcome, earlier, discrete, counts)
        left = _residuals(table, discrete)
        spread = _codes(discrete, counts, outcome).var(0).sum()
        is_chance = outcome in certain and left.var(0).sum() > _CERTAIN * spread
        if is_chance or _explained(given, left, values) > _EXPLAINED or _go_with(given, left):
            generated.append(_codes(discrete, counts, outcome))
        else:
            found.append(table)
        earlier.append(outcome)
    if not found:
        return []
    others = _standard(np.concatenate([_standard(after), *generated], axis=1))
    others = _standard(others - _predicted(given, others))
    return [
        table
        for table in found
        if _explains(table, discrete, others) <= _EXPLAINS and not _go_with(others, _residuals(table, discrete))
    ]


def _codes(discrete: Mapping[int, Classes], counts: Mapping[int, int], place: int) -> Matrix:
    """Return the one-hot codes of the values of a place. (N, K)"""
    return np.eye(counts[place])[discrete[place]]


def _counted(
    outcome: int, earlier: Sequence[int], discrete: Mapping[int, Classes], counts: Mapping[int, int]
) -> Following:
    """Return the table of an outcome. Its parents are chosen greedily among the `earlier` places, as long as they lower
    the Bayesian information criterion."""
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
    # A combination that never occurs gets the shares without its last parent, which is the least informative one.
    for parent in parents:
        cells = cells * counts[parent] + discrete[parent]
        shares = np.repeat(shares, counts[parent], axis=0)
        joint = np.bincount(cells * size + values, minlength=shares.size).reshape(shares.shape)
        seen = joint.sum(1, keepdims=True)
        shares = np.where(seen > 0, joint / np.maximum(seen, 1), shares)
    return Following(outcome, tuple(parents), sizes, tuple(map(tuple, shares.tolist())))


def _criterion(cells: Classes, values: Classes, size: int) -> float:
    """Return half the Bayesian information criterion of a table, in nats: the negative log-likelihood of the `values`
    given their `cells`, plus 0.5 log(N) for each free share."""
    _, joint = np.unique(cells * size + values, return_counts=True)
    _, alone = np.unique(cells, return_counts=True)
    nats = float((alone * np.log(alone)).sum() - (joint * np.log(joint)).sum())
    return nats + 0.5 * math.log(len(values)) * (len(joint) - len(alone))


def _residuals(table: Following, discrete: Mapping[int, Classes]) -> Matrix:
    """Return the one-hot codes of the outcome minus the shares that the table predicts. (N, K)"""
    values = discrete[table.outcome]
    shares = np.array(table.shares)[table.cells(discrete, len(values))]
    return np.asarray(np.eye(shares.shape[1])[values] - shares)


def _explained(given: Matrix, left: Matrix, values: Matrix) -> float:
    """Return the largest share of the variance of a column of the residuals `left` (N, K) that real numbers explain.

    The real numbers `given` (N, G) enter a linear regression, a piecewise linear one, and a linear one with products of
    two of them, or of one of them and a column of `values` (N, V), the codes of discrete columns. All have std 1.
    Return 1 if the piecewise linear regression is better than the linear one.
    """
    left = left[:, left.std(0) > 1e-3]
    if not given.shape[1] or not left.shape[1]:
        return 0.0
    if bends(given, left):
        return 1.0
    most = _ridge_score(given, left)
    common = left[:: -(-len(given) // _PAIRED), left.var(0) > _COMMON]
    if common.shape[1]:
        given, values = (each[:: -(-len(each) // _PAIRED)] for each in (given, values))
        values = values[:, (values > 0).sum(0) >= _FEWEST_NAMED]
        most = max(most, _ridge_score(_products(given, common, values), common))
    return most


def _ridge_score(x: Matrix, left: Matrix) -> float:
    """Return the largest share of the variance of a column of `left` that a ridge regression on `x` explains.

    The regression is fitted on every second row and tested on the others. The ridge keeps the weights small, so that
    500 uninformative products do not hide an informative one.
    """
    half = np.arange(len(x)) % 2 == 0
    mean, std = x[half].mean(0), np.maximum(x[half].std(0), 1e-12)
    fitted, tested = (x[half] - mean) / std, (x[~half] - mean) / std
    level, ridge = left[half].mean(0), _RIDGE * len(fitted) * np.eye(x.shape[1])
    weights = np.linalg.solve(fitted.T @ fitted + ridge, fitted.T @ (left[half] - level))
    gain = 1 - ((left[~half] - level - tested @ weights) ** 2).mean(0) / np.maximum(left[~half].var(0), 1e-12)
    return float(gain.max())


def _products(given: Matrix, left: Matrix, values: Matrix) -> Matrix:
    """Return the real numbers and up to `_MOST_PRODUCTS` products with the strongest correlation with the residuals.

    The correlation is measured on every second row. Many products are needed, because the effect of a hundred
    categories on a number is spread over a hundred products, and each of them explains next to nothing.
    """
    half = np.arange(len(given)) % 2 == 0
    wanted = _standard(left[half])
    factors = [np.concatenate([given[:, place:_MOST_PAIRED], values], axis=1) for place in range(given.shape[1])]
    columns = zip(given.T[:_MOST_PAIRED], factors[:_MOST_PAIRED], strict=True)
    pairs = [partial(np.multiply, column[:, None], own) for column, own in columns]
    strength = [_correlation(make()[half], wanted) for make in pairs]
    ranked = np.sort(np.concatenate([np.zeros(1), *strength]))
    least = ranked[-min(_MOST_PRODUCTS, len(ranked))]
    return np.concatenate([given, *(make()[:, own > least] for make, own in zip(pairs, strength, strict=True))], axis=1)


def _correlation(columns: Matrix, wanted: Matrix) -> Matrix:
    """Return for each column its largest absolute correlation with a column of `wanted`, which have mean 0 and std
    1."""
    mean, std = columns.mean(0), np.maximum(columns.std(0), 1e-12)
    return np.asarray(np.abs(((columns - mean) / std).T @ wanted).max(1, initial=0.0) / len(columns))


def _go_with(columns: Matrix, left: Matrix) -> bool:
    """Return whether columns of std 1, or their distances from their mean, differ clearly in rows where a value occurs
    that the table did not expect.

    This finds a rare value that occurs only beyond some threshold of a column. A value of one row in a thousand
    explains little variance, so `_explained` would miss it.
    """
    left = left[:, left.std(0) > 1e-6]
    columns = np.concatenate([columns, _standard(np.abs(columns))], axis=1)
    size = (left**2).sum(0)[:, None]
    together = left.T @ columns
    return bool(((np.abs(together) > _ERRORS * np.sqrt(size)) & (np.abs(together) > _SHIFT * size)).any())


def _explains(table: Following, discrete: Mapping[int, Classes], others: Matrix) -> float:
    """Return the largest share of the variance of a column of `others`, within the cells of the table, that the outcome
    explains. The means are taken from every second row and tested on the others."""
    values, size = discrete[table.outcome], len(table.shares[0])
    cells = table.cells(discrete, len(values))
    half = np.arange(len(values)) % 2 == 0
    largest = 0.0
    for column in others.T:
        rest = column - _group_means(cells, column, half)
        means = _group_means(cells * size + values, rest, half)
        variance = rest[~half].var()
        if variance > 1e-6:
            largest = max(largest, float(1 - ((rest - means)[~half] ** 2).mean() / variance))
    return largest


def _group_means(groups: Classes, values: Matrix, fitted: NDArray[np.bool_]) -> Matrix:
    """Return for each row the mean of its group over the rows marked in `fitted`, or 0 if the group has fewer than
    `_ROWS_PER_CELL` of them. (N,)"""
    count = int(groups.max()) + 1
    seen = np.bincount(groups[fitted], minlength=count)
    totals = np.bincount(groups[fitted], weights=values[fitted], minlength=count)
    means = np.where(seen >= _ROWS_PER_CELL, totals / np.maximum(seen, 1), 0.0)
    return np.asarray(means[groups])


def _predicted(given: Matrix, others: Matrix) -> Matrix:
    """Return what a linear regression on the real numbers `given` predicts for `others`."""
    return np.asarray(given @ least_squares(given, others)) if given.shape[1] else np.zeros_like(others)


def _standard(columns: Matrix) -> Matrix:
    """Return the columns that vary, scaled to mean 0 and std 1."""
    std = columns.std(0)
    varies = std > 1e-12 * np.maximum(np.abs(columns).max(0, initial=0.0), 1e-300)
    return np.asarray((columns[:, varies] - columns[:, varies].mean(0)) / std[varies])

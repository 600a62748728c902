"""Measure novelty, memorisation and coverage from exact distances between synthetic and real rows.

Distances are Euclidean over all columns of a row. Each column is in stds of the real rows. Columns that are constant in
the real rows are left out. `nearest` is the search that all measures use.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from synther.assess.fidelity import at_most, check_columns, matrices_of
from synther.assess.standard import Standard
from synther.data.transitions import Transitions
from synther.errors import DataError

Array = NDArray[Any]

QUERY_ROWS = 2_000
"""Number of random rows for which neighbours are searched. Shares of them have a standard error of about 0.01."""

BALL = 5
"""Number of the neighbour that defines the radius of a ball in `coverage`."""

MEMORISED_SHARE = 0.05
"""Share of held-out rows that count as suspiciously close to a training row; see `memorised`."""

_MOST_STARTS, _MOST_EXPECTED = 1_000, 100
"""Largest number of first observations in `start_coverage`, and of the neighbours of each."""

_STARTS_TOGETHER = 16  # first observations whose distances to all rows are computed together
_LIMIT = 1e4  # scaled values are clipped to this range, in stds
_GROUP_ROWS = 128  # rows for which `nearest` keeps one approximate distance
_BLOCK_ROWS = 16 * _GROUP_ROWS  # rows in one matrix product
_ROUNDING = float(np.finfo(np.float32).eps)


def nearest(known: Array, queries: Array, neighbours: int = 1, *, device: torch.device | str = "cpu") -> Array:
    """Return the distances of each row of `queries` (m, D) to its nearest rows of `known` (n, D), nearest first.

    The result is (m, neighbours). The search is exact, and copies have distance 0. First, matrix products in float32
    give the approximate distance to the nearest row of each group of known rows. Rounding errors are large there,
    because large numbers are subtracted, but they have a known bound. Then all groups that can contain a neighbour are
    searched with differences in float64.
    """
    if not 1 <= neighbours <= len(known):
        raise DataError(f"cannot find {neighbours} neighbours among {len(known)} rows: expected 1 to {len(known)}")
    groups = -(-len(known) // _GROUP_ROWS)
    known = known[np.argsort(_lengths(known), kind="stable")]  # large rows, which have large errors, in few groups
    # |a - b|^2 / 2 - |a|^2 / 2 is one product: (-a, 1) . (b, |b|^2 / 2). |a|^2 / 2 is the same for all b.
    centre = known.mean(axis=0, dtype=np.float64).astype(np.float32)  # smaller numbers have smaller rounding errors
    b = np.zeros((groups * _GROUP_ROWS, known.shape[1] + 1), np.float32)
    b[: len(known), :-1] = known - centre
    b[:, -1] = np.square(b).sum(axis=1) / 2
    b[len(known) :, -1] = np.inf  # rows that fill up the last group are infinitely far
    a = torch.from_numpy(np.hstack([centre - queries, np.ones_like(queries[:, :1])])).to(device)
    product = a.new_empty(len(queries), _BLOCK_ROWS)
    rough = np.empty((len(queries), groups), np.float32)
    for start in range(0, len(b), _BLOCK_ROWS):
        part = torch.from_numpy(b[start : start + _BLOCK_ROWS]).to(device)
        farness = torch.mm(a, part.T, out=product if len(part) == _BLOCK_ROWS else None)
        least = farness.view(len(queries), -1, _GROUP_ROWS).amin(dim=2)
        rough[:, start // _GROUP_ROWS :][:, : least.shape[1]] = least.cpu().numpy()
    # Upper bound of the rounding errors of a sum of D + 1 products and of the differences in them.
    lengths = _lengths(b[:, :-1]).reshape(groups, _GROUP_ROWS).max(axis=1)
    bound = _ROUNDING * (known.shape[1] + 4) * np.square(_lengths(a[:, :-1].cpu().numpy())[:, None] + lengths)
    each = zip(queries, rough.astype(np.float64), bound, strict=True)
    return np.stack([_exact(known, row, least - error, least + error, neighbours) for row, least, error in each])


def _lengths(rows: Array) -> Array:
    lengths: Array = np.sqrt(np.square(rows, dtype=np.float64).sum(axis=1))
    return lengths


def _exact(known: Array, row: Array, low: Array, high: Array, neighbours: int) -> Array:
    """Return the exact distances to the k nearest rows.

    The nearest row of each group lies between `low` and `high` (groups,). The k nearest rows are not further away than
    the k-th smallest `high`. Groups with a larger `low` contain none of them and are skipped.
    """
    count = min(neighbours, len(high))
    chosen = np.flatnonzero(low <= np.partition(high, count - 1)[count - 1])
    rows = (chosen[:, None] * _GROUP_ROWS + np.arange(_GROUP_ROWS)).ravel()
    candidates = known[rows[rows < len(known)]].astype(np.float64)
    squares = np.square(candidates - row).sum(axis=1)
    distances: Array = np.sqrt(np.sort(np.partition(squares, neighbours - 1)[:neighbours]))
    return distances


def scaled_rows(real: Transitions, *others: Transitions) -> list[Array]:
    """Return the rows of `real` and of the others as float32 matrices, in stds of the real rows, without extra
    columns."""
    matrices = matrices_of(*(rows.without_extra() if rows.extra else rows for rows in (real, *others)))
    standard = Standard.of(matrices[0])
    return [standard.scaled(matrix, _LIMIT) * standard.varies.astype(np.float32) for matrix in matrices]


def novelty(real: Transitions, synthetic: Transitions, *, max_rows: int = QUERY_ROWS, seed: int = 0) -> float:
    """Return the median distance of synthetic rows to their nearest real row.

    Range 0 (copies) to infinity. The best value is that of new real rows, because copies teach nothing and distant rows
    can be wrong. All real rows are searched, for at most `max_rows` synthetic rows, which are drawn with `seed`.
    """
    check_columns(real, synthetic)
    known, queries = scaled_rows(real, at_most(synthetic, max_rows, seed))
    return float(np.median(nearest(known, queries)))


def memorised(held_out: Array, synthetic: Array) -> tuple[float, float]:
    """Return the share of synthetic rows that are suspiciously close to a training row, and that of held-out real rows.

    Both arguments are distances to the nearest training row. A row is suspiciously close if it is as close as the
    closest 5 % of the held-out rows. Held-out rows that are exact copies do not count here: real rows can repeat (same
    start, a grid), and the threshold would be 0. Range 0 to 1. The second figure is best. 1 means that the generator
    repeats its data.
    """
    apart = held_out[held_out > 0]
    near = float(np.quantile(apart, MEMORISED_SHARE, method="inverted_cdf")) if len(apart) else 0.0
    return float(np.mean(synthetic <= near)), float(np.mean(held_out <= near))


def start_coverage(
    observation: Array, episodes: Array, synthetic: Array, *, device: torch.device | str = "cpu"
) -> float:
    """Return the share of first observations of real episodes that have a synthetic observation nearby.

    `episodes` (n,) are the numbers of the episodes, in order. The radius of "nearby" is the larger one of two
    distances: half the distance to the nearest real observation that is not a first one, and the radius of the ball
    into which 5 episodes would come if the synthetic observations were distributed like the real ones. Range 0 to 1;
    real rows reach 1.

    The ball is measured in other episodes. Each episode may have something that no other has, such as its goal, and
    then its own rows are nearer than any new ones.
    """
    standard = Standard.of(observation)
    known, others = (
        standard.scaled(rows, _LIMIT) * standard.varies.astype(np.float32) for rows in (observation, synthetic)
    )
    is_first = np.diff(episodes, prepend=-1) > 0
    starts = np.flatnonzero(is_first)
    chosen = np.arange(len(starts))[:: -(-len(starts) // _MOST_STARTS)]
    centres = known[starts[chosen]]
    expected = math.ceil(BALL * len(known) / len(others))
    radius = np.zeros(len(centres))
    if len(starts) > 1:
        count = min(expected, len(starts) - 1, _MOST_EXPECTED)
        radius = _distance_to_episodes(known, starts, chosen, count)
    if not is_first.all():
        radius = np.maximum(radius, nearest(known[~is_first], centres, device=device)[:, 0] / 2)
    return float(np.mean(nearest(others, centres, device=device)[:, 0] <= radius))


def _distance_to_episodes(known: Array, starts: Array, chosen: Array, count: int) -> Array:
    """Return the distances of first rows to the nearest row of the `count`-th nearest other episode. (m,)

    `starts` (E,) are the first rows of the episodes in `known` (n, D), and `chosen` (m,) the episodes whose first rows
    are meant.
    """
    rows = known.astype(np.float64)
    squares, found = np.square(rows).sum(1), []
    for part in np.array_split(chosen, -(-len(chosen) // _STARTS_TOGETHER)):
        centres = rows[starts[part]]
        apart = squares - 2 * centres @ rows.T + squares[starts[part], None]
        nearest_rows = np.minimum.reduceat(apart, starts, axis=1)
        nearest_rows[np.arange(len(part)), part] = np.inf
        found.append(np.partition(nearest_rows, count - 1, axis=1)[:, count - 1])
    return np.asarray(np.sqrt(np.maximum(np.concatenate(found), 0.0)))


def coverage(centres: Array, reference: Array, others: Array, *, device: torch.device | str = "cpu") -> float:
    """Return the share of `centres` (real rows) that have at least one of `others` in their ball.

    The radius of a ball is the distance to the fifth nearest row of `reference` (other real rows). This is the coverage
    of Naeem et al. (2020), but the centres are not part of the reference. Range 0 to 1; higher is better. With as many
    others as reference rows, real rows reach 1 - 2^-5 = 0.97.
    """
    ball = min(BALL, len(reference))
    radius = nearest(reference, centres, ball, device=device)[:, -1]
    distance = nearest(others, centres, device=device)[:, 0]
    return float(np.mean(distance <= radius))

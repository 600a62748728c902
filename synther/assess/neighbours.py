"""Where synthetic rows lie among the real ones: exact nearest neighbours, and what follows from their distances.

Distances are Euclidean over all columns of a row, every column in stds of the real rows; columns that never
change among those are left out.
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
"""Rows whose neighbours are looked for, drawn at random: a share of them is known to one in a hundred."""

BALL = 5
"""The neighbour whose distance is the radius of the ball that `coverage` looks into."""

MEMORISED_SHARE = 0.05
"""Share of held-out rows that count as near a training row; see `memorised`."""

_MOST_STARTS, _MOST_EXPECTED = 1_000, 100
"""First observations that are looked at, and neighbours of each."""

_LIMIT = 1e4
_GROUP_ROWS = 128
_BLOCK_ROWS = 16 * _GROUP_ROWS
_ROUNDING = float(np.finfo(np.float32).eps)


def nearest(known: Array, asked: Array, neighbours: int = 1, *, device: torch.device | str = "cpu") -> Array:
    """Distances of each row of `asked` (m, D) to its `neighbours` nearest rows of `known` (n, D), nearest first.

    Every pair is looked at. A product of matrices in float32 tells for each group of known rows how near its nearest
    row is. That is rough, because it subtracts large numbers, but how rough is known: all groups which may hold a
    neighbour are gone through once more with differences in float64. So a copy is at distance 0.
    """
    if not 1 <= neighbours <= len(known):
        raise DataError(f"cannot find {neighbours} neighbours among {len(known)} rows: expected at most as many")
    groups = -(-len(known) // _GROUP_ROWS)
    known = known[np.argsort(_lengths(known), kind="stable")]  # so that few groups hold large numbers, which are rough
    # |a - b|^2 / 2 without |a|^2 / 2, which is the same for all b, is one product: (-a, 1) . (b, |b|^2 / 2)
    centre = known.mean(axis=0, dtype=np.float64).astype(np.float32)  # the smaller the numbers, the less is lost
    there = np.zeros((groups * _GROUP_ROWS, known.shape[1] + 1), np.float32)
    there[: len(known), :-1] = known - centre
    there[:, -1] = np.square(there).sum(axis=1) / 2
    there[len(known) :, -1] = np.inf  # rows that fill up the last group are nobody's neighbours
    here = torch.from_numpy(np.hstack([centre - asked, np.ones_like(asked[:, :1])])).to(device)
    product = here.new_empty(len(asked), _BLOCK_ROWS)
    rough = np.empty((len(asked), groups), np.float32)
    for start in range(0, len(there), _BLOCK_ROWS):
        part = torch.from_numpy(there[start : start + _BLOCK_ROWS]).to(device)
        farness = torch.mm(here, part.T, out=product if len(part) == _BLOCK_ROWS else None)
        least = farness.view(len(asked), -1, _GROUP_ROWS).amin(dim=2)
        rough[:, start // _GROUP_ROWS :][:, : least.shape[1]] = least.cpu().numpy()
    # A sum of D + 1 products, and the differences that went into them, are off by less than this.
    lengths = _lengths(there[:, :-1]).reshape(groups, _GROUP_ROWS).max(axis=1)
    off = _ROUNDING * (known.shape[1] + 4) * np.square(_lengths(here[:, :-1].cpu().numpy())[:, None] + lengths)
    each = zip(asked, rough.astype(np.float64), off, strict=True)
    return np.stack([_exact(known, row, least - far, least + far, neighbours) for row, least, far in each])


def _lengths(rows: Array) -> Array:
    lengths: Array = np.sqrt(np.square(rows, dtype=np.float64).sum(axis=1))
    return lengths


def _exact(known: Array, row: Array, low: Array, high: Array, neighbours: int) -> Array:
    """The nearest row of a group lies between `low` and `high` (groups,). So the k-th lowest `high` is no nearer than
    the k-th nearest row, and groups whose `low` is beyond it hold none of the k."""
    count = min(neighbours, len(high))
    chosen = np.flatnonzero(low <= np.partition(high, count - 1)[count - 1])
    rows = (chosen[:, None] * _GROUP_ROWS + np.arange(_GROUP_ROWS)).ravel()
    candidates = known[rows[rows < len(known)]].astype(np.float64)
    squares = np.square(candidates - row).sum(axis=1)
    found: Array = np.sqrt(np.sort(np.partition(squares, neighbours - 1)[:neighbours]))
    return found


def scaled_rows(real: Transitions, *others: Transitions) -> list[Array]:
    """The rows of `real` and of all others, without extra columns, as float32 matrices, in stds of the real ones."""
    matrices = matrices_of(*(rows.without_extra() if rows.extra else rows for rows in (real, *others)))
    standard = Standard.of(matrices[0])
    return [standard.scaled(matrix, _LIMIT) * standard.varies.astype(np.float32) for matrix in matrices]


def novelty(real: Transitions, synthetic: Transitions, *, max_rows: int = QUERY_ROWS, seed: int = 0) -> float:
    """Median distance of a synthetic row to its nearest real row.

    Range 0 (copies) to infinity. Neither end is best: copies teach nothing, and far rows may be wrong. The best
    value is that of new real rows. Every real row is searched; of the synthetic ones at most `max_rows`, drawn with
    `seed`.
    """
    check_columns(real, synthetic)
    known, asked = scaled_rows(real, at_most(synthetic, max_rows, seed))
    return float(np.median(nearest(known, asked)))


def memorised(held_out: Array, synthetic: Array) -> tuple[float, float]:
    """Share of synthetic rows that are suspiciously near a training row, and the same share of held-out real rows.

    Both arguments are distances to the nearest training row. Near is what only one in twenty held-out rows is, of
    those that are no copies of a training row: real rows may repeat (the same start, a grid), and copies alone would
    make every other row look far. Range 0 to 1; best is the second figure, 1 is a generator that replays its data.
    """
    apart = held_out[held_out > 0]
    near = float(np.quantile(apart, MEMORISED_SHARE, method="inverted_cdf")) if len(apart) else 0.0
    return float(np.mean(synthetic <= near)), float(np.mean(held_out <= near))


def start_coverage(observation: Array, starts: Array, synthetic: Array, *, device: torch.device | str = "cpu") -> float:
    """Share of first observations of real episodes that have a synthetic observation nearby.

    `starts` (n,) marks the first observations. Nearby is up to half the distance to the nearest real observation that
    is not a first one, or within the ball where 5 synthetic observations would lie if they were distributed as real
    ones, whichever is further. Range 0 to 1; real rows reach 1.
    """
    standard = Standard.of(observation)
    known, asked = (
        standard.scaled(rows, _LIMIT) * standard.varies.astype(np.float32) for rows in (observation, synthetic)
    )
    centres = known[starts][:: -(-int(starts.sum()) // _MOST_STARTS)]
    expected = math.ceil(BALL * len(known) / len(asked))
    radius = nearest(known, centres, min(expected + 1, len(known), _MOST_EXPECTED), device=device)[:, -1]  # 1: itself
    if not starts.all():
        radius = np.maximum(radius, nearest(known[~starts], centres, device=device)[:, 0] / 2)
    return float(np.mean(nearest(asked, centres, device=device)[:, 0] <= radius))


def coverage(centres: Array, reference: Array, others: Array, *, device: torch.device | str = "cpu") -> float:
    """Share of `centres` (real rows) that have one of `others` in their ball, which reaches to the fifth nearest of
    `reference` (more real rows): the coverage of Naeem et al. (2020) with centres that are not among the reference.

    Range 0 to 1; higher is better. With as many others as reference rows, real rows reach 1 - 2^-5 = 0.97.
    """
    ball = min(BALL, len(reference))
    radius = nearest(reference, centres, ball, device=device)[:, -1]
    distance = nearest(others, centres, device=device)[:, 0]
    return float(np.mean(distance <= radius))

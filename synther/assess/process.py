"""Project rows at several noise levels on the first two principal components of the real rows, for the report."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from synther.assess.assessment import Process
from synther.errors import DataError

Array = NDArray[Any]

MAX_LEVELS = 10
"""Largest number of noise levels that are kept. More levels or rows would make the page larger, but not clearer."""
MAX_REAL = 1_500
"""Largest number of real rows that are kept."""
MAX_ROWS = 300
"""Largest number of rows that are kept at each noise level."""

_CHUNK_ROWS = 1 << 16


def project(real: ArrayLike, paths: ArrayLike, sigmas: ArrayLike, *, frames: Sequence[bytes] = ()) -> Process:
    """Project rows at several noise levels, and the real rows, on the first two principal components of the real rows.

    `real` (n, D) are the real rows. `paths` (levels, rows, D) are the rows at the noise levels `sigmas`. Both must have
    the same scale. With one column, the second coordinate is 0. `frames` are PNG files of the state of one row, one for
    each level. If there are more than `MAX_LEVELS` levels, levels at equal distances are kept, including the first and
    the last one. The same holds for rows.
    """
    known, steps = np.asarray(real), np.asarray(paths)
    levels = np.asarray(sigmas, np.float64)
    _check(known, steps, levels, frames)
    centre = known.mean(axis=0, dtype=np.float64)
    axes, explained = plane(known)
    kept = _evenly(len(steps), MAX_LEVELS)
    rows = steps[np.ix_(kept, _evenly(steps.shape[1], MAX_ROWS))]
    return Process(
        sigmas=tuple(float(sigma) for sigma in levels[kept]),
        real=_pairs((known[_evenly(len(known), MAX_REAL)] - centre) @ axes),
        steps=tuple(_pairs((step - centre) @ axes) for step in rows),
        explained=explained,
        frames=tuple(base64.b64encode(frames[level]).decode() for level in kept) if frames else (),
    )


def plane(rows: ArrayLike) -> tuple[Array, float]:
    """Return the first two principal components of (n, D) as columns (D, 2), and the share of variance they explain.

    The entry of each component with the largest absolute value is positive. Components without variance are 0, and
    so is the second component of a single column. If all rows are equal, the share is 1.
    """
    values = np.asarray(rows)
    mean = values.mean(axis=0, dtype=np.float64)
    covariance = np.zeros((values.shape[1],) * 2)
    for start in range(0, len(values), _CHUNK_ROWS):
        centred = values[start : start + _CHUNK_ROWS] - mean
        covariance += centred.T @ centred
    directions, strengths, _ = np.linalg.svd(covariance, hermitian=True)
    axes = np.zeros((len(covariance), 2))
    for at in range(min(2, len(strengths))):
        if strengths[at] > 1e-12 * strengths[0]:
            direction = directions[:, at]
            axes[:, at] = direction * np.sign(direction[np.argmax(np.abs(direction))])
    total = float(strengths.sum())
    return axes, float(strengths[:2].sum()) / total if total > 0 else 1.0


def _check(real: Array, paths: Array, sigmas: Array, frames: Sequence[bytes]) -> None:
    if real.ndim != 2 or 0 in real.shape:
        raise DataError(f"real rows must form a matrix (n, D) with at least one entry, got shape {real.shape}")
    if paths.ndim != 3 or 0 in paths.shape or paths.shape[2] != real.shape[1]:
        raise DataError(f"paths must have shape (levels, rows, {real.shape[1]}), none of them 0, got {paths.shape}")
    if sigmas.shape != paths.shape[:1]:
        raise DataError(f"expected one noise level for each of the {len(paths)} steps, got shape {sigmas.shape}")
    if frames and len(frames) != len(paths):
        raise DataError(f"expected one frame for each of the {len(paths)} steps, or no frames, got {len(frames)}")
    for name, values in (("real rows", real), ("paths", paths), ("noise levels", sigmas)):
        if not np.isfinite(values).all():
            raise DataError(f"the {name} contain values that are not finite: remove these rows")


def _evenly(count: int, most: int) -> Array:
    """Return at most `most` of the numbers 0 to count - 1, at equal distances, including both ends."""
    return np.unique(np.rint(np.linspace(0, count - 1, min(count, most))).astype(np.int64))


def _pairs(places: Array) -> tuple[tuple[float, float], ...]:
    """Return the coordinates with four digits, which is enough for a drawing."""
    return tuple((float(f"{x:.4g}"), float(f"{y:.4g}")) for x, y in places)

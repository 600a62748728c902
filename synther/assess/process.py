"""Where rows are on their way from noise to data, in the plane in which the real rows differ most."""

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
MAX_REAL = 1_500
MAX_ROWS = 300
"""Noise levels, real rows and rows on their way that are kept: more make a page larger and no clearer."""

_CHUNK_ROWS = 1 << 16


def project(real: ArrayLike, paths: ArrayLike, sigmas: ArrayLike, *, frames: Sequence[bytes] = ()) -> Process:
    """Rows `paths` (levels, rows, D) at the noise levels `sigmas`, and the real rows (n, D), both scaled alike.

    The plane is that of the real rows' two main directions; each points to where its largest entry is positive. With
    one column the second place is 0. `frames` are PNG files, one for each level, of the state of one row. Of more than
    `MAX_LEVELS` levels, some are chosen at even distances, the first and the last among them; of many rows too.
    """
    known, steps = np.asarray(real), np.asarray(paths)
    levels = np.asarray(sigmas, np.float64)
    _check(known, steps, levels, frames)
    centre = known.mean(axis=0, dtype=np.float64)
    axes, explained = plane(known)
    shown = _evenly(len(steps), MAX_LEVELS)
    rows = steps[np.ix_(shown, _evenly(steps.shape[1], MAX_ROWS))]
    return Process(
        sigmas=tuple(float(sigma) for sigma in levels[shown]),
        real=_pairs((known[_evenly(len(known), MAX_REAL)] - centre) @ axes),
        steps=tuple(_pairs((step - centre) @ axes) for step in rows),
        explained=explained,
        frames=tuple(base64.b64encode(frames[level]).decode() for level in shown) if frames else (),
    )


def plane(rows: ArrayLike) -> tuple[Array, float]:
    """Two main directions of (n, D) as columns (D, 2), and the share of the variance that lies in them.

    A direction along which nothing varies is 0, and so is one that does not exist. Rows that are all alike have no
    variance outside the plane: the share is 1.
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
        raise DataError(f"expected a frame for each of the {len(paths)} steps, or none at all, got {len(frames)}")
    for name, values in (("real rows", real), ("paths", paths), ("noise levels", sigmas)):
        if not np.isfinite(values).all():
            raise DataError(f"the {name} hold values that are no finite numbers: leave those rows out")


def _evenly(count: int, most: int) -> Array:
    """At most `most` of the numbers 0 to count - 1, at even distances, with both ends."""
    return np.unique(np.rint(np.linspace(0, count - 1, min(count, most))).astype(np.int64))


def _pairs(places: Array) -> tuple[tuple[float, float], ...]:
    """Four digits are more than a drawing shows."""
    return tuple((float(f"{x:.4g}"), float(f"{y:.4g}")) for x, y in places)

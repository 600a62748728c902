"""How often a column stays exactly as it is in a step, such as a budget that nothing was bought from.

A generator that makes every value change a little has errors that are small next to the std of the column. Means and
correlations do not show them, but no step looks like a real one. Values at an end of the range, such as a clipped
velocity, stay for another reason and are not counted.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.assess.figure import Figure, standard_error
from synther.data.transitions import Transitions

Array = NDArray[Any]

FEWEST = 0.005
"""Smallest share of real rows in which a column must stay, and in which it must change."""

_NOTHING = 0.01  # a change below this share of the median change counts as none


def figures(
    reference: Transitions,
    synthetic: Transitions,
    held_out: Transitions,
    episodes: Array | None = None,
    synthetic_episodes: Array | None = None,
) -> dict[str, Figure]:
    """Return `held_rate` of the worst column, or nothing if no column stays in a part of the reference rows.

    `episodes` and `synthetic_episodes` are the episode numbers of reference and synthetic rows, if they are known.
    """
    worst: tuple[float, Figure] | None = None
    for column in range(reference.observation.shape[1]):
        change, values = _changes(reference, column), reference.observation[:, column]
        ends = float(values.min()), float(values.max())
        if min(float(np.mean(_stays(reference, column, 0.0, ends))), float(np.mean(change > 0))) < FEWEST:
            continue
        least = _NOTHING * float(np.median(change[change > 0]))
        stays = [_stays(rows, column, least, ends) for rows in (reference, synthetic, held_out)]
        known, value, real = (float(np.mean(each)) for each in stays)
        alone, error, error_real = (float(standard_error(each)) for each in stays)
        by_episodes = float(standard_error(stays[0], episodes)) / alone
        error *= 1.0 if synthetic_episodes is None else by_episodes
        chance = 2 * math.hypot(error, by_episodes * error_real) + abs(real - known)
        off = abs(value - real) - chance
        if worst is None or off > worst[0]:
            worst = off, Figure(value, real, chance, detail=f"observation[{column}]")
    return {} if worst is None else {"held_rate": worst[1]}


def _stays(rows: Transitions, column: int, least: float, ends: tuple[float, float]) -> NDArray[np.bool_]:
    """Return in which rows a column changes by at most `least`, and is not at an end of its range. (N,)"""
    values = rows.observation[:, column]
    return np.asarray((_changes(rows, column) <= least) & (values > ends[0]) & (values < ends[1]))


def _changes(rows: Transitions, column: int) -> Array:
    """Return by how much a column of the observation changes. (N,)"""
    here, there = (side[:, column].astype(np.float64) for side in (rows.observation, rows.next_observation))
    return np.abs(there - here)

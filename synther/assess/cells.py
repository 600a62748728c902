"""Spread of outcomes in each cell: each combination of the discrete values of state and action.

In many environments a discrete value decides how numbers change: the cell of a map how much a battery loses, a mode
which heater is on. Small networks cannot learn such tables, so the measures of spread.py do not see that synthetic rows
have them wrong. Here, mean and std of the outcomes in each cell are counted in real rows. No network is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.assess.figure import Figure, standard_error
from synther.data.transitions import Transitions

Array = NDArray[Any]

MOST_VALUES = 32
"""Largest number of different values of a discrete column."""
FEWEST_ROWS = 500
"""Smallest number of reference, synthetic and held-out rows."""
FEWEST_IN_CELL = 20
"""Smallest number of real rows in a cell for which its mean and std are considered known."""
COVERED = 0.5
"""Smallest share of the real rows that must be in such cells. Columns with which it would be smaller are ignored."""

_LEAST_RESIDUAL = 1e-4  # smallest std of the residual of a regression, as a share of the outcome's
_LEAST_STD = 0.05  # smallest std of a cell, as a share of that of all rows
_LIMIT = 8.0  # standardised residuals are clipped here, so that a single one cannot decide


def figures(reference: Transitions, synthetic: Transitions, held_out: Transitions) -> dict[str, Figure]:
    """Return `cell_spread`, or nothing if no column is discrete or no number is left to look at."""
    parts = reference, synthetic, held_out
    if min(map(len, parts)) < FEWEST_ROWS:
        return {}
    inputs, outcomes = zip(*(_inputs_and_outcomes(rows) for rows in parts), strict=True)
    columns, cells = _find_cells(inputs)
    counts = np.bincount(cells[0], minlength=max(int(part.max()) for part in cells) + 1)
    if np.count_nonzero(counts >= FEWEST_IN_CELL) < 2:
        return {}
    width = reference.observation.shape[1]
    numbers = [column for column in range(width + 1) if column not in columns]  # the last one is the reward
    known = [counts[part] >= FEWEST_IN_CELL for part in cells]
    numbers, z = _standardised(
        numbers,
        [part[rows] for part, rows in zip(inputs, known, strict=True)],
        [part[rows] for part, rows in zip(outcomes, known, strict=True)],
        [part[rows] for part, rows in zip(cells, known, strict=True)],
    )
    if not numbers:
        return {}
    (value, error), (real, error_real) = map(_root_mean_square, z)
    # Reference rows have 1. If held-out rows have not, the difference comes from their episodes.
    chance = 2 * np.hypot(error, error_real) + np.abs(np.log(real))
    worst = int(np.argmax(np.abs(np.log(value / real)) - chance))
    name = f"next_observation[{numbers[worst]}]" if numbers[worst] < width else "reward"
    return {"cell_spread": Figure(float(value[worst]), float(real[worst]), float(chance[worst]), detail=name)}


def _inputs_and_outcomes(rows: Transitions) -> tuple[Array, Array]:
    """Return s and a, and s' - s and r, as columns of float64."""
    action = rows.action.reshape(len(rows), -1)
    inputs = np.concatenate([rows.observation, action], axis=1).astype(np.float64)
    change = rows.next_observation.astype(np.float64) - rows.observation
    return inputs, np.concatenate([change, rows.reward[:, None]], axis=1)


def _find_cells(inputs: Sequence[Array]) -> tuple[list[int], list[NDArray[np.int64]]]:
    """Return the discrete columns of s and a that define the cells, and the number of the cell of each row.

    `inputs` are those of several parts, of which the first one is the reference. Columns with few values come first,
    as many as leave enough rows in most cells.
    """
    values = [np.unique(column) for column in inputs[0].T]
    discrete = [column for column, seen in enumerate(values) if 2 <= len(seen) <= MOST_VALUES]
    every, rows = np.concatenate(inputs), len(inputs[0])
    columns, cells = list[int](), np.zeros(len(every), np.int64)
    for column in sorted(discrete, key=lambda column: len(values[column])):
        _, own = np.unique(every[:, column], return_inverse=True)  # with values that only other parts have
        _, finer = np.unique(cells * (int(own.max()) + 1) + own, return_inverse=True)
        if (np.bincount(finer[:rows])[finer[:rows]] >= FEWEST_IN_CELL).mean() < COVERED:
            break
        columns, cells = [*columns, column], finer.astype(np.int64)
    return columns, np.split(cells, np.cumsum([len(part) for part in inputs])[:-1])


def _standardised(
    numbers: Sequence[int], inputs: list[Array], outcomes: list[Array], cells: list[NDArray[np.int64]]
) -> tuple[list[int], tuple[Array, Array]]:
    """Return the residuals of synthetic and of held-out rows in stds of their cell, (n, D), for those of the `numbers`
    that a line does not predict exactly. The first result are these numbers.

    A linear regression on s and a comes first, so that cells do not count how (s, a) are distributed in them. Lists
    have three parts: reference, synthetic, and held-out rows. Mean and std of the cells are those of the reference
    rows.
    """
    if min(map(len, cells)) < FEWEST_IN_CELL:
        return [], (np.empty(0), np.empty(0))
    mean, std = inputs[0].mean(0), np.maximum(inputs[0].std(0), 1e-12)
    x = [np.column_stack([(part - mean) / std, np.ones(len(part))]) for part in inputs]
    weights = np.linalg.lstsq(x[0], outcomes[0], rcond=None)[0]
    residuals = [outcome - part @ weights for outcome, part in zip(outcomes, x, strict=True)]
    usual = residuals[0].std(0)
    random = [number for number in numbers if usual[number] > _LEAST_RESIDUAL * outcomes[0][:, number].std()]
    size = max(int(part.max()) for part in cells) + 1
    z = [np.empty((len(part), len(random))) for part in residuals]
    count = np.maximum(np.bincount(cells[0], minlength=size), 1)
    for place, number in enumerate(random):
        own = residuals[0][:, number]
        centre = np.bincount(cells[0], own, size) / count
        variance = np.bincount(cells[0], np.square(own - centre[cells[0]]), size) / count
        scale = np.maximum(np.sqrt(variance), _LEAST_STD * usual[number])
        for part, residual, cell in zip(z, residuals, cells, strict=True):
            part[:, place] = np.clip((residual[:, number] - centre[cell]) / scale[cell], -_LIMIT, _LIMIT)
    return random, (z[1], z[2])


def _root_mean_square(z: Array) -> tuple[Array, Array]:
    """Return the root mean square of the columns of z (n, D), and the standard error of its logarithm. (D,) each"""
    square = np.square(z)
    mean = np.maximum(square.mean(0), 1e-12)
    return np.sqrt(mean), standard_error(square) / mean / 2

"""Measures for environments with few distinct states, such as grid worlds.

They count whether generated states and transitions occur in real rows, and compare the probabilities of next states.
States are compared exactly, so no network is needed. Observations are equal if all columns differ by less than about
1e-5 of their range, because rounding to float32 must not create new states.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.assess.figure import Figure
from synther.data.transitions import Transitions

Array = NDArray[Any]

MOST_STATES = 4_096
"""Largest number of distinct observations for which transitions are counted."""

MOST_ROWS = 200_000
"""Largest number of reference, synthetic and held-out rows that are counted."""

FEWEST_VISITS = 5
"""Smallest number of real rows with the same state and action for which their outcomes are considered known."""

REPEATED = 0.95
"""Smallest share of held-out real observations that occur in the reference rows. If fewer do, states do not repeat, and
no measure of this module applies."""

_STEPS = 1e5 * 2**-0.5
"""Number of steps that the range of a column is divided into. It is irrational, so that values on a regular grid do not
lie on the border between two steps."""

Transition = tuple[bytes, int, bytes]
"""Keys of state and next state, with the action between them: (s, a, s')."""


@dataclass(frozen=True, eq=False)
class States:
    """Converts observations to keys that are equal for equal states."""

    low: Array
    step: Array

    @classmethod
    def of(cls, real: Transitions) -> States:
        """Derive the size of a step in each column from the range of real observations."""
        low, high = (
            reduce([reduce(part, axis=0) for part in (real.observation, real.next_observation)], axis=0)
            for reduce in (np.min, np.max)
        )
        low = low.astype(np.float64)
        with np.errstate(over="ignore"):
            span = high.astype(np.float64) - low
        return cls(low, np.where((span > 0) & np.isfinite(span), span, 1.0) / _STEPS)

    def keys(self, observation: Array) -> list[bytes]:
        """Return the key of each observation."""
        with np.errstate(over="ignore", invalid="ignore"):
            steps = np.clip((observation.astype(np.float64) - self.low) / self.step, -1e9, 1e9)
        places = np.ascontiguousarray(np.rint(steps).astype(np.int32))
        return [row.tobytes() for row in places]


def figures(reference: Transitions, synthetic: Transitions, held_out: Transitions) -> dict[str, Figure]:
    """Return `known_observations` if real observations repeat. If they are few and actions are discrete, also return
    `possible_transitions` and `frequency_error`."""
    parts = [part[:MOST_ROWS] for part in (reference, synthetic, held_out)]
    keys = States.of(parts[0]).keys
    ends = [(keys(part.observation), keys(part.next_observation)) for part in parts]
    known = {*ends[0][0], *ends[0][1]}
    shares = [known_observations(known, [*states, *next_states]) for states, next_states in ends[1:]]
    if shares[1] < REPEATED or len(known) < 2:
        return {}
    result = {"known_observations": Figure(shares[0], shares[1])}
    if len(known) > MOST_STATES or any(part.action.ndim != 1 for part in parts):
        return result
    transitions = [
        list(zip(states, part.action.tolist(), next_states, strict=True))
        for (states, next_states), part in zip(ends, parts, strict=True)
    ]
    counts = Counter(transitions[0])
    possible = [possible_transitions(counts, rows) for rows in transitions[1:]]
    result["possible_transitions"] = Figure(possible[0], possible[1])
    off, off_real = (frequency_error(counts, Counter(rows)) for rows in transitions[1:])
    if off is not None and off_real is not None:
        result["frequency_error"] = Figure(off[0], off_real[0], chance=off[1])
    return result


def known_observations(known: set[bytes], others: list[bytes]) -> float:
    """Return the share of the `others` that are `known` observations. Range 0 to 1 (best)."""
    return sum(key in known for key in others) / len(others)


def possible_transitions(real: Counter[Transition], others: list[Transition]) -> float | None:
    """Return the share of transitions (s, a, s') that occur in real rows.

    Only transitions count if real rows contain their (s, a) at least five times. Range 0 to 1 (best). None if there are
    no such transitions.
    """
    visits = _visits(real)
    counted = [entry for entry in others if visits[entry[:2]] >= FEWEST_VISITS]
    return sum(entry in real for entry in counted) / len(counted) if counted else None


def frequency_error(real: Counter[Transition], others: Counter[Transition]) -> tuple[float, float] | None:
    """Return the error of the probabilities of next states given (s, a), and how much of it chance can explain.

    The error is the square root of the mean over rows of sum_s' (p - q)^2. p and q are the shares of s' in the real and
    in the other rows with the same (s, a). The expected difference by chance is subtracted, so that the estimate of
    each sum is unbiased. Range 0 (best) to 1.41. None if no (s, a) occurs often enough on both sides.
    """
    outcomes: dict[tuple[bytes, int], tuple[Counter[bytes], Counter[bytes]]] = {}
    for side, counts in enumerate((real, others)):
        for (state, action, following), count in counts.items():
            outcomes.setdefault((state, action), (Counter(), Counter()))[side][following] += count
    squares, weights = [], []
    for pair in outcomes.values():
        rows = [counts.total() for counts in pair]
        if rows[0] < FEWEST_VISITS or rows[1] < 2:
            continue
        shares = np.array(
            [[counts[key] / row for key in pair[0] | pair[1]] for counts, row in zip(pair, rows, strict=True)]
        )
        chance = sum((1 - np.square(part).sum()) / (row - 1) for part, row in zip(shares, rows, strict=True))
        squares.append(np.square(shares[0] - shares[1]).sum() - chance)
        weights.append(rows[1])
    if not weights:
        return None
    square, weight = np.array(squares), np.array(weights) / sum(weights)
    mean = float(square @ weight)
    error = 2 * float(np.sqrt(np.square(weight * (square - mean)).sum()))
    value, least = (max(0.0, number) ** 0.5 for number in (mean, mean - error))
    return value, value - least


def _visits(counts: Counter[Transition]) -> Counter[tuple[bytes, int]]:
    """Count how often each (s, a) occurs."""
    visits: Counter[tuple[bytes, int]] = Counter()
    for (state, action, _), count in counts.items():
        visits[state, action] += count
    return visits

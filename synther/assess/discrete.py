"""Worlds of few states: whether generated states and transitions exist, and how often each outcome follows.

Rows are compared exactly, so no network is needed. Observations count as equal if they differ by less than about a
hundred-thousandth of the range of each column: storage in float32 must not make a new state.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.assess.metrics import Figure
from synther.data.transitions import Transitions

Array = NDArray[Any]

MOST_STATES = 4_096
"""Distinct observations beyond which a world does not count as finite."""

MOST_ROWS = 200_000
"""Real rows that are looked at, and synthetic ones."""

FEWEST_VISITS = 5
"""Real rows with the same state and action from which on their outcomes are taken as known."""

REPEATED = 0.95
"""Share of held-out real observations that must occur among the other real rows for states to count as repeating."""

_STEPS = 1e5 * 2**-0.5
"""Steps a range is divided into. The number is irrational, so that values on a regular grid do not lie on a border
between two steps."""

Transition = tuple[bytes, int, bytes]


@dataclass(frozen=True, eq=False)
class States:
    """Turns observations into keys that are equal for equal states."""

    low: Array
    step: Array

    @classmethod
    def of(cls, real: Transitions) -> States:
        low, high = (
            reduce([reduce(part, axis=0) for part in (real.observation, real.next_observation)], axis=0)
            for reduce in (np.min, np.max)
        )
        low = low.astype(np.float64)
        with np.errstate(over="ignore"):
            span = high.astype(np.float64) - low
        return cls(low, np.where((span > 0) & np.isfinite(span), span, 1.0) / _STEPS)

    def keys(self, observation: Array) -> list[bytes]:
        with np.errstate(over="ignore", invalid="ignore"):
            steps = np.clip((observation.astype(np.float64) - self.low) / self.step, -1e9, 1e9)
        places = np.ascontiguousarray(np.rint(steps).astype(np.int32))
        return [row.tobytes() for row in places]


def figures(reference: Transitions, synthetic: Transitions, held_out: Transitions) -> dict[str, Figure]:
    """`known_observations` where real observations repeat; with few of them and discrete actions also
    `possible_transitions` and `frequency_error`."""
    parts = [part[:MOST_ROWS] for part in (reference, synthetic, held_out)]
    states = States.of(parts[0])
    ends = [(states.keys(part.observation), states.keys(part.next_observation)) for part in parts]
    known = {*ends[0][0], *ends[0][1]}
    shares = [known_observations(known, [*here, *there]) for here, there in ends[1:]]
    if shares[1] < REPEATED or len(known) < 2:
        return {}
    found = {"known_observations": Figure(shares[0], shares[1])}
    if len(known) > MOST_STATES or any(part.action.ndim != 1 for part in parts):
        return found
    transitions = [
        list(zip(here, part.action.tolist(), there, strict=True))
        for (here, there), part in zip(ends, parts, strict=True)
    ]
    counts = Counter(transitions[0])
    possible = [possible_transitions(counts, rows) for rows in transitions[1:]]
    found["possible_transitions"] = Figure(possible[0], possible[1])
    off, off_real = (frequency_error(counts, Counter(rows)) for rows in transitions[1:])
    if off is not None and off_real is not None:
        found["frequency_error"] = Figure(off[0], off_real[0], chance=off[1])
    return found


def known_observations(known: set[bytes], found: list[bytes]) -> float:
    """Share of `found` observations that are among the `known` ones. Range 0 to 1 (best)."""
    return sum(key in known for key in found) / len(found)


def possible_transitions(real: Counter[Transition], found: list[Transition]) -> float | None:
    """Share of `found` transitions (s, a, s') that occur among the real ones, of those whose (s, a) occurs at least
    five times. Range 0 to 1 (best); None where no (s, a) does."""
    visits = _visits(real)
    asked = [entry for entry in found if visits[entry[:2]] >= FEWEST_VISITS]
    return sum(entry in real for entry in asked) / len(asked) if asked else None


def frequency_error(real: Counter[Transition], found: Counter[Transition]) -> tuple[float, float] | None:
    """How far the probabilities of outcomes given (s, a) are from the real ones, and how much of it chance explains.

    The figure is the root of the mean over rows of sum_s' (p - q)^2, with p and q the shares of s' among the real and
    the found rows of the same (s, a). What few rows differ by chance is subtracted: the estimate of each sum is
    unbiased. Range 0 (best) to 1.41; None where no (s, a) occurs often enough on both sides.
    """
    outcomes: dict[tuple[bytes, int], tuple[Counter[bytes], Counter[bytes]]] = {}
    for side, counts in enumerate((real, found)):
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
    visits: Counter[tuple[bytes, int]] = Counter()
    for (state, action, _), count in counts.items():
        visits[state, action] += count
    return visits

"""Find spikes, values that occur again and again in a column of real numbers, and columns that share one.

`special` replaces the kinds of such columns: by `Spiked`, or by `Levels` if all values occur again and again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.data import kinds
from synther.data.inference import REPEATS, Profile, Steps, std_of
from synther.data.kind import Array, first_columns
from synther.data.kinds import Kind
from synther.data.values import grain_of

SPIKE_SHARE, FEWEST_IN_A_SPIKE, MOST_SPIKES = 0.0005, 20, 8
"""Minimum share of the rows that have a spike, minimum number of these rows, and maximum number of spikes in a
column."""
COMMON_SHARE = 0.002
"""A value with at least this share of the rows is ignored in the test whether the other values occur again and again.
It may be a spike even if many other values are near it."""
NEIGHBOURHOOD = 0.1
"""A spike below `COMMON_SHARE` must be the value of most of the rows within this many stds around it."""
SPIKE_GAP, LEAST_GAP = 0.5, 0.1
"""Largest and smallest distance by which a spike at an end of the range is moved out, in stds of the column."""
GAP_IN_STEPS = 3.0
"""Between these limits, the distance is this many stds of the residual that remains when the next value is regressed
on the last value and the action. Beside a wider gap the noise of a step is small, and small noise is generated less
exactly."""
FAR_AWAY = 5.0
"""A spike is far away if its distance to all other values is more than this many of their stds."""
FAR_MORE = 4
"""If more than `MOST_SPIKES` values qualify, a spike must be this many times as frequent as the next value after the
`MOST_SPIKES` most frequent ones."""
STANDS_OUT = 20
"""A spike must be at least this many times as frequent as the other values on average."""
TIED_APART = 0.02
"""Columns have a spike inside their range together if they differ in at most this share of the rows with the spike, and
of the others."""
MOST_LEVELS = 4096
"""Maximum number of different values of a real column that is treated as quantised (kind `Levels`)."""
FINE_LEVELS, DOMINANT = 256, 0.1
"""Of more levels than these, a network does not hit a single one. If one inside the range has at least this share of
the rows, it is a spike, and the others are real numbers."""
LATTICE_HOLES = 2
"""A lattice may have at most this many steps for each value that occurs."""
LEAST_DIFFERENCE = 1e-6
"""Two values are different levels if they differ by more than this share of the column's range."""


def special(
    found: tuple[Kind, ...], values: Array, seen: Profile, step_sample: Steps | None = None
) -> tuple[Kind, ...]:
    """Return the kinds `found`, with real columns that are not smooth replaced by flags, levels or spikes.

    `values` is a sample of the columns. `step_sample` is given for observations only.

    A spike is the value of 1 row in 500, or of 1 in 2,000 if hardly any other values are near it, and is many times as
    frequent as other values. If all values of a column occur again and again, the column is quantised, and its values
    are levels. A column with two values holds a flag.
    """
    better: list[Kind] = []
    for column, kind in zip(first_columns(found), found, strict=True):
        if isinstance(kind, (kinds.Continuous, kinds.Bounded)):
            kind = _special_kind(kind, column, values[:, column], seen, step_sample)
        better.append(kind)
    return tuple(better) if step_sample is None else _tied(better, values)


def _special_kind(
    kind: kinds.Continuous | kinds.Bounded, column: int, values: Array, seen: Profile, step_sample: Steps | None
) -> Kind:
    """Return the kind of one real column: `kind` itself, or flag, levels or spikes. `values` (N,) are a sample of
    it."""
    if seen.two_valued[column]:
        return kinds.Binary(*seen.span(column))
    value, count = np.unique(values, return_counts=True)
    is_spike, common = (count >= max(share * len(values), FEWEST_IN_A_SPIKE) for share in (SPIKE_SHARE, COMMON_SHARE))
    others = count[~common]
    repeats = others.sum() >= REPEATS * len(others) or (len(values) >= REPEATS * len(value) and _is_lattice(value))
    plain = kinds.Levels(_distinct_levels(value)) if 2 < len(value) <= MOST_LEVELS and repeats else kind
    is_inside, is_dominant = 0 < count.argmax() < len(value) - 1, count.max() >= DOMINANT * len(values)
    if isinstance(plain, kinds.Levels) and not (len(value) > FINE_LEVELS and is_inside and is_dominant):
        return plain
    is_spike &= count >= STANDS_OUT * (count[~is_spike].mean() if not is_spike.all() else 1.0)
    rare = np.flatnonzero(is_spike & ~common)
    is_spike[rare] = _rows_near(value, count, rare, NEIGHBOURHOOD * std_of(values)) < 2 * count[rare]
    if np.count_nonzero(is_spike) > MOST_SPIKES:  # values repeat for another reason: only the most frequent are spikes
        is_spike &= common & (count >= FAR_MORE * np.sort(count)[-1 - MOST_SPIKES])
    if not 0 < np.count_nonzero(is_spike) <= MOST_SPIKES:
        return plain
    spikes = value[is_spike]
    low, high = (kind.low, kind.high) if isinstance(kind, kinds.Bounded) else seen.span(column)
    low, high = (value[0] if is_spike[0] else low), (value[-1] if is_spike[-1] else high)
    share = SPIKE_GAP
    if step_sample is not None:
        usual = values[~np.isin(values, spikes)]
        far = far_spikes(spikes, usual)
        if len(far):
            values = values[~np.isin(values, far)]
            low, high = (values.min() if low in far else low), (values.max() if high in far else high)
        share = GAP_IN_STEPS * step_sample.open_share(column, far)
    gap = float(np.clip(share, LEAST_GAP, SPIKE_GAP)) * std_of(values)
    return kinds.Spiked(float(low), float(high), tuple(spikes.tolist()), gap, usual=float(values.mean()))


def _is_lattice(value: Array) -> bool:
    """Return whether increasing values are multiples of one step, and nearly all multiples in their range occur.

    This recognises a sensor that rounds, even if its outermost values are rare.
    """
    grain = grain_of(_distinct_levels(value)) if len(value) > 2 else 0.0
    return bool(grain) and (float(value[-1]) - float(value[0])) / grain < LATTICE_HOLES * len(value)


def far_spikes(spikes: Array, usual: Array) -> Array:
    """Return the spikes that are far away from all `usual` values (N,), such as -999 for a missing value."""
    if not len(usual):
        return spikes[:0]
    with np.errstate(over="ignore"):
        outside = np.maximum(usual.min() - spikes, spikes - usual.max())
    return np.asarray(spikes[outside > FAR_AWAY * std_of(usual)])


def _distinct_levels(values: Array) -> tuple[float, ...]:
    """Return the different levels among increasing values. Values that differ only by rounding (0.3 and 0.1 + 0.2) are
    one level, because they may be equal in the float32 matrix that the network sees."""
    exact = values.astype(np.float64)
    is_new = np.diff(exact) > LEAST_DIFFERENCE * (exact[-1] - exact[0])
    kept: list[float] = exact[np.concatenate([[True], is_new])].tolist()
    return tuple(kept)


def _tied(found: list[Kind], values: Array) -> tuple[Kind, ...]:
    """Return the kinds `found`, with columns tied to each other if they have a spike in the same rows of `values`, a
    sample. If a column shares several of its spikes, the one that most columns share counts.

    Spikes inside the range may differ in a few rows: a number near the spike takes its place there. At an end of the
    range, the number would be a gap away.
    """
    groups: list[tuple[NDArray[np.bool_], int, bool, dict[int, float]]] = []
    for place, (column, kind) in enumerate(zip(first_columns(found), found, strict=True)):
        spikes, inner = (kind.spikes, kind.inner) if isinstance(kind, kinds.Spiked) else ((), ())
        for spike in spikes:
            rows, is_inside = values[:, column] == spike, spike in inner
            count = int(np.count_nonzero(rows))
            few = TIED_APART * min(count, len(rows) - count) if is_inside else 0
            alike = (
                own
                for known, as_many, inside, own in groups
                if abs(as_many - count) <= few and np.count_nonzero(known != rows) <= (few if inside else 0)
            )
            group = next(alike, None)
            if group is None:
                groups.append((rows, count, is_inside, {place: spike}))
            else:
                group.setdefault(place, spike)
    members_of = [members for *_, members in groups]
    free = {place for members in members_of for place in members}
    for number, members in enumerate(sorted(members_of, key=len, reverse=True)):
        own = {place: spike for place, spike in members.items() if place in free}
        if len(own) > 1:
            free -= set(own)
            for place, spike in own.items():
                one: Any = found[place]
                found[place] = replace(one, tied=number, tied_spike=None if len(one.spikes) == 1 else spike)
    return tuple(found)


def _rows_near(value: Array, count: Array, places: Array, distance: float) -> Array:
    """Return how many rows have a value within `distance` of each `value[places]`.

    `value` are the different values in increasing order, `count` how many rows have each of them.
    """
    before = np.concatenate([[0], np.cumsum(count)])
    exact = value.astype(np.float64)
    at = exact[places]
    first, last = np.searchsorted(exact, at - distance, "left"), np.searchsorted(exact, at + distance, "right")
    near: Array = before[last] - before[first]
    return near

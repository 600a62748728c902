"""`prepare`: turns rows into the scaled matrix that a network is fitted on, with the layout and scaler to undo it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from synther.codes import Coding
from synther.compute import in_turn
from synther.cores import cores
from synther.data.categories import Codebook
from synther.data.checks import check_rows
from synther.data.clipping import with_clips
from synther.data.end_rewards import EndRewards
from synther.data.flags import with_flags
from synther.data.grouping import Grouping
from synther.data.holding import with_held
from synther.data.identities import with_identities
from synther.data.inference import Integers
from synther.data.kind import Kind, first_columns
from synther.data.lattices import Grid
from synther.data.layout import Layout
from synther.data.lines import ROWS_PER_WEIGHT
from synther.data.numbers import Continuous, Spiked
from synther.data.residuals import Regression
from synther.data.rewards import with_exact_formula, with_formula
from synther.data.scaling import Scaler, resolve_kinds
from synther.data.sparse_rewards import with_sparse_reward
from synther.data.tables import count_columns, ordered_columns, with_tables
from synther.data.transitions import Transitions
from synther.data.turning import with_turns
from synther.data.values import Integer, Levels
from synther.errors import DataError

CHUNK_ROWS = 1 << 16
"""Rows that are packed at a time."""
_THREADS = 8  # maximum number of threads


@dataclass(frozen=True)
class Prepared:
    """Rows as a matrix of numbers with a std of about 1, and what is needed to convert them back."""

    layout: Layout
    scaler: Scaler
    matrix: NDArray[np.float32]
    """The packed and scaled rows. (N, D)"""
    rates: tuple[float, ...]
    """Share of the rows in which each flag of the layout is set."""


def prepare(
    rows: Transitions,
    scaling: str | Mapping[str, str],
    coding: Coding,
    spikes: bool,
    integers: Integers = "categorical",
    residuals: str = "none",
    order: Sequence[str] = (),
    counted: bool = False,
    terminal_reward: float = 0.0,
    decided: bool = False,
) -> Prepared:
    """Find the layout of `rows`, fit a scaler, and return the scaled matrix.

    scaling           one scaling for all columns, or a dict (see `resolve_kinds`)
    coding            how categories are encoded: "onehot" or "bits"
    spikes            whether to detect special structure of real columns (see `Layout.infer`)
    integers          whether columns of a few different integers are "categorical" or "ordered"
    residuals         "linear" or "bent" (piecewise linear): outcomes are the residuals of such a regression
    order             names of the outcomes in the order of an earlier fit, which is kept
    counted           whether discrete outcomes that depend only on discrete columns are drawn from tables
    terminal_reward   extra reward of terminal rows, which is subtracted from rewards that are plain numbers. Ignored if
                      the rewards of terminal rows are one of a few numbers
    decided           whether a tree decides about terminals, so that they need no table
    """
    check_rows(rows)
    layout = Layout.infer(rows, coding, spikes, integers)
    at_end = EndRewards.learn(rows) if residuals != "none" else None
    if terminal_reward or at_end:
        layout = _without_price(layout, rows, coding, spikes, integers)

    def with_dependent_columns(layout: Layout) -> Layout:
        """Return the layout without the columns that are computed from others or drawn from tables."""
        if residuals != "none":
            layout = with_exact_formula(with_identities(layout, rows), rows)
        return with_tables(layout, rows, decided) if counted else layout

    categorical = layout
    layout = with_dependent_columns(categorical)
    if counted and residuals != "none":
        counts, levels = count_columns(layout, rows), ordered_columns(layout, rows)
        if counts or levels:
            layout = with_dependent_columns(_with_ordered(categorical, counts, levels))
    if layout.can_be_priced and layout.formula is None:
        layout = replace(layout, terminal_reward=0.0 if at_end else terminal_reward, at_end=at_end)
    if residuals != "none":
        for with_more in (with_turns, with_held, with_clips, with_flags, with_formula):
            layout = with_more(layout, rows)
    if residuals == "bent" and isinstance(layout.reward[0], Spiked):
        price = at_end if at_end is not None and len(at_end.values) == 1 else None
        of_steps = layout if price is None else _with_reward_of_steps(layout, rows, coding, spikes, integers)
        layout = with_sparse_reward(of_steps, rows, price) or layout
    packed = (layout.pack(chunk) for chunk in rows.chunks(CHUNK_ROWS))
    given = [] if residuals == "none" else layout.given_columns
    outcomes = [column for column, field in enumerate(layout.fields) if field in ("reward", "next_observation")]
    if given and len(rows) >= ROWS_PER_WEIGHT * (len(given) + len(layout.mode_columns) + len(outcomes)):
        given = [*given, *layout.mode_columns]
    earlier = [layout.names.index(name) for name in order if name in layout.names]
    kinds = resolve_kinds(layout, scaling)
    reward = [place.matrix.start for place in layout.places if place.field == "reward"]
    shaped = reward if isinstance(layout.reward[0], Continuous) or layout.sparse else []
    regression = Regression(
        given,
        outcomes,
        Grid.of(layout),
        residuals == "bent",
        earlier,
        layout.ends,
        layout.circles,
        optional=reward,
        shaped=shaped,
    )
    scaler = Scaler.fit(
        packed, kinds, layout.names, layout.twins, regression if given else None, Grouping.of(layout) if given else None
    )
    return Prepared(layout, scaler, *_scaled(rows, layout, scaler))


def _with_ordered(layout: Layout, counts: Sequence[int], levels: Sequence[int]) -> Layout:
    """Return the layout with some columns of observation and next observation ordered: the categories `counts` become
    integers, and the categories `levels` become levels, for which there can be tables."""

    def ordered(kinds: Sequence[Kind]) -> tuple[Kind, ...]:
        found = dict(zip(first_columns(kinds), kinds, strict=True))
        for column, kind in found.items():
            if isinstance(kind, Codebook) and column in counts:
                found[column] = Integer(kind.rows[0][0], kind.rows[-1][0])
            elif isinstance(kind, Codebook) and column in levels:
                found[column] = Levels(tuple(value for (value,) in kind.rows))
        return tuple(found.values())

    return replace(layout, observation=ordered(layout.observation), next_observation=ordered(layout.next_observation))


def _without_price(layout: Layout, rows: Transitions, coding: Coding, spikes: bool, integers: Integers) -> Layout:
    """Return the layout with the kind of reward of the non-terminal rows, if their rewards are plain numbers.

    A reward that only terminal rows have may look like a spike. It is handled separately.
    """
    changed = layout if layout.can_be_priced else _with_reward_of_steps(layout, rows, coding, spikes, integers)
    return changed if changed.can_be_priced else layout


def _with_reward_of_steps(
    layout: Layout, rows: Transitions, coding: Coding, spikes: bool, integers: Integers
) -> Layout:
    """Return the layout with the kind of reward of the non-terminal rows."""
    reward = rows.reward[~rows.terminal]
    column, action = reward[:, None], np.zeros((len(reward), 1), np.float32)
    others = Layout.infer(Transitions(column, action, reward, column), coding, spikes, integers)
    return replace(layout, reward=others.reward)


def _scaled(rows: Transitions, layout: Layout, scaler: Scaler) -> tuple[NDArray[np.float32], tuple[float, ...]]:
    """Return the scaled matrix (N, D), and the share of rows in which each flag is set."""
    matrix = np.empty((len(rows), layout.width), np.float32)

    def scale(numbered: tuple[int, Transitions]) -> NDArray[np.int64]:
        """Scale a chunk, write it into the matrix, and return how often its flags are set."""
        number, chunk = numbered
        packed = layout.pack(chunk)
        start = number * CHUNK_ROWS
        with np.errstate(over="ignore"):
            matrix[start : start + len(chunk)] = scaler.transform(packed)
        return np.asarray((layout.flags(packed) > np.array(layout.thresholds)).sum(0))

    chunks = enumerate(rows.chunks(CHUNK_ROWS))
    threads = min(cores(), -(-len(rows) // CHUNK_ROWS), _THREADS)
    ones = sum(in_turn(scale, chunks, threads) if threads > 1 else map(scale, chunks), np.zeros(len(layout.flag_names)))
    finite = np.isfinite(matrix).all(0)
    if not finite.all():
        name = layout.names[int(np.argmin(finite))]
        raise DataError(f"{name} is too large for float32 once scaled: choose another scaling for it, or divide it")
    return matrix, tuple((ones / len(rows)).tolist())

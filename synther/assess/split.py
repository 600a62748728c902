"""Real rows in two parts, so that every figure of synthetic rows has a figure of real ones beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.assess.fidelity import at_most, check_columns, check_max_rows
from synther.data.episodes import episode_ids
from synther.data.transitions import Transitions

Array = NDArray[Any]

HELD_OUT_SHARE = 0.2
MAX_HELD_OUT = 20_000
"""Of millions of rows so many tell as much, and the rest is then nearly all there is."""

FEWEST_EPISODES = 20
"""Episodes from which on whole ones are held out: a fifth of fewer would not stand for all of them."""


@dataclass(frozen=True, eq=False)
class Split:
    """What is compared with what: `value = measure(reference, synthetic)` and `real = measure(reference, held_out)`.

    A single real row is both reference and held out: every figure of it is then as good as it gets.
    """

    real: Transitions
    """All real rows: with `held_out` apart from them, the reference; else both parts."""
    reference: Transitions
    held_out: Transitions
    synthetic: Transitions
    drawn: bool
    """Whether the held-out rows were drawn from the real ones."""
    order: Array | None = None
    """Rows of `real` in random order, where whole episodes were held out; see `by_rows`."""
    episodes: Array | None = None
    """The episode number of each row of `real`, where there are enough episodes."""
    reference_episodes: Array | None = None
    """The same of `reference`, where whole episodes were held out."""
    synthetic_episodes: Array | None = None
    """The same of `synthetic`: real rows, or played ones, come in episodes; generated rows do not."""

    @classmethod
    def of(
        cls, real: Transitions, synthetic: Transitions, held_out: Transitions | None, *, max_rows: int, seed: int
    ) -> Split:
        """At most `max_rows` of each, drawn with `seed`; rows come in random order, so that the first ones are a
        sample."""
        check_max_rows(max_rows)
        check_columns(real, synthetic)
        if held_out is not None:
            check_columns(real, held_out, "held-out")
        draw = np.random.default_rng(seed)
        synthetic, played = _with_episodes(synthetic, max_rows, seed, fewest=2)
        real, episodes = _with_episodes(real, max_rows, seed, FEWEST_EPISODES)
        shuffled, order = draw.permutation(len(synthetic)), draw.permutation(len(real))
        synthetic, played = synthetic[shuffled], None if played is None else played[shuffled]
        part = partial(cls, real, synthetic=synthetic, episodes=episodes, synthetic_episodes=played)
        if held_out is not None:
            apart = at_most(held_out, MAX_HELD_OUT, seed)
            return part(real[order], apart[draw.permutation(len(apart))], drawn=False)
        count = _held_out_count(real)
        kept = None if episodes is None else _whole_episodes(episodes[order], count, draw)
        if episodes is not None and kept is not None:
            reference, apart_rows = order[kept == _REFERENCE], order[kept == _HELD_OUT]
            numbers = episodes[reference]
            return part(real[reference], real[apart_rows], drawn=True, order=order, reference_episodes=numbers)
        return part(real[order[count:]], real[order[:count]] if count else real, drawn=True)

    def few_episodes(self, count: int) -> tuple[Array, Array]:
        """Two parts of the reference, `count` rows each: any rows, and rows of as few whole episodes as have so many.

        Where synthetic rows come in episodes they are to be compared with the second part. Otherwise both parts are
        any rows.
        """
        places = np.arange(len(self.reference))
        if self.synthetic_episodes is None or self.reference_episodes is None:
            return places[:count], places[count : 2 * count]
        place = np.random.default_rng(0).permutation(self.reference_episodes.max() + 1)
        together = np.argsort(place[self.reference_episodes], kind="stable")
        return np.sort(together[count:])[:count], together[:count]

    def by_rows(self) -> tuple[Transitions, Transitions]:
        """Reference and held-out rows with the latter drawn row by row.

        Rows of whole episodes differ from the others by more than chance. The figures of single columns and of their
        correlations are compared with what chance alone does, so they need rows that were drawn one by one.
        """
        if self.order is None:
            return self.reference, self.held_out
        count = _held_out_count(self.real)
        return self.real[self.order[count:]], self.real[self.order[:count]]

    def shrink(self) -> float:
        """What the chance differences of the rows that `by_rows` gives are to be multiplied with, to be those of as
        many rows as are compared with the synthetic ones.

        The KS statistic and the difference of two correlations fall with the root of 1/n + 1/m when both samples are
        of the same distribution. Drawn parts are; rows that somebody held out may not be, and are left alone.
        """
        if not self.drawn:
            return 1.0
        here = 1 / len(self.real) + 1 / len(self.synthetic)
        parts = len(self.reference), len(self.held_out)
        if self.order is not None:
            parts = len(self.real) - _held_out_count(self.real), _held_out_count(self.real)
        return min(1.0, math.sqrt(here / sum(1 / count for count in parts)))


_REFERENCE, _HELD_OUT, _DROPPED = 0, 1, 2


def _with_episodes(rows: Transitions, max_rows: int, seed: int, fewest: int) -> tuple[Transitions, Array | None]:
    """At most `max_rows` of the rows, and their episode numbers where there are at least `fewest` episodes."""
    episodes = episode_ids(rows)
    if episodes is not None and episodes[-1] + 1 < fewest:
        episodes = None
    if len(rows) <= max_rows:
        return rows, episodes
    few = np.sort(np.random.default_rng(seed).choice(len(rows), max_rows, replace=False))
    return rows[few], None if episodes is None else episodes[few]


def _held_out_count(real: Transitions) -> int:
    return min(MAX_HELD_OUT, round(HELD_OUT_SHARE * len(real)))


def _whole_episodes(episodes: Array, count: int, draw: np.random.Generator) -> Array | None:
    """Which part each row goes to, so that rows of an episode never go to both: `count` rows are held out.

    Of the last episode that is held out only as many rows are taken as are missing; the others are dropped. None where
    there are too few episodes.
    """
    known, numbers = np.unique(episodes, return_inverse=True)
    if len(known) < FEWEST_EPISODES or not count:
        return None
    place = draw.permutation(len(known))[numbers]
    ranked = np.argsort(place, kind="stable")
    part = np.full(len(episodes), _REFERENCE)
    part[place <= place[ranked[count - 1]]] = _DROPPED
    part[ranked[:count]] = _HELD_OUT
    return part if (part == _REFERENCE).any() else None

"""Split real rows into reference and held-out rows.

Every measure compares synthetic rows with the reference, and held-out rows with the reference. So each figure of
synthetic rows can be compared with the figure that real rows reach. If episodes are known, whole episodes are held out,
because neighbouring rows of an episode are similar.
"""

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
"""Share of the real rows that is held out."""
MAX_HELD_OUT = 20_000
"""Largest number of held-out rows. More would not make the figures more precise."""

FEWEST_EPISODES = 20
"""Smallest number of episodes for which whole episodes are held out. A fifth of fewer episodes would not be
representative."""


@dataclass(frozen=True, eq=False)
class Split:
    """The parts to compare: `value = measure(reference, synthetic)` and `real = measure(reference, held_out)`.

    If there are too few real rows to hold any out, all of them are both reference and held-out rows.
    """

    real: Transitions
    """All real rows. They are the reference if held-out rows were given, and otherwise contain both parts."""
    reference: Transitions
    held_out: Transitions
    synthetic: Transitions
    drawn: bool
    """Whether the held-out rows were drawn from the real ones."""
    order: Array | None = None
    """Row numbers of `real` in random order, if whole episodes were held out; see `by_rows`."""
    episodes: Array | None = None
    """Episode number of each row of `real`, if there are enough episodes."""
    reference_episodes: Array | None = None
    """Episode number of each row of `reference`, if whole episodes were held out."""
    held_out_episodes: Array | None = None
    """Episode number of each row of `held_out`, if whole episodes were held out."""
    synthetic_episodes: Array | None = None
    """Episode number of each row of `synthetic`. Recorded rows have episodes, generated rows do not."""

    @classmethod
    def of(
        cls, real: Transitions, synthetic: Transitions, held_out: Transitions | None, *, max_rows: int, seed: int
    ) -> Split:
        """Split the rows, with at most `max_rows` of each side.

        `reference`, `held_out` and `synthetic` are in random order, so that their first rows are a random sample.
        """
        check_max_rows(max_rows)
        check_columns(real, synthetic)
        if held_out is not None:
            check_columns(real, held_out, "held-out")
        draw = np.random.default_rng(seed)
        synthetic, synthetic_episodes = _with_episodes(synthetic, max_rows, seed, fewest=2)
        real, episodes = _with_episodes(real, max_rows, seed, FEWEST_EPISODES)
        shuffled, order = draw.permutation(len(synthetic)), draw.permutation(len(real))
        synthetic = synthetic[shuffled]
        synthetic_episodes = None if synthetic_episodes is None else synthetic_episodes[shuffled]
        part = partial(cls, real, synthetic=synthetic, episodes=episodes, synthetic_episodes=synthetic_episodes)
        if held_out is not None:
            held_out = at_most(held_out, MAX_HELD_OUT, seed)
            return part(real[order], held_out[draw.permutation(len(held_out))], drawn=False)
        count = _held_out_count(real)
        kept = None if episodes is None else _whole_episodes(episodes[order], count, draw)
        if episodes is not None and kept is not None:
            reference, held_out_rows = order[kept == _REFERENCE], order[kept == _HELD_OUT]
            numbers = {"reference_episodes": episodes[reference], "held_out_episodes": episodes[held_out_rows]}
            return part(real[reference], real[held_out_rows], drawn=True, order=order, **numbers)
        return part(real[order[count:]], real[order[:count]] if count else real, drawn=True)

    def few_episodes(self, count: int) -> tuple[Array, Array]:
        """Return the row numbers of two parts of the reference, with `count` rows each.

        The first part contains random rows. If the synthetic rows have episodes, the second part contains whole
        episodes, as few as possible, so that it can be compared with the synthetic rows. Otherwise it contains random
        rows too.
        """
        places = np.arange(len(self.reference))
        if self.synthetic_episodes is None or self.reference_episodes is None:
            return places[:count], places[count : 2 * count]
        place = np.random.default_rng(0).permutation(self.reference_episodes.max() + 1)
        together = np.argsort(place[self.reference_episodes], kind="stable")
        return np.sort(together[count:])[:count], together[:count]

    def by_rows(self) -> tuple[Transitions, Transitions]:
        """Return reference and held-out rows such that single rows, not whole episodes, are held out.

        Rows of whole episodes differ from other rows by more than chance. The figures of columns and correlations are
        compared with differences by chance alone, so they need single rows.
        """
        if self.order is None:
            return self.reference, self.held_out
        count = _held_out_count(self.real)
        return self.real[self.order[count:]], self.real[self.order[:count]]

    def shrink(self) -> float:
        """Return the factor that converts differences by chance between the parts of `by_rows` to larger samples.

        `marginal` and `correlation` compare all real with all synthetic rows, but the parts of `by_rows` are smaller.
        Between samples of sizes n and m from the same distribution, the KS statistic and the difference of two
        correlations are proportional to sqrt(1/n + 1/m). Rows that were passed as held-out rows can have another
        distribution. The factor is 1 for them.
        """
        if not self.drawn:
            return 1.0
        full, held_out = 1 / len(self.real) + 1 / len(self.synthetic), _held_out_count(self.real)
        parts = 1 / (len(self.real) - held_out) + 1 / (held_out or len(self.real))
        return min(1.0, math.sqrt(full / parts))


_REFERENCE, _HELD_OUT, _DROPPED = 0, 1, 2


def _with_episodes(rows: Transitions, max_rows: int, seed: int, fewest: int) -> tuple[Transitions, Array | None]:
    """Return at most `max_rows` of the rows, and their episode numbers if there are at least `fewest` episodes."""
    episodes = episode_ids(rows)
    if episodes is not None and episodes[-1] + 1 < fewest:
        episodes = None
    if len(rows) <= max_rows:
        return rows, episodes
    chosen = np.sort(np.random.default_rng(seed).choice(len(rows), max_rows, replace=False))
    return rows[chosen], None if episodes is None else episodes[chosen]


def _held_out_count(real: Transitions) -> int:
    return min(MAX_HELD_OUT, round(HELD_OUT_SHARE * len(real)))


def _whole_episodes(episodes: Array, count: int, draw: np.random.Generator) -> Array | None:
    """Assign each row to a part, such that `count` rows are held out and no episode is in both parts.

    The last episode that is held out may have more rows than needed; these rows are dropped. Return None if there are
    too few episodes.
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

"""When to refresh, and how much of a batch to generate, from what the generator and the agent's critics do not know.

Everything is measured on rows that no generator has learned from, and that no batch of the agent contains if the ratio
adapts. What is decided depends only on the stored rows, the generator and the critics. So a saved replay that is
loaded decides the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from synther import compute
from synther.data.transitions import Transitions
from synther.diffusion.edm import draw_problem
from synther.errors import ConfigError, DataError
from synther.relevance import Relevance
from synther.replay.refit import held_out_rows
from synther.synthesizer import Synthesizer

RefreshTime = Literal["fixed", "auto"]

LOOKS = 5
"""Number of times that drift is looked for in `refresh_every` rows."""
LONGEST = 2
"""The longest time between two refreshes, in `refresh_every`."""
RATIOS = 0.25, 0.75
"""Between which ratios it adapts."""
FIRST_RATIO, RATIO_STEP = 0.5, 0.05

_MORE = 0.2  # by this share a loss or an error must be higher to count as higher,
_ERRORS = 3.0  # and by so many standard errors
_ALIKE = 0.1  # share up to which it counts as the same
_MEASURED = 4_096  # noisy rows that a loss is the mean of, at least, and most rows that are looked at
_MOST = 10.0  # of a row's loss, which is about 1 for a generator that knows nothing: single odd rows decide nothing
_NOISE = 9  # random stream


class Stored(NamedTuple):
    """The real rows of a buffer, as `SyntheticRows.job_on` takes them."""

    rows: Transitions
    gone: int = 0
    places: NDArray[np.int64] | None = None
    groups: int = 1
    """The rows are grouped by environment, as many of each, oldest first."""

    def newest(self, count: int) -> NDArray[np.bool_]:
        """Which of them are the newest `count`."""
        steps = len(self.rows) // self.groups
        is_new = np.arange(steps) >= steps - -(-count // self.groups)
        return np.tile(is_new, self.groups)

    def held_out(self, stream: Sequence[int], share: float) -> NDArray[np.bool_]:
        """Which of them no generator learns from."""
        places = np.arange(self.gone, self.gone + len(self.rows)) if self.places is None else self.places
        return held_out_rows(stream, places, share)

    def drift(self, model: Synthesizer, held_out: NDArray[np.bool_], since_fit: int, since_look: int) -> Drift:
        """Compare the newest rows with those that `model` was fitted on.

        `since_fit` and `since_look` rows came in since its fit and since drift was last looked for. `held_out` (N,)
        marks the rows that it was not fitted on.
        """
        unseen, newest = held_out & ~self.newest(since_fit), self.newest(since_look)
        return drift(model, self.rows[unseen], self.rows[newest])


@dataclass(frozen=True)
class Look:
    """What was found out after `added` rows, and what was decided."""

    added: int
    refresh: bool
    ratio: float
    unseen: float | None = None
    """Loss of the generator on held-out rows that are older than its fit."""
    newest: float | None = None
    """Its loss on the newest rows; None if they have values that it cannot represent."""
    held_out_error: float | None = None
    """TD error of the agent's critics in rows that neither agent nor generator learn from."""
    trained_error: float | None = None
    """Their TD error in other real rows."""


def look_every(refresh_every: int) -> int:
    """Rows between two looks."""
    return max(1, refresh_every // LOOKS)


def check_holdout(share: float) -> None:
    if share == 0:
        raise ConfigError("'auto' is decided by held-out rows, and fit.holdout is 0: expected a share above 0")


class Drift(NamedTuple):
    """Losses of a generator on held-out rows as old as those of its fit, and on the newest ones; see `Look`."""

    unseen: float | None
    newest: float | None
    is_there: bool


def drift(model: Synthesizer, unseen: Transitions, newest: Transitions) -> Drift:
    """Whether the loss of `model` is higher in the newest rows than in older ones that it was not fitted on."""
    if not len(unseen) or not len(newest):
        return Drift(None, None, False)
    known = _losses(model, unseen)
    try:
        found = _losses(model, newest)
    except DataError:  # a value that was never seen
        return Drift(float(known.mean()), None, True)
    return Drift(float(known.mean()), float(found.mean()), _is_higher(found, known))


def next_ratio(ratio: float, held_out: NDArray[np.float64], trained: NDArray[np.float64]) -> float:
    """One step up where TD errors are higher in held-out rows than in those of batches, so that critics know the latter
    by heart. One step down where they are alike."""
    low, high = RATIOS
    if _is_higher(held_out, trained):
        return min(high, round(ratio + RATIO_STEP, 6))
    if held_out.mean() <= (1 + _ALIKE) * trained.mean():
        return max(low, round(ratio - RATIO_STEP, 6))
    return ratio


def td_errors(function: Relevance, rows: Transitions) -> NDArray[np.float64]:
    """What the agent says about rows, checked. (N,)"""
    found = np.asarray(function(rows), np.float64)
    if found.shape != (len(rows),) or not np.isfinite(found).all():
        got = f"shape {found.shape}" if found.shape != (len(rows),) else "NaN or an infinity"
        raise DataError(f"td_error: expected one finite number for each of {len(rows):,} rows, got {got}")
    return np.abs(found)


def spread_over(places: NDArray[np.int64]) -> NDArray[np.int64]:
    """At most as many of the places as are looked at, evenly spread."""
    if len(places) <= _MEASURED:
        return places
    return places[np.linspace(0, len(places) - 1, _MEASURED).astype(np.int64)]


def _is_higher(ones: NDArray[np.float64], others: NDArray[np.float64]) -> bool:
    """Whether the mean is, by a share of it and by more than chance explains."""
    more = ones.mean() - others.mean()
    error = math.sqrt(ones.var() / len(ones) + others.var() / len(others))
    return bool(more > _MORE * others.mean() and more > _ERRORS * error)


@torch.no_grad()
def _losses(model: Synthesizer, rows: Transitions) -> NDArray[np.float64]:
    """The denoising loss of each row, or of as many as are looked at, under the same noise every time. (N,)"""
    rows = rows[spread_over(np.arange(len(rows)))]
    matrix = torch.from_numpy(model.matrix(rows).astype(np.float32)).to(model.device)
    times = -(-_MEASURED // len(matrix))
    generator = compute.generator(model.device, 0, _NOISE)
    problem = draw_problem(matrix.repeat(times, 1), model.settings.noise, generator)
    conditions = model.conditions.count
    told = (matrix.new_full((len(problem.inputs), conditions), math.nan),) if conditions else ()
    with compute.matmul_precision("float32"):
        found = model.network(problem.inputs, problem.c_noise, *told).float()
    errors = (found - problem.target).square().mean(1).view(times, -1).mean(0)
    losses: NDArray[np.float64] = errors.clamp(max=_MOST).double().cpu().numpy()
    return losses

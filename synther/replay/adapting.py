"""Decide when to refresh (`refresh="auto"`) and which share of a batch is synthetic (`ratio="auto"`).

A refresh is due when the generator's loss is higher on the newest rows than on older rows that it was not fitted on
(`drift`). The ratio rises when the critics' TD errors are higher in held-out rows than in the rows of batches, and
falls when both are about equal (`next_ratio`). If the ratio adapts, batches contain no held-out rows.

The decisions depend only on the stored rows, the generator and the critics, so a replay that was saved and loaded
decides the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
"""Number of checks ("looks") within `refresh_every` rows."""
LONGEST = 2
"""Longest time between two refreshes, as a multiple of `refresh_every`."""
RATIOS = 0.25, 0.75
"""Smallest and largest ratio of `ratio="auto"`."""
FIRST_RATIO, RATIO_STEP = 0.5, 0.05
"""Ratio before the first check, and its change per check."""

_RELATIVE_INCREASE = 0.2  # a mean counts as higher if it exceeds the other mean by more than this fraction of it ...
_STANDARD_ERRORS = 3.0  # ... and by more than this number of standard errors
_SAME = 0.1  # two mean TD errors count as equal if the first exceeds the second by at most this fraction
_MEASURED = 4_096  # largest number of rows that are measured, and smallest number of noisy rows that a mean loss covers
_LARGEST_LOSS = 10.0  # losses of single rows are clipped here, so that an outlier decides nothing; untrained: about 1
_NOISE = 9  # random stream of the noise in `_losses`


class Stored(NamedTuple):
    """The real rows of a buffer, with the arguments of `SyntheticRows.job_on`."""

    rows: Transitions
    gone: int = 0
    places: NDArray[np.int64] | None = None
    groups: int = 1
    """Number of environments. Rows are grouped by environment. Groups have equal sizes and are ordered by age."""

    def newest(self, count: int) -> NDArray[np.bool_]:
        """Return a mask (N,) of the newest `count` rows. `count` is rounded up to equal numbers in all groups."""
        steps = len(self.rows) // self.groups
        is_new = np.arange(steps) >= steps - -(-count // self.groups)
        return np.tile(is_new, self.groups)

    def held_out(self, stream: Sequence[int], share: float) -> NDArray[np.bool_]:
        """Return a mask (N,) of the rows that no generator is fitted on."""
        places = np.arange(self.gone, self.gone + len(self.rows)) if self.places is None else self.places
        return held_out_rows(stream, places, share)

    def drift(self, model: Synthesizer, held_out: NDArray[np.bool_], since_fit: int, since_look: int) -> Drift:
        """Compare the loss of `model` on the newest rows with its loss on held-out rows that are older than its fit.

        `since_fit` and `since_look` are the numbers of rows that were added after the fit and after the last check.
        `held_out` (N,) marks the rows that `model` was not fitted on.
        """
        unseen, newest = held_out & ~self.newest(since_fit), self.newest(since_look)
        return drift(model, self.rows[unseen], self.rows[newest])


def look_every(refresh_every: int) -> int:
    """Return the number of rows between two checks."""
    return max(1, refresh_every // LOOKS)


def check_holdout(share: float) -> None:
    """Raise an error if no rows are held out, because all decisions compare with held-out rows."""
    if share == 0:
        raise ConfigError("refresh='auto' and ratio='auto' need held-out rows: expected fit.holdout above 0, got 0")


class Drift(NamedTuple):
    """Result of `drift`: the mean losses `unseen` and `newest`, as in `Look`."""

    unseen: float | None
    newest: float | None
    is_there: bool
    """Whether the newest rows differ from the rows of the fit."""


def drift(model: Synthesizer, unseen: Transitions, newest: Transitions) -> Drift:
    """Test whether the loss of `model` is higher on the newest rows than on older rows that it was not fitted on."""
    if not len(unseen) or not len(newest):
        return Drift(None, None, False)
    old_losses = _losses(model, unseen)
    try:
        new_losses = _losses(model, newest)
    except DataError:  # a value that the rows of the fit did not have, such as a new category
        return Drift(float(old_losses.mean()), None, True)
    return Drift(float(old_losses.mean()), float(new_losses.mean()), _is_higher(new_losses, old_losses))


def next_ratio(ratio: float, held_out: NDArray[np.float64], trained: NDArray[np.float64]) -> float:
    """Return the next ratio, from TD errors in held-out rows and in rows of batches (`trained`).

    The ratio rises by one step if the errors are higher in held-out rows, because the critics have then memorised the
    rows of batches. It falls by one step if both mean errors are about equal. Otherwise it stays.
    """
    low, high = RATIOS
    if _is_higher(held_out, trained):
        return min(high, round(ratio + RATIO_STEP, 6))
    if held_out.mean() <= (1 + _SAME) * trained.mean():
        return max(low, round(ratio - RATIO_STEP, 6))
    return ratio


def td_errors(function: Relevance, rows: Transitions) -> NDArray[np.float64]:
    """Return the absolute TD errors (N,) that `function` computes for `rows`. Raises an error if they are invalid."""
    errors = np.asarray(function(rows), np.float64)
    if errors.shape != (len(rows),) or not np.isfinite(errors).all():
        got = f"shape {errors.shape}" if errors.shape != (len(rows),) else "NaN or an infinity"
        raise DataError(f"td_error: expected one finite number for each of {len(rows):,} rows, got {got}")
    return np.abs(errors)


def spread_over(places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return all places, or `_MEASURED` evenly spaced ones if there are more."""
    if len(places) <= _MEASURED:
        return places
    return places[np.linspace(0, len(places) - 1, _MEASURED).astype(np.int64)]


def _is_higher(first: NDArray[np.float64], second: NDArray[np.float64]) -> bool:
    """Test whether the mean of `first` is clearly higher than that of `second`, and not only by chance."""
    difference = first.mean() - second.mean()
    error = math.sqrt(first.var() / len(first) + second.var() / len(second))
    return bool(difference > _RELATIVE_INCREASE * second.mean() and difference > _STANDARD_ERRORS * error)


@torch.no_grad()
def _losses(model: Synthesizer, rows: Transitions) -> NDArray[np.float64]:
    """Return the denoising loss of each row (N,). If there are more than `_MEASURED` rows, that many are measured.

    The noise is the same in every call. Fewer rows are repeated, with different noise, up to `_MEASURED` or more.
    """
    rows = rows[spread_over(np.arange(len(rows)))]
    matrix = torch.from_numpy(model.matrix(rows).astype(np.float32)).to(model.device)
    times = -(-_MEASURED // len(matrix))
    generator = compute.generator(model.device, 0, _NOISE)
    problem = draw_problem(matrix.repeat(times, 1), model.settings.noise, generator)
    conditions = model.conditions.count
    unknown = (matrix.new_full((len(problem.inputs), conditions), math.nan),) if conditions else ()  # NaN: not given
    with compute.matmul_precision("float32"):
        outputs = model.network(problem.inputs, problem.c_noise, *unknown).float()
    errors = (outputs - problem.target).square().mean(1).view(times, -1).mean(0)
    losses: NDArray[np.float64] = errors.clamp(max=_LARGEST_LOSS).double().cpu().numpy()
    return losses

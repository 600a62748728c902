"""Every metric by name: how it is computed, what to call it, which way is better, what it says.

`docs/assess.md` explains each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from synther.assess.assessment import Better, Measure
from synther.data.transitions import Transitions
from synther.registry import Registry

if TYPE_CHECKING:
    from synther.assess.judge import Comparison

_DUST = 1e-12  # what rounding leaves of nothing, as between a simulator and rows that it made


class Figure(NamedTuple):
    """What a metric finds."""

    value: float | None
    """Of the synthetic rows."""
    real: float | None
    """Of held-out real ones."""
    chance: float = 0.0
    detail: str = ""
    better: Better | None = None
    """Where it is another direction than that of the table."""


Compute = Callable[["Comparison"], Figure | None]


@dataclass(frozen=True)
class Metric:
    """What is registered in `METRICS`: how the figure is computed, and what a reader has to know about it."""

    label: str
    """For people: "Marginal similarity"."""
    group: str
    """The heading it stands under."""
    better: Better
    low: float | None
    """The ends of its range; None is without end."""
    high: float | None
    about: str
    """One sentence: what it says, and why one cares."""
    compute: Compute
    """The figure of the rows that are compared, None where it has none; see `compared` for the simple case."""


def compared(distance: Callable[[Transitions, Transitions], float]) -> Compute:
    """The metric of a function of (real rows, other rows), applied to synthetic rows and to held-out real rows."""

    def compute(rows: Comparison) -> Figure:
        split = rows.split
        return Figure(distance(split.reference, split.synthetic), distance(split.reference, split.held_out))

    return compute


_USE, _LIKE, _TRUE = "Train on synthetic, test on real", "Likeness", "True to the environment"
_SPREAD, _FINITE = "Spread of outcomes", "States and transitions that exist"
_NEW, _ENDS, _SIZE = "Novelty and coverage", "Ends of episodes", "Size"

METRICS: Registry[Metric] = Registry("metric", "synther.metrics", Metric, {
    "outcome_score": Metric(
        "Dynamics prediction", _USE, "higher", None, 1,
        "R^2 on held-out real rows of networks that learned s' - s and r from synthetic rows; beside it, from real.",
        lambda rows: rows.learned.figures.get("outcome_score"),
    ),
    "outcome_score_mixed": Metric(
        "Dynamics prediction, half and half", _USE, "higher", None, 1,
        "The same after learning from batches that are half real and half synthetic: what mixing would cost or gain.",
        lambda rows: rows.learned.figures.get("outcome_score_mixed"),
    ),
    "policy_score": Metric(
        "Behaviour cloning", _USE, "higher", None, 1,
        "R^2 (share of right actions where they are discrete) on held-out real rows of policies cloned from synthetic "
        "rows; beside it, from real ones.",
        lambda rows: rows.learned.figures.get("policy_score"),
    ),
    "policy_score_mixed": Metric(
        "Behaviour cloning, half and half", _USE, "higher", None, 1,
        "The same after cloning from batches that are half real and half synthetic.",
        lambda rows: rows.learned.figures.get("policy_score_mixed"),
    ),
    "auc": Metric(
        "Classifier two-sample test, AUC", _LIKE, "lower", 0, 1,
        "How well a network tells synthetic rows from real ones: 0.5 is guessing, at 1 it recognises every row.",
        lambda rows: rows.learned.figures.get("auc"),
    ),
    "marginal": Metric(
        "Marginal similarity (1 - KS)", _LIKE, "higher", 0, 1,
        "Mean over columns of 1 - KS: whether every column by itself is distributed as in the real rows.",
        lambda rows: rows.likeness.figures.get("marginal"),
    ),
    "worst_column": Metric(
        "Worst column (1 - KS)", _LIKE, "higher", 0, 1,
        "1 - KS of the column that is least alike; the columns below say which.",
        lambda rows: rows.likeness.figures.get("worst_column"),
    ),
    "correlation": Metric(
        "Correlation similarity (Pearson)", _LIKE, "higher", 0, 1,
        "Mean over pairs of columns of 1 - |difference of Pearson's r| / 2: whether columns go together as real ones.",
        lambda rows: rows.likeness.figures.get("correlation"),
    ),
    "worst_correlation": Metric(
        "Largest correlation difference", _LIKE, "lower", 0, 2,
        "Largest difference between a real and a synthetic correlation of two columns. Differences that chance "
        "explains count as 0.",
        lambda rows: rows.likeness.figures.get("worst_correlation"),
    ),
    "outcome_spread": Metric(
        "Conditional std ratio of outcomes", _SPREAD, "nearer", 0, None,
        "Standard deviation of outcomes (next observation, reward) given (s, a), relative to real rows, in the random "
        "column where it is furthest off. 1 is right; below 1 the environment looks safer than it is.",
        lambda rows: rows.spread.get("outcome_spread"),
    ),
    "band_50": Metric(
        "50 % prediction interval coverage", _SPREAD, "nearer", 0, 1,
        "Share of outcomes inside the band that holds the middle half of real outcomes given (s, a). More means that "
        "outcomes are too narrow, less that they are too wide or off centre.",
        lambda rows: rows.spread.get("band_50"),
    ),
    "band_90": Metric(
        "90 % prediction interval coverage", _SPREAD, "nearer", 0, 1,
        "The same for the band that holds the middle 90 % of real outcomes.",
        lambda rows: rows.spread.get("band_90"),
    ),
    "outcome_information": Metric(
        "Conditional classifier gain (bits)", _SPREAD, "lower", 0, 1,
        "How much the outcome helps a network that already knows (s, a) to tell synthetic rows from real ones. At 0 "
        "outcomes are distributed like real ones, at 1 each of them gives its row away.",
        lambda rows: rows.spread.get("outcome_information"),
    ),
    "dynamics_error": Metric(
        "Dynamics error", _TRUE, "lower", 0, None,
        "Median squared error of the next observation, in real stds, against what the judge says would follow. "
        "Where networks judge, less than real rows is no improvement: outcomes then lie too close to their mean.",
        lambda rows: rows.physics.figures.get("dynamics_error"),
    ),
    "reward_error": Metric(
        "Reward error", _TRUE, "lower", 0, None,
        "Mean squared error of the reward, in real stds, against what the judge says it would be; 10 at most for a "
        "row. Where networks judge, less than real rows is no improvement.",
        lambda rows: rows.physics.figures.get("reward_error"),
    ),
    "payout_mean": Metric(
        "Reward from payouts", _TRUE, "nearer", None, None,
        "What rare rewards that are far from all usual ones add to the mean reward. Only where there are some.",
        lambda rows: rows.payouts.get("payout_mean"),
    ),
    "payout_place": Metric(
        "Payouts in the right place (2 AUC - 1)", _TRUE, "higher", -1, 1,
        "How well a network that learned from real rows which (s, a) pay tells rows with a payout from others.",
        lambda rows: rows.payouts.get("payout_place"),
    ),
    "payout_size": Metric(
        "Payouts of the right size (Pearson)", _TRUE, "higher", -1, 1,
        "How well the sizes of payouts agree with what a network predicts that learned them from real rows.",
        lambda rows: rows.payouts.get("payout_size"),
    ),
    "actions_outside": Metric(
        "Actions out of bounds", _TRUE, "lower", 0, 1,
        "Share of rows with an action that the action space, or where none is declared the real range, does not hold.",
        lambda rows: rows.bounds.get("actions_outside"),
    ),
    "observations_outside": Metric(
        "Observations out of bounds", _TRUE, "lower", 0, 1,
        "Share of rows with an observed value beyond its declared bounds, or beyond every real one.",
        lambda rows: rows.bounds.get("observations_outside"),
    ),
    "action_scale": Metric(
        "Std ratio of actions", _TRUE, "nearer", 0, None,
        "Standard deviation of the actions relative to real rows, in the dimension where it is furthest off. 1 is "
        "right; rows with rescaled actions show here.",
        lambda rows: rows.bounds.get("action_scale"),
    ),
    "known_observations": Metric(
        "Known observations", _FINITE, "higher", 0, 1,
        "Share of observations and next observations that occur among real rows. Only where real observations repeat.",
        lambda rows: rows.states.get("known_observations"),
    ),
    "possible_transitions": Metric(
        "Possible transitions", _FINITE, "higher", 0, 1,
        "Share of (s, a, s') that occur among real rows, of those with (s, a) seen at least 5 times. Only for few "
        "states and discrete actions.",
        lambda rows: rows.states.get("possible_transitions"),
    ),
    "frequency_error": Metric(
        "Transition probability error (RMSE)", _FINITE, "lower", 0, None,
        "Root mean square difference of the probabilities of next states given (s, a). Only for few states and "
        "discrete actions.",
        lambda rows: rows.states.get("frequency_error"),
    ),
    "terminal_rate": Metric(
        "Terminal rate", _ENDS, "nearer", 0, 1,
        "Share of rows that end an episode: with too few nothing seems to fail.",
        lambda rows: rows.bounds.get("terminal_rate"),
    ),
    "terminal_correctness": Metric(
        "Terminal accuracy", _ENDS, "higher", 0, 1,
        "Share of rows whose terminal flag is the one the judge gives.",
        lambda rows: rows.physics.figures.get("terminal_correctness"),
    ),
    "terminal_precision": Metric(
        "Terminal precision", _ENDS, "higher", 0, 1,
        "Share of the rows flagged terminal that the judge ends, too.",
        lambda rows: rows.physics.figures.get("terminal_precision"),
    ),
    "terminal_recall": Metric(
        "Terminal recall", _ENDS, "higher", 0, 1,
        "Share of the rows the judge ends that are flagged terminal.",
        lambda rows: rows.physics.figures.get("terminal_recall"),
    ),
    "novelty": Metric(
        "Novelty (nearest-neighbour distance)", _NEW, "nearer", 0, None,
        "Median distance to the nearest real row, in real stds: 0 is copies, far beyond real rows is elsewhere.",
        lambda rows: rows.neighbours.figures.get("novelty"),
    ),
    "memorisation": Metric(
        "Memorisation rate", _NEW, "nearer", 0, 1,
        "Share of rows as near a training row as hardly any held-out row is: 1 is a generator that replays its data.",
        lambda rows: rows.neighbours.figures.get("memorisation"),
    ),
    "coverage": Metric(
        "Coverage", _NEW, "higher", 0, 1,
        "Share of held-out real rows with a synthetic row in their neighbourhood: low where kinds of rows are missing.",
        lambda rows: rows.neighbours.figures.get("coverage"),
    ),
    "start_coverage": Metric(
        "Coverage of episode starts", _NEW, "higher", 0, 1,
        "Share of the first observations of real episodes with a synthetic observation nearby. An agent that never "
        "sees a start does not know how to begin.",
        lambda rows: rows.neighbours.figures.get("start_coverage"),
    ),
    "compression": Metric(
        "Compression", _SIZE, "higher", 0, None,
        "Values stored in the real rows for each parameter of the generator.",
        lambda rows: rows.compression,
    ),
})  # fmt: skip
"""Metrics by name, in the order of the report. Others can be registered here, or installed: see `Registry`. They are
shown with the built-in ones; the verdict rests on the built-in ones alone."""


def measure(
    name: str,
    value: float | None,
    real: float | None,
    chance: float = 0.0,
    detail: str = "",
    better: Better | None = None,
) -> Measure:
    """The figure called `name`; what is no finite number is None."""
    metric = METRICS.get(name)
    return Measure(
        name=name,
        label=metric.label,
        group=metric.group,
        value=_finite(value),
        real=_finite(real),
        better=better or metric.better,
        low=metric.low,
        high=metric.high,
        about=metric.about,
        chance=_finite(chance) or 0.0,
        detail=detail,
    )


def _finite(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return 0.0 if abs(value) < _DUST else float(value)

"""The registry of metrics: the label of each, the better direction, one sentence of explanation, how to compute it.

The figures themselves are computed in `judge.Comparison`, because several metrics share the same networks. A metric
here only picks its figure. `docs/assess.md` defines every metric.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from synther.assess.assessment import Better, Measure
from synther.assess.figure import DUST, Figure
from synther.data.transitions import Transitions
from synther.registry import Registry

if TYPE_CHECKING:
    from synther.assess.judge import Comparison

Compute = Callable[["Comparison"], Figure | None]


@dataclass(frozen=True)
class Metric:
    """An entry of `METRICS`: a function that computes a figure, and the words that explain it in the report."""

    label: str
    """Name in the report, such as "Marginal similarity"."""
    group: str
    """Heading in the report. Metrics with the same heading are listed together."""
    better: Better
    """Whether higher or lower figures are better, or figures near that of real rows."""
    low: float | None
    """Lower end of the range; None if it has no lower end."""
    high: float | None
    """Upper end of the range; None if it has no upper end."""
    about: str
    """What the figure measures, and why it matters. One or two sentences."""
    compute: Compute
    """Return the figure of the compared rows, or None if it does not apply. `compared` covers the simple case."""


def compared(distance: Callable[[Transitions, Transitions], float]) -> Compute:
    """Make a metric from a function of (real rows, other rows). It is applied to synthetic and to held-out rows."""

    def compute(rows: Comparison) -> Figure:
        split = rows.split
        return Figure(distance(split.reference, split.synthetic), distance(split.reference, split.held_out))

    return compute


_USE, _LIKE, _TRUE = "Train on synthetic, test on real", "Similarity", "Consistency with the environment"
_SPREAD, _FINITE = "Spread of outcomes", "Discrete states and transitions"
_NEW, _ENDS, _SIZE = "Novelty and coverage", "Terminals", "Size"

METRICS: Registry[Metric] = Registry("metric", "synther.metrics", Metric, {
    "outcome_score": Metric(
        "Dynamics prediction", _USE, "higher", None, 1,
        "R^2 on held-out real rows, of networks that learned s' - s and r from s and a. They learned from synthetic "
        "rows, or from real rows for the figure of real rows.",
        lambda rows: rows.learned.figures.get("outcome_score"),
    ),
    "outcome_score_mixed": Metric(
        "Dynamics prediction, half and half", _USE, "higher", None, 1,
        "The same after learning from batches that are half real and half synthetic. It shows what a mixture gains or "
        "costs.",
        lambda rows: rows.learned.figures.get("outcome_score_mixed"),
    ),
    "policy_score": Metric(
        "Behaviour cloning", _USE, "higher", None, 1,
        "R^2 on held-out real rows, of networks that learned the action from s. For discrete actions: the share of "
        "correct actions. They learned from synthetic rows, or from real rows for the figure of real rows.",
        lambda rows: rows.learned.figures.get("policy_score"),
    ),
    "policy_score_mixed": Metric(
        "Behaviour cloning, half and half", _USE, "higher", None, 1,
        "The same after learning from batches that are half real and half synthetic.",
        lambda rows: rows.learned.figures.get("policy_score_mixed"),
    ),
    "auc": Metric(
        "Classifier two-sample test, AUC", _LIKE, "lower", 0, 1,
        "How well a network separates synthetic rows from real rows. 0.5 means that it can only guess, 1 that it "
        "recognises every row.",
        lambda rows: rows.learned.figures.get("auc"),
    ),
    "marginal": Metric(
        "Marginal similarity (1 - KS)", _LIKE, "higher", 0, 1,
        "Mean over columns of 1 - Kolmogorov-Smirnov statistic. It compares the distribution of each single column.",
        lambda rows: rows.likeness.figures.get("marginal"),
    ),
    "worst_column": Metric(
        "Worst column (1 - KS)", _LIKE, "higher", 0, 1,
        "1 - Kolmogorov-Smirnov statistic of the least similar column.",
        lambda rows: rows.likeness.figures.get("worst_column"),
    ),
    "correlation": Metric(
        "Correlation similarity (Pearson)", _LIKE, "higher", 0, 1,
        "Mean over pairs of columns of 1 - |difference of Pearson's r| / 2. It compares how pairs of columns are "
        "related.",
        lambda rows: rows.likeness.figures.get("correlation"),
    ),
    "worst_correlation": Metric(
        "Largest correlation difference", _LIKE, "lower", 0, 2,
        "Largest difference between the correlations (Pearson's r) of two columns in real and in synthetic rows. "
        "Differences that chance can explain count as 0.",
        lambda rows: rows.likeness.figures.get("worst_correlation"),
    ),
    "outcome_spread": Metric(
        "Conditional std ratio of outcomes", _SPREAD, "nearer", 0, None,
        "Standard deviation of outcomes (next observation, reward) given (s, a), relative to real rows, in the worst "
        "random column. 1 is right. Below 1, the environment looks less random than it is.",
        lambda rows: rows.spread.get("outcome_spread"),
    ),
    "cell_spread": Metric(
        "Spread of outcomes in cells", _SPREAD, "nearer", 0, None,
        "How far outcomes are from their mean in real rows with the same discrete values of s and a, in stds of these "
        "rows, in the worst column. Only if some columns of s and a are discrete.",
        lambda rows: rows.cells.get("cell_spread"),
    ),
    "band_50": Metric(
        "50 % prediction interval coverage", _SPREAD, "nearer", 0, 1,
        "Share of outcomes inside the interval that contains the middle 50 % of real outcomes given (s, a). A larger "
        "share means that outcomes are too narrow. A smaller share means that they are too wide or off centre.",
        lambda rows: rows.spread.get("band_50"),
    ),
    "band_90": Metric(
        "90 % prediction interval coverage", _SPREAD, "nearer", 0, 1,
        "The same for the interval that contains the middle 90 % of real outcomes.",
        lambda rows: rows.spread.get("band_90"),
    ),
    "outcome_information": Metric(
        "Conditional classifier gain (bits)", _SPREAD, "lower", 0, 1,
        "How much the outcome helps a network that already knows (s, a) to separate synthetic from real rows. 0 means "
        "that outcomes have the right distribution, 1 that every outcome reveals whether its row is synthetic.",
        lambda rows: rows.spread.get("outcome_information"),
    ),
    "dynamics_error": Metric(
        "Dynamics error", _TRUE, "lower", 0, None,
        "Median squared error of the next observation, relative to the variance of real rows. The truth comes from the "
        "simulator, or from networks trained on real rows. With networks, a smaller error than that of real rows is "
        "not better: the outcomes then lie too close to their mean.",
        lambda rows: rows.physics.figures.get("dynamics_error"),
    ),
    "reward_error": Metric(
        "Reward error", _TRUE, "lower", 0, None,
        "Mean squared error of the reward, relative to the variance of real rewards, at most 10 for each row. The "
        "truth comes from the simulator, or from networks trained on real rows. With networks, a smaller error than "
        "that of real rows is not better.",
        lambda rows: rows.physics.figures.get("reward_error"),
    ),
    "payout_mean": Metric(
        "Reward from payouts", _TRUE, "nearer", None, None,
        "What payouts (rare rewards that are far from all others) add to the mean reward. Only if real rows have "
        "payouts.",
        lambda rows: rows.payouts.get("payout_mean"),
    ),
    "payout_place": Metric(
        "Payouts in the right place (2 AUC - 1)", _TRUE, "higher", -1, 1,
        "How well a network separates rows with a payout from other rows, by s and a. It learned from real rows. 1 "
        "means that payouts come exactly where the network expects them, 0 that they come anywhere.",
        lambda rows: rows.payouts.get("payout_place"),
    ),
    "payout_size": Metric(
        "Payouts of the right size (Pearson)", _TRUE, "higher", -1, 1,
        "Correlation between the sizes of payouts and the sizes that a network predicts from s and a. It learned from "
        "real rows.",
        lambda rows: rows.payouts.get("payout_size"),
    ),
    "actions_outside": Metric(
        "Actions out of bounds", _TRUE, "lower", 0, 1,
        "Share of rows with an action outside the action space. If none is declared: outside the range of real "
        "actions.",
        lambda rows: rows.bounds.get("actions_outside"),
    ),
    "observations_outside": Metric(
        "Observations out of bounds", _TRUE, "lower", 0, 1,
        "Share of rows with an observation outside the observation space. If none is declared: outside the range of "
        "real observations.",
        lambda rows: rows.bounds.get("observations_outside"),
    ),
    "action_scale": Metric(
        "Std ratio of actions", _TRUE, "nearer", 0, None,
        "Standard deviation of the actions relative to real rows, in the worst dimension. 1 is right. Another figure "
        "can mean that the actions were rescaled.",
        lambda rows: rows.bounds.get("action_scale"),
    ),
    "held_rate": Metric(
        "Share of steps without a change", _TRUE, "nearer", 0, 1,
        "Share of rows in which a column of the observation stays as it is, such as a budget in steps that buy "
        "nothing. That of the worst column. Only if a column stays in some real rows and changes in others.",
        lambda rows: rows.held.get("held_rate"),
    ),
    "known_observations": Metric(
        "Known observations", _FINITE, "higher", 0, 1,
        "Share of observations and next observations that also occur in real rows. Only if real observations repeat.",
        lambda rows: rows.states.get("known_observations"),
    ),
    "possible_transitions": Metric(
        "Possible transitions", _FINITE, "higher", 0, 1,
        "Share of transitions (s, a, s') that also occur in real rows, among those whose (s, a) occurs at least 5 "
        "times. Only for few states and discrete actions.",
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
        "Share of rows that are terminal. With too few terminals, an agent does not learn that it can fail.",
        lambda rows: rows.bounds.get("terminal_rate"),
    ),
    "terminal_correctness": Metric(
        "Terminal accuracy", _ENDS, "higher", 0, 1,
        "Share of rows with the right terminal flag. The truth comes from the simulator; without one, from thresholds "
        "or a network learned from real rows.",
        lambda rows: rows.physics.figures.get("terminal_correctness"),
    ),
    "terminal_precision": Metric(
        "Terminal precision", _ENDS, "higher", 0, 1,
        "Of the rows flagged terminal, the share that should end an episode.",
        lambda rows: rows.physics.figures.get("terminal_precision"),
    ),
    "terminal_recall": Metric(
        "Terminal recall", _ENDS, "higher", 0, 1,
        "Of the rows that should end an episode, the share that is flagged terminal.",
        lambda rows: rows.physics.figures.get("terminal_recall"),
    ),
    "novelty": Metric(
        "Novelty (nearest-neighbour distance)", _NEW, "nearer", 0, None,
        "Median distance to the nearest real row, in stds of real rows. 0 means that rows are copies. Much more than "
        "for real rows means that rows lie where no real rows are.",
        lambda rows: rows.neighbours.figures.get("novelty"),
    ),
    "memorisation": Metric(
        "Memorisation rate", _NEW, "nearer", 0, 1,
        "Share of rows that are suspiciously close to a real row: closer than 95 % of the held-out rows. 1 means that "
        "the generator repeats its data.",
        lambda rows: rows.neighbours.figures.get("memorisation"),
    ),
    "coverage": Metric(
        "Coverage", _NEW, "higher", 0, 1,
        "Share of held-out real rows with a synthetic row nearby. It is low if some kinds of rows are missing.",
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
        "Number of values in the real rows for each parameter of the generator.",
        lambda rows: rows.compression,
    ),
})  # fmt: skip
"""All metrics by name, in the order of the report.

You can register your own metrics, or install them with a package: see `Registry`. They are shown in the report. The
verdict only uses the built-in ones.
"""


def measure(name: str, figure: Figure) -> Measure:
    """Return the `Measure` of the metric `name`. Figures that are not finite become None."""
    metric = METRICS.get(name)
    return Measure(
        name=name,
        label=metric.label,
        group=metric.group,
        value=_finite(figure.value),
        real=_finite(figure.real),
        better=figure.better or metric.better,
        low=metric.low,
        high=metric.high,
        about=metric.about,
        chance=_finite(figure.chance) or 0.0,
        detail=figure.detail,
    )


def _finite(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return 0.0 if abs(value) < DUST else float(value)

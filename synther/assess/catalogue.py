"""Every measure by name: what to call it, which way is better, what it says. `docs/assess.md` says how it is made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from synther.assess.assessment import Better, Measure

_DUST = 1e-12  # what rounding leaves of nothing, as between a simulator and rows that it made


@dataclass(frozen=True)
class Kind:
    label: str
    group: str
    better: Better
    low: float | None
    high: float | None
    about: str


_USE, _LIKE, _TRUE = "Train on synthetic, test on real", "Likeness", "True to the environment"
_SPREAD, _FINITE = "Spread of outcomes", "States and transitions that exist"
_NEW, _ENDS, _SIZE = "Novelty and coverage", "Ends of episodes", "Size"

KINDS: dict[str, Kind] = {
    "outcome_score": Kind(
        "Foreseeing outcomes", _USE, "higher", None, 1,
        "R^2 on held-out real rows of networks that learned s' - s and r from synthetic rows; beside it, from real.",
    ),
    "outcome_score_mixed": Kind(
        "Foreseeing outcomes, half and half", _USE, "higher", None, 1,
        "The same after learning from batches that are half real and half synthetic: what mixing would cost or gain.",
    ),
    "policy_score": Kind(
        "Acting as the data acts", _USE, "higher", None, 1,
        "R^2 (share of right actions where they are discrete) on held-out real rows of policies cloned from synthetic "
        "rows; beside it, from real ones.",
    ),
    "policy_score_mixed": Kind(
        "Acting as the data acts, half and half", _USE, "higher", None, 1,
        "The same after cloning from batches that are half real and half synthetic.",
    ),
    "auc": Kind(
        "Real or synthetic, AUC", _LIKE, "lower", 0, 1,
        "How well a network tells synthetic rows from real ones: at 0.5 nobody can, at 1 every row gives itself away.",
    ),
    "marginal": Kind(
        "Marginal similarity", _LIKE, "higher", 0, 1,
        "Mean over columns of 1 - KS: whether every column by itself is distributed as in the real rows.",
    ),
    "worst_column": Kind(
        "Worst column", _LIKE, "higher", 0, 1, "1 - KS of the column that is least alike; the columns below say which."
    ),
    "correlation": Kind(
        "Correlation similarity", _LIKE, "higher", 0, 1,
        "Mean over pairs of columns of 1 - |difference of Pearson's r| / 2: whether columns go together as real ones.",
    ),
    "worst_correlation": Kind(
        "Worst correlation", _LIKE, "lower", 0, 2,
        "Largest difference between a real and a synthetic correlation of two columns. Differences that chance "
        "explains count as 0.",
    ),
    "outcome_spread": Kind(
        "Spread of outcomes", _SPREAD, "nearer", 0, None,
        "Standard deviation of outcomes (next observation, reward) given (s, a), relative to real rows, in the random "
        "column where it is furthest off. 1 is right; below 1 the environment looks safer than it is.",
    ),
    "band_50": Kind(
        "Inside the 50 % band", _SPREAD, "nearer", 0, 1,
        "Share of outcomes inside the band that holds the middle half of real outcomes given (s, a). More means that "
        "outcomes are too narrow, less that they are too wide or off centre.",
    ),
    "band_90": Kind(
        "Inside the 90 % band", _SPREAD, "nearer", 0, 1,
        "The same for the band that holds the middle 90 % of real outcomes.",
    ),
    "outcome_information": Kind(
        "Bits told by the outcome", _SPREAD, "lower", 0, 1,
        "How much the outcome helps a network that already knows (s, a) to tell synthetic rows from real ones. At 0 "
        "outcomes are distributed like real ones, at 1 each of them gives its row away.",
    ),
    "dynamics_error": Kind(
        "Dynamics error", _TRUE, "lower", 0, None,
        "Median squared error of the next observation, in real deviations, against what the judge says would follow. "
        "Where networks judge, less than real rows is no improvement: outcomes then lie too close to their mean.",
    ),
    "reward_error": Kind(
        "Reward error", _TRUE, "lower", 0, None,
        "Median squared error of the reward, in real deviations, against what the judge says it would be. Where "
        "networks judge, less than real rows is no improvement.",
    ),
    "actions_outside": Kind(
        "Actions out of bounds", _TRUE, "lower", 0, 1,
        "Share of rows with an action that the action space, or where none is declared the real range, does not hold.",
    ),
    "observations_outside": Kind(
        "Observations out of bounds", _TRUE, "lower", 0, 1,
        "Share of rows with an observed value beyond its declared bounds, or beyond every real one.",
    ),
    "action_scale": Kind(
        "Scale of actions", _TRUE, "nearer", 0, None,
        "Standard deviation of the actions relative to real rows, in the dimension where it is furthest off. 1 is "
        "right; rows with rescaled actions show here.",
    ),
    "known_observations": Kind(
        "Observations that exist", _FINITE, "higher", 0, 1,
        "Share of observations and next observations that occur among real rows. Only where real observations repeat.",
    ),
    "possible_transitions": Kind(
        "Possible transitions", _FINITE, "higher", 0, 1,
        "Share of (s, a, s') that occur among real rows, of those with (s, a) seen at least 5 times. Only for few "
        "states and discrete actions.",
    ),
    "frequency_error": Kind(
        "Frequencies of outcomes", _FINITE, "lower", 0, None,
        "Root mean square difference of the probabilities of next states given (s, a). Only for few states and "
        "discrete actions.",
    ),
    "terminal_rate": Kind(
        "Terminal rate", _ENDS, "nearer", 0, 1, "Share of rows that end an episode: with too few nothing seems to fail."
    ),
    "terminal_correctness": Kind(
        "Terminals right", _ENDS, "higher", 0, 1, "Share of rows whose terminal flag is the one the judge gives."
    ),
    "terminal_precision": Kind(
        "Terminals that are ends", _ENDS, "higher", 0, 1, "Share of the rows flagged terminal that the judge ends, too."
    ),
    "terminal_recall": Kind(
        "Ends that are flagged", _ENDS, "higher", 0, 1, "Share of the rows the judge ends that are flagged terminal."
    ),
    "novelty": Kind(
        "Novelty", _NEW, "nearer", 0, None,
        "Median distance to the nearest real row, in real deviations: 0 is copies, far beyond real rows is elsewhere.",
    ),
    "memorisation": Kind(
        "Memorised rows", _NEW, "nearer", 0, 1,
        "Share of rows as near a training row as hardly any held-out row is: 1 is a generator that replays its data.",
    ),
    "coverage": Kind(
        "Coverage", _NEW, "higher", 0, 1,
        "Share of held-out real rows with a synthetic row in their neighbourhood: low where kinds of rows are missing.",
    ),
    "compression": Kind(
        "Compression", _SIZE, "higher", 0, None, "Values stored in the real rows for each parameter of the generator."
    ),
}  # fmt: skip


class Figure(NamedTuple):
    """What is found by a measure."""

    value: float | None
    """Of the synthetic rows."""
    real: float | None
    """Of held-out real ones."""
    chance: float = 0.0
    detail: str = ""
    better: Better | None = None
    """Where it is another direction than that of the table."""


def measure(
    name: str,
    value: float | None,
    real: float | None,
    chance: float = 0.0,
    detail: str = "",
    better: Better | None = None,
) -> Measure:
    """The figure called `name`; what is no finite number is None."""
    kind = KINDS[name]
    return Measure(
        name=name,
        label=kind.label,
        group=kind.group,
        value=_finite(value),
        real=_finite(real),
        better=better or kind.better,
        low=kind.low,
        high=kind.high,
        about=kind.about,
        chance=_finite(chance) or 0.0,
        detail=detail,
    )


def _finite(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return 0.0 if abs(value) < _DUST else float(value)

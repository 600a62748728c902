"""Derive the verdict (`use`, `mix` or `do not use`) from the measures of an assessment.

Each measure votes by comparing its figure for synthetic rows with its figure for held-out real rows, and the worst
vote counts. For example, if networks trained on synthetic rows make 1.4 times the error of networks trained on real
rows, and 1.1 times after training half and half, the vote is `mix`.

Read `Limits` first: it holds the threshold of every measure. Then read `decide`. `benchmarks/verdict.py` applies the
thresholds to rows of known quality. `docs/verdict.md` says how the thresholds were set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from synther.assess.assessment import Decision, Measure, Reason, Verdict

NEVER = math.inf
"""As the limit for `mix`, this means that the measure alone never leads to `do not use`."""


@dataclass(frozen=True)
class Limits:
    """All thresholds of the verdict.

    A pair holds the limit for `use` and the limit for `mix`. A figure beyond both limits means `do not use`.
    """

    loss: tuple[float, float] = (1.2, 1.5)
    """Largest error of networks trained on synthetic rows alone (for `use`) and half and half (for `mix`), as a
    multiple of the error after training on real rows."""
    dynamics: tuple[float, float] = (0.01, 0.06)
    """Largest amount by which `dynamics_error` may exceed that of real rows, apart from chance."""
    reward: tuple[float, float] = (0.03, 0.3)
    """Largest amount by which `reward_error` may exceed that of real rows, apart from chance."""
    low_error: float = 0.75
    """Smallest ratio of `dynamics_error` to that of real rows. Below it, outcomes lie too close to their mean. Applies
    only if networks judge and outcomes are random."""
    spread: tuple[float, float] = (1.15, NEVER)
    """Largest factor between `outcome_spread` and 1, in either direction."""
    cells: tuple[float, float] = (1.3, NEVER)
    """Largest factor between `cell_spread` and that of real rows, in either direction. It is wide because a cell knows
    nothing about numbers: the figures of two sets of real rows can differ by a tenth."""
    held: tuple[float, float] = (0.05, NEVER)
    """Largest difference between `held_rate` and that of real rows, in either direction."""
    band_50: tuple[float, float] = (0.05, NEVER)
    """Largest difference between `band_50` and that of real rows, in either direction."""
    band_90: tuple[float, float] = (0.03, NEVER)
    """Largest difference between `band_90` and that of real rows, in either direction."""
    information: tuple[float, float] = (0.1, NEVER)
    """Largest amount by which `outcome_information` may exceed that of real rows, in bits."""
    auc: tuple[float, float] = (0.3, NEVER)
    """Largest amount by which `auc` may exceed that of real rows, which is about 0.5."""
    coverage: tuple[float, float] = (0.85, 0.5)
    """Smallest ratio of `coverage` to that of real rows."""
    starts: tuple[float, float] = (0.5, 0.0)
    """Smallest `start_coverage`. It never leads to `do not use`, because the real rows of a mixture contain the episode
    starts."""
    correlation: tuple[float, float] = (0.06, NEVER)
    """Largest amount by which `worst_correlation` may exceed that of real rows."""
    payout_mean: tuple[float, float] = (1.5, NEVER)
    """Largest factor between `payout_mean` and that of real rows, in either direction. It is wide because payouts are
    few: even the figure of real rows is uncertain by a few tenths."""
    payouts: tuple[float, float] = (0.8, -1.0)
    """Smallest ratio of `payout_place` and `payout_size` to those of real rows."""
    actions_outside: tuple[float, float] = (0.01, 0.1)
    """Largest amount by which `actions_outside` may exceed that of real rows, as a share of the rows."""
    action_scale: tuple[float, float] = (1.25, 1.6)
    """Largest factor between `action_scale` and 1, in either direction. The deviation of held-out real rows from 1 is
    subtracted first, on a logarithmic scale."""
    terminal_rate: tuple[float, float] = (2.0, 10.0)
    """Largest factor between `terminal_rate` and that of real rows, in either direction. Too few terminals alone never
    lead to `do not use`."""
    terminals: tuple[float, float] = (0.9, 0.25)
    """Smallest ratio of `terminal_recall` and `terminal_precision` to those of real rows."""
    existing: tuple[float, float] = (0.97, 0.5)
    """Smallest ratio of `possible_transitions` and `known_observations` to those of real rows."""
    frequencies: tuple[float, float] = (0.05, 0.5)
    """Largest amount by which `frequency_error` may exceed that of real rows."""
    gap: tuple[float, float] = (0.02, 0.1)
    """Largest amount by which `marginal` and `correlation` may fall below those of real rows. Used only if there are
    too few rows to train networks."""
    copies: float = 0.5
    """Share of memorised rows from which the verdict remarks that the rows are copies."""


LIMITS = Limits()

_LEAST_ERROR = 0.02
"""Added to both errors before their ratio is taken. Without it, two tiny errors could have a large ratio."""

_ORDER: tuple[Decision, ...] = ("use", "mix", "do not use")
_MAIN = ("outcome_score", "policy_score", "marginal", "correlation", "dynamics_error")
"""Measures that every verdict lists as reasons, even if they vote `use`."""

_SENTENCES: dict[Decision, str] = {
    "use": "Train on these rows: networks learn nearly as much from them as from real rows.",
    "mix": "Mix these rows with real rows: on their own they are worse than real rows, for the reasons below.",
    "do not use": "Do not train on these rows: an agent would learn wrong things, even if half of its rows were real.",
}
"""Sentence of the verdict if networks could be trained."""
_SENTENCES_UNTRAINED: dict[Decision, str] = {
    "mix": "There are too few rows to train networks on. The other measures allow a mixture with real rows.",
    "do not use": "Do not train on these rows: they differ too much from real rows, and are too few to train networks.",
}
"""Sentence of the verdict if there were too few rows to train networks."""

Figures = Mapping[str, Measure]


def decide(measures: Figures, limits: Limits = LIMITS) -> Verdict:
    """Return the verdict of the worst vote. Its reasons are all votes against `use`, then the main measures.

    If there are too few rows to train networks, `marginal` and `correlation` replace the scores. They are not enough
    for `use`.
    """
    all_votes = votes(measures, limits)
    learned = any(reason.measure.endswith("_score") for reason in all_votes)
    reasons = sorted(
        (reason for reason in all_votes if reason.says != "use" or reason.measure in _MAIN),
        key=lambda reason: -_ORDER.index(reason.says),
    )
    decision: Decision = reasons[0].says if reasons else "mix"
    if not learned and decision == "use":
        decision = "mix"
    sentence = (_SENTENCES if learned else _SENTENCES_UNTRAINED)[decision]
    return Verdict(decision, sentence + _copies(measures, limits), tuple(reasons))


def votes(measures: Figures, limits: Limits = LIMITS) -> list[Reason]:
    """Return the vote of every measure that has a figure, in the order of the table in `docs/assess.md`."""
    known = {name: one for name, one in measures.items() if one.value is not None and one.real is not None}
    scores = [
        _score(known, "outcome_score", "predict the next observation and the reward", limits),
        _score(known, "policy_score", "imitate the actions", limits),
    ]
    reasons = [reason for reason in scores if reason is not None]
    if not reasons:
        reasons = [_gap(known[name], limits) for name in ("marginal", "correlation") if name in known]
    reasons += [vote(known[name], limits) for name, vote in _VOTES.items() if name in known]
    if "outcome_spread" in known and "dynamics_error" in known:
        reasons += _too_close(known["dynamics_error"], limits)
    return reasons


def _score(known: Figures, name: str, task: str, limits: Limits) -> Reason | None:
    """Return the vote of a score, from the errors after training on synthetic rows and half and half."""
    alone, mixed = known.get(name), known.get(f"{name}_mixed")
    if alone is None or mixed is None:
        return None
    error, error_mixed = _relative_error(alone), _relative_error(mixed)
    use, mix = limits.loss
    says: Decision = "use" if error <= use else "mix" if error_mixed <= mix else "do not use"
    text = (
        f"Networks learned to {task}. Their score on held-out real rows is {alone.value:.3f} after training on "
        f"synthetic rows, {mixed.value:.3f} after training half and half, and {alone.real:.3f} after training on real "
        f"rows. Relative to real rows, the error is {error:.2f} times as large (synthetic rows) and {error_mixed:.2f} "
        "times as large (half and half)."
    )
    return Reason(name, says, text)


def _relative_error(score: Measure) -> float:
    """Return the error (1 - score) after training on synthetic rows, as a multiple of that after real rows."""
    value, real = _both(score)
    return (1 - value + _LEAST_ERROR) / (1 - real + _LEAST_ERROR)


def _gap(measure: Measure, limits: Limits) -> Reason:
    value, real = _both(measure)
    text = f"{measure.label} is {value:.3f}. The same number of real rows reaches {real:.3f}."
    return Reason(measure.name, _level(real - value, limits.gap), text)


def _dynamics(measure: Measure, limits: Limits) -> Reason:
    value, real = _both(measure)
    text = (
        f"The median squared error of the next observation is {value:.2g} times the variance of real rows (held-out "
        f"real rows: {real:.2g})."
    )
    return Reason(measure.name, _level(value - measure.chance - real, limits.dynamics), text)


def _reward(measure: Measure, limits: Limits) -> Reason:
    value, real = _both(measure)
    text = (
        f"The mean squared error of the reward is {value:.2g} times the variance of real rewards (held-out real rows: "
        f"{real:.2g})."
    )
    return Reason(measure.name, _level(value - measure.chance - real, limits.reward), text)


def _too_close(measure: Measure, limits: Limits) -> list[Reason]:
    """Vote `mix` if networks judge, outcomes are random, and the error is well below that of real rows."""
    value, real = _both(measure)
    if measure.better != "nearer" or value + measure.chance >= limits.low_error * real:
        return []
    text = (
        f"The next observations lie closer to their mean given (s, a) than in real rows (error {value:.2g}, held-out "
        f"real rows {real:.2g}): part of the randomness of the environment is missing."
    )
    return [Reason(measure.name, "mix", text)]


def _spread(measure: Measure, limits: Limits) -> Reason:
    value, _ = _both(measure)
    off = abs(math.log(max(value, 1e-6))) - measure.chance / max(value, 1e-6)
    says = _level(off, _logs(limits.spread))
    text = f"Given (s, a), the standard deviation of {measure.detail} is {value:.2f} times that of real rows"
    if says != "use":
        text += f": outcomes are {'narrower' if value < 1 else 'wider'} than in the environment"
    return Reason(measure.name, says, f"{text}.")


def _cells(measure: Measure, limits: Limits) -> Reason:
    value, real = _both(measure)
    off = abs(math.log(max(value, 1e-6) / max(real, 1e-6))) - measure.chance
    text = (
        f"Where state and action have the same discrete values, {measure.detail} is {value:.2f} standard deviations "
        f"from its mean in real rows (held-out real rows: {real:.2f})."
    )
    return Reason(measure.name, _level(off, _logs(limits.cells)), text)


def _held(measure: Measure, limits: Limits) -> Reason:
    value, real = _both(measure)
    text = f"{measure.detail} stays as it is in {value:.1%} of the synthetic rows (held-out real rows: {real:.1%})."
    return Reason(measure.name, _level(abs(value - real) - measure.chance, limits.held), text)


def _band(measure: Measure, limits: Limits) -> Reason:
    value, real = _both(measure)
    text = (
        f"{value:.1%} of the synthetic outcomes lie inside the prediction interval that contains {real:.1%} of the "
        f"held-out real outcomes: synthetic outcomes are {'too narrow' if value > real else 'too wide or off centre'}."
    )
    limit = limits.band_50 if measure.name == "band_50" else limits.band_90
    return Reason(measure.name, _level(abs(value - real) - measure.chance, limit), text)


def _information(measure: Measure, limits: Limits) -> Reason:
    value, real = _both(measure)
    text = (
        f"The outcome gives a classifier that already knows (s, a) another {value:.2f} bits of information about "
        f"whether a row is synthetic (held-out real rows: {real:.2f})."
    )
    return Reason(measure.name, _level(value - measure.chance - real, limits.information), text)


def _auc(measure: Measure, limits: Limits) -> Reason:
    value, real = _both(measure)
    text = f"A classifier separates synthetic rows from real rows with an AUC of {value:.2f}. Guessing gives 0.5."
    return Reason(measure.name, _level(value - measure.chance - real, limits.auc), text)


def _coverage(measure: Measure, limits: Limits) -> Reason:
    value, real = _both(measure)
    text = (
        f"{value:.0%} of the held-out real rows have a synthetic row nearby (with other real rows: {real:.0%}): some "
        "kinds of rows are missing."
    )
    return Reason(measure.name, _reached(measure, limits.coverage), text)


def _starts(measure: Measure, limits: Limits) -> Reason:
    value, _ = _both(measure)
    text = f"{value:.0%} of the first observations of real episodes have a synthetic observation nearby."
    return Reason(measure.name, _reached(measure, limits.starts), text)


def _correlation(measure: Measure, limits: Limits) -> Reason:
    value, real = _both(measure)
    text = f"The correlation of two columns differs from real rows by {value:.3f} ({measure.detail})."
    return Reason(measure.name, _level(value - real, limits.correlation), text)


def _payout_mean(measure: Measure, limits: Limits) -> Reason:
    value, real = _both(measure)
    text = f"Rare large rewards add {value:.2g} to the mean reward (real rows: {real:.2g})."
    if abs(value - real) <= measure.chance:
        return Reason(measure.name, "use", text)
    factor = value / real if real else NEVER
    off = abs(math.log(factor)) if factor > 0 else NEVER
    return Reason(measure.name, _level(off, _logs(limits.payout_mean)), text)


def _payout_place(measure: Measure, limits: Limits) -> Reason:
    value, real = _both(measure)
    text = (
        "Rare large rewards often come with the wrong (s, a). A network learned from real rows where they come. It "
        f"scores {value:.2f} on synthetic rows and {real:.2f} on held-out real rows (2 AUC - 1)."
    )
    return Reason(measure.name, _reached(measure, limits.payouts), text)


def _payout_size(measure: Measure, limits: Limits) -> Reason:
    value, real = _both(measure)
    text = (
        "Rare large rewards often have the wrong size. A network learned their sizes from real rows. Its predictions "
        f"have a correlation of {value:.2f} with synthetic sizes and of {real:.2f} with held-out real sizes."
    )
    return Reason(measure.name, _reached(measure, limits.payouts), text)


def _outside(measure: Measure, limits: Limits) -> Reason:
    value, real = _both(measure)
    text = f"{value:.1%} of the rows have an action out of bounds (held-out real rows: {real:.1%})."
    return Reason(measure.name, _level(value - real - measure.chance, limits.actions_outside), text)


def _action_scale(measure: Measure, limits: Limits) -> Reason:
    value, real = _both(measure)
    off = abs(math.log(max(value, 1e-6))) - abs(math.log(max(real, 1e-6)))
    text = f"The standard deviation of the actions is {value:.2f} times that of real actions. {measure.detail}".strip()
    return Reason(measure.name, _level(off, _logs(limits.action_scale)), text)


def _terminal_rate(measure: Measure, limits: Limits) -> Reason:
    value, real = _both(measure)
    text = f"{value:.2%} of the rows are terminal (real rows: {real:.2%})."
    if abs(value - real) <= measure.chance:
        return Reason(measure.name, "use", text)
    _, mix = limits.terminal_rate
    factor = value / real if real else NEVER
    off = factor if factor >= 1 else min(mix, 1 / factor if factor else NEVER)
    return Reason(measure.name, _level(off, limits.terminal_rate), text)


def _terminal_recall(measure: Measure, limits: Limits) -> Reason:
    value, real = _both(measure)
    text = f"Only {value:.0%} of the rows that should end an episode are flagged terminal (real rows: {real:.0%})."
    return Reason(measure.name, _reached(measure, limits.terminals), text)


def _terminal_precision(measure: Measure, limits: Limits) -> Reason:
    value, real = _both(measure)
    text = f"Only {value:.0%} of the rows flagged terminal should end an episode (real rows: {real:.0%})."
    return Reason(measure.name, _reached(measure, limits.terminals), text)


def _existing(measure: Measure, limits: Limits) -> Reason:
    value, real = _both(measure)
    what = "observations" if measure.name == "known_observations" else "transitions (s, a, s')"
    text = f"{value:.1%} of the synthetic {what} also occur in real rows (held-out real rows: {real:.1%})."
    return Reason(measure.name, _reached(measure, limits.existing), text)


def _frequencies(measure: Measure, limits: Limits) -> Reason:
    value, real = _both(measure)
    text = (
        f"The probabilities of next states given (s, a) differ from real rows by {value:.2f} (held-out real rows: "
        f"{real:.2f})."
    )
    return Reason(measure.name, _level(value - measure.chance - real, limits.frequencies), text)


_VOTES: dict[str, Callable[[Measure, Limits], Reason]] = {
    "dynamics_error": _dynamics,
    "reward_error": _reward,
    "payout_mean": _payout_mean,
    "payout_place": _payout_place,
    "payout_size": _payout_size,
    "outcome_spread": _spread,
    "cell_spread": _cells,
    "held_rate": _held,
    "band_50": _band,
    "band_90": _band,
    "outcome_information": _information,
    "auc": _auc,
    "coverage": _coverage,
    "start_coverage": _starts,
    "worst_correlation": _correlation,
    "actions_outside": _outside,
    "action_scale": _action_scale,
    "known_observations": _existing,
    "possible_transitions": _existing,
    "frequency_error": _frequencies,
    "terminal_rate": _terminal_rate,
    "terminal_recall": _terminal_recall,
    "terminal_precision": _terminal_precision,
}


def _both(measure: Measure) -> tuple[float, float]:
    """Return the figures of synthetic and of held-out real rows, which must exist."""
    assert measure.value is not None
    assert measure.real is not None
    return measure.value, measure.real


def _level(figure: float, limits: tuple[float, float]) -> Decision:
    """Return the vote of a figure that should be small."""
    use, mix = limits
    return "use" if figure <= use else "mix" if figure <= mix else "do not use"


def _reached(measure: Measure, limits: tuple[float, float]) -> Decision:
    """Return the vote of a measure that should be large, from its ratio to the figure of real rows."""
    value, real = _both(measure)
    use, mix = limits
    value += measure.chance
    return "use" if value >= use * real else "mix" if value >= mix * real else "do not use"


def _logs(limits: tuple[float, float]) -> tuple[float, float]:
    return math.log(limits[0]), math.log(limits[1])


def _copies(measures: Figures, limits: Limits) -> str:
    """Return a remark for the verdict if most rows are copies, and over twice as many as among held-out real rows."""
    memorised = measures.get("memorisation")
    if memorised is None or memorised.value is None or memorised.real is None:
        return ""
    if memorised.value < limits.copies or memorised.value <= 2 * memorised.real:
        return ""
    return f" But {memorised.value:.0%} of the rows nearly repeat a real row. They add nothing to the real rows."

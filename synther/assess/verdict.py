"""Use, mix or do not use: from what learners lose on synthetic rows, and how far the rows are from the truth.

`benchmarks/verdict.py` shows how the thresholds sort rows of known quality; `docs/verdict.md` says how they were set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from synther.assess.assessment import Decision, Measure, Reason, Verdict

NEVER = math.inf
"""As a limit for `mix`: the measure alone never leads to `do not use`."""


@dataclass(frozen=True)
class Limits:
    """Every threshold of the verdict. A pair is the limit for `use` and the one for `mix`; beyond is `do not use`."""

    loss: tuple[float, float] = (1.2, 1.5)
    """Error of learners fitted on synthetic rows alone (for `use`), and half and half (for `mix`), as a multiple of the
    error after learning from real rows."""
    dynamics: tuple[float, float] = (0.01, 0.06)
    """How much larger `dynamics_error` may be than that of real rows."""
    reward: tuple[float, float] = (0.03, 0.3)
    """How much larger `reward_error` may be than that of real rows."""
    low_error: float = 0.75
    """Share of the real `dynamics_error` below which outcomes lie too close to their mean, where they are random."""
    spread: tuple[float, float] = (1.15, NEVER)
    """Factor by which `outcome_spread` may be off, either way."""
    band_50: tuple[float, float] = (0.05, NEVER)
    """How far `band_50` may be from that of real rows, either way."""
    band_90: tuple[float, float] = (0.03, NEVER)
    information: tuple[float, float] = (0.1, NEVER)
    """Bits: `outcome_information` above that of real rows."""
    auc: tuple[float, float] = (0.3, NEVER)
    """How much larger `auc` may be than that of real rows, which is about 0.5."""
    coverage: tuple[float, float] = (0.85, 0.5)
    """Share of the real rows' `coverage` that must be reached."""
    starts: tuple[float, float] = (0.5, 0.0)
    """Of `start_coverage`. Real rows in the mix bring their starts with them, so it never leads to `do not use`."""
    correlation: tuple[float, float] = (0.06, NEVER)
    """`worst_correlation` above that of real rows."""
    payout_mean: tuple[float, float] = (1.5, NEVER)
    """Factor by which `payout_mean` may be off, either way. That of real rows is known to a few tenths: payouts are
    few."""
    payouts: tuple[float, float] = (0.8, -1.0)
    """Share of the real rows' `payout_place` and `payout_size` that must be reached."""
    actions_outside: tuple[float, float] = (0.01, 0.1)
    """Share of rows above that of real rows."""
    action_scale: tuple[float, float] = (1.25, 1.6)
    """Factor by which `action_scale` may be off, either way."""
    terminal_rate: tuple[float, float] = (2.0, 10.0)
    """Factor by which `terminal_rate` may be off. Too few terminals alone never lead to `do not use`."""
    terminals: tuple[float, float] = (0.9, 0.25)
    """Share of the real rows' `terminal_recall` and `terminal_precision` that must be reached."""
    existing: tuple[float, float] = (0.97, 0.5)
    """Share of the real rows' `possible_transitions` and `known_observations` that must be reached."""
    frequencies: tuple[float, float] = (0.05, 0.5)
    """`frequency_error` above that of real rows."""
    gap: tuple[float, float] = (0.02, 0.1)
    """Where there are too few rows to learn from: how far `marginal` and `correlation` may be below those of real
    rows."""
    copies: float = 0.5
    """Share of memorised rows from which on the verdict remarks that rows are copies."""


LIMITS = Limits()

_LEAST_ERROR = 0.02
"""Added to the errors that are compared, or tiny ones would be large multiples where real rows teach everything."""

_ORDER: tuple[Decision, ...] = ("use", "mix", "do not use")
_MAIN = ("outcome_score", "policy_score", "marginal", "correlation", "dynamics_error")
"""Measures that are named in every verdict, also where they say `use`."""

_SENTENCES: dict[Decision, str] = {
    "use": "Train on it: networks learn nearly as much from these rows as from real ones.",
    "mix": "Mix it with real rows: on their own these rows fall short of real ones, for the reasons below.",
    "do not use": "Do not train on it: even half and half with real rows it would teach wrong things.",
}
_UNLEARNED: dict[Decision, str] = {
    "mix": "Too few rows to learn from; what can be measured does not speak against mixing them with real ones.",
    "do not use": "Do not train on it: there are too few rows to learn from, and these are unlike real ones.",
}

Figures = Mapping[str, Measure]


def decide(measures: Figures, limits: Limits = LIMITS) -> Verdict:
    """The worst vote decides. The reasons are the votes against `use`, and those of the main measures.

    Where there are too few rows to learn from, `marginal` and `correlation` take the place of the scores; they never
    suffice for `use`.
    """
    every = votes(measures, limits)
    learned = any(reason.measure.endswith("_score") for reason in every)
    reasons = sorted(
        (reason for reason in every if reason.says != "use" or reason.measure in _MAIN),
        key=lambda reason: -_ORDER.index(reason.says),
    )
    decision: Decision = reasons[0].says if reasons else "mix"
    if not learned and decision == "use":
        decision = "mix"
    sentence = (_SENTENCES if learned else _UNLEARNED)[decision]
    return Verdict(decision, sentence + _copies(measures, limits), tuple(reasons))


def votes(measures: Figures, limits: Limits = LIMITS) -> list[Reason]:
    """What each measure says that has a figure, in the order of the table in `docs/assess.md`."""
    known = {name: found for name, found in measures.items() if found.value is not None and found.real is not None}
    lessons = [
        _lesson(known, "outcome_score", "predict outcomes", limits),
        _lesson(known, "policy_score", "imitate the actions", limits),
    ]
    reasons = [reason for reason in lessons if reason is not None]
    if not reasons:
        reasons = [_gap(known[name], limits) for name in ("marginal", "correlation") if name in known]
    reasons += [vote(known[name], limits) for name, vote in _VOTES.items() if name in known]
    if "outcome_spread" in known and "dynamics_error" in known:
        reasons += _too_close(known["dynamics_error"], limits)
    return reasons


def _lesson(known: Figures, name: str, task: str, limits: Limits) -> Reason | None:
    alone, mixed = known.get(name), known.get(f"{name}_mixed")
    if alone is None or mixed is None:
        return None
    lost, lost_mixed = _loss(alone), _loss(mixed)
    use, mix = limits.loss
    says: Decision = "use" if lost <= use else "mix" if lost_mixed <= mix else "do not use"
    text = (
        f"Networks that learned to {task} from synthetic rows score {alone.value:.3f} on held-out real rows, from real "
        f"rows {alone.real:.3f}, half and half {mixed.value:.3f}: {lost:.2f} and {lost_mixed:.2f} times the error."
    )
    return Reason(name, says, text)


def _loss(score: Measure) -> float:
    """The error that is left, as a multiple of the one after learning from real rows."""
    value, real = _pair(score)
    return (1 - value + _LEAST_ERROR) / (1 - real + _LEAST_ERROR)


def _gap(found: Measure, limits: Limits) -> Reason:
    value, real = _pair(found)
    text = f"{found.label} is {value:.3f}, that of as many real rows {real:.3f}."
    return Reason(found.name, _level(real - value, limits.gap), text)


def _dynamics(found: Measure, limits: Limits) -> Reason:
    value, real = _pair(found)
    text = f"The next observation is off by {value:.2g} squared standard deviations, that of real rows by {real:.2g}."
    return Reason(found.name, _level(value - real, limits.dynamics), text)


def _reward(found: Measure, limits: Limits) -> Reason:
    value, real = _pair(found)
    text = f"The reward is off by {value:.2g} of its variance, that of real rows by {real:.2g}."
    return Reason(found.name, _level(value - found.chance - real, limits.reward), text)


def _too_close(found: Measure, limits: Limits) -> list[Reason]:
    """Where outcomes are random and networks judge, an error below that of real rows is a defect."""
    value, real = _pair(found)
    if found.better != "nearer" or value + found.chance >= limits.low_error * real:
        return []
    text = (
        f"The next observation lies closer to its mean than in real rows (error {value:.2g}, real rows {real:.2g}): "
        "the randomness of the environment is missing."
    )
    return [Reason(found.name, "mix", text)]


def _spread(found: Measure, limits: Limits) -> Reason:
    value, _ = _pair(found)
    off = abs(math.log(max(value, 1e-6))) - found.chance / max(value, 1e-6)
    how = "narrower" if value < 1 else "wider"
    text = f"Outcomes given (s, a) have {value:.2f} times the standard deviation of real ones in {found.detail}" + (
        f": they are {how} than in the environment." if _level(off, _logs(limits.spread)) != "use" else "."
    )
    return Reason(found.name, _level(off, _logs(limits.spread)), text)


def _band(found: Measure, limits: Limits) -> Reason:
    value, real = _pair(found)
    text = (
        f"{value:.1%} of the synthetic outcomes lie inside the prediction band that holds {real:.1%} of real ones: "
        f"they are {'too narrow' if value > real else 'too wide or off centre'}."
    )
    limit = limits.band_50 if found.name == "band_50" else limits.band_90
    return Reason(found.name, _level(abs(value - real) - found.chance, limit), text)


def _information(found: Measure, limits: Limits) -> Reason:
    value, real = _pair(found)
    text = (
        f"The outcome tells {value:.2f} bits about whether a row is synthetic to a network that knows (s, a), "
        f"for real rows {real:.2f}."
    )
    return Reason(found.name, _level(value - found.chance - real, limits.information), text)


def _auc(found: Measure, limits: Limits) -> Reason:
    value, real = _pair(found)
    text = f"A network tells synthetic rows from real ones with an AUC of {value:.2f}; 0.5 is guessing."
    return Reason(found.name, _level(value - found.chance - real, limits.auc), text)


def _coverage(found: Measure, limits: Limits) -> Reason:
    value, real = _pair(found)
    text = (
        f"Synthetic rows cover {value:.2f} of the neighbourhoods of real rows, other real rows {real:.2f}: "
        "kinds of rows are missing."
    )
    return Reason(found.name, _reached(found, limits.coverage), text)


def _starts(found: Measure, limits: Limits) -> Reason:
    value, _ = _pair(found)
    text = f"{value:.0%} of the observations that real episodes start with have a synthetic one nearby."
    return Reason(found.name, _reached(found, limits.starts), text)


def _correlation(found: Measure, limits: Limits) -> Reason:
    value, real = _pair(found)
    text = f"The correlation of two columns is off by {value:.3f} ({found.detail})."
    return Reason(found.name, _level(value - real, limits.correlation), text)


def _payout_mean(found: Measure, limits: Limits) -> Reason:
    value, real = _pair(found)
    text = f"Rare large rewards add {value:.2g} to the mean reward, in real rows {real:.2g}."
    if abs(value - real) <= found.chance:
        return Reason(found.name, "use", text)
    factor = value / real if real else NEVER
    off = abs(math.log(factor)) if factor > 0 else NEVER
    return Reason(found.name, _level(off, _logs(limits.payout_mean)), text)


def _payouts(found: Measure, limits: Limits) -> Reason:
    value, real = _pair(found)
    what = "where they come" if found.name == "payout_place" else "how large they are"
    text = (
        f"Rare large rewards have less to do with observation and action than real ones: {what} agrees to {value:.2f} "
        f"with what these tell, in real rows to {real:.2f}."
    )
    return Reason(found.name, _reached(found, limits.payouts), text)


def _outside(found: Measure, limits: Limits) -> Reason:
    value, real = _pair(found)
    text = f"{value:.1%} of the rows have an action out of bounds, of real rows {real:.1%}."
    return Reason(found.name, _level(value - real - found.chance, limits.actions_outside), text)


def _action_scale(found: Measure, limits: Limits) -> Reason:
    value, real = _pair(found)
    off = abs(math.log(max(value, 1e-6))) - abs(math.log(max(real, 1e-6)))
    text = f"The actions have {value:.2f} times the standard deviation of real ones. {found.detail}".strip()
    return Reason(found.name, _level(off, _logs(limits.action_scale)), text)


def _terminal_rate(found: Measure, limits: Limits) -> Reason:
    value, real = _pair(found)
    text = f"{value:.2%} of the rows are terminal, of real rows {real:.2%}."
    if abs(value - real) <= found.chance:
        return Reason(found.name, "use", text)
    _, mix = limits.terminal_rate
    factor = value / real if real else NEVER
    off = factor if factor >= 1 else min(mix, 1 / factor if factor else NEVER)
    return Reason(found.name, _level(off, limits.terminal_rate), text)


def _terminal_recall(found: Measure, limits: Limits) -> Reason:
    value, real = _pair(found)
    text = f"Only {value:.0%} of the rows that end an episode are flagged terminal ({real:.0%} of the real ones)."
    return Reason(found.name, _reached(found, limits.terminals), text)


def _terminal_precision(found: Measure, limits: Limits) -> Reason:
    value, real = _pair(found)
    text = f"Only {value:.0%} of the rows flagged terminal end an episode ({real:.0%} of the real ones)."
    return Reason(found.name, _reached(found, limits.terminals), text)


def _existing(found: Measure, limits: Limits) -> Reason:
    value, real = _pair(found)
    what = "observations" if found.name == "known_observations" else "transitions (s, a, s')"
    text = f"{value:.1%} of the {what} occur among real rows; of held-out real ones {real:.1%} do."
    return Reason(found.name, _reached(found, limits.existing), text)


def _frequencies(found: Measure, limits: Limits) -> Reason:
    value, real = _pair(found)
    text = (
        f"The probabilities of next states given (s, a) are off by {value:.2f}, those of held-out real rows by "
        f"{real:.2f}."
    )
    return Reason(found.name, _level(value - found.chance - real, limits.frequencies), text)


_VOTES: dict[str, Callable[[Measure, Limits], Reason]] = {
    "dynamics_error": _dynamics,
    "reward_error": _reward,
    "payout_mean": _payout_mean,
    "payout_place": _payouts,
    "payout_size": _payouts,
    "outcome_spread": _spread,
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


def _pair(found: Measure) -> tuple[float, float]:
    assert found.value is not None
    assert found.real is not None
    return found.value, found.real


def _level(figure: float, limits: tuple[float, float]) -> Decision:
    use, mix = limits
    return "use" if figure <= use else "mix" if figure <= mix else "do not use"


def _reached(found: Measure, limits: tuple[float, float]) -> Decision:
    """By the share of the real figure that is reached, of measures of which more is better."""
    value, real = _pair(found)
    use, mix = limits
    value += found.chance
    return "use" if value >= use * real else "mix" if value >= mix * real else "do not use"


def _logs(limits: tuple[float, float]) -> tuple[float, float]:
    return math.log(limits[0]), math.log(limits[1])


def _copies(measures: Figures, limits: Limits) -> str:
    memorised = measures.get("memorisation")
    if memorised is None or memorised.value is None or memorised.real is None:
        return ""
    if memorised.value < limits.copies or memorised.value <= 2 * memorised.real:
        return ""
    return f" But {memorised.value:.0%} of the rows nearly repeat a real one: they add nothing to the real rows."

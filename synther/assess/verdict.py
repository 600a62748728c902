"""Use, mix or do not use: from what learners lose on synthetic rows, and how far the rows are from the truth.

`benchmarks/verdict.py` shows how the thresholds sort rows of known quality; `docs/assess.md` says how they were chosen.
"""

from __future__ import annotations

from collections.abc import Mapping

from synther.assess.assessment import Decision, Measure, Reason, Verdict

USE_LOSS = 1.2
"""Learners fitted on synthetic rows alone may be wrong by so much more than those fitted on real ones."""

MIX_LOSS = 1.5
"""The same of learners fitted on half of each."""

USE_ERROR, MIX_ERROR = 0.01, 0.1
"""How much further than real rows the next observation may be from the truth: `dynamics_error` less its real one."""

USE_GAP, MIX_GAP = 0.02, 0.1
"""Where too few rows came to learn from: how far marginal and correlation may be below those of real rows."""

COPIES = 0.5
"""Share of memorised rows from which on rows are called copies."""

ENDS = 0.5
"""Share of the real rows' recall of terminals below which the verdict warns of them."""

_LEAST_ERROR = 0.02
"""Added to the errors that are compared, or tiny ones would be large multiples where real rows teach everything."""

_ORDER: tuple[Decision, ...] = ("use", "mix", "do not use")
_SENTENCES: dict[Decision, str] = {
    "use": "Train on it: what is learned from these rows holds for real ones nearly as well as what real rows teach.",
    "mix": "Mix it with real rows: alone it teaches less than they do, half and half costs little.",
    "do not use": "Do not train on it: it would teach what is not so, even half and half with real rows.",
}
_UNLEARNED: dict[Decision, str] = {
    "mix": "Too few rows to learn from; what can be seen does not speak against mixing them with real ones.",
    "do not use": "Do not train on it: there are too few rows to learn from, and these are unlike real ones.",
}

Figures = Mapping[str, Measure]


def decide(measures: Figures) -> Verdict:
    """The worst of what the deciding measures say, those that say so first.

    They are the two scores of learners and the dynamics error. Where there was too little to learn from, marginal and
    correlation take the place of the scores; they never suffice for `use`.
    """
    known = {name: measure for name, measure in measures.items() if measure.value is not None}
    lessons = [
        _lesson(known, "outcome_score", "foresee outcomes"),
        _lesson(known, "policy_score", "act as the data acts"),
    ]
    learned = any(lesson is not None for lesson in lessons)
    stand_ins = [] if learned else [_gap(known, "marginal"), _gap(known, "correlation")]
    reasons = [reason for reason in (*lessons, *stand_ins, _dynamics(known)) if reason is not None]
    reasons.sort(key=lambda reason: -_ORDER.index(reason.says))
    decision: Decision = reasons[0].says if reasons else "mix"
    if not learned and decision == "use":
        decision = "mix"
    sentence = (_SENTENCES if learned else _UNLEARNED)[decision]
    return Verdict(decision, sentence + _copies(known) + _ends(known), tuple(reasons))


def _lesson(known: Figures, name: str, task: str) -> Reason | None:
    alone, mixed = known.get(name), known.get(f"{name}_mixed")
    if alone is None or mixed is None:
        return None
    lost, lost_mixed = _loss(alone), _loss(mixed)
    says: Decision = "use" if lost <= USE_LOSS else "mix" if lost_mixed <= MIX_LOSS else "do not use"
    text = (
        f"Networks that learned to {task} from synthetic rows score {alone.value:.3f} on held-out real rows, from real "
        f"rows {alone.real:.3f}, half and half {mixed.value:.3f}: {lost:.2f} and {lost_mixed:.2f} times the error."
    )
    return Reason(name, says, text)


def _loss(score: Measure) -> float:
    """The error that is left, as a multiple of the one after learning from real rows."""
    assert score.value is not None
    assert score.real is not None
    return (1 - score.value + _LEAST_ERROR) / (1 - score.real + _LEAST_ERROR)


def _dynamics(known: Figures) -> Reason | None:
    error = known.get("dynamics_error")
    if error is None or error.value is None or error.real is None:
        return None
    text = (
        f"The next observation is off by {error.value:.2g} squared deviations where that of real rows is by "
        f"{error.real:.2g}."
    )
    return Reason(error.name, _level(error.value - error.real, USE_ERROR, MIX_ERROR), text)


def _gap(known: Figures, name: str) -> Reason | None:
    likeness = known.get(name)
    if likeness is None or likeness.value is None or likeness.real is None:
        return None
    text = f"{likeness.label} is {likeness.value:.3f}, that of as many real rows {likeness.real:.3f}."
    return Reason(name, _level(likeness.real - likeness.value, USE_GAP, MIX_GAP), text)


def _level(figure: float, use: float, mix: float) -> Decision:
    return "use" if figure <= use else "mix" if figure <= mix else "do not use"


def _copies(known: Figures) -> str:
    memorised = known.get("memorisation")
    if memorised is None or memorised.value is None or memorised.real is None:
        return ""
    if memorised.value < COPIES or memorised.value <= 2 * memorised.real:
        return ""
    return f" But {memorised.value:.0%} of the rows nearly repeat a real one: they add nothing to the real rows."


def _ends(known: Figures) -> str:
    recall = known.get("terminal_recall")
    if recall is None or recall.value is None or recall.real is None or recall.value >= ENDS * recall.real:
        return ""
    return f" But only {recall.value:.0%} of the rows that end an episode say so ({recall.real:.0%} of the real ones)."

"""The header of the page: the verdict, its reasons, the names and sizes of the data, and notes."""

from __future__ import annotations

from synther.assess.assessment import Assessment, Reason
from synther.assess.report.efforts import OF_SAMPLERS
from synther.assess.report.markup import Markup, tag
from synther.assess.report.measures import figure

_CLASSES = {"use": "use", "mix": "mix", "do not use": "refuse"}


def header(assessment: Assessment) -> Markup:
    verdict = assessment.verdict
    reasons = [_reason(assessment, reason) for reason in verdict.reasons]
    parts = [
        tag("p", "Assessment of synthetic rows", class_="kicker"),
        tag("h1", verdict.decision.capitalize(), class_=_CLASSES[verdict.decision]),
        tag("p", verdict.sentence, class_="lead"),
    ]
    if reasons:
        parts.append(tag("ul", *reasons, class_="reasons", aria_label="Reasons"))
    parts.append(_sources(assessment))
    notes = [note for note in assessment.notes if not note.startswith(OF_SAMPLERS)]
    if notes:
        items = tag("ul", *(tag("li", note) for note in notes))
        parts.append(tag("aside", items, class_="notes", aria_label="Notes"))
    return tag("header", *parts)


def _reason(assessment: Assessment, reason: Reason) -> Markup:
    """Return one reason: the figures of its measure, the reason in words, and the vote."""
    measure = next((one for one in assessment.measures if one.name == reason.measure), None)
    parts: list[str] = []
    if measure is not None:
        parts.append(tag("h2", measure.label))
        beside = tag("span", "real rows ", tag("b", figure(measure, measure.real)), class_="beside")
        large = tag("span", figure(measure, measure.value), class_="large")
        parts.append(tag("p", large, " ", beside, class_="figures"))
    says = tag("span", reason.says, class_=f"says {_CLASSES[reason.says]}")
    parts.append(tag("p", reason.text, " ", says))
    return tag("li", *parts)


def _sources(assessment: Assessment) -> Markup:
    facts = [
        ("real", "Real", assessment.real_name, f"{assessment.rows_real:,} rows"),
        ("synthetic", "Synthetic", assessment.synthetic_name, f"{assessment.rows_synthetic:,} rows"),
        ("", "Held out", "real rows to compare with", f"{assessment.rows_held_out:,} rows"),
    ]
    if assessment.env_id:
        facts.append(("", "Environment", assessment.env_id, ""))
    entries = [
        tag("div", tag("dt", term, class_=kind or None), tag("dd", name), *([tag("dd", rows)] if rows else []))
        for kind, term, name, rows in facts
    ]
    return tag("dl", *entries, class_="sources")

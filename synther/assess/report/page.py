"""The whole page: header with the verdict, table of contents, sections, and footer."""

from __future__ import annotations

from importlib import resources

from synther.assess.assessment import Assessment
from synther.assess.report import columns, correlations, diversity, efforts, measures, steps, verdict
from synther.assess.report.markup import Markup, tag

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""Content Security Policy of the page. It makes the browser refuse all requests to other hosts."""

_PARTS = (
    ("measures", "Measures", measures.section),
    ("columns", "Columns", columns.section),
    ("correlations", "Correlations", correlations.section),
    ("diversity", "Novelty and dynamics", diversity.section),
    ("process", "From noise to data", steps.section),
    ("efforts", "Quality and network calls", efforts.section),
)


def page(assessment: Assessment) -> Markup:
    """Return the HTML of the page. Sections without content are left out."""
    drawn = [(name, title, draw(assessment)) for name, title, draw in _PARTS]
    present = [(name, title, content) for name, title, content in drawn if content]
    links = [tag("li", tag("a", title, href=f"#{name}")) for name, title, _ in present]
    contents = tag("nav", tag("ul", *links), aria_label="Contents") if links else Markup()
    sections = [
        tag("section", tag("h2", title, id=f"{name}-title"), content, id=name, aria_labelledby=f"{name}-title")
        for name, title, content in present
    ]
    parts = (verdict.header(assessment), contents, tag("main", *sections), _footer(assessment))
    body = tag("body", *parts, tag("script", _asset("page.js")))
    return Markup(f"<!DOCTYPE html>\n{tag('html', _head(assessment), body, lang='en')}\n")


def _footer(assessment: Assessment) -> Markup:
    """Return the footer: the version of SynthER, and the command line that made the page."""
    made = tag("p", f"Made by SynthER {assessment.version}".strip())
    return tag("footer", made, *([tag("pre", assessment.command)] if assessment.command else []))


def _head(assessment: Assessment) -> Markup:
    title = f"{assessment.verdict.decision}: {assessment.synthetic_name} against {assessment.real_name}"
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", title[0].upper() + title[1:]),
        tag("style", _asset("page.css")),
    )


def _asset(name: str) -> Markup:
    return Markup(resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))

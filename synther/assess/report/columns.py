"""The section "Columns": a table with figures and histograms of each column, the least similar first."""

from __future__ import annotations

from synther.assess.assessment import Assessment, Column
from synther.assess.report.histogram import histogram
from synther.assess.report.markup import Markup, number, share, tag
from synther.assess.report.tables import Heading, cell, head

MOST_HISTOGRAMS = 1_000
"""Largest number of columns with a histogram. If there are more, only the least similar ones have one, so that the page
stays small."""

_NAME, _SHAPE, _SIMILARITY, _REAL, _MEAN, _STD, _OUTSIDE = _HEADINGS = (
    Heading("Column", numeric=False),
    Heading("Histogram", None, numeric=False),
    Heading("Similarity", sorted=True),
    Heading("Held-out real"),
    Heading("Mean", "descending"),
    Heading("Std", "descending"),
    Heading("Out of bounds", "descending"),
)


def section(assessment: Assessment) -> Markup:
    if not assessment.columns:
        return Markup()
    places = {id(column): at for at, column in enumerate(assessment.columns)}
    worst = assessment.worst_columns()
    rows = [_row(column, places[id(column)], rank < MOST_HISTOGRAMS) for rank, column in enumerate(worst)]
    table = tag(
        "table",
        head(_HEADINGS),
        tag("tbody", *rows, role="rowgroup"),
        class_="cards columns",
        role="table",
        aria_label="Columns",
    )
    return Markup(_about(len(worst)) + _filter(len(worst)) + table)


def _about(count: int) -> Markup:
    text: list[str] = [
        "Every column in ",
        tag("span", "real", class_="real"),
        " and ",
        tag("span", "synthetic", class_="synthetic"),
        " rows, the least similar column first. Similarity is 1 \u2212 Kolmogorov-Smirnov statistic; 1 means the same "
        "distribution. The lines below a histogram show mean and standard deviation. A click on Mean or Std "
        "sorts by the difference between real and synthetic rows. Out of bounds is the share of synthetic values "
        "outside the declared bounds, or outside the range of real values if none are declared. Bars that are too tall "
        "are cut, and their shares are written beside them.",
    ]
    if count > MOST_HISTOGRAMS:
        text.append(f" Only the {MOST_HISTOGRAMS:,} least similar columns have a histogram.")
    return tag("p", *text)


def _filter(count: int) -> Markup:
    """Return the box that filters the table by the names of columns."""
    box = tag("input", id="filter", type="search", autocomplete="off", spellcheck="false", placeholder="all columns")
    shown = tag("output", f"{count:,} columns", for_="filter", aria_live="polite")
    return tag("p", tag("label", "Show columns with names that contain ", box), " ", shown, class_="filter")


def _row(column: Column, at: int, drawn: bool) -> Markup:
    """Return the table row of the column number `at`, with a histogram if `drawn`."""
    scale = column.real_std or 1.0
    return tag(
        "tr",
        cell(tag("strong", column.name), heading=_NAME, key=float(at)),
        cell(histogram(column) if drawn else "", heading=_SHAPE),
        cell(number(column.similarity, decimals=4), heading=_SIMILARITY, key=column.similarity),
        cell(number(column.similarity_real, decimals=4), heading=_REAL, key=column.similarity_real),
        cell(
            _both(column.real_mean, column.synthetic_mean),
            heading=_MEAN,
            key=abs(column.synthetic_mean - column.real_mean) / scale,
        ),
        cell(
            _both(column.real_std, column.synthetic_std),
            heading=_STD,
            key=abs(column.synthetic_std - column.real_std) / scale,
        ),
        cell(share(column.outside), heading=_OUTSIDE, key=column.outside),
        role="row",
        data_at=str(at),
    )


def _both(real: float, synthetic: float) -> Markup:
    return Markup(tag("span", number(real), class_="real") + tag("span", number(synthetic), class_="synthetic"))

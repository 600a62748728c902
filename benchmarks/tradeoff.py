"""Plot fidelity against the time to generate a million rows, from the tables in results/.

    python benchmarks/tradeoff.py --out results/tradeoff.png

Left: walker2d-mixed, with the reference implementation and the student. Right: halfcheetah-mixed, with TVAE and CTGAN.
Both data sets have 17 observations and 6 actions, so a row takes the same time.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from synther.plots.curves import FAINT, INK, Style, blank, heading, styles, tidy, write

RESULTS = Path(__file__).parents[1] / "results"
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
SDE = "1,000,000 rows, sde in 128 steps, bf16"


class Point(NamedTuple):
    """Seconds per million rows, dynamics error and marginal similarity of a generator."""

    seconds: float
    dynamics: float
    marginal: float


def cell(file: str, row: str, column: str) -> str:
    """Return the cell of a table in results/ in the row that starts with `row`, and in the given column."""
    header: list[str] = []
    for line in (RESULTS / file).read_text().splitlines():
        cells = [part.strip() for part in line.strip().strip("|").split(" | ")]
        if not line.startswith("|"):
            header = []
        elif not header:
            header = cells
        elif line.startswith(f"| {row}") and column in header:
            return cells[header.index(column)]
    raise SystemExit(f"{file} has no row {row!r} with a column {column!r}")


def number(file: str, row: str, column: str) -> float:
    return float(_NUMBER.findall(cell(file, row, column))[0])


def walker2d() -> dict[str, Point]:
    def compared(column: str) -> tuple[float, float]:
        marginal, _, _, dynamics = map(float, _NUMBER.findall(cell("README.md", "walker2d replay, `paper`", column)))
        return dynamics, marginal

    def called(row: str) -> tuple[float, float]:
        return number("calls-h200.md", row, "dynamics"), number("calls-h200.md", row, "marginal")

    return {
        "reference": Point(number("speed-h200.md", SDE, "reference"), *compared("reference")),
        "paper": Point(number("speed-h200.md", SDE, "SynthER"), *compared("SynthER")),
        "best": Point(
            number("speed-h200.md", "1,000,000 rows, `best`, 32 calls", "`sample`"), *called("**`best`'s own")
        ),
        "student": Point(
            number("speed-h200.md", "1,000,000 rows, `best`, student of 2", "`sample`"), *called("student | 2 |")
        ),
        "student of 8": Point(number("calls-h200.md", "student | 8 |", "s / 1M"), *called("student | 8 |")),
    }


def halfcheetah() -> dict[str, Point]:
    measured = json.loads((RESULTS / "ablation.json").read_text())["present"]
    ours = {line["name"]: line for line in measured if line["data"].startswith("halfcheetah")}
    theirs = json.loads((RESULTS / "compare-halfcheetah.json").read_text())["comparison"]["generators"]
    found = {name: Point(times.seconds, 0, 0) for name, times in walker2d().items() if name in ("paper", "best")}
    found |= {name: Point(number("speed-baselines.md", name, "1,000,000 rows"), 0, 0) for name in ("tvae", "ctgan")}
    judged = {**{line["name"]: line for line in theirs}, **ours}
    return {
        name: point._replace(dynamics=judged[name]["dynamics"], marginal=judged[name]["marginal"])
        for name, point in found.items()
    }


LABELS = {
    "reference": "reference",
    "paper": "SynthER, paper",
    "best": "SynthER, best",
    "student": "SynthER, student of 2 calls",
    "student of 8": "student of 8 calls",
    "tvae": "TVAE",
    "ctgan": "CTGAN",
}
PLACES = {
    "reference": ("center", 0, 14),
    "paper": ("left", -8, -29),
    "best": ("center", 0, 14),
    "student": ("left", -7, -29),
    "student of 8": ("left", -6, -26),
    "tvae": ("right", -11, -3),
    "ctgan": ("right", -11, -3),
}
"""Position of each label: alignment, and distance from its marker to the right and up, in points."""
ON_CPU = ("tvae", "ctgan")
"""Generators that were timed on a CPU core."""


def draw(axes: Axes, points: Mapping[str, Point], looks: Mapping[str, Style]) -> None:
    for name, point in points.items():
        look = looks[name]
        axes.plot(
            point.seconds, point.dynamics, look.mark, color=look.colour, markersize=11, markeredgewidth=1.8,
            markerfacecolor="white" if name in ON_CPU else look.colour, zorder=3,
        )  # fmt: skip
        side, aside, up = PLACES[name]
        machine = " on one CPU core" if name in ON_CPU else ""
        figures = f"{point.seconds:.2g} s{machine}, marginal {point.marginal:.3f}"
        where: Any = {"xy": point[:2], "textcoords": "offset points", "ha": side}
        axes.annotate(LABELS[name], xytext=(aside, up + 11), fontsize=10, weight="bold", color=INK, **where)
        axes.annotate(figures, xytext=(aside, up - 1), fontsize=8.5, color="#555555", **where)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "tradeoff.png")
    chosen = parser.parse_args()
    sets = {"walker2d, 302,000 rows": walker2d(), "halfcheetah, 87,000 rows": halfcheetah()}
    names = list(LABELS)
    looks = dict(zip(names, styles(names), strict=True))
    figure = blank(11.5, 5)
    heading(figure, "Synthetic rows: time to generate a million, and the error of their dynamics")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, (data, points) in zip(panels, sets.items(), strict=True):
        tidy(axes)
        axes.set(xscale="log", yscale="log", xlim=(0.08, 400), ylim=(2, 1e-4))
        axes.set_title(data, loc="left", fontsize=10, color=INK)
        axes.set_xlabel("seconds for a million rows, one H200", fontsize=9.5, color=INK)
        axes.xaxis.set_major_formatter("{x:g}")
        draw(axes, points, looks)
        axes.text(0.02, 0.98, "↖ better", transform=axes.transAxes, va="top", fontsize=9.5, color=FAINT)
    panels[0].set_ylabel("error of the next observation", fontsize=9.5, color=INK)
    write(figure, chosen.out)


if __name__ == "__main__":
    main()

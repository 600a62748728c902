"""Compute what a real row is worth: how many real rows give the same score as a generator that was fitted on N rows.

    python benchmarks/worth.py --out results/worth.md

Reads the runs of `synther paper run fractions` (TD3+BC on parts of walker2d-mixed) and the run on the whole data set.
The score of agents on real rows is a curve over the number of rows. It is assumed to rise, and is interpolated linearly
in the logarithm of the number. The number at which the curve reaches the score of agents on synthetic rows is what the
generator's real rows are worth. Intervals come from a bootstrap over the seeds of both kinds of agents.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from machine import command_line, keep, origin, print_table
from numpy.typing import NDArray

from synther.experiments.results import Result
from synther.experiments.spec import PROVENANCE
from synther.folder import read_object
from synther.plots.curves import INK, blank, count, footnote, heading, styles, tidy, write
from synther.plots.statistics import Interval

RUNS = Path(__file__).parents[1] / "results" / "offline" / "runs"
PARTS = (
    *(f"walker2d-mixed-{part}pct-td3_bc-ours" for part in (3, 7, 15, 33, 66)),
    "walker2d-mixed-td3_bc-ours",
)
_SAMPLES = 10_000

Scores = Mapping[int, NDArray[np.float64]]
"""Scores of the agents, one per seed, by the number of real rows."""


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the finished runs")
    chosen = parser.parse_args()
    head = origin()
    real, synthetic = (scores(chosen.runs, arm) for arm in ("real", "synthetic"))
    found = {rows: worth(own, real) for rows, own in synthetic.items()}
    lines = [
        [
            f"{rows:,}",
            *(f"{arm[rows].mean():.1f} ± {arm[rows].std():.1f}" for arm in (real, synthetic)),
            f"{_rows(same.value, real)} [{_rows(same.low, real)}, {_rows(same.high, real)}]",
            f"more than {max(real) / rows:.1f}" if math.isinf(same.value) else f"{same.value / rows:.1f}",
        ]
        for rows, same in found.items()
    ]
    header = ["real rows", "score of agents on them", "on SynthER's rows", "are worth as many [95 %]", "times"]
    keep(chosen.out, head, print_table(header, lines))
    if chosen.out is not None:
        draw(found, real, chosen.out.with_suffix(".png"))


def scores(runs: Path, arm: str) -> Scores:
    """Return the final scores of all finished runs, by the number of real rows."""
    found = {}
    for name in PARTS:
        result = runs / name / "training" / "result.json"
        if result.exists():
            rows = read_object(runs / name / PROVENANCE)["rows"]
            found[rows] = np.array(Result.read(result).curves[arm][-1].scores, np.float64)
    if len(found) < 2:
        raise SystemExit(f"{runs}: expected two or more of the runs {', '.join(PARTS)}, found {len(found)}")
    return found


def worth(own: NDArray[np.float64], real: Scores, samples: int = _SAMPLES, seed: int = 0) -> Interval:
    """Return the number of real rows with which agents reach the mean of the scores `own` (S,), and its interval.

    The number is infinite if all real rows are not enough. It is never below the size of the smallest part.
    """
    draw = np.random.default_rng(seed)

    def means(values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean, followed by the means of bootstrap samples."""
        drawn = draw.choice(values, (samples, len(values))).mean(1)
        return np.concatenate([[values.mean()], drawn])

    rows, wanted = np.log(sorted(real)), means(own)
    curves = np.maximum.accumulate(np.stack([means(real[size]) for size in sorted(real)], 1), axis=1)
    found = np.array([_reached(score, curve, rows) for score, curve in zip(wanted, curves, strict=True)])
    low, high = np.quantile(
        found[1:], [0.025, 0.975], method="nearest"
    )  # does not interpolate: numbers may be infinite
    return Interval(float(found[0]), float(low), float(high))


def _reached(score: float, curve: NDArray[np.float64], rows: NDArray[np.float64]) -> float:
    return math.inf if score > curve[-1] else math.exp(float(np.interp(score, curve, rows)))


def _rows(value: float, real: Scores) -> str:
    return f"more than {max(real):,}" if math.isinf(value) else f"{round(value, -2):,.0f}"


def draw(found: Mapping[int, Interval], real: Scores, path: Path) -> None:
    """Plot the number of real rows with the same score against the number of rows that the generator was fitted on."""
    figure, most = blank(7.2, 4.6), max(real)
    heading(figure, "What a real row is worth with SynthER: walker2d, TD3+BC")
    axes = figure.subplots()
    tidy(axes)
    (look,) = styles(["SynthER"])
    ends = np.array([0.8 * min(real), 1.35 * most])
    axes.plot(ends, ends, color=INK, linewidth=1, linestyle=":")
    axes.annotate("a row is worth a row", (1.15 * min(real), 1.0 * min(real)), fontsize=9, color=INK)
    top = 1.5 * most
    for rows, same in found.items():
        value, low, high = (min(one, top) for one in (same.value, same.low, same.high))
        axes.vlines(rows, low, high, color=look.colour, linewidth=1.6)
        axes.plot(rows, value, "^" if math.isinf(same.value) else look.mark, color=look.colour, markersize=9)
    axes.axhline(most, color=INK, linewidth=0.8)
    axes.annotate("all rows of the data set", (0.85 * min(real), 1.06 * most), fontsize=9, color=INK)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=(0.8 * min(real), 1.8 * most))
    axes.set_xlabel("real rows that the generator was fitted on", fontsize=9.5, color=INK)
    axes.set_ylabel("real rows that give the same score", fontsize=9.5, color=INK)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(sorted(real), [count(rows) for rows in sorted(real)])
        axis.set_ticks([], minor=True)
    footnote(figure, "upright line: 95 % interval over the seeds; triangle: more than all rows")
    write(figure, path)


if __name__ == "__main__":
    main()

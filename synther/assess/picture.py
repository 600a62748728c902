"""Draw one picture that compares real and synthetic rows: histograms of columns, and correlations of both sides."""

from __future__ import annotations

import math
import os
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from synther.assess.fidelity import Comparison, at_most, column_names, compare, matrices_of, pearson
from synther.data.transitions import EXTRA, Transitions
from synther.durable import replacing
from synther.errors import MissingExtra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

Array = NDArray[Any]

REAL, SYNTHETIC, INK, FAINT = "#f5a54a", "#1f5fae", "#333333", "#808080"
MAX_PANELS = 24
"""Largest number of histograms."""
PANELS_A_ROW = 6
MAX_ROWS = 100_000
"""Largest number of rows of each side that are drawn. Histograms of more rows look the same."""

BINS = 60
MANY_VALUES = 30
"""Columns of whole numbers with at most this many values are drawn with one bar per value."""

_SHORT = {
    "observation": "obs",
    "next_observation": "next",
    "action": "action",
    "reward": "reward",
    "terminal": "terminal",
}


def draw(
    real: Transitions, synthetic: Transitions, path: str | os.PathLike[str], comparison: Comparison | None = None
) -> None:
    """Write a picture that compares two sets of rows. Its format follows from the suffix of `path`, such as `.png`.

    The picture has a histogram of each observation, action and reward column. If there are more than 24, the 24 least
    similar columns are drawn. Below are the correlations of all columns in real rows, in synthetic rows, and their
    difference. Pass `comparison` if the figures are already computed.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError:
        raise MissingExtra("matplotlib", "all", "drawing a picture") from None
    comparison = comparison or compare(real, synthetic)
    a, b = matrices_of(at_most(real, MAX_ROWS), at_most(synthetic, MAX_ROWS))
    names = column_names(real)
    panels = _panels(names, comparison)
    bands = math.ceil(len(panels) / PANELS_A_ROW)

    heights = [0.95, 1.55 * bands, 4.0]  # inches
    figure = Figure(
        figsize=(13.0, sum(heights)), dpi=110, layout=ConstrainedLayoutEngine(wspace=0.06), facecolor="white"
    )
    parts = figure.add_gridspec(3, 1, height_ratios=heights)
    head, middle, foot = (figure.add_subfigure(parts[row]) for row in range(3))
    _title(head, real, comparison)
    grid = middle.subplots(bands, PANELS_A_ROW, squeeze=False)
    for axes, column in zip(grid.flat, panels, strict=False):
        _histogram(axes, a[:, column], b[:, column], names[column], comparison.columns[names[column]])
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    _correlations(foot, a, b, real)
    with replacing(path) as unfinished:
        figure.savefig(unfinished)


def _panels(names: list[str], comparison: Comparison) -> list[int]:
    """Return the columns to draw. Next observations look like observations, and terminals are only one number."""
    columns = [at for at, name in enumerate(names) if not name.startswith(("next_observation", "terminal"))]
    if len(columns) <= MAX_PANELS:
        return columns
    return sorted(columns, key=lambda at: comparison.columns[names[at]])[:MAX_PANELS]


def _title(head: SubFigure, real: Transitions, comparison: Comparison) -> None:
    task = f"{real.env_id}: real and synthetic experience" if real.env_id else "Real and synthetic experience"
    head.text(0.012, 0.80, task, fontsize=15, weight="bold", color=INK, va="center")
    worst = f"worst column {comparison.worst_value:.3f} ({_label(comparison.worst_column)})"
    figures = [f"marginal {comparison.marginal:.3f}", worst]
    if not math.isnan(comparison.correlation):
        figures.append(f"correlation {comparison.correlation:.3f}")
    figures.append(f"terminals {comparison.terminal_rate_synthetic:.2%} (real {comparison.terminal_rate_real:.2%})")
    head.text(0.012, 0.43, "      ".join(figures), fontsize=10.5, color=INK, va="center")
    note = "Number above a panel: 1 - KS; 1 means the same distribution. Dashed lines: mean and std of real rows."
    head.text(0.012, 0.12, note, fontsize=8.5, color=FAINT, va="center")
    keys = (
        (REAL, f"real, {comparison.rows_real:,} rows", 0.80),
        (SYNTHETIC, f"synthetic, {comparison.rows_synthetic:,} rows", 0.43),
    )
    for colour, text, height in keys:
        head.text(0.845, height, "\u25a0", fontsize=15, color=colour, va="center", alpha=0.85, ha="right")
        head.text(0.85, height, text, fontsize=10.5, color=INK, va="center")


def _histogram(axes: Axes, real: Array, synthetic: Array, name: str, similarity: float) -> None:
    edges = _edges(real, synthetic)
    for values, colour, order in ((real, REAL, 1), (synthetic, SYNTHETIC, 2)):
        # Values outside the edges are counted in the first and last bar, so that none is lost.
        counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
        share = counts / len(values)
        axes.stairs(share, edges, fill=True, color=colour, alpha=0.75 if order == 1 else 0.22, zorder=order)
        axes.stairs(share, edges, color=colour, linewidth=0.8 if order == 1 else 1.3, zorder=order + 2)
    mean, std = float(real.mean(dtype=np.float64)), float(real.std(dtype=np.float64))
    for place, width in ((mean - std, 0.8), (mean, 1.2), (mean + std, 0.8)):
        if edges[0] <= place <= edges[-1]:
            axes.axvline(place, color=INK, linewidth=width, linestyle=(0, (4, 3)), alpha=0.75, zorder=6)
    axes.set_title(_label(name), fontsize=9, color=INK, loc="left", pad=3)
    colour = INK if similarity >= 0.9 else "#c0392b"
    axes.set_title(f"{similarity:.3f}", fontsize=8.5, color=colour, loc="right", pad=3)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(bottom=0)
    axes.set_yticks([])
    axes.tick_params(axis="x", labelsize=7, colors=INK, length=2, width=0.6, pad=2)
    axes.locator_params(axis="x", nbins=4)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)


def _edges(real: Array, synthetic: Array) -> Array:
    """Return the edges of the bins. They cover nearly all rows, because a single outlier would squeeze all others into
    one bar."""
    both = np.concatenate([real, synthetic]).astype(np.float64)
    values = np.unique(both[:: max(1, len(both) // 20_000)])
    if len(values) <= MANY_VALUES and (values == np.round(values)).all() and np.ptp(values) <= MANY_VALUES:
        return np.arange(values[0] - 0.5, values[-1] + 1.5)
    low = min(np.quantile(real, 0.0005), np.quantile(synthetic, 0.005))
    high = max(np.quantile(real, 0.9995), np.quantile(synthetic, 0.995))
    if not high > low:
        low, high = low - max(abs(low), 1.0) * 0.5, high + max(abs(high), 1.0) * 0.5
    return np.linspace(low, high, BINS + 1)


def _correlations(foot: SubFigure, a: Array, b: Array, real: Transitions) -> None:
    first, second = pearson(a), pearson(b)
    panels = foot.subplots(1, 3)
    starts, labels = _fields(real)
    maps = (("correlation, real", first, 1.0), ("correlation, synthetic", second, 1.0))
    worst = max(0.05, float(np.abs(first - second).max()))
    for axes, (title, matrix, limit) in zip(
        panels, (*maps, ("synthetic minus real", second - first, worst)), strict=True
    ):
        image = axes.imshow(matrix, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
        axes.set_title(title, fontsize=10, color=INK, loc="left")
        edges = [*starts, len(matrix)]
        for edge in starts[1:]:
            axes.axhline(edge - 0.5, color="white", linewidth=1.2)
            axes.axvline(edge - 0.5, color="white", linewidth=1.2)
        middles = [(left + right - 1) / 2 for left, right in pairwise(edges)]
        axes.set_xticks(middles, labels, fontsize=7.5, color=INK, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(middles, labels, fontsize=7.5, color=INK)
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        bar = foot.colorbar(image, ax=axes, shrink=0.75, aspect=18, pad=0.02)
        bar.ax.tick_params(labelsize=7, colors=INK, length=2)
        bar.outline.set_visible(False)


def _fields(real: Transitions) -> tuple[list[int], list[str]]:
    """Return the first column of each field, and the label of each field."""
    fields = [name.split("[")[0] for name in column_names(real)]
    starts = [at for at, field in enumerate(fields) if at == 0 or fields[at - 1] != field]
    return starts, [_short(fields[at]) for at in starts]


def _short(field: str) -> str:
    return _SHORT.get(field, field.removeprefix(EXTRA))


def _label(name: str) -> str:
    field, _, column = name.partition("[")
    return f"{_short(field)} {column.rstrip(']')}".strip()

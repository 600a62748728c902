"""Pictures of scores: learning curves with bands, lines over a logarithmic axis, groups of bars.

Arms never differ by colour alone: lines also differ in dashes and marks, bars in hatching.
"""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from synther.durable import replacing
from synther.errors import ConfigError, DataError, MissingExtra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[Any]

INK, FAINT = "#222222", "#8a8a8a"
SCORE = "normalised score"


class Style(NamedTuple):
    colour: str
    dashes: tuple[float, tuple[float, ...]]
    mark: str
    hatch: str


# Okabe and Ito's colours, which the colour-blind tell apart; their yellow is too light for lines on white.
_STYLES = (
    Style("#e69f00", (0, ()), "o", ""),
    Style("#0072b2", (0, (6, 2)), "s", "///"),
    Style("#009e73", (0, (2, 1.2)), "^", "..."),
    Style("#cc79a7", (0, (6, 2, 1.2, 2)), "D", "xxx"),
    Style("#56b4e9", (0, (1, 1)), "v", "---"),
    Style("#d55e00", (0, (9, 3)), "P", "\\\\\\"),
    Style("#8a8a8a", (0, (4, 1.5, 1.2, 1.5, 1.2, 1.5)), "X", "ooo"),
    Style("#000000", (0, (3, 3)), "*", "+++"),
)
_METHODS = {
    "synther": 1, "original": 0, "real": 0, "utd 20": 0, "redq": 2, "utd 1": 6, "additive": 2, "multiplicative": 3,
    "dynamics": 4, "tvae": 5, "ctgan": 6, "mixture": 7, "half": 7, "reference": 7, "student": 2, "paper": 4, "best": 1,
}  # fmt: skip
"""Styles of the methods whose names contain these words, tried in this order: each method looks the same in every
picture. Real rows are orange and synthetic ones blue, as in the report of `assess`."""

_TICK_GAP = 0.085
"""Smallest distance of two labels on an axis of length 1, so that they do not touch."""

_WIDEST = 13.0
"""Inches that groups of bars may take."""

_ASIDE = 0.2
"""Distance from the middle of a bar of width 1 to its std on the left and its reference on the right."""


class Curve(NamedTuple):
    """A number and its range at each of some places."""

    at: ArrayLike
    mean: ArrayLike
    low: ArrayLike
    high: ArrayLike

    @classmethod
    def of(cls, at: Sequence[float], scores: ArrayLike) -> Curve:
        """Mean and one standard deviation to either side of (places, seeds)."""
        found = np.asarray(scores, np.float64)
        if found.ndim != 2 or len(found) != len(at) or not found.shape[1]:
            raise DataError(f"scores must be (places, seeds) with {len(at)} places, got the shape {found.shape}")
        mean, std = found.mean(axis=1), found.std(axis=1)
        return cls(np.asarray(at), mean, mean - std, mean + std)


class Bar(NamedTuple):
    """A number, its standard deviation, and the number that the paper prints."""

    value: float
    std: float = 0.0
    reference: float | None = None


def count(value: float) -> str:
    """`50000` as `50K`, `1.5e6` as `1.5M`."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= size * 0.9995:  # 999,999 is a million to three digits
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def share(value: float) -> str:
    """`0.15` as `15 %`."""
    return f"{100 * value:.3g} %"


def styles(names: Collection[str]) -> list[Style]:
    """A style for each name: that of its method, or the first that is free."""
    wanted = [next((place for word, place in _METHODS.items() if word in name.lower()), None) for name in names]
    chosen: dict[int, int] = {}  # place of the style, by place of the name
    for number, place in enumerate(wanted):
        if place is not None and place not in chosen.values():
            chosen[number] = place
    free = [place for place in range(len(_STYLES)) if place not in chosen.values()]
    return [_STYLES[chosen[number] if number in chosen else free.pop(0)] for number in range(len(names))]


def plot(
    curves: Mapping[str, Curve],
    path: str | os.PathLike[str],
    *,
    title: str = "",
    note: str = "",
    xlabel: str = "updates",
    ylabel: str = SCORE,
) -> None:
    """Learning curves: the mean of each as a line, from low to high as a band."""
    found = _checked(curves)
    figure, axes = _panel(title, xlabel, ylabel)
    for number, (style, (name, (at, mean, low, high))) in enumerate(zip(styles(found), found.items(), strict=True)):
        axes.fill_between(at, low, high, color=style.colour, alpha=0.18, linewidth=0)
        # A mark at a tenth of the places, and each line's at others: they must not hide one another.
        every = max(1, len(at) // 10)
        _line(axes, at, mean, style, name, markevery=(every * number // len(found), every))
    axes.xaxis.set_major_formatter(lambda value, _: count(value))
    axes.margins(x=0.02)
    _finish(figure, axes, path, "line: mean over the seeds; band: one standard deviation to either side", note)


def lines(
    series: Mapping[str, Curve],
    path: str | os.PathLike[str],
    *,
    title: str = "",
    note: str = "",
    xlabel: str = "share of the rows",
    tick: Callable[[float], str] = share,
) -> None:
    """Few places on a logarithmic axis, such as shares of a data set: marks with error bars, joined by lines.

    `tick` formats the places: `share`, or `count` for numbers of rows.
    """
    found = _checked(series)
    places = np.unique(np.concatenate([at for at, *_ in found.values()]))
    if places[0] <= 0:
        raise DataError(f"a logarithmic axis takes numbers above 0, got {places[0]:g}")
    figure, axes = _panel(title, xlabel, SCORE)
    # Side by side: error bars at the very same place would hide one another.
    step = 0.008 * (math.log(places[-1] / places[0]) or 1.0)
    for number, (style, (name, (at, mean, low, high))) in enumerate(zip(styles(found), found.items(), strict=True)):
        beside = at * math.exp(step * (number - (len(found) - 1) / 2))
        axes.vlines(beside, low, high, color=style.colour, linewidth=1.4)
        _line(axes, beside, mean, style, name)
    axes.set_xscale("log")
    axes.set_xlim(places[0] * math.exp(-6 * step), places[-1] * math.exp(6 * step))
    kept = _apart(places)
    axes.set_xticks(kept, [tick(place) for place in kept])
    axes.set_xticks([], minor=True)
    _finish(figure, axes, path, "mark: mean over the seeds; upright line: one standard deviation to either side", note)


def bars(
    groups: Mapping[str, Mapping[str, Bar]], path: str | os.PathLike[str], *, title: str = "", note: str = ""
) -> None:
    """Groups of bars, one bar per arm, with error bars of one std; an arm may be missing from a group.

    A bar's reference is a diamond beside its error bar.
    """
    arms = list(dict.fromkeys(arm for group in groups.values() for arm in group))
    _few(arms)
    for name, group in groups.items():
        for arm, bar in group.items():
            if not np.isfinite([bar.value, bar.std, bar.reference or 0]).all() or bar.std < 0:
                raise DataError(f"{arm} of {name} must have finite numbers and a std of at least 0, got {bar}")
    slots = len(arms) + 1  # one stays empty between groups
    longest = max(len(line) for name in groups for line in name.split("\n"))
    width = len(groups) * max(0.3 * slots, 0.095 * longest + 0.2)
    figure, axes = _panel(title, "", SCORE, width=min(max(3.0, width), _WIDEST) + 2.3)
    referred = [
        (place * slots + arms.index(arm), bar.reference)
        for place, group in enumerate(groups.values())
        for arm, bar in group.items()
        if bar.reference is not None
    ]
    for number, (style, arm) in enumerate(zip(styles(arms), arms, strict=True)):
        own = {place * slots + number: group[arm] for place, group in enumerate(groups.values()) if arm in group}
        _arm(axes, own, style, arm, aside=_ASIDE if referred else 0.0)
    if referred:
        at, values = zip(*referred, strict=True)
        look: dict[str, Any] = {"markersize": 5.5, "markerfacecolor": "white", "markeredgecolor": INK}
        # A container, as the bars are: the legend then names it after them.
        axes.errorbar(np.add(at, _ASIDE), values, fmt="D", zorder=7, label="the paper", **look)
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_xticks([place * slots + (len(arms) - 1) / 2 for place in range(len(groups))], list(map(plain, groups)))
    axes.tick_params(axis="x", length=0)
    if width > _WIDEST:  # the names have no room side by side
        for label in axes.get_xticklabels():
            label.set(rotation=30, ha="right", rotation_mode="anchor")
        axes.margins(x=0.01)
    axes.grid(visible=False, axis="x")
    _finish(figure, axes, path, "bar: mean over the seeds; upright line: one standard deviation to either side", note)


def blank(width: float, height: float) -> Figure:
    """An empty sheet, in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "all", "drawing a picture") from None
    return Figure(figsize=(width, height), dpi=130, layout="constrained", facecolor="white")


def write(figure: Figure, path: str | os.PathLike[str]) -> None:
    """In the format of the suffix; the file appears when it is complete."""
    suffix, known = Path(path).suffix, figure.canvas.get_supported_filetypes()
    if suffix.removeprefix(".").lower() not in known:
        raise ConfigError(f"{path}: expected one of the suffixes {', '.join(sorted(known))}")
    with replacing(path) as unfinished:
        figure.savefig(unfinished)


def plain(text: str) -> str:
    """For a label: a dollar is a dollar, not the start of a formula."""
    return text.replace("$", r"\$")


def heading(figure: Figure, title: str) -> None:
    """The title, wrapped to the width of the sheet."""
    if title:
        letters = int(figure.get_figwidth() / 0.1)  # one is at most about a tenth of an inch
        text = textwrap.fill(title, letters, break_on_hyphens=False)  # cheetah-run is one name
        figure.suptitle(plain(text), x=0.01, ha="left", fontsize=11, color=INK, weight="bold")


def footnote(figure: Figure, text: str, note: str = "") -> None:
    """What lines, bars and bands are and, on a line of its own, another note."""
    figure.supxlabel("\n".join(filter(None, [text, plain(note)])), fontsize=8.5, color=FAINT)


def tidy(axes: Axes) -> None:
    """The look that all pictures share."""
    axes.grid(color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9, colors=INK, length=3, width=0.7)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("bottom", "left"):
        axes.spines[side].set_color(FAINT)


def _line(axes: Axes, at: Array, mean: Array, style: Style, name: str, **marks: Any) -> None:
    look: dict[str, Any] = {"color": style.colour, "linestyle": style.dashes, "marker": style.mark}
    axes.plot(at, mean, linewidth=1.7, markersize=5.5, label=plain(name), **look, **marks)


def _arm(axes: Axes, bars_at: Mapping[int, Bar], style: Style, name: str, aside: float) -> None:
    from matplotlib.patheffects import withStroke

    at, values = list(bars_at), [bar.value for bar in bars_at.values()]
    axes.bar(
        at,
        values,
        width=0.88,
        color=style.colour,
        hatch=style.hatch,
        edgecolor="white" if style.hatch else style.colour,
        linewidth=0,
        label=plain(name),
    )
    spread = [bar.std or math.nan for bar in bars_at.values()]  # NaN draws no error bar
    places = np.subtract(at, aside)
    drawn = axes.errorbar(places, values, yerr=spread, fmt="none", ecolor=INK, elinewidth=1.1, capsize=2.2, zorder=6)
    for part in (*drawn[1], *drawn[2]):  # a black line on a black bar would end where the bar does
        part.set_path_effects([withStroke(linewidth=2.7, foreground="white")])


def _panel(title: str, xlabel: str, ylabel: str, width: float = 7.2) -> tuple[Figure, Axes]:
    figure = blank(width, 3.8)
    axes = figure.subplots()
    tidy(axes)
    heading(figure, title)
    axes.set_xlabel(plain(xlabel), fontsize=10, color=INK)
    axes.set_ylabel(plain(ylabel), fontsize=10, color=INK)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}".replace("-", "\N{MINUS SIGN}"))
    return figure, axes


def _finish(figure: Figure, axes: Axes, path: str | os.PathLike[str], key: str, note: str) -> None:
    """Add the footnote and, unless the title says what the only line is, the legend."""
    footnote(figure, key, note)
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1 or not figure.get_suptitle():
        look = {"frameon": False, "fontsize": 9, "labelcolor": INK, "handlelength": 3.2, "handleheight": 1.1}
        figure.legend(handles, labels, loc="outside right center", labelspacing=0.7, **look)
    write(figure, path)


def _few(names: Sequence[str]) -> None:
    if not 1 <= len(names) <= len(_STYLES):
        raise ConfigError(f"a picture shows 1 to {len(_STYLES)} arms, got {len(names)}: draw several pictures")


def _checked(curves: Mapping[str, Curve]) -> dict[str, tuple[Array, ...]]:
    _few(list(curves))
    found = {name: tuple(np.asarray(part, np.float64) for part in curve) for name, curve in curves.items()}
    for name, parts in found.items():
        shapes = {part.shape for part in parts}
        if len(shapes) != 1 or parts[0].ndim != 1 or not len(parts[0]):
            given = ", ".join(str(part.shape) for part in parts)
            raise DataError(f"the curve {name} must be four rows of one length, got the shapes {given}")
        if not np.isfinite(parts).all():
            raise DataError(f"the curve {name} has numbers that are not finite: leave those places out")
    return found


def _apart(places: Array) -> list[float]:
    """Places far enough from one another on a logarithmic axis to be labelled, the first and the last among them."""
    logs = np.log(places)
    gap = _TICK_GAP * (logs[-1] - logs[0])
    kept = [0]
    for number in range(1, len(places)):
        if logs[number] - logs[kept[-1]] >= gap and (number == len(places) - 1 or logs[-1] - logs[number] >= gap):
            kept.append(number)
    return [float(places[number]) for number in kept]

"""Plots of scores: learning curves with bands, lines over a logarithmic axis, groups of bars. Arms never differ only in
colour: lines also differ in dashes and markers, and bars in hatching."""

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


# The colours of Okabe and Ito, which colour-blind people can distinguish. Their yellow is too light for lines on white.
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
"""Index of the style of a method, by a word in its name. The first matching word counts. So a method looks the same in
all pictures. Real rows are orange and synthetic rows are blue, as in the report of `assess`."""

_TICK_GAP = 0.085
"""Smallest distance between two tick labels, relative to the length of the axis, so that they do not touch."""

_WIDEST = 13.0
"""Largest width of all groups of bars, in inches."""

_ASIDE = 0.2
"""Distance from the middle of a bar to its error bar on the left and to its reference on the right. Bars have distance
1 from each other."""


class Curve(NamedTuple):
    """A curve: positions on the x axis, with the mean and the lower and upper end of a range at each position."""

    at: ArrayLike
    mean: ArrayLike
    low: ArrayLike
    high: ArrayLike

    @classmethod
    def of(cls, at: Sequence[float], scores: ArrayLike) -> Curve:
        """Create a curve from scores (places, seeds): the mean over the seeds, and one std to both sides."""
        found = np.asarray(scores, np.float64)
        if found.ndim != 2 or len(found) != len(at) or not found.shape[1]:
            raise DataError(f"scores must be (places, seeds) with {len(at)} places, got the shape {found.shape}")
        mean, std = found.mean(axis=1), found.std(axis=1)
        return cls(np.asarray(at), mean, mean - std, mean + std)


class Bar(NamedTuple):
    """A bar: a number, its standard deviation, and the paper's number as a reference."""

    value: float
    std: float = 0.0
    reference: float | None = None


def count(value: float) -> str:
    """Format a number with a suffix: `50000` as `50K`, `1.5e6` as `1.5M`."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= size * 0.9995:  # 999,999 is a million to three digits
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def share(value: float) -> str:
    """Format a fraction as a percentage: `0.15` as `15 %`."""
    return f"{100 * value:.3g} %"


def styles(names: Collection[str]) -> list[Style]:
    """Return a style for each name: the style of its method, or the first one that is not used."""
    wanted = [next((place for word, place in _METHODS.items() if word in name.lower()), None) for name in names]
    chosen: dict[int, int] = {}  # index of the style, by index of the name
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
    """Plot learning curves: the mean of each curve as a line, and its range as a band."""
    found = _checked(curves)
    figure, axes = _panel(title, xlabel, ylabel)
    for number, (style, (name, (at, mean, low, high))) in enumerate(zip(styles(found), found.items(), strict=True)):
        axes.fill_between(at, low, high, color=style.colour, alpha=0.18, linewidth=0)
        # Ten markers per line, at different positions for each line, so that they do not hide each other.
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
    """Plot series with few positions on a logarithmic axis, for example shares of a data set. Lines connect markers
    with error bars. `tick` formats the positions: use `share` for fractions and `count` for numbers of rows."""
    found = _checked(series)
    places = np.unique(np.concatenate([at for at, *_ in found.values()]))
    if places[0] <= 0:
        raise DataError(f"positions on a logarithmic axis must be above 0, got {places[0]:g}")
    figure, axes = _panel(title, xlabel, SCORE)
    # The series are shifted a little, because error bars at the same position would hide each other.
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
    """Plot groups of bars, with one bar per arm and error bars of one std. An arm may be missing in a group. The
    reference of a bar is a diamond next to its error bar."""
    arms = list(dict.fromkeys(arm for group in groups.values() for arm in group))
    _few(arms)
    for name, group in groups.items():
        for arm, bar in group.items():
            if not np.isfinite([bar.value, bar.std, bar.reference or 0]).all() or bar.std < 0:
                raise DataError(f"{arm} of {name} must have finite numbers and a std of at least 0, got {bar}")
    slots = len(arms) + 1  # one empty slot between groups
    longest = max(len(line) for name in groups for line in name.split("\n"))
    width = len(groups) * max(0.3 * slots, 0.095 * longest + 0.2)
    figure, axes = _panel(title, "", SCORE, width=min(max(3.0, width), _WIDEST) + 2.3)
    placed = [
        {place * slots + number: group[arm] for place, group in enumerate(groups.values()) if arm in group}
        for number, arm in enumerate(arms)
    ]
    referred = [(at, bar.reference) for own in placed for at, bar in own.items() if bar.reference is not None]
    for style, arm, own in zip(styles(arms), arms, placed, strict=True):
        _arm(axes, own, style, arm, aside=_ASIDE if referred else 0.0)
    if referred:
        at, values = zip(*referred, strict=True)
        look: dict[str, Any] = {"markersize": 5.5, "markerfacecolor": "white", "markeredgecolor": INK}
        # `errorbar` makes a container, as `bar` does. So the legend lists it after the bars.
        axes.errorbar(np.add(at, _ASIDE), values, fmt="D", zorder=7, label="the paper", **look)
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_xticks([place * slots + (len(arms) - 1) / 2 for place in range(len(groups))], list(map(plain, groups)))
    axes.tick_params(axis="x", length=0)
    if width > _WIDEST:  # there is no room for the names side by side
        for label in axes.get_xticklabels():
            label.set(rotation=30, ha="right", rotation_mode="anchor")
        axes.margins(x=0.01)
    axes.grid(visible=False, axis="x")
    _finish(figure, axes, path, "bar: mean over the seeds; upright line: one standard deviation to either side", note)


def blank(width: float, height: float) -> Figure:
    """Return an empty figure. Width and height are in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "all", "drawing a picture") from None
    return Figure(figsize=(width, height), dpi=130, layout="constrained", facecolor="white")


def write(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure in the format of the file's suffix. The file appears only when it is complete."""
    suffix, known = Path(path).suffix, figure.canvas.get_supported_filetypes()
    if suffix.removeprefix(".").lower() not in known:
        raise ConfigError(f"{path}: expected one of the suffixes {', '.join(sorted(known))}")
    with replacing(path) as unfinished:
        figure.savefig(unfinished)


def plain(text: str) -> str:
    """Escape dollar signs in a label, so that Matplotlib does not read them as a formula."""
    return text.replace("$", r"\$")


def heading(figure: Figure, title: str) -> None:
    """Add the title, wrapped to the width of the figure."""
    if title:
        letters = int(figure.get_figwidth() / 0.1)  # a letter is about a tenth of an inch wide, or less
        text = textwrap.fill(title, letters, break_on_hyphens=False)  # names such as cheetah-run stay on one line
        figure.suptitle(plain(text), x=0.01, ha="left", fontsize=11, color=INK, weight="bold")


def footnote(figure: Figure, text: str, note: str = "") -> None:
    """Add a footnote that explains lines, bars and bands, and a note on a second line."""
    figure.supxlabel("\n".join(filter(None, [text, plain(note)])), fontsize=8.5, color=FAINT)


def tidy(axes: Axes) -> None:
    """Apply the style of axes that all pictures share."""
    axes.grid(color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9, colors=INK, length=3, width=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["bottom", "left"]].set_color(FAINT)


def _line(axes: Axes, at: Array, mean: Array, style: Style, name: str, **marks: Any) -> None:
    look: dict[str, Any] = {"color": style.colour, "linestyle": style.dashes, "marker": style.mark}
    axes.plot(at, mean, linewidth=1.7, markersize=5.5, label=plain(name), **look, **marks)


def _arm(axes: Axes, bars_at: Mapping[int, Bar], style: Style, name: str, aside: float) -> None:
    from matplotlib.patheffects import withStroke

    at, values = list(bars_at), [bar.value for bar in bars_at.values()]
    edge = "white" if style.hatch else style.colour
    look: dict[str, Any] = {"color": style.colour, "hatch": style.hatch, "edgecolor": edge, "linewidth": 0}
    axes.bar(at, values, width=0.88, label=plain(name), **look)
    spread = [bar.std or math.nan for bar in bars_at.values()]  # NaN draws no error bar
    places = np.subtract(at, aside)
    drawn = axes.errorbar(places, values, yerr=spread, fmt="none", ecolor=INK, elinewidth=1.1, capsize=2.2, zorder=6)
    for part in (*drawn[1], *drawn[2]):  # a white outline: a black error bar would be invisible on a black bar
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
    """Add the footnote and the legend, and write the file. A single line with a title needs no legend."""
    footnote(figure, key, note)
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1 or not figure.get_suptitle():
        look = {"frameon": False, "fontsize": 9, "labelcolor": INK, "handlelength": 3.2, "handleheight": 1.1}
        figure.legend(handles, labels, loc="outside right center", labelspacing=0.7, **look)
    write(figure, path)


def _few(names: Sequence[str]) -> None:
    if not 1 <= len(names) <= len(_STYLES):
        raise ConfigError(f"a picture can show 1 to {len(_STYLES)} arms, got {len(names)}: draw several pictures")


def _checked(curves: Mapping[str, Curve]) -> dict[str, tuple[Array, ...]]:
    _few(list(curves))
    found = {name: tuple(np.asarray(part, np.float64) for part in curve) for name, curve in curves.items()}
    for name, parts in found.items():
        if len({part.shape for part in parts}) != 1 or parts[0].ndim != 1 or not len(parts[0]):
            given = ", ".join(str(part.shape) for part in parts)
            raise DataError(f"the curve {name} must have four arrays of the same length, got the shapes {given}")
        if not np.isfinite(parts).all():
            raise DataError(f"the curve {name} has numbers that are not finite: leave these positions out")
    return found


def _apart(places: Array) -> list[float]:
    """Return the positions that get a label on a logarithmic axis: the first, the last, and others that are far enough
    from them and from each other."""
    logs = np.log(places)
    gap = _TICK_GAP * (logs[-1] - logs[0])
    kept = [0]
    for number in range(1, len(places)):
        if logs[number] - logs[kept[-1]] >= gap and (number == len(places) - 1 or logs[-1] - logs[number] >= gap):
            kept.append(number)
    return [float(places[number]) for number in kept]

"""What the pictures of scores share: the sheet, its look, and the file that it becomes."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from synther.durable import replacing
from synther.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT = "#222222", "#8a8a8a"


def blank(width: float, height: float) -> Figure:
    """An empty sheet, in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "all", "drawing a picture") from None
    return Figure(figsize=(width, height), dpi=130, layout="constrained", facecolor="white")


def write(figure: Figure, path: str | os.PathLike[str]) -> None:
    """As what the suffix of `path` asks for; whole or not at all."""
    suffix, known = Path(path).suffix, figure.canvas.get_supported_filetypes()
    if suffix.removeprefix(".").lower() not in known:
        raise ConfigError(f"{path}: pictures are written as {', '.join(sorted(known))}; give it such a suffix")
    with replacing(path) as unfinished:
        figure.savefig(unfinished)


def plain(text: str) -> str:
    """For a label: a dollar is a dollar, not the start of a formula."""
    return text.replace("$", r"\$")


def heading(figure: Figure, title: str) -> None:
    """Above everything, on as many lines as the width of the sheet asks for."""
    if title:
        letters = int(figure.get_figwidth() / 0.1)  # one is at most about a tenth of an inch
        text = textwrap.fill(title, letters, break_on_hyphens=False)  # cheetah-run is one name
        figure.suptitle(plain(text), x=0.01, ha="left", fontsize=11, color=INK, weight="bold")


def footnote(figure: Figure, text: str, note: str = "") -> None:
    """Below everything: what lines, bars and bands are, and on a line of its own what else has to be known."""
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

"""Print the results of a command on stdout, as a table or as one JSON object."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from shutil import get_terminal_size
from textwrap import fill
from typing import TYPE_CHECKING, Any

from synther.errors import SyntherError
from synther.progress import counted
from synther.schema import printable

if TYPE_CHECKING:
    from pathlib import Path

    from synther.engines import Outcome
    from synther.experiments.results import EvalPoint, Result


_NUMBER = re.compile(r"-?[\d,]*\.?\d+(e[+-]?\d+)? ?%?|-?")
"""A cell of a numeric column: a number, a percentage, a dash, or nothing."""
Lines = Iterable[Sequence[str]]


def answer(
    as_json: bool, facts: dict[str, Any], rows: Lines, title: str = "", header: Sequence[str] = ("", "")
) -> None:
    """Print `facts` as JSON, or `rows` as a table. By default the table has two columns, names and values."""
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        table(header, rows, title)


def answer_outcomes(as_json: bool, outcomes: Sequence[Outcome], what: str) -> None:
    """Print the outcomes of several tasks, which are called `what`. Raise an error if some are not finished."""
    facts = {f"{what}s": [vars(outcome) for outcome in outcomes]}
    answer(as_json, facts, [(one.name, str(one)) for one in outcomes], header=(what, "outcome"))
    lost = [outcome.name for outcome in outcomes if outcome.error is not None]
    if lost:
        raise SyntherError(f"{len(lost)} of {len(outcomes)} {what}s are not finished: {', '.join(lost)}")


def standing(name: str, found: EvalPoint | None, unit: str, after: str = "after") -> list[tuple[str, str]]:
    """Return table rows with the score and the return of an evaluation. `unit` is "updates" or "steps"."""
    if found is None:
        return []
    spreads, when = {"score": found.spread_of_scores, "return": found.spread_of_returns}, f"{found.updates:,} {unit}"
    return [(f"{name} {kind}", f"{spread} {after} {when}") for kind, spread in spreads.items() if spread is not None]


def of_run(
    result: Result, arm: str, folder: Path, *, unit: str = "updates", missing: str = "none"
) -> list[tuple[str, str]]:
    """Return table rows with the result of a run. `missing` is shown if the run has no evaluation."""
    final, best = result.final(arm), result.best(arm) if len(result.curves[arm]) > 1 else None
    rows = [*standing("final", final, unit), *standing("best", best, unit)]
    rows += standing("stopped early", result.stopped(arm), unit, "by the held-out TD error, after at most")
    if final is None:
        rows.append(("evaluation", missing))
    if result.diverged[arm]:
        rows.append(("diverged", f"{seeds(len(result.diverged[arm]))}; excluded from the mean"))
    spent = ", ".join(f"{name} {seconds:,.0f}" for name, seconds in result.seconds_of.items())
    rate = result.updates_per_second
    return [
        *rows,
        ("seconds", f"{result.seconds:,.0f}" + (f" ({spent})" if spent else "")),
        (f"{unit} per second", f"{rate:,.1f}" if rate < 100 else f"{rate:,.0f}"),
        ("folder", str(folder)),
    ]


def over(count: int) -> str:
    """Return the text that explains figures over `count` seeds, such as "6 seeds: mean ± std"."""
    return seeds(count) + (": mean ± std" if count > 1 else "")


def seeds(count: int) -> str:
    return counted(count, "seed")


def say(text: str) -> None:
    """Print a paragraph, wrapped at the width of the terminal."""
    text = "\n".join(map(printable, text.split("\n")))
    indent = "  " if text.startswith("- ") else ""
    wide = get_terminal_size().columns
    print(fill(text, wide, replace_whitespace=False, subsequent_indent=indent, break_on_hyphens=False))


def table(header: Sequence[str], rows: Lines, title: str = "") -> None:
    """Print a table. Without any header text the header is left out. Columns of numbers are right-aligned."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [tuple(row) for row in rows]
    drawn = Table(box=box.SIMPLE, show_header=any(header))
    for number, name in enumerate(header):
        numeric = any(header) and all(_NUMBER.fullmatch(row[number]) for row in cells)
        drawn.add_column(name, justify="right" if numeric else "left", overflow="fold", no_wrap=number == 0)
    for row in cells:
        drawn.add_row(*(Text(printable(cell)) for cell in row))  # not str: rich would read [red].npz as markup
    console = Console(soft_wrap=False)
    with console.capture() as printed:
        if title:  # printed separately, because a title of the table is wrapped at the width of the table
            console.print(Text(printable(title), style="bold"))
        console.print(drawn)
    print(*map(str.rstrip, printed.get().splitlines()), sep="\n")

"""`synther doctor`"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from synther.cli import options
from synther.cli.answer import answer, say


@dataclass(frozen=True)
class Doctor(options.Output):
    """Show what SynthER finds on this machine, what is missing, and how to install it."""


def doctor(arguments: list[str]) -> None:
    chosen = options.parse("doctor", Doctor, arguments)
    from synther.doctor import examine

    found = examine(Path.cwd())
    lines = [(one.name, one.state, one.found) for one in found]
    answer(chosen.json, {one.name: asdict(one) for one in found}, lines, header=("", "state", "found"))
    for one in found:
        if one.advice and not chosen.json:
            say(f"- {one.name}: {one.advice}")

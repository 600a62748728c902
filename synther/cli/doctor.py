"""The command `synther doctor`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from synther.cli import options
from synther.cli.answer import answer, say


@dataclass(frozen=True)
class Doctor(options.Output):
    """Check the installation, and say how to install what is missing.

    Shows versions, devices, rendering, free memory and disk space, and which optional libraries are installed.
    """


def doctor(arguments: list[str]) -> None:
    chosen = options.parse("doctor", Doctor, arguments)
    from synther.doctor import examine

    found = examine(Path.cwd())
    lines = [(one.name, one.state, one.found) for one in found]
    answer(chosen.json, {one.name: asdict(one) for one in found}, lines, header=("", "state", "found"))
    for one in found:
        if one.advice and not chosen.json:
            say(f"- {one.name}: {one.advice}")

"""What an engine is given and what it gives back."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from synther.errors import ConfigError
from synther.progress import Phase, Progress


class Task(Protocol):
    """One run. It can be pickled, and it can be killed at any moment: executed again in its folder, it goes on."""

    @property
    def name(self) -> str:
        """Of its folder, too."""

    def execute(self, folder: Path, progress: Progress) -> None:
        """Do the work in `folder`, or what is left of it."""

    def done(self, folder: Path) -> bool:
        """Whether nothing is left of it."""


@dataclass(frozen=True)
class Outcome:
    """What became of a task."""

    name: str
    seconds: float = 0.0
    """Of work on it in this call, all attempts together; not of waiting for its turn."""
    error: str | None = None
    """Why it is not done."""
    was_done: bool = False
    """Before anybody touched it."""


class Named:
    """Progress of a task: its phases bear its name."""

    def __init__(self, progress: Progress, name: str) -> None:
        self.progress, self.name = progress, name

    def phase(self, name: str, total: int, start: int = 0) -> AbstractContextManager[Phase]:
        return self.progress.phase(f"{self.name}: {name}", total, start)


def check_names(tasks: Sequence[Task]) -> None:
    """Each is that of a folder, and nobody else's."""
    names = [task.name for task in tasks]
    for name in names:
        if not name or Path(name).name != name or name.startswith("."):
            raise ConfigError(
                f"expected the name of a run to be that of a folder, such as walker2d-td3_bc, got {name!r}"
            )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"expected every run to have a name of its own, got several called {', '.join(twice)}")

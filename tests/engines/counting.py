"""Runs that take no time: five numbers, each following from the one before, with a checkpoint at every one."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from synther.durable import replacing
from synther.errors import DataError
from synther.progress import Progress

NUMBERS = [3, 24, 70, 89, 20]


@dataclass(frozen=True)
class Counting:
    name: str
    diary: Path
    """A folder that is nobody's, in which each execution notes where it began."""

    def done(self, folder: Path) -> bool:
        return (folder / "result.json").exists()

    def execute(self, folder: Path, progress: Progress) -> None:
        checkpoint = folder / "checkpoint.json"
        numbers = json.loads(checkpoint.read_text()) if checkpoint.exists() else []
        with (self.diary / self.name).open("a") as file:
            file.write(f"{len(numbers)}\n")
        with progress.phase("count", len(NUMBERS), len(numbers)) as phase:
            while len(numbers) < len(NUMBERS):
                self.before(len(numbers))
                numbers.append((7 * (numbers[-1] if numbers else 0) + 3) % 101)
                with replacing(checkpoint) as beside:
                    beside.write_text(json.dumps(numbers))
                phase.advance(1, f"at {numbers[-1]}")
        with replacing(folder / "result.json") as beside:
            beside.write_text(json.dumps(numbers))

    def before(self, index: int) -> None:
        """What happens before the number at `index`."""

    def begun_at(self) -> list[int]:
        """How many numbers there were when it was executed, each time."""
        diary = self.diary / self.name
        return [int(line) for line in diary.read_text().splitlines()] if diary.exists() else []


@dataclass(frozen=True)
class Meeting(Counting):
    """Ends only if another runs at the same time."""

    other: str

    def before(self, index: int) -> None:
        wait_for(self.diary / self.other)


@dataclass(frozen=True)
class Killed(Counting):
    """Once, in the middle. Notes the part of the machine that it sees."""

    def before(self, index: int) -> None:
        seen = [os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "SYNTHER_CORES")]
        (self.diary / f"{self.name}.machine").write_text(json.dumps(seen))
        if index == 3 and len(self.begun_at()) == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def machine(self) -> list[str | None]:
        return json.loads((self.diary / f"{self.name}.machine").read_text())


@dataclass(frozen=True)
class Refusing(Counting):
    def before(self, index: int) -> None:
        raise DataError("expected rows, got none: choose another file")


@dataclass(frozen=True)
class Broken(Counting):
    def before(self, index: int) -> None:
        logging.getLogger("synther.experiments").warning("these rows look bad")
        raise ZeroDivisionError("a defect")


@dataclass(frozen=True)
class Full(Counting):
    def before(self, index: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@dataclass(frozen=True)
class Endless(Counting):
    """Notes its process, and works on."""

    def before(self, index: int) -> None:
        if index == 1 and self.begun_at() == [0]:
            (self.diary / "process").write_text(str(os.getpid()))
            time.sleep(120)


def wait_for(path: Path) -> None:
    until = time.monotonic() + 60
    while not path.exists():
        if time.monotonic() > until:
            raise TimeoutError(f"{path} did not come")
        time.sleep(0.02)

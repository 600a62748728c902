"""Whose folder it is: a run writes down what it is for, and touches no folder that is for something else.

Nor does it touch one that another process is at work in. And the files in it: how they are written, and known again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synther.durable import check_folder, replacing
from synther.errors import ConfigError
from synther.locks import Owned, owned

_LOCK = ".run.lock"
_ADVICE = "choose an empty or a new folder"
ANOTHER = "choose another --out, or remove the folder"
_SHORT, _FEW = 60, 4
"""Characters of a difference that is worth to be shown, and how many of them."""


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Nobody else who asks for this works in the folder meanwhile, however the process ends.

    The lock lies in the folder, which may be all that can be written to; those of engines lie beside it.
    """
    check_folder(folder, _ADVICE)
    with ExitStack() as held:
        try:
            held.enter_context(owned(folder / _LOCK))
        except Owned as taken:
            raise ConfigError(
                f"{taken.owner} is at work in {folder}: wait until it is done, or choose another --out"
            ) from None
        yield


@dataclass(frozen=True)
class Growth:
    """That a run may be asked to do more than it was meant for, and then goes on where that ended."""

    of: str
    """What there may be more of, as its description calls it: steps."""
    hindrance: Callable[[int], str] = lambda before: ""
    """What keeps one of so many from going on, if anything does."""


def claim(folder: Path, description: dict[str, Any], advice: str = ANOTHER, growth: Growth | None = None) -> None:
    """Write down what the folder is for, or check that it is for this, or for less of it."""
    run = folder / "run.json"
    if not run.exists():
        check_folder(folder, _ADVICE)
        if folder.exists() and next(_claimed(folder), None) is not None:
            raise ConfigError(f"{folder} holds files of something else: {_ADVICE}")
        write_object(run, description)
    elif was_for_less(folder, description, advice, growth):
        began = run.stat().st_mtime
        write_object(run, description)
        os.utime(run, (began, began))  # from which the time of all that was measured is counted


def _claimed(folder: Path) -> Iterator[Path]:
    """What is in it but for locks and what a killed process left of its description."""
    return (file for file in folder.iterdir() if not file.name.startswith(".run."))


def unclaim(folder: Path) -> None:
    """Take a claim back, with all that came of it. Only for who has made it, and while nobody else works there."""
    for file in list(_claimed(folder)):
        if file.is_dir():
            shutil.rmtree(file)
        else:
            file.unlink()


def was_for_less(
    folder: Path, description: dict[str, Any], advice: str = ANOTHER, growth: Growth | None = None
) -> bool:
    """Whether the folder was claimed for less of the same; one that was for something else is refused."""
    found, wanted = read_object(folder / "run.json"), json.loads(json.dumps(description))
    apart = [key for key in wanted if not same(found.get(key), wanted[key])]
    longer = growth is not None and apart == [growth.of] and found[growth.of] < wanted[growth.of]
    why = growth.hindrance(found[growth.of]) if growth is not None and longer else ""
    if apart and (why or not longer):
        other = ", ".join(f"{key}{_told(found.get(key), wanted[key])}" for key in apart)
        raise ConfigError(f"{folder} holds a run with another {other}{why and f', and {why}'}: {advice}")
    return longer


def same(found: Any, wanted: Any) -> bool:
    """Whether two descriptions are equal. None is as if it were not said, so that an option may be new."""
    return next(differences(found, wanted), None) is None


@dataclass(frozen=True)
class Difference:
    place: tuple[str, ...]
    """The names that lead there: fit, steps."""
    found: Any
    wanted: Any

    @property
    def where(self) -> str:
        return ".".join(self.place)


def differences(found: Any, wanted: Any, *place: str) -> Iterator[Difference]:
    """Where they are not."""
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        for key in {**found, **wanted}:
            yield from differences(found.get(key), wanted.get(key), *place, key)
    elif found != wanted:
        yield Difference(place, found, wanted)


def key_of(description: Mapping[str, Any]) -> str:
    """The same for equal descriptions, short enough for the name of a folder."""
    return hashlib.sha256(json.dumps(_said(description), sort_keys=True).encode()).hexdigest()[:16]


def _said(description: Any) -> Any:
    """Without what is None: an option may be new."""
    if not isinstance(description, Mapping):
        return description
    return {name: _said(value) for name, value in description.items() if value is not None}


def _told(found: Any, wanted: Any) -> str:
    """In brackets what is there and what was asked for, where that is short; of named options, those that differ."""
    every = [
        f"{one.where} {json.dumps(one.found)}, not {json.dumps(one.wanted)}".strip()
        for one in differences(found, wanted)
    ]
    told = [difference for difference in every if len(difference) <= _SHORT]
    return f" ({'; '.join(told[:_FEW])}{'; ...' * (len(told) > _FEW)})" if told else ""


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of ours."""
    try:
        found = json.loads(path.read_text())
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} is not the description of a run: {ANOTHER}")
    return found


def write_object(path: Path, content: dict[str, Any]) -> None:
    """A JSON object as a file, whole or not at all."""
    with replacing(path) as beside:
        beside.write_text(json.dumps(content, indent=2) + "\n")


def append_line(path: Path, line: str) -> None:
    """At the end of a file, on the disk before anything builds on it."""
    with path.open("a") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def digest_of(path: Path) -> str:
    """By what a file is known again."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

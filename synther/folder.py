"""The folder of a run: locks, its description, and writing of small files.

For example, `synther train --out run` must resume an interrupted run in the folder `run`. It must refuse a folder of a
run with other options, a folder with other files, and a folder in which another process works. `RunFolder` does this.
`run.json` describes the run and `result.json` holds its result. `written_once` does the same for a single output file.
`key_of`, `differences` and `same` compare descriptions.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from synther import schema
from synther.durable import check_folder, check_new, partial_folder, replacing, writing_to
from synther.errors import ConfigError, FormatError
from synther.locks import Owned, owned

log = logging.getLogger(__name__)

_LOCK = ".run.lock"
_ADVICE = "choose an empty or a new folder"
"""Advice at the end of an error about a folder with other files."""
ANOTHER = "choose another --out, or remove the folder"
"""Advice at the end of an error about a folder of another run."""
_SHORT, _FEW = 60, 4
"""An error message shows at most `_FEW` differences of an option, each with at most `_SHORT` characters."""


@dataclass(frozen=True)
class Growth:
    """Allows a finished run to be extended: with a larger number in its description it continues where it ended."""

    of: str
    """Key of this number in the description, such as `steps`."""
    hindrance: Callable[[int], str] = lambda before: ""
    """Function of the old number. It returns why such a run cannot be extended, or "" if it can."""


@contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Hold a lock on `path`, so that no other process with `only_writer(path)` writes to it.

    The lock ends with the process, also if the process is killed. If the parent folder is new and nothing was written
    to it, it is removed.
    """
    new = not path.parent.exists()
    with ExitStack() as held:
        held.callback(_remove_empty, path.parent if new else None)
        try:
            held.enter_context(owned(path.with_name(f".{path.name}.lock")))
        except Owned as taken:
            raise ConfigError(
                f"{taken.owner} is writing {path}: wait until it is done, or choose another --out"
            ) from None
        yield


def _remove_empty(folder: Path | None) -> None:
    if folder is not None:
        with suppress(OSError):
            folder.rmdir()


@contextmanager
def written_once(path: Path, made: Mapping[str, Any]) -> Iterator[bool]:
    """Lock the new file `path`, and yield True if it must be written, or False if the same command has written it.

    `made` describes the command. A hash of it is stored in a hidden file beside `path`. The hash is written before the
    file itself, so that even a command that is killed in between is recognised when it is repeated. A file that another
    command has written is an error.
    """
    note = path.with_name(f".{path.name}.made")
    with only_writer(path):
        key = key_of(json.loads(json.dumps(made, default=str)))
        if not path.exists():
            write_object(note, {"made": key})
            try:
                yield True
            finally:
                if not path.exists():
                    note.unlink(missing_ok=True)
            return
        if not note.exists() or read_object(note).get("made") != key:
            check_new(path)
        log.info("%s is finished already", path)
        shutil.rmtree(partial_folder(path), ignore_errors=True)  # left behind if the command was killed at its end
        yield False


class RunFolder:
    """A folder that belongs to one run. `run.json` describes the run, and `result.json` holds its result.

    A folder of another run is refused, and so is a folder in which another process works. A run with a `growth` can be
    extended. The lock is a file in the folder, because the folder may be the only place with write access. Locks of
    engines are files beside the folder.
    """

    def __init__(self, path: Path, *, growth: Growth | None = None, advice: str = ANOTHER) -> None:
        self.path, self.growth, self.advice = path, growth, advice
        self.run, self.result = path / "run.json", path / "result.json"

    @property
    def begun(self) -> bool:
        """Whether the folder already has a `run.json`."""
        return self.run.exists()

    @contextmanager
    def work(self, description: dict[str, Any], finished: Callable[[], bool]) -> Iterator[bool]:
        """Claim the folder, and yield True if there is work to do. In this case the lock is held inside the block.

        If the run is `finished`, no lock is taken, so that the result can also be read from a read-only folder.
        """
        if finished():
            self.claim(description)
            log.info("%s is finished already", self.path)
            yield False
            return
        with self.lock():
            self.claim(description)
            yield not finished()  # another process may have finished it in the meantime

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of the folder. It ends with the process, also if the process is killed."""
        check_folder(self.path, _ADVICE)
        with ExitStack() as held:
            try:
                held.enter_context(owned(self.path / _LOCK))
            except Owned as taken:
                raise ConfigError(
                    f"{taken.owner} is working in {self.path}: wait until it is done, or choose another --out"
                ) from None
            yield

    def claim(self, description: dict[str, Any]) -> None:
        """Write `run.json`, or check that the existing one describes this run or a shorter one that may be extended."""
        new, longer = not self.begun, self.check(description)
        if new:
            write_object(self.run, description)
        elif longer:
            began = self.run.stat().st_mtime
            write_object(self.run, description)
            os.utime(self.run, (began, began))  # the times of all measurements are counted from this time

    def check(self, description: dict[str, Any]) -> bool:
        """Raise an error if the folder belongs to another run or contains other files.

        Return True if it belongs to a shorter run that may be extended.
        """
        if not self.begun:
            check_folder(self.path, _ADVICE)
            if self.path.exists() and next(self._files(), None) is not None:
                raise ConfigError(f"{self.path} contains files that do not belong to this run: {_ADVICE}")
            return False
        found, wanted = self.description(), json.loads(json.dumps(description))
        apart = [key for key in wanted if not same(found.get(key), wanted[key])]
        growth = self.growth
        longer = growth is not None and apart == [growth.of] and _is_less(found.get(growth.of), wanted[growth.of])
        why = growth.hindrance(found[growth.of]) if growth is not None and longer else ""
        if apart and (why or not longer):
            other = ", ".join(f"{key}{_in_brackets(found.get(key), wanted[key])}" for key in apart)
            raise ConfigError(f"{self.path} holds a run with other options: {other}{why and f'; {why}'}; {self.advice}")
        return longer

    def release(self) -> None:
        """Undo a claim: delete everything in the folder. Only the process that made the claim may call this, while it
        holds the lock."""
        for file in list(self._files()):
            if file.is_dir():
                shutil.rmtree(file)
            else:
                file.unlink()

    def description(self) -> dict[str, Any]:
        """Return the description of the run, as read from `run.json`."""
        found: dict[str, Any] = read_object(self.run)
        return found

    def finish(self, content: dict[str, Any]) -> None:
        """Write `result.json`, which marks the run as finished."""
        write_object(self.result, content)

    def _files(self) -> Iterator[Path]:
        """Yield the files of the folder, without locks and temporary files of `run.json` from a killed process."""
        return (file for file in self.path.iterdir() if not file.name.startswith(".run."))


def _is_less(found: Any, wanted: int) -> bool:
    return isinstance(found, int) and found < wanted


def same(found: Any, wanted: Any) -> bool:
    """Return whether two descriptions are equal.

    None counts as a missing entry, so that descriptions from before an option was added stay valid.
    """
    return next(differences(found, wanted), None) is None


@dataclass(frozen=True)
class Difference:
    """One entry in which two descriptions differ."""

    place: tuple[str, ...]
    """The keys that lead to the entry, such as ("fit", "steps")."""
    found: Any
    wanted: Any

    @property
    def where(self) -> str:
        return ".".join(self.place)


def differences(found: Any, wanted: Any, *place: str) -> Iterator[Difference]:
    """Yield the entries in which two descriptions differ. None counts as a missing entry."""
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        for key in {**found, **wanted}:
            yield from differences(found.get(key), wanted.get(key), *place, key)
    elif found != wanted:
        yield Difference(place, found, wanted)


def key_of(description: Mapping[str, Any]) -> str:
    """Return a hash of a description with 16 characters, for the name of a folder. Entries that are None are
    ignored."""
    return hashlib.sha256(json.dumps(_without_none(description), sort_keys=True).encode()).hexdigest()[:16]


def _without_none(description: Any) -> Any:
    """Remove entries that are None, so that the hash does not change when an option is added."""
    if not isinstance(description, Mapping):
        return description
    return {name: _without_none(value) for name, value in description.items() if value is not None}


def _in_brackets(found: Any, wanted: Any) -> str:
    """Return the differences in brackets for an error message, such as " (fit.steps 5, not 7)".

    Long differences are left out. Without any short one the text is empty.
    """
    every = [
        f"{one.where} {json.dumps(one.found)}, not {json.dumps(one.wanted)}".strip()
        for one in differences(found, wanted)
    ]
    short = [difference for difference in every if len(difference) <= _SHORT]
    return f" ({'; '.join(short[:_FEW])}{'; ...' * (len(short) > _FEW)})" if short else ""


class Described(TypedDict, total=False):
    """The entries of `run.json` that other code than the run itself reads, for all kinds of runs."""

    kind: str | None
    env_id: str | None
    env_options: dict[str, Any] | None
    episodes: int | None
    updates: int | None
    steps: int | None
    learning_starts: int | None
    action_repeat: int | None
    repeat: int | None


def read_object(path: Path, kind: Any = dict[str, Any]) -> Any:
    """Read a JSON object that SynthER wrote, and check that it has the type `kind` (see `schema.checked`)."""
    try:
        return schema.read(path, Described if path.name == "run.json" else kind)
    except FormatError as error:
        raise FormatError(f"{error}: {ANOTHER}") from None


def write_object(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object to a file. The file appears only when it is complete."""
    with replacing(path) as beside:
        beside.write_text(json.dumps(content, indent=2) + "\n")


def append_line(path: Path, line: str) -> None:
    """Append `line` to a file, and wait until it is on the disk."""
    with writing_to(path), path.open("a") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def digest_of(path: Path) -> str:
    """Return the SHA-256 hash of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

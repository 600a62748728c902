"""The folder of a run: who may work in it, what it is for, how its files are written and known again."""

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
ANOTHER = "choose another --out, or remove the folder"
_SHORT, _FEW = 60, 4
"""Characters of a difference that is worth to be shown, and how many of them."""


@dataclass(frozen=True)
class Growth:
    """That a run may be asked to do more than before, and then goes on where it ended."""

    of: str
    """The number that may grow, as the description names it: steps."""
    hindrance: Callable[[int], str] = lambda before: ""
    """Why a run of so many cannot go on; empty where it can."""


@contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Nobody else who asks for it writes to `path` meanwhile, however the process ends.

    A folder that was made for it is removed if nothing was written.
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
    """The only writer of a new file at `path`; yields whether it has to be written.

    It has not, if the same command has written it before: `made` says how, and is noted beside the file. The note is
    older than the file, so that no moment is left in which a killed command could not be told from another one.
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
        shutil.rmtree(partial_folder(path), ignore_errors=True)  # of a command that was killed right before its end
        yield False


class RunFolder:
    """A folder that belongs to one run. `run.json` describes the run, `result.json` says what came of it.

    A folder of another run is refused, and so is one that another process works in. A run that may grow goes on with
    more of the same. The lock lies in the folder, which may be all that can be written to; those of engines lie beside.
    """

    def __init__(self, path: Path, *, growth: Growth | None = None, advice: str = ANOTHER) -> None:
        self.path, self.growth, self.advice = path, growth, advice
        self.run, self.result = path / "run.json", path / "result.json"

    @property
    def begun(self) -> bool:
        return self.run.exists()

    @contextmanager
    def work(self, description: dict[str, Any], finished: Callable[[], bool]) -> Iterator[bool]:
        """Claim the folder, and hold its lock for as long as there is work to do; yields whether there is.

        A run that is `finished` takes no lock, so that it can be read where nothing can be written.
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
        """Nobody else who asks for it works in the folder meanwhile, however the process ends."""
        check_folder(self.path, _ADVICE)
        with ExitStack() as held:
            try:
                held.enter_context(owned(self.path / _LOCK))
            except Owned as taken:
                raise ConfigError(
                    f"{taken.owner} is at work in {self.path}: wait until it is done, or choose another --out"
                ) from None
            yield

    def claim(self, description: dict[str, Any]) -> None:
        """Write down what the folder is for, or check that it is for this run, or for a shorter one."""
        new, longer = not self.begun, self.check(description)
        if new:
            write_object(self.run, description)
        elif longer:
            began = self.run.stat().st_mtime
            write_object(self.run, description)
            os.utime(self.run, (began, began))  # from which the time of all that was measured is counted

    def check(self, description: dict[str, Any]) -> bool:
        """Refuse a folder of another run, or of other files; True if it is of a shorter run."""
        if not self.begun:
            check_folder(self.path, _ADVICE)
            if self.path.exists() and next(self._files(), None) is not None:
                raise ConfigError(f"{self.path} holds files of something else: {_ADVICE}")
            return False
        found, wanted = self.description(), json.loads(json.dumps(description))
        apart = [key for key in wanted if not same(found.get(key), wanted[key])]
        growth = self.growth
        longer = growth is not None and apart == [growth.of] and _less(found.get(growth.of), wanted[growth.of])
        why = growth.hindrance(found[growth.of]) if growth is not None and longer else ""
        if apart and (why or not longer):
            other = ", ".join(f"{key}{_told(found.get(key), wanted[key])}" for key in apart)
            raise ConfigError(f"{self.path} holds a run with another {other}{why and f', and {why}'}: {self.advice}")
        return longer

    def release(self) -> None:
        """Take a claim back, with all that came of it. Only for who has made it, and holds the lock."""
        for file in list(self._files()):
            if file.is_dir():
                shutil.rmtree(file)
            else:
                file.unlink()

    def description(self) -> dict[str, Any]:
        """What the folder says it is for."""
        found: dict[str, Any] = read_object(self.run)
        return found

    def finish(self, content: dict[str, Any]) -> None:
        """The run is over."""
        write_object(self.result, content)

    def _files(self) -> Iterator[Path]:
        """What is in it but for locks and what a killed process left of its description."""
        return (file for file in self.path.iterdir() if not file.name.startswith(".run."))


def _less(found: Any, wanted: int) -> bool:
    return isinstance(found, int) and found < wanted


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


class Described(TypedDict, total=False):
    """What the `run.json` of any run may say, as far as others than the run itself read it."""

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
    """The JSON object in a file of ours, which must be of the `kind`: see `schema.checked`."""
    try:
        return schema.read(path, Described if path.name == "run.json" else kind)
    except FormatError as error:
        raise FormatError(f"{error}: {ANOTHER}") from None


def write_object(path: Path, content: dict[str, Any]) -> None:
    """A JSON object as a file, whole or not at all."""
    with replacing(path) as beside:
        beside.write_text(json.dumps(content, indent=2) + "\n")


def append_line(path: Path, line: str) -> None:
    """At the end of a file, on the disk before anything builds on it."""
    with writing_to(path), path.open("a") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def digest_of(path: Path) -> str:
    """By what a file is known again."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

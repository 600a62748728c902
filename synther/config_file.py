"""The options of a command as a TOML file, and the words of the command line that say the same.

`command` is the command and `arguments` its words without a name. All other keys are options, spelled as on the command
line without the dashes; `[fit]` and `steps = 100` are `--fit.steps 100`.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any, get_args, get_type_hints

import tyro

from synther.durable import replacing
from synther.errors import ConfigError

Value = str | int | float | bool | list[str]


@dataclass(frozen=True)
class ConfigFile:
    """What a file says."""

    path: Path
    command: str | None
    """The command that the file is for, if it says so."""
    arguments: list[str]
    options: dict[str, Any]
    """Values by the names of the options, such as `fit.steps`."""

    @classmethod
    def read(cls, path: Path) -> ConfigFile:
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"{path}: no such file; --write-config writes one") from None
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not a TOML file: {error}") from None
        command, arguments = content.pop("command", None), content.pop("arguments", [])
        if not isinstance(command, str | None):
            raise ConfigError(f'{path}: command must be text, such as "fit", got {command!r}')
        if not isinstance(arguments, list):
            raise ConfigError(f'{path}: arguments must be a list, such as ["hopper-sac"], got {arguments!r}')
        options = {name.replace("_", "-"): value for name, value in _flat(content)}
        return cls(path, command, [_word(path, "arguments", one) for one in arguments], options)

    def expand(self, command: str, words: Sequence[str]) -> list[str]:
        """The words of the command line, behind those of the file, so that they win.

        Words without a name stand before the first option. If there are any, those of the file do not count.
        """
        if self.command not in (None, command):
            raise ConfigError(f"{self.path} is for `synther {self.command}`, not for `synther {command}`")
        first = next((at for at, word in enumerate(words) if word.startswith("-")), len(words))
        return [*(words[:first] or self.arguments), *self._words(), *words[first:]]

    def _words(self) -> Iterator[str]:
        for name, value in self.options.items():
            group, dot, last = name.rpartition(".")
            if isinstance(value, bool) and group != "agent":  # options of agents are no flags
                yield f"--{name}" if value else f"--{group}{dot}no-{last}"
            elif isinstance(value, list):
                yield from (f"--{name}", *(_word(self.path, name, one) for one in value))
            else:  # in one word, because a value may begin with a dash
                yield f"--{name}={_word(self.path, name, value)}"

    def check(self, command: str, known: Sequence[Option]) -> None:
        """Refuse keys that are no options of the command."""
        names = [option.name for option in known if not option.positional]
        for name in self.options:
            if name not in names:
                near = difflib.get_close_matches(name, names, 1) or [f"one of `synther {command} --help`"]
                raise ConfigError(f"{self.path}: `synther {command}` has no option {name!r}; expected {near[0]}")


@dataclass(frozen=True)
class Option:
    """An option of a command, or a word without a name."""

    name: str
    path: tuple[str, ...]
    """The fields that lead to its value."""
    positional: bool
    superfluous: str | None
    """`--no-NAME` of a flag that is off by default, or `--NAME` of one that is on: they do not exist."""

    @property
    def spellings(self) -> set[str]:
        group, dot, last = self.name.rpartition(".")
        return {f"--{self.name}", f"--{group}{dot}no-{last}"}

    def value(self, parsed: Any) -> Value:
        """As a file can hold it."""
        for name in self.path:
            parsed = getattr(parsed, name)
        match parsed:
            case dict() if self.name == "env-options":
                return json.dumps(parsed)
            case dict():  # --data.scaling default minmax reward quantile
                return [str(word) for pair in parsed.items() for word in pair]
            case tuple() | list():
                return list(map(str, parsed))
            case bool() if self.name.startswith("agent."):
                return str(parsed)
            case str() | bool() | int() | float():
                return parsed
        return str(parsed)


def expanded(command: Sequence[str], name: str) -> list[str]:
    """The words of a command with `--config NAME`, and those of the file."""
    start = 2 if command[0] == "pixels" else 1  # each action of it has its own options
    found = ConfigFile.read(Path(name).expanduser())
    # The option goes to the end: words without a name may stand behind its value.
    of_config = [word == "--config" or before == "--config" for before, word in pairwise(["", *command])]
    rest = [word for word, own in zip(command, of_config, strict=True) if not (own or word.startswith("--config="))]
    return [*rest[:start], *found.expand(" ".join(rest[:start]), rest[start:]), f"--config={name}"]


def options_of(kind: Any, prefix: str = "", path: tuple[str, ...] = ()) -> Iterator[Option]:
    """The options of a dataclass that tyro makes a command line of."""
    hints = get_type_hints(kind, include_extras=True)
    for one in fields(kind):
        hint, notes = hints[one.name], getattr(hints[one.name], "__metadata__", ())
        if not one.init or tyro.conf.Suppress in notes:
            continue
        name = prefix + next((note.name for note in notes if getattr(note, "name", None)), one.name).replace("_", "-")
        inner = get_args(hint)[0] if notes else hint
        if is_dataclass(inner):
            yield from options_of(inner, f"{name}.", (*path, one.name))
            continue
        is_one_flag = tyro.conf.FlagCreatePairsOff in notes
        superfluous = f"--{name}" if one.default is True else f"--no-{name}"
        yield Option(name, (*path, one.name), tyro.conf.Positional in notes, superfluous if is_one_flag else None)


def write(path: Path, command: str, parsed: Any, words: Sequence[str], known: Sequence[Option]) -> None:
    """Write what was given: the options that are among `words`, with the values they were `parsed` to."""
    if path.exists():
        raise ConfigError(f"{path} exists and is not replaced: choose another --write-config, or remove it")
    own = ("config", "write-config")
    arguments = [str(option.value(parsed)) for option in known if option.positional]
    given = [one for one in known if not one.positional and one.spellings & set(words) and one.name not in own]
    options = {option.name: option.value(parsed) for option in given}
    # Groups of options become tables, unless an option has the name of the group.
    groups = {_group(name) for name in options} - options.keys() - {""}
    lines = [f"command = {_toml(command)}", f"arguments = {_toml([one for one in arguments if one])}"]
    lines += [f"{_key(name)} = {_toml(value)}" for name, value in options.items() if _group(name) not in groups]
    for group in sorted(groups):
        inside = {name.partition(".")[2]: value for name, value in options.items() if _group(name) == group}
        lines += ["", f"[{group}]", *(f"{_key(name)} = {_toml(value)}" for name, value in inside.items())]
    with replacing(path) as beside:
        beside.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _group(name: str) -> str:
    return name.rpartition(".")[0]


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _word(path: Path, name: str, value: Any) -> str:
    if not isinstance(value, str | int | float):
        raise ConfigError(f"{path}: {name} must be text, a number, true, false or a list of these, got {value!r}")
    return str(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else _toml(name)


def _toml(value: Value) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    # Text, numbers and flags are written as in JSON, but TOML also escapes this character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

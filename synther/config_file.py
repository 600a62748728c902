"""Config files: read the options of a command from a TOML file (`--config`), or write them to one (`--write-config`).

In the file, `command` is the name of the command and `arguments` are its positional arguments. All other keys are
options, spelled as on the command line without the dashes. For example, `steps = 100` in the table `[fit]` is
`--fit.steps 100`. The options of a file are converted to words of the command line, which are then parsed as usual.
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
"""Type of the value of an option in a file."""


@dataclass(frozen=True)
class ConfigFile:
    """The content of a config file."""

    path: Path
    command: str | None
    """The command that the file is for. None: the file does not name a command."""
    arguments: list[str]
    options: dict[str, Any]
    """Values by the full names of the options, such as `fit.steps`."""

    @classmethod
    def read(cls, path: Path) -> ConfigFile:
        """Read a TOML file, and check the types of `command` and `arguments`."""
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"{path}: no such file; check the path, or write one with --write-config") from None
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
        """Return the words of the file followed by the `words` of the command line, which therefore override the file.

        Positional arguments are the words before the first option. If there are any, the `arguments` of the file are
        ignored.
        """
        if self.command not in (None, command):
            raise ConfigError(f"{self.path} is for `synther {self.command}`, not for `synther {command}`")
        first = next((at for at, word in enumerate(words) if word.startswith("-")), len(words))
        return [*(words[:first] or self.arguments), *self._words(), *words[first:]]

    def _words(self) -> Iterator[str]:
        """Yield the options of the file as words of the command line."""
        for name, value in self.options.items():
            group, dot, last = name.rpartition(".")
            if isinstance(value, bool) and group != "agent":  # options of agents take True or False as a value
                yield f"--{name}" if value else f"--{group}{dot}no-{last}"
            elif isinstance(value, list):
                yield from (f"--{name}", *(_word(self.path, name, one) for one in value))
            else:  # as one word, because a value may start with a dash
                yield f"--{name}={_word(self.path, name, value)}"

    def check(self, command: str, known: Sequence[Option]) -> None:
        """Raise an error if a key is not an option of the command."""
        names = [option.name for option in known if not option.positional]
        for name in self.options:
            if name not in names:
                near = difflib.get_close_matches(name, names, 1) or [f"one of `synther {command} --help`"]
                raise ConfigError(f"{self.path}: `synther {command}` has no option {name!r}; expected {near[0]}")


@dataclass(frozen=True)
class Option:
    """An option or a positional argument of a command."""

    name: str
    path: tuple[str, ...]
    """Names of the nested fields that hold its value in the parsed options."""
    positional: bool
    is_flag: bool
    superfluous: str | None
    """A word that a config file can produce, but that the command line does not have because it sets the default.

    It is `--no-NAME` for a flag that is off by default, and `--NAME` for a flag that is on by default. None for all
    other options.
    """

    @property
    def spellings(self) -> set[str]:
        """The words that set this option: `--NAME`, and for flags `--no-NAME`."""
        group, dot, last = self.name.rpartition(".")
        return {f"--{self.name}", *([f"--{group}{dot}no-{last}"] if self.is_flag else [])}

    def value(self, parsed: Any) -> Value:
        """Return the value of this option in `parsed`, as a type that a TOML file can hold."""
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
    """Return the words of a command in which the options of the config file `name` are written out."""
    start = 2 if command[0] == "pixels" else 1  # each action of `synther pixels` has its own options
    found = ConfigFile.read(Path(name).expanduser())
    # --config is moved to the end, because positional arguments may follow its value.
    of_config = [word == "--config" or before == "--config" for before, word in pairwise(["", *command])]
    rest = [word for word, own in zip(command, of_config, strict=True) if not (own or word.startswith("--config="))]
    return [*rest[:start], *found.expand(" ".join(rest[:start]), rest[start:]), f"--config={name}"]


def options_of(kind: Any, prefix: str = "", path: tuple[str, ...] = ()) -> Iterator[Option]:
    """Yield the options of a dataclass from which tyro builds a command line."""
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
        kind = tyro.conf.Positional in notes, inner is bool, superfluous if is_one_flag else None
        yield Option(name, (*path, one.name), *kind)


def write(path: Path, command: str, parsed: Any, words: Sequence[str], known: Sequence[Option]) -> None:
    """Write a config file with the options that occur in `words`, and with their values in `parsed`."""
    if path.exists():
        raise ConfigError(f"{path} exists and is not replaced: choose another name for --write-config, or remove it")
    own = ("config", "write-config")
    arguments = [str(option.value(parsed)) for option in known if option.positional]
    given = [one for one in known if not one.positional and one.spellings & set(words) and one.name not in own]
    options = {option.name: option.value(parsed) for option in given}
    # Groups of options become tables, except if an option has the same name as the group.
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
    """Yield the values of nested tables with their full names, such as `fit.steps`."""
    for name, value in content.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _word(path: Path, name: str, value: Any) -> str:
    """Return a single value as text, or raise an error if it is a date, a list or another type."""
    if not isinstance(value, str | int | float):
        raise ConfigError(f"{path}: {name} must be text, a number, true, false or a list of these, got {value!r}")
    return str(value)


def _key(name: str) -> str:
    """Format a key, in quotes if TOML needs them."""
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else _toml(name)


def _toml(value: Value) -> str:
    """Format a value as TOML."""
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    # TOML writes text, numbers and booleans like JSON, except that it also escapes the character DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

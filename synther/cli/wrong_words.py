"""Errors about the words of a command, in one line that says what was expected, what was found and what to do.

tyro draws such errors as boxes, but passes each of them to a hook first. The hook here raises a `ConfigError` instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

import tyro

from synther.config_file import Option
from synther.errors import ConfigError


@contextmanager
def in_one_line(verb: str, known: Collection[Option], words: Sequence[str]) -> Iterator[None]:
    """Raise tyro's errors about `words`, the arguments of `synther VERB`, as a `ConfigError`."""
    errors = getattr(tyro, "_errors", None)  # private: a later tyro may not have it, and then draws its boxes
    if errors is None:
        yield
        return

    def hook(event: Any) -> None:
        if text := _text(event, known, words):
            raise ConfigError(f"{text} (see `synther {verb} --help`)")

    with errors.on_parse_error(hook):
        yield


def _text(event: Any, known: Collection[Option], words: Sequence[str]) -> str | None:
    """Return the message for an event of tyro, or None if its class is not one of these."""
    match type(event).__name__:
        case "UnrecognizedArgs":
            return _unknown_option(event.tokens, known) or _unexpected(event.tokens[0], words)
        case "MissingArgs":
            return _unknown_option(event.unrecognized_tokens, known) or _missing(event.missing_arguments, words)
        case "InvalidChoice":
            choices = [choice for choice in event.choices if choice != "None"]
            return f"{_name(event.argument)} must be {_one_of(choices)}, got {event.value!r}"
        case "BadValue":
            return f"{_name(event.argument)} needs a value"
        case "InstantiationFailure" if event.argument is None:
            return str(event.message)
        case "InstantiationFailure":  # several lines: one for each type that the value does not have
            found = event.message if "\n" not in event.message else f"expected {event.argument.lowered.metavar}"
            return f"{_name(event.argument)}: {found}"
    return None


def _unknown_option(tokens: Sequence[str], known: Collection[Option]) -> str | None:
    """Return the message for the first option among `tokens`, with similar options. None: there is no option."""
    name = next((token.partition("=")[0] for token in tokens if token.startswith("-")), None)
    if name is None:
        return None
    spelled = name.lower().replace("_", "-")
    options = [option for option in known if not option.positional]
    every = {spelling for option in options for spelling in option.spellings - {option.superfluous}}
    names = sorted(other for other in every if _last(other).startswith("no-") == _last(spelled).startswith("no-"))
    # The group may be wrong or missing: --steps instead of --fit.steps.
    near = [other for other in names if _last(other) == _last(spelled)] or get_close_matches(spelled, names, 1, 0.75)
    return f"unknown option {name}" + (f": did you mean {_one_of(near)}?" if near else "")


def _last(option: str) -> str:
    """Return the name of an option without dashes and group: `steps` of `--fit.steps`."""
    return option.lstrip("-").rpartition(".")[2]


def _unexpected(found: str, words: Sequence[str]) -> str:
    if found not in words:  # the value behind = of a flag
        flag = next((word for word in words if word.endswith(f"={found}")), found)
        return f"unexpected value in {flag}: flags take no value; in a config file, they are true or false"
    before = "".join(f" after {words[place - 1]}" for place in [words.index(found)] if place)
    return f"unexpected {found!r}{before}: remove it, or put a name that contains spaces in quotes"


def _missing(arguments: Sequence[Any], words: Sequence[str]) -> str:
    places = [_name(one.arg) for one in arguments if one.arg.is_positional()]
    options = [f"{_name(one.arg)} {one.arg.lowered.metavar}" for one in arguments if not one.arg.is_positional()]
    # An option with several values also takes the words that are meant for DATA.
    place = f"; write {places[0]} before all options" if places and words else ""
    place += (
        " (in a config file: arguments = [...])" if place and any(word.startswith("--config") for word in words) else ""
    )
    return f"missing {', '.join(places + options)}{place}"


def _name(argument: Any) -> str:
    """Return the name of an argument as the help shows it: `DATA` or `--out`."""
    return str(argument.lowered.metavar if argument.is_positional() else argument.lowered.name_or_flags[-1])


def _one_of(names: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))

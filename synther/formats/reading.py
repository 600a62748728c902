"""What every reader owes its caller: errors that name the file, and keys that name their field."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from synther.data.transitions import ENDS, EXTRA, FIELD_OF_KEY, FIELDS, Array, numbered, without_timeouts
from synther.errors import ConfigError, DataError, FormatError, MissingExtra


@contextmanager
def reading(source: str | os.PathLike[str], kind: str) -> Iterator[None]:
    """Turn whatever goes wrong inside into an error about `source`.

    Libraries answer a damaged file with nearly any exception (KeyError, zlib.error, RuntimeError, MemoryError for a
    shape that is garbage), so all are taken; the original stays attached as the cause.
    """
    try:
        yield
    except (MissingExtra, ConfigError):
        raise
    except DataError as error:
        raise DataError(f"{source}: {error}") from error
    except FormatError as error:
        raise FormatError(f"{source}: {error}") from error
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise FormatError(
            f"{source}: expected {kind}, but it cannot be read as one: {reason}. "
            "It may be truncated, damaged or of another kind: fetch or write it again"
        ) from error


Rename = Mapping[str, str | None]
"""What keys of a file are called here, such as {"my_obs": "observation"}. None leaves a key out."""


def keys_of_fields(keys: Iterable[str], kind: str, rename: Rename | None = None) -> dict[str, str]:
    """Field to the key that holds it. Extra columns are their own fields, such as `extra/discount`. Keys of D4RL's
    `infos` and `metadata` are left out, others must be known, or be renamed."""
    found: dict[str, str] = {}
    unknown: list[str] = []
    names, rename = list(keys), rename or {}
    absent = [key for key in rename if key not in names]
    if absent:
        raise ConfigError(f"rename: {kind} has no {_listed(absent)}; it has {_listed(names)}")
    for key in names:
        name = rename.get(key, key)
        if name is None or (key not in rename and key.startswith(("infos", "metadata"))):
            continue
        field = name if name.startswith(EXTRA) else FIELD_OF_KEY.get(name)
        if field is None:
            unknown.append(key)
        elif field in found:
            raise DataError(f"{field} is there twice, as {found[field]!r} and as {key!r}: remove one")
        else:
            found[field] = key
    expected = f"expected {', '.join(FIELDS)} or one of their usual plurals"
    if not any(field in FIELDS for field in found) and not any(map(numbered, unknown)):
        raise FormatError(f"{kind} without experience in it: {expected}, got {_listed(unknown) or 'nothing'}")
    if unknown:
        how = "read(path, rename={key: field}) renames keys"
        if any(map(numbered, unknown)):
            how = "columns of single numbers are joined by Transitions.of(frame), where frame is one of pandas"
        raise DataError(f"unknown key {_listed(unknown)}: {expected}; {how}")
    missing = [field for field in ("observation", "action", "reward") if field not in found]
    if missing:
        raise DataError(f"missing {', '.join(missing)}: got {', '.join(found.values())}")
    return found


def _listed(keys: list[str]) -> str:
    return ", ".join(repr(key) for key in keys[:6]) + (", ..." if len(keys) > 6 else "")


def settled(fields: dict[str, Array], keys: Mapping[str, str], rename: Rename | None = None) -> dict[str, Array]:
    """`fields` with terminals that are none of the timeouts, where the file, or `rename`, called them `done`."""
    called = keys.get("terminal", "")
    if (rename or {}).get(called, called) in ENDS and "timeout" in fields:
        return {**fields, "terminal": without_timeouts(fields["terminal"], fields["timeout"])}
    return fields

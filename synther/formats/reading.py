"""Shared by all readers: errors that name the file, and the mapping from keys of a file to fields of rows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from synther.data.transitions import ENDS, EXTRA, FIELD_OF_KEY, FIELDS, Array, numbered, without_timeouts
from synther.errors import ConfigError, DataError, FormatError, MissingExtra


@contextmanager
def reading(source: str | os.PathLike[str], kind: str) -> Iterator[None]:
    """Turn every exception inside the block into a `DataError` or `FormatError` about `source`.

    `kind` says what the file should be. Libraries raise nearly any exception for a damaged file (KeyError, zlib.error,
    RuntimeError, or MemoryError for a wrong shape), so all exceptions are caught. The original is kept as the cause.
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
            f"{source}: expected {kind}, but it cannot be read: {reason}. "
            "It may be truncated, damaged or in another format: download or write it again"
        ) from error


Rename = Mapping[str, str | None]
"""Maps keys of a file to fields, as in {"my_obs": "observation"}. None leaves a key out."""


def keys_of_fields(keys: Iterable[str], kind: str, rename: Rename | None = None) -> dict[str, str]:
    """Return a dict from each field to the key of the file that holds it.

    Extra columns such as `extra/discount` are fields of the same name. Keys that start with D4RL's `infos` or
    `metadata` are left out. All other keys must be known or renamed. `kind` names the file type in errors.
    """
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
            raise DataError(f"two keys hold {field}, {found[field]!r} and {key!r}: remove one")
        else:
            found[field] = key
    expected = f"expected {', '.join(FIELDS)} or one of their usual plurals"
    if not any(field in FIELDS for field in found) and not any(map(numbered, unknown)):
        raise FormatError(f"{kind} without the fields of rows: {expected}, got {_listed(unknown) or 'nothing'}")
    if unknown:
        how = "read(path, rename={key: field}) renames a key, and {key: None} leaves it out"
        if any(map(numbered, unknown)):
            how = "to join columns of single numbers, use Transitions.of(dict_of_arrays)"
        if "step_type" in unknown:  # as in V-D4RL
            how = "if the file holds frames, use `synther pixels train`, or read it with synther.pixels.files"
        raise DataError(f"unknown key {_listed(unknown)}: {expected}; {how}")
    missing = [field for field in ("observation", "action", "reward") if field not in found]
    if missing:
        raise DataError(f"missing {', '.join(missing)}: got {', '.join(found.values())}")
    return found


def _listed(keys: list[str]) -> str:
    return ", ".join(repr(key) for key in keys[:6]) + (", ..." if len(keys) > 6 else "")


def separate_timeouts(
    fields: dict[str, Array], keys: Mapping[str, str], rename: Rename | None = None
) -> dict[str, Array]:
    """Return `fields` with timeouts removed from the terminals, if the terminals were stored as `done`.

    `done` (in the file, or in `rename`) marks every end of an episode, also one by a time limit.
    """
    called = keys.get("terminal", "")
    if (rename or {}).get(called, called) in ENDS and "timeout" in fields:
        return {**fields, "terminal": without_timeouts(fields["terminal"], fields["timeout"])}
    return fields

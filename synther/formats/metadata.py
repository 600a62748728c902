"""Metadata of rows in files: spaces and environment, stored as one line of JSON."""

from __future__ import annotations

import json
from typing import Any, NotRequired, TypedDict

from synther.data import spaces
from synther.data.transitions import Transitions
from synther.errors import FormatError
from synther.schema import parse

KEY = "synther_metadata"
"""Name under which all formats store the metadata."""


def dump(rows: Transitions) -> str:
    """Return the metadata of `rows` as JSON."""
    known = {
        "action_space": spaces.to_json(rows.action_space),
        "observation_space": spaces.to_json(rows.observation_space),
        "env_id": rows.env_id,
        "env_options": rows.env_options,
    }
    return json.dumps(known, default=lambda scalar: scalar.item())  # bounds may be NumPy scalars


def load(text: Any) -> dict[str, Any]:
    """Parse metadata, and return keyword arguments of `Transitions`. None (a file without metadata) gives none."""
    if text is None:
        return {}
    if not isinstance(text, str | bytes):
        raise FormatError(f"{KEY}: expected text, found {type(text).__name__}")
    known = parse(text, _Known, KEY)
    return {
        "action_space": spaces.from_json(known["action_space"]),
        "observation_space": spaces.from_json(known["observation_space"]),
        "env_id": known["env_id"],
        "env_options": known.get("env_options"),  # missing in files of early versions
    }


class _Known(TypedDict):
    """The type of the stored JSON."""

    action_space: Any
    observation_space: Any
    env_id: str | None
    env_options: NotRequired[dict[str, Any] | None]

"""What a file says of its rows besides the rows: their spaces and their environment, as one line of JSON."""

from __future__ import annotations

import json
from typing import Any

from synther.data import spaces
from synther.data.transitions import Transitions
from synther.errors import DataError

KEY = "synther_metadata"


def dump(rows: Transitions) -> str:
    known = {
        "action_space": spaces.to_json(rows.action_space),
        "observation_space": spaces.to_json(rows.observation_space),
        "env_id": rows.env_id,
        "env_options": rows.env_options,
    }
    return json.dumps(known, default=lambda scalar: scalar.item())  # bounds may be NumPy scalars


def load(text: str | bytes | None) -> dict[str, Any]:
    """Keyword arguments of Transitions, none where a file says nothing."""
    if text is None:
        return {}
    try:
        known = json.loads(text)
        return {
            "action_space": spaces.from_json(known["action_space"]),
            "observation_space": spaces.from_json(known["observation_space"]),
            "env_id": None if known["env_id"] is None else str(known["env_id"]),
            "env_options": known.get("env_options"),  # which earlier files have not
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{KEY} is damaged ({type(error).__name__}: {error}): remove it or write the file anew"
        ) from error

"""Finds discrete spaces that a registered environment declares, for rows that have no space of their own."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from synther.data import gym_spaces, spaces
from synther.data.spaces import Space
from synther.data.transitions import RowSource, Transitions
from synther.errors import DataError

_log = logging.getLogger(__name__)

CHUNK = 1 << 16
"""Rows that are checked at a time."""


def discrete_spaces(rows: RowSource, first: Transitions, whole: Mapping[str, bool]) -> dict[str, Space | None]:
    """Return the spaces of observations and actions: those stored with the rows, or else the discrete ones that their
    environment declares.

    `first` are some of the rows, with their spaces and environment id. `whole` says which fields hold only whole
    numbers. The environment is created only for such fields, and only if Gymnasium knows its id without importing a
    module. Its options must be numbers, because text could name code or a file. A declared space that any row
    contradicts is ignored.
    """
    found = {"observation": first.observation_space, "action": first.action_space}
    missing = [field for field, space in found.items() if space is None and whole[field]]
    options = first.env_options or {}
    are_numbers = all(isinstance(value, (bool, int, float)) for value in options.values())
    if first.env_id is not None and missing and are_numbers:
        declared = _declared(str(first.env_id), tuple(sorted(options.items())))
        for field in missing:
            found[field] = _fitting(declared.get(field), rows, field)
    return found


def _fitting(space: Any, rows: RowSource, field: str) -> Space | None:
    """Return a discrete Gymnasium `space` as integers or as one-hot vectors, whichever the rows hold. Return None if
    the space is not discrete, or if the rows do not fit it."""
    if type(space).__name__ not in ("Discrete", "MultiDiscrete"):
        return None
    names = ("observation", "next_observation") if field == "observation" else (field,)
    for form in (gym_spaces.action_space(space), gym_spaces.observation_space(space)):
        try:
            for chunk in rows.chunks(CHUNK):
                for name in names:
                    spaces.check(form, getattr(chunk, name).reshape(len(chunk), -1), name)
        except DataError:
            continue
        return form
    return None


@lru_cache(maxsize=64)
def _declared(env_id: str, options: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """Return the Gymnasium spaces of observations and actions that the environment declares. The dict is empty if the
    environment is not registered or cannot be created here."""
    try:
        import gymnasium
    except ImportError:
        return {}
    if env_id not in gymnasium.registry:
        return {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # recorded data belongs to its version for ever
            env = gymnasium.make(env_id, disable_env_checker=True, **dict(options))
    except Exception as error:  # an environment may raise anything, and its spaces are not essential
        _log.debug("cannot create %s to read its spaces: %s", env_id, error)
        return {}
    declared = {"observation": env.observation_space, "action": env.action_space}
    env.close()
    return declared

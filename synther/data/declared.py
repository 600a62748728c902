"""Discrete spaces that a registered environment declares, for rows which do not say so themselves."""

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


def discrete_spaces(rows: RowSource, first: Transitions, whole: Mapping[str, bool]) -> dict[str, Space | None]:
    """The spaces of observations and actions that `rows` carry, or that their environment declares as discrete.

    `first` are some of the rows, with what all of them carry. The environment is asked only about fields that hold
    `whole` numbers, and only if Gymnasium knows its id without importing a module named in it. Its options must be
    numbers: text could name code or a file. A declaration that any row contradicts does not count.
    """
    found = {"observation": first.observation_space, "action": first.action_space}
    asked = [field for field, space in found.items() if space is None and whole[field]]
    options = first.env_options or {}
    if first.env_id is not None and asked and all(isinstance(value, (bool, int, float)) for value in options.values()):
        declared = _declared(str(first.env_id), tuple(sorted(options.items())))
        for field in asked:
            found[field] = _fitting(declared.get(field), rows, field)
    return found


def _fitting(space: Any, rows: RowSource, field: str) -> Space | None:
    """Whole numbers or one-hot vectors of a discrete `space`, whichever the rows hold; None for any other."""
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
    """The environment's own spaces; none where it is not registered or cannot be made here."""
    try:
        import gymnasium
    except ImportError:
        return {}
    if env_id not in gymnasium.registry:
        return {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # recorded data cannot move to a newer version
            env = gymnasium.make(env_id, disable_env_checker=True, **dict(options))
    except Exception as error:  # whatever somebody's environment raises: its rows can do without it
        _log.debug("%s cannot be asked for its spaces: %s", env_id, error)
        return {}
    found = {"observation": env.observation_space, "action": env.action_space}
    env.close()
    return found

"""Discrete spaces that a registered environment declares, for rows which do not say so themselves."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from synther.data import spaces
from synther.data.formats import gym_spaces
from synther.data.spaces import Space
from synther.data.transitions import Transitions
from synther.errors import SyntherError

_log = logging.getLogger(__name__)


def discrete_spaces(rows: Transitions, whole: Mapping[str, bool]) -> tuple[Space | None, Space | None]:
    """The spaces of observations and actions that `rows` carry, or that their environment declares as discrete.

    The environment is asked only about the fields that hold `whole` numbers, and only if Gymnasium knows its id without
    importing a module named in it. A declaration that the rows contradict does not count.
    """
    found = {"observation": rows.observation_space, "action": rows.action_space}
    asked = [field for field, space in found.items() if space is None and whole[field]]
    if rows.env_id is not None and asked:
        declared = _declared(str(rows.env_id), tuple(sorted((rows.env_options or {}).items())))
        for field in asked:
            found[field] = _fitting(declared.get(field), getattr(rows, field).reshape(len(rows), -1))
    return found["observation"], found["action"]


def _fitting(space: Any, values: Any) -> Space | None:
    """Whole numbers or one-hot vectors of a discrete `space`, whichever the `values` are; None for any other."""
    if space is None or type(space).__name__ not in ("Discrete", "MultiDiscrete"):
        return None
    for form in (gym_spaces.action_space, gym_spaces.observation_space):
        try:
            spaces.check(form(space), values, "declared")
        except SyntherError:
            continue
        return form(space)
    return None


@lru_cache(maxsize=64)
def _declared(env_id: str, options: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """The environment's own spaces; none where it cannot be made here, or its options could name code or files."""
    try:
        import gymnasium
    except ImportError:
        return {}
    if env_id not in gymnasium.registry or not all(isinstance(value, (bool, int, float)) for _, value in options):
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

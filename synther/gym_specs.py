"""Finds the options with which a Gymnasium environment was created, and creates a spec from an id and options.

Only options that differ from the registered environment are stored.
"""

from __future__ import annotations

import copy
import json
import logging
from typing import Any

_log = logging.getLogger(__name__)

_LIMIT = "max_episode_steps"


def options_of(spec: Any) -> dict[str, Any] | None:
    """Return the keyword arguments of `gymnasium.make` that recreate the environment, besides its id. Return None if
    none are needed."""
    from gymnasium.envs.registration import registry

    registered = registry.get(spec.id)
    own = {} if registered is None else registered.kwargs
    options = {
        name: value for name, value in spec.kwargs.items() if name != "render_mode" and not _same(own.get(name), value)
    }
    limit = spec.max_episode_steps
    if limit is not None and registered is not None and limit != registered.max_episode_steps:
        options[_LIMIT] = limit
    try:
        return json.loads(json.dumps(options)) or None
    except (TypeError, ValueError):
        _log.warning("%s was created with options that cannot be saved as JSON: they are ignored", spec.id)
        return None


def spec_of(env_id: str, options: dict[str, Any] | None) -> Any:
    """Return the spec of a registered environment with these options. Gymnasium raises an error for an unknown id.

    The id may come from a file. So for an id such as `module:Env-v0`, the module is not imported.
    """
    import gymnasium

    spec = copy.deepcopy(gymnasium.spec(env_id.rpartition(":")[2]))
    for name, value in (options or {}).items():
        if name == _LIMIT:
            spec.max_episode_steps = value
        else:
            spec.kwargs[name] = value
    return spec


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except ValueError:  # such as arrays
        return False

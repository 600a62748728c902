"""How an environment of Gymnasium was made, beside its id: the options that it differs by from a registered one."""

from __future__ import annotations

import copy
import json
import logging
from typing import Any

_log = logging.getLogger(__name__)

_LIMIT = "max_episode_steps"


def options_of(spec: Any) -> dict[str, Any] | None:
    """What `gymnasium.make` has to be told beside the id, for the same environment; None where that is nothing."""
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
        _log.warning("%s was made with options that no file can hold: they are left aside", spec.id)
        return None


def spec_of(env_id: str, options: dict[str, Any] | None) -> Any:
    """The other way round, of a registered environment; else Gymnasium raises.

    The id may come from a file, so that the module of `module:Env-v0` is not imported here.
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
    except ValueError:  # arrays
        return False

"""Data sets rolled out anew from recorded policies, in the way D4RL's were.

Call what comes of D4RL's own policies "regenerated with D4RL's policies", never "D4RL": the steps are others.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from synther.data.transitions import Transitions
from synther.envs.episodes import action_box
from synther.envs.making import opened
from synther.envs.policies import Policy, UniformPolicy, policies_of, read_policy
from synther.envs.recording import record
from synther.errors import ConfigError, DataError
from synther.progress import Progress

Array = NDArray[Any]

ENV_IDS = {"hopper": "Hopper-v4", "walker2d": "Walker2d-v4", "halfcheetah": "HalfCheetah-v4"}
"""The simulator for each name in a policy file. D4RL's v2 does not run any more; v4 is its heir, with its rewards."""

CHANCE = "random"
"""The level that needs no policy."""


def regenerated(
    policies: str | os.PathLike[str] | None,
    env: str,
    level: str,
    rows: int = 1_000_000,
    *,
    seed: int = 0,
    env_id: str | None = None,
    options: Mapping[str, Any] | None = None,
    processes: int | None = None,
    progress: Progress | bool = False,
) -> Transitions:
    """`rows` transitions of whole episodes of the policy `env`/`level`, drawing its actions as it did in training.

    `level` is one of the policy file, "random" for uniform actions, or several joined by dashes for equal shares, in
    that order: "medium-expert" is half medium, half expert. The last episode of each share is cut, as a time-out, where
    its rows are full. `env_id` is the simulator, v4 unless said, and `options` go to `gymnasium.make`. Rows are
    float32, as D4RL's are; they depend on the seed, and not on how many `processes` (None: one a core) make them.
    """
    parts = parts_of(policies, env, level)
    if rows < len(parts):
        raise ConfigError(f"rows must be at least {len(parts)}, one for each part of {level!r}, got {rows}")
    simulator = env_id or ENV_IDS.get(env)
    if simulator is None:
        raise ConfigError(f"which simulator {env!r} means is not known: expected {', '.join(ENV_IDS)}, or give env_id")
    with opened(simulator, **options or {}) as one:
        low, high = action_box(one, simulator)
    actors = [_policy(policies, env, part, low, high) for part in parts]
    how: dict[str, Any] = {"options": options, "seed": seed, "processes": processes, "progress": progress}
    return record(simulator, actors, rows, name=f"{env} {level}", **how)


def parts_of(policies: str | os.PathLike[str] | None, env: str, level: str) -> list[str]:
    """The levels whose policies make up `level`: itself, where the file holds it, else what the dashes join."""
    whole = policies is not None and f"{env}/{level}" in policies_of(policies)
    return [level] if whole else level.split("-")


def _policy(policies: str | os.PathLike[str] | None, env: str, level: str, low: Array, high: Array) -> Policy:
    if level == CHANCE:
        return UniformPolicy(low, high)
    if policies is None:
        raise ConfigError(f"{env} {level} needs a file of policies: give one, or ask for {CHANCE!r}")
    if not ((low == -1).all() and (high == 1).all()):
        raise DataError(f"recorded policies act in [-1, 1]: {env} takes actions from {low} to {high}")
    return read_policy(policies, env, level)

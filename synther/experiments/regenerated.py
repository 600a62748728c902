"""Data sets rolled out anew from recorded policies, in the way D4RL's were.

Call what comes of D4RL's own policies "regenerated with D4RL's policies", never "D4RL": the steps are others.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import count, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.data.formats import gym_spaces
from synther.data.transitions import FIELDS, Transitions
from synther.envs.episodes import LONGEST, SIDE_BY_SIDE, Key, Step, action_box, held, play
from synther.envs.making import opened
from synther.envs.policies import Policy, UniformPolicy, policies_of, read_policy
from synther.envs.workers import Workers, answer, cores
from synther.errors import ConfigError, DataError
from synther.progress import Phase, Progress, resolve

Array = NDArray[Any]
Columns = dict[str, Array]

ENV_IDS = {"hopper": "Hopper-v4", "walker2d": "Walker2d-v4", "halfcheetah": "HalfCheetah-v4"}
"""The simulator for each name in a policy file. D4RL's v2 does not run any more; v4 is its heir, with its rewards."""

CHANCE = "random"
"""The level that needs no policy."""

_STREAM = 2
"""Sets these episodes apart from those of evaluations."""

_AHEAD = 2
"""Pieces of work a process that may be under way, so that none of them waits for the one that is asked for first."""


def regenerated(
    policies: str | os.PathLike[str] | None,
    env: str,
    level: str,
    rows: int = 1_000_000,
    *,
    seed: int = 0,
    env_id: str | None = None,
    processes: int | None = None,
    progress: Progress | bool = False,
) -> Transitions:
    """`rows` transitions of whole episodes of the policy `env`/`level`, drawing its actions as it did in training.

    `level` is one of the policy file, "random" for uniform actions, or several joined by dashes for equal shares, in
    that order: "medium-expert" is half medium, half expert. The last episode of each share is cut, as a time-out, where
    its rows are full. `env_id` is the simulator, v4 unless said; rows are float32, as D4RL's are. They depend on the
    seed, and not on how many `processes` (None: one a core) make them.
    """
    parts = _parts(policies, env, level)
    if rows < len(parts):
        raise ConfigError(f"rows must be at least {len(parts)}, one for each part of {level!r}, got {rows}")
    if seed < 0:
        raise ConfigError(f"the seed must be 0 or more, got {seed}")
    name = env_id or ENV_IDS.get(env)
    if name is None:
        raise ConfigError(f"which simulator {env!r} means is not known: expected {', '.join(ENV_IDS)}, or give env_id")
    with opened(name) as one:
        low, high = action_box(one, name)
        limit = getattr(one.spec, "max_episode_steps", None) or LONGEST
        spaces = gym_spaces.action_space(one.action_space), gym_spaces.observation_space(one.observation_space)
    actors = [_policy(policies, env, part, low, high) for part in parts]
    bounds = pairwise(rows * number // len(parts) for number in range(len(parts) + 1))
    shares = []
    with (
        Workers(cores() if processes is None else processes) as workers,
        resolve(progress).phase(f"roll out {env} {level}", rows) as phase,
    ):
        for number, (actor, (start, end)) in enumerate(zip(actors, bounds, strict=True)):
            share = _Share(name, actor, (_STREAM, seed, number), limit)
            shares.append(share.rows(end - start, workers, phase))
    made = Transitions.concatenate(shares)
    return replace(made, action_space=spaces[0], observation_space=spaces[1], env_id=name)


def _parts(policies: str | os.PathLike[str] | None, env: str, level: str) -> list[str]:
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


@dataclass(frozen=True)
class _Share:
    """What one policy adds: its episodes in the order of their numbers, whoever plays them and when."""

    env_id: str
    policy: Policy
    key: Key
    limit: int
    """Steps after which an episode is cut."""

    def rows(self, wanted: int, workers: Workers, phase: Phase) -> Transitions:
        pieces: list[Columns] = []
        begun: deque[Future[Columns]] = deque()
        groups = count()
        have = 0
        while have < wanted:
            typical = have / len(pieces) if pieces else SIDE_BY_SIDE * self.limit
            while not begun or (len(begun) < _AHEAD * workers.count and have + len(begun) * typical < wanted):
                begun.append(workers.submit(_recorded, self.env_id, self.policy, self._keys(next(groups))))
            piece = answer(begun.popleft())
            pieces.append({name: column[: wanted - have] for name, column in piece.items()})
            phase.advance(len(pieces[-1]["reward"]))
            have += len(pieces[-1]["reward"])
        for future in begun:
            future.cancel()
        columns: dict[str, Any] = {name: np.concatenate([piece[name] for piece in pieces]) for name in FIELDS}
        columns["timeout"][-1] = not columns["terminal"][-1]
        return Transitions(**columns)

    def _keys(self, group: int) -> list[Key]:
        return [(*self.key, SIDE_BY_SIDE * group + slot) for slot in range(SIDE_BY_SIDE)]


def _recorded(env_id: str, policy: Policy, keys: list[Key]) -> Columns:
    """In a worker: the rows of one episode for each key, one episode after another."""
    episodes: list[list[Step]] = [[] for _ in keys]
    for episode, step in play(held(env_id, "{}", len(keys)), env_id, policy, keys):
        episodes[episode].append(step)
    columns = zip(*(step for episode in episodes for step in episode), strict=True)
    types = (np.float32, np.float32, np.float32, np.float32, bool, bool)
    return {name: np.array(values, kind) for name, values, kind in zip(FIELDS, columns, types, strict=True)}

"""Record rows of whole episodes with one or several policies, in parallel processes."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.cores import cores
from synther.data import gym_spaces
from synther.data.transitions import FIELDS, Transitions
from synther.envs.episodes import LONGEST, RECORDINGS, SIDE_BY_SIDE, Key, Step, action_bounds, check_fits, held, play
from synther.envs.making import opened, time_limit, warn_of_images
from synther.envs.policies import Policy, UniformPolicy, policies_of, read_policy
from synther.envs.workers import AHEAD, Workers, answer
from synther.errors import ConfigError, DataError
from synther.plain import whole_seed
from synther.progress import Phase, Progress, resolve

Array = NDArray[Any]
Columns = dict[str, Array]

CHANCE = "random"
"""Name of the policy with uniformly random actions, which needs no file."""


def record(
    env_id: str,
    policies: Sequence[Policy],
    rows: int,
    *,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    processes: int | None = None,
    name: str = "",
    progress: Progress | bool = False,
) -> Transitions:
    """Record `rows` transitions. Each policy plays an equal share of them, one share after the other.

    The last episode of each share is truncated when the share is complete. `options` are passed to `gymnasium.make`.
    Values are float32, discrete actions are int64. Rows depend on the seed, but not on the number of `processes` (None:
    one per core). `name` is shown with the progress.
    """
    if rows < len(policies):
        raise ConfigError(f"rows must be at least {len(policies)}, one for each policy, got {rows}")
    whole_seed(seed)
    options_json = json.dumps(dict(options or {}))
    with opened(env_id, **json.loads(options_json)) as one:
        warn_of_images(one, env_id)
        limit = time_limit(one) or LONGEST
        spaces = gym_spaces.action_space(one.action_space), gym_spaces.observation_space(one.observation_space)
    bounds = pairwise(rows * number // len(policies) for number in range(len(policies) + 1))
    shares = []
    with (
        Workers(cores() if processes is None else processes) as workers,
        resolve(progress).phase(f"roll out {name or env_id}", rows) as phase,
    ):
        for number, (policy, (start, end)) in enumerate(zip(policies, bounds, strict=True)):
            share = _Share(env_id, options_json, policy, (RECORDINGS, seed, number), limit)
            shares.append(share.rows(end - start, workers, phase))
    joined = Transitions.concatenate(shares)
    known = {"action_space": spaces[0], "observation_space": spaces[1], "env_options": json.loads(options_json)}
    return replace(joined, **known, env_id=env_id)


def actors_of(
    policies: Path | None, env: str, level: str, env_id: str, options: Mapping[str, Any] | None = None
) -> list[Policy]:
    """Return the policies `env`/`level` of a file. They draw their actions as they did in training.

    `level` is a level in the file, "random" for uniform actions, or several of these joined by dashes for equal shares:
    "medium-expert" is half medium, then half expert. `options` are passed to `gymnasium.make`.
    """
    actors: list[Policy] = []
    for part in parts_of(policies, env, level):
        if part == CHANCE:
            actors.append(uniform(env_id, options))
            continue
        assert policies is not None  # only random actions need no file
        actor = read_policy(policies, env, part)
        name, actions = f"{env}/{part} of {policies}", len(actor.layers[-1][1]) // 2
        low, high = check_fits(env_id, name, actor.inputs, actions, options)
        if not ((low == -1).all() and (high == 1).all()):
            raise DataError(f"recorded policies act in [-1, 1]: {env_id} takes actions from {low} to {high}")
        actors.append(actor)
    return actors


def uniform(env_id: str, options: Mapping[str, Any] | None) -> UniformPolicy:
    """Return a policy with uniformly random actions for an environment."""
    with opened(env_id, **options or {}) as env:
        return UniformPolicy(*action_bounds(env, env_id))


def parts_of(policies: Path | None, env: str, level: str) -> list[str]:
    """Split `level` at its dashes. If the file has a policy with the name `level`, it is not split."""
    whole = policies is not None and f"{env}/{level}" in policies_of(policies)
    return [level] if whole else level.split("-")


@dataclass(frozen=True)
class _Share:
    """The share of one policy. Its episodes are ordered by their number and not by the process that plays them."""

    env_id: str
    options: str
    """Arguments of `gymnasium.make`, as JSON."""
    policy: Policy
    key: Key
    """First numbers of the key of each episode."""
    limit: int
    """Number of steps after which an episode is truncated."""

    def rows(self, wanted: int, workers: Workers, phase: Phase) -> Transitions:
        """Record `wanted` rows. The last row ends an episode."""
        pieces: list[Columns] = []
        begun: deque[Future[Columns]] = deque()
        groups = count()
        have = 0
        while have < wanted:
            typical = have / len(pieces) if pieces else SIDE_BY_SIDE * self.limit
            while not begun or (len(begun) < AHEAD * workers.count and have + len(begun) * typical < wanted):
                keys = self._keys(next(groups))
                begun.append(workers.submit(_recorded, self.env_id, self.options, self.policy, keys, wanted))
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
        """Return the keys of the episodes that are played together in one job."""
        return [(*self.key, SIDE_BY_SIDE * group + slot) for slot in range(SIDE_BY_SIDE)]


def _recorded(env_id: str, options: str, policy: Policy, keys: list[Key], most: int) -> Columns:
    """Play one episode for each key and return the rows of all episodes, one after the other. Runs in a worker.

    The worker has its own copy of the policy. An episode stops early when it has `most` rows.
    """
    episodes: list[list[Step]] = [[] for _ in keys]
    for episode, step in play(held(env_id, options, len(keys)), env_id, policy, keys, most):
        episodes[episode].append(step)
    columns = list(zip(*(step for episode in episodes for step in episode), strict=True))
    is_whole = np.asarray(columns[FIELDS.index("action")][0]).dtype.kind in "iu"
    types = (np.float32, np.int64 if is_whole else np.float32, np.float32, np.float32, bool, bool)
    return {name: np.array(values, kind) for name, values, kind in zip(FIELDS, columns, types, strict=True)}

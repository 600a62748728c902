"""Rows as a data set: rolled out with a policy, or the real buffer of an online run."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther import formats
from synther.data.episodes import returns, whole_returns
from synther.data.transitions import Transitions
from synther.envs.episodes import check_fits
from synther.envs.making import Trusted, opened, time_limit
from synther.envs.policies import Explorer, Policy, UniformPolicy, frozen, policies_of
from synther.envs.recording import CHANCE, actors_of, record, uniform
from synther.envs.scores import reference
from synther.errors import ConfigError, DataError, FormatError, SyntherError
from synther.folder import read_object
from synther.progress import Progress

log = logging.getLogger(__name__)

Array = NDArray[Any]

AGENT, _ARCHIVE = ".safetensors", ".npz"


def roll_out(
    env_id: str,
    policy: str | Sequence[str],
    steps: int,
    *,
    member: int | None = None,
    noise: float | None = None,
    stochastic: bool = False,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    processes: int | None = None,
    progress: Progress | bool = False,
) -> Transitions:
    """`steps` rows of whole episodes; the last episode is cut, as a timeout, where the rows are full.

    `policy` is "random" for uniform actions, "FILE.npz:ENV/LEVEL" for a stochastic one of an archive, or an agent's
    file (.safetensors), whose `member` (None: the first) acts as `players` says. Of several, each has an equal
    share of the rows, one after the other. `options` are for `gymnasium.make`. Rows depend on the seed, but not on the
    number of `processes` (None: one per core).
    """
    env_id, policies = Trusted(env_id), [policy] if isinstance(policy, str) else list(policy)
    log.info("recording %s steps of %s with the policy %s", f"{steps:,}", env_id, ", ".join(policies))
    actors = players(env_id, policies, member, noise, stochastic, options)
    return record(env_id, actors, steps, options=options, seed=seed, processes=processes, progress=progress)


def _archived(policy: str) -> tuple[Path, str, str]:
    """The file, and the names of body and level in it."""
    file, _, name = policy.rpartition(":")
    env, _, level = name.partition("/")
    if file.endswith(_ARCHIVE) and env and level:
        return Path(file).expanduser(), env, level
    if policy.endswith(_ARCHIVE):
        known = ", ".join(policies_of(Path(policy).expanduser())) or "none"
        raise ConfigError(f"{policy} holds several policies ({known}): expected --policy {policy}:ENV/LEVEL")
    hint = f"; the agents of a run are in {Path(policy) / 'checkpoint.safetensors'}" if Path(policy).is_dir() else ""
    raise ConfigError(f"--policy must be {CHANCE}, FILE.npz:ENV/LEVEL or AGENT{AGENT}, got {policy!r}{hint}")


def players(
    env_id: str,
    policies: Sequence[str],
    member: int | None,
    noise: float | None,
    stochastic: bool,
    options: Mapping[str, Any] | None = None,
    box: tuple[Array, Array] | None = None,
) -> list[Policy]:
    """Who acts: uniform random actions for "random", those of an archive, or the `member` of an agent's file.

    Agents act deterministically, or, if `stochastic`, draw their actions as in training; `noise` is added to them.
    `box` are the bounds of the actions in environments that are not Gymnasium's. Archives have no policies for those.
    """
    if (member, noise, stochastic) != (None, None, False) and not any(name.endswith(AGENT) for name in policies):
        told = ", ".join(policies)
        raise ConfigError(f"--member, --noise and --stochastic are for an agent's file ({AGENT}), the policy is {told}")
    if noise is not None and not 0 <= noise < np.inf:
        raise ConfigError(f"the noise must be a finite number, 0 or more, got {noise}")
    found: list[Policy] = []
    for policy in policies:
        if policy.endswith(AGENT):
            found.append(_agent(env_id, Path(policy).expanduser(), member or 0, noise or 0.0, stochastic, options))
        elif policy == CHANCE:
            found.append(uniform(env_id, options) if box is None else UniformPolicy(*box))
        elif box is not None:
            raise ConfigError(f"expected {CHANCE} or AGENT{AGENT} as --policy for {env_id}, got {policy!r}")
        else:
            found += actors_of(*_archived(policy), env_id, options)
    return found


def _agent(
    env_id: str, path: Path, member: int, noise: float, stochastic: bool, options: Mapping[str, Any] | None
) -> Policy:
    from synther.agents.policy import load_policy

    try:
        members = frozen(load_policy(path), stochastic=stochastic)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if not 0 <= member < len(members):
        raise ConfigError(f"{path} has {len(members)} members, counted from 0: there is no member {member}")
    own = members[member]
    low, high = check_fits(env_id, str(path), own.inputs, len(own.low), options)
    if (own.low < low.astype(np.float32)).any() or (own.high > high.astype(np.float32)).any():
        raise DataError(f"{path} acts from {own.low} to {own.high}: {env_id} takes actions from {low} to {high}")
    return Explorer(own, own.low, own.high, noise) if noise else own


def buffer_of(run: Path) -> Transitions:
    """All real rows of an online run, seed by seed."""
    about = read_object(run / "run.json") if (run / "run.json").exists() else {}
    if "learning_starts" not in about:
        raise FormatError(f"{run}: expected an environment, or a folder that `synther online` has written")
    if about.get("kind") == "online_pixels":
        raise FormatError(f"{run} is a run of pixel agents: its frames are a data set each, {run}/frames/seed-0 first")
    replay = run / "replay.npz"
    if not replay.exists():
        raise FormatError(f"{run} has no replay.npz yet: run the same `synther online` command again until it is done")
    rows, steps = formats.read(replay), about["steps"]
    result = run / "result.json"
    if not result.exists() or read_object(result).get("env_steps", 0) != steps:
        log.warning("%s is not finished: these are the rows so far, of %s steps per seed", run, f"{steps:,}")
    return rows


@dataclass(frozen=True)
class Summary:
    """Summary of a data set."""

    env_id: str | None
    rows: int
    """Of frames: decisions."""
    episodes: int
    whole: int
    """Episodes that terminated or reached the time limit."""
    mean_return: float | None = None
    std: float | None = None
    """Over whole episodes, if there are any."""
    score: float | None = None
    """D4RL's normalised score of the mean return, if the environment has one."""

    @classmethod
    def of(cls, rows: Transitions) -> Summary:
        whole = whole_returns(rows, _time_limit(rows))
        return cls.over(whole, len(returns(rows)), len(rows), rows.env_id, rows.env_options)

    @classmethod
    def over(
        cls, whole: Array, episodes: int, rows: int, env_id: str | None, options: Mapping[str, Any] | None = None
    ) -> Summary:
        """From the returns of the whole episodes."""
        if not len(whole):
            return cls(env_id, rows, episodes, 0)
        mean, known = float(whole.mean()), reference(env_id or "", options)
        score = None if known is None else float(known.score(mean))
        return cls(env_id, rows, episodes, len(whole), mean, float(whole.std()), score)


def _time_limit(rows: Transitions) -> int | None:
    """In steps; None if the environment has none or cannot be made here."""
    if rows.env_id is not None:
        with suppress(SyntherError), opened(rows.env_id, **rows.env_options or {}) as env:
            return time_limit(env)
    return None

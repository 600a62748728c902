"""Create data sets of rows: rolled out with a policy, or taken from the buffer of an online run."""

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
"""Suffixes of the files of agents, and of archives with several policies."""


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
    """Roll out policies and return `steps` rows of whole episodes. The last episode is cut and marked as a timeout.

    `policy` is "random" for uniform actions, "FILE.npz:ENV/LEVEL" for a stochastic policy of an archive, or an agent's
    file (.safetensors). `member` selects the member of the agent (None: the first). For `noise` and `stochastic` see
    `players`. Several policies get equal shares of the rows, one share after the other. `options` are passed to
    `gymnasium.make`. Rows depend on the seed, but not on the number of `processes` (None: one per core).
    """
    env_id, policies = Trusted(env_id), [policy] if isinstance(policy, str) else list(policy)
    log.info("recording %s steps of %s with the policy %s", f"{steps:,}", env_id, ", ".join(policies))
    actors = players(env_id, policies, member, noise, stochastic, options)
    return record(env_id, actors, steps, options=options, seed=seed, processes=processes, progress=progress)


def _archived(policy: str) -> tuple[Path, str, str]:
    """Split "FILE.npz:ENV/LEVEL" into the file, ENV and LEVEL. Raises an error for other texts."""
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
    """Return the policies that act: uniform actions for "random", policies of an archive, or members of agents.

    An agent acts deterministically. With `stochastic`, it draws its actions as in training. `noise` is the std of
    Gaussian noise on its actions, for actions in [-1, 1]. `box` has the action bounds of an environment that is not
    from Gymnasium. Archives have no policies for such environments.
    """
    if (member, noise, stochastic) != (None, None, False) and not any(name.endswith(AGENT) for name in policies):
        given = ", ".join(policies)
        raise ConfigError(f"--member, --noise and --stochastic need an agent's file ({AGENT}) as --policy, got {given}")
    if noise is not None and not 0 <= noise < np.inf:
        raise ConfigError(f"the noise must be a finite number, 0 or more, got {noise}")
    actors: list[Policy] = []
    for policy in policies:
        if policy.endswith(AGENT):
            actors.append(_agent(env_id, Path(policy).expanduser(), member or 0, noise or 0.0, stochastic, options))
        elif policy == CHANCE:
            actors.append(uniform(env_id, options) if box is None else UniformPolicy(*box))
        elif box is not None:
            raise ConfigError(f"expected {CHANCE} or AGENT{AGENT} as --policy for {env_id}, got {policy!r}")
        else:
            actors += actors_of(*_archived(policy), env_id, options)
    return actors


def _agent(
    env_id: str, path: Path, member: int, noise: float, stochastic: bool, options: Mapping[str, Any] | None
) -> Policy:
    """Return one member of an agent's file as a policy. Raises an error if it does not fit the environment."""
    from synther.agents.policy import load_policy

    try:
        members = frozen(load_policy(path), stochastic=stochastic)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if not 0 <= member < len(members):
        raise ConfigError(f"{path} has {len(members)} members, counted from 0: there is no member {member}")
    actor = members[member]
    low, high = check_fits(env_id, str(path), actor.inputs, len(actor.low), options)
    if (actor.low < low.astype(np.float32)).any() or (actor.high > high.astype(np.float32)).any():
        raise DataError(f"{path} acts from {actor.low} to {actor.high}: {env_id} takes actions from {low} to {high}")
    return Explorer(actor, actor.low, actor.high, noise) if noise else actor


def buffer_of(run: Path | str) -> Transitions:
    """Return all real rows of an online run, grouped by seed."""
    run = Path(run)
    about = read_object(run / "run.json") if (run / "run.json").exists() else {}
    if "learning_starts" not in about:
        raise FormatError(f"{run}: expected an environment, or a folder that `synther online` has written")
    if about.get("kind") == "online_pixels":
        raise FormatError(
            f"{run} is a run of pixel agents: read the frames of each seed as a data set, such as {run}/frames/seed-0"
        )
    replay = run / "replay.npz"
    if not replay.exists():
        raise FormatError(f"{run} has no replay.npz yet: run the same `synther online` command again until it is done")
    rows, steps = formats.read(replay), about["steps"]
    result = run / "result.json"
    if not result.exists() or read_object(result).get("env_steps", 0) != steps:
        log.warning("%s is not finished: returning the rows so far, out of %s steps per seed", run, f"{steps:,}")
    return rows


@dataclass(frozen=True)
class Summary:
    """Summary of a data set."""

    env_id: str | None
    rows: int
    """Number of rows. For frames: number of decisions."""
    episodes: int
    """Number of episodes, including cut ones."""
    whole: int
    """Number of episodes that terminated or reached the time limit."""
    mean_return: float | None = None
    std: float | None = None
    """Mean and std of the returns of whole episodes, if there are any."""
    score: float | None = None
    """D4RL's normalised score of the mean return, if there is one for the environment."""

    @classmethod
    def of(cls, rows: Transitions) -> Summary:
        """Summarise `rows`. Without an environment that can be created on this machine, there is no time limit."""
        limit = None
        if rows.env_id is not None:
            with suppress(SyntherError), opened(rows.env_id, **rows.env_options or {}) as env:
                limit = time_limit(env)
        return cls.over(whole_returns(rows, limit), len(returns(rows)), len(rows), rows.env_id, rows.env_options)

    @classmethod
    def over(
        cls, whole: Array, episodes: int, rows: int, env_id: str | None, options: Mapping[str, Any] | None = None
    ) -> Summary:
        """Summarise a data set, from the returns of its whole episodes."""
        if not len(whole):
            return cls(env_id, rows, episodes, 0)
        mean, known = float(whole.mean()), reference(env_id or "", options)
        score = None if known is None else float(known.score(mean))
        return cls(env_id, rows, episodes, len(whole), mean, float(whole.std()), score)

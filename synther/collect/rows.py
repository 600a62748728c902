"""Experience as a data set of one's own: rolled out with a policy, or the real buffer of an online run.

Workers import this module to act with `Explorer`, so it brings no PyTorch with it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.data import formats
from synther.data.formats import gym_spaces
from synther.data.transitions import Transitions
from synther.datasets.rollouts import CHANCE, parts_of, regenerate
from synther.datasets.tasks import returns, whole_returns
from synther.durable import check_new
from synther.envs.episodes import action_box
from synther.envs.making import Trusted, opened, time_limit
from synther.envs.policies import Layers, MlpPolicy, Policy, policies_of, read_policy
from synther.envs.recording import record
from synther.envs.scores import reference
from synther.errors import ConfigError, DataError, FormatError, MissingExtra, SyntherError
from synther.folder import read_object
from synther.progress import Progress

log = logging.getLogger(__name__)

Array = NDArray[Any]

MINARI = "minari:"
"""What a target begins with that is an id of Minari, and no path."""

_AGENT, _ARCHIVE = ".safetensors", ".npz"
_LIBRARIES = {"": ("minari", "minari"), ".parquet": ("pyarrow", "parquet"), ".pq": ("pyarrow", "parquet")}
"""By the suffix of a target, a library it takes and the extra that brings it."""


@dataclass(frozen=True, eq=False)
class Explorer:
    """A policy whose actions are moved by normal noise and kept in their box.

    The noise has the deviation `noise` where the box is [-1, 1], and as much more where it is wider.
    """

    policy: MlpPolicy
    low: Array
    high: Array
    noise: float

    def act(self, observation: Array, rng: np.random.Generator) -> Array:
        action = self.policy.act(observation)
        moved = self.noise * (self.high - self.low) / 2 * rng.standard_normal(action.shape, np.float32)
        kept: Array = np.clip(action + moved, self.low, self.high)
        return kept


def roll_out(
    env_id: str,
    policy: str,
    steps: int,
    *,
    member: int | None = None,
    noise: float | None = None,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    processes: int | None = None,
    progress: Progress | bool = False,
) -> Transitions:
    """`steps` rows of whole episodes, the last of which is cut, as a time-out, where they are full.

    `policy` is "random" for uniform actions, "FILE.npz:ENV/LEVEL" for one of an archive, which draws its actions, or
    an agent's file (.safetensors), of which `member` (None: the first) acts without chance, but for `noise`. `options`
    go to `gymnasium.make`. Rows depend on the seed, and not on how many `processes` (None: one a core) make them.
    """
    env_id = Trusted(env_id)
    how: dict[str, Any] = {"options": options, "seed": seed, "processes": processes, "progress": progress}
    if policy.endswith(_AGENT):
        actor = agent_policy(env_id, Path(policy).expanduser(), member or 0, noise or 0.0, options)
        return record(env_id, [actor], steps, **how)
    if member is not None or noise is not None:
        raise ConfigError(f"--member and --noise are for an agent's file ({_AGENT}), the policy is {policy!r}")
    if policy == CHANCE:
        return regenerate(None, env_id, CHANCE, steps, env_id=env_id, **how)
    file, env, level = _archived(policy)
    for part in parts_of(file, env, level):
        if part != CHANCE:
            layers = read_policy(file, env, part).layers
            check_fits(env_id, f"{env}/{part} of {file}", layers, len(layers[-1][1]) // 2, options)
    return regenerate(file, env, level, steps, env_id=env_id, **how)


def _archived(policy: str) -> tuple[Path, str, str]:
    """The file, and the names of body and level in it."""
    file, _, name = policy.rpartition(":")
    env, _, level = name.partition("/")
    if file.endswith(_ARCHIVE) and env and level:
        return Path(file).expanduser(), env, level
    if policy.endswith(_ARCHIVE):
        known = ", ".join(policies_of(Path(policy).expanduser())) or "none"
        raise ConfigError(f"which policy of {policy}? It holds {known}: expected {policy}:ENV/LEVEL")
    hint = f"; the agents of a run are in {Path(policy) / 'checkpoint.safetensors'}" if Path(policy).is_dir() else ""
    raise ConfigError(f"expected {CHANCE}, FILE.npz:ENV/LEVEL or AGENT{_AGENT} for a policy, got {policy!r}{hint}")


def agent_policy(
    env_id: str, path: Path, member: int, noise: float, options: Mapping[str, Any] | None = None
) -> Policy:
    """A member of an agent's file, for an environment that it fits."""
    if not 0 <= noise < np.inf:
        raise ConfigError(f"the noise must be a finite number, 0 or more, got {noise}")
    from synther.agents.policy import load_policy
    from synther.collect.frozen import frozen

    members = frozen(load_policy(path))
    if not 0 <= member < len(members):
        raise ConfigError(f"{path} has {len(members)} members, counted from 0: there is no member {member}")
    own = members[member]
    assert own.low is not None
    assert own.high is not None  # of an agent's policy they are always known
    low, high = check_fits(env_id, str(path), own.layers, len(own.low), options)
    if (own.low < low.astype(np.float32)).any() or (own.high > high.astype(np.float32)).any():
        raise DataError(f"{path} acts from {own.low} to {own.high}: {env_id} takes actions from {low} to {high}")
    return Explorer(own, own.low, own.high, noise) if noise else own


def check_fits(
    env_id: str, policy: str, layers: Layers, actions: int, options: Mapping[str, Any] | None
) -> tuple[Array, Array]:
    """Refuse a policy of other observations or actions before it is played; answer the bounds of the actions."""
    with opened(env_id, **options or {}) as env:
        low, high = action_box(env, env_id)
        expected = gym_spaces.width(env.observation_space), len(low)
    got = len(layers[0][0]), actions
    if got != expected:
        raise DataError(
            f"{policy} takes {got[0]} observation columns and gives {got[1]} actions: "
            f"{env_id} has {expected[0]} and {expected[1]}"
        )
    return low, high


def buffer_of(run: Path) -> Transitions:
    """All real rows of an online run: the episodes of its first seed, then those of the next."""
    if not (run / "run.json").exists() or "learning_starts" not in read_object(run / "run.json"):
        raise FormatError(f"{run}: expected an environment, or a folder that `synther online` has written")
    if read_object(run / "run.json").get("kind") == "online_pixels":
        raise FormatError(f"{run} is a run of pixel agents: its frames are a data set each, {run}/frames/seed-0 first")
    replay = run / "replay.npz"
    if not replay.exists():
        raise FormatError(f"{run} has no replay.npz yet: run the same `synther online` command again until it is done")
    rows, steps = formats.read(replay), read_object(run / "run.json")["steps"]
    result = run / "result.json"
    if not result.exists() or read_object(result)["env_steps"] < steps:
        log.warning("%s is not done: of its %s steps a seed these are the first", run, f"{steps:,}")
    return rows


def target_of(out: str) -> str | Path:
    """Where the rows shall go: `minari:ID`, a file or, without a suffix, the folder of a Minari data set.

    It must be new, and what it takes to write it must be here, so that no work is done in vain.
    """
    if out.startswith(MINARI):
        return _new_id(out.removeprefix(MINARI))
    path = Path(out).expanduser()
    check_new(path)
    if path.suffix:
        formats.check_rows_target(path)
    _require(path.suffix.lower())
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise ConfigError(f"{path} cannot be written, because {above} is no folder to write to: choose another --out")
    return path


def _new_id(name: str) -> str:
    if not formats.is_minari_id(name):
        raise ConfigError(f"{name!r} is no Minari id: expected {MINARI}NAMESPACE/NAME-v0")
    _require("")
    if Path(name).exists():
        raise ConfigError(f"{name} is also a path here, which would be read in its place: choose another id")
    from minari.storage import get_dataset_path

    taken = Path(get_dataset_path(name))
    if taken.exists():
        raise ConfigError(f"the Minari id {name} is taken ({taken}): choose another version, or remove the data set")
    return name


def _require(suffix: str) -> None:
    library, extra = _LIBRARIES.get(suffix, ("", ""))
    if library and find_spec(library) is None:
        raise MissingExtra(library, extra, "writing a Minari data set" if not suffix else f"writing a {suffix} file")


@dataclass(frozen=True)
class Summary:
    """What somebody wants to know of rows of episodes."""

    rows: int
    episodes: int
    whole: int
    """Episodes but for those that were cut before their time: by the end of the data, or of a leg of a run."""
    mean_return: float | None
    std: float | None
    """Of the whole ones, where there are any."""
    score: float | None
    """D4RL's normalised one, of the mean return, where it is known."""

    @classmethod
    def of(cls, rows: Transitions) -> Summary:
        every = len(returns(rows))
        whole = whole_returns(rows, _time_limit(rows))
        if not len(whole):
            return cls(len(rows), every, 0, None, None, None)
        mean, known = float(whole.mean()), reference(rows.env_id or "", rows.env_options)
        score = None if known is None else float(known.score(mean))
        return cls(len(rows), every, len(whole), mean, float(whole.std()), score)


def _time_limit(rows: Transitions) -> int | None:
    """In steps; None where their environment has none, or cannot be made here."""
    if rows.env_id is not None:
        with suppress(SyntherError), opened(rows.env_id, **rows.env_options or {}) as env:
            return time_limit(env)
    return None

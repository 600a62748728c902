"""Evaluate trained agents, of states or of pixels, in the environment of their run or in another one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from synther.agents import policy
from synther.datasets.tasks import EPISODES
from synther.envs.episodes import check_fits
from synther.envs.evaluation import Evaluation, Evaluator
from synther.envs.making import Trusted
from synther.envs.pixels import REPEAT, PixelEnv
from synther.envs.policies import frozen
from synther.errors import ConfigError, FormatError
from synther.experiments.loop import CHECKPOINT
from synther.experiments.pixels import POLICY, description, result_of
from synther.experiments.results import EvalPoint, Measurement, Result, episodes_of
from synther.folder import RunFolder, digest_of, key_of, read_object, write_object
from synther.pixels import evaluation
from synther.pixels.evaluation import Book
from synther.pixels.policy import load_pixel_policy
from synther.plain import check_env_options
from synther.progress import Progress, counted, resolve

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scored:
    """Returns and scores of the agents in a file."""

    file: Path
    env_id: str
    env_options: dict[str, Any]
    seeds: tuple[int, ...]
    """The seeds of each arm."""
    arms: dict[str, EvalPoint]
    unit: str
    """Unit of the `updates` of the arms: "updates", or "steps" for online runs."""
    evaluation: Evaluation
    """All episodes. The members of the first arm come first."""

    def to_json(self) -> dict[str, Any]:
        made = {"file": str(self.file), "env_id": self.env_id, "env_options": self.env_options}
        arms = {arm: standing.to_json() for arm, standing in self.arms.items()}
        played = {"returns": episodes_of(self.evaluation.returns), "lengths": self.evaluation.lengths.tolist()}
        return {**made, "seeds": self.seeds, "arms": arms, **played}


def score(
    agents: Path | str,
    *,
    env_id: str | None = None,
    env_options: Mapping[str, Any] | None = None,
    episodes: int | None = None,
    number: int = 0,
    workers: int | None = None,
    progress: Progress | bool = True,
    make_env: Callable[..., PixelEnv] = PixelEnv,
) -> Scored:
    """Play `episodes` episodes with each of the agents in `agents`: the folder of a run, or a file of agents.

    The run may be offline, online or on pixels. By default, the environment, its options and the number of episodes are
    those of the run. If `env_id` is given, the options of the run are not used. `number` determines the initial states.
    Evaluations during the training of state agents use the number of updates as `number`. `make_env` creates the
    environments of pixel agents, in other processes.
    """
    file = _file_of(Path(agents))
    described = policy.read(file, "actor")[0]
    beside = file.parent / "run.json"
    run = read_object(beside) if beside.is_file() else {}
    if env_options is None:
        env_options = (run.get("env_options") if env_id is None else None) or {}
    env_id = run.get("env_id") if env_id is None else Trusted(env_id)
    if env_id is None:
        raise ConfigError(f"the environment of the agents in {file} is not known: name it with --env-id")
    check_env_options(env_options)
    wanted = run.get("episodes", EPISODES) if episodes is None else episodes
    seeds = described.get("seeds") or [one["seed"] for one in described.get("members", [])] or run.get("seeds")
    if not isinstance(seeds, list):
        raise FormatError(f"{file} does not contain the agents' seeds: evaluate the agents in the folder of their run")
    log.info("playing %s with each agent of %s in %s", counted(wanted, "episode"), file, env_id)
    how: dict[str, Any] = {"episodes": wanted, "workers": workers}
    evaluating = resolve(progress).phase("evaluate", len(seeds) * wanted)
    if "frame" in described:
        if env_options:
            raise ConfigError(f"pixel agents take no environment options: leave out --env-options {env_options}")
        pixel_policy, obstacle = load_pixel_policy(file), evaluation.obstacle(env_id) if make_env is PixelEnv else None
        if obstacle is not None:
            raise ConfigError(obstacle)
        how |= {"repeat": run.get("action_repeat") or run.get("repeat") or REPEAT, "number": number}
        how |= {"shadow_size": run.get("shadow_size"), "make_env": make_env}
        with evaluating as phase:
            found = evaluation.evaluate(pixel_policy, env_id, seeds, phase=phase, **how)
    else:
        own = policy.load_policy(file)
        actors = frozen(own)
        check_fits(env_id, str(file), actors[0].inputs, len(own.scales.low), env_options)
        with Evaluator(env_id, seeds, options=env_options, **how) as evaluator, evaluating as phase:
            found = evaluator.evaluate(actors, number, phase)
    arms = list(run.get("arms") or ["agents"])
    done, unit = _trained_for(file, described, run)
    result = Result.of([Measurement.of(done, 0.0, {}, found)], arms)
    standings = {arm: curve[0] for arm, curve in result.curves.items()}
    return Scored(file, env_id, dict(env_options), tuple(seeds[: len(seeds) // len(arms)]), standings, unit, found)


def _trained_for(file: Path, described: Mapping[str, Any], run: Mapping[str, Any]) -> tuple[int, str]:
    """Return how long the agents in a file have been trained, and the unit of this number."""
    if run.get("kind") == "online_pixels":
        return int(policy.read(file, "decisions")[1]["decisions"]), "steps"
    if "added" in described:
        return described["added"], "steps"
    return described.get("updates", run.get("updates", 0)), "updates"


def _file_of(agents: Path) -> Path:
    wanted = "expected the --out of `train`, `online` or `pixels train`"
    if not agents.exists():
        raise FormatError(f"{agents}: no such file or folder; {wanted}, or a file of agents")
    if not agents.is_dir():
        return agents
    for name in (POLICY, CHECKPOINT, f"training/{CHECKPOINT}"):  # runs of `synther paper` have the last one
        if (agents / name).is_file():
            return agents / name
    raise FormatError(f"{agents} has no {CHECKPOINT}: {wanted}")


def why_not(folder: Path, env_id: str | None = None) -> str | None:
    """Return why this machine cannot evaluate the run in `folder`, or None. `env_id`: by default that of the frames."""
    wanted = env_id or description(folder)["env_id"]
    if wanted is None:
        return f"its frames do not name an environment: name it with `synther pixels evaluate {folder} --env-id`"
    try:
        evaluation.check_sight(load_pixel_policy(folder / POLICY).encoder.frame)
    except ConfigError as error:
        return str(error)
    return evaluation.obstacle(wanted)


def evaluate(
    folder: Path,
    *,
    episodes: int = 10,
    env_id: str | None = None,
    repeat: int | None = None,
    workers: int | None = None,
    progress: Progress | bool = True,
) -> Result:
    """Play `episodes` episodes with every seed of the pixel run in `folder`, and write its `result.json`. By default,
    environment and action repeat are those of the run's frames. The shadow map is always that of the frames. Episodes
    that were already played are not played again."""
    about, obstacle = description(folder), why_not(folder, env_id)
    if obstacle is not None:
        raise ConfigError(obstacle)
    env_id, seeds = env_id or about["env_id"], about["seeds"]
    repeat = about["action_repeat"] if repeat is None else repeat
    if repeat is None:
        repeat = REPEAT
        log.warning("the frames do not store how often actions are repeated: %d times is assumed (--repeat)", repeat)
    file = folder / POLICY
    with RunFolder(folder).lock(), resolve(progress).phase("evaluate", len(seeds) * episodes) as phase:
        drawn = {"repeat": repeat, "shadow_size": about.get("shadow_size")}
        book = Book(folder / "episodes.jsonl", key_of({"policy": digest_of(file), "env_id": env_id, **drawn}))
        how: dict[str, Any] = {**drawn, "workers": workers, "phase": phase, "book": book}
        found = evaluation.evaluate(load_pixel_policy(file), env_id, seeds, episodes, **how)
        trained = result_of(folder)
        (arm,) = trained.curves
        end = Result.of([Measurement.of(trained.updates, trained.seconds, {}, found)], [arm])
        lost = {*trained.diverged[arm], *end.diverged[arm]}
        where = f"{env_id}, {episodes} episodes of each seed, every action {repeat} times"
        origin = {**trained.origin, "environment": where}
        result = replace(trained, curves=end.curves, diverged={arm: tuple(sorted(lost))}, origin=origin)
        write_object(folder / "result.json", result.to_json())
    return result

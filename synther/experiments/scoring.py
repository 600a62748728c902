"""What saved agents are worth: in the environment of their run, or in another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synther.agents import policy
from synther.collect.frozen import frozen
from synther.collect.rows import check_fits
from synther.envs.evaluation import Evaluation, Evaluator
from synther.envs.making import Trusted
from synther.errors import ConfigError, FormatError
from synther.experiments.measurements import Measurement, Result, Standing, episodes_of
from synther.folder import read_object
from synther.plain import check_env_options
from synther.progress import Progress, resolve

AGENTS = "checkpoint.safetensors"
EPISODES = 10

_PATIENCE = 0.2
"""Seconds between two movements of the display."""


@dataclass(frozen=True)
class Scored:
    """How good the agents of a file are."""

    file: Path
    env_id: str
    env_options: dict[str, Any]
    seeds: tuple[int, ...]
    """Of each arm."""
    arms: dict[str, Standing]
    unit: str
    """What the `updates` of these are: updates, or steps of agents that act while they learn."""
    evaluation: Evaluation
    """Every episode; the members of the first arm come first."""

    def to_json(self) -> dict[str, Any]:
        made = {"file": str(self.file), "env_id": self.env_id, "env_options": self.env_options}
        arms = {arm: standing.to_json() for arm, standing in self.arms.items()}
        lengths = self.evaluation.lengths.tolist()
        returns = episodes_of(self.evaluation.returns)
        return {**made, "seeds": self.seeds, "arms": arms, "returns": returns, "lengths": lengths}


def score(
    agents: Path,
    *,
    env_id: str | None = None,
    env_options: Mapping[str, Any] | None = None,
    episodes: int | None = None,
    number: int = 0,
    workers: int | None = None,
    progress: Progress | bool = True,
) -> Scored:
    """Play `episodes` episodes with each of the `agents`: those of a run's folder, or of a file that a run has written.

    The environment, its options and the number of episodes are those of the run where they are not given; options
    belong to their environment, so that another one has none of them. Episodes of another `number` have other starts;
    those of an evaluation after so many updates had that number.
    """
    file = _file_of(agents)
    described, _ = policy.read(file, "scales.low", sees=False)
    beside = file.parent / "run.json"
    run = read_object(beside) if beside.is_file() else {}
    if env_options is None:
        env_options = (run.get("env_options") if env_id is None else None) or {}
    env_id = run.get("env_id") if env_id is None else Trusted(env_id)
    if env_id is None:
        raise ConfigError(f"nothing says which environment the agents of {file} are for: name it with --env-id")
    check_env_options(env_options)
    actors = frozen(policy.load_policy(file))
    seeds = described.get("seeds") or [member["seed"] for member in described["members"]]
    check_fits(env_id, str(file), actors[0].layers, actors[0].layers[-1][0].shape[1], env_options)
    wanted = run.get("episodes", EPISODES) if episodes is None else episodes
    with (
        Evaluator(env_id, seeds, episodes=wanted, workers=workers, options=env_options) as evaluator,
        resolve(progress).phase("evaluate", len(seeds) * wanted) as phase,
    ):
        pending, shown = evaluator.start(actors, number), 0
        while not pending.done():
            over = round(pending.wait(_PATIENCE) * len(seeds) * wanted)
            phase.advance(over - shown)
            shown = over
        found = pending.result()
        phase.advance(len(seeds) * wanted - shown)
    arms = list(run.get("arms") or ["agents"])
    done = described.get("updates", described.get("added", 0))
    result = Result.of([Measurement.of(done, 0.0, {}, found)], arms)
    standings = {arm: curve[0] for arm, curve in result.curves.items()}
    unit = "updates" if "updates" in described else "steps"
    return Scored(file, env_id, dict(env_options), tuple(seeds[: len(seeds) // len(arms)]), standings, unit, found)


def _file_of(agents: Path) -> Path:
    if not agents.is_dir():
        return agents
    if (agents / "policy.safetensors").is_file():
        raise FormatError(f"{agents} is a run of agents that see: `synther pixels evaluate {agents}`")
    if (agents / "frames").is_dir():
        raise FormatError(f"{agents} is a run of agents that see and act: what they were worth is in its log.jsonl")
    for place in (agents, agents / "training"):  # the latter of the paper's runs
        if (place / AGENTS).is_file():
            return place / AGENTS
    raise FormatError(f"{agents} has no {AGENTS}: expected the folder of `synther train` or `synther online`")

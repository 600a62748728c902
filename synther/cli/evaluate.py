"""The command `synther evaluate`, for example `synther evaluate RUN --episodes 100`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from synther.cli import options
from synther.cli.answer import answer, over, standing
from synther.plain import check_least, whole_seed


@dataclass(frozen=True)
class Evaluate(options.Actors):
    """Play episodes with trained agents, in their own environment or another one, and print returns and scores.

    The run can be an offline, online or pixel run, and does not have to be finished. No file is written. --json prints
    every episode.
    """

    agents: tyro.conf.Positional[Path] = tyro.MISSING
    """Folder of `synther train`, `online` or `pixels train`, or a file of agents (.safetensors)."""
    episodes: int | None = None
    """Number of episodes for each agent. Default: as in the evaluations of the run, or 10."""
    env_id: str | None = None
    """Id of another environment. Default: the environment of the run."""
    env_options: dict[str, Any] | None = None
    """Arguments for gymnasium.make, as JSON. Default: those of the run."""
    workers: int | None = None
    """Number of processes that play episodes. Default: all cores but one."""
    seed: int = 0
    """Random seed of the initial states. The same seed gives the same result."""


def evaluate(arguments: list[str]) -> None:
    chosen = options.parse("evaluate", Evaluate, arguments)
    whole_seed(chosen.seed, "--seed")
    check_least(chosen, episodes=1)
    chosen.register_networks()
    from synther.experiments.evaluation import score

    how = chosen.passed("env_id", "env_options", "episodes", "workers")
    found = score(chosen.agents, number=chosen.seed, **how)
    figures, alone = [("environment", found.env_id)], len(found.arms) == 1
    for arm, point in found.arms.items():
        returns = ["diverged" if value is None else f"{value:,.1f}" for value in point.returns]
        figures += standing("mean" if alone else arm, point, found.unit)
        figures.append(("each return" if alone else f"{arm}, each return", ", ".join(returns)))
    episodes = found.evaluation.returns.shape[1]
    title = f"{found.file}, {episodes} episode{'s' * (episodes > 1)} each, {over(len(found.seeds))}"
    answer(chosen.json, found.to_json(), figures, title)

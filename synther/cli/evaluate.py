"""`synther evaluate RUN --episodes 100`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from synther.cli import options
from synther.cli.answer import answer, over, standing
from synther.plain import check_least, whole_seed


@dataclass(frozen=True)
class Evaluate(options.Output):
    """Play episodes with trained agents, in their own environment or in another, and print returns and scores.

    The run may be offline, online or on pixels, finished or not. Nothing is written; --json prints every episode.
    """

    agents: tyro.conf.Positional[Path] = tyro.MISSING
    """Folder of `synther train`, `online` or `pixels train`, or a file of agents (.safetensors)."""
    episodes: int | None = None
    """Episodes of each agent. Default: as many as in training, or 10."""
    env_id: str | None = None
    """Another environment than that of the run."""
    env_options: dict[str, Any] | None = None
    """Arguments of gymnasium.make. Default: those of the training."""
    workers: int | None = None
    """Processes that play episodes. Default: all cores but one."""
    seed: int = 0
    """Decides the initial states; the same seed gives the same result."""


def evaluate(arguments: list[str]) -> None:
    chosen = options.parse("evaluate", Evaluate, arguments)
    whole_seed(chosen.seed, "--seed")
    check_least(chosen, episodes=1)
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

"""Pixel experiments: the paper's two tables on V-D4RL's frames, and our own on collected frames."""

from __future__ import annotations

from typing import Any

from synther.experiments.spec import Recipe
from synther.experiments.specs import Features, PixelAlgorithm, PixelRun, Retraining
from synther.paper.experiment import (
    REAL_LATENTS,
    SYNTHER,
    TITLES,
    Average,
    Cell,
    Experiment,
    Figure,
    contrasts_of,
    rows_by_data,
)
from synther.paper.published import REPRESENTATION, VD4RL, VD4RL_AVERAGE

ALGORITHMS: tuple[PixelAlgorithm, ...] = ("drq_bc", "bc")
TASKS = ("walker-walk", "cheetah-run")
LEVELS = ("mixed", "medium", "medium-expert", "expert")

_PAPERS = Recipe()
_OURS = Recipe(preset="best", samples=1_000_000, changes={"fit": {"steps": 20_000}})
_OWN_AGENTS: dict[PixelAlgorithm, dict[str, Any]] = {"drq_bc": {"stddev_updates": 7_000}, "bc": {}}
"""The exploration noise decays over the same fraction of the training as in V-D4RL."""
_ALL_FEATURES: dict[PixelAlgorithm, Features] = {"drq_bc": "both", "bc": "actor"}

HEAD_UPDATES = "The paper does not say how long heads are retrained; here they get as many updates as stage one."
OUR_LATENTS = (
    "original: the agents of stage one. Other columns: their heads, retrained on the latents of the data (real "
    "latents), on synthetic latents (SynthER), or on synthetic latents of the actor's or critic's features alone. "
    "Scores are return / 10."
)
OUR_FRAMES = (
    "The frames were recorded with this project's own state-based agents and are not V-D4RL's, so the paper has no "
    "comparable figures. Stage one and heads get {updates:,} updates each; V-D4RL uses {theirs:,}."
)


def vd4rl() -> Experiment:
    runs = tuple(
        PixelRun(f"{task}-{level}-{name}", task, level, name, {"synthetic": Retraining(_ALL_FEATURES[name], _PAPERS)})
        for name in ALGORITHMS
        for task in TASKS
        for level in LEVELS
    )
    about = "pixel agents on V-D4RL's frames: original data against heads retrained on SynthER's latents"
    averages, contrasts = (Average.of("average", VD4RL, VD4RL_AVERAGE),), contrasts_of(ALGORITHMS)
    more: dict[str, Any] = {"bars": "rows", "remarks": (HEAD_UPDATES,)}
    return Experiment("vd4rl", "tab:vd4rl_results", about, runs, rows_by_data(runs, VD4RL), averages, contrasts, **more)


def representation() -> Experiment:
    arms: dict[Features, str] = {"both": "synthetic", "actor": "actor", "critic": "critic"}
    retrained = {arm: Retraining(features, _PAPERS) for features, arm in arms.items()}
    run = PixelRun("cheetah-run-expert-drq_bc-features", "cheetah-run", "expert", "drq_bc", retrained, seeds=4)
    rows: dict[Features, str] = {"both": "actor's and critic's", "actor": "actor's alone", "critic": "critic's alone"}
    table = {
        title: {TITLES["drq_bc"]: Cell(run.name, arms[features], Figure(*REPRESENTATION[features]))}
        for features, title in rows.items()
    }
    about = "features that latents are made of: DrQ+BC on V-D4RL's cheetah-run-expert"
    return Experiment("representation", "tab:representation_ablation", about, (run,), table, remarks=(HEAD_UPDATES,))


def pixels() -> Experiment:
    runs = tuple(_own(task, name) for name in ALGORITHMS for task in TASKS)
    contrasts = (*contrasts_of(ALGORITHMS), *contrasts_of(ALGORITHMS, SYNTHER, REAL_LATENTS))
    about = "pixel agents on frames collected here: stage one against heads retrained on latents"
    remarks = (OUR_LATENTS, OUR_FRAMES.format(updates=runs[0].updates, theirs=PixelRun.updates))
    more: dict[str, Any] = {"contrasts": contrasts, "bars": "rows", "remarks": remarks}
    return Experiment("pixels", "", about, runs, rows_by_data(runs), **more)


def _own(task: str, name: PixelAlgorithm) -> PixelRun:
    features = _ALL_FEATURES[name]
    arms = {"latents": Retraining(features), "synthetic": Retraining(features, _OURS)}
    if name == "drq_bc":  # BC has no critic
        arms |= {"actor": Retraining("actor", _OURS), "critic": Retraining("critic", _OURS)}
    how: dict[str, Any] = {"agent": _OWN_AGENTS[name], "updates": 30_000, "seeds": 3, "episodes": 5}
    return PixelRun(f"{task}-collected-{name}", task, "collected", name, arms, **how)

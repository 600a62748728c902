"""Pixel experiments: the paper's two tables on V-D4RL's frames, and our own on V-D4RL's or on recorded frames."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from synther.experiments.spec import Recipe
from synther.experiments.specs import Features, OnlinePixelRun, PixelAlgorithm, PixelRun, Retraining, SyntheticLatents
from synther.paper.experiment import (
    HALF,
    PAIRS,
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
from synther.presets import LATENTS

ALGORITHMS: tuple[PixelAlgorithm, ...] = ("drq_bc", "bc")
TASKS = ("walker-walk", "cheetah-run")
LEVELS = ("mixed", "medium", "medium-expert", "expert")

_PAPERS = Recipe()
_LATENTS = {part: dict(options) for part, options in LATENTS.items()}
_OURS = Recipe(preset="best", samples=1_000_000, changes={**_LATENTS, "fit": {"steps": 50_000}})
_SHIFTS = 8
_ALL_FEATURES: dict[PixelAlgorithm, Features] = {"drq_bc": "both", "bc": "actor"}

REAL_HEADS = "DrQ-v2 + real latents"
HEAD_UPDATES = "The paper does not say how long heads are retrained; here they get as many updates as stage one."
OUR_LATENTS = (
    "original: the agents of stage one. Other columns: their heads, retrained on the latents of the data (real "
    "latents), on synthetic latents (SynthER), on half of each in every batch (50-50), on synthetic latents and "
    "actions alone (SynthER, pairs), or on synthetic latents of the actor's or critic's features alone. Each decision "
    f"is encoded with {_SHIFTS} random shifts. Scores are return / 10."
)
OUR_FRAMES = (
    "The notes above name the frames. They are V-D4RL's only where the notes say so. Stage one and heads get "
    "{updates:,} updates each; V-D4RL uses {theirs:,}."
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
    arms: dict[str, Features] = {"synthetic": "both", "actor": "actor", "critic": "critic"}
    retrained = {arm: Retraining(features, _PAPERS) for arm, features in arms.items()}
    run = PixelRun("cheetah-run-expert-drq_bc-features", "cheetah-run", "expert", "drq_bc", retrained, seeds=4)
    rows = {"synthetic": "actor's and critic's", "actor": "actor's alone", "critic": "critic's alone"}
    cells = {arm: Cell(run.name, arm, Figure(*REPRESENTATION[features])) for arm, features in arms.items()}
    table = {rows[arm]: {TITLES["drq_bc"]: cell} for arm, cell in cells.items()}
    about = "features that latents are made of: DrQ+BC on V-D4RL's cheetah-run-expert"
    return Experiment("representation", "tab:representation_ablation", about, (run,), table, remarks=(HEAD_UPDATES,))


def pixels() -> Experiment:
    """Return the experiment. Runs on expert data come first, because the paper's gain is largest there."""
    runs = tuple(
        _own(task, level, name)
        for level in ("expert", "medium-expert", "mixed", "medium")
        for task in ("cheetah-run", "walker-walk")
        for name in ("bc", "drq_bc")
    )
    secondary = (*contrasts_of(ALGORITHMS), *contrasts_of(ALGORITHMS, HALF, REAL_LATENTS))
    secondary += contrasts_of(["bc"], PAIRS, REAL_LATENTS)
    about = "pixel agents: are heads better on synthetic latents than on real ones?"
    remarks = (OUR_LATENTS, OUR_FRAMES.format(updates=runs[0].updates, theirs=PixelRun.updates))
    more: dict[str, Any] = {"primary": contrasts_of(ALGORITHMS, SYNTHER, REAL_LATENTS), "secondary": secondary}
    return Experiment("pixels", "", about, runs, rows_by_data(runs), remarks=remarks, **more)


def pixels_online() -> Experiment:
    """Return the experiment: an easy task of DrQ-v2, with enough steps to learn it. All runs use a small shadow map."""
    task, steps, plain = "cartpole-swingup", 60_000, "DrQ-v2"
    made, with_rows = SyntheticLatents(changes=_LATENTS), f"{plain} + SynthER"
    ways = {plain: None, with_rows: made, REAL_HEADS: replace(made, copies=True)}
    names = {plain: "drq_v2", with_rows: "drq_v2-synther", REAL_HEADS: "drq_v2-copies"}
    how: dict[str, Any] = {"agent": {"stddev_updates": 50_000}, "steps": steps, "seeds": 3, "shadow_size": 512}
    runs = {
        title: OnlinePixelRun(f"{task}-{steps // 1000}k-{names[title]}", f"dm_control/{task}-v0", synthetic=way, **how)
        for title, way in ways.items()
    }
    table = {task: {title: Cell(run.name, run.arm) for title, run in runs.items()}}
    about = "DrQ-v2 from pixels: synthetic latents against the same updates of the heads on real ones, and plain"
    primary, secondary = ((with_rows, REAL_HEADS),), ((with_rows, plain), (REAL_HEADS, plain))
    jobs = tuple(runs.values())
    return Experiment("pixels-online", "", about, jobs, table, primary=primary, secondary=secondary)


def _own(task: str, level: str, name: PixelAlgorithm) -> PixelRun:
    features = _ALL_FEATURES[name]
    real = Retraining(features, shifts=_SHIFTS)
    synthetic = replace(real, recipe=_OURS)
    arms = {"latents": real, "synthetic": synthetic, "half": replace(synthetic, ratio=0.5)}
    if name == "bc":
        arms["pairs"] = replace(synthetic, pairs=True)
    if (task, level, name) == ("cheetah-run", "expert", "drq_bc"):  # as in the paper's ablation of trunks
        arms |= {"actor": replace(synthetic, features="actor"), "critic": replace(synthetic, features="critic")}
    return PixelRun(f"{task}-{level}-{name}-ours", task, level, name, arms, updates=60_000)

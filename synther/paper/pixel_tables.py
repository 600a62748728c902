"""Pixel agents: the paper's two tables on V-D4RL's frames, and our own on frames that anybody can collect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from synther.experiments.spec import Recipe
from synther.experiments.specs import STAGE_ONE, Features, PixelRun, Retraining
from synther.experiments.specs import PixelAlgorithm as Algorithm
from synther.paper.experiment import Average, Cell, Experiment, Figure
from synther.paper.parts import ORIGINAL, SYNTHER, contrasts_of
from synther.paper.published import REPRESENTATION, VD4RL, VD4RL_AVERAGE, Pair

TITLES: dict[Algorithm, str] = {"drq_bc": "DrQ+BC", "bc": "BC"}
TASKS = ("walker-walk", "cheetah-run")
LEVELS = ("mixed", "medium", "medium-expert", "expert")

REAL_LATENTS = "real latents"
ACTOR_ONLY, CRITIC_ONLY = "actor's features", "critic's features"
ARM_TITLES = {STAGE_ONE: ORIGINAL, "latents": REAL_LATENTS, "synthetic": SYNTHER}
ARM_TITLES |= {"actor": ACTOR_ONLY, "critic": CRITIC_ONLY}

_PAPERS = Recipe()
_OURS = Recipe(preset="best", samples=1_000_000, changes={"fit": {"steps": 20_000}})
_OWN_AGENTS: dict[Algorithm, dict[str, Any]] = {"drq_bc": {"stddev_updates": 7_000}, "bc": {}}
"""The noise falls over as much of these shorter trainings as of V-D4RL's."""

NOT_SAID = "The paper does not say how long heads are retrained: here as long as the agents of stage one were trained."
OUR_LATENTS = (
    "original are the agents of stage one; real latents, SynthER and the others are their heads, trained anew: on the "
    "latents of the data itself, on synthetic ones, and on synthetic ones of the features of the actor or the critic "
    "alone. Scores are return / 10."
)
OUR_FRAMES = (
    "Frames come from this project's own agents of states and are none of V-D4RL's: no figure of the paper belongs "
    "beside these. Stage one and heads have {updates:,} updates each, where V-D4RL has {theirs:,}."
)
_ALL_FEATURES: dict[Algorithm, Features] = {"drq_bc": "both", "bc": "actor"}


def cells_of(run: PixelRun, figures: Mapping[str, Pair] | None = None) -> dict[str, Cell]:
    """A column an arm of the run, with the paper's figure where there is one."""
    known = {arm: Figure(*pair) for arm, pair in (figures or {}).items()}
    title = TITLES[run.algorithm]
    return {f"{title} {ARM_TITLES[arm]}": Cell(run.name, arm, known.get(arm)) for arm in (STAGE_ONE, *run.arms)}


def _by_data(
    runs: Iterable[PixelRun], figures: Mapping[str, Mapping[str, tuple[Pair, Pair]]]
) -> dict[str, dict[str, Cell]]:
    """A row a data set."""
    table: dict[str, dict[str, Cell]] = {}
    for run in runs:
        pairs = figures.get(run.data, {}).get(run.algorithm)
        printed = None if pairs is None else dict(zip((STAGE_ONE, "synthetic"), pairs, strict=True))
        table.setdefault(run.data, {}).update(cells_of(run, printed))
    return table


def vd4rl() -> Experiment:
    runs = tuple(
        PixelRun(f"{task}-{level}-{algorithm}", task, level, algorithm, _retrained(algorithm, synthetic=_PAPERS))
        for algorithm in TITLES
        for task in TASKS
        for level in LEVELS
    )
    means = {
        f"{title} {arm}": Figure(*pair)
        for algorithm, title in TITLES.items()
        for arm, pair in zip((ORIGINAL, SYNTHER), VD4RL_AVERAGE[algorithm], strict=True)
    }
    return Experiment(
        "vd4rl",
        "tab:vd4rl_results",
        "pixel agents, on V-D4RL's frames: original data against heads retrained on SynthER's latents",
        runs,
        _by_data(runs, VD4RL),
        (Average("average", tuple(VD4RL), means),),
        contrasts_of(TITLES.values()),
        bars="rows",
        remarks=(NOT_SAID,),
    )


def representation() -> Experiment:
    named: dict[Features, str] = {"both": "synthetic", "actor": "actor", "critic": "critic"}
    arms = {arm: Retraining(features, _PAPERS) for features, arm in named.items()}
    run = PixelRun("cheetah-run-expert-drq_bc-features", "cheetah-run", "expert", "drq_bc", arms, seeds=4)
    rows: dict[Features, str] = {"both": "actor's and critic's", "actor": "actor's alone", "critic": "critic's alone"}
    table = {
        title: {TITLES["drq_bc"]: Cell(run.name, named[features], Figure(*REPRESENTATION[features]))}
        for features, title in rows.items()
    }
    about = "whose features latents are made of: DrQ+BC on V-D4RL's cheetah-run-expert"
    return Experiment("representation", "tab:representation_ablation", about, (run,), table, remarks=(NOT_SAID,))


def pixels() -> Experiment:
    runs = tuple(_own(task, algorithm) for algorithm in TITLES for task in TASKS)
    return Experiment(
        "pixels",
        "",
        "pixel agents, on frames that were collected here: stage one against heads retrained on latents",
        runs,
        _by_data(runs, {}),
        contrasts=(*contrasts_of(TITLES.values()), *contrasts_of(TITLES.values(), SYNTHER, REAL_LATENTS)),
        bars="rows",
        remarks=(OUR_LATENTS, OUR_FRAMES.format(updates=runs[0].updates, theirs=PixelRun.updates)),
    )


def _retrained(algorithm: Algorithm, **recipes: Recipe | None) -> dict[str, Retraining]:
    """An arm for each recipe, of all features that there are."""
    return {arm: Retraining(_ALL_FEATURES[algorithm], recipe) for arm, recipe in recipes.items()}


def _own(task: str, algorithm: Algorithm) -> PixelRun:
    arms = _retrained(algorithm, latents=None, synthetic=_OURS)
    if algorithm == "drq_bc":  # without a critic there is nothing to choose from
        arms |= {"actor": Retraining("actor", _OURS), "critic": Retraining("critic", _OURS)}
    return PixelRun(
        f"{task}-collected-{algorithm}",
        task,
        "collected",
        algorithm,
        arms,
        agent=_OWN_AGENTS[algorithm],
        updates=30_000,
        seeds=3,
        episodes=5,
    )

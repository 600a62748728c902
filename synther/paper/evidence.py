"""Our own evidence, on data that can be had anywhere: replay data, and sets rolled out with recorded policies."""

from __future__ import annotations

from synther.experiments.spec import Recipe
from synther.experiments.specs import OfflineRun
from synther.paper.experiment import Cell, Experiment, Lines
from synther.paper.parts import (
    HALF,
    HALF_ARM,
    LARGER_NETWORK,
    NOISE_ARMS,
    ORIGINAL,
    REAL_ARM,
    SYNTHER,
    SYNTHETIC_ARM,
    TITLES,
    cells_of,
    contrasts_of,
    rows_by_arm,
    run_of,
)
from synther.paper.published import FULL_EVAL, LARGER, Pair

NOT_PRINTED = "The paper draws this for D4RL's walker2d-medium-replay and prints no numbers."
OTHER_DATA = "The paper's figures are of D4RL's own data; what agents were trained on here is named above."

MEDIUM = ("halfcheetah-medium", "walker2d-medium", "hopper-medium")
MIXED = {"halfcheetah-mixed": "halfcheetah-medium-replay", "walker2d-mixed": "walker2d-medium-replay"}
MIXED |= {"hopper-mixed": "hopper-medium-replay"}
"""Replay data of our own to the D4RL set of the same kind."""

OWN = {**MIXED, **{name: name for name in MEDIUM}}


_BEST = Recipe(preset="best")


def _on_original(data: str, algorithm: str) -> OfflineRun:
    return run_of(data, algorithm, REAL_ARM, _BEST, "-real")


def agents() -> Experiment:
    runs = [_on_original(data, name) for name in ("td3_bc", "iql") for data in MEDIUM]
    table: dict[str, dict[str, Cell]] = {}
    for run in runs:
        table.setdefault(run.data, {}).update(cells_of(run, FULL_EVAL[run.data][run.algorithm][0]))
    about = "the agents themselves, on original data: medium sets, TD3+BC and IQL"
    return Experiment("agents", "", about, tuple(runs), table, bars="rows", remarks=(OTHER_DATA,))


def _mixed_subset(algorithm: str, fraction: float = 0.15) -> OfflineRun:
    arms = REAL_ARM | SYNTHETIC_ARM | (NOISE_ARMS if fraction == 0.15 else {})
    return run_of("walker2d-mixed", algorithm, arms, _BEST, "-ours", fraction=fraction)


def mixed_subsample() -> Experiment:
    runs = [_mixed_subset(algorithm) for algorithm in ("td3_bc", "iql")]
    about = "15 % of walker2d-mixed: SynthER against three kinds of noise"
    return Experiment(
        "mixed-subsample", "", about, tuple(runs), rows_by_arm(runs), bars="columns", remarks=(NOT_PRINTED,)
    )


def _on_all(
    name: str, about: str, runs: tuple[OfflineRun, ...], figures: dict[tuple[str, str], tuple[Pair, Pair]]
) -> Experiment:
    """A row a data set; the paper's figures, of original data and SynthER's by data set and algorithm, are those of
    D4RL's set of the same kind."""
    table: dict[str, dict[str, Cell]] = {}
    for run in runs:
        printed = dict(zip((*REAL_ARM, *SYNTHETIC_ARM), figures[OWN[run.data], run.algorithm], strict=True))
        row = table.setdefault(run.data, {})
        row.update(cells_of(run, *(printed[arm] for arm in run.arms if arm in printed)))
    titles = dict.fromkeys(TITLES[run.algorithm] for run in runs)
    half = contrasts_of(titles, HALF) if any("half" in run.arms for run in runs) else ()
    contrasts = (*contrasts_of(titles), *half)
    return Experiment(name, "", about, runs, table, contrasts=contrasts, bars="rows", remarks=(OTHER_DATA,))


def mixed_eval() -> Experiment:
    """Of medium sets the original data is the experiment `agents`, which is not trained again."""
    generated = SYNTHETIC_ARM | HALF_ARM
    runs: list[OfflineRun] = []
    for name in ("td3_bc", "iql"):
        runs += [run_of(data, name, REAL_ARM | generated, _BEST, "-ours") for data in MIXED]
        for data in MEDIUM:
            runs += [_on_original(data, name), run_of(data, name, generated, _BEST, "-ours")]
    figures = {(data, name): pairs for data, of_row in FULL_EVAL.items() for name, pairs in of_row.items()}
    about = "replay and medium sets: original data, SynthER's alone, half of each"
    return _on_all("mixed-eval", about, tuple(runs), figures)


def mixed_larger() -> Experiment:
    arms = REAL_ARM | SYNTHETIC_ARM
    runs = tuple(run_of(data, "td3_bc", arms, _BEST, "-larger-ours", agent=LARGER_NETWORK) for data in OWN)
    about = "replay and medium sets: TD3+BC with three layers of 512 and batches of 1024"
    return _on_all("mixed-larger", about, runs, {(data, "td3_bc"): pairs for data, pairs in LARGER.items()})


def fractions() -> Experiment:
    runs = {share: _mixed_subset("td3_bc", share) for share in (0.03, 0.07, 0.15, 0.33, 0.66)}
    places = {f"{100 * share:g} %": share for share in runs}
    table = {}
    for row, run in zip(places, runs.values(), strict=True):
        cells = cells_of(run)
        table[row] = {f"TD3+BC {kind}": cells[f"TD3+BC {kind}"] for kind in (ORIGINAL, SYNTHER)}
    return Experiment(
        "fractions",
        "",
        "shares of walker2d-mixed with TD3+BC: the real rows against SynthER's",
        tuple(runs.values()),
        table,
        contrasts=contrasts_of(["TD3+BC"]),
        lines=(Lines("walker2d-mixed, TD3+BC", places, (f"TD3+BC {ORIGINAL}", f"TD3+BC {SYNTHER}")),),
        remarks=(NOT_PRINTED,),
    )

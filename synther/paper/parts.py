"""What the experiments are put together from: arms, the rows that they draw from, cells of a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from synther.baselines.augmentation import AUGMENTATIONS
from synther.experiments.spec import Recipe
from synther.experiments.specs import OfflineRun
from synther.paper.experiment import Cell, Contrast, Figure
from synther.paper.published import Pair

TITLES = {"td3_bc": "TD3+BC", "iql": "IQL", "edac": "EDAC"}
ORIGINAL, SYNTHER, HALF = "original", "SynthER", "50-50"

Arms = dict[str, dict[str, float]]

REAL_ARM: Arms = {"real": {"real": 1.0}}
SYNTHETIC_ARM: Arms = {"synthetic": {"synthetic": 1.0}}
HALF_ARM: Arms = {"half": {"as_many": 0.5, "real": 0.5}}
NOISE_ARMS: Arms = {name: {name: 1.0} for name in AUGMENTATIONS}
ADDITIVE_ARM: Arms = {"additive": {"additive": 1.0}}
ARM_TITLES = {"real": ORIGINAL, "synthetic": SYNTHER, "half": HALF} | {name: f"{name} noise" for name in AUGMENTATIONS}

LARGER_NETWORK = {"width": 512, "depth": 3, "batch_size": 1024}
WIDE = ("halfcheetah-medium-expert", "hopper-medium", "hopper-medium-expert")
"""Data sets for which the paper's denoiser is twice as wide."""


def papers_recipe(data: str, *, samples: int = 5_000_000) -> Recipe:
    """As the paper's appendix has it."""
    return Recipe(samples=samples, changes={"network": {"width": 2048}} if data in WIDE else {})


def run_of(
    data: str,
    algorithm: str,
    arms: Arms,
    recipe: Recipe,
    suffix: str = "",
    *,
    fraction: float | None = None,
    agent: dict[str, Any] | None = None,
    seeds: int = 8,
) -> OfflineRun:
    """With the sources that the arms ask for, of which `recipe` makes the synthetic ones."""
    made = {"synthetic": recipe, "as_many": replace(recipe, samples=None)}
    made |= {name: Recipe(name, recipe.samples) for name in AUGMENTATIONS}
    wanted = {source for shares in arms.values() for source in shares}
    part = "" if fraction is None else f"{100 * fraction:g}pct-"
    return OfflineRun(
        f"{data}-{part}{algorithm}{suffix}",
        data,
        algorithm,
        arms,
        {name: source for name, source in made.items() if name in wanted},
        fraction,
        agent or {},
        updates=3_000_000 if algorithm == "edac" else 1_000_000,
        seeds=seeds,
    )


def run_of_all(name: str, data: str, algorithm: str, sources: dict[str, Recipe], seeds: int = 8) -> OfflineRun:
    """An arm for each source alone."""
    return OfflineRun(name, data, algorithm, {source: {source: 1.0} for source in sources}, sources, seeds=seeds)


def cells_of(run: OfflineRun, *figures: Pair, title: str = "") -> dict[str, Cell]:
    """A column an arm of the run, with the paper's figures in the same order, as far as there are any."""
    known = [*(Figure(*pair) for pair in figures), *[None] * (len(run.arms) - len(figures))]
    return {
        f"{title or TITLES[run.algorithm]} {ARM_TITLES[arm]}": Cell(run.name, arm, figure)
        for arm, figure in zip(run.arms, known, strict=True)
    }


def contrasts_of(titles: Iterable[str], one: str = SYNTHER, other: str = ORIGINAL) -> tuple[Contrast, ...]:
    return tuple(Contrast(f"{title} {one}", f"{title} {other}") for title in titles)


def rows_by_arm(runs: Iterable[OfflineRun]) -> dict[str, dict[str, Cell]]:
    """A row an arm, a column an algorithm."""
    table: dict[str, dict[str, Cell]] = {}
    for run in runs:
        for arm in run.arms:
            table.setdefault(ARM_TITLES[arm], {})[TITLES[run.algorithm]] = Cell(run.name, arm)
    return table

"""An experiment as data: its runs, and a table. A cell of the table is an arm of a run, with the paper's figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from synther.baselines.augmentation import AUGMENTATIONS
from synther.experiments.spec import RunSpec
from synther.experiments.specs import STAGE_ONE, OfflineRun, PixelRun
from synther.paper.published import Pair

TITLES = {"td3_bc": "TD3+BC", "iql": "IQL", "edac": "EDAC", "drq_bc": "DrQ+BC", "bc": "BC"}
ORIGINAL, SYNTHER, HALF, REAL_LATENTS, PAIRS = "original", "SynthER", "50-50", "real latents", "SynthER, pairs"
ARM_TITLES = {
    "real": ORIGINAL,
    STAGE_ONE: ORIGINAL,
    "synthetic": SYNTHER,
    "half": HALF,
    "latents": REAL_LATENTS,
    "pairs": PAIRS,
    "actor": "actor's features",
    "critic": "critic's features",
    **{name: f"{name} noise" for name in AUGMENTATIONS},
}

STOPPED = " stopped early"
"""Suffix of the name of an arm: the arm's figures with early stopping, see `Result.stopped`."""


@dataclass(frozen=True)
class Figure:
    """A published number, with its std if there is one."""

    mean: float
    std: float | None = None

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if self.std is None else f"{self.mean:.1f} ± {self.std:.1f}"


@dataclass(frozen=True)
class Cell:
    """An arm of a run. The table shows its final score, or its final return in online experiments."""

    run: str
    arm: str
    paper: Figure | None = None


Rows = dict[str, dict[str, Cell]]
"""Cells by row and column. A column may be missing in a row."""

Contrast = tuple[str, str]
"""Two columns that are compared."""


@dataclass(frozen=True)
class Average:
    """A row with the mean of other rows' means, and with the mean of their stds, as in the paper."""

    name: str
    rows: tuple[str, ...]
    paper: dict[str, Figure]
    """The paper's figures by column."""

    @classmethod
    def of(cls, name: str, rows: Iterable[str], printed: Mapping[str, Sequence[Pair]]) -> Average:
        """Create the row. By algorithm, `printed` has the figures of original data, SynthER and maybe half of each."""
        paper = {
            f"{TITLES.get(title, title)} {kind}": Figure(*pair)
            for title, pairs in printed.items()
            for kind, pair in zip((ORIGINAL, SYNTHER, HALF), pairs, strict=False)
        }
        return cls(name, tuple(rows), paper)


@dataclass(frozen=True)
class Lines:
    """A line plot of columns over rows that have a number: a fraction of the data, or a number of sampled rows."""

    title: str
    places: dict[str, float]
    """The number of each row of the table."""
    columns: tuple[str, ...]
    unit: Literal["share", "rows"] = "share"


@dataclass(frozen=True)
class Experiment:
    name: str
    label: str
    """LaTeX label of the table or figure in the paper. Empty for our own experiments."""
    about: str
    """Short description, used as the title."""
    jobs: tuple[RunSpec, ...]
    table: Rows
    averages: tuple[Average, ...] = ()
    contrasts: tuple[Contrast, ...] = ()
    """Pairs of columns that are compared over all tasks."""
    bars: Literal["rows", "columns"] | None = None
    """Whether the groups of the bar chart are rows or columns. None: no bar chart."""
    lines: tuple[Lines, ...] = ()
    remarks: tuple[str, ...] = ()
    """Notes below the table."""
    pools: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Groups of runs with different seeds that the table shows as one run, by the name of this run in the cells."""
    primary: tuple[Contrast, ...] = ()
    """Pairs of columns that are compared seed by seed, and that answer the question of the experiment."""
    secondary: tuple[Contrast, ...] = ()
    """Further pairs of columns that are compared seed by seed."""

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(column for row in self.table.values() for column in row))

    @property
    def is_online(self) -> bool:
        """Whether agents learn while they act. Then tables show returns after environment steps."""
        return any(job.shown == "returns" for job in self.jobs)

    def chosen(self, only: Sequence[str]) -> list[RunSpec]:
        """Return the jobs with a name that contains one of the texts `only`, or all jobs if there are no texts."""
        return [job for job in self.jobs if not only or any(text in job.name for text in only)]


def cells_of(run: OfflineRun | PixelRun, printed: Sequence[Pair] = (), title: str = "") -> dict[str, Cell]:
    """Return the cells of a run, one column per arm. `printed` has the paper's figures of original data and SynthER."""
    arms = (STAGE_ONE, *run.arms) if isinstance(run, PixelRun) else run.arms
    figures = {kind: Figure(*pair) for kind, pair in zip((ORIGINAL, SYNTHER), printed, strict=False)}
    title = title or TITLES[run.algorithm]
    return {f"{title} {ARM_TITLES[arm]}": Cell(run.name, arm, figures.get(ARM_TITLES[arm])) for arm in arms}


def rows_by_data(
    runs: Iterable[OfflineRun | PixelRun], printed: Mapping[str, Mapping[str, Sequence[Pair]]] | None = None
) -> Rows:
    """Return a table with one row per data set. `printed` has the paper's figures by data set and algorithm."""
    table: Rows = {}
    for run in runs:
        figures = (printed or {}).get(run.data_set, {}).get(run.algorithm, ())
        table.setdefault(run.data_set, {}).update(cells_of(run, figures))
    return table


def contrasts_of(algorithms: Iterable[str], one: str = SYNTHER, other: str = ORIGINAL) -> tuple[Contrast, ...]:
    """Return for each algorithm the pair of columns for two kinds of data."""
    titles = [TITLES.get(name, name) for name in algorithms]
    return tuple((f"{title} {one}", f"{title} {other}") for title in titles)

"""An experiment as data: its runs, and a table whose cells show an arm of a run beside the paper's figure."""

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
"""After the name of an arm: each seed where its TD error in held-out rows was least."""


@dataclass(frozen=True)
class Figure:
    """A published number."""

    mean: float
    std: float | None = None

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if self.std is None else f"{self.mean:.1f} ± {self.std:.1f}"


@dataclass(frozen=True)
class Cell:
    """An arm of a run, shown as its final score or, online, its final return."""

    run: str
    arm: str
    paper: Figure | None = None


Rows = dict[str, dict[str, Cell]]
"""Row to column to cell; a column may be missing from a row."""

Contrast = tuple[str, str]


@dataclass(frozen=True)
class Average:
    """A row with the mean of other rows' means and of their standard deviations, as in the paper."""

    name: str
    rows: tuple[str, ...]
    paper: dict[str, Figure]
    """By column."""

    @classmethod
    def of(cls, name: str, rows: Iterable[str], printed: Mapping[str, Sequence[Pair]]) -> Average:
        """`printed` has, by algorithm, the figures of original data, SynthER and, if given, half of each."""
        kinds = ORIGINAL, SYNTHER, HALF
        paper = {
            f"{TITLES.get(title, title)} {kind}": Figure(*pair)
            for title, pairs in printed.items()
            for kind, pair in zip(kinds, pairs, strict=False)
        }
        return cls(name, tuple(rows), paper)


@dataclass(frozen=True)
class Lines:
    """A line plot of columns over rows that stand for numbers: fractions of the data, or sampled rows."""

    title: str
    places: dict[str, float]
    """Row of the table to its number."""
    columns: tuple[str, ...]
    unit: Literal["share", "rows"] = "share"


@dataclass(frozen=True)
class Experiment:
    name: str
    label: str
    """LaTeX label of the table or figure in the paper; "" for our own experiments."""
    about: str
    jobs: tuple[RunSpec, ...]
    table: Rows
    averages: tuple[Average, ...] = ()
    contrasts: tuple[Contrast, ...] = ()
    """Pairs of columns that are compared over all tasks."""
    bars: Literal["rows", "columns"] | None = None
    """What the groups of the bar chart are; None: no bar chart."""
    lines: tuple[Lines, ...] = ()
    remarks: tuple[str, ...] = ()
    """Notes below the table."""
    pools: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Runs of other seeds that cells show as one, by the name that the cells give."""
    primary: tuple[Contrast, ...] = ()
    """Pairs of columns whose runs are compared seed by seed. They answer the question of the experiment."""
    secondary: tuple[Contrast, ...] = ()
    """More of these."""

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(column for row in self.table.values() for column in row))

    @property
    def is_online(self) -> bool:
        """Whether agents learn while they act: tables then show returns after environment steps."""
        return any(job.shown == "returns" for job in self.jobs)

    def chosen(self, only: Sequence[str]) -> list[RunSpec]:
        """The jobs whose names contain one of these texts; all jobs if there are none."""
        return [job for job in self.jobs if not only or any(text in job.name for text in only)]


def cells_of(run: OfflineRun | PixelRun, printed: Sequence[Pair] = (), title: str = "") -> dict[str, Cell]:
    """A column per arm; `printed` has the paper's figures of original data and of SynthER."""
    known = dict(zip((ORIGINAL, SYNTHER), printed, strict=False))
    cells = {}
    for arm in (STAGE_ONE, *run.arms) if isinstance(run, PixelRun) else run.arms:
        kind = ARM_TITLES[arm]
        figure = Figure(*known[kind]) if kind in known else None
        cells[f"{title or TITLES[run.algorithm]} {kind}"] = Cell(run.name, arm, figure)
    return cells


def rows_by_data(
    runs: Iterable[OfflineRun | PixelRun], printed: Mapping[str, Mapping[str, Sequence[Pair]]] | None = None
) -> Rows:
    """A row per data set; `printed` has the paper's figures by data set and algorithm."""
    table: Rows = {}
    for run in runs:
        figures = (printed or {}).get(run.data_set, {}).get(run.algorithm, ())
        table.setdefault(run.data_set, {}).update(cells_of(run, figures))
    return table


def contrasts_of(algorithms: Iterable[str], one: str = SYNTHER, other: str = ORIGINAL) -> tuple[Contrast, ...]:
    titles = [TITLES.get(name, name) for name in algorithms]
    return tuple((f"{title} {one}", f"{title} {other}") for title in titles)

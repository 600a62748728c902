"""What an experiment is: runs, and a table whose cells show an arm of a run beside the paper's figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from synther.experiments.spec import RunSpec


@dataclass(frozen=True)
class Figure:
    """A published number."""

    mean: float
    std: float | None = None

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if self.std is None else f"{self.mean:.1f} ± {self.std:.1f}"


@dataclass(frozen=True)
class Cell:
    """An arm of a run, of which the table shows the final score, or online the final return."""

    run: str
    arm: str
    paper: Figure | None = None


@dataclass(frozen=True)
class Average:
    """A line below the others: the means of their means and of their deviations, as the paper has it."""

    name: str
    rows: tuple[str, ...]
    paper: dict[str, Figure]
    """By column."""


@dataclass(frozen=True)
class Contrast:
    """Two columns, task by task: is the one better than the other?"""

    one: str
    other: str


@dataclass(frozen=True)
class Lines:
    """A picture of columns along places that have a number: shares of the data, or rows that were sampled."""

    title: str
    places: dict[str, float]
    """Row of the table to its number."""
    columns: tuple[str, ...]
    unit: Literal["share", "rows"] = "share"


@dataclass(frozen=True)
class Experiment:
    name: str
    label: str
    """Of the table or figure in the paper, or "" for one of our own."""
    about: str
    jobs: tuple[RunSpec, ...]
    table: dict[str, dict[str, Cell]]
    """Row to column to cell; a column may be missing from a row."""
    averages: tuple[Average, ...] = ()
    contrasts: tuple[Contrast, ...] = ()
    bars: Literal["rows", "columns"] | None = None
    """What the groups of a bar chart are, where there is one."""
    lines: tuple[Lines, ...] = ()
    remarks: tuple[str, ...] = field(default=())
    """What a reader of the table must know."""

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(column for row in self.table.values() for column in row))

    @property
    def is_online(self) -> bool:
        """Whether agents learn while they act: tables then show returns, after steps, as the paper does."""
        return any(job.shown == "returns" for job in self.jobs)

    def chosen(self, only: Sequence[str]) -> list[RunSpec]:
        """The jobs whose name has one of these texts in it; all, where there are none."""
        return [job for job in self.jobs if not only or any(text in job.name for text in only)]

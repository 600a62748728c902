"""The table of a comparison: a row for each generator, kept as JSON and shown as Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from synther.assess.dynamics import Simulator, dynamics_error
from synther.assess.fidelity import compare
from synther.assess.neighbours import novelty
from synther.data.transitions import Transitions
from synther.durable import replacing
from synther.folder import write_object
from synther.plots import markdown

SIMULATED_ROWS = 20_000
"""Rows that the simulator follows; more move the median by less than a hundredth of it."""

HEADER = (
    "generator",
    "marginal",
    "worst column",
    "correlation",
    "dynamics error",
    "novelty",
    "terminals",
    "seconds to fit",
    "parameters",
)

SHORT_HEADER = ("generator", "marginal", "worst", "corr.", "dynamics", "novelty", "ends")
"""For a terminal of 80 columns; the rest is in the files."""


@dataclass(frozen=True)
class Row:
    """One generator's figures; None is what nobody could measure."""

    name: str
    marginal: float
    worst_value: float
    worst_column: str
    correlation: float | None
    dynamics: float | None
    novelty: float
    terminal_rate: float
    seconds: float | None = None
    parameters: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Row:
        return cls(**{known.name: entry[known.name] for known in fields(cls)})

    def cells(self) -> tuple[str, ...]:
        """In the order of `HEADER`."""
        return (
            self.name,
            f"{self.marginal:.4f}",
            f"{self.worst_value:.3f} {self.worst_column}",
            _figure(self.correlation, ".4f"),
            _figure(self.dynamics, ".5f"),
            f"{self.novelty:.2f}",
            f"{self.terminal_rate:.2%}",
            _figure(self.seconds, ".1f"),
            _figure(self.parameters or None, ",d"),
        )

    def short_cells(self) -> tuple[str, ...]:
        """In the order of `SHORT_HEADER`."""
        name, marginal, _, *rest = self.cells()[: len(SHORT_HEADER)]
        return (name, marginal, f"{self.worst_value:.3f}", *rest)


def measured(name: str, real: Transitions, made: Transitions, judge: Simulator | None, seed: int, **more: Any) -> Row:
    """The figures of `made` against `real`; the `judge` knows the true next observations."""
    found = compare(real, made, seed=seed)
    error = None
    if judge is not None:
        few = made if len(made) <= SIMULATED_ROWS else made.subsample(SIMULATED_ROWS / len(made), seed)
        error = dynamics_error(few, judge(few.observation, few.action)[0], real)
    return Row(
        name,
        found.marginal,
        found.worst_value,
        found.worst_column,
        _finite(found.correlation),
        _finite(error),
        novelty(real, made, seed=seed),
        found.terminal_rate_synthetic,
        **more,
    )


def write(folder: Path, table: Sequence[Row], origin: Mapping[str, str]) -> None:
    """`comparison.json` and `comparison.md`."""
    write_object(folder / "comparison.json", {"origin": dict(origin), "generators": [row.to_json() for row in table]})
    with replacing(folder / "comparison.md") as beside:
        beside.write_text(_markdown(table, origin))


def _markdown(table: Sequence[Row], origin: Mapping[str, str]) -> str:
    """Where the table comes from, the table, and the settings that were found."""
    drawn = markdown.table([HEADER, *(row.cells() for row in table)])
    found = [
        f"- {row.name}: {', '.join(f'{option} {value}' for option, value in row.settings.items())}"
        for row in table
        if row.settings and row.name != "diffusion"  # whose many settings are in the JSON
    ]
    return "\n".join([*markdown.head(origin), "", *drawn, *(["", "Settings:", "", *found] if found else []), ""])


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None

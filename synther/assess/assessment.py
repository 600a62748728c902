"""What an assessment holds: plain data, made by `judge.assess`, drawn by `report.write`, kept as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Better = Literal["higher", "lower", "nearer"]
"""`nearer`: no end of the range is best, only the figure of real rows."""

Decision = Literal["use", "mix", "do not use"]

FORMAT = "synther-assessment-1"


@dataclass(frozen=True)
class Measure:
    """One figure, beside that of held-out real rows."""

    name: str
    """For machines: `marginal`, `terminal_rate`."""
    label: str
    """For people: "Marginal similarity"."""
    group: str
    """The heading it stands under."""
    value: float | None
    """None where it cannot be worked out."""
    real: float | None
    """The same measure of held-out real rows: as good as real."""
    better: Better
    low: float | None
    """The ends of its range; None is without end."""
    high: float | None
    about: str
    """One sentence: what it says, and why one cares."""
    chance: float = 0.0
    """How far the figure may be off by chance alone: about two standard errors; 0 where that is not known."""
    detail: str = ""
    """What the figure is of, where that matters: the worst column, the worst pair of columns."""


@dataclass(frozen=True)
class Column:
    """One column of the rows, real against synthetic."""

    name: str
    similarity: float
    """1 - KS: 1 is the same distribution."""
    similarity_real: float
    """The same of held-out real rows."""
    real_mean: float
    real_std: float
    synthetic_mean: float
    synthetic_std: float
    outside: float
    """Share of synthetic values beyond the declared bounds, or beyond the real range where there are none."""
    edges: tuple[float, ...]
    """Of the histogram's bins, one more than there are bins."""
    real_shares: tuple[float, ...]
    """Share of the rows in each bin."""
    synthetic_shares: tuple[float, ...]


@dataclass(frozen=True)
class Correlations:
    """Pearson's r of every pair of columns, (D, D) row by row; columns in the order of `Assessment.columns`."""

    real: tuple[tuple[float, ...], ...]
    synthetic: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Cloud:
    """The paper's figure of diversity: novelty against dynamics error, one point a row."""

    judge: str
    """Who knows the true next observation: "Walker2d-v5 in MuJoCo" or "7 dynamics models"."""
    synthetic: tuple[tuple[float, float], ...]
    """(novelty, dynamics error)"""
    real: tuple[tuple[float, float], ...]
    """The same of held-out real rows."""


@dataclass(frozen=True)
class Process:
    """Rows on their way from noise to data, in the plane of the real rows' two main directions."""

    sigmas: tuple[float, ...]
    """Noise level of each step shown."""
    real: tuple[tuple[float, float], ...]
    steps: tuple[tuple[tuple[float, float], ...], ...]
    """For each noise level the same rows' places."""
    explained: float
    """Share of the variance that lies in the plane."""
    frames: tuple[str, ...] = ()
    """One row's states rendered along the way: PNG in base64, one for each noise level, where it can be rendered."""


@dataclass(frozen=True)
class Effort:
    """The quality that a number of network calls buys."""

    sampler: str
    calls: int
    marginal: float
    correlation: float
    dynamics: float | None
    seconds: float


@dataclass(frozen=True)
class Reason:
    """One of the measures that decided."""

    measure: str
    """`Measure.name`"""
    says: Decision
    text: str
    """One sentence with the figures in it."""


@dataclass(frozen=True)
class Verdict:
    decision: Decision
    sentence: str
    reasons: tuple[Reason, ...]
    """Everything that speaks against `use`, the weightiest first, then what the main measures say."""


@dataclass(frozen=True)
class Assessment:
    rows_real: int
    rows_synthetic: int
    rows_held_out: int
    env_id: str | None
    real_name: str
    """Where the rows came from, for the title."""
    synthetic_name: str
    verdict: Verdict
    measures: tuple[Measure, ...]
    columns: tuple[Column, ...]
    correlations: Correlations
    cloud: Cloud | None = None
    process: Process | None = None
    efforts: tuple[Effort, ...] = ()
    notes: tuple[str, ...] = field(default=())
    """What was left out, and why: "no simulator for MyEnv-v0: an ensemble of dynamics models judges instead"."""
    version: str = ""
    """Of SynthER, with its commit where that is known."""
    command: str = ""
    """The command line that made it, where there was one."""

    def measure(self, name: str) -> Measure:
        return next(measure for measure in self.measures if measure.name == name)

    def worst_columns(self) -> tuple[Column, ...]:
        """All columns, the least alike first."""
        return tuple(sorted(self.columns, key=lambda column: column.similarity))

    def to_json(self) -> dict[str, Any]:
        """Plain data that strict JSON can hold: what is no finite number is None."""
        plain: dict[str, Any] = _finite({"format": FORMAT, **asdict(self)})
        return plain


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return value

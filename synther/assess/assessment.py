"""The result of an assessment as plain data. `judge.assess` makes it, `report.write` draws it, `to_json` saves it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Better = Literal["higher", "lower", "nearer"]
"""Which figures of a measure are better. `nearer` means that the figure of real rows is best."""

Decision = Literal["use", "mix", "do not use"]

FORMAT = "synther-assessment-1"


@dataclass(frozen=True)
class Measure:
    """The figure of a metric for synthetic rows, and the same figure for held-out real rows."""

    name: str
    """Name in JSON and in Python, such as `marginal`."""
    label: str
    """Name in the report, such as "Marginal similarity"."""
    group: str
    """Heading in the report."""
    value: float | None
    """Figure of the synthetic rows; None if it cannot be computed."""
    real: float | None
    """Figure of held-out real rows. Synthetic rows that reach it are as good as real rows."""
    better: Better
    """Whether higher or lower figures are better, or figures near `real`."""
    low: float | None
    """Lower end of the range; None if it has no lower end."""
    high: float | None
    """Upper end of the range; None if it has no upper end."""
    about: str
    """What the figure measures, and why it matters."""
    chance: float = 0.0
    """How far the figure can be off by chance, about two standard errors; 0 if unknown."""
    detail: str = ""
    """More about the figure, such as the worst column or the worst pair of columns."""


@dataclass(frozen=True)
class Column:
    """Figures and histograms of one column in real and in synthetic rows."""

    name: str
    similarity: float
    """1 - Kolmogorov-Smirnov statistic; 1 means the same distribution."""
    similarity_real: float
    """The same for held-out real rows."""
    real_mean: float
    real_std: float
    synthetic_mean: float
    synthetic_std: float
    outside: float
    """Share of synthetic values outside the declared bounds, or outside the range of real values if none are
    declared."""
    edges: tuple[float, ...]
    """Edges of the bins of both histograms. There is one more edge than bins."""
    real_shares: tuple[float, ...]
    """Share of the real rows in each bin."""
    synthetic_shares: tuple[float, ...]
    """Share of the synthetic rows in each bin."""


@dataclass(frozen=True)
class Correlations:
    """Pearson's r of every pair of columns, as (D, D) matrices. Columns are in the order of `Assessment.columns`."""

    real: tuple[tuple[float, ...], ...]
    synthetic: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Cloud:
    """Points of the paper's diversity plot: novelty and dynamics error of each row."""

    judge: str
    """What gives the true next observations, such as "Walker2d-v5 in MuJoCo" or "3 networks fitted on real rows"."""
    synthetic: tuple[tuple[float, float], ...]
    """(novelty, dynamics error) of each synthetic row."""
    real: tuple[tuple[float, float], ...]
    """(novelty, dynamics error) of each held-out real row."""


@dataclass(frozen=True)
class Process:
    """Rows during sampling, from noise to data, projected on the first two principal components of the real rows."""

    sigmas: tuple[float, ...]
    """Noise level of each step that is shown."""
    real: tuple[tuple[float, float], ...]
    """Projected real rows."""
    steps: tuple[tuple[tuple[float, float], ...], ...]
    """Projected rows at each noise level. The rows are the same at all levels."""
    explained: float
    """Share of the variance of the real rows that the two components explain."""
    frames: tuple[str, ...] = ()
    """Rendered state of one row at each noise level, PNG in base64. Empty if the environment cannot be rendered."""


@dataclass(frozen=True)
class Effort:
    """Quality of the rows of one sampler."""

    sampler: str
    calls: int
    """Number of network calls for each row."""
    marginal: float
    correlation: float
    dynamics: float | None
    """Dynamics error; None without a simulator."""
    seconds: float
    """Time to draw the rows."""


@dataclass(frozen=True)
class Reason:
    """The vote of one measure."""

    measure: str
    """`Measure.name`"""
    says: Decision
    """The decision that this measure votes for."""
    text: str
    """The reason in words, with the figures."""


@dataclass(frozen=True)
class Verdict:
    """What to do with the synthetic rows, and why."""

    decision: Decision
    sentence: str
    """The decision in words."""
    reasons: tuple[Reason, ...]
    """All votes against `use`, the worst first, then the votes of the main measures."""


@dataclass(frozen=True)
class Assessment:
    """Everything that an assessment found: verdict, measures, and the data of the report's figures."""

    rows_real: int
    rows_synthetic: int
    rows_held_out: int
    env_id: str | None
    real_name: str
    """Name of the real rows in the report, such as their file name."""
    synthetic_name: str
    """Name of the synthetic rows in the report."""
    verdict: Verdict
    measures: tuple[Measure, ...]
    columns: tuple[Column, ...]
    correlations: Correlations
    cloud: Cloud | None = None
    process: Process | None = None
    efforts: tuple[Effort, ...] = ()
    notes: tuple[str, ...] = field(default=())
    """What was left out, and why, such as "no simulator: networks fitted on real rows judge ..."."""
    version: str = ""
    """Version of SynthER, with its commit if that is known."""
    command: str = ""
    """The command line that made the assessment, if there was one."""

    def measure(self, name: str) -> Measure:
        """Return the measure with this name."""
        return next(measure for measure in self.measures if measure.name == name)

    def worst_columns(self) -> tuple[Column, ...]:
        """Return all columns, the least similar first."""
        return tuple(sorted(self.columns, key=lambda column: column.similarity))

    def to_json(self) -> dict[str, Any]:
        """Return the assessment as plain data for strict JSON. Numbers that are not finite become None."""
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

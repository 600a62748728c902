"""What is asked of rows: conditions, rows to start from, a guide, given fields, what to keep or replace, a sampler.

`Synthesizer.sample` describes the arguments. Here they are checked, and turned into what draws and picks the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from synther.conditions import Asking, first_rows
from synther.data.checks import check_count
from synther.data.transitions import Transitions
from synther.diffusion.blocks import Known, Like
from synther.diffusion.config import DISTILLED, SamplerConfig
from synther.errors import ConfigError, DataError
from synther.guides import Gradient, Guide, gradient_guide
from synther.model_file import Fitted, Student
from synther.presets import Settings
from synther.synthesizer.drawing import Wishes
from synther.synthesizer.picking import Choice, Relabel

Sampler = SamplerConfig | Mapping[str, Any] | str
"""Another than the model's own: whole, some options in which it differs, such as {"steps": 32}, or its kind. "teacher"
is the model's own as if it had no student, "distilled" is its student's."""
TEACHER = "teacher"


@dataclass(frozen=True)
class Requests:
    """The arguments of `Synthesizer.sample` that say which rows are wanted. By default nothing is asked of them."""

    condition: Any = None
    guidance: float | Mapping[str, float] = 1.0
    like: Transitions | None = None
    strength: float = 0.5
    guide: Guide | Gradient | None = None
    given: Mapping[str, ArrayLike] | None = None
    keep: float = 1.0
    relabel: Relabel | None = None

    def count(self, count: int | None) -> int:
        """How many rows are asked for: as many as are given."""
        if not self.given:
            return check_count(count)
        there = len(np.atleast_1d(np.asarray(next(iter(self.given.values())))))
        if count not in (None, there):
            raise ConfigError(f"given: there are {there} rows, and {count} were asked for: leave the count out")
        return check_count(there)

    def choice(self, model: Fitted) -> Choice:
        """Which rows are kept, and what is replaced in them."""
        if self.given is not None and (self.like is not None or self.keep < 1):
            raise ConfigError("given: expected neither like nor keep, which choose rows, when these are given")
        return Choice.of(self.keep, self.relabel, model.ensemble)

    def wishes(self, model: Fitted) -> Wishes:
        """What the rows are to be, in the terms of the network."""
        for option in ("given", "like", "guide"):
            if getattr(self, option) is not None:
                check_generated(model, option)
        known = self._known(model)
        return Wishes(self._asking(model), self._like(model), self._guide(), known)

    @cached_property
    def fields(self) -> dict[str, NDArray[Any]]:
        """The fields that are given, by name."""
        if self.given is None:
            return {}
        if not self.given or not set(self.given) <= {"observation", "action"}:
            raise ConfigError(f"given: expected observation, action or both, got {', '.join(self.given) or 'nothing'}")
        fields = {name: np.asarray(values) for name, values in self.given.items()}
        counts = {name: len(values) if values.ndim else 0 for name, values in fields.items()}
        if len(set(counts.values())) != 1 or not min(counts.values()):
            raise DataError(f"given: expected as many observations as actions, at least one, got {counts}")
        for name, values in fields.items():
            if values.dtype.kind not in "iufb" or not np.isfinite(values).all():
                raise DataError(f"given: expected finite numbers as {name}")
        return fields

    def fill(self, block: Transitions, first: int) -> None:
        """Put the given values, not even rounded, into the rows from number `first` on."""
        for name, values in self.fields.items():
            field = getattr(block, name)
            field[:] = values[first : first + len(block)].reshape(field.shape)

    def _known(self, model: Fitted) -> Known | None:
        if self.given is None:
            return None
        layout, fields = model.layout, self.fields
        columns = [column for name in fields for column in layout.columns_of(name)]
        scaled = _on_device(model, model.scaler.transform(layout.pack_fields(fields))[:, columns])
        return Known(columns, scaled, model.moments.covariance.to(scaled.device))

    def _asking(self, model: Fitted) -> Asking | None:
        asking = model.conditions.asking(self.condition, self.guidance)
        is_partly_known = self.like is not None or self.guide is not None
        if asking is not None and self.given is not None:  # nothing says that a given row begins an episode
            return replace(asking, starts=0.0, hidden=True)
        if asking is not None and is_partly_known and model.conditions.named:
            return replace(asking, hidden=True)
        return None if self.condition is None else asking

    def _like(self, model: Fitted) -> Like | None:
        rows = self.like
        if rows is None:
            return None
        if not 0 < self.strength <= 1:
            raise ConfigError(f"strength must lie in (0, 1], got {self.strength}")
        if not len(rows):
            raise DataError("like: expected at least one row to begin from")
        matrix = _on_device(model, model.scaler.transform(model.layout.pack(rows)))
        if model.conditions.starts is None:
            return Like(matrix, self.strength)
        first = first_rows(rows)
        known = np.zeros(len(rows), bool) if first is None else first
        return Like(matrix, self.strength, torch.from_numpy(known).to(matrix))

    def _guide(self) -> Guide | None:
        if self.guide is None:
            return None
        found = self.guide if isinstance(self.guide, Guide) else gradient_guide(self.guide)
        return found if found.strength else None  # one without strength changes nothing, not even the sampler


def _on_device(model: Fitted, matrix: NDArray[Any]) -> Tensor:
    """A scaled matrix (N, D) where the network is."""
    return torch.from_numpy(matrix.astype(np.float32)).to(model.network.frequencies.device)


def check_generated(model: Fitted, option: str) -> None:
    """Refuse an option that needs a network where rows are drawn from a table."""
    if model.table is not None:
        advice = "fit with data.finite 'generated'"
        raise ConfigError(f"{option}: the rows of this model are drawn from a table, not generated: {advice}")


def chosen_sampler(
    sampler: Sampler | None, settings: Settings, student: Student | None, *, asked: bool
) -> SamplerConfig:
    """The sampler to draw rows with: by default the student's, where there is one and nothing is asked of the rows."""
    if sampler is None:
        sampler = TEACHER if student is None or asked else DISTILLED
    if sampler == TEACHER:
        return settings.sampler
    if sampler == DISTILLED and student is not None:
        sampler = student.sampler
    if isinstance(sampler, str):
        sampler = {"kind": sampler}
    if isinstance(sampler, Mapping) and sampler.get("kind") != DISTILLED:
        return settings.changed(sampler=sampler).sampler
    if not isinstance(sampler, SamplerConfig) or sampler.kind == DISTILLED:
        if student is None or sampler != student.sampler:
            there = "no student" if student is None else f"a student of {student.sampler.network_calls} calls"
            raise ConfigError(f"sampler {DISTILLED!r}: this model has {there}: `distill(calls=2)` makes one")
        if asked:
            raise ConfigError(
                f"sampler {DISTILLED!r}: a student draws only rows that nothing is asked of: leave the sampler out"
            )
    return sampler

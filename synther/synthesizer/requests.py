"""`Requests`: the arguments of `Synthesizer.sample`, such as a condition, a guide or given fields.

`Synthesizer.sample` documents the arguments. Here they are checked and converted: to `Constraints`, with which rows are
generated (drawing.py), to a `Choice` of the rows to keep (picking.py), and to a sampler.
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

from synther.conditions import ConditionSampler
from synther.data.checks import check_count
from synther.data.transitions import Transitions
from synther.diffusion.blocks import Known, Like
from synther.diffusion.config import DISTILLED, SamplerConfig
from synther.errors import ConfigError, DataError
from synther.guides import Gradient, Guide, gradient_guide
from synther.model_file import Fitted, Student
from synther.presets import Settings
from synther.synthesizer.drawing import Constraints
from synther.synthesizer.picking import Choice, Relabel
from synther.synthesizer.row_conditions import first_rows

Sampler = SamplerConfig | Mapping[str, Any] | str
"""A sampler that differs from the model's own: a `SamplerConfig`, a dict of the options that differ, such as {"steps":
32}, or the name of its kind. "teacher" is the model's own sampler without the student, and "distilled" is the
student's."""
TEACHER = "teacher"
"""Name of the model's own sampler, with the fitted network instead of the student."""


@dataclass(frozen=True)
class Requests:
    """The arguments of `Synthesizer.sample` that request certain rows. By default rows are like all real rows."""

    condition: Any = None
    guidance: float | Mapping[str, float] = 1.0
    like: Transitions | None = None
    strength: float = 0.5
    guide: Guide | Gradient | None = None
    given: Mapping[str, ArrayLike] | None = None
    keep: float = 1.0
    relabel: Relabel | None = None

    def count(self, count: int | None) -> int:
        """Return the number of rows to generate. With `given`, this is the number of given rows, and with `like` by
        default too."""
        if not isinstance(self.given, Mapping | None):
            raise ConfigError(f"given must be a dict with observation, action or both, got {type(self.given).__name__}")
        if not self.given:
            like = len(self.like) if isinstance(self.like, Transitions) and len(self.like) else None
            return check_count(like if count is None else count)
        given = len(np.atleast_1d(np.asarray(next(iter(self.given.values())))))
        if count not in (None, given):
            raise ConfigError(f"given: there are {given} rows, but the count is {count}: leave the count out")
        return check_count(given)

    def choice(self, model: Fitted) -> Choice:
        """Return the checked options `keep` and `relabel`."""
        if self.given is not None and (self.like is not None or self.keep < 1):
            raise ConfigError("given: it cannot be combined with like or keep, because these choose rows themselves")
        return Choice.of(self.keep, self.relabel, model.ensemble)

    def constraints(self, model: Fitted) -> Constraints:
        """Return the constraints under which `model` generates the rows."""
        for option in ("given", "like", "guide"):
            if getattr(self, option) is not None:
                check_generated(model, option)
        known = self._known(model)
        return Constraints(self._conditions(model), self._like(model), self._guide(), known)

    @cached_property
    def fields(self) -> dict[str, NDArray[Any]]:
        """The checked fields of `given`, by name."""
        if self.given is None:
            return {}
        if not self.given or not set(self.given) <= {"observation", "action"}:
            raise ConfigError(f"given: expected observation, action or both, got {', '.join(self.given) or 'nothing'}")
        fields = {name: np.asarray(values) for name, values in self.given.items()}
        counts = {name: len(values) if values.ndim else 0 for name, values in fields.items()}
        if len(set(counts.values())) != 1 or not min(counts.values()):
            raise DataError(f"given: expected the same number of observations and actions, at least 1, got {counts}")
        for name, values in fields.items():
            if values.dtype.kind not in "iufb" or not np.isfinite(values).all():
                raise DataError(f"given: expected finite numbers as {name}")
        return fields

    def fill(self, block: Transitions, first: int) -> None:
        """Copy the given values into a block of generated rows, so that they are exact. `first` is the number of the
        block's first row."""
        for name, values in self.fields.items():
            field = getattr(block, name)
            field[:] = values[first : first + len(block)].reshape(field.shape)

    def _known(self, model: Fitted) -> Known | None:
        """Return the given fields as scaled columns."""
        if self.given is None:
            return None
        layout, fields = model.layout, self.fields
        columns = [column for name in fields for column in layout.columns_of(name)]
        scaled = _on_device(model, model.scaler.transform(layout.pack_fields(fields))[:, columns])
        return Known(columns, scaled, model.moments.covariance.to(scaled.device))

    def _conditions(self, model: Fitted) -> ConditionSampler | None:
        """Return the object that draws the conditions of the rows. None for the default: conditions like those of real
        rows."""
        sampler = model.conditions.asking(self.condition, self.guidance)
        is_partly_known = self.like is not None or self.guide is not None
        if sampler is not None and self.given is not None:  # it is not known whether a given row is an episode start
            return replace(sampler, starts=0.0, hidden=True)
        if sampler is not None and is_partly_known and model.conditions.named:
            return replace(sampler, hidden=True)
        return None if self.condition is None else sampler

    def _like(self, model: Fitted) -> Like | None:
        """Return the rows of `like`, scaled, and which of them are episode starts."""
        rows = self.like
        if rows is None:
            return None
        if not isinstance(rows, Transitions):
            raise DataError(f"like: expected Transitions, got {type(rows).__name__}")
        if not 0 < self.strength <= 1:
            raise ConfigError(f"strength must lie in (0, 1], got {self.strength}")
        if not len(rows):
            raise DataError("like: expected at least one row to start from, got none")
        matrix = _on_device(model, model.scaler.transform(model.layout.pack(rows)))
        if model.conditions.starts is None:
            return Like(matrix, self.strength)
        first = first_rows(rows)
        known = np.zeros(len(rows), bool) if first is None else first
        return Like(matrix, self.strength, torch.from_numpy(known).to(matrix))

    def _guide(self) -> Guide | None:
        """Return the guide. None for a guide of strength 0: such a guide must not even affect the choice of the
        sampler."""
        if self.guide is None:
            return None
        guide = self.guide if isinstance(self.guide, Guide) else gradient_guide(self.guide)
        return guide if guide.strength else None


def _on_device(model: Fitted, matrix: NDArray[Any]) -> Tensor:
    """Copy a scaled matrix (N, D) to the device of the network."""
    return torch.from_numpy(matrix.astype(np.float32)).to(model.network.frequencies.device)


def check_generated(model: Fitted, option: str) -> None:
    """Refuse an option that needs a network, if the rows of `model` are drawn from a table."""
    if model.table is not None:
        advice = "fit with data.finite 'generated'"
        raise ConfigError(f"{option}: the rows of this model are drawn from a table, not generated: {advice}")


def chosen_sampler(
    sampler: Sampler | None, settings: Settings, student: Student | None, *, asked: bool
) -> SamplerConfig:
    """Return the sampler for an argument `sampler` of `Synthesizer.sample`. See `Synthesizer.sampler_for`."""
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
            existing = "no student" if student is None else f"a student of {student.sampler.network_calls} calls"
            raise ConfigError(f"sampler {DISTILLED!r}: this model has {existing}: `distill(calls=2)` makes one")
        if asked:
            raise ConfigError(
                f"sampler {DISTILLED!r}: a student cannot use a condition, like, guide or given: leave the sampler out"
            )
    return sampler

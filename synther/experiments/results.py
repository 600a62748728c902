"""Measurements of agents during their training, the log of measurements, and the result of a run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from synther import schema
from synther.durable import replacing
from synther.envs.evaluation import Evaluation
from synther.errors import ConfigError, FormatError
from synther.folder import ANOTHER, append_line

Episodes = list[list[float] | None]
"""For each member one number per episode, or None if the member has diverged."""

Unit = Literal["updates", "env_steps"]
"""Unit of time in the files of a run. Online runs count environment steps."""

_HELD_OUT = "held_out_td_error"
"""Name of the TD error on held-out rows among the losses of agents."""

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Measurement:
    """Losses, returns and scores of all members at one time of their training."""

    updates: int
    seconds: float
    """Training time so far. For an interrupted run: the sum over all processes."""
    losses: dict[str, list[float | None]]
    """For each loss one number per member, or None if it is not finite."""
    returns: Episodes | None = None
    """None without an evaluation."""
    scores: Episodes | None = None
    """Normalised returns. None if no reference returns are known."""

    @classmethod
    def of(
        cls, updates: int, seconds: float, losses: Mapping[str, NDArray[Any]], evaluation: Evaluation | None
    ) -> Measurement:
        plain = {
            name: [value if math.isfinite(value) else None for value in map(float, values)]
            for name, values in losses.items()
        }
        if evaluation is None:
            return cls(updates, seconds, plain)
        scores = None if evaluation.scores is None else episodes_of(evaluation.scores)
        return cls(updates, seconds, plain, episodes_of(evaluation.returns), scores)

    @property
    def diverged(self) -> list[bool]:
        """For each member, whether its losses or actions are not finite. They never become finite again."""
        known: list[Sequence[object]] = [*self.losses.values(), *([] if self.returns is None else [self.returns])]
        return [any(value is None for value in of_a_member) for of_a_member in zip(*known, strict=True)]

    @property
    def mean_returns(self) -> list[float | None] | None:
        """The mean return over the episodes of each member."""
        return None if self.returns is None else _means(self.returns)

    @property
    def mean_scores(self) -> list[float | None] | None:
        return None if self.scores is None else _means(self.scores)


class Log:
    """`log.jsonl`, with one JSON object per line. A line is written to disk before the run continues.

    When a run is resumed, the measurements at the `expected` updates are kept. Later measurements, the measurement at
    the end of a shorter run, and an incomplete line are dropped. `again` allows that the last expected measurement is
    missing, because the training has not gone on after it and can repeat it.
    """

    def __init__(self, path: Path, expected: Sequence[int], *, again: bool = True, unit: Unit = "updates") -> None:
        self.path, self.unit = path, unit
        text = path.read_text() if path.exists() else ""
        self.measurements: list[Measurement] = []
        for line in text.splitlines(keepends=True):
            with suppress(ValueError, TypeError, KeyError, AttributeError):  # the line is incomplete or damaged
                found = json.loads(line)
                measured = Measurement(updates=found.pop(unit), **found)
                if line.endswith("\n") and measured.updates in expected:
                    self.measurements.append(measured)
        kept_at = [found.updates for found in self.measurements]
        if kept_at != list(expected) and not (again and kept_at == list(expected[:-1])):
            raise ConfigError(f"{path} has lost lines that were in it: {ANOTHER}")
        kept = "".join(_line(found, unit) for found in self.measurements)
        if kept != text:
            with replacing(path) as beside:
                beside.write_text(kept)

    def append(self, measurement: Measurement) -> None:
        append_line(self.path, _line(measurement, self.unit))
        self.measurements.append(measurement)


def by_arm(values: Sequence[_Value], arms: Sequence[str]) -> dict[str, Sequence[_Value]]:
    """Split values, one per member, by arm. The seeds of the first arm come first."""
    seeds = len(values) // len(arms)
    return {arm: values[place * seeds : (place + 1) * seeds] for place, arm in enumerate(arms)}


def _line(measurement: Measurement, unit: Unit) -> str:
    found = asdict(measurement)
    return json.dumps({unit: found.pop("updates"), **found}, allow_nan=False) + "\n"


def episodes_of(found: NDArray[np.float64]) -> Episodes:
    """Convert (members, episodes) to lists. Members with numbers that are not finite become None."""
    return [row.tolist() if np.isfinite(row).all() else None for row in found]


def _means(episodes: Episodes) -> list[float | None]:
    return [None if of_a_member is None else float(np.mean(of_a_member)) for of_a_member in episodes]


@dataclass(frozen=True)
class MeanStd:
    """Mean and standard deviation over the seeds that have a number. The std of one seed is 0."""

    mean: float
    std: float
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float | None]) -> MeanStd | None:
        """Return mean and std of the values that are not None, or None if there are none."""
        there = [value for value in values if value is not None]
        return cls(float(np.mean(there)), float(np.std(there)), len(there)) if there else None

    def __str__(self) -> str:
        """Return `mean ± std`, or only the mean if there is one seed."""
        return f"{self.mean:,.1f}" + (f" ± {self.std:,.1f}" if self.seeds > 1 else "")


@dataclass(frozen=True)
class EvalPoint:
    """Returns and scores of an arm at one time of its training."""

    updates: int
    """Number of updates, or of steps in an online run."""
    returns: tuple[float | None, ...]
    """For each seed the mean over its episodes. None if the seed has diverged: then mean and std exclude it."""
    scores: tuple[float | None, ...] | None
    """The normalised returns. None if no reference returns are known."""
    held_out: tuple[float | None, ...] | None = None
    """For each seed the TD error on held-out rows. None if no rows are held out."""

    @property
    def diverged(self) -> int:
        """Number of seeds that mean and std exclude."""
        return self.returns.count(None)

    @property
    def spread_of_returns(self) -> MeanStd | None:
        """Mean and std of the returns over the seeds. None if all seeds have diverged."""
        return MeanStd.of(self.returns)

    @property
    def spread_of_scores(self) -> MeanStd | None:
        """Mean and std of the scores over the seeds. None if all seeds have diverged or there are no scores."""
        return None if self.scores is None else MeanStd.of(self.scores)

    def to_json(self, unit: Unit = "updates") -> dict[str, Any]:
        """Return the fields, and mean, std and number of seeds of returns and scores."""
        spreads = {"return": self.spread_of_returns, "score": self.spread_of_scores}
        plain = {name: None if spread is None else asdict(spread) for name, spread in spreads.items()}
        own = asdict(self)
        if self.held_out is None:  # results of earlier versions do not have this key
            del own["held_out"]
        return {unit: own.pop("updates"), **own, **plain, "diverged": self.diverged}


@dataclass(frozen=True)
class Result:
    updates: int
    seconds: float
    curves: dict[str, tuple[EvalPoint, ...]]
    """The evaluations of each arm. Empty without evaluation."""
    diverged: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """For each arm, the indices of the seeds that had diverged at the end."""
    seconds_of: dict[str, float] = field(default_factory=dict)
    """The seconds of each kind of work."""
    origin: dict[str, str] = field(default_factory=dict)
    """Version, machine and libraries, as text."""
    unit: Unit = "updates"
    """Unit of `updates`."""

    @classmethod
    def of(cls, measurements: Sequence[Measurement], arms: Sequence[str], unit: Unit = "updates") -> Result:
        last = measurements[-1]
        curves: dict[str, list[EvalPoint]] = {arm: [] for arm in arms}
        for found in measurements:
            parts = found.mean_returns, found.mean_scores, found.losses.get(_HELD_OUT)
            for arm in arms if found.returns is not None else ():
                own: list[Any] = [None if part is None else tuple(by_arm(part, arms)[arm]) for part in parts]
                curves[arm].append(EvalPoint(found.updates, *own))
        gone = by_arm(last.diverged, arms)
        lost = {arm: tuple(seed for seed, mark in enumerate(gone[arm]) if mark) for arm in arms}
        return cls(last.updates, last.seconds, {arm: tuple(own) for arm, own in curves.items()}, lost, unit=unit)

    @classmethod
    def joined(cls, results: Sequence[Result]) -> Result:
        """Combine the results of runs that differ only in their seeds to the result of one run."""
        curves: dict[str, tuple[EvalPoint, ...]] = dict.fromkeys(results[0].curves, ())
        for arm in curves:
            times = [{point.updates: point for point in result.curves[arm]} for result in results]
            for updates in sorted(set.intersection(*map(set, times))):  # evaluations that all runs have
                points = [found[updates] for found in times]
                parts = ([getattr(point, name) for point in points] for name in ("returns", "scores", "held_out"))
                values: list[Any] = [None if None in own else tuple(chain(*own)) for own in parts]
                curves[arm] += (EvalPoint(updates, *values),)
        return replace(results[0], seconds=sum(result.seconds for result in results), curves=curves)

    @property
    def updates_per_second(self) -> float:
        return self.updates / self.seconds

    def final(self, arm: str) -> EvalPoint | None:
        return self.curves[arm][-1] if self.curves[arm] else None

    def best(self, arm: str) -> EvalPoint | None:
        """Return the (first) evaluation with the highest mean return among those with the fewest diverged seeds."""

        def rank(standing: EvalPoint) -> tuple[int, float]:
            spread = standing.spread_of_returns
            return -standing.diverged, -math.inf if spread is None else spread.mean

        return max(self.curves[arm], key=rank, default=None)

    def stopped(self, arm: str) -> EvalPoint | None:
        """Return the figures of early stopping: those of each seed at its lowest TD error on held-out rows. `updates`
        is the number of updates of the seed that stops last. None without held-out rows."""
        curve = [point for point in self.curves[arm] if point.held_out is not None]
        if not curve:
            return None
        errors = np.array([point.held_out for point in curve], np.float64)  # None becomes NaN
        chosen = [curve[int(np.argmin(np.where(np.isnan(own), np.inf, own)))] for own in errors.T]

        def each(name: str) -> Any:
            there = getattr(curve[0], name) is not None
            return tuple(getattr(point, name)[seed] for seed, point in enumerate(chosen)) if there else None

        return EvalPoint(max(point.updates for point in chosen), each("returns"), each("scores"), each("held_out"))

    def to_json(self) -> dict[str, Any]:
        arms: dict[str, dict[str, Any]] = {}
        for arm, curve in self.curves.items():
            points = {"final": self.final(arm), "best": self.best(arm), "stopped": self.stopped(arm)}
            arms[arm] = {name: None if point is None else point.to_json(self.unit) for name, point in points.items()}
            if points["stopped"] is None:  # results of earlier versions do not have this key
                del arms[arm]["stopped"]
            arms[arm]["curve"] = [point.to_json(self.unit) for point in curve]
        plain = {self.unit: self.updates, "seconds": self.seconds, "seconds_of": self.seconds_of}
        plain |= {f"{self.unit}_per_second": self.updates_per_second, "diverged": self.diverged, "origin": self.origin}
        return plain | {"arms": arms}

    @classmethod
    def after(cls, updates: int, path: Path) -> Result | None:
        """Read the result at `path`. Return None if there is none, or if its run has fewer than `updates` updates."""
        found = cls.read(path) if path.exists() else None
        return None if found is None or found.updates < updates else found

    @classmethod
    def read(cls, path: Path) -> Result:
        try:
            return cls.from_json(schema.read(path))
        except FormatError as error:
            raise FormatError(f"{path} is not a result ({error}): remove it and run its command again") from None

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Result:
        unit: Unit = "env_steps" if "env_steps" in content else "updates"
        points = ("returns", "scores", "held_out")
        curves = {
            arm: [{"updates": one.get(unit), **{name: one.get(name) for name in points}} for one in of_arm["curve"]]
            for arm, of_arm in schema.checked(content.get("arms"), dict[str, _Arm], "result.arms").items()
        }
        plain = {name: content.get(name) for name in ("seconds", "diverged", "seconds_of", "origin")}
        plain |= {"updates": content.get(unit), "curves": curves, "unit": unit}
        found: Result = schema.checked(plain, cls, "result")
        return found


class _Arm(TypedDict):
    curve: list[dict[str, Any]]

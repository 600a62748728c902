"""What is measured while agents train: a line of a log each, and the result that they come to."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.durable import replacing
from synther.envs.evaluation import Evaluation
from synther.errors import ConfigError


@dataclass(frozen=True)
class Measurement:
    """All members at one time of their training."""

    updates: int
    seconds: float
    """That the training has taken so far, in all its parts if it was interrupted."""
    losses: dict[str, list[float | None]]
    """A number a member, None where it is not finite."""
    returns: list[list[float]] | None = None
    """Of each member's episodes. None where nobody evaluates."""
    scores: list[list[float]] | None = None
    """Those returns, normalised. None where no reference is known."""

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
        scores = None if evaluation.scores is None else evaluation.scores.tolist()
        return cls(updates, seconds, plain, evaluation.returns.tolist(), scores)


class Log:
    """`log.jsonl`: an object a line, each on the disk before anything builds on it.

    Opened for a training that goes on, it keeps what was measured at the updates that are `expected` and forgets what
    was measured later, and a line that was cut. The last that is expected may be missing: it can be measured again.
    """

    def __init__(self, path: Path, expected: Sequence[int]) -> None:
        self.path = path
        text = path.read_text() if path.exists() else ""
        whole = [_parsed(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        until = expected[-1] if expected else 0
        self.measurements = [found for found in whole if found is not None and found.updates <= until]
        if [found.updates for found in self.measurements] not in (list(expected), list(expected[:-1])):
            raise ConfigError(f"{path} has lost lines that were in it: choose another --out, or remove the folder")
        kept = "".join(map(_line, self.measurements))
        if kept != text:
            with replacing(path) as beside:
                beside.write_text(kept)

    def append(self, measurement: Measurement) -> None:
        with self.path.open("a") as file:
            file.write(_line(measurement))
            file.flush()
            os.fsync(file.fileno())
        self.measurements.append(measurement)


def _line(measurement: Measurement) -> str:
    return json.dumps(asdict(measurement), allow_nan=False) + "\n"


def _parsed(line: str) -> Measurement | None:
    try:
        return Measurement(**json.loads(line))
    except (ValueError, TypeError):  # not a line of ours: what is missing then is found missing
        return None


@dataclass(frozen=True)
class Spread:
    """Of a number over the seeds. The deviation is that of those seeds, 0 for one alone."""

    mean: float
    std: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(float(np.mean(values)), float(np.std(values)))

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.std:.1f}"


@dataclass(frozen=True)
class Standing:
    """How good the policies of an arm were at one time."""

    updates: int
    returns: tuple[float, ...]
    """A seed, the mean of its episodes."""
    scores: tuple[float, ...] | None
    """The same, normalised, where a reference is known."""

    @property
    def spread_of_returns(self) -> Spread:
        return Spread.of(self.returns)

    @property
    def spread_of_scores(self) -> Spread | None:
        return None if self.scores is None else Spread.of(self.scores)

    def to_json(self) -> dict[str, Any]:
        """Its fields, and mean and standard deviation of each over the seeds."""
        score = self.spread_of_scores
        spreads = {"return": asdict(self.spread_of_returns), "score": None if score is None else asdict(score)}
        return {**asdict(self), **spreads}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Standing:
        scores = None if content["scores"] is None else tuple(content["scores"])
        return cls(content["updates"], tuple(content["returns"]), scores)


@dataclass(frozen=True)
class Result:
    """What a run comes to."""

    updates: int
    seconds: float
    curves: dict[str, tuple[Standing, ...]]
    """How each arm stood at each evaluation; empty where nobody evaluated."""

    @classmethod
    def of(cls, measurements: Sequence[Measurement], arms: Sequence[str]) -> Result:
        """Members are those of the first arm, one a seed, then those of the next."""
        last = measurements[-1]
        return cls(last.updates, last.seconds, {arm: _curve(measurements, arms, arm) for arm in arms})

    def final(self, arm: str) -> Standing | None:
        return self.curves[arm][-1] if self.curves[arm] else None

    def best(self, arm: str) -> Standing | None:
        """When the mean over the seeds was highest; the first such time."""
        return max(self.curves[arm], key=lambda standing: standing.spread_of_returns.mean, default=None)

    def to_json(self) -> dict[str, Any]:
        arms = {}
        for arm, curve in self.curves.items():
            final, best = self.final(arm), self.best(arm)
            arms[arm] = {
                "final": None if final is None else final.to_json(),
                "best": None if best is None else best.to_json(),
                "curve": [standing.to_json() for standing in curve],
            }
        return {"updates": self.updates, "seconds": self.seconds, "arms": arms}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Result:
        curves = {arm: tuple(map(Standing.from_json, found["curve"])) for arm, found in content["arms"].items()}
        return cls(content["updates"], content["seconds"], curves)


def _curve(measurements: Sequence[Measurement], arms: Sequence[str], arm: str) -> tuple[Standing, ...]:
    curve = []
    for found in measurements:
        if found.returns is None:
            continue
        seeds = len(found.returns) // len(arms)
        own = slice(arms.index(arm) * seeds, (arms.index(arm) + 1) * seeds)
        scores = None if found.scores is None else _means(found.scores[own])
        curve.append(Standing(found.updates, _means(found.returns[own]), scores))
    return tuple(curve)


def _means(episodes: list[list[float]]) -> tuple[float, ...]:
    return tuple(float(np.mean(of_a_member)) for of_a_member in episodes)

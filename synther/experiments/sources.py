"""Where the rows that agents learn from come from: given, sampled of a model, or augmented."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from synther import compute
from synther.agents.rows import Arm
from synther.baselines.augmentation import Augmentation
from synther.data import formats
from synther.data.spaces import Box
from synther.data.transitions import Transitions
from synther.errors import ConfigError, DataError
from synther.progress import Progress
from synther.synthesizer import Synthesizer, check_count, fingerprint

REAL = "real"
SYNTHETIC = "synthetic"


class Source(Protocol):
    """Rows that need not be there yet."""

    def check(self, real: Transitions) -> None:
        """Refuse what cannot stand beside the real rows, before any work."""

    def description(self) -> dict[str, Any]:
        """What the rows depend on."""

    def rows(self, file: Path, progress: Progress) -> Transitions:
        """The rows; `file` is for those that are better kept than made again."""


@dataclass(frozen=True)
class Given:
    """Rows that are there."""

    given: Transitions

    def check(self, real: Transitions) -> None:
        for name in ("observation", "action"):
            here, there = getattr(self.given, name).shape[1:], getattr(real, name).shape[1:]
            if here != there:
                raise DataError(f"the synthetic rows have {name}s of shape {here}, the real ones of shape {there}")

    def description(self) -> dict[str, Any]:
        return {"rows": fingerprint(self.given)}

    def rows(self, file: Path, progress: Progress) -> Transitions:
        return self.given


@dataclass(frozen=True)
class Sampled:
    """So many rows of a saved model."""

    model: Path
    samples: int
    seed: int = 0
    device: str = "auto"
    precision: compute.Precision = "auto"

    def check(self, real: Transitions) -> None:
        check_count(self.samples)
        self._load().matrix(real[:1])  # a model of other columns says so

    def description(self) -> dict[str, Any]:
        with self.model.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"model": digest, "samples": self.samples, "seed": self.seed}

    def rows(self, file: Path, progress: Progress) -> Transitions:
        if not file.exists():
            self._load().sample_to(file, self.samples, seed=self.seed, progress=progress)
        return formats.read(file)

    def _load(self) -> Synthesizer:
        return Synthesizer.load(self.model, device=self.device, precision=self.precision)


@dataclass(frozen=True)
class Augmented:
    """So many real rows, drawn with replacement and disturbed."""

    kind: str
    real: Transitions
    samples: int
    seed: int = 0

    def __post_init__(self) -> None:
        Augmentation(self.kind)  # says which there are

    def check(self, real: Transitions) -> None:
        check_count(self.samples)

    def description(self) -> dict[str, Any]:
        return {"augmentation": self.kind, "samples": self.samples, "seed": self.seed}

    def rows(self, file: Path, progress: Progress) -> Transitions:
        return Augmentation(self.kind).fit(self.real).sample(self.samples, seed=self.seed)


@dataclass(frozen=True)
class Material:
    """What the arms of a run learn from. They share the real rows, whose mean and deviation scale all observations."""

    real: Transitions
    others: dict[str, Source] = field(default_factory=dict)
    arms: dict[str, dict[str, float]] = field(default_factory=lambda: {REAL: {REAL: 1.0}})
    """For each arm, which share of every batch comes from which rows."""

    def __post_init__(self) -> None:
        space = self.real.action_space or ()
        if self.real.action.ndim == 1 or not all(isinstance(part, Box) for part in space):
            raise DataError("these agents act with real numbers, and the actions of this data are discrete")
        if not self.arms:
            raise ConfigError("a run needs at least one arm, got none")
        for name, shares in self.arms.items():
            unknown = shares.keys() - {REAL, *self.others}
            if unknown:
                raise ConfigError(f"arm {name!r} asks for {', '.join(sorted(unknown))}, which it was not given")
        for source in self.others.values():
            source.check(self.real)

    @classmethod
    def mixed(cls, real: Transitions, synthetic: Source | None = None, ratio: float | None = None) -> Material:
        """One arm: real rows; or synthetic ones alone; or with a `ratio`, so much of every batch synthetic."""
        if synthetic is None:
            if ratio is not None:
                raise ConfigError(f"a ratio of {ratio} mixes synthetic rows with real ones, and none were given")
            return cls(real)
        share = 1.0 if ratio is None else ratio
        if not 0 <= share <= 1:
            raise ConfigError(f"the ratio of synthetic rows must lie in [0, 1], got {ratio}")
        shares = {name: part for name, part in ((SYNTHETIC, share), (REAL, 1 - share)) if part}
        return cls(real, {SYNTHETIC: synthetic}, {SYNTHETIC if share == 1 else "mixed" if share else REAL: shares})

    def agent_arms(self) -> list[Arm]:
        """The arms in the order of their names, for tables in the order of theirs, the real one first."""
        place = {name: index for index, name in enumerate((REAL, *self.others))}
        return [Arm(tuple(place[name] for name in shares), tuple(shares.values())) for shares in self.arms.values()]

    def tables(self, folder: Path, progress: Progress) -> list[Transitions]:
        """The real rows and the others; what they keep is in `folder`, under their names."""
        return [self.real, *(source.rows(folder / f"{name}.npz", progress) for name, source in self.others.items())]

    def description(self) -> dict[str, Any]:
        others = {name: source.description() for name, source in self.others.items()}
        return {"data": fingerprint(self.real), "synthetic": others, "arms": self.arms}

"""Synthetic rows whose rewards are changed as a data set demands it of the real ones."""

from __future__ import annotations

import logging
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from synther.agents.rows import Arm
from synther.baselines.augmentation import Augmentation
from synther.baselines.tabular import CONFIGS, require
from synther.compare.generators import Maker, Plan
from synther.data import formats
from synther.data.checks import check_count, check_rows
from synther.data.fingerprint import fingerprint
from synther.data.spaces import Box
from synther.data.transitions import Transitions
from synther.datasets import Dataset
from synther.errors import ConfigError, DataError
from synther.folder import RunFolder, digest_of, key_of
from synther.locks import owned
from synther.plain import check_one_of, whole_seed
from synther.progress import Progress, Silent
from synther.synthesizer import Synthesizer

log = logging.getLogger(__name__)

REAL = "real"
SYNTHETIC = "synthetic"
_FLOAT_BYTES = 4


class Source(Protocol):
    """Rows that need not be there yet."""

    def check(self, real: Transitions) -> None:
        """Refuse what cannot stand beside the real rows, before any work."""

    def description(self) -> dict[str, Any]:
        """What the rows depend on."""

    def rows(self, file: Path | None, progress: Progress) -> Transitions:
        """The rows; `file` is for those that are better kept than made again. None keeps nothing."""


def _check_body(synthetic: str | None, real: str | None) -> None:
    """Two bodies may have as many joints: tell of it, as names are only names."""
    bodies = [re.sub(r"-v\d+$", "", name.rpartition(":")[2].lower()) for name in (synthetic, real) if name]
    if len(set(bodies)) == 2:
        log.warning("the synthetic rows are of %s, the real ones of %s: is that meant?", synthetic, real)


@dataclass(frozen=True)
class Given:
    """Rows that are there."""

    given: Transitions

    def check(self, real: Transitions) -> None:
        for name in ("observation", "action"):
            here, there = getattr(self.given, name).shape[1:], getattr(real, name).shape[1:]
            if here != there:
                raise DataError(f"the synthetic rows have {name}s of shape {here}, the real ones of shape {there}")
        _check_body(self.given.env_id, real.env_id)

    def description(self) -> dict[str, Any]:
        return {"rows": fingerprint(self.given)}

    def size(self) -> int:
        """Bytes that the rows take."""
        return sum(array.nbytes for array in self.given.arrays().values())

    def rows(self, file: Path | None, progress: Progress) -> Transitions:
        return self.given


@dataclass(frozen=True)
class Stored:
    """Rows of a file, which are read when they are needed."""

    file: Path

    def description(self) -> dict[str, Any]:
        return {"file": digest_of(self.file)}

    def size(self) -> int:
        return self.file.stat().st_size

    def rows(self, file: Path | None, progress: Progress) -> Transitions:
        return formats.read(self.file)


@dataclass(frozen=True)
class Sampled:
    """So many rows of a saved model."""

    model: Path
    samples: int
    seed: int = 0
    device: str = "auto"

    def check(self, real: Transitions) -> None:
        check_count(self.samples)
        whole_seed(self.seed)
        model = self._load()
        model.matrix(real[:1])  # a model of other columns says so
        _check_body(model.layout.env_id, real.env_id)

    def description(self) -> dict[str, Any]:
        return {"model": digest_of(self.model), "samples": self.samples, "seed": self.seed}

    def size(self) -> int:
        """Bytes that the rows take, roughly."""
        return _FLOAT_BYTES * self.samples * len(self._load().layout.names)

    def rows(self, file: Path | None, progress: Progress) -> Transitions:
        if file is None:
            return self._load().sample(self.samples, seed=self.seed, progress=progress)
        if not file.exists():
            self._load().sample_to(file, self.samples, seed=self.seed, progress=progress)
        return formats.read(file)

    def _load(self) -> Synthesizer:
        return Synthesizer.load(self.model, device=self.device)


@dataclass(frozen=True)
class Generated:
    """As many rows as `plan` says of a generator ("diffusion", "tvae" or "ctgan") that is first fitted on `real`.

    What is fitted lies in a folder of `store` that all sources with the same data and options share, at the same time
    too. Of a diffusion model nothing else is kept: the same rows are soon drawn again, and a file of them is 100 times
    its size. TVAE and CTGAN cannot be saved, so their rows are.
    """

    generator: str
    real: Transitions
    plan: Plan
    store: Path

    def __post_init__(self) -> None:
        check_one_of("generator", self.generator, ("diffusion", *CONFIGS))

    def check(self, real: Transitions) -> None:
        check_rows(self.real)
        if self.generator in CONFIGS:
            require(search=self.plan.trials > 0)

    def description(self) -> dict[str, Any]:
        options = Maker(self.real, self.plan, Silent()).description(self.generator)
        return {"generator": self.generator, "samples": self.plan.samples, "seed": self.plan.seed, **options}

    def rows(self, file: Path | None, progress: Progress) -> Transitions:
        maker = Maker(self.real, self.plan, progress)
        wanted = {"data": fingerprint(self.real), **self.description()}
        if self.generator == "diffusion":  # one model for any number of rows
            del wanted["samples"]
        folder = self.store / key_of(wanted)
        with owned(folder.with_suffix(".lock"), patience=math.inf):
            RunFolder(folder).claim(wanted)
            if self.generator != "diffusion":
                return maker.rows(self.generator, folder)[0]
            model = maker.diffusion(folder)
        return model.sample(self.plan.samples, seed=self.plan.seed, progress=progress)


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
        whole_seed(self.seed)

    def description(self) -> dict[str, Any]:
        return {"augmentation": self.kind, "samples": self.samples, "seed": self.seed}

    def rows(self, file: Path | None, progress: Progress) -> Transitions:
        return Augmentation(self.kind).fit(self.real).sample(self.samples, seed=self.seed)


@dataclass(frozen=True)
class TrainingData:
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
    def mixed(cls, real: Transitions, synthetic: Source | None = None, ratio: float | None = None) -> TrainingData:
        """One arm: real rows; or synthetic ones alone; or with a `ratio`, so much of every batch synthetic."""
        if synthetic is None:
            if ratio is not None:
                raise ConfigError(f"a ratio of {ratio} mixes synthetic rows with real ones, and none were given")
            return cls(real)
        share = 1.0 if ratio is None else ratio
        if not 0 <= share <= 1:
            raise ConfigError(f"the ratio of synthetic rows must lie in [0, 1], got {ratio}")
        if share == 0:
            synthetic.check(real)  # as every other share would
            return cls(real)
        shares = {name: part for name, part in ((SYNTHETIC, share), (REAL, 1 - share)) if part}
        return cls(real, {SYNTHETIC: synthetic}, {SYNTHETIC if share == 1 else "mixed": shares})

    @property
    def names(self) -> tuple[str, ...]:
        """Of all rows, in the order of `tables`."""
        return (REAL, *self.others)

    def at_hand(self) -> dict[str, Transitions]:
        """Those rows, by their names, for which nothing has to be done."""
        given = {name: source.given for name, source in self.others.items() if isinstance(source, Given)}
        return {REAL: self.real, **given}

    def agent_arms(self) -> list[Arm]:
        """The arms in the order of their names, for tables in the order of theirs, the real one first."""
        place = {name: index for index, name in enumerate(self.names)}
        return [Arm(tuple(place[name] for name in shares), tuple(shares.values())) for shares in self.arms.values()]

    def tables(self, folder: Path, progress: Progress) -> list[Transitions]:
        """The real rows and the others; what they keep is in `folder`, under their names."""
        return [self.real, *(source.rows(folder / f"{name}.npz", progress) for name, source in self.others.items())]

    def description(self) -> dict[str, Any]:
        others = {name: source.description() for name, source in self.others.items()}
        return {"data": fingerprint(self.real), "synthetic": others, "arms": self.arms}


@dataclass(frozen=True)
class Rewarded:
    """The rows of another source, which imitate those of `dataset`, with rewards as the algorithm wants them there."""

    source: Source
    dataset: Dataset
    algorithm: str

    def check(self, real: Transitions) -> None:
        self.source.check(real)

    def description(self) -> dict[str, Any]:
        factor, more = self.dataset.rewards[self.algorithm](self.dataset.rows)
        return {**self.source.description(), "rewards": [factor, more]}

    def rows(self, file: Path | None, progress: Progress) -> Transitions:
        return self.dataset.rows_for(self.algorithm, self.source.rows(file, progress))

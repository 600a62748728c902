"""What agents are trained on: real rows, and sources of other rows, in the shares of each arm."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from synther import formats
from synther.agents.policy import load_policy
from synther.agents.rows import Arm
from synther.baselines.augmentation import Augmentation
from synther.baselines.tabular import CONFIGS, require
from synther.compare.generators import Maker, Plan
from synther.data.checks import check_count, check_rows
from synther.data.episodes import n_step_rows
from synther.data.fingerprint import fingerprint
from synther.data.spaces import Box
from synther.data.transitions import ROW_FIELDS, Transitions
from synther.datasets import Dataset
from synther.errors import ConfigError, DataError
from synther.folder import RunFolder, digest_of, key_of
from synther.guides import Guide, policy_guide
from synther.locks import owned
from synther.plain import check_one_of, whole_seed
from synther.progress import Progress, Silent
from synther.synthesizer import Synthesizer

log = logging.getLogger(__name__)

REAL = "real"
SYNTHETIC = "synthetic"


def check_ratio(ratio: float | None, mixing: bool) -> None:
    """Refuse a share of synthetic rows that is none, or that is given although there are no such rows."""
    if ratio is not None and not mixing:
        raise ConfigError("--ratio mixes real rows with others: give --synthetic or --augment too")
    if ratio is not None and not 0 <= ratio <= 1:
        raise ConfigError(f"--ratio must lie in [0, 1], got {ratio}")


def agent_guide(file: Path, model: Synthesizer, strength: float = 1.0, std: float | None = None) -> Guide:
    """A guide of a model's rows to the actions of the agents in a file, which take turns."""
    policy, layout = load_policy(file, model.device), model.layout
    policy.check_sizes(layout.field_widths["observation"], layout.field_widths["action"])
    return policy_guide(policy, strength, std=std)


class Source(Protocol):
    """Rows that may have to be made first."""

    def check(self, real: Transitions) -> None:
        """Raise an error if the rows do not fit the real ones, before any work."""

    def description(self) -> dict[str, Any]:
        """What the rows depend on."""

    def rows(self, file: Path | None, progress: Progress) -> Transitions:
        """The rows. `file` is for rows that are better kept than made again; None keeps nothing."""


def _check_body(synthetic: str | None, real: str | None) -> None:
    """Warn, and do not refuse: other environments may have the same columns, and names are only names."""
    bodies = [re.sub(r"-v\d+$", "", name.rpartition(":")[2].lower()) for name in (synthetic, real) if name]
    if len(set(bodies)) == 2:
        log.warning("the synthetic rows are of %s, the real rows of %s: is that intended?", synthetic, real)


@dataclass(frozen=True)
class Given:
    """Rows in memory."""

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
    """Rows that a saved model samples."""

    model: Path
    samples: int
    seed: int = 0
    device: str = "auto"
    policy: Path | None = None
    """The file of agents whose actions the rows have."""
    strength: float = 1.0
    std: float | None = None

    def check(self, real: Transitions) -> None:
        check_count(self.samples)
        whole_seed(self.seed)
        model = self._load()
        self._guide(model)
        first = real[:1]  # the next line raises an error if the model has other columns
        model.layout.pack_fields({name: getattr(first, name) for name in ROW_FIELDS})
        _check_body(model.layout.env_id, real.env_id)

    def description(self) -> dict[str, Any]:
        own = {"model": digest_of(self.model), "samples": self.samples, "seed": self.seed}
        if self.policy is None:
            return own
        return own | {"policy": digest_of(self.policy), "strength": self.strength, "std": self.std}

    def size(self) -> int:
        """Bytes that the rows take, roughly: four for a number."""
        return 4 * self.samples * len(self._load().layout.names)

    def rows(self, file: Path | None, progress: Progress) -> Transitions:
        model = self._load()
        asked: Any = {"seed": self.seed, "guide": self._guide(model), "progress": progress}
        if file is None:
            return model.sample(self.samples, **asked)
        if not file.exists():
            model.sample_to(file, self.samples, **asked)
        return formats.read(file)

    def _guide(self, model: Synthesizer) -> Guide | None:
        return None if self.policy is None else agent_guide(self.policy, model, self.strength, self.std)

    def _load(self) -> Synthesizer:
        return Synthesizer.load(self.model, device=self.device)


@dataclass(frozen=True)
class Generated:
    """Rows of a generator ("diffusion", "tvae", "ctgan" or "mbpo") that is first fitted on `real`.

    All sources with the same data and options share a folder of `store`, also at the same time. Of a diffusion model
    only the model is kept: sampling the same rows again is fast, and a file of them is 100 times as large. The others
    cannot be saved, so their rows are kept.
    """

    generator: str
    real: Transitions
    plan: Plan
    store: Path

    def __post_init__(self) -> None:
        check_one_of("generator", self.generator, ("diffusion", *CONFIGS, "mbpo"))

    def check(self, real: Transitions) -> None:
        check_rows(self.real)
        if self.generator in CONFIGS:
            require(search=self.plan.trials > 0)

    def description(self) -> dict[str, Any]:
        options = Maker(self.real, self.plan, Silent()).description(self.generator)
        return {"generator": self.generator, "samples": self.plan.samples, "seed": self.plan.seed, **options}

    def rows(
        self, file: Path | None, progress: Progress, guide: Callable[[Synthesizer], Guide] | None = None
    ) -> Transitions:
        """The rows; those of a diffusion model can have a guide, which may depend on the model."""
        maker = Maker(self.real, self.plan, progress)
        wanted = {"data": fingerprint(self.real), **self.description()}
        if self.generator == "diffusion":  # one model for any number of rows, and for any share and guidance
            del wanted["samples"]
            if "relevant" in wanted:
                wanted["relevant"] = wanted["relevant"]["relevance"]
        folder = self.store / key_of(wanted)
        with owned(folder.with_suffix(".lock"), patience=math.inf):
            RunFolder(folder).claim(wanted)
            if self.generator != "diffusion":
                return maker.rows(self.generator, folder)[0]
            model = maker.diffusion(folder)
        return maker.drawn(model, None if guide is None else guide(model))


@dataclass(frozen=True)
class Augmented:
    """Real rows, drawn with replacement, with noise."""

    kind: str
    real: Transitions
    samples: int
    seed: int = 0

    def __post_init__(self) -> None:
        Augmentation(self.kind)  # raises an error for an unknown kind

    def check(self, real: Transitions) -> None:
        check_count(self.samples)
        whole_seed(self.seed)

    def description(self) -> dict[str, Any]:
        return {"augmentation": self.kind, "samples": self.samples, "seed": self.seed}

    def rows(self, file: Path | None, progress: Progress) -> Transitions:
        return Augmentation(self.kind).fit(self.real).sample(self.samples, seed=self.seed)


@dataclass(frozen=True)
class TrainingData:
    """What the arms of a run learn from. They share the real rows, whose mean and std scale all observations."""

    real: Transitions
    others: dict[str, Source] = field(default_factory=dict)
    arms: dict[str, dict[str, float]] = field(default_factory=lambda: {REAL: {REAL: 1.0}})
    """For each arm, the share of every batch that comes from each kind of rows."""
    held_out: Transitions | None = None
    """Real rows that no arm learns from, in which the critics' TD error is measured."""

    def __post_init__(self) -> None:
        space = self.real.action_space or ()
        if self.real.action.ndim == 1 or not all(isinstance(part, Box) for part in space):
            raise DataError("these agents need continuous actions, and the actions of this data are discrete")
        if not self.arms:
            raise ConfigError("a run needs at least one arm, got none")
        for name, shares in self.arms.items():
            unknown = shares.keys() - {REAL, *self.others}
            if unknown:
                raise ConfigError(f"arm {name!r} has unknown sources: {', '.join(sorted(unknown))}")
        for source in self.others.values():
            source.check(self.real)

    @classmethod
    def mixed(cls, real: Transitions, synthetic: Source | None = None, ratio: float | None = None) -> TrainingData:
        """One arm: real rows, or synthetic rows, or both; `ratio` is the share of synthetic rows in every batch."""
        check_ratio(ratio, mixing=synthetic is not None)
        if synthetic is None:
            return cls(real)
        share = 1.0 if ratio is None else ratio
        if share == 0:
            synthetic.check(real)  # as every other share would
            return cls(real)
        shares = {name: part for name, part in ((SYNTHETIC, share), (REAL, 1 - share)) if part}
        return cls(real, {SYNTHETIC: synthetic}, {SYNTHETIC if share == 1 else "mixed": shares})

    def over_steps(self, n: int, discount: float) -> TrainingData:
        """The same data as n-step rows, from which generators learn too."""
        if n == 1:
            return self
        if self.held_out is not None:
            raise ConfigError("holdout measures one-step TD errors: leave --holdout or --n-step out")
        real = n_step_rows(self.real, n, discount, whole=True)
        return replace(self, real=real, others={name: _made_from(real, one) for name, one in self.others.items()})

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the `tables`, in the same order."""
        return (REAL, *self.others, *([] if self.held_out is None else ["held out"]))

    def agent_arms(self) -> list[Arm]:
        """The arms, with the indices of their `tables`."""
        place = {name: index for index, name in enumerate(self.names)}
        return [Arm(tuple(place[name] for name in shares), tuple(shares.values())) for shares in self.arms.values()]

    def tables(self, folder: Path, progress: Progress) -> list[Transitions]:
        """The real rows and those of all sources, which may keep files in `folder`."""
        made = [source.rows(folder / f"{name}.npz", progress) for name, source in self.others.items()]
        return [self.real, *made, *([] if self.held_out is None else [self.held_out])]

    def description(self) -> dict[str, Any]:
        others = {name: source.description() for name, source in self.others.items()}
        described = {"data": fingerprint(self.real), "synthetic": others, "arms": self.arms}
        return described if self.held_out is None else described | {"held_out": fingerprint(self.held_out)}


@dataclass(frozen=True)
class Rewarded:
    """The rows of another source, with the rewards changed as `dataset` changes its own for the algorithm."""

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


def rewarded(source: Source, dataset: Dataset, algorithm: str) -> Source:
    """The source with the rewards that the algorithm wants on the data set."""
    return Rewarded(source, dataset, algorithm) if algorithm in dataset.rewards else source


def _made_from(real: Transitions, source: Source) -> Source:
    """The source, made from n-step rows."""
    if isinstance(source, Rewarded):
        return _made_from(real, source.source)  # `real` has the changed rewards already
    if isinstance(source, Augmented | Generated):
        return replace(source, real=real)
    raise ConfigError("n_step needs synthetic rows of the n-step rows of the data: leave --n-step or --synthetic out")

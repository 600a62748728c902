"""The data that agents are trained on: real rows, sources of other rows, and their shares in every arm's batches."""

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
from synther.data.checks import check_count, check_kind, check_rows
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
    """Raise an error if `ratio` is not in [0, 1], or if it is given although there are only real rows."""
    if ratio is not None and not mixing:
        raise ConfigError("--ratio mixes real rows with others: give --synthetic or --augment too")
    if ratio is not None and not 0 <= ratio <= 1:
        raise ConfigError(f"--ratio must lie in [0, 1], got {ratio}")


def agent_guide(file: Path, model: Synthesizer, strength: float = 1.0, std: float | None = None) -> Guide:
    """Return a guide that moves a model's rows towards the actions of the agents in a file. The agents take turns."""
    policy, layout = load_policy(file, model.device), model.layout
    policy.check_sizes(layout.field_widths["observation"], layout.field_widths["action"])
    return policy_guide(policy, strength, std=std)


class Source(Protocol):
    """A source of rows. Some sources generate their rows only when they are needed."""

    def check(self, real: Transitions) -> None:
        """Raise an error if the rows do not fit the real rows. This is called before any work."""

    def description(self) -> dict[str, Any]:
        """Return everything that the rows depend on."""

    def rows(self, file: Path | None, progress: Progress) -> Transitions:
        """Return the rows. A source may keep them in `file` if generating them again takes long. None: no file."""


def _check_body(synthetic: str | None, real: str | None) -> None:
    """Warn if synthetic and real rows have different environments. It is no error: their columns may be the same."""
    bodies = [re.sub(r"-v\d+$", "", name.rpartition(":")[2].lower()) for name in (synthetic, real) if name]
    if len(set(bodies)) == 2:
        log.warning("the synthetic rows are of %s, but the real rows are of %s: is that intended?", synthetic, real)


@dataclass(frozen=True)
class Given:
    """Rows that are already in memory."""

    given: Transitions

    def check(self, real: Transitions) -> None:
        for name in ("observation", "action"):
            found, expected = getattr(self.given, name).shape[1:], getattr(real, name).shape[1:]
            if found != expected:
                shapes = f"{name}s of shape {found}, but the real rows have shape {expected}"
                raise DataError(f"the synthetic rows have {shapes}")
        _check_body(self.given.env_id, real.env_id)

    def description(self) -> dict[str, Any]:
        return {"rows": fingerprint(self.given)}

    def size(self) -> int:
        """Return the size of the rows in bytes."""
        return sum(array.nbytes for array in self.given.arrays().values())

    def rows(self, file: Path | None, progress: Progress) -> Transitions:
        return self.given


@dataclass(frozen=True)
class Stored:
    """Rows in a file. They are read when they are needed."""

    file: Path

    def description(self) -> dict[str, Any]:
        return {"file": digest_of(self.file)}

    def size(self) -> int:
        return self.file.stat().st_size

    def rows(self, file: Path | None, progress: Progress) -> Transitions:
        return formats.read(self.file)


@dataclass(frozen=True)
class Sampled:
    """Rows that are sampled from a saved model."""

    model: Path
    samples: int
    seed: int = 0
    device: str = "auto"
    policy: Path | None = None
    """File of agents that guide the actions of the rows. None: no guidance."""
    strength: float = 1.0
    std: float | None = None

    def check(self, real: Transitions) -> None:
        check_count(self.samples)
        whole_seed(self.seed)
        model = self._load()
        self._guide(model)
        first = real[:1]
        try:
            model.layout.pack_fields({name: getattr(first, name) for name in ROW_FIELDS})
        except DataError as error:
            raise DataError(f"{self.model} was not fitted on rows like the real ones: {error}") from None
        _check_body(model.layout.env_id, real.env_id)

    def description(self) -> dict[str, Any]:
        own = {"model": digest_of(self.model), "samples": self.samples, "seed": self.seed}
        if self.policy is None:
            return own
        return own | {"policy": digest_of(self.policy), "strength": self.strength, "std": self.std}

    def size(self) -> int:
        """Return the approximate size of the rows in bytes: four bytes per number."""
        return 4 * self.samples * len(self._load().layout.names)

    def rows(self, file: Path | None, progress: Progress) -> Transitions:
        model = self._load()
        options: Any = {"seed": self.seed, "guide": self._guide(model), "progress": progress}
        if file is None:
            return model.sample(self.samples, **options)
        if not file.exists():
            model.sample_to(file, self.samples, **options)
        return formats.read(file)

    def _guide(self, model: Synthesizer) -> Guide | None:
        return None if self.policy is None else agent_guide(self.policy, model, self.strength, self.std)

    def _load(self) -> Synthesizer:
        return Synthesizer.load(self.model, device=self.device)


@dataclass(frozen=True)
class Generated:
    """Rows of a generator ("diffusion", "tvae", "ctgan" or "mbpo") that is first fitted on `real`.

    All sources with the same data and options share a folder in `store`, also if they work at the same time. Of a
    diffusion model only the model is saved: sampling the rows again is fast, and a file of rows is 100 times as large.
    The other generators cannot be saved, so their rows are saved.
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
        """Return the rows. `guide` returns a guide for a diffusion model."""
        maker = Maker(self.real, self.plan, progress)
        wanted = {"data": fingerprint(self.real), **self.description()}
        if self.generator == "diffusion":  # the model does not depend on number of rows, relevant share and guidance
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
    """Real rows that are drawn with replacement, with noise."""

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
    """The data that the arms of a run learn from. All arms scale observations by mean and std of the real rows."""

    real: Transitions
    others: dict[str, Source] = field(default_factory=dict)
    """Sources of other rows, by name."""
    arms: dict[str, dict[str, float]] = field(default_factory=lambda: {REAL: {REAL: 1.0}})
    """For each arm, the shares of every batch that come from the real rows and from each source."""
    held_out: Transitions | None = None
    """Real rows that no arm learns from. The critics' TD error is measured on them."""

    def __post_init__(self) -> None:
        check_kind(self.real)
        space = self.real.action_space or ()
        if self.real.action.ndim == 1 or not all(isinstance(part, Box) for part in space):
            raise DataError(
                "these agents need continuous actions, and the actions of this data are discrete: train with d3rlpy, "
                "see to_mdp_dataset() of synther.integrations.d3rlpy"
            )
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
        """Return data with one arm, which learns from real rows, synthetic rows, or both. `ratio` is the share of
        synthetic rows in every batch. Default: 1."""
        check_ratio(ratio, mixing=synthetic is not None)
        if synthetic is None:
            return cls(real)
        share = 1.0 if ratio is None else ratio
        if share == 0:
            synthetic.check(real)  # other shares are checked in __post_init__
            return cls(real)
        shares = {name: part for name, part in ((SYNTHETIC, share), (REAL, 1 - share)) if part}
        return cls(real, {SYNTHETIC: synthetic}, {SYNTHETIC if share == 1 else "mixed": shares})

    def over_steps(self, n: int, discount: float) -> TrainingData:
        """Return the data as n-step rows. Generators are also fitted on n-step rows."""
        if n == 1:
            return self
        if self.held_out is not None:
            raise ConfigError("--holdout measures one-step TD errors: leave --holdout or --n-step out")
        real = n_step_rows(self.real, n, discount, whole=True)
        return replace(self, real=real, others={name: _made_from(real, one) for name, one in self.others.items()})

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tables that `tables` returns, in the same order."""
        return (REAL, *self.others, *([] if self.held_out is None else ["held out"]))

    def agent_arms(self) -> list[Arm]:
        """Return the arms, with the indices of their tables in `tables`."""
        place = {name: index for index, name in enumerate(self.names)}
        return [Arm(tuple(place[name] for name in shares), tuple(shares.values())) for shares in self.arms.values()]

    def tables(self, folder: Path, progress: Progress) -> list[Transitions]:
        """Return the real rows, the rows of all sources, and the held-out rows. Sources may keep files in `folder`."""
        made = [source.rows(folder / f"{name}.npz", progress) for name, source in self.others.items()]
        return [self.real, *made, *([] if self.held_out is None else [self.held_out])]

    def description(self) -> dict[str, Any]:
        others = {name: source.description() for name, source in self.others.items()}
        described = {"data": fingerprint(self.real), "synthetic": others, "arms": self.arms}
        return described if self.held_out is None else described | {"held_out": fingerprint(self.held_out)}


@dataclass(frozen=True)
class Rewarded:
    """The rows of another source with changed rewards, in the way in which `dataset` changes them for the algorithm."""

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
    """Return the source with the rewards that the algorithm needs on this data set."""
    return Rewarded(source, dataset, algorithm) if algorithm in dataset.rewards else source


def _made_from(real: Transitions, source: Source) -> Source:
    """Return the source with a generator that is fitted on the n-step rows `real`."""
    if isinstance(source, Rewarded):
        return _made_from(real, source.source)  # the rewards of `real` are already changed
    if isinstance(source, Augmented | Generated):
        return replace(source, real=real)
    raise ConfigError("n_step is not possible with saved synthetic rows or models: leave --n-step or --synthetic out")

"""A run, described once: plain data that converts to and from JSON, and that any machine can execute.

In the folder of a run, `run.json` is the spec, `provenance.json` says where its data came from here, and `training/`
holds what the training leaves behind. Other runs are refused there, except for one with more updates or steps, which
extends the first.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from synther import schema
from synther.baselines.augmentation import AUGMENTATIONS
from synther.errors import ConfigError
from synther.folder import Growth, RunFolder, read_object, same, write_object
from synther.plain import check_least, check_one_of
from synther.presets import PRESETS, Settings
from synther.progress import Progress

if TYPE_CHECKING:
    from synther.conditions import Relevant
    from synther.data.transitions import Transitions
    from synther.datasets import Dataset
    from synther.engines import Outcome
    from synther.experiments.sources import Source

log = logging.getLogger(__name__)

PROVENANCE = "provenance.json"
"""File with the origin of the data and the command."""

Training = Callable[[Path, Progress], object]
"""Trains in a folder."""
Fitted = tuple[tuple[str, ...], "Generator", dict[str, Any]]
"""A diffusion model of a finished run: its place in the spec, its description, and the settings it was fitted with."""


@dataclass(frozen=True, kw_only=True)
class Tracked:
    """Where agents train, and trackers. This and all classes called `...Options` are options of the command line."""

    device: str = "auto"
    """Device to run on: auto (a GPU if there is one), cpu, cuda or cuda:N."""
    tensorboard: Literal["auto", "on", "off"] = "auto"
    """Write TensorBoard events to OUT/tensorboard. auto: only if TensorBoard is installed."""
    wandb: str | None = None
    """Track the run with Weights & Biases, in the project of this name."""


@dataclass(frozen=True, kw_only=True)
class SeedOptions(Tracked):
    """Agents that train together."""

    seeds: int = 6
    """Agents that train at once and differ only in their seed."""
    seed: int = 0
    """The first seed; the same seed on the same machine gives the same result."""

    @property
    def all_seeds(self) -> range:
        return range(self.seed, self.seed + self.seeds)


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions(SeedOptions):
    """Agents that are evaluated while they train."""

    workers: int | None = None
    """Processes that play episodes. Default: all cores but one."""
    precision: Literal["auto", "float32", "tf32"] = "auto"
    """Precision of the agents: auto is tf32 on a GPU and float32 on a CPU."""
    evaluate_every: int = 5_000
    """Updates, or steps of an online run, between two evaluations; the last one is always evaluated."""
    n_step: int = 1
    """Steps of a target: the rewards of so many steps, and the critics' value of the state after them."""


@dataclass(frozen=True, kw_only=True)
class OfflineOptions(EvaluationOptions):
    """How long agents train on data, and how they are evaluated."""

    updates: int = 1_000_000
    """Updates of every seed. K and M suffixes are accepted."""
    seeds: int = 8
    env_id: str | None = None
    """The environment, if the data does not name it."""
    env_options: dict[str, Any] | None = None
    """Arguments of gymnasium.make, instead of those of the data: '{"max_episode_steps": 500}'."""
    episodes: int | None = None
    """Episodes of each seed and evaluation. Default: 10, in mazes 100."""
    fraction: float | None = None
    """Use a random fraction of the real rows."""
    holdout: float = 0.0
    """Keep this share of the real rows from the agents, and tell what early stopping by the TD error in it reaches."""


@dataclass(frozen=True, kw_only=True)
class OnlineOptions(EvaluationOptions):
    """How long agents act and learn, and how they are evaluated."""

    steps: int = 100_000
    """Environment steps of every seed. K and M suffixes are accepted."""
    learning_starts: int = 5_000
    """Steps with random actions before the agents start to learn."""
    checkpoint_every: int = 10_000
    """Steps between two checkpoints. All environments are reset at a checkpoint."""
    keep_every: int | None = None
    """Also keep the agents of every so many steps, a multiple of the above, as OUT/kept/STEPS.safetensors."""
    episodes: int = 10
    """Episodes that each seed plays in an evaluation."""


_RELEVANCE = ("reward", "return", "curiosity", "td_error")


@dataclass(frozen=True, kw_only=True)
class GuidanceOptions:
    """Which rows to ask a generator for, where not all are alike."""

    relevance: str | None = None
    """With --synthetic: make rows like the most relevant real ones, by reward, return, curiosity or td_error."""
    relevant: float = 0.25
    """With --relevance: the share of the real rows that count as relevant."""
    guidance: float = 2.0
    """With --relevance: 1 is as in the relevant rows, more exaggerates."""

    def wanted(self) -> Relevant | None:
        if self.relevance is None:
            return None
        from synther.conditions import Relevant

        return Relevant(self.relevance, self.relevant, self.guidance)

    def check_guidance(self) -> None:
        """Refuse what no model can be asked for."""
        right = self.relevance in (None, *_RELEVANCE) and 0 < self.relevant < 1 and 0 <= self.guidance < math.inf
        if not right:  # says what is wrong, and imports PyTorch, for which a list of experiments need not wait
            self.wanted()


_LATER = {"policy": None, "copies": False, "refresh": "fixed"}


def used(options: Any) -> Any:
    """Leave out options that older run folders do not have, unless they are used."""
    if not isinstance(options, dict):
        return options
    unused = {name for name, default in _LATER.items() if options.get(name, ...) == default}
    if options.get("relevance", "") is None:
        unused |= {"relevance", "relevant", "guidance"}
    return {name: used(value) for name, value in options.items() if name not in unused}


@dataclass(frozen=True, kw_only=True)
class RefreshOptions(GuidanceOptions):
    """How often generators are fitted on the experience so far, and how their rows are used."""

    ratio: float = 0.5
    """With --synthetic: the share of synthetic rows in every batch."""
    refresh: Literal["fixed", "auto"] = "fixed"
    """With --synthetic: auto refreshes when new rows are unlike earlier ones, after 0.2 to 2 times --refresh-every."""
    refresh_every: int = 10_000
    """With --synthetic: steps after which models are fitted again and all synthetic rows are replaced."""
    refit: Literal["warm", "scratch"] = "warm"
    """warm: from the weights of the previous fit, with early stopping. scratch: as in the paper."""
    copies: bool = False
    """With --synthetic: real rows drawn again in place of generated ones, as a control of what a generator adds."""


@dataclass(frozen=True, kw_only=True)
class PixelOptions(Tracked):
    """How long pixel agents train on frames or on latents, and how they are evaluated."""

    updates: int = 550_000
    """Updates of every seed. The default is V-D4RL's. K and M suffixes are accepted."""
    measure_every: int = 10_000
    """Updates between two lines of the log; the last update always has one."""
    episodes: int = 10
    """Episodes that each seed plays after the training."""
    workers: int | None = None
    """Processes that play episodes. Default: all cores."""


@dataclass(frozen=True)
class Place:
    """Where runs find what they need, and how they work here."""

    store: Path
    """Folder of fitted generators, which all runs share."""
    data: Path | None = None
    """Folder of data sets."""
    policies: Path | None = None
    """File of policies that data sets can be rolled out with."""
    device: str = "auto"
    workers: int | None = None
    command: str = ""
    """The command line, for the record."""

    def read(self, name: str, progress: Progress, seed: int = 0) -> Dataset:
        """A data set. Its origin does not have the path of the data folder on this machine."""
        from synther import datasets

        found = datasets.read(name, data=self.data, policies=self.policies, seed=seed, progress=progress)
        return replace(found, origin=found.origin.replace(f"{self.data}/", ""))


@dataclass(frozen=True, kw_only=True)
class ChangeOptions:
    """Changes to a run; None changes nothing."""

    updates: int | None = None
    """Updates (online: steps) of every seed, instead of the experiment's number. K and M suffixes are accepted."""
    seeds: int | None = None
    """Seeds of every run, instead of the experiment's number."""
    evaluate_every: int | None = None
    """Updates (online: steps) between two evaluations, instead of the experiment's number."""
    samples: int | None = None
    """Maximum number of synthetic rows of each source; of pixel runs, the number itself."""
    preset: str | None = None
    """How diffusion models are fitted and sampled, instead of the experiment's preset."""
    fit_steps: int | None = None
    """Maximum number of steps for each fit of a diffusion model; of pixel runs, the number itself."""

    def given(self, *names: str) -> dict[str, Any]:
        """Those of the options `names` that are not None."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


_LOCAL = {"device", "workers", "tensorboard", "wandb", "checkpoint_seconds", "keep_every"}
"""Options that may differ between machines: `run.json` does not contain them."""
_RARELY_SET = {"prior", "precision", "env_id", "env_options", "evaluate", "checkpoint_every", "capacity"}
_RARELY_SET |= {"measure_every", "n_step", "holdout"}
"""Options that `run.json` contains only if they are not the default: earlier versions did not have them."""


class RunSpec(ABC):
    """A run as plain data; each kind is a frozen dataclass of its own."""

    shown: ClassVar[Literal["scores", "returns"]] = "scores"
    """What tables show."""
    is_training: ClassVar[bool] = True
    """Whether its result is that of agents; otherwise it is a dict of numbers."""

    name: str
    """The name of the run and of its folder."""

    @property
    def data_set(self) -> str | None:
        """The name of the data it learns from; None for online runs."""
        return None

    @property
    def growth(self) -> Growth | None:
        """What may be increased to extend the run."""
        return None

    def to_json(self) -> dict[str, Any]:
        """The content of `run.json`: the options that the result depends on."""
        rarely = {option.name: option.default for option in fields(self) if option.name in _RARELY_SET}  # type: ignore[arg-type]
        return {
            name: value
            for name, value in used(asdict(self)).items()  # type: ignore[call-overload]
            if name not in _LOCAL and (name not in rarely or value != rarely[name])
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        found: Self = schema.checked(content, cls, cls.__name__)
        return found

    def changed(self, changes: ChangeOptions) -> RunSpec:
        return self

    def execute(self, folder: Path, place: Place, progress: Progress) -> None:
        """Train in `folder`, or resume there."""
        run = RunFolder(folder, growth=self.growth)
        run.check(self.to_json())  # before the data is read, which may take long
        provenance, train = self.prepared(place, progress)
        if not run.begun:
            run.claim(self.to_json())
        write_object(folder / PROVENANCE, {"command": place.command, **provenance})
        train(folder, progress)
        run.claim(self.to_json())  # a run that was extended is this one from here on

    @abstractmethod
    def prepared(self, place: Place, progress: Progress) -> tuple[dict[str, Any], Training]:
        """The provenance of the data, and a function that trains on it. Missing data leaves no folder behind."""

    def result(self, folder: Path) -> Path:
        """The file that exists when the run is finished."""
        return folder / "training" / "result.json"

    def generators(self, done: Mapping[str, Any], folder: Path) -> Iterator[Fitted]:
        """The diffusion models of a finished run; `done` is its `run.json`."""
        return iter(())


def execute_all(
    specs: Sequence[RunSpec], folder: Path, place: Place, *, parallel: int = 1, **how: Any
) -> list[Outcome]:
    """Execute each run in its own folder in `folder`, `parallel` at once. `how` goes to `engines.run_all`."""
    from synther import compute
    from synther.engines import run_all

    tasks = [_Task(spec.name, spec, place) for spec in specs]
    log.info("%d runs in %s, %d at a time, on device %s", len(tasks), folder, parallel, place.device)
    with compute.shared_by_processes(compute.pick_device(place.device)) if parallel > 1 else nullcontext():
        return run_all(tasks, folder, parallel=parallel, **how)


@dataclass(frozen=True)
class _Task:
    """A run as a task of an engine."""

    name: str
    spec: RunSpec
    place: Place

    def execute(self, folder: Path, progress: Progress) -> None:
        self.spec.execute(folder, self.place, progress)

    def done(self, folder: Path) -> bool:
        """Whether exactly this run is done. Another run in this folder is refused by `execute`."""
        return self.spec.result(folder).exists() and same(read_object(folder / "run.json"), self.spec.to_json())


@dataclass(frozen=True, kw_only=True)
class Generator:
    """A diffusion model: a preset, and changes to it."""

    preset: str = "paper"
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Options of parts of the preset: {"fit": {"steps": 1000}}."""

    def __post_init__(self) -> None:
        check_one_of("preset", self.preset, PRESETS)  # `auto` depends on the machine, so it is refused

    def settings(self) -> Settings:
        return PRESETS[self.preset].changed(**self.changes)

    def with_preset(self, changes: ChangeOptions) -> Self:
        """A copy with another preset, and at most as many steps of fitting."""
        own = replace(self, preset=changes.preset or self.preset)
        settings, most = own.settings(), changes.fit_steps
        if most is None or most >= settings.fit.steps:
            return own
        settings.changed(fit={"steps": most})  # refuses an invalid number
        return replace(own, changes={**self.changes, "fit": {**self.changes.get("fit", {}), "steps": most}})


@dataclass(frozen=True)
class PolicyGuidance:
    """Rows with the actions of agents like those of the run, which are trained first (Jackson et al. 2024)."""

    strength: float = 1.0
    """From 0, the actions of the data, to 1, those of the agents."""
    std: float = 0.1
    """Standard deviation of actions about those of the agents. The default is TD3's noise for exploration."""
    updates: int = 500_000
    """Of the agents that are trained first."""
    seeds: int = 4
    """Number of these agents. Each has the same share of the rows."""
    learns_from: Literal["real", "synthetic"] = "synthetic"
    """The rows that these agents learn from; synthetic ones are those of the same recipe, without guidance."""

    def __post_init__(self) -> None:
        check_least(self, updates=1, seeds=1)
        check_one_of("learns_from", self.learns_from, ("real", "synthetic"))
        if not 0 <= self.strength <= 1:
            raise ConfigError(f"the strength of policy guidance must lie in [0, 1], got {self.strength}")
        if not 0 <= self.std < math.inf:
            raise ConfigError(f"the std of policy guidance must be a finite number of at least 0, got {self.std}")

    def changed(self, changes: ChangeOptions) -> PolicyGuidance:
        fewer = {name: min(value, getattr(self, name)) for name, value in changes.given("updates", "seeds").items()}
        return replace(self, **fewer)


@dataclass(frozen=True)
class Recipe(GuidanceOptions, Generator):
    """A source of synthetic rows."""

    generator: str = "diffusion"
    """diffusion, tvae, ctgan, mbpo, or one of the augmentations."""
    samples: int | None = 5_000_000
    """Default of None: as many as there are real rows, but not more than `most`."""
    most: int | None = None
    trials: int = 0
    """Number of settings of TVAE and CTGAN that are tried beside their defaults."""
    policy: PolicyGuidance | None = None
    """None draws the actions of the data."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, samples=1, most=1)
        self.check_guidance()
        if self.relevance == "td_error":
            raise ConfigError("relevance td_error is that of agents in training: offline, choose another one")
        if (self.relevance, self.policy) != (None, None) and self.generator != "diffusion":
            what = "relevant rows, or those of a policy"
            raise ConfigError(f"only diffusion models can be asked for {what}, got generator {self.generator!r}")

    def changed(self, changes: ChangeOptions) -> Recipe:
        own, asked = self, changes.samples
        if asked is not None:
            own = replace(self, most=asked) if self.samples is None else replace(self, samples=min(asked, self.samples))
        if self.policy is not None:
            own = replace(own, policy=self.policy.changed(changes))
        return own.with_preset(changes) if self.generator == "diffusion" else own

    def source(self, real: Transitions, place: Place, seed: int) -> Source:
        from synther.compare import generators
        from synther.experiments.sources import Augmented, Generated

        samples = min(len(real), self.most or len(real)) if self.samples is None else self.samples
        if self.generator in AUGMENTATIONS:
            return Augmented(self.generator, real, samples, seed)
        how: Any = {"device": place.device, "seed": seed, "relevant": self.wanted()}
        plan = generators.Plan(self.settings(), samples, self.trials, **how)
        return Generated(self.generator, real, plan, place.store)

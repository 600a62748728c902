"""The description of a run (its spec) as plain data that converts to and from JSON. Any machine can execute it.

The folder of a run contains `run.json` (the spec), `provenance.json` (where the data came from on this machine) and
`training/` (the files of the training). A run with another spec is refused in this folder. The only exception is a run
with more updates or steps, which extends the first one.
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
"""File with the origin of the data, and the command."""

Training = Callable[[Path, Progress], object]
"""A function that trains in a folder."""
Fitted = tuple[tuple[str, ...], "Generator", dict[str, Any]]
"""A diffusion model of a finished run: its place in the spec, its description, and the settings of its fit."""


@dataclass(frozen=True, kw_only=True)
class Tracked:
    """Device and trackers. The fields of this class, and of all classes `...Options`, are command-line options."""

    device: str = "auto"
    """Device to run on: auto (a GPU if there is one), cpu, cuda or cuda:N."""
    tensorboard: Literal["auto", "on", "off"] = "auto"
    """Write TensorBoard events to OUT/tensorboard. auto: only if TensorBoard is installed."""
    wandb: str | None = None
    """Track the run with Weights & Biases, in the project of this name."""


@dataclass(frozen=True, kw_only=True)
class SeedOptions(Tracked):
    """How many agents train together, and their seeds."""

    seeds: int = 6
    """Number of agents that train at the same time. They differ only in their seed."""
    seed: int = 0
    """The first seed. The same seed on the same machine gives the same result."""

    @property
    def all_seeds(self) -> range:
        return range(self.seed, self.seed + self.seeds)


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions(SeedOptions):
    """How agents are evaluated while they train, and options that all trainings share."""

    workers: int | None = None
    """Number of processes that play episodes. Default: all cores but one."""
    precision: Literal["auto", "float32", "tf32"] = "auto"
    """Precision of the agents: auto is tf32 on a GPU and float32 on a CPU."""
    evaluate_every: int = 5_000
    """Updates (online: steps) between two evaluations. The agents are always evaluated after the last one."""
    n_step: int = 1
    """Steps of an n-step target: rewards of n steps, plus the critics' value of the state after them."""


@dataclass(frozen=True, kw_only=True)
class OfflineOptions(EvaluationOptions):
    """How long agents train on data, and how they are evaluated."""

    updates: int = 1_000_000
    """Updates of every seed. K and M suffixes are accepted."""
    seeds: int = 8
    env_id: str | None = None
    """The environment, if the data does not name it."""
    env_options: dict[str, Any] | None = None
    """Arguments of gymnasium.make instead of those in the data, for example '{"max_episode_steps": 500}'."""
    episodes: int | None = None
    """Episodes of each seed per evaluation. Default: 10, in mazes 100."""
    fraction: float | None = None
    """Use a random fraction of the real rows."""
    holdout: float = 0.0
    """Hold out this share of the real rows, and report the score of early stopping by the TD error on these rows."""


@dataclass(frozen=True, kw_only=True)
class OnlineOptions(EvaluationOptions):
    """How long agents act and learn, and how they are evaluated."""

    steps: int = 100_000
    """Environment steps of every seed. K and M suffixes are accepted."""
    learning_starts: int = 5_000
    """Steps with random actions before the agents start to learn."""
    checkpoint_every: int = 10_000
    """Steps between two checkpoints. All environments are reset there, and an interrupted run resumes from there."""
    keep_every: int | None = None
    """Also keep the agents every KEEP_EVERY steps, a multiple of --checkpoint-every, as OUT/kept/STEPS.safetensors."""
    episodes: int = 10
    """Episodes that each seed plays in an evaluation."""


_RELEVANCE = ("reward", "return", "curiosity", "td_error")


@dataclass(frozen=True, kw_only=True)
class GuidanceOptions:
    """Which kind of rows generators sample."""

    relevance: str | None = None
    """With --synthetic: sample rows like the most relevant real rows, by reward, return, curiosity or td_error."""
    relevant: float = 0.25
    """With --relevance: the share of the real rows that count as relevant."""
    guidance: float = 2.0
    """With --relevance: strength of the guidance. 1: as in the relevant rows; above 1: exaggerated."""

    def wanted(self) -> Relevant | None:
        """Return the condition for relevant rows, or None for rows like all real rows."""
        if self.relevance is None:
            return None
        from synther.conditions import Relevant

        return Relevant(self.relevance, self.relevant, self.guidance)

    def check_guidance(self) -> None:
        """Raise an error for options that are not possible."""
        right = self.relevance in (None, *_RELEVANCE) and 0 < self.relevant < 1 and 0 <= self.guidance < math.inf
        if not right:  # only then, because this imports PyTorch, which takes seconds
            self.wanted()  # raises the error


_LATER = {"policy": None, "copies": False, "refresh": "fixed"}
"""Options that older run folders do not have, and their defaults."""


def used(options: Any) -> Any:
    """Drop options that older run folders do not have if they have their default. Other options stay."""
    if not isinstance(options, dict):
        return options
    unused = {name for name, default in _LATER.items() if options.get(name, ...) == default}
    if options.get("relevance", "") is None:
        unused |= {"relevance", "relevant", "guidance"}
    return {name: used(value) for name, value in options.items() if name not in unused}


@dataclass(frozen=True, kw_only=True)
class RefreshOptions(GuidanceOptions):
    """How often generators are fitted on the experience so far, and how the agents use their rows."""

    ratio: float = 0.5
    """With --synthetic: the share of synthetic rows in every batch."""
    refresh: Literal["fixed", "auto"] = "fixed"
    """With --synthetic: auto refreshes when new rows differ from earlier ones, after 0.2 to 2 times --refresh-every."""
    refresh_every: int = 10_000
    """With --synthetic: steps between two refreshes, which fit the models again and replace all synthetic rows."""
    refit: Literal["warm", "scratch"] = "warm"
    """warm: start from the weights of the previous fit, with early stopping. scratch: as in the paper."""
    copies: bool = False
    """With --synthetic: use real rows, drawn with replacement, instead of synthetic rows. A control experiment."""


@dataclass(frozen=True, kw_only=True)
class PixelOptions(Tracked):
    """How long pixel agents train on frames or on latents, and how they are evaluated."""

    updates: int = 550_000
    """Updates of every seed. The default is that of V-D4RL. K and M suffixes are accepted."""
    measure_every: int = 10_000
    """Updates between two lines of the log. The last update always has a line."""
    episodes: int = 10
    """Episodes that each seed plays after the training."""
    workers: int | None = None
    """Number of processes that play episodes. Default: all cores."""


@dataclass(frozen=True)
class Place:
    """Folders, files and hardware of this machine, which runs use but do not depend on."""

    store: Path
    """Folder of fitted generators, which all runs share."""
    data: Path | None = None
    """Folder of data sets."""
    policies: Path | None = None
    """File of policies from which data sets can be collected."""
    device: str = "auto"
    workers: int | None = None
    command: str = ""
    """The command line. It is stored in `provenance.json`."""

    def read(self, name: str, progress: Progress, seed: int = 0) -> Dataset:
        """Read a data set. Its origin does not contain the path of the data folder on this machine."""
        from synther import datasets

        found = datasets.read(name, data=self.data, policies=self.policies, seed=seed, progress=progress)
        return replace(found, origin=found.origin.replace(f"{self.data}/", ""))


@dataclass(frozen=True, kw_only=True)
class ChangeOptions:
    """Changes to the runs of an experiment. None changes nothing."""

    updates: int | None = None
    """Updates (online: steps) of every seed, instead of the experiment's number. K and M suffixes are accepted."""
    seeds: int | None = None
    """Number of seeds of every run, instead of the experiment's number."""
    evaluate_every: int | None = None
    """Updates (online: steps) between two evaluations, instead of the experiment's number."""
    samples: int | None = None
    """Maximum number of synthetic rows of each source. For pixel runs: the exact number."""
    preset: str | None = None
    """Preset of the diffusion models, instead of the experiment's preset."""
    fit_steps: int | None = None
    """Maximum number of steps of each fit of a diffusion model. For pixel runs: the exact number."""

    def given(self, *names: str) -> dict[str, Any]:
        """Return the options among `names` that are not None."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


_LOCAL = {"device", "workers", "tensorboard", "wandb", "checkpoint_seconds", "keep_every"}
"""Options that may differ between machines. `run.json` does not contain them."""
_RARELY_SET = {"prior", "precision", "env_id", "env_options", "evaluate", "checkpoint_every", "capacity"}
_RARELY_SET |= {"measure_every", "n_step", "holdout"}
"""Options that `run.json` contains only if they differ from the default, because earlier versions did not have them."""


class RunSpec(ABC):
    """A run as plain data. Each kind of run is a frozen dataclass."""

    shown: ClassVar[Literal["scores", "returns"]] = "scores"
    """The number that tables show."""
    is_training: ClassVar[bool] = True
    """Whether the run trains agents. Otherwise its result is a dict of numbers."""

    name: str
    """The name of the run and of its folder."""

    @property
    def data_set(self) -> str | None:
        """The name of the data that the agents learn from. None for online runs."""
        return None

    @property
    def growth(self) -> Growth | None:
        """The option that may be increased to extend the run, or None."""
        return None

    def to_json(self) -> dict[str, Any]:
        """Return the content of `run.json`: all options that the result depends on."""
        rarely = {option.name: option.default for option in fields(self) if option.name in _RARELY_SET}  # type: ignore[arg-type]
        own = used(asdict(self))  # type: ignore[call-overload]
        return {name: value for name, value in own.items() if name not in _LOCAL and rarely.get(name, ...) != value}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        found: Self = schema.checked(content, cls, cls.__name__)
        return found

    def changed(self, changes: ChangeOptions) -> RunSpec:
        """Return a copy with the changes."""
        return self

    def execute(self, folder: Path, place: Place, progress: Progress) -> None:
        """Train in `folder`, or resume the training there."""
        run = RunFolder(folder, growth=self.growth)
        run.check(self.to_json())  # before reading the data, which may take long
        provenance, train = self.prepared(place, progress)
        if not run.begun:
            run.claim(self.to_json())
        write_object(folder / PROVENANCE, {"command": place.command, **provenance})
        train(folder, progress)
        run.claim(self.to_json())  # the spec of an extended run replaces the shorter one

    @abstractmethod
    def prepared(self, place: Place, progress: Progress) -> tuple[dict[str, Any], Training]:
        """Read the data, and return its provenance and a function that trains on it. This happens before the folder is
        created, so that missing data leaves no folder behind."""

    def result(self, folder: Path) -> Path:
        """Return the path of the file that exists when the run is finished."""
        return folder / "training" / "result.json"

    def generators(self, done: Mapping[str, Any], folder: Path) -> Iterator[Fitted]:
        """Yield the diffusion models of a finished run. `done` is the content of its `run.json`."""
        return iter(())


def execute_all(
    specs: Sequence[RunSpec], folder: Path, place: Place, *, parallel: int = 1, **how: Any
) -> list[Outcome]:
    """Execute each run in a subfolder of `folder`, `parallel` at a time. `how` goes to `engines.run_all`."""
    from synther import compute
    from synther.engines import run_all

    tasks = [_Task(spec.name, spec, place) for spec in specs]
    log.info("%d runs in %s, %d at a time, on device %s", len(tasks), folder, parallel, place.device)
    with compute.shared_by_processes(compute.pick_device(place.device)) if parallel > 1 else nullcontext():
        return run_all(tasks, folder, parallel=parallel, **how)


@dataclass(frozen=True)
class _Task:
    """A run as a task for an engine."""

    name: str
    spec: RunSpec
    place: Place

    def execute(self, folder: Path, progress: Progress) -> None:
        self.spec.execute(folder, self.place, progress)

    def done(self, folder: Path) -> bool:
        """Return whether exactly this run is finished in `folder`. `execute` refuses another run there."""
        return self.spec.result(folder).exists() and same(read_object(folder / "run.json"), self.spec.to_json())


@dataclass(frozen=True, kw_only=True)
class Generator:
    """Description of a diffusion model: a preset, and changes to it."""

    preset: str = "paper"
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Changed options, by part of the preset: {"fit": {"steps": 1000}}."""

    def __post_init__(self) -> None:
        check_one_of("preset", self.preset, PRESETS)  # refuses `auto`, which depends on the machine

    def settings(self) -> Settings:
        return PRESETS[self.preset].changed(**self.changes)

    def with_preset(self, changes: ChangeOptions) -> Self:
        """Return a copy with the preset and the maximum number of fit steps of `changes`."""
        own = replace(self, preset=changes.preset or self.preset)
        settings, most = own.settings(), changes.fit_steps
        if most is None or most >= settings.fit.steps:
            return own
        settings.changed(fit={"steps": most})  # refuses an invalid number
        return replace(own, changes={**self.changes, "fit": {**self.changes.get("fit", {}), "steps": most}})


@dataclass(frozen=True)
class PolicyGuidance:
    """Guidance of synthetic rows towards the actions of agents (Jackson et al. 2024). The agents have the algorithm of
    the run and are trained before it."""

    strength: float = 1.0
    """From 0 (the actions of the data) to 1 (the actions of the agents)."""
    std: float = 0.1
    """Std of the actions around those of the agents. The default is the exploration noise of TD3."""
    updates: int = 500_000
    """Updates of these agents."""
    seeds: int = 4
    """Number of these agents. Each guides the same share of the rows."""
    learns_from: Literal["real", "synthetic"] = "synthetic"
    """Rows that these agents learn from: real rows, or synthetic rows of the same recipe without guidance."""

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
    """diffusion, tvae, ctgan, mbpo, or the name of an augmentation."""
    samples: int | None = 5_000_000
    """Number of rows. None: as many as there are real rows, but not more than `most`."""
    most: int | None = None
    trials: int = 0
    """Number of hyperparameter settings of TVAE and CTGAN that are tried in addition to the defaults."""
    policy: PolicyGuidance | None = None
    """Guidance of the actions. None: actions like those of the data."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, samples=1, most=1)
        self.check_guidance()
        if self.relevance == "td_error":
            raise ConfigError("relevance td_error needs agents that are training: choose another one for offline runs")
        if (self.relevance, self.policy) != (None, None) and self.generator != "diffusion":
            raise ConfigError(f"relevance and policy are only for the generator 'diffusion', got {self.generator!r}")

    def changed(self, changes: ChangeOptions) -> Recipe:
        """Return a copy with the changes. The number of samples is only reduced, never increased."""
        own, most = self, changes.samples
        if most is not None:
            own = replace(self, most=most) if self.samples is None else replace(self, samples=min(most, self.samples))
        if self.policy is not None:
            own = replace(own, policy=self.policy.changed(changes))
        return own.with_preset(changes) if self.generator == "diffusion" else own

    def source(self, real: Transitions, place: Place, seed: int) -> Source:
        """Return the source of synthetic rows that is fitted on the `real` rows."""
        from synther.compare import generators
        from synther.experiments.sources import Augmented, Generated

        samples = min(len(real), self.most or len(real)) if self.samples is None else self.samples
        if self.generator in AUGMENTATIONS:
            return Augmented(self.generator, real, samples, seed)
        how: Any = {"device": place.device, "seed": seed, "relevant": self.wanted()}
        plan = generators.Plan(self.settings(), samples, self.trials, **how)
        return Generated(self.generator, real, plan, place.store)

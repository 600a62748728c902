"""The kinds of run: offline, online, and on pixels, each a `RunSpec`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from synther.envs.camera import check_shadow_size
from synther.envs.pixels import REPEAT, SIZE
from synther.errors import ConfigError, SyntherError
from synther.experiments.spec import (
    PROVENANCE,
    ChangeOptions,
    Fitted,
    Generator,
    OfflineOptions,
    OnlineOptions,
    PixelOptions,
    Place,
    Recipe,
    RefreshOptions,
    RunSpec,
    SeedOptions,
    Training,
    used,
)
from synther.folder import Growth, RunFolder, read_object, write_object
from synther.plain import check_env_options, check_least, check_one_of, with_options
from synther.progress import Progress
from synther.schema import checked

if TYPE_CHECKING:
    from synther.agents.algorithm import AgentConfig
    from synther.datasets import Dataset
    from synther.pixels.agent import PixelConfig


def _training_of(folder: Path) -> dict[str, Any]:
    """Return the description of the training in the folder of a run. It is empty if the training has not begun."""
    described = folder / "training" / "run.json"
    return read_object(described) if described.exists() else {}


@dataclass(frozen=True)
class OfflineRun(OfflineOptions, RunSpec):
    """One training: all arms and all seeds of an algorithm on a data set.

    `train_to` gets rows that are already in memory and ignores `data`, `arms`, `sources` and `fraction`.
    """

    name: str = ""
    data: str = ""
    """Name of a data set that `datasets.read` knows."""
    algorithm: str = "td3_bc"
    arms: dict[str, dict[str, float]] = field(default_factory=dict)
    """For each arm, the shares of every batch that come from the real rows and from each source."""
    sources: dict[str, Recipe] = field(default_factory=dict)
    """Sources of synthetic rows, by name."""
    agent: dict[str, Any] = field(default_factory=dict)
    """Options of the algorithm that differ from those of the data set and from the defaults."""
    evaluate: bool = True
    checkpoint_seconds: float = 30.0
    """Minimum time between two checkpoints."""

    def __post_init__(self) -> None:
        check_least(self, updates=1, seeds=1, seed=0, evaluate_every=1, episodes=1, workers=1, n_step=1)
        if not 0 <= self.holdout < 1:
            raise ConfigError(f"holdout is a share of the real rows and must lie in [0, 1), got {self.holdout}")
        check_env_options(self.env_options or {})

    @property
    def config(self) -> AgentConfig:
        """The options of the algorithm. Unknown options raise an error."""
        from synther.agents.agent import ALGORITHMS

        check_one_of("algorithm", self.algorithm, ALGORITHMS.names())
        config: AgentConfig = with_options(self.algorithm, ALGORITHMS.get(self.algorithm).config_class(), self.agent)
        return config

    def on(self, dataset: Dataset) -> OfflineRun:
        """Return a copy in which options that are not set have the values of the data set."""
        agent = {**dataset.agent.get(self.algorithm, {}), **self.agent}
        return replace(self, agent=agent, episodes=dataset.episodes if self.episodes is None else self.episodes)

    def changed(self, changes: ChangeOptions) -> OfflineRun:
        sources = {name: recipe.changed(changes) for name, recipe in self.sources.items()}
        return replace(self, **changes.given("updates", "seeds", "evaluate_every"), sources=sources)

    @property
    def data_set(self) -> str:
        return self.data

    @property
    def growth(self) -> Growth:
        return Growth("updates")

    def prepared(self, place: Place, progress: Progress) -> tuple[dict[str, Any], Training]:
        from synther.experiments.offline import material_of, train_to

        dataset = place.read(self.data, progress, self.seed)
        material = material_of(self, dataset, place)
        run = replace(self.on(dataset), env_id=dataset.env_id, env_options=dataset.env_options)
        run = replace(run, workers=place.workers, device=place.device)
        run.config  # noqa: B018  # raises an error for unknown options, before a folder is created
        provenance = {"data": dataset.origin, "rows": len(material.real)}
        return provenance, lambda folder, progress: train_to(run, material, folder / "training", progress=progress)

    def generators(self, done: Mapping[str, Any], folder: Path) -> Iterator[Fitted]:
        trained = _training_of(folder)
        for name, recipe in done["sources"].items() if trained else ():
            if recipe["generator"] == "diffusion":
                yield ("sources", name), checked(recipe, Recipe, name), trained["synthetic"][name]["settings"]


@dataclass(frozen=True)
class Synthetic(RefreshOptions, Generator):
    """Generators for online replay: one for each seed, fitted again on the seed's experience at every refresh.

    The defaults are the paper's, except for `preset` and `refit`.
    """

    preset: str = "best"
    samples: int = 1_000_000
    """Number of synthetic rows of each seed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, samples=1, refresh_every=1)
        check_one_of("refit", self.refit, ("warm", "scratch"))
        check_one_of("refresh", self.refresh, ("fixed", "auto"))
        if self.copies and self.refresh == "auto":
            raise ConfigError("--copies fits no generator, --refresh auto needs one: leave one of these options out")
        if self.refresh == "auto" and self.settings().fit.holdout == 0:
            raise ConfigError("--refresh auto needs held-out rows, but fit.holdout is 0: set it above 0")
        if not 0 < self.ratio <= 1:
            raise ConfigError(f"ratio, the synthetic share of a batch, must lie in (0, 1], got {self.ratio}")
        if self.copies and self.relevance is not None:
            raise ConfigError(
                "--copies draws from all real rows, not from relevant rows: leave --relevance or --copies out"
            )
        self.check_guidance()
        if self.settings().fit.minutes is not None:
            raise ConfigError(
                "with fit.minutes, results would depend on the speed of the machine: set fit.steps instead"
            )

    @property
    def look_every(self) -> int:
        """Number of steps after which generators may be fitted again. See replay/adapting.py."""
        return self.refresh_every if self.refresh == "fixed" else max(1, self.refresh_every // 5)

    def changed(self, changes: ChangeOptions) -> Self:
        most = self.samples if changes.samples is None else min(changes.samples, self.samples)
        return replace(self, samples=most).with_preset(changes)

    def description(self) -> dict[str, Any]:
        own = used(asdict(self))
        del own["preset"], own["changes"]
        return {"settings": self.settings().to_json(), **own}


@dataclass(frozen=True)
class SyntheticLatents(Synthetic):
    """Generators for latents: one for each seed, fitted again at every refresh, because the encoder learns.

    After a refresh, only the heads learn from real and synthetic latents, which are dropped before the encoder changes.
    """

    samples: int = 250_000
    updates: int = 5_000
    """Updates of the heads after a refresh."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.updates < 1:
            raise ConfigError(f"updates, of the heads after a refresh, must be at least 1, got {self.updates}")
        if self.refresh == "auto":
            raise ConfigError(
                "--refresh auto is not possible for pixel agents, because latents change with the encoder"
            )


@dataclass(frozen=True)
class OnlineRun(OnlineOptions, RunSpec):
    """One online training: all seeds of an agent in one environment. A step is one decision, no action is repeated.

    A segment ends after every `checkpoint_every` steps and at every refresh. All environments are reset there, so that
    a run can be resumed without the state of a simulator. They are also reset if the run is not stopped.
    """

    shown = "returns"
    name: str
    env_id: str
    algorithm: str = "sac"
    utd: int = 1
    """Updates of the critics for each step."""
    synthetic: Synthetic | None = None
    """Options of synthetic replay. None: the agents learn only from real rows."""
    agent: dict[str, Any] = field(default_factory=dict)
    """Options of the algorithm that are not its defaults."""
    capacity: int = 1_000_000
    """Largest number of real rows that each seed keeps."""
    env_options: dict[str, Any] | None = None
    """Arguments of `gymnasium.make`."""
    prior: str | None = None
    """Name of earlier data that `datasets.read` knows. Half of the real rows of every batch come from it."""

    def __post_init__(self) -> None:
        check_least(self, utd=1, seed=0, learning_starts=0, steps=1, seeds=1, capacity=1, checkpoint_every=1)
        check_least(self, evaluate_every=1, episodes=1, workers=1, n_step=1, keep_every=1)
        check_env_options(self.env_options or {})
        if self.keep_every is not None and self.keep_every % self.checkpoint_every:
            every = f"checkpoint_every ({self.checkpoint_every:,})"
            raise ConfigError(f"keep_every must be a multiple of {every}, got {self.keep_every:,}")
        if self.n_step > min(self.learning_starts + 1, self.segment_after(0)):
            named = "learning_starts, checkpoint_every, refresh_every and steps"
            raise ConfigError(f"n_step is {self.n_step}: {named} must be at least that")

    @property
    def arm(self) -> str:
        """Name of the run's only arm in its result."""
        return self.algorithm if self.synthetic is None else f"{self.algorithm}_synther"

    @property
    def config(self) -> Any:
        """The options of the algorithm. Unknown options raise an error."""
        from synther.agents.learner import ONLINE_AGENTS

        check_one_of("agent", self.algorithm, ONLINE_AGENTS.names())
        default = replace(ONLINE_AGENTS.get(self.algorithm).config, utd=self.utd)
        return with_options(self.algorithm, default, self.agent, "utd")

    def is_refreshed(self, step: int) -> bool:
        """Return whether generators are fitted after `step` steps (with `refresh` "auto": may be fitted). This is not
        done after the last step, because the rows would not be used."""
        return self.synthetic is not None and 0 < step < self.steps and step % self.synthetic.look_every == 0

    def doubts(self) -> Iterator[str]:
        """Yield warnings about settings that make sense only for a short test."""
        if self.learning_starts >= self.steps:
            begins = f"learning starts after {self.learning_starts:,} steps (--learning-starts)"
            yield f"nothing is learned: {begins}, but the run has {self.steps:,}"
        if self.synthetic is not None:
            every, look_every = self.synthetic.refresh_every, self.synthetic.look_every
            last = (self.steps - 1) // look_every * look_every
            if last < every or not self.is_refreshed(last):
                period = f"a refresh is due every {every:,} steps (--refresh-every)"
                yield f"no generator is fitted: {period}, but the run has {self.steps:,}"

    def segment_after(self, step: int) -> int:
        """Return the last step of the segment that begins after `step` steps."""
        every = [self.checkpoint_every, *([] if self.synthetic is None else [self.synthetic.look_every])]
        return min(self.steps, *((step // length + 1) * length for length in every))

    def segments_until(self, step: int) -> list[int]:
        """Return the last steps of all segments up to `step`, which must be the end of a segment."""
        ends = [0]
        while ends[-1] < step:
            ends.append(self.segment_after(ends[-1]))
        return ends[1:]

    @property
    def growth(self) -> Growth:
        """`steps` may be increased if the longer run also ends a segment, with a reset, where the shorter run ended."""
        why = f"a run can be extended from a multiple of {self.checkpoint_every:,} steps (--checkpoint-every)"
        return Growth("steps", lambda step: "" if self.segments_until(step)[-1] == step else why)

    def description(self) -> dict[str, Any]:
        """Return the options that the result of the training depends on."""
        names = ("env_id", "steps", "seeds", "seed", "learning_starts", "capacity", "checkpoint_every")
        own = {name: getattr(self, name) for name in (*names, "evaluate_every", "episodes", "precision")}
        own |= {"env_options": self.env_options or {}, "agent": self.config.described()}
        own |= {} if self.n_step == 1 else {"n_step": self.n_step}
        return own | {"upsampling": None if self.synthetic is None else self.synthetic.description()}

    def changed(self, changes: ChangeOptions) -> OnlineRun:
        synthetic = None if self.synthetic is None else self.synthetic.changed(changes)
        own = changes.given("updates", "seeds", "evaluate_every")
        return replace(self, steps=own.pop("updates", self.steps), **own, synthetic=synthetic)

    def prepared(self, place: Place, progress: Progress) -> tuple[dict[str, Any], Training]:
        from synther.envs.making import opened
        from synther.experiments.online import train_to

        run = replace(self, workers=place.workers, device=place.device)
        run.config  # noqa: B018  # raises an error for unknown options, before a folder is created
        with opened(self.env_id):
            pass
        prior = None if self.prior is None else place.read(self.prior, progress)
        rows, provenance = (None, {}) if prior is None else (prior.rows, {"prior": prior.origin})
        return provenance, lambda folder, progress: train_to(run, folder / "training", prior=rows, progress=progress)

    def generators(self, done: Mapping[str, Any], folder: Path) -> Iterator[Fitted]:
        trained = _training_of(folder)
        if trained and done["synthetic"] is not None:
            kind = Synthetic if self.synthetic is None else type(self.synthetic)
            yield ("synthetic",), kind(**done["synthetic"]), trained["upsampling"]["settings"]


_LONG = 1_000
"""Number of steps that is larger than `nstep` of any agent. Reading the default of `nstep` would import PyTorch."""


@dataclass(frozen=True)
class OnlinePixelRun(OnlineRun):
    """One online training of pixel agents. The defaults are those of DrQ-v2. A step is one decision in the environment
    of every seed. Its action is repeated `repeat` times."""

    algorithm: str = "drq_v2"
    synthetic: SyntheticLatents | None = None
    learning_starts: int = field(default=2_000, kw_only=True)
    evaluate_every: int = field(default=10_000, kw_only=True)
    precision: Literal["auto", "float32", "tf32", "bf16"] = field(default="auto", kw_only=True)  # type: ignore[assignment]
    update_every: int = 2
    """Number of steps for each update."""
    repeat: int = REPEAT
    """Number of times that each action is repeated."""
    size: int = SIZE
    """Width and height of the frames in pixels."""
    shadow_size: int | None = None
    """Width of the shadow map. None: the value of the task."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of("agent", self.algorithm, ["drq_v2"])
        check_least(self, update_every=1, repeat=1, size=1)
        if self.shadow_size is not None:
            check_shadow_size(self.shadow_size)
        shortest = min(self.learning_starts, self.segment_after(0))
        is_checked = shortest < _LONG or "nstep" in self.agent
        if is_checked and shortest < (nstep := self.config.nstep) < self.steps:
            named = "learning_starts, checkpoint_every and refresh_every"
            raise ConfigError(f"agent.nstep is {nstep}: {named} must be at least that")
        if self.env_options or self.utd != 1 or self.n_step != 1:
            raise ConfigError("pixel agents have no env_options, utd and n_step: leave them out, or set agent.nstep")

    @property
    def config(self) -> Any:
        """The options of DrQ-v2. Unknown options raise an error."""
        from synther.agents.drq_v2 import DrQv2Config

        return with_options(self.algorithm, DrQv2Config(), self.agent)

    def is_refreshed(self, step: int) -> bool:
        """Return whether generators are fitted after `step` steps. The encoder must have begun to learn."""
        return step > self.learning_starts and super().is_refreshed(step)

    @property
    def frames(self) -> int:
        """Capacity of the store of frames, which include those of resets. All frames fit if episodes have at least 20
        decisions. Only then does an extended run give the same result as a run of this length from the start."""
        return min(self.capacity, self.steps + self.steps // 20 + len(self.segments_until(self.steps)))

    def description(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("update_every", "repeat", "size", "shadow_size")}
        return {"kind": "online_pixels", **super().description(), **own}


PixelAlgorithm = Literal["drq_bc", "bc"]
Features = Literal["both", "actor", "critic"]

STAGE_ONE = "stage-one"
"""Name of the arm and the folder of the agents that are trained on frames."""


@dataclass(frozen=True)
class Retraining:
    """An arm of heads that are retrained on latents."""

    features: Features = "both"
    """The trunk that computes the latents: actor, critic, or both. BC has only an actor."""
    recipe: Recipe | None = None
    """Source of synthetic latents. None: real latents."""
    ratio: float = 1.0
    """Share of synthetic latents in every batch. The others are real."""
    shifts: int = 1
    """Number of random shifts with which each decision is encoded."""
    pairs: bool = False
    """Generate only latents and actions, because BC learns from nothing else."""

    def __post_init__(self) -> None:
        check_one_of("features", self.features, get_args(Features))
        if not 0 < self.ratio <= 1 or self.shifts < 0:
            raise ConfigError(f"expected a ratio in (0, 1] and no negative shifts, got {self.ratio} and {self.shifts}")
        if self.recipe is not None and (self.recipe.generator != "diffusion" or self.recipe.samples is None):
            raise ConfigError("a recipe for latents needs the generator 'diffusion' and a number of samples")
        if self.pairs and self.features != "actor":
            raise ConfigError(f"pairs are only for heads of BC, which have the features 'actor', got {self.features!r}")

    @property
    def latents(self) -> str:
        """Name of the latents. Arms with the same name share them."""
        return f"{self.features}-{self.shifts}"

    @property
    def models(self) -> tuple[Any, ...] | None:
        """Key of the fitted models. Arms with the same key share them."""
        return None if self.recipe is None else (self.latents, self.pairs, self.recipe.settings())

    def changed(self, changes: ChangeOptions) -> Retraining:
        """Return a copy with the changes. Numbers of samples and fit steps are set, and not only reduced."""
        if self.recipe is None:
            return self
        recipe = self.recipe.changed(replace(changes, samples=None, fit_steps=None))
        recipe = replace(recipe, **changes.given("samples"))
        if changes.fit_steps is not None:
            fit = {**recipe.changes.get("fit", {}), "steps": changes.fit_steps}
            recipe = replace(recipe, changes={**recipe.changes, "fit": fit})
            recipe.settings()  # refuses an invalid number
        return replace(self, recipe=recipe)


@dataclass(frozen=True)
class PixelRun(PixelOptions, SeedOptions, RunSpec):
    """Offline training of pixel agents, all seeds at once, and retraining of their heads on latents. `pixels.train_to`
    gets frames that are already in memory and ignores `task`, `level`, `arms` and `episodes`."""

    name: str = ""
    task: str = ""
    """A task of the dm_control suite, for example walker-walk."""
    level: str = ""
    """The level of the data, for example medium."""
    algorithm: PixelAlgorithm = "drq_bc"
    arms: dict[str, Retraining] = field(default_factory=dict)
    """Arms of retrained heads, by name. The agents of stage one are an arm, too, but not in this dict."""
    agent: dict[str, Any] = field(default_factory=dict)
    """Options of the algorithm that are not its defaults."""
    env_id: str | None = None
    """The environment, if neither the task nor the frames name it."""
    precision: Literal["auto", "float32", "tf32", "bf16"] = "auto"
    checkpoint_seconds: float = 30.0
    """Minimum time between two checkpoints."""

    def __post_init__(self) -> None:
        check_one_of("agent", self.algorithm, get_args(PixelAlgorithm))
        check_least(self, updates=1, seeds=1, seed=0, episodes=1, measure_every=1, workers=1)
        if STAGE_ONE in self.arms:
            raise ConfigError(f"the name {STAGE_ONE!r} is reserved for agents trained on frames: rename the arm")

    @property
    def data_set(self) -> str:
        return f"{self.task}-{self.level}"

    @property
    def config(self) -> PixelConfig:
        """The options of the algorithm. Unknown options raise an error."""
        from synther.pixels.agent import PIXEL_ALGORITHMS

        default = PIXEL_ALGORITHMS[self.algorithm][0]()
        # The exploration noise decreases over the same share of the updates as in V-D4RL.
        decay = max(1, round(default.stddev_updates * self.updates / PixelOptions.updates))
        config: PixelConfig = with_options(self.algorithm, default, {"stddev_updates": decay, **self.agent})
        return config

    def changed(self, changes: ChangeOptions) -> PixelRun:
        if changes.evaluate_every is not None:
            raise ConfigError(
                f"{self.name} is a pixel run, which is evaluated only at its end: leave --evaluate-every out"
            )
        arms = {name: arm.changed(changes) for name, arm in self.arms.items()}
        return replace(self, **changes.given("updates", "seeds"), arms=arms)

    def execute(self, folder: Path, place: Place, progress: Progress) -> None:
        """Train in `folder`, or resume the training there. Then evaluate all arms."""
        from synther.experiments.evaluation import evaluate, why_not
        from synther.experiments.pixels import is_trained

        RunFolder(folder).check(self.to_json())
        arms = (STAGE_ONE, *self.arms)
        if not all(is_trained(folder / arm) for arm in arms):
            super().execute(folder, place, progress)
        why = why_not(folder / STAGE_ONE)
        if why is not None:
            raise SyntherError(
                f"the agents are trained, but not evaluated: run the same command where frames can be drawn ({why})"
            )
        how: dict[str, Any] = {"episodes": self.episodes, "workers": place.workers, "progress": progress}
        found = {arm: evaluate(folder / arm, **how) for arm in arms}
        joined = replace(
            found[STAGE_ONE],
            seconds=sum(result.seconds for result in found.values()),
            seconds_of={arm: result.seconds for arm, result in found.items()},
            curves={arm: curve for arm, result in found.items() for curve in result.curves.values()},
            diverged={arm: lost for arm, result in found.items() for lost in result.diverged.values()},
        )
        write_object(self.result(folder), joined.to_json())

    def generators(self, done: Mapping[str, Any], folder: Path) -> Iterator[Fitted]:
        known = read_object(folder / PROVENANCE).get("generators", {}) if (folder / PROVENANCE).exists() else {}
        for arm, settings in known.items():
            yield ("arms", arm), Recipe(**done["arms"][arm]["recipe"]), settings

    def result(self, folder: Path) -> Path:
        return folder / "result.json"

    def prepared(self, place: Place, progress: Progress) -> tuple[dict[str, Any], Training]:
        from synther.experiments.pixels import earned, train_arms
        from synther.pixels import files

        run = replace(self, env_id=self.env_id or f"dm_control/{self.task}-v0", device=place.device)
        run.config  # noqa: B018  # raises an error for unknown options, before a folder is created
        source = files.frames_of(self.task, self.level, place.data)
        frames = files.read(source, progress)
        # The record does not contain the path of the data folder on this machine.
        origin = f"frames read from {source.relative_to(place.data) if place.data else source}{earned(frames)}"
        settings = {arm: own.recipe.settings().to_json() for arm, own in self.arms.items() if own.recipe is not None}
        provenance = {"data": origin, "rows": len(frames), "generators": settings}
        return provenance, lambda folder, progress: train_arms(run, frames, folder, progress)

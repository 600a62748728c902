"""The kinds of run: offline, online, and on pixels, each a `RunSpec`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from synther.envs.camera import check_shadow_size
from synther.envs.pixels import REPEAT, SIZE
from synther.errors import ConfigError, SyntherError
from synther.experiments.results import Result
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
    """The description of the training in the folder of a run; empty if it has not begun."""
    described = folder / "training" / "run.json"
    return read_object(described) if described.exists() else {}


@dataclass(frozen=True)
class OfflineRun(OfflineOptions, RunSpec):
    """One training: all arms and all seeds of an algorithm on a data set.

    `train_to` takes rows that are already in memory. It does not read `data`, `arms`, `sources` and `fraction`.
    """

    name: str = ""
    data: str = ""
    """A name that `datasets.read` knows."""
    algorithm: str = "td3_bc"
    arms: dict[str, dict[str, float]] = field(default_factory=dict)
    """For each arm, the share of every batch that comes from the real rows and from each source."""
    sources: dict[str, Recipe] = field(default_factory=dict)
    agent: dict[str, Any] = field(default_factory=dict)
    """Options of the algorithm that differ from those of the data set and from its defaults."""
    evaluate: bool = True
    checkpoint_seconds: float = 30.0
    """Minimum time between two checkpoints."""

    def __post_init__(self) -> None:
        check_least(self, updates=1, seeds=1, seed=0, evaluate_every=1, episodes=1, workers=1, n_step=1)
        if not 0 <= self.holdout < 1:
            raise ConfigError(f"holdout, a share of the real rows, must lie in [0, 1), got {self.holdout}")
        check_env_options(self.env_options or {})

    @property
    def config(self) -> AgentConfig:
        from synther.agents.agent import ALGORITHMS

        check_one_of("algorithm", self.algorithm, ALGORITHMS.names())
        config: AgentConfig = with_options(self.algorithm, ALGORITHMS.get(self.algorithm).config_class(), self.agent)
        return config

    def on(self, dataset: Dataset) -> OfflineRun:
        """A copy in which options that are not set are those of the data set."""
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
        run.config  # noqa: B018  # which refuses unknown options before there is a folder
        provenance = {"data": dataset.origin, "rows": len(material.real)}
        return provenance, lambda folder, progress: train_to(run, material, folder / "training", progress=progress)

    def generators(self, done: Mapping[str, Any], folder: Path) -> Iterator[Fitted]:
        trained = _training_of(folder)
        for name, recipe in done["sources"].items() if trained else ():
            if recipe["generator"] == "diffusion":
                yield ("sources", name), checked(recipe, Recipe, name), trained["synthetic"][name]["settings"]


@dataclass(frozen=True)
class Synthetic(RefreshOptions, Generator):
    """A generator of each seed's own rows, fitted again as they come in. The defaults are the paper's."""

    preset: str = "best"
    samples: int = 1_000_000
    """Synthetic rows of each seed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, samples=1, refresh_every=1)
        check_one_of("refit", self.refit, ("warm", "scratch"))
        check_one_of("refresh", self.refresh, ("fixed", "auto"))
        if self.copies and self.refresh == "auto":
            raise ConfigError("copies need no generator that could drift: leave --refresh auto or --copies out")
        if self.refresh == "auto" and self.settings().fit.holdout == 0:
            raise ConfigError("--refresh auto is decided by held-out rows, and fit.holdout is 0: set it above 0")
        if not 0 < self.ratio <= 1:
            raise ConfigError(f"ratio, the synthetic share of a batch, must lie in (0, 1], got {self.ratio}")
        if self.copies and self.relevance is not None:
            raise ConfigError("copies are of all real rows: leave --relevance or --copies out")
        self.check_guidance()
        if self.settings().fit.minutes is not None:
            raise ConfigError("fit.minutes would make every run different: set fit.steps instead")

    @property
    def look_every(self) -> int:
        """Steps between two times at which generators may be fitted. See replay/adapting.py."""
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
    """A generator of each seed's own latents, fitted again as frames come in and the encoder learns.

    After every refresh the heads alone learn from real and synthetic latents. Then all latents are dropped, so that no
    latent is older than the encoder.
    """

    samples: int = 250_000
    updates: int = 5_000
    """Updates of the heads after every refresh."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.updates < 1:
            raise ConfigError(f"updates, of the heads after a refresh, must be at least 1, got {self.updates}")
        if self.refresh == "auto":
            raise ConfigError("--refresh auto is for agents that see states: latents change with their encoder anyway")


@dataclass(frozen=True)
class OnlineRun(OnlineOptions, RunSpec):
    """One training: all seeds of an agent in one environment. A step is one decision: no action is repeated.

    A segment ends every `checkpoint_every` steps and at every refresh. There all environments start over, whether the
    run is stopped there or not, so that resuming needs no state of a simulator.
    """

    shown = "returns"
    name: str
    env_id: str
    algorithm: str = "sac"
    utd: int = 1
    """Updates of the critics for each step."""
    synthetic: Synthetic | None = None
    """None learns from real rows alone."""
    agent: dict[str, Any] = field(default_factory=dict)
    """Options of the algorithm that are not its defaults."""
    capacity: int = 1_000_000
    """Real rows of each seed that are kept."""
    env_options: dict[str, Any] | None = None
    """Passed to `gymnasium.make`."""
    prior: str | None = None
    """Earlier data, a name that `datasets.read` knows: half of the real rows of every batch are drawn from it."""

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
        from synther.agents.learner import ONLINE_AGENTS

        check_one_of("agent", self.algorithm, ONLINE_AGENTS.names())
        default = replace(ONLINE_AGENTS.get(self.algorithm).config, utd=self.utd)
        return with_options(self.algorithm, default, self.agent, "utd")

    def is_refreshed(self, step: int) -> bool:
        """Whether generators are fitted after `step` steps, or may be. Rows after the last step would not be used."""
        return self.synthetic is not None and 0 < step < self.steps and step % self.synthetic.look_every == 0

    def doubts(self) -> Iterator[str]:
        """Warnings about settings that make sense only in a trial."""
        if self.learning_starts >= self.steps:
            begins = f"learning starts after {self.learning_starts:,} steps (--learning-starts)"
            yield f"nothing is learned: {begins}, and there are {self.steps:,}"
        if self.synthetic is not None:
            every, look_every = self.synthetic.refresh_every, self.synthetic.look_every
            last = (self.steps - 1) // look_every * look_every
            if last < every or not self.is_refreshed(last):
                yield f"no generator is fitted: that is done every {every:,} steps (--refresh-every), of {self.steps:,}"

    def segment_after(self, step: int) -> int:
        """The end of the segment that begins after `step` steps."""
        every = [self.checkpoint_every, *([] if self.synthetic is None else [self.synthetic.look_every])]
        return min(self.steps, *((step // length + 1) * length for length in every))

    def segments_until(self, step: int) -> list[int]:
        """Ends of the segments up to a step that is one of them."""
        ends, end = [], 0
        while end < step:
            end = self.segment_after(end)
            ends.append(end)
        return ends

    @property
    def growth(self) -> Growth:
        """A run can be extended if a segment ends where it ended: there the environments start over."""
        why = f"a run can be extended from a multiple of {self.checkpoint_every:,} steps (--checkpoint-every)"
        return Growth("steps", lambda step: "" if self.segments_until(step)[-1] == step else why)

    def description(self) -> dict[str, Any]:
        """The options that the result of the training depends on."""
        names = ("env_id", "steps", "seeds", "seed", "learning_starts", "capacity", "checkpoint_every")
        own = {name: getattr(self, name) for name in (*names, "evaluate_every", "episodes", "precision")}
        upsampling = None if self.synthetic is None else self.synthetic.description()
        own |= {"env_options": self.env_options or {}, "agent": self.config.described()}
        own |= {} if self.n_step == 1 else {"n_step": self.n_step}
        return own | {"upsampling": upsampling}

    def changed(self, changes: ChangeOptions) -> OnlineRun:
        synthetic = None if self.synthetic is None else self.synthetic.changed(changes)
        own = changes.given("updates", "seeds", "evaluate_every")
        return replace(self, steps=own.pop("updates", self.steps), **own, synthetic=synthetic)

    def prepared(self, place: Place, progress: Progress) -> tuple[dict[str, Any], Training]:
        from synther.envs.making import opened
        from synther.experiments.online import train_to

        run = replace(self, workers=place.workers, device=place.device)
        run.config  # noqa: B018  # which refuses unknown options before there is a folder
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
"""Steps, of which no agent learns from so many at a time. To find out how many it is imports PyTorch."""


@dataclass(frozen=True)
class OnlinePixelRun(OnlineRun):
    """One training of pixel agents. The defaults are DrQ-v2's.

    A step is one decision in the environment of every seed, whose action is repeated `repeat` times.
    """

    algorithm: str = "drq_v2"
    synthetic: SyntheticLatents | None = None
    learning_starts: int = field(default=2_000, kw_only=True)
    evaluate_every: int = field(default=10_000, kw_only=True)
    precision: Literal["auto", "float32", "tf32", "bf16"] = field(default="auto", kw_only=True)  # type: ignore[assignment]
    update_every: int = 2
    """Steps for one update."""
    repeat: int = REPEAT
    size: int = SIZE
    """Pixels of a side of the frames."""
    shadow_size: int | None = None
    """Width of the shadow map; None is the task's own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of("agent", self.algorithm, ["drq_v2"])
        check_least(self, update_every=1, repeat=1, size=1)
        if self.shadow_size is not None:
            check_shadow_size(self.shadow_size)
        shortest = min(self.learning_starts, self.segment_after(0))
        is_asked = shortest < _LONG or "nstep" in self.agent
        if is_asked and shortest < (nstep := self.config.nstep) < self.steps:
            named = "learning_starts, checkpoint_every and refresh_every"
            raise ConfigError(f"agent.nstep is {nstep}: {named} must be at least that")
        if self.env_options or self.utd != 1 or self.n_step != 1:
            raise ConfigError("pixel agents take no env_options, no utd and no n_step; their own option is agent.nstep")

    @property
    def config(self) -> Any:
        from synther.agents.drq_v2 import DrQv2Config

        return with_options(self.algorithm, DrQv2Config(), self.agent)

    def is_refreshed(self, step: int) -> bool:
        """Nor are generators fitted before the encoder has begun to learn."""
        return step > self.learning_starts and super().is_refreshed(step)

    @property
    def frames(self) -> int:
        """Frames, resets included, for which there is room: for all of them if episodes have twenty decisions or more.

        Only there is a run that was extended the same as one that was as long from the start.
        """
        return min(self.capacity, self.steps + self.steps // 20 + len(self.segments_until(self.steps)))

    def description(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("update_every", "repeat", "size", "shadow_size")}
        return {"kind": "online_pixels", **super().description(), **own}


PixelAlgorithm = Literal["drq_bc", "bc"]
Features = Literal["both", "actor", "critic"]

STAGE_ONE = "stage-one"
"""The arm, and the folder, of the agent that was trained on frames."""


@dataclass(frozen=True)
class Retraining:
    """An arm whose heads are retrained on latents."""

    features: Features = "both"
    """Trunk whose outputs are the latents: actor, critic, or both. BC has only an actor."""
    recipe: Recipe | None = None
    """Source of synthetic latents; None is real latents."""
    ratio: float = 1.0
    """Share of synthetic latents in every batch; the others are real."""
    shifts: int = 1
    """Random shifts with which each decision is encoded."""
    pairs: bool = False
    """Generate latents and actions alone, which is all that BC learns from."""

    def __post_init__(self) -> None:
        check_one_of("features", self.features, get_args(Features))
        if not 0 < self.ratio <= 1 or self.shifts < 0:
            raise ConfigError(f"expected a ratio in (0, 1] and no negative shifts, got {self.ratio} and {self.shifts}")
        if self.recipe is not None and (self.recipe.generator != "diffusion" or self.recipe.samples is None):
            raise ConfigError("latents are made by diffusion, with a number of samples: got another recipe")
        if self.pairs and self.features != "actor":
            raise ConfigError(f"pairs are enough for the heads of BC, which has actor features: got {self.features}")

    @property
    def latents(self) -> str:
        """Names the latents: arms that have it in common share them."""
        return f"{self.features}-{self.shifts}"

    @property
    def models(self) -> tuple[Any, ...] | None:
        """Identifies the models: arms that have it in common share them."""
        return None if self.recipe is None else (self.latents, self.pairs, self.recipe.settings())

    def changed(self, changes: ChangeOptions) -> Retraining:
        """A number of samples or steps is taken as given: each arm has the same, unlike the sources of rows."""
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
    """One pixel agent, all seeds at once, and its heads retrained on other latents.

    `pixels.train_to` takes frames that are already in memory. It does not read `task`, `level`, `arms`, `episodes`.
    """

    name: str = ""
    task: str = ""
    """A task of the dm_control suite: walker-walk."""
    level: str = ""
    """The level of the data: medium."""
    algorithm: PixelAlgorithm = "drq_bc"
    arms: dict[str, Retraining] = field(default_factory=dict)
    """Arms that are retrained on latents, by name; the agent of stage one is an arm, too."""
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
            raise ConfigError(f"the arm {STAGE_ONE} is the agent of frames: rename the arm of heads")

    @property
    def data_set(self) -> str:
        return f"{self.task}-{self.level}"

    @property
    def config(self) -> PixelConfig:
        from synther.pixels.agent import PIXEL_ALGORITHMS

        default = PIXEL_ALGORITHMS[self.algorithm][0]()
        # The noise of actions falls over the same share of the updates as in V-D4RL.
        decay = max(1, round(default.stddev_updates * self.updates / PixelOptions.updates))
        config: PixelConfig = with_options(self.algorithm, default, {"stddev_updates": decay, **self.agent})
        return config

    def changed(self, changes: ChangeOptions) -> PixelRun:
        if changes.evaluate_every is not None:
            raise ConfigError(f"{self.name} is evaluated only at its end: leave --evaluate-every out")
        arms = {name: arm.changed(changes) for name, arm in self.arms.items()}
        return replace(self, **changes.given("updates", "seeds"), arms=arms)

    def execute(self, folder: Path, place: Place, progress: Progress) -> None:
        """Train in `folder`, or resume there, then evaluate."""
        from synther.experiments.evaluation import evaluate, why_not
        from synther.experiments.pixels import is_trained

        RunFolder(folder).check(self.to_json())
        arms = (STAGE_ONE, *self.arms)
        if not all(is_trained(folder / arm) for arm in arms):
            super().execute(folder, place, progress)
        why = why_not(folder / STAGE_ONE)
        if why is not None:
            raise SyntherError(f"trained, not evaluated: run the same command where frames can be drawn ({why})")
        how: dict[str, Any] = {"episodes": self.episodes, "workers": place.workers, "progress": progress}
        found = {arm: evaluate(folder / arm, **how) for arm in arms}
        write_object(self.result(folder), _together(found).to_json())

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
        run.config  # noqa: B018  # which refuses unknown options before there is a folder
        source = files.frames_of(self.task, self.level, place.data)
        frames = files.read(source, progress)
        # The path of the data folder on this machine is left out of the record.
        origin = f"frames read from {source.relative_to(place.data) if place.data else source}{earned(frames)}"
        recipes = {arm: retraining.recipe for arm, retraining in self.arms.items()}
        meant = {arm: recipe.settings().to_json() for arm, recipe in recipes.items() if recipe is not None}
        told = {"data": origin, "rows": len(frames), "generators": meant}
        return told, lambda folder, progress: train_arms(run, frames, folder, progress)


def _together(found: Mapping[str, Result]) -> Result:
    """One result with all arms."""
    first = found[STAGE_ONE]
    return replace(
        first,
        seconds=sum(result.seconds for result in found.values()),
        seconds_of={arm: result.seconds for arm, result in found.items()},
        curves={arm: curve for arm, result in found.items() for curve in result.curves.values()},
        diverged={arm: lost for arm, result in found.items() for lost in result.diverged.values()},
    )

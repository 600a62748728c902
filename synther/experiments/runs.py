"""Trainings as plain data: what is trained on what, and how long, fit to be written down and sent elsewhere.

A run has a folder: `run.json` is the run itself, `facts.json` what became of its names here, `training/` what
`offline.train_to` leaves behind. A folder that has been begun belongs to its run; another is refused there, but for
one that differs in nothing but more updates, which goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypedDict, Unpack

from synther.baselines.augmentation import AUGMENTATIONS
from synther.errors import ConfigError
from synther.folder import RunFolder, read_object, same, write_object
from synther.plain import check_least, check_one_of, check_options
from synther.presets import PRESETS, Settings
from synther.progress import Progress

if TYPE_CHECKING:
    from synther.agents.algorithm import AgentConfig
    from synther.data.transitions import Transitions
    from synther.datasets import Dataset
    from synther.experiments.engines import Outcome
    from synther.experiments.offline import Plan
    from synther.experiments.sources import Material, Source


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
    """What was asked for, for the record."""


class Job(Protocol):
    """A run, or other work that leaves a file behind: plain data, which a `Place` can execute."""

    @property
    def name(self) -> str:
        """Of its folder, too."""

    def to_json(self) -> dict[str, Any]:
        """What `run.json` says."""

    def execute(self, folder: Path, place: Place, progress: Progress) -> None:
        """Do the work in `folder`, or what is left of it."""

    def result(self, folder: Path) -> Path:
        """The file that is there when all is done."""


def execute_all(
    jobs: Sequence[Job],
    folder: Path,
    place: Place,
    *,
    engine: Literal["local", "ray"] = "local",
    gpus: float | None = None,
    address: str | None = None,
    progress: Progress | bool = True,
) -> list[Outcome]:
    """Each job in a folder of its own in `folder`; see `engines.run_all`."""
    from synther.experiments.engines import run_all

    tasks = [_Task(job, place) for job in jobs]
    return run_all(tasks, folder, engine=engine, gpus=gpus, address=address, progress=progress)


@dataclass(frozen=True)
class _Task:
    """A job as an engine wants it."""

    job: Job
    place: Place

    @property
    def name(self) -> str:
        return self.job.name

    def execute(self, folder: Path, progress: Progress) -> None:
        self.job.execute(folder, self.place, progress)

    def done(self, folder: Path) -> bool:
        """Whether this very job is; another that has been done there is refused when it comes to its turn."""
        return self.job.result(folder).exists() and same(read_object(folder / "run.json"), self.job.to_json())


class Changes(TypedDict, total=False):
    """What a run can have instead of its own; None is as if it were not said."""

    updates: int | None
    """Online: steps of the environment."""
    seeds: int | None
    evaluate_every: int | None
    samples: int | None
    """The most that a source makes."""
    preset: str | None
    """Of diffusion."""
    fit_steps: int | None
    """The most that a diffusion model is fitted."""


def given(changes: Changes, *names: str) -> dict[str, Any]:
    """Those of the changes."""
    return {name: changes[name] for name in names if changes.get(name) is not None}  # type: ignore[literal-required]


Parts = dict[str, dict[str, Any]]
"""Options of parts of a preset, to be changed."""


def shortened(settings: Settings, parts: Parts, changes: Changes) -> Parts:
    """The `parts` that led to the `settings`, with no more steps of fitting than is asked for."""
    most = changes.get("fit_steps")
    if most is None or most >= settings.fit.steps:
        return parts
    settings.changed(fit={"steps": most})  # refuses what is no number of steps
    return {**parts, "fit": {**parts.get("fit", {}), "steps": most}}


@dataclass(frozen=True)
class Recipe:
    """How rows beside the real ones are made."""

    generator: str = "diffusion"
    """diffusion, tvae, ctgan, or one of the augmentations."""
    samples: int | None = 5_000_000
    """None is as many as there are real ones,"""
    most: int | None = None
    """or so many, if those are more."""
    preset: str = "paper"
    """Of diffusion."""
    changes: Parts = field(default_factory=dict)
    """Of the preset."""
    trials: int = 0
    """Settings of TVAE and CTGAN that are tried beside their defaults."""

    def __post_init__(self) -> None:
        check_one_of("preset", self.preset, PRESETS)  # nor auto, which is another one on another machine
        check_least(self, samples=1, most=1)

    def settings(self) -> Settings:
        """Of diffusion."""
        return PRESETS[self.preset].changed(**self.changes)

    def changed(self, changes: Changes) -> Recipe:
        own, asked = self, changes.get("samples")
        if asked is not None:
            own = replace(self, most=asked) if self.samples is None else replace(self, samples=min(asked, self.samples))
        if self.generator != "diffusion":
            return own
        changed = replace(own, preset=changes.get("preset") or self.preset)
        return replace(changed, changes=shortened(changed.settings(), self.changes, changes))

    def source(self, real: Transitions, place: Place, seed: int) -> Source:
        from synther.compare import generators
        from synther.experiments.sources import Augmented, Generated

        samples = min(len(real), self.most or len(real)) if self.samples is None else self.samples
        if self.generator in AUGMENTATIONS:
            return Augmented(self.generator, real, samples, seed)
        plan = generators.Plan(self.settings(), samples, self.trials, device=place.device, seed=seed)
        return Generated(self.generator, real, plan, place.store)


@dataclass(frozen=True)
class Run:
    """One training: all arms and all seeds of an algorithm on a data set."""

    name: str
    """Also of its folder."""
    data: str
    """A name that `datasets.read` knows."""
    algorithm: str
    arms: dict[str, dict[str, float]]
    """For each arm, which share of every batch comes from which rows: the real ones, or a source."""
    sources: dict[str, Recipe] = field(default_factory=dict)
    fraction: float | None = None
    """Of the real rows, that anybody sees."""
    agent: dict[str, Any] = field(default_factory=dict)
    """Options of the algorithm that are not those of the data set, nor its defaults."""
    updates: int = 1_000_000
    seeds: int = 8
    seed: int = 0
    evaluate_every: int = 5_000
    episodes: int | None = None
    """Of each seed and evaluation; None is as many as the data set asks for."""

    def __post_init__(self) -> None:
        check_least(self, updates=1, seeds=1, seed=0, evaluate_every=1)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        known = {option.name for option in fields(cls)}
        if content.keys() != known:
            wrong = ", ".join(sorted(content.keys() ^ known))
            raise ConfigError(f"this is no run that this version knows: {wrong} is missing, or new")
        return cls(**{**content, "sources": {name: Recipe(**made) for name, made in content["sources"].items()}})

    def changed(self, **changes: Unpack[Changes]) -> Run:
        sources = {name: recipe.changed(changes) for name, recipe in self.sources.items()}
        return replace(self, **given(changes, "updates", "seeds", "evaluate_every"), sources=sources)

    def execute(self, folder: Path, place: Place, progress: Progress) -> None:
        """Train in `folder`, or go on there."""
        from synther import datasets
        from synther.experiments.offline import GROWTH, train_to

        run = RunFolder(folder, growth=GROWTH)
        run.check(self.to_json())  # before the data is looked for, which may take long
        dataset = datasets.read(self.data, data=place.data, policies=place.policies, seed=self.seed, progress=progress)
        material, plan = self._material(dataset, place), self._plan(dataset, place)
        if not run.begun:
            run.claim(self.to_json())
        # Where the folder of data lies on this machine is nobody's business.
        origin = dataset.origin.replace(f"{place.data}/", "")
        facts = {"command": place.command, "data": origin, "rows": len(material.real)}
        write_object(folder / "facts.json", facts)
        train_to(plan, material, folder / "training", progress=progress)
        run.claim(self.to_json())  # a shorter one is this one from here on

    def result(self, folder: Path) -> Path:
        return folder / "training" / "result.json"

    def _material(self, dataset: Dataset, place: Place) -> Material:
        """Sources imitate rows as they are in the data, so that algorithms share them: rewards change after that."""
        from synther.experiments.sources import Material, Rewarded

        rows = dataset.rows if self.fraction is None else dataset.rows.subsample(self.fraction, self.seed)
        others = {name: recipe.source(rows, place, self.seed) for name, recipe in self.sources.items()}
        if self.algorithm in dataset.rewards:
            others = {name: Rewarded(source, dataset, self.algorithm) for name, source in others.items()}
        return Material(dataset.rows_for(self.algorithm, rows), others, self.arms)

    def _plan(self, dataset: Dataset, place: Place) -> Plan:
        from synther.experiments.offline import Plan

        return Plan(
            self._agent(dataset.agent.get(self.algorithm, {})),
            updates=self.updates,
            seeds=self.seeds,
            seed=self.seed,
            evaluate_every=self.evaluate_every,
            episodes=dataset.episodes if self.episodes is None else self.episodes,
            env_id=dataset.env_id,
            env_options=dataset.env_options,
            workers=place.workers,
            device=place.device,
        )

    def _agent(self, of_the_data: dict[str, Any]) -> AgentConfig:
        from synther.agents.agent import ALGORITHMS

        check_one_of("algorithm", self.algorithm, ALGORITHMS)
        kind = ALGORITHMS[self.algorithm][0]
        options = {**of_the_data, **self.agent}
        check_options(self.algorithm, options, (option.name for option in fields(kind)))
        return kind(**options)

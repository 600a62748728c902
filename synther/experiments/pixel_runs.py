"""Trainings of agents that see, as plain data beside those of `runs`: an agent of frames, and heads trained anew.

A run has a folder as those have: `run.json`, `facts.json`; in `stage-one/` what `pixels.train_to` leaves behind and in
a folder for each arm what `pixels.retrain_to` does; `result.json` when all of them are evaluated. Training wants a GPU
and evaluating a renderer, and a machine may have one of them only: there the run goes as far as it can.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

from synther.errors import ConfigError, SyntherError
from synther.experiments.results import Result
from synther.experiments.runs import Changes, Place, Recipe, given
from synther.folder import RunFolder, write_object
from synther.plain import check_least, check_one_of
from synther.progress import Progress

if TYPE_CHECKING:
    from synther.data.transitions import Transitions
    from synther.experiments.pixels.latents import LatentSource
    from synther.experiments.pixels.stage_one import Course
    from synther.pixels.frames import Frames

Algorithm = Literal["drq_bc", "bc"]
Features = Literal["both", "actor", "critic"]

STAGE_ONE = "stage-one"
"""The arm, and the folder, of the agent that was trained on frames."""


@dataclass(frozen=True)
class Retraining:
    """What heads are trained on anew."""

    features: Features = "both"
    """Whose trunk's outputs latents are: of actor and critic each its own, or one's for both. BC has an actor only."""
    recipe: Recipe | None = None
    """How synthetic latents are made; None takes the real ones."""

    def __post_init__(self) -> None:
        check_one_of("features", self.features, get_args(Features))
        if self.recipe is not None and (self.recipe.generator != "diffusion" or self.recipe.samples is None):
            raise ConfigError("latents are made by diffusion, and so many of them: got another recipe")


@dataclass(frozen=True)
class PixelRun:
    """One agent of frames, all seeds at once, and its heads on other latents."""

    name: str
    """Also of its folder."""
    task: str
    """Of the dm_control suite: walker-walk."""
    level: str
    """Of the data: medium."""
    algorithm: Algorithm
    arms: dict[str, Retraining] = field(default_factory=dict)
    """Beside stage one."""
    agent: dict[str, Any] = field(default_factory=dict)
    """Options of the algorithm that are not its defaults."""
    updates: int = 550_000
    """Of stage one, and of heads."""
    seeds: int = 6
    seed: int = 0
    episodes: int = 10
    """Of each seed, at the end."""

    def __post_init__(self) -> None:
        check_one_of("agent", self.algorithm, get_args(Algorithm))
        check_least(self, updates=1, seeds=1, seed=0, episodes=1)
        if STAGE_ONE in self.arms:
            raise ConfigError(f"{STAGE_ONE} is the agent of frames: call the heads otherwise")

    @property
    def data(self) -> str:
        return f"{self.task}-{self.level}"

    @property
    def env_id(self) -> str:
        return f"dm_control/{self.task}-v0"

    @property
    def all_seeds(self) -> range:
        return range(self.seed, self.seed + self.seeds)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def changed(self, **changes: Unpack[Changes]) -> PixelRun:
        if changes.get("evaluate_every") is not None:
            raise ConfigError(f"{self.name} is evaluated at its end alone: leave --evaluate-every out")
        arms = {
            name: arm if arm.recipe is None else replace(arm, recipe=arm.recipe.changed(changes))
            for name, arm in self.arms.items()
        }
        return replace(self, **given(changes, "updates", "seeds"), arms=arms)

    def execute(self, folder: Path, place: Place, progress: Progress) -> None:
        """Train in `folder`, or go on there, then evaluate."""
        from synther.experiments.evaluation import evaluate, why_not
        from synther.experiments.pixels.stage_one import is_trained

        RunFolder(folder).check(self.to_json())
        arms = (STAGE_ONE, *self.arms)
        if not all(is_trained(folder / arm) for arm in arms):
            self._train(folder, place, progress)
        why = why_not(folder / STAGE_ONE)
        if why is not None:
            raise SyntherError(
                f"trained; what it is worth shows where frames can be drawn: there, the same command goes on ({why})"
            )
        found = {
            arm: evaluate(folder / arm, episodes=self.episodes, workers=place.workers, progress=progress)
            for arm in arms
        }
        write_object(self.result(folder), _together(found).to_json())

    def result(self, folder: Path) -> Path:
        return folder / "result.json"

    def _train(self, folder: Path, place: Place, progress: Progress) -> None:
        from synther.experiments.pixels.latents import frames_of
        from synther.experiments.pixels.stage_one import Plan, pixel_config, train_to
        from synther.pixels import files

        plan = Plan(pixel_config(self.algorithm, self.agent), self.seeds, self.seed, self._course(place), self.env_id)
        source = frames_of(self.task, self.level, place.data)
        frames = files.read(source, progress)
        RunFolder(folder).claim(self.to_json())
        # Where the folder of data lies on this machine is nobody's business.
        origin = f"frames read from {source.relative_to(place.data) if place.data else source}"
        recipes = {arm: retraining.recipe for arm, retraining in self.arms.items()}
        meant = {arm: recipe.settings().to_json() for arm, recipe in recipes.items() if recipe is not None}
        facts = {"command": place.command, "data": origin, "rows": len(frames), "generators": meant}
        write_object(folder / "facts.json", facts)
        train_to(plan, frames, folder / STAGE_ONE, progress=progress)
        for arm, retraining in self.arms.items():
            self._retrain(arm, retraining, frames, folder, place, progress)

    def _retrain(
        self, arm: str, retraining: Retraining, frames: Frames, folder: Path, place: Place, progress: Progress
    ) -> None:
        from synther.experiments.pixels.heads import retrain_to
        from synther.experiments.pixels.stage_one import is_trained, latents_of

        if is_trained(folder / arm):
            return
        latents = latents_of(
            folder / STAGE_ONE, frames, retraining.features, seed=self.seed, device=place.device, progress=progress
        )
        sources = self._sources(folder / f"{arm}-models", latents, retraining.recipe, place, progress)
        retrain_to(
            self._course(place),
            folder / STAGE_ONE,
            sources,
            folder / arm,
            features=retraining.features,
            progress=progress,
        )

    def _sources(
        self, folder: Path, latents: list[Transitions], recipe: Recipe | None, place: Place, progress: Progress
    ) -> list[LatentSource]:
        from synther.experiments.pixels.latents import Drawn, Held, fit_to

        if recipe is None:
            return [Held(rows) for rows in latents]
        assert recipe.samples is not None
        models = fit_to(folder, latents, self.all_seeds, recipe.settings(), device=place.device, progress=progress)
        drawn = zip(models, self.all_seeds, strict=True)
        return [Drawn(model, recipe.samples, seed, place.device) for model, seed in drawn]

    def _course(self, place: Place) -> Course:
        from synther.experiments.pixels.stage_one import Course

        return Course(self.updates, device=place.device)


def _together(found: Mapping[str, Result]) -> Result:
    """One result with the arms of all."""
    first = found[STAGE_ONE]
    return replace(
        first,
        seconds=sum(result.seconds for result in found.values()),
        seconds_of={arm: result.seconds for arm, result in found.items()},
        curves={arm: curve for arm, result in found.items() for curve in result.curves.values()},
        diverged={arm: lost for arm, result in found.items() for lost in result.diverged.values()},
    )

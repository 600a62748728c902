"""Online trainings as plain data, beside the offline ones of `runs`: an environment, an agent, and for how many steps.

A run has a folder as those have: `run.json`, `facts.json`, and in `training/` what `online.train_to` leaves behind.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

from synther.experiments.runs import Changes, Parts, Place, given, shortened
from synther.folder import RunFolder, write_object
from synther.plain import check_least, check_one_of, check_options
from synther.presets import PRESETS, Settings
from synther.progress import Progress

if TYPE_CHECKING:
    from synther.agents.sac import SACConfig
    from synther.experiments.online import Plan, Upsampling
    from synther.replay.refit import Refit

Algorithm = Literal["sac", "redq"]


@dataclass(frozen=True)
class Synthetic:
    """How rows beside the real ones are made while agents learn; the numbers are the paper's."""

    preset: str = "best"
    changes: Parts = field(default_factory=dict)
    """Of the preset."""
    samples: int = 1_000_000
    refresh_every: int = 10_000
    ratio: float = 0.5
    refit: Refit = "warm"

    def __post_init__(self) -> None:
        check_one_of("preset", self.preset, PRESETS)  # nor auto, which is another one on another machine
        check_least(self, samples=1, refresh_every=1)

    def settings(self) -> Settings:
        return PRESETS[self.preset].changed(**self.changes)

    def changed(self, changes: Changes) -> Synthetic:
        samples = changes.get("samples")
        most = self.samples if samples is None else min(samples, self.samples)
        changed = replace(self, samples=most, preset=changes.get("preset") or self.preset)
        return replace(changed, changes=shortened(changed.settings(), self.changes, changes))

    def upsampling(self) -> Upsampling:
        from synther.experiments.online import Upsampling

        return Upsampling(self.settings(), self.refresh_every, self.samples, self.ratio, self.refit)


@dataclass(frozen=True)
class OnlineRun:
    """One training: all seeds of an agent in one environment."""

    name: str
    """Also of its folder."""
    env_id: str
    algorithm: Algorithm = "sac"
    utd: int = 1
    """Updates of the critics for each step."""
    synthetic: Synthetic | None = None
    """None learns from real rows alone."""
    agent: dict[str, Any] = field(default_factory=dict)
    """Options of the algorithm that are not its defaults."""
    steps: int = 100_000
    """Decisions of every seed: no action is repeated."""
    seeds: int = 6
    seed: int = 0
    random_steps: int = 5_000
    evaluate_every: int = 5_000
    episodes: int = 10
    """Of each seed and evaluation."""

    def __post_init__(self) -> None:
        check_one_of("agent", self.algorithm, get_args(Algorithm))
        check_least(self, utd=1, steps=1, seeds=1, evaluate_every=1, episodes=1)

    @property
    def arm(self) -> str:
        """What its result calls it."""
        return self.algorithm if self.synthetic is None else f"{self.algorithm}_synther"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def changed(self, **changes: Unpack[Changes]) -> OnlineRun:
        synthetic = None if self.synthetic is None else self.synthetic.changed(changes)
        own = given(changes, "updates", "seeds", "evaluate_every")
        return replace(self, steps=own.pop("updates", self.steps), **own, synthetic=synthetic)

    def execute(self, folder: Path, place: Place, progress: Progress) -> None:
        """Train in `folder`, or go on there."""
        from synther.envs.making import opened
        from synther.experiments.online import train_to

        plan = self._plan(place)
        with opened(self.env_id):
            pass  # an environment that is not to be had leaves no folder behind
        run = RunFolder(folder, growth=plan.growth)
        run.check(self.to_json())
        if not run.begun:
            run.claim(self.to_json())
        write_object(folder / "facts.json", {"command": place.command})
        train_to(plan, folder / "training", progress=progress)
        run.claim(self.to_json())  # a shorter one is this one from here on

    def result(self, folder: Path) -> Path:
        return folder / "training" / "result.json"

    def _plan(self, place: Place) -> Plan:
        from synther.experiments.online import Plan

        names = ("steps", "seeds", "seed", "random_steps", "evaluate_every", "episodes")
        return Plan(
            self.env_id,
            self._agent(),
            upsampling=None if self.synthetic is None else self.synthetic.upsampling(),
            workers=place.workers,
            device=place.device,
            **{name: getattr(self, name) for name in names},
        )

    def _agent(self) -> SACConfig:
        from synther.agents.sac import REDQ_CONFIG, SAC_CONFIG

        default = REDQ_CONFIG if self.algorithm == "redq" else SAC_CONFIG
        known = (option.name for option in fields(default) if option.init and option.name != "utd")
        check_options(self.algorithm, self.agent, known)
        return replace(default, **self.agent, utd=self.utd)

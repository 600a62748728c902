"""Stage one as a resumable run in a folder: pixel agents, all seeds at once; and the frames as they see them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from synther import compute
from synther.agents.drq_bc import DrQBCConfig
from synther.data import formats
from synther.data.transitions import Transitions
from synther.errors import ConfigError, DataError
from synther.experiments import loop, tracking
from synther.experiments.record import Record, Schedule
from synther.experiments.results import Result
from synther.experiments.spec import Tracked
from synther.folder import RunFolder, read_object, write_object
from synther.pixels.agent import PIXEL_ALGORITHMS, PixelAgent, PixelConfig, algorithm_of
from synther.pixels.encoder import Features
from synther.pixels.frames import Frames
from synther.pixels.latents import encode
from synther.pixels.policy import PixelPolicy, load_pixel_policy
from synther.plain import check_least, check_one_of, check_options
from synther.progress import Progress, resolve

log = logging.getLogger(__name__)


def pixel_config(algorithm: str, options: Mapping[str, Any]) -> PixelConfig:
    """Its defaults, but for some `options`."""
    kind = kind_of(algorithm)
    check_options(algorithm, options, (option.name for option in fields(kind) if option.init))
    return kind(**options)


def kind_of(algorithm: str) -> type[PixelConfig]:
    check_one_of("algorithm", algorithm, PIXEL_ALGORITHMS)
    return PIXEL_ALGORITHMS[algorithm][0]


def all_features(algorithm: str) -> Features:
    """Those of every trunk that its agents have."""
    return "both" if kind_of(algorithm) is DrQBCConfig else "actor"


def to_json(config: PixelConfig) -> dict[str, Any]:
    return {"algorithm": algorithm_of(config), **asdict(config)}


def heads_of(described: Mapping[str, Any], features: Features) -> PixelConfig:
    """Of an agent that `to_json` has described, for latents of these features."""
    kind = kind_of(described["algorithm"])
    heads = kind(**{option.name: described[option.name] for option in fields(kind) if option.init})
    if isinstance(heads, DrQBCConfig):
        return replace(heads, features="both" if features == "both" else "shared")
    return heads


@dataclass(frozen=True)
class Course(Tracked):
    """How long agents are trained, where, and who is told of it."""

    updates: int = 550_000
    """V-D4RL's: one at every second of its 1.1M steps."""
    measure_every: int = 10_000
    """Updates between two lines of the log; the last update always has one."""
    precision: compute.Precision = "auto"
    checkpoint_seconds: float = 30.0
    """At least, between two checkpoints."""

    def __post_init__(self) -> None:
        check_least(self, updates=1, measure_every=1)

    def description(self) -> dict[str, Any]:
        """The options that the result depends on."""
        own = {name: getattr(self, name) for name in ("updates", "measure_every", "precision")}
        return {**own, "device": compute.pick_device(self.device).type}

    def heads_precision(self) -> Literal["auto", "float32", "tf32"]:
        """Of heads alone, whose products are too small to gain from bf16."""
        if self.precision == "bf16":
            raise ConfigError("heads are trained in float32 or tf32, got bf16")
        return self.precision

    @property
    def measured(self) -> Schedule:
        return Schedule(self.measure_every, self.updates)


def follow(
    learner: loop.Learner,
    course: Course,
    folder: Path,
    arm: str,
    seeds: Sequence[int],
    progress: Progress,
    *,
    others: bool = False,
) -> Result:
    """Train to the end of the course, from wherever the folder's checkpoint stands; what was measured on the way.

    When all seeds have diverged that is told at once, unless there are `others`, which may do better.
    """
    checkpoint = folder / CHECKPOINT
    loop.take_up(learner, checkpoint)
    with tracking.Tracking(folder, [arm], tensorboard=course.tensorboard, wandb=course.wandb) as tracked:
        record = Record(folder, course.measured, learner.updates, [arm], seeds, tracked, others=others)
        how_often = course.checkpoint_seconds
        return loop.train(
            learner, record, checkpoint, None, progress, label=f"train {arm}", checkpoint_seconds=how_often
        )


CHECKPOINT, POLICY = "checkpoint.safetensors", "policy.safetensors"
_TRAINED = "trained.json"
_TOLD = ("kind", "seeds", "env_id", "action_repeat", "updates", "precision", "device")


def is_trained(folder: Path) -> bool:
    return (folder / _TRAINED).exists()


def result_of(folder: Path) -> Result:
    """Of the training, without an evaluation."""
    return Result.read(folder / _TRAINED)


def finish(folder: Path, result: Result, policy: PixelPolicy | None = None) -> None:
    """Nothing is left to train."""
    if policy is not None:
        policy.save(folder / POLICY)
    write_object(folder / _TRAINED, result.to_json())


def description(folder: Path) -> dict[str, Any]:
    """What a finished training says of itself."""
    if not is_trained(folder):
        raise ConfigError(
            f"{folder} holds no finished training on frames: expected the --out of `synther pixels train`"
        )
    about = read_object(folder / "run.json")
    missing = [name for name in _TOLD if name not in about]
    if missing:
        raise ConfigError(f"{folder / 'run.json'} is damaged: it does not say {missing[0]}; train again elsewhere")
    return about


def identity(folder: Path) -> dict[str, Any]:
    """By what the agents of a finished stage one are known again."""
    about = description(folder)
    if about["kind"] != "frames":
        raise ConfigError(f"{folder} holds {about['kind']}: expected the --out of `synther pixels train`")
    return {name: about[name] for name in ("agent", "seeds", "data", "updates", "precision", "device")}


ARM = "frames"
"""What results call the agents of stage one."""


@dataclass(frozen=True)
class Plan:
    """What is trained on frames, and how."""

    agent: PixelConfig = field(default_factory=DrQBCConfig)
    seeds: int = 6
    seed: int = 0
    """The first of them; the others follow it."""
    course: Course = field(default_factory=Course)
    env_id: str | None = None
    """The environment, where the frames do not name it."""

    def __post_init__(self) -> None:
        check_least(self, seeds=1, seed=0)

    @property
    def all_seeds(self) -> range:
        return range(self.seed, self.seed + self.seeds)


def train_to(plan: Plan, frames: Frames, folder: Path, *, progress: Progress | bool = True) -> Result:
    """Train every seed and write `log.jsonl`, `checkpoint.safetensors`, `policy.safetensors` and, when all is done,
    `trained.json` into `folder`.

    Started again it goes on where it was stopped; with other frames or options, or while another process trains there,
    it refuses to touch the folder.
    """
    course = plan.course
    device = compute.pick_device(course.device)
    tracking.check(course.tensorboard, course.wandb)
    described = _description(plan, frames)
    run = RunFolder(folder)
    run.check(described)
    if is_trained(folder):
        log.info("%s is trained already", folder)
        return result_of(folder)
    agent = PixelAgent(plan.agent, frames, plan.all_seeds, device=device, precision=course.precision)
    # Not before: what is wrong with plan or frames has been told, and leaves no folder.
    with run.work(described, lambda: is_trained(folder)) as unfinished:
        if unfinished:
            result = follow(agent, course, folder, ARM, plan.all_seeds, resolve(progress))
            finish(folder, result, agent.policy())
    return result_of(folder)


def _description(plan: Plan, frames: Frames) -> dict[str, Any]:
    """The options that the result depends on, and what an evaluation needs to know."""
    return {
        "kind": "frames",
        "agent": to_json(plan.agent),
        "seeds": list(plan.all_seeds),
        "data": digest(frames),
        "env_id": plan.env_id or frames.env_id,
        "action_repeat": frames.action_repeat,
        **plan.course.description(),
    }


def digest(frames: Frames) -> str:
    """By what frames are known again."""
    found = hashlib.sha256(repr((frames.env_id, frames.action_repeat, frames.image.shape)).encode())
    for array in (frames.image, frames.action, frames.reward, frames.discount, frames.first, frames.low, frames.high):
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def latents_of(
    run: Path, frames: Frames, features: Features, *, seed: int = 0, device: str = "auto", progress: Progress | bool
) -> list[Transitions]:
    """`frames` as each seed of the stage one in the folder `run` sees them."""
    identity(run)
    return encode(run / CHECKPOINT, frames, features=features, seed=seed, device=device, progress=progress)


def _check_frames(run: Path, frames: Frames) -> None:
    """Refuse frames of another task than the agents of `run` learned from, and tell of others of the same."""
    about, policy = description(run), load_pixel_policy(run / POLICY)
    if len(policy.low) != frames.action.shape[1]:
        counts = f"{len(policy.low)} actions, the frames {frames.action.shape[1]}"
        raise DataError(f"the agents of {run} have {counts}: encode what they were trained on")
    if frames.env_id and about["env_id"] and frames.env_id != about["env_id"]:
        raise DataError(
            f"the agents of {run} are of {about['env_id']}, the frames of {frames.env_id}: encode what they were "
            "trained on"
        )
    if digest(frames) != about["data"]:
        log.warning("the agents of %s were trained on other frames than these", run)


def encode_to(
    run: Path,
    frames: Frames,
    folder: Path,
    *,
    features: Features | None = None,
    seed: int = 0,
    device: str = "auto",
    progress: Progress | bool = True,
) -> list[Path]:
    """The latents of each seed of the stage one in the folder `run`, in files of `folder`: `seed-0.npz` and so on.

    `features` of None are all that its agents have.
    """
    own = identity(run)
    _check_frames(run, frames)
    chosen = features or all_features(own["agent"]["algorithm"])
    seeds = own["seeds"]
    described = {"kind": "latents", "run": own, "features": chosen, "seed": seed, "frames": digest(frames)}
    files = [folder / f"seed-{each}.npz" for each in seeds]
    written = RunFolder(folder)
    written.check(described)
    if all(file.exists() for file in files):
        return files
    # Not in the folder yet: frames or features that do not fit leave none behind.
    latents = latents_of(run, frames, chosen, seed=seed, device=device, progress=progress)
    with written.work(described, lambda: all(file.exists() for file in files)) as unfinished:
        if unfinished:
            for rows, file in zip(latents, files, strict=True):
                formats.write(rows, file)
    return files

"""Stage one as a resumable run in a folder: agents of frames, all seeds at once; and the frames as they see them."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from synther import compute
from synther.agents.drq_bc import DrQBCConfig
from synther.data import formats
from synther.data.transitions import Transitions
from synther.errors import DataError
from synther.experiments import tracking
from synther.experiments.measurements import Result
from synther.experiments.pixels.configs import all_features, to_json
from synther.experiments.pixels.course import Course, follow
from synther.experiments.pixels.trained import CHECKPOINT, POLICY, description, finish, identity, is_trained, result_of
from synther.folder import RunFolder
from synther.pixels.agent import PixelAgent, PixelConfig
from synther.pixels.eyes import Features
from synther.pixels.frames import Frames
from synther.pixels.latents import encode
from synther.pixels.policy import load_pixel_policy
from synther.plain import check_least
from synther.progress import Progress, resolve

log = logging.getLogger(__name__)

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
                formats.write(file, rows)
    return files

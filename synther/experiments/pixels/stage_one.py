"""Stage one as a resumable run in a folder: pixel agents, all seeds at once; and the frames as they see them."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from synther import compute
from synther.agents.drq_bc import DrQBCConfig
from synther.data import formats
from synther.data.transitions import Transitions
from synther.errors import ConfigError, DataError
from synther.experiments import loop, tracking
from synther.experiments.results import Result
from synther.experiments.specs import PixelRun
from synther.folder import RunFolder, read_object, write_object
from synther.pixels.agent import PIXEL_ALGORITHMS, PixelAgent, PixelConfig
from synther.pixels.encoder import Features
from synther.pixels.frames import Frames
from synther.pixels.latents import encode
from synther.pixels.policy import PixelPolicy, load_pixel_policy
from synther.plain import check_one_of
from synther.progress import Progress, resolve

log = logging.getLogger(__name__)


ARM = "frames"
"""What results call the agents of stage one."""

POLICY = "policy.safetensors"
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


def kind_of(algorithm: str) -> type[PixelConfig]:
    check_one_of("algorithm", algorithm, PIXEL_ALGORITHMS)
    return PIXEL_ALGORITHMS[algorithm][0]


def train_to(spec: PixelRun, frames: Frames, folder: Path, *, progress: Progress | bool = True) -> Result:
    """Train every seed and write `log.jsonl`, `checkpoint.safetensors`, `policy.safetensors` and, when all is done,
    `trained.json` into `folder`.

    Started again it resumes; with other frames or options, or while another process trains there, it refuses to touch
    the folder.
    """
    device, config = compute.pick_device(spec.device), spec.config
    tracking.check(spec)
    described = {
        "kind": "frames",
        "agent": {"algorithm": spec.algorithm, **asdict(config)},
        "seeds": list(spec.all_seeds),
        "data": digest(frames),
        "env_id": spec.env_id or frames.env_id,
        "action_repeat": frames.action_repeat,
        **{name: getattr(spec, name) for name in ("updates", "measure_every", "precision")},
        "device": device.type,
    }
    run = RunFolder(folder)
    run.check(described)
    if is_trained(folder):
        log.info("%s is trained already", folder)
        return result_of(folder)
    agent = PixelAgent(config, frames, spec.all_seeds, device=device, precision=spec.precision)
    # Only now: settings or frames that do not fit have been refused, and leave no folder.
    with run.work(described, lambda: is_trained(folder)) as unfinished:
        if unfinished:
            result = loop.train(agent, spec, folder, [ARM], spec.all_seeds, resolve(progress), label=f"train {ARM}")
            finish(folder, result, agent.policy())
    return result_of(folder)


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
    return encode(run / loop.CHECKPOINT, frames, features=features, seed=seed, device=device, progress=progress)


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
    chosen = features or ("both" if kind_of(own["agent"]["algorithm"]) is DrQBCConfig else "actor")
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

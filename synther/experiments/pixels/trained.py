"""What a finished training on frames or latents leaves in its folder, and how it is known again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from synther.errors import ConfigError
from synther.experiments.measurements import Result
from synther.folder import read_object, write_object
from synther.pixels.policy import PixelPolicy

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

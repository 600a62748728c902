"""Shared by the adapters: the options of a replay, and a replay as bytes."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypedDict

import torch

from synther import compute
from synther.presets import Settings
from synther.progress import Progress
from synther.replay.refit import Refit
from synther.replay.synthetic import SyntheticReplay


class ReplayOptions(TypedDict, total=False):
    """The options of `SyntheticReplay` that do not depend on the environment."""

    ratio: float
    refresh_every: int
    samples: int | None
    preset: str | Settings
    refit: Refit
    replace: float
    background: bool
    shuffled: bool
    precision: compute.Precision
    progress: Progress | bool


def packed(replay: SyntheticReplay) -> dict[str, bytes]:
    """The files that `SyntheticReplay.save` writes, by name, for libraries that pickle their buffers."""
    with TemporaryDirectory(prefix="synther-replay-") as folder:
        replay.save(folder)
        return {file.name: file.read_bytes() for file in sorted(Path(folder).iterdir())}


def unpacked(files: dict[str, bytes], device: torch.device | str, progress: Progress | bool = True) -> SyntheticReplay:
    """Restore a replay on `device`, or on the best device of this machine if it has no such device."""
    wanted = torch.device(device)
    there = wanted.type != "cuda" or (wanted.index or 0) < torch.cuda.device_count()
    with TemporaryDirectory(prefix="synther-replay-") as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        return SyntheticReplay.load(folder, device=str(device) if there else "auto", progress=progress)

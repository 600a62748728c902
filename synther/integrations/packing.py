"""A replay as bytes, for libraries that save their buffers as one object."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from synther.progress import Progress
from synther.replay.synthetic import SyntheticReplay


def packed(replay: SyntheticReplay) -> dict[str, bytes]:
    """The files that `SyntheticReplay.save` writes, by name."""
    with TemporaryDirectory(prefix="synther-replay-") as folder:
        replay.save(folder)
        return {file.name: file.read_bytes() for file in sorted(Path(folder).iterdir())}


def unpacked(files: dict[str, bytes], device: torch.device | str, progress: Progress | bool = True) -> SyntheticReplay:
    """The replay again: on `device`, or where this machine has no such thing, on the one it has."""
    wanted = torch.device(device)
    there = wanted.type != "cuda" or (wanted.index or 0) < torch.cuda.device_count()
    with TemporaryDirectory(prefix="synther-replay-") as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        return SyntheticReplay.load(folder, device=str(device) if there else "auto", progress=progress)

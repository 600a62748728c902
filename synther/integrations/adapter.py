"""Shared by the adapters: convert synthetic rows to bytes and back, for libraries that pickle their buffers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from synther.replay.rows import SyntheticRows


def packed(synthetic: SyntheticRows) -> dict[str, bytes]:
    """Return the content of the files that `SyntheticRows.save` writes, by name."""
    with TemporaryDirectory(prefix="synther-replay-") as folder:
        synthetic.save(folder)
        return {file.name: file.read_bytes() for file in sorted(Path(folder).iterdir())}


def unpacked(files: dict[str, bytes], device: torch.device | str, **own: Any) -> SyntheticRows:
    """Restore synthetic rows on `device`, or on the best device of this machine if that one does not exist.

    `own` are the options of `SyntheticRows.load` that cannot be stored in files.
    """
    wanted = torch.device(device)
    there = wanted.type != "cuda" or (wanted.index or 0) < torch.cuda.device_count()
    with TemporaryDirectory(prefix="synther-replay-") as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        return SyntheticRows.load(folder, device=str(device) if there else "auto", **own)


def not_in_files(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that cannot be stored in files, which `unpacked` therefore needs again."""
    found: dict[str, Any] = {name: options[name] for name in ("progress", "guide") if name in options}
    if callable(options.get("relevance")):
        found["relevance"] = options["relevance"]
    return found

"""Save a replay to a folder and read it: rows and counters are in one file, the generator is in another.

`replay.safetensors` contains the name of its generator's file. It is written last and atomically. So if the process is
killed while it saves, the previously saved replay is still complete.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from synther.compute import read_tensors
from synther.durable import replacing
from synther.errors import FormatError
from synther.schema import parse
from synther.synthesizer import Synthesizer

FORMAT = "synther-replay-1"

_ROWS, _MODELS = "replay.safetensors", ("model-0.safetensors", "model-1.safetensors")


def write(
    path: str | os.PathLike[str], described: Mapping[str, Any], tensors: dict[str, Tensor], model: Synthesizer | None
) -> None:
    """Save a replay to a folder. It replaces a replay that is already in the folder."""
    folder = Path(path).expanduser()
    if folder.exists() and not folder.is_dir():
        raise FormatError(f"{path} is a file: expected a folder for the replay")
    free = _MODELS[_old_model(folder) == _MODELS[0]]
    if model is not None:
        model.save(folder / free)
    metadata = {"format": FORMAT, "replay": json.dumps(described), "model": "" if model is None else free}
    with replacing(folder / _ROWS) as beside:
        beside.write_bytes(save(tensors, metadata))
    for name in _MODELS:
        if name != metadata["model"]:
            (folder / name).unlink(missing_ok=True)


def read(path: str | os.PathLike[str], device: str) -> tuple[dict[str, Any], dict[str, Tensor], Synthesizer | None]:
    """Read a replay that `write` has saved. Return its description, its tensors and its generator, if it has one."""
    folder = Path(path).expanduser()
    file = folder / _ROWS
    if not file.is_file():
        raise FormatError(f"{path}: no such replay; expected a folder written by SyntheticReplay.save")
    metadata = _metadata(file)
    if metadata.get("format") != FORMAT:
        raise FormatError(f"{file} is not a replay: expected format {FORMAT!r}, got {metadata.get('format')!r}")
    with safe_open(file, "pt") as opened:
        tensors = read_tensors(opened)
    name = metadata.get("model")
    if name not in ("", *_MODELS):  # a path in a manipulated file could lead to any other file
        raise FormatError(f"{file} names the model {name!r}: expected one of {', '.join(_MODELS)}")
    model = Synthesizer.load(folder / name, device=device) if name else None
    return parse(metadata.get("replay", "null"), _Described, f"{file}: replay"), tensors, model


class _Described(TypedDict):
    """The required part of a replay's description, see `SyntheticRows._described`."""

    options: dict[str, Any]
    device: str
    history: list[dict[str, Any]]
    store: dict[str, Any] | None


def _old_model(folder: Path) -> str | None:
    """Return the name of the current replay's generator file, or None if there is no readable replay.

    This file must stay until the new replay is complete.
    """
    try:
        return _metadata(folder / _ROWS).get("model")
    except FormatError:
        return None


def _metadata(file: Path) -> dict[str, str]:
    try:
        with safe_open(file, "pt") as opened:
            return opened.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise FormatError(f"{file} is not a safetensors file, or is truncated ({error})") from None

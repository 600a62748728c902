"""Checkpoints: the state of a fit in a file, from which a fit with the same arguments resumes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from synther.compute import read_tensors
from synther.durable import replacing
from synther.errors import ConfigError


class Checkpoint:
    """The checkpoint file of a fit, at `path`.

    `settings` are the arguments of the fit, the rows of its members first. They form the identity of the fit: another
    fit cannot load the file.
    """

    def __init__(self, path: Path, device: torch.device, *settings: Any) -> None:
        self.path, self.device = path, device
        self._identity = json.dumps([_described(list(settings)), device.type])

    def exists(self) -> bool:
        return self.path.exists()

    def save(self, state: Mapping[str, Tensor], course: Mapping[str, Any]) -> None:
        """Write the tensors of `state`, and `course`, the history of the fit so far, as JSON."""
        metadata = {"identity": self._identity, "result": json.dumps(course)}
        with replacing(self.path) as temporary:  # not save_file, which leaves its temporary file behind if it is killed
            temporary.write_bytes(save(dict(state), metadata))

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors, on the device of the fit, and the history of the fit so far."""
        try:
            with safe_open(self.path, "pt", device=str(self.device)) as file:
                metadata = file.metadata() or {}
                if metadata.get("identity") != self._identity:
                    raise ConfigError(
                        f"{self.path} belongs to a fit with other data or options: delete it, or choose another path"
                    )
                tensors = read_tensors(file)
        except (SafetensorError, OSError) as error:
            raise ConfigError(
                f"{self.path} cannot be read as a checkpoint ({error}): delete it to start the fit again"
            ) from None
        return tensors, json.loads(metadata["result"])


def _described(part: Any) -> Any:
    """Return a description of `part` for JSON: tensors as hashes, functions and classes as names."""
    if isinstance(part, list | tuple):
        return [_described(each) for each in part]
    if isinstance(part, nn.Module):
        return _described(list(part.state_dict().values()))
    if isinstance(part, Tensor):
        return [list(part.shape), hashlib.sha256(part.cpu().contiguous().numpy().data).hexdigest()]
    if part is None or isinstance(part, str | int | float):
        return part
    if isinstance(part, partial):
        return _described([part.func, part.args, sorted(part.keywords.items())])
    named = part if hasattr(part, "__qualname__") else type(part)
    name = f"{named.__module__}.{named.__qualname__}"
    return [name, repr(part)] if is_dataclass(part) else name

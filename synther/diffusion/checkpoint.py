"""The state of a fit in a file, from which a fit with the same arguments resumes."""

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

from synther.durable import replacing
from synther.errors import ConfigError


class Checkpoint:
    """The file at `path` of a fit on a `device` with such `settings`, of which the rows of each member are the
    first."""

    def __init__(self, path: Path, device: torch.device, *settings: Any) -> None:
        self.path, self.device = path, device
        self._identity = json.dumps([_described(list(settings)), device.type])

    def exists(self) -> bool:
        return self.path.exists()

    def save(self, state: Mapping[str, Tensor], course: Mapping[str, Any]) -> None:
        """Write the tensors and, as JSON, how the fit went so far."""
        metadata = {"identity": self._identity, "result": json.dumps(course)}
        with replacing(self.path) as beside:  # not save_file, which leaves a file of its own behind when it is killed
            beside.write_bytes(save(dict(state), metadata))

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors, on the device of the rows, and how the fit went so far."""
        try:
            with safe_open(self.path, "pt", device=str(self.device)) as file:
                metadata = file.metadata() or {}
                if metadata.get("identity") != self._identity:
                    raise ConfigError(
                        f"{self.path} belongs to a fit with other data or options: delete it, or choose another place"
                    )
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no dict
        except (SafetensorError, OSError) as error:
            raise ConfigError(
                f"{self.path} is no checkpoint that can be read ({error}): delete it to start afresh"
            ) from None
        return tensors, json.loads(metadata["result"])


def _described(part: Any) -> Any:
    """For JSON: long parts by a hash, functions and classes by their name."""
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

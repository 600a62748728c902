"""The state of a fit in a file, for a fit with the same arguments to go on from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from synther.diffusion.networks import Network
from synther.durable import replacing
from synther.errors import ConfigError


class Checkpoint:
    """What is kept at `path` of a fit on `rows` with such `settings`."""

    def __init__(self, path: Path, rows: Tensor, *settings: Any) -> None:
        self.path = path
        described = [_described(setting) for setting in settings if setting is not None]
        self._identity = json.dumps([list(rows.shape), _described(rows), described, rows.device.type])

    def save(self, state: Mapping[str, Tensor], course: Mapping[str, Any]) -> None:
        """Write the tensors and, as JSON, how the fit went so far."""
        metadata = {"identity": self._identity, "result": json.dumps(course)}
        with replacing(self.path) as beside:  # not save_file, which leaves a file of its own behind when it is killed
            beside.write_bytes(save(dict(state), metadata))

    def load(self, state: Mapping[str, Tensor]) -> dict[str, Any]:
        """Read into the tensors of `state`, and return the rest."""
        device = next(iter(state.values())).device
        try:
            with safe_open(self.path, "pt", device=str(device)) as file:
                metadata = file.metadata() or {}
                if metadata.get("identity") != self._identity:
                    raise ConfigError(
                        f"{self.path} belongs to a fit with other data or options: delete it, or choose another place"
                    )
                for name, tensor in state.items():
                    tensor.copy_(file.get_tensor(name))
        except (SafetensorError, OSError) as error:
            raise ConfigError(
                f"{self.path} is no checkpoint that can be read ({error}): delete it to start afresh"
            ) from None
        course: dict[str, Any] = json.loads(metadata["result"])
        return course


def _described(part: Any) -> Any:
    """A word for JSON in place of what is too long for it."""
    if isinstance(part, Network):
        return [_described(tensor) for tensor in part.state_dict().values()]
    if isinstance(part, Tensor):
        return hashlib.sha256(part.cpu().contiguous().numpy().data).hexdigest()
    return asdict(part) if hasattr(part, "__dataclass_fields__") else part

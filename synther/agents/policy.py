"""What is left of an agent when it only acts: the actors of all members and how observations and actions are scaled."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from synther.agents.algorithm import Squash
from synther.agents.stacked import Stack
from synther.durable import replacing
from synther.errors import DataError, FormatError

FORMAT = "synther-agent-1"


@dataclass(frozen=True)
class Scales:
    """Between the environment's numbers and the networks'."""

    mean: Tensor
    deviation: Tensor
    """Of the observations, (S, O): each member has those of its own real data."""
    low: Tensor
    high: Tensor
    """Bounds of the actions, (A,)."""

    def tensors(self) -> dict[str, Tensor]:
        return {f"scales.{name}": tensor for name, tensor in vars(self).items()}

    def to(self, device: torch.device) -> Scales:
        return Scales(**{name: tensor.to(device) for name, tensor in vars(self).items()})


@dataclass(frozen=True)
class Policy:
    """`policy.act(observations)`: every member's deterministic actions."""

    actor: Stack
    scales: Scales
    squash: Squash

    @torch.no_grad()
    def act(self, observations: ArrayLike) -> NDArray[np.float32]:
        """Actions (S, n, A), within their bounds, for observations (S, n, O) or the same (n, O) for every member.

        For a single observation (O,) an action of every member, (S, A).
        """
        members, size = self.scales.mean.shape
        x = torch.from_numpy(np.require(observations, np.float32, "W"))
        if x.dim() == 1:
            return self.act(x.unsqueeze(0).numpy())[:, 0]
        if x.dim() not in (2, 3) or x.shape[-1] != size or (x.dim() == 3 and len(x) != members):
            wanted = f"({members}, n, {size}), (n, {size}) or ({size},)"
            raise DataError(f"expected observations of shape {wanted}, got {tuple(x.shape)}")
        s = self.scales
        x = (x.to(s.mean.device).expand(members, -1, -1) - s.mean.unsqueeze(1)) / s.deviation.unsqueeze(1)
        output = self.actor(x)[..., : len(s.low)]
        action = output.tanh() if self.squash == "tanh" else output.clamp(-1, 1)
        scaled = torch.lerp(s.low, s.high, 0.5 * (action + 1))
        return scaled.clamp(s.low, s.high).cpu().numpy()

    def copy(self, device: torch.device) -> Policy:
        """The policy as it is now, on `device`: training goes on without it."""
        return Policy(self.actor.copy(device), self.scales.to(device), self.squash)

    def described(self) -> dict[str, Any]:
        """What its tensors do not say."""
        return {"sizes": self.actor.sizes, "free": self.actor.free_size, "squash": self.squash}


def is_agent(path: str | os.PathLike[str]) -> bool:
    """Whether a file is what `Agent.save` and its like write."""
    try:
        with safe_open(path, "pt") as file:
            return bool((file.metadata() or {}).get("format") == FORMAT)
    except (SafetensorError, OSError):
        return False


def write(path: str | os.PathLike[str], described: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """An agent's file: its description, and its tensors by name."""
    whole = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as beside:
        beside.write_bytes(save(whole, {"format": FORMAT, "agent": json.dumps(described)}))


def read(
    path: str | os.PathLike[str], *names: str, sees: bool | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The description in an agent's file and its tensors (`names` of them, or all), on the CPU.

    `sees` says whether the agent must be one of frames, or must not; None takes either.
    """
    if not Path(path).is_file():
        raise FormatError(f"{path}: no such file; expected an agent written by Agent.save")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                found = metadata.get("format", "no format")
                raise FormatError(f"{path} is no SynthER agent: expected format {FORMAT!r}, got {found!r}")
            described: dict[str, Any] = json.loads(metadata["agent"])
            if sees is not None and sees != ("frame" in described):
                kind, other = ("that does not see", "frames") if sees else ("that sees frames", "states")
                raise FormatError(f"{path} is an agent {kind}: expected one trained on {other}")
            return described, {name: file.get_tensor(name) for name in names or file.keys()}
    except (SafetensorError, OSError, KeyError, json.JSONDecodeError) as error:
        raise FormatError(f"{path} is no agent that can be read ({error}): train it again") from None


def load_policy(path: str | os.PathLike[str], device: torch.device | None = None) -> Policy:
    """The policy of an agent's file, on the CPU unless said otherwise."""
    names = ("mean", "deviation", "low", "high")
    described, tensors = read(path, "actor", *(f"scales.{name}" for name in names), sees=False)
    try:
        about = described["policy"]
        actor, squash = Stack(tensors["actor"], about["sizes"], about["free"]), about["squash"]
    except (KeyError, TypeError) as error:
        raise FormatError(f"{path} is a damaged agent ({error!r} of its policy): train it again") from None
    scales = Scales(**{name: tensors[f"scales.{name}"] for name in names})
    return Policy(actor, scales, squash).copy(device or torch.device("cpu"))

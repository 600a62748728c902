"""The policy of a pixel agent: encoder, trunk and actor of all members."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther.agents.policy import read, write
from synther.agents.stacked import Stack
from synther.errors import ConfigError, DataError, FormatError
from synther.pixels.encoder import Encoder, Features, Trunk, trunk_of

_LARGEST = 4096
"""Pixels along a side of a frame."""


@dataclass(frozen=True)
class PixelPolicy:
    """`policy.act(stacks)` returns every member's deterministic actions. Policies can be pickled."""

    encoder: Encoder
    trunk: Trunk
    actor: Stack
    low: Tensor
    high: Tensor
    """Bounds of the actions, (A,)."""

    @property
    def members(self) -> int:
        return len(self.encoder.weights)

    @property
    def size(self) -> int:
        """Side length of the frames in pixels."""
        return self.encoder.frame[1]

    @torch.no_grad()
    def act(self, stacks: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Actions (S, n, A) within their bounds, for stacks (S, n, C, H, W), or (n, C, H, W) shared by all members."""
        seen, frame = np.asarray(stacks), self.encoder.frame
        ahead = seen.shape[:-3]
        if seen.dtype != np.uint8 or seen.shape[-3:] != frame or len(ahead) not in (1, 2):
            wanted = f"uint8 of shape ({self.members}, n, {', '.join(map(str, frame))})"
            raise DataError(f"expected stacks of frames, {wanted}, got {seen.dtype} of shape {seen.shape}")
        if len(ahead) == 2 and ahead[0] != self.members:
            raise DataError(f"expected stacks of frames for {self.members} members, got them for {ahead[0]}")
        last = np.ascontiguousarray(np.moveaxis(seen, -3, -1))  # channels last, as in training
        x = torch.from_numpy(last).to(self.low.device).to(torch.float32).div_(255).sub_(0.5).movedim(-1, -3)
        output = self.actor(self.trunk(self.encoder(x.expand(self.members, *x.shape[-4:]))))
        scaled = torch.lerp(self.low, self.high, 0.5 * (output.tanh() + 1))
        return scaled.clamp(self.low, self.high).cpu().numpy()

    def with_heads(self, actor: Stack) -> PixelPolicy:
        """This policy with another actor on the same features, such as that of an `Agent` trained on latents."""
        wanted = self.members, self.trunk.features, len(self.low)
        got = len(actor.weights), actor.sizes[0], actor.sizes[-1]
        if got != wanted:
            raise ConfigError(f"expected heads for (members, features, actions) {wanted}, got {got}")
        return replace(self, actor=actor.copy(self.low.device))

    def member(self, index: int) -> PixelPolicy:
        """The policy of a single member."""
        if not 0 <= index < self.members:
            raise ConfigError(f"there are {self.members} members, counted from 0, got {index}")
        encoder, trunk, actor = (part.weights[index : index + 1].clone() for part in self._parts())
        encoder_alone = Encoder(encoder, self.encoder.frame)
        return replace(
            self, encoder=encoder_alone, trunk=trunk_of(trunk, encoder_alone), actor=Stack(actor, self.actor.sizes)
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file for `load_pixel_policy`."""
        tensors = dict(zip(("encoder", "actor_trunk", "actor"), (part.weights for part in self._parts()), strict=True))
        tensors |= {"low": self.low, "high": self.high}
        described = {"frame": self.encoder.frame, "actor": self.actor.sizes}
        write(path, described, tensors)

    def _parts(self) -> tuple[Encoder, Trunk, Stack]:
        return self.encoder, self.trunk, self.actor


def load_pixel_policy(
    path: str | os.PathLike[str], *, features: Features = "both", device: torch.device | None = None
) -> PixelPolicy:
    """Read a policy from its own file or from an agent's file. Default device: CPU.

    `features` are the features that the heads were trained on. Use "critic" only together with `with_heads`: an agent's
    own actor is never trained on the critic's features.
    """
    described, tensors = read(path, "actor", "low", "high", pixels=True)
    trunk = "critic_trunk" if features == "critic" else "actor_trunk"
    if features == "critic" and "critic" not in described.get("trunks", []):
        raise ConfigError(f"{path} has no critic trunk: use the features of the actor")
    tensors |= read(path, "encoder", trunk)[1]
    own = {name: tensor.to(device or torch.device("cpu")) for name, tensor in tensors.items()}
    try:
        encoder, sizes = Encoder(own["encoder"], described["frame"]), described["actor"]
        if max(described["frame"]) > _LARGEST:
            raise ValueError(f"frames of {described['frame']}")
        found = PixelPolicy(encoder, trunk_of(own[trunk], encoder), Stack(own["actor"], sizes), own["low"], own["high"])
        if features != "critic":  # whose own actor fits other features
            found.act(np.zeros((1, *encoder.frame), np.uint8))
        return found
    except Exception as error:  # nearly any, where weights have other shapes
        raise FormatError(f"{path} is a damaged agent file ({error!r} of its policy): train the agent again") from None

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
"""Largest side of a frame in pixels, or number of channels, in a file. Larger values mean that it is damaged."""


@dataclass(frozen=True)
class PixelPolicy:
    """The deterministic policies of all members. `act` returns the actions of all members. Policies can be pickled."""

    encoder: Encoder
    trunk: Trunk
    actor: Stack
    low: Tensor
    high: Tensor
    """`low` and `high` are the action bounds, (A,) each."""

    @property
    def members(self) -> int:
        """Number of members."""
        return len(self.encoder.weights)

    @property
    def size(self) -> int:
        """Side length of the frames in pixels."""
        return self.encoder.frame[1]

    @torch.no_grad()
    def act(self, stacks: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return actions (S, n, A) within their bounds.

        `stacks` are observations (S, n, C, H, W), or (n, C, H, W) if all members get the same ones.
        """
        observations, frame = np.asarray(stacks), self.encoder.frame
        leading = observations.shape[:-3]
        if observations.dtype != np.uint8 or observations.shape[-3:] != frame or len(leading) not in (1, 2):
            wanted = f"uint8 of shape ({self.members}, n, {', '.join(map(str, frame))})"
            got = f"{observations.dtype} of shape {observations.shape}"
            raise DataError(f"expected stacks of frames, {wanted}, got {got}")
        if len(leading) == 2 and leading[0] != self.members:
            raise DataError(f"expected stacks of frames for {self.members} members, got them for {leading[0]}")
        last = np.ascontiguousarray(np.moveaxis(observations, -3, -1))  # channels last, as in training
        x = torch.from_numpy(last).to(self.low.device).to(torch.float32).div_(255).sub_(0.5).movedim(-1, -3)
        output = self.actor(self.trunk(self.encoder(x.expand(self.members, *x.shape[-4:]))))
        scaled = torch.lerp(self.low, self.high, 0.5 * (output.tanh() + 1))
        return scaled.clamp(self.low, self.high).cpu().numpy()

    def with_heads(self, actor: Stack) -> PixelPolicy:
        """Return this policy with another actor on the same features, for example from an `Agent` for latents."""
        wanted = self.members, self.trunk.features, len(self.low)
        got = len(actor.weights), actor.sizes[0], actor.sizes[-1]
        if got != wanted:
            raise ConfigError(f"expected heads for (members, features, actions) {wanted}, got {got}")
        return replace(self, actor=actor.copy(self.low.device))

    def member(self, index: int) -> PixelPolicy:
        """Return the policy of a single member."""
        if not 0 <= index < self.members:
            raise ConfigError(f"there are {self.members} members, counted from 0, got {index}")
        encoder, trunk, actor = (part.weights[index : index + 1].clone() for part in self._parts())
        encoder_alone = Encoder(encoder, self.encoder.frame)
        return replace(
            self, encoder=encoder_alone, trunk=trunk_of(trunk, encoder_alone), actor=Stack(actor, self.actor.sizes)
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy to a file that `load_pixel_policy` can read."""
        tensors = dict(zip(("encoder", "actor_trunk", "actor"), (part.weights for part in self._parts()), strict=True))
        tensors |= {"low": self.low, "high": self.high}
        described = {"frame": self.encoder.frame, "actor": self.actor.sizes}
        write(path, described, tensors)

    def _parts(self) -> tuple[Encoder, Trunk, Stack]:
        return self.encoder, self.trunk, self.actor


def load_pixel_policy(
    path: str | os.PathLike[str], *, features: Features = "both", device: torch.device | None = None
) -> PixelPolicy:
    """Read a policy from a file of `PixelPolicy.save` or from an agent's file. Default device: CPU.

    `features` are the features that the heads were trained on. Use "critic" only together with `with_heads`, because an
    agent's own actor is never trained on the critic's features.
    """
    described, tensors = read(path, "actor", "low", "high", pixels=True)
    trunk = "critic_trunk" if features == "critic" else "actor_trunk"
    if features == "critic" and "critic" not in described.get("trunks", []):
        raise ConfigError(f"{path} has no critic trunk: use the features of the actor")
    tensors |= read(path, "encoder", trunk)[1]
    on_device = {name: tensor.to(device or torch.device("cpu")) for name, tensor in tensors.items()}
    try:
        encoder, sizes = Encoder(on_device["encoder"], described["frame"]), described["actor"]
        if max(described["frame"]) > _LARGEST:
            raise ValueError(f"frames of {described['frame']}")
        actor = Stack(on_device["actor"], sizes)
        bounds = on_device["low"], on_device["high"]
        policy = PixelPolicy(encoder, trunk_of(on_device[trunk], encoder), actor, *bounds)
        if features != "critic":  # the actor in the file does not fit the critic's features
            policy.act(np.zeros((1, *encoder.frame), np.uint8))
        return policy
    except Exception as error:  # wrong shapes of weights can raise nearly any error
        raise FormatError(f"{path} is a damaged agent file ({error!r} of its policy): train the agent again") from None

"""What is left of an agent that sees when it only looks: encoder and trunks of all members, frozen."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from synther.agents.policy import read
from synther.agents.stacked import Stack
from synther.errors import ConfigError, FormatError
from synther.pixels.encoder import Encoder
from synther.pixels.trunk import FEATURES, Trunk

TrunkName = Literal["actor", "critic"]
Features = Literal["both", "actor", "critic"]
"""Of which trunks: of both, those of the actor come first."""


@dataclass(frozen=True)
class Eyes:
    """`eyes.encoder(observations)`, and `eyes.trunks["actor"]` of that."""

    encoder: Encoder
    trunks: dict[TrunkName, Trunk]
    """Those of the actor and, where the agent has one, of the critic."""
    seeds: tuple[int, ...]
    """One a member."""
    nstep: int
    discount: float
    """What the agent learned from: decisions so far ahead, and what they are worth."""

    @property
    def device(self) -> torch.device:
        return self.encoder.weights.device

    def features(self, observations: Tensor, names: Iterable[TrunkName]) -> Tensor:
        """What the trunks of those names, side by side, make of observations (S, B, C, H, W). (S, B, features)"""
        encoded = self.encoder(observations)
        return torch.cat([self.trunk(name)(encoded) for name in names], -1)

    def trunk(self, name: TrunkName) -> Trunk:
        if name not in self.trunks:
            raise ConfigError(f"this agent has no trunk of a {name}, only of: {', '.join(self.trunks)}")
        return self.trunks[name]


def load_eyes(path: str | os.PathLike[str], device: torch.device | None = None) -> Eyes:
    """The eyes in the file of an agent, on the CPU unless said otherwise."""
    described, _ = read(path, "actor", sees=True)
    if "trunks" not in described:
        raise FormatError(f"{path} is a policy alone: expected the file of a whole agent")
    try:
        names: list[TrunkName] = described["trunks"]
        _, tensors = read(path, "encoder", *(f"{name}_trunk" for name in names))
        frame, config, seeds = described["frame"], described["config"], tuple(described["seeds"])
        nstep, discount = config["nstep"], config["discount"]
    except (KeyError, TypeError) as error:
        raise FormatError(f"{path} is a damaged agent ({error!r} of its eyes): train it again") from None
    device = device or torch.device("cpu")
    encoder = Encoder(tensors["encoder"].to(device), tuple(frame))
    trunks = {name: trunk_of(tensors[f"{name}_trunk"].to(device), encoder) for name in names}
    return Eyes(encoder, trunks, seeds, nstep, discount)


def trunk_of(weights: Tensor, encoder: Encoder) -> Trunk:
    return Trunk(Stack(weights, (encoder.features, FEATURES), 2 * FEATURES))

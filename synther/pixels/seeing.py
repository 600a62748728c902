"""What agents of frames have in common, learning from a data set or from what they see: eyes, a policy, files."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from synther import compute
from synther.agents import policy as files
from synther.agents.drq_bc import HeadsConfig
from synther.agents.rounds import Round, Rounds
from synther.pixels.algorithm import PixelAlgorithm
from synther.pixels.eyes import Eyes, TrunkName
from synther.pixels.policy import PixelPolicy
from synther.pixels.store import FrameStore
from synther.pixels.trunk import Trunk

ADVICE = "train fewer seeds together, keep fewer frames, or lower agent.batch_size"
"""Where the device has no room."""


class SeeingAgent(Rounds):
    """All members of an algorithm of frames, which a `store` keeps on the device."""

    algorithm: PixelAlgorithm

    def __init__(
        self,
        name: str,
        config: HeadsConfig,
        seeds: tuple[int, ...],
        algorithm: PixelAlgorithm,
        store: FrameStore,
        one: Round,
        precision: compute.Precision,
    ) -> None:
        super().__init__(algorithm, one, store.images.device)
        self.name, self.config, self.seeds, self.store, self.precision = name, config, seeds, store, precision

    @abstractmethod
    def _learned_from(self) -> dict[str, Any]:
        """What an agent that goes on from another's file must have in common with it beside its options, for JSON."""

    def policy(self, device: torch.device | None = None) -> PixelPolicy:
        """The policies as they are now, to be evaluated while training goes on; on the CPU unless said otherwise."""
        device = device or torch.device("cpu")
        own = self.algorithm
        bounds = self.store.low.to(device), self.store.high.to(device)
        return PixelPolicy(own.encoder.copy(device), own.actor_trunk.copy(device), own.actor.copy(device), *bounds)

    def eyes(self) -> Eyes:
        """The encoder and the trunks as they are now, on the device of the agent."""
        trunks = {name: trunk.copy(self.device) for name, trunk in self._trunks().items()}
        encoder = self.algorithm.encoder.copy(self.device)
        return Eyes(encoder, trunks, self.seeds, self.config.nstep, self.config.discount)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything: what `load` needs to go on training, `load_pixel_policy` to act and `load_eyes` to see."""
        bounds = {"low": self.store.low, "high": self.store.high}
        files.write(path, self._described() | {"updates": self.updates}, self.state() | bounds)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a file that an agent with the same config, seeds and frames has written."""
        described, tensors = files.read(path, sees=True)
        bounds = {"low": self.store.low, "high": self.store.high}
        other = [name for name, own_bound in bounds.items() if not _same(tensors.pop(name, None), own_bound)]
        self._go_on(path, described, tensors, other)

    def _described(self) -> dict[str, Any]:
        return {
            "algorithm": self.name,
            "config": asdict(self.config),
            "seeds": self.seeds,
            "frame": self.store.frame,
            **self._learned_from(),
            "actor": self.algorithm.actor.sizes,
            "trunks": list(self._trunks()),
        }

    def _trunks(self) -> dict[TrunkName, Trunk]:
        trunks: dict[TrunkName, Trunk] = {"actor": self.algorithm.actor_trunk}
        critic = self.algorithm.critic_trunk
        return trunks if critic is None else {**trunks, "critic": critic}

    @contextmanager
    def _working(self) -> Iterator[None]:
        with convolving(self.precision, self.device), compute.working_on(self.device, ADVICE):
            yield


@contextmanager
def convolving(precision: compute.Precision, device: torch.device) -> Iterator[None]:
    """Let float32 use tf32 inside the block unless float32 was asked for; convolutions repeat themselves exactly."""
    fast = precision != "float32"
    on_gpu = torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=fast)
    with compute.matmul_precision("tf32" if fast else "float32"), on_gpu if device.type == "cuda" else nullcontext():
        yield


def _same(kept: Tensor | None, own: Tensor) -> bool:
    return kept is not None and torch.equal(kept, own.cpu())

"""An agent of frames: all members trained at once, in rounds of updates that make observations where they use them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from synther import compute
from synther.agents import policy as files
from synther.agents.algorithm import Noise, Shape
from synther.agents.drawing import Drawn
from synther.agents.drq_bc import DrQBCConfig
from synther.agents.noisy_bc import NoisyBCConfig
from synther.agents.rounds import Rounds
from synther.agents.stacked import Stack
from synther.durable import replacing
from synther.errors import ConfigError, FormatError
from synther.pixels import augmentation
from synther.pixels.algorithm import PixelAlgorithm
from synther.pixels.bc import PixelBC
from synther.pixels.drq_bc import PixelDrQBC
from synther.pixels.encoder import Frame
from synther.pixels.eyes import Eyes, TrunkName, read
from synther.pixels.frames import Frames
from synther.pixels.policy import PixelPolicy
from synther.pixels.store import FrameStore
from synther.pixels.trunk import FEATURES, Trunk

PixelConfig = DrQBCConfig | NoisyBCConfig
"""An agent's options are those of its heads: there is nothing to choose in its eyes."""

PIXEL_ALGORITHMS: dict[str, tuple[type[PixelConfig], Callable[[Any, Shape, Frame], PixelAlgorithm]]] = {
    "drq_bc": (DrQBCConfig, PixelDrQBC),
    "bc": (NoisyBCConfig, PixelBC),
}

_ROUND_UPDATES = 10
_ADVICE = "train fewer seeds together, on fewer frames, or lower agent.batch"


def algorithm_of(config: PixelConfig) -> str:
    """The name of the algorithm that has such a config."""
    for name, (kind, _) in PIXEL_ALGORITHMS.items():
        if kind is type(config):
            return name
    known = " or ".join(kind.__name__ for kind, _ in PIXEL_ALGORITHMS.values())
    raise ConfigError(f"expected a {known}, got {type(config).__name__}")


class PixelAgent(Rounds):
    """`agent = PixelAgent(DrQBCConfig(), frames, seeds=[0, 1]); agent.train(550_000); agent.policy().act(stacks)`

    The frames are kept on the device. `auto` lets a GPU encode them in bf16; weights are float32 everywhere.
    """

    algorithm: PixelAlgorithm

    def __init__(
        self,
        config: PixelConfig,
        frames: Frames,
        seeds: Sequence[int],
        *,
        device: torch.device | None = None,
        precision: compute.Precision = "auto",
    ) -> None:
        if not seeds:
            raise ConfigError("an agent needs at least one seed, got none")
        self.config, self.seeds, self.name = config, tuple(seeds), algorithm_of(config)
        device = device or compute.pick_device()
        self.precision = compute.pick_precision(precision, device)
        with compute.working_on(device, _ADVICE):
            self.store = FrameStore(frames, config.nstep, config.discount, device)
            shape = Shape(FEATURES, frames.action.shape[1], self.seeds, device)
            algorithm = PIXEL_ALGORITHMS[self.name][1](config, shape, self.store.frame)
            dtype = compute.working_dtype(self.precision)
            super().__init__(algorithm, _Round(algorithm, self.store, self.seeds, config.batch, dtype), device)

    def policy(self, device: torch.device | None = None) -> PixelPolicy:
        """The policies as they are now, to be evaluated while training goes on; on the CPU unless said otherwise."""
        device = device or torch.device("cpu")
        own, actor = self.algorithm, self.algorithm.actor
        heads = Stack(actor.weights.detach().to(device, copy=True), actor.sizes, actor.free_size)
        bounds = self.store.low.to(device), self.store.high.to(device)
        return PixelPolicy(own.encoder.copy(device), own.actor_trunk.copy(device), heads, *bounds)

    def eyes(self) -> Eyes:
        """The encoder and the trunks as they are now, on the device of the agent."""
        trunks = {name: trunk.copy(self.device) for name, trunk in self._trunks().items()}
        encoder = self.algorithm.encoder.copy(self.device)
        return Eyes(encoder, trunks, self.seeds, self.config.nstep, self.config.discount)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything: what `load` needs to go on training, `load_pixel_policy` to act and `load_eyes` to see."""
        tensors = {name: tensor.detach().contiguous() for name, tensor in self.state().items()}
        tensors |= {"low": self.store.low, "high": self.store.high}
        described = self._described() | {"updates": self.updates}
        with replacing(path) as beside:
            beside.write_bytes(save(tensors, {"format": files.FORMAT, "agent": json.dumps(described)}))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a file that an agent with the same config, seeds and frames has written."""
        described, tensors = read(path)
        own = json.loads(json.dumps(self._described()))
        other = [name for name in own if own[name] != described.get(name)]
        bounds = {"low": self.store.low, "high": self.store.high}
        other += [name for name, own_bound in bounds.items() if not _same(tensors.pop(name, None), own_bound)]
        if other:
            raise ConfigError(f"{path} belongs to an agent with another {', '.join(other)}: choose another place")
        if not isinstance(described.get("updates"), int):
            raise FormatError(f"{path} is a damaged agent: it does not say how many updates it has seen")
        self.load_state(tensors, described["updates"])

    def _described(self) -> dict[str, Any]:
        """What an agent must have in common with one that goes on from its file, and what its tensors do not say."""
        return {
            "algorithm": self.name,
            "config": asdict(self.config),
            "seeds": self.seeds,
            "frame": self.store.frame,
            "decisions": len(self.store),
            "rewards": self.store.earned,
            "actor": self.algorithm.actor.sizes,
            "trunks": list(self._trunks()),
        }

    def _trunks(self) -> dict[TrunkName, Trunk]:
        trunks: dict[TrunkName, Trunk] = {"actor": self.algorithm.actor_trunk}
        critic = self.algorithm.critic_trunk
        return trunks if critic is None else {**trunks, "critic": critic}

    @contextmanager
    def _working(self) -> Iterator[None]:
        with convolving(self.precision, self.device), compute.working_on(self.device, _ADVICE):
            yield


class _Round:
    """Consecutive updates: which decisions they see and their random numbers, in tensors that stay where they are."""

    updates = _ROUND_UPDATES

    def __init__(
        self, algorithm: PixelAlgorithm, store: FrameStore, seeds: Sequence[int], batch: int, dtype: torch.dtype
    ) -> None:
        self.algorithm, self.store, self.dtype = algorithm, store, dtype
        self.losses = {name: torch.zeros(len(seeds), device=store.reward.device) for name in algorithm.losses}
        self._drawn = Drawn(seeds, _ROUND_UPDATES, batch, algorithm, store.reward.device)

    def fill(self, number: int) -> None:
        """Draw round `number`, and which decisions it sees."""
        self._drawn.draw(number)
        self._drawn.random.remainder_(len(self.store))

    def run(self, first: int, last: int) -> None:
        """The updates from `first` up to `last`, without it."""
        for step in range(first, last):
            noise = Noise(self._drawn.normal[:, step], self._drawn.uniform[:, step])
            batch = self.store.batch(self._drawn.random[:, step], augmentation.offsets(noise.uniform), self.dtype)
            losses = self.algorithm.update(batch, noise, step)
            if step == last - 1:  # the others would be overwritten
                for name, loss in losses.items():
                    self.losses[name].copy_(loss)


@contextmanager
def convolving(precision: compute.Precision, device: torch.device) -> Iterator[None]:
    """Let float32 use tf32 inside the block unless float32 was asked for; convolutions repeat themselves exactly."""
    fast = precision != "float32"
    on_gpu = torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=fast)
    with compute.matmul_precision("tf32" if fast else "float32"), on_gpu if device.type == "cuda" else nullcontext():
        yield


def _same(kept: Tensor | None, own: Tensor) -> bool:
    return kept is not None and torch.equal(kept, own.cpu())

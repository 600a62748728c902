"""Pixel agents. All members are trained at once, in rounds of several updates. Frames are stacked on the device.

`PixelAgentBase` is the base class of offline agents (`PixelAgent`) and online learners (`learner.py`). It provides
policy, encoder and files.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import Any

import torch

from synther import compute
from synther.agents import policy as files
from synther.agents.algorithm import Noise, Shape
from synther.agents.drq_bc import DrQBCConfig, HeadsConfig
from synther.agents.noisy_bc import NoisyBCConfig
from synther.agents.rounds import RandomNumbers, Rounds
from synther.errors import ConfigError
from synther.pixels.algorithm import PixelAlgorithm
from synther.pixels.bc import PixelBC
from synther.pixels.drq_bc import PixelDrQBC
from synther.pixels.encoder import FEATURES, Frame, PixelEncoder, Trunk, TrunkName
from synther.pixels.frames import Frames
from synther.pixels.policy import PixelPolicy
from synther.pixels.store import FrameStore, shift_offsets

ADVICE = "train fewer seeds together, keep fewer frames, or lower agent.batch_size"
"""Advice in the error message if the device is out of memory."""


class PixelAgentBase(Rounds):
    """Trains all members of a pixel algorithm. `store` keeps the frames on the device."""

    algorithm: PixelAlgorithm

    def __init__(
        self,
        name: str,
        config: HeadsConfig,
        seeds: tuple[int, ...],
        algorithm: PixelAlgorithm,
        store: FrameStore,
        precision: compute.Precision,
        *,
        round_updates: int,
    ) -> None:
        dtype = compute.working_dtype(precision)
        one = _Round(algorithm, store, seeds, config.batch_size, dtype, round_updates)
        super().__init__(algorithm, one, store.images.device)
        self.name, self.config, self.seeds, self.store, self.precision = name, config, seeds, store, precision

    @abstractmethod
    def _learned_from(self) -> dict[str, Any]:
        """Return properties of the data as JSON values. They must match when training resumes from a file."""

    def policy(self, device: torch.device | None = None) -> PixelPolicy:
        """Return a copy of the current policies, to evaluate them while training continues. Default device: CPU."""
        device = device or torch.device("cpu")
        algorithm = self.algorithm
        parts = algorithm.encoder.copy(device), algorithm.actor_trunk.copy(device), algorithm.actor.copy(device)
        return PixelPolicy(*parts, self.store.low.to(device), self.store.high.to(device))

    def pixel_encoder(self) -> PixelEncoder:
        """Return a copy of the current encoders and trunks, on the agent's device."""
        trunks = {name: trunk.copy(self.device) for name, trunk in self._trunks().items()}
        encoder = self.algorithm.encoder.copy(self.device)
        return PixelEncoder(encoder, trunks, self.seeds, self.config.nstep, self.config.discount)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the whole agent to a file that `load`, `load_pixel_policy` and `load_pixel_encoder` can read."""
        bounds = {"low": self.store.low, "high": self.store.high}
        files.write(path, self._described() | {"updates": self.updates}, self.state() | bounds)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Resume from the file of an agent with the same config, seeds and frames."""
        described, tensors = files.read(path, pixels=True)
        self._go_on(path, described, tensors, {"low": {"low": self.store.low}, "high": {"high": self.store.high}})

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


class _Round:
    """Consecutive updates. Their random numbers and the indices of their decisions have fixed addresses.

    Fixed addresses are needed to replay a captured round on a GPU.
    """

    def __init__(
        self,
        algorithm: PixelAlgorithm,
        store: FrameStore,
        seeds: Sequence[int],
        batch: int,
        dtype: torch.dtype,
        updates: int,
    ) -> None:
        self.algorithm, self.store, self.dtype, self.updates = algorithm, store, dtype, updates
        self.losses = {name: torch.zeros(len(seeds), device=store.reward.device) for name in algorithm.losses}
        self._drawn = RandomNumbers(seeds, updates, batch, algorithm, store.reward.device)

    def fill(self, number: int) -> None:
        """Draw the random numbers and decisions of round `number`."""
        self._drawn.draw(number)
        self._drawn.random.copy_(self.store.pick(self._drawn.random))

    def run(self, first: int, last: int) -> None:
        """Run the updates from `first` up to, but not including, `last`."""
        for step in range(first, last):
            noise = Noise(self._drawn.normal[:, step], self._drawn.uniform[:, step])
            batch = self.store.batch(self._drawn.random[:, step], shift_offsets(noise.uniform), self.dtype)
            losses = self.algorithm.update(batch, noise, step)
            if step == last - 1:  # losses of earlier updates would be overwritten
                for name, loss in losses.items():
                    self.losses[name].copy_(loss)


@contextmanager
def convolving(precision: compute.Precision, device: torch.device) -> Iterator[None]:
    """Make convolutions deterministic inside the block, and allow tf32 if `precision` is not float32."""
    fast = precision != "float32"
    on_gpu = torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=fast)
    with compute.matmul_precision("tf32" if fast else "float32"), on_gpu if device.type == "cuda" else nullcontext():
        yield


PixelConfig = DrQBCConfig | NoisyBCConfig
"""The options of a pixel agent are the options of its heads. The encoder has no options."""

PIXEL_ALGORITHMS: dict[str, tuple[type[PixelConfig], Callable[[Any, Shape, Frame], PixelAlgorithm]]] = {
    "drq_bc": (DrQBCConfig, PixelDrQBC),
    "bc": (NoisyBCConfig, PixelBC),
}

_ROUND_UPDATES = 10
"""Number of updates in a round of offline training."""


def algorithm_of(config: PixelConfig) -> str:
    """Return the name of the algorithm that a config belongs to."""
    for name, (kind, _) in PIXEL_ALGORITHMS.items():
        if kind is type(config):
            return name
    known = " or ".join(kind.__name__ for kind, _ in PIXEL_ALGORITHMS.values())
    raise ConfigError(f"expected a {known}, got {type(config).__name__}")


class PixelAgent(PixelAgentBase):
    """Trains pixel agents offline, one per seed, all at once.

        agent = PixelAgent(DrQBCConfig(), frames, seeds=[0, 1])
        agent.train(550_000)
        actions = agent.policy().act(stacks)

    The frames are kept on the device. With precision `auto`, a GPU encodes them in bf16. Weights are always float32.
    """

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
        name, members, device = algorithm_of(config), tuple(seeds), device or compute.pick_device()
        chosen = compute.pick_precision(precision, device)
        with compute.working_on(device, ADVICE):
            store = FrameStore(frames, config.nstep, config.discount, device)
            shape = Shape(FEATURES, frames.action.shape[1], members, device)
            algorithm = PIXEL_ALGORITHMS[name][1](config, shape, store.frame)
            super().__init__(name, config, members, algorithm, store, chosen, round_updates=_ROUND_UPDATES)

    def _learned_from(self) -> dict[str, Any]:
        return {"decisions": len(self.store), "rewards": self.store.earned}

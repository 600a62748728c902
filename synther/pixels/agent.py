"""An agent of frames: all members trained at once, in rounds of updates that make observations where they use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from synther import compute
from synther.agents.algorithm import Noise, Shape
from synther.agents.drawing import Drawn
from synther.agents.drq_bc import DrQBCConfig
from synther.agents.noisy_bc import NoisyBCConfig
from synther.errors import ConfigError
from synther.pixels import augmentation
from synther.pixels.algorithm import PixelAlgorithm
from synther.pixels.bc import PixelBC
from synther.pixels.drq_bc import PixelDrQBC
from synther.pixels.encoder import Frame
from synther.pixels.frames import Frames
from synther.pixels.seeing import ADVICE, SeeingAgent
from synther.pixels.store import FrameStore
from synther.pixels.trunk import FEATURES

PixelConfig = DrQBCConfig | NoisyBCConfig
"""An agent's options are those of its heads: there is nothing to choose in its eyes."""

PIXEL_ALGORITHMS: dict[str, tuple[type[PixelConfig], Callable[[Any, Shape, Frame], PixelAlgorithm]]] = {
    "drq_bc": (DrQBCConfig, PixelDrQBC),
    "bc": (NoisyBCConfig, PixelBC),
}

_ROUND_UPDATES = 10


def algorithm_of(config: PixelConfig) -> str:
    """The name of the algorithm that has such a config."""
    for name, (kind, _) in PIXEL_ALGORITHMS.items():
        if kind is type(config):
            return name
    known = " or ".join(kind.__name__ for kind, _ in PIXEL_ALGORITHMS.values())
    raise ConfigError(f"expected a {known}, got {type(config).__name__}")


class PixelAgent(SeeingAgent):
    """`agent = PixelAgent(DrQBCConfig(), frames, seeds=[0, 1]); agent.train(550_000); agent.policy().act(stacks)`

    The frames are kept on the device. `auto` lets a GPU encode them in bf16; weights are float32 everywhere.
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
        name, own, device = algorithm_of(config), tuple(seeds), device or compute.pick_device()
        chosen = compute.pick_precision(precision, device)
        with compute.working_on(device, ADVICE):
            store = FrameStore(frames, config.nstep, config.discount, device)
            shape = Shape(FEATURES, frames.action.shape[1], own, device)
            algorithm = PIXEL_ALGORITHMS[name][1](config, shape, store.frame)
            one = _Round(algorithm, store, own, config.batch_size, compute.working_dtype(chosen))
            super().__init__(name, config, own, algorithm, store, one, chosen)

    def _learned_from(self) -> dict[str, Any]:
        return {"decisions": len(self.store), "rewards": self.store.earned}


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

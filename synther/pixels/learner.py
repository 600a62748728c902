"""Train online pixel agents (DrQ-v2): all members at once, each with its own environment and its own frames.

All random numbers depend only on (member's seed, number of the update or decision). So a member learns the same when it
is trained alone or together with others, and a resumed training gives the same result as an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from synther import compute
from synther.agents.algorithm import Shape
from synther.agents.drq_bc import stddev
from synther.agents.drq_v2 import DrQv2Config
from synther.errors import ConfigError
from synther.kernels.frames import frame_stacks
from synther.pixels.agent import ADVICE, PixelAgentBase
from synther.pixels.drq_bc import PixelDrQv2
from synther.pixels.encoder import FEATURES, Frame
from synther.pixels.frames import STACK
from synther.pixels.ring import FrameRing, Numbers
from synther.pixels.store import PAD
from synther.pixels.vector_env import Records

_ACTING = 2  # random stream of actions; training uses the streams in agents/algorithm.py

_HEADS = ("actor", "critics", "target_critics", "actor_adam", "critics_adam")
"""Names of the heads and their optimisers. They are the same in `PixelDrQv2` and in `agents/drq_v2.py`."""


class PixelLearner(PixelAgentBase):
    """Trains DrQ-v2 in S environments at once. For each decision, call `act()`, `add(records)` and `train(1)`.

    `size` is the shape of a frame (C, H, W). `low` and `high` are the action bounds, (A,) each. The newest `capacity`
    frames of each member are kept. A saved learner does not contain its frames, so add them again after loading.
    """

    config: DrQv2Config
    algorithm: PixelDrQv2
    store: FrameRing

    def __init__(
        self,
        config: DrQv2Config,
        seeds: Sequence[int],
        size: Frame,
        low: ArrayLike,
        high: ArrayLike,
        *,
        capacity: int,
        device: torch.device | None = None,
        precision: compute.Precision = "auto",
    ) -> None:
        if not seeds:
            raise ConfigError("a learner needs at least one seed, got none")
        members, device = tuple(seeds), device or compute.pick_device()
        chosen = compute.pick_precision(precision, device)
        with compute.working_on(device, ADVICE):
            returns = config.nstep, config.discount
            ring = FrameRing(len(members), size, low, high, *returns, capacity=capacity, device=device)
            algorithm = PixelDrQv2(config, Shape(FEATURES, len(ring.low), members, device), ring.frame)
            super().__init__("drq_v2", config, members, algorithm, ring, chosen, round_updates=1)
            self._actor = _Actor(algorithm, ring, compute.working_dtype(chosen))
        self._decisions = torch.zeros((), dtype=torch.int64)

    @property
    def decisions(self) -> int:
        """Number of decisions of each member so far."""
        return int(self._decisions)

    def state(self) -> dict[str, Tensor]:
        return super().state() | {"decisions": self._decisions}

    def add(self, records: Records, who: Numbers | None = None) -> None:
        """Add one record for each of the members `who` (None: all). See `FrameRing`."""
        self.store.add(records, who)

    def decided(self) -> None:
        """Count a decision of every member, so that the next one gets new random numbers."""
        self._decisions += 1

    def act(self) -> NDArray[np.float32]:
        """Return actions (S, A) within their bounds for the current observations, with the scheduled action noise."""
        return self.choose()()

    def choose(self) -> Callable[[], NDArray[np.float32]]:
        """Start to compute what `act` returns. Return a function that waits for it, but not for later updates."""
        normal = np.stack([source.standard_normal(len(self.store.low), np.float32) for source in self._sources()])
        with self._working():
            return compute.fetch(self._scaled(self._actor(self.store.seen(), compute.sent(normal, self.device))))

    def random_action(self) -> NDArray[np.float32]:
        """Return uniformly random actions (S, A), one per member."""
        drawn = [2 * source.random(len(self.store.low), np.float32) - 1 for source in self._sources()]
        return self._scaled(torch.from_numpy(np.stack(drawn)).to(self.device)).cpu().numpy()

    def stddev(self) -> float:
        """Return the current std of the action noise, for actions in [-1, 1]."""
        return float(stddev(self.config, self.algorithm.actor_adam.count))

    def heads(self, members: Sequence[int]) -> dict[str, Tensor]:
        """Return copies of actor, critics, target critics and optimiser state of some members."""
        return {name: _of(tensor, members).clone() for name, tensor in self._heads().items()}

    @torch.no_grad()
    def take_heads(self, heads: dict[str, Tensor], members: Sequence[int]) -> None:
        """Replace some members' heads by heads that were trained elsewhere.

        The numbers of updates stay the same, because the action noise depends on them. The new target critics have
        learned from features of the current critic trunk, so the target trunk becomes a copy of it.
        """
        for name, tensor in self._heads().items():
            if tensor.dim():
                tensor[list(members)] = heads[name].to(self.device)
        algorithm = self.algorithm
        algorithm.target_critic_trunk.weights[list(members)] = algorithm.critic_trunk.weights[list(members)]

    def _heads(self) -> dict[str, Tensor]:
        """Return the state of all members' heads and their optimisers (not copies)."""
        return {name: part for name, part in self.algorithm.state().items() if name.partition(".")[0] in _HEADS}

    def _sources(self) -> list[np.random.Generator]:
        """Return each member's random number generator for the current decision."""
        return [np.random.default_rng((_ACTING, seed, self.decisions)) for seed in self.seeds]

    def _scaled(self, action: Tensor) -> Tensor:
        """Scale actions (S, A) from [-1, 1] to their bounds."""
        low, high = self.store.low, self.store.high
        return torch.lerp(low, high, 0.5 * (action + 1)).clamp(low, high)

    def _learned_from(self) -> dict[str, Any]:
        return {}  # after loading, frames are added again, and the new ring may have another capacity


class _Actor:
    """Computes the actions of all members in one captured forward pass."""

    def __init__(self, algorithm: PixelDrQv2, ring: FrameRing, dtype: torch.dtype) -> None:
        self.algorithm, self.ring, self.dtype = algorithm, ring, dtype
        members, actions = len(ring.added), len(ring.low)
        self._seen = torch.zeros(members, 1, STACK, dtype=torch.int64, device=ring.device)
        self._normal = torch.zeros(members, 1, actions, device=ring.device)
        self._action = torch.zeros_like(self._normal)
        self._run: Callable[[], None] | None = None

    def __call__(self, seen: Tensor, normal: Tensor) -> Tensor:
        """Return actions (S, A) in [-1, 1], for the frame indices of observations (S, 3) and normal noise (S, A)."""
        self._seen.copy_(seen.unsqueeze(1))
        self._normal.copy_(normal.unsqueeze(1))
        if self._run is None:
            self._run = compute.capture(self._forward, self.ring.device, [])
        self._run()
        return self._action.squeeze(1)

    @torch.no_grad()
    def _forward(self) -> None:
        algorithm = self.algorithm
        frames = frame_stacks(self.ring.images, self._seen, None, PAD, self.dtype)
        mean = algorithm.actor(algorithm.actor_trunk(algorithm.encoder(frames))).tanh()
        std = stddev(algorithm.config, algorithm.actor_adam.count)
        self._action.copy_((mean + std * self._normal).clamp(-1, 1))


def _of(tensor: Tensor, members: Sequence[int]) -> Tensor:
    """Return the part of a tensor that belongs to `members`, or the whole tensor if all members share it."""
    return tensor.detach()[list(members)] if tensor.dim() else tensor

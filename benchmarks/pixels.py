"""Measure the updates per second of pixel agents on frames, and of their heads on latents. Prints one table.

    python benchmarks/pixels.py                  # on the GPU if there is one
    python benchmarks/pixels.py --device cpu     # a small batch, to test that it runs

The comparison is a plain PyTorch loop of the same networks in the style of DrQ-v2, in the same process: float32, one
seed, random shifts by grid sampling, and frames that are stacked in host memory and copied for every update. The frames
are random, with 84 x 84 pixels and six actions as in cheetah-run. Only updates are timed, no evaluations. The targets:
stage one is 5 times as fast as the plain loop, and heads alone are 50 times as fast as stage one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from machine import command_line, keep, origin, print_table
from torch import Tensor, nn
from torch.nn import functional

from synther import Transitions
from synther.agents.agent import Agent
from synther.agents.drq_bc import DrQBCConfig
from synther.agents.noisy_bc import NoisyBCConfig
from synther.agents.rows import Member, Rows
from synther.compute import pick_device, synchronize
from synther.pixels.agent import PixelAgent
from synther.pixels.encoder import FEATURES
from synther.pixels.frames import Decisions, Frames

ACTIONS, SIDE, EPISODE, PAD = 6, 84, 500, 4
LATENT_ROWS = {"cuda": 1_000_000, "cpu": 10_000}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--frames", type=int, help="number of frames; 20,000 on a GPU")
    parser.add_argument("--batch", type=int, help="batch size; 256 on a GPU")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 6], help="numbers of seeds that train together")
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of updates that are timed for every line")
    parser.add_argument("--precision", default="auto")
    chosen = parser.parse_args()
    device = pick_device(chosen.device)
    small = device.type == "cpu"
    batch = chosen.batch or (8 if small else 256)
    head = origin(device)
    frames = _frames(chosen.frames or (600 if small else 20_000))
    plain = _timed(_Plain(frames, batch, device).train, device, chosen.seconds)
    table = [_line("plain loop, drq_bc", 1, batch, plain, "-", "-")]
    for name, config in (("drq_bc", DrQBCConfig(batch_size=batch)), ("bc", NoisyBCConfig(batch_size=batch))):
        columns = 2 * FEATURES if name == "drq_bc" else FEATURES
        rows = Rows([_latents(LATENT_ROWS[device.type], columns)], device=device)
        for seeds in chosen.seeds:
            agent = PixelAgent(config, frames, range(seeds), device=device, precision=chosen.precision)
            seeing = _timed(agent.train, device, chosen.seconds) / seeds
            del agent  # frees the memory of its frames
            heads = Agent(config, rows, [Member(seed) for seed in range(seeds)])
            alone = _timed(heads.train, device, chosen.seconds) / seeds
            faster = f"{plain / seeing:.1f}" if name == "drq_bc" else "-"
            table.append(_line(f"frames, {name}", seeds, batch, seeing, faster, "-"))
            faster = f"{plain / alone:.1f}" if name == "drq_bc" else "-"
            table.append(_line(f"latents, {name}", seeds, batch, alone, faster, f"{seeing / alone:.1f}"))
    header = ["learner", "seeds", "batch", "an update of a seed", "updates a second", "x plain loop", "x frames"]
    text = print_table(header, table)
    keep(chosen.out, head, text)


def _line(name: str, seeds: int, batch: int, seconds: float, *times: str) -> list[str]:
    return [name, str(seeds), str(batch), f"{1e3 * seconds:,.3f} ms", f"{1 / seconds:,.0f}", *times]


def _timed(train: Callable[[int], None], device: torch.device, seconds: float) -> float:
    """Return the seconds per update, after a warm-up that loads and captures kernels."""
    train(20)
    guess = _once(train, device, 20)
    return _once(train, device, max(20, int(seconds / guess) // 20 * 20))


def _once(train: Callable[[int], None], device: torch.device, updates: int) -> float:
    synchronize(device)
    began = time.perf_counter()
    train(updates)
    synchronize(device)
    return (time.perf_counter() - began) / updates


def _frames(count: int) -> Frames:
    """Return random episodes. Only their shape matters here."""
    draw = np.random.default_rng(0)
    image = draw.integers(0, 256, (count, 3, SIDE, SIDE), dtype=np.uint8)
    action = draw.uniform(-1, 1, (count, ACTIONS)).astype(np.float32)
    first = np.arange(count) % (EPISODE + 1) == 0
    return Frames(image, action, draw.random(count, np.float32), np.ones(count, np.float32), first)


def _latents(count: int, columns: int) -> Transitions:
    draw = np.random.default_rng(0)
    here, there = (draw.uniform(-1, 1, (count, columns)).astype(np.float32) for _ in range(2))
    action = draw.uniform(-1, 1, (count, ACTIONS)).astype(np.float32)
    return Transitions(here, action, draw.random(count, np.float32), there)


class _Plain:
    """DrQ+BC with ordinary PyTorch modules and optimisers."""

    def __init__(self, frames: Frames, batch: int, device: torch.device) -> None:
        self.frames, self.batch, self.device, self.draw = frames, batch, device, np.random.default_rng(0)
        self.config = DrQBCConfig()
        self.decisions: Decisions = frames.decisions(self.config.nstep, self.config.discount)
        wide = self.config.width
        self.encoder = _encoder().to(device)
        encoded = 32 * 35 * 35
        self.trunk, self.critic_trunk, self.target_trunk = (_trunk(encoded).to(device) for _ in range(3))
        self.actor = _head(FEATURES, wide, ACTIONS).to(device)
        self.critics, self.targets = (
            nn.ModuleList(_head(FEATURES + ACTIONS, wide, 1) for _ in range(2)).to(device) for _ in range(2)
        )
        self.of_critic = nn.ModuleList([self.critic_trunk, self.critics])
        self.of_target = nn.ModuleList([self.target_trunk, self.targets])
        self.of_target.load_state_dict(self.of_critic.state_dict())
        self.of_actor = nn.ModuleList([self.trunk, self.actor])
        self.optimisers = [
            torch.optim.Adam(part.parameters(), self.config.learning_rate)
            for part in (self.encoder, self.of_critic, self.of_actor)
        ]

    def train(self, updates: int) -> None:
        for _ in range(updates):
            self._update()

    def _update(self) -> None:
        picked = self.draw.integers(0, len(self.decisions.reward), self.batch)
        d = self.decisions
        seen, following = (self._stacks(records[picked]) for records in (d.stack, d.next_stack))
        action, reward, discount = (torch.as_tensor(x[picked], device=self.device) for x in d[2:])
        encoded = self.encoder(_shifted(seen.float()) / 255 - 0.5)
        with torch.no_grad():
            ahead = self.encoder(_shifted(following.float()) / 255 - 0.5)
            next_action = self._act(ahead)
            target = reward + discount * self._values(self.target_trunk, self.targets, ahead, next_action).amin(0)
        values = self._values(self.critic_trunk, self.critics, encoded, action)
        of_encoder, of_critic, of_actor = self.optimisers
        self._step((values - target).square().mean(1).sum(), of_encoder, of_critic)
        own = self._act(encoded.detach())
        value = self._values(self.critic_trunk, self.critics, encoded.detach(), own).amin(0)
        weight = self.config.alpha / value.detach().abs().mean()
        self._step(functional.mse_loss(own, action) - weight * value.mean(), of_actor)
        with torch.no_grad():
            for old, new in zip(self.of_target.parameters(), self.of_critic.parameters(), strict=True):
                old.lerp_(new, self.config.tau)

    def _stacks(self, records: np.ndarray) -> Tensor:
        stacked = self.frames.image[records].reshape(len(records), -1, SIDE, SIDE)
        return torch.as_tensor(stacked, device=self.device)

    def _act(self, encoded: Tensor) -> Tensor:
        mean: Tensor = self.actor(self.trunk(encoded)).tanh()
        moved = mean + (0.1 * torch.randn_like(mean)).clamp(-0.3, 0.3)
        return moved + (moved.clamp(-1, 1) - moved).detach()

    @staticmethod
    def _values(trunk: nn.Module, critics: nn.ModuleList, encoded: Tensor, action: Tensor) -> Tensor:
        pair = torch.cat([trunk(encoded), action], -1)
        return torch.stack([critic(pair).squeeze(-1) for critic in critics])

    @staticmethod
    def _step(loss: Tensor, *optimisers: torch.optim.Optimizer) -> None:
        for optimiser in optimisers:
            optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        for optimiser in optimisers:
            optimiser.step()


def _encoder() -> nn.Sequential:
    parts: list[nn.Module] = []
    for inputs, stride in ((9, 2), (32, 1), (32, 1), (32, 1)):
        parts += [nn.Conv2d(inputs, 32, 3, stride), nn.ReLU()]
    return nn.Sequential(*parts, nn.Flatten())


def _trunk(inputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, FEATURES), nn.LayerNorm(FEATURES), nn.Tanh())


def _head(inputs: int, width: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs)
    )


def _shifted(x: Tensor) -> Tensor:
    """Return randomly shifted images: padded, then sampled on a grid that is shifted by whole pixels."""
    count, side = len(x), x.shape[-1] + 2 * PAD
    padded = functional.pad(x, (PAD,) * 4, "replicate")
    along = (2 * torch.arange(x.shape[-1], device=x.device) + 1) / side - 1
    grid = torch.stack(torch.meshgrid(along, along, indexing="xy"), -1).expand(count, -1, -1, 2)
    offsets = torch.randint(0, 2 * PAD + 1, (count, 1, 1, 2), device=x.device) * (2 / side)
    return functional.grid_sample(padded, grid + offsets, padding_mode="zeros", align_corners=False)


if __name__ == "__main__":
    main()

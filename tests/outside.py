"""A package of somebody else: one sampler, storage format, metric and data set, each one function and one line."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from synther import Transitions
from synther.agents.adam import Adam
from synther.agents.algorithm import Algorithm, Noise, Shape, StateAgentConfig
from synther.agents.learner import OnlineAgent
from synther.agents.networks import NetworkFactory, NetworkOptions
from synther.agents.rows import Batch
from synther.agents.td3 import TD3, TD3Config
from synther.assess.metrics import Metric, compared
from synther.data.transitions import RowSource
from synther.datasets import NamedDataset, Request
from synther.diffusion.config import Sampler
from synther.diffusion.samplers import Denoise
from synther.formats import Format


def jump(denoise: Denoise, x: Tensor, sigmas: Sequence[float]) -> Tensor:
    """The denoised rows themselves, moved to the next noise level."""
    for sigma, sigma_next in pairwise(sigmas):
        x_0 = denoise(x, sigma)
        x = x_0 + sigma_next / sigma * (x - x_0)
    return x


def read_csv(path: Path) -> Transitions:
    with path.open() as file:
        table = np.array(list(csv.reader(file)), np.float32)
    return Transitions(table[:, :2], table[:, 2:3], table[:, 3], table[:, 4:6], table[:, 6] > 0)


def write_csv(rows: RowSource, path: Path) -> None:
    with path.open("w", newline="") as file:
        for part in rows.chunks(100):
            columns = (part.observation, part.action, part.reward, part.next_observation, part.terminal)
            csv.writer(file).writerows(np.column_stack(columns).tolist())


def reward_gap(real: Transitions, other: Transitions) -> float:
    return abs(float(real.reward.mean() - other.reward.mean()))


def circles(request: Request) -> tuple[Transitions, str]:
    """A point that goes round in circles."""
    angle = np.random.default_rng(request.seed).uniform(0, 2 * np.pi, request.rows or 120)
    here, there = (np.column_stack([np.cos(a), np.sin(a)]).astype(np.float32) for a in (angle, angle + 0.1))
    action = np.full((len(angle), 1), 0.1, np.float32)
    return Transitions(here, action, there[:, 0], there, env_id="Circle-v0"), "computed"


JUMP = Sampler(jump)
CSV = Format(read_csv, write_csv, suffixes=(".csv",))
REWARD_GAP = Metric(
    "Reward gap", "Similarity", "lower", 0, None, "Difference of the mean rewards.", compared(reward_gap)
)
CIRCLES = NamedDataset(circles, agent={"td3_bc": {"alpha": 1.0}}, episodes=3)


@dataclass(frozen=True)
class MirrorConfig(StateAgentConfig):
    sign: float = -1.0


class Mirror(Algorithm):
    """Learns to do the opposite of the data."""

    config_class = MirrorConfig
    losses = ("actor",)

    def __init__(self, config: MirrorConfig, shape: Shape) -> None:
        self.config, self.actor = config, shape.actor(config, shape.action)
        self.adam = Adam(self.actor.weights, config.learning_rate)

    def update(self, batch: Batch, noise: Noise, step: int) -> dict[str, Tensor]:
        loss = (self.actor(batch.observation).tanh() - self.config.sign * batch.action).square().mean((1, 2))
        self.adam.minimise(loss)
        return {"actor": loss.detach()}


def sine(inputs: int, outputs: int, options: NetworkOptions) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, options.width), Sine(), nn.Linear(options.width, outputs))


class Sine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sin()


SINE = NetworkFactory(sine)
CALM = OnlineAgent(TD3, TD3Config(exploration_noise=0.01))

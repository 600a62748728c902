"""A short online run of pendulums, run in a folder, brought down, and looked at afterwards."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from synther import read
from synther.agents.sac import SACConfig
from synther.envs.policies import MlpPolicy
from synther.experiments.online import Plan, Upsampling, train_to
from synther.presets import preset

from .. import pendulum

SMALL = SACConfig(width=8, depth=1, batch=8, learning_rate=1e-2)
TINY = preset(
    "laptop",
    network={"width": 8, "depth": 1, "embedding": 8},
    fit={"steps": 20, "evaluate_every": 10, "holdout": 0.2},
    sampler={"steps": 2, "refine": 0},
)
UPSAMPLING = Upsampling(TINY, refresh_every=20, samples=30)
PLAN = Plan(
    "Pendulum-v1",
    SMALL,
    steps=55,
    seeds=2,
    seed=3,
    upsampling=UPSAMPLING,
    random_steps=12,
    checkpoint_every=15,
    evaluate_every=10,
    episodes=2,
    device="cpu",
    tensorboard="off",
)
LEGS = [15, 20, 30, 40, 45, 55]
TIMES = [10, 20, 30, 40, 50, 55]


class Guess(pendulum.Guess):
    """The same for observations of any size."""

    def start(self, policies: Sequence[MlpPolicy], number: int) -> pendulum.Guessed:
        draws = [np.random.default_rng((seed, number)) for seed in self.members]
        seen = [
            draw.normal(size=(self.episodes, len(policy.layers[0][0])))
            for draw, policy in zip(draws, policies, strict=True)
        ]
        returns = [policy.act(here)[:, 0] for policy, here in zip(policies, seen, strict=True)]
        return pendulum.Guessed(number, returns, not self.slow)


def run(folder: Path, plan: Plan = PLAN, progress=False):
    return train_to(plan, folder, progress=progress)


def logged(folder: Path) -> list[dict]:
    """What was measured, apart from the time it took."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def refreshes(folder: Path) -> list[dict]:
    found = json.loads((folder / "refreshes.json").read_text())["refreshes"]
    return [{name: value for name, value in entry.items() if "seconds" not in name} for entry in found]


def files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def same(one: Path, other: Path) -> bool:
    tensors = [load_file(folder / "checkpoint.safetensors") for folder in (one, other)]
    assert tensors[0].keys() == tensors[1].keys()
    equal = all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[0])
    rows = read(one / "replay.npz").equals(read(other / "replay.npz"))
    return equal and rows and logged(one) == logged(other) and files(one) == files(other)

"""A short online run of pendulums, run in a folder, brought down, and looked at afterwards."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from synther import read
from synther.agents.sac import SACConfig
from synther.envs.policies import MlpPolicy
from synther.experiments.online import Plan, Upsampling, train_to
from synther.presets import preset

from .. import pendulum, trainings

SMALL = SACConfig(width=8, depth=1, batch_size=8, learning_rate=1e-2)
TINY = preset(
    "laptop",
    network={"width": 8, "depth": 1, "embedding": 8},
    fit={"steps": 20, "evaluate_every": 10, "holdout": 0.2},
    sampler={"steps": 2},
)
UPSAMPLING = Upsampling(TINY, refresh_every=20, samples=30)
PLAN = Plan(
    "Pendulum-v1",
    SMALL,
    steps=55,
    seeds=2,
    seed=3,
    upsampling=UPSAMPLING,
    learning_starts=12,
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


def refreshes(folder: Path) -> list[dict]:
    file = folder / "refreshes.json"
    found = json.loads(file.read_text())["refreshes"] if file.exists() else []
    return [{name: value for name, value in entry.items() if "seconds" not in name} for entry in found]


def same(one: Path, other: Path) -> bool:
    rows = read(one / "replay.npz").equals(read(other / "replay.npz"))
    return rows and trainings.same(one, other) and refreshes(one) == refreshes(other)

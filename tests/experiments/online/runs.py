"""A short online run of pendulums, run in a folder, brought down, and looked at afterwards."""

from __future__ import annotations

import json
from pathlib import Path

from synther import read
from synther.experiments.online import train_to
from synther.experiments.specs import OnlineRun, Synthetic

from .. import trainings

SMALL = {"width": 8, "depth": 1, "batch_size": 8, "learning_rate": 1e-2}
TINY = {**trainings.TINY, "fit": {**trainings.TINY["fit"], "holdout": 0.2}}
SYNTHETIC = Synthetic("laptop", changes=TINY, refresh_every=20, samples=30)
PLAN = OnlineRun(
    "pendulum",
    "Pendulum-v1",
    synthetic=SYNTHETIC,
    agent=SMALL,
    steps=55,
    seeds=2,
    seed=3,
    learning_starts=12,
    checkpoint_every=15,
    evaluate_every=10,
    episodes=2,
    device="cpu",
    tensorboard="off",
)
LEGS = [15, 20, 30, 40, 45, 55]
TIMES = [10, 20, 30, 40, 50, 55]


def run(folder: Path, plan: OnlineRun = PLAN, progress=False):
    return train_to(plan, folder, progress=progress)


def refreshes(folder: Path) -> list[dict]:
    file = folder / "refreshes.json"
    found = json.loads(file.read_text())["refreshes"] if file.exists() else []
    return [{name: value for name, value in entry.items() if "seconds" not in name} for entry in found]


def same(one: Path, other: Path) -> bool:
    rows = read(one / "replay.npz").equals(read(other / "replay.npz"))
    return rows and trainings.same(one, other) and refreshes(one) == refreshes(other)

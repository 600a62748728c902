"""A short online run of pixel agents, run in a folder, and looked at afterwards."""

from __future__ import annotations

from pathlib import Path

from synther.experiments.online import train_to
from synther.experiments.specs import OnlinePixelRun, SyntheticLatents
from synther.pixels.files import read

from ...pixels.lamps import Doors
from .. import trainings
from ..online.runs import refreshes
from ..seeing import files
from ..trainings import logged, same_tensors

AGENT = {"width": 8, "depth": 1, "batch_size": 4, "nstep": 2, "stddev_updates": 20, "learning_rate": 1e-2}
FIT = {"steps": 10, "evaluate_every": 5, "holdout": 0.2}
TINY = {**trainings.TINY, "fit": FIT, "data": {"scaling": "standard"}}
SYNTHETIC = SyntheticLatents("laptop", changes=TINY, refresh_every=12, samples=20, updates=5)
PLAN = OnlinePixelRun(
    "walker",
    "dm_control/walker-walk-v0",
    synthetic=SYNTHETIC,
    agent=AGENT,
    steps=30,
    seeds=2,
    seed=3,
    learning_starts=8,
    checkpoint_every=9,
    evaluate_every=24,
    episodes=1,
    size=15,
    device="cpu",
    tensorboard="off",
)
LEGS = [9, 12, 18, 24, 27, 30]
TIMES = [24, 30]


def run(folder: Path, plan: OnlinePixelRun = PLAN, make_env=Doors, progress=False):
    return train_to(plan, folder, progress=progress, make_env=make_env)


def same(one: Path, other: Path) -> bool:
    equal = same_tensors(one, other, "checkpoint.safetensors") and refreshes(one) == refreshes(other)
    seen = [read(folder / "frames" / f"seed-{seed}") for seed in (3, 4) for folder in (one, other)]
    same_frames = all((a.image == b.image).all() for a, b in zip(seen[::2], seen[1::2], strict=True))
    return equal and same_frames and logged(one) == logged(other) and files(one) == files(other)

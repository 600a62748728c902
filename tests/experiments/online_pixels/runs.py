"""A short online run of agents that see, run in a folder, and looked at afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from synther.agents.drq_v2 import DrQv2Config
from synther.experiments.online_pixels import LatentUpsampling, PixelPlan, train_to
from synther.pixels.files import read
from synther.presets import preset

from ...pixels.lamps import Doors

AGENT = DrQv2Config(width=8, depth=1, batch=4, nstep=2, deviation_updates=20, learning_rate=1e-2)
TINY = preset(
    "laptop",
    network={"width": 8, "depth": 1, "embedding": 8},
    fit={"steps": 10, "evaluate_every": 5, "holdout": 0.2},
    sampler={"steps": 2, "refine": 0},
    data={"scaling": "standard"},
)
UPSAMPLING = LatentUpsampling(TINY, refresh_every=12, samples=20, updates=5)
PLAN = PixelPlan(
    "dm_control/walker-walk-v0",
    AGENT,
    steps=30,
    seeds=2,
    seed=3,
    upsampling=UPSAMPLING,
    random_steps=8,
    checkpoint_every=9,
    evaluate_every=24,
    episodes=1,
    size=15,
    device="cpu",
    tensorboard="off",
)
LEGS = [9, 12, 18, 24, 27, 30]
TIMES = [24, 30]


def run(folder: Path, plan: PixelPlan = PLAN, world=Doors):
    return train_to(plan, folder, progress=False, world=world)


def logged(folder: Path) -> list[dict]:
    """What was measured, apart from the time it took."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def refreshes(folder: Path) -> list[dict]:
    found = json.loads((folder / "refreshes.json").read_text())["refreshes"]
    return [{name: value for name, value in entry.items() if "seconds" not in name} for entry in found]


def files(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def same(one: Path, other: Path) -> bool:
    tensors = [load_file(folder / "checkpoint.safetensors") for folder in (one, other)]
    assert tensors[0].keys() == tensors[1].keys()
    equal = all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[0])
    seen = [read(folder / "frames" / f"seed-{seed}") for seed in (3, 4) for folder in (one, other)]
    films = all((a.image == b.image).all() for a, b in zip(seen[::2], seen[1::2], strict=True))
    return equal and films and logged(one) == logged(other) and files(one) == files(other)

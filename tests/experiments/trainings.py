"""A short training of a pendulum's agent, run in a folder, brought down, and looked at afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from synther.agents.td3_bc import TD3BCConfig
from synther.experiments.offline import train_to
from synther.experiments.sources import TrainingData
from synther.experiments.specs import OfflineRun

from .pendulum import swings

TINY = {
    "network": {"width": 8, "depth": 1, "embedding": 8},
    "fit": {"steps": 20, "batch_size": 32, "evaluate_every": 10},
}
TINY |= {"sampler": {"steps": 2, "matched": False}}
"""A generator that takes no time."""
OPTIONS = {"width": 8, "depth": 1, "batch_size": 8, "learning_rate": 1e-2}
SMALL = TD3BCConfig(**OPTIONS)
PLAN = OfflineRun(
    agent=OPTIONS,
    updates=45,
    seeds=2,
    evaluate_every=10,
    episodes=3,
    checkpoint_seconds=0,
    device="cpu",
    tensorboard="off",
)
TIMES = [10, 20, 30, 40, 45]
FILES = ["checkpoint.safetensors", "clock.json", "log.jsonl", "result.json", "run.json"]


def run(folder: Path, plan: OfflineRun = PLAN, material: TrainingData | None = None, progress=False):
    return train_to(plan, material or TrainingData(swings()), folder, progress=progress)


def logged(folder: Path) -> list[dict]:
    """What was measured, apart from the time it took."""
    file = folder / "log.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def same_tensors(one: Path, other: Path, *names: str) -> bool:
    tensors = [[load_file(folder / name) for name in names] for folder in (one, other)]
    return all(
        mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
        for mine, theirs in zip(*tensors, strict=True)
    )


def same(one: Path, other: Path) -> bool:
    equal = same_tensors(one, other, "checkpoint.safetensors")
    return equal and logged(one) == logged(other) and files(one) == files(other)


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """As TensorBoard itself reads them: of each series, the updates and the value of every event."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


Place = tuple[Any, str, bool, int]
"""Whose call, its name, whether after it, and the how many-th."""


class Stopped(BaseException):
    """Nobody catches it, as nobody catches a kill."""


def stop(work: Callable[[], object], owner: Any, name: str, after: bool, call: int) -> None:
    """Let `work` go on until the n-th call of what `owner` has under a name."""
    whole, calls = getattr(owner, name), 0

    def stopping(*given, **named):
        nonlocal calls
        calls += 1
        if calls == call and not after:
            raise Stopped
        answer = whole(*given, **named)
        if calls == call:
            raise Stopped
        return answer

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owner, name, stopping)
        with pytest.raises(Stopped):
            work()


def stop_at_each(places: Iterable[Place], run: Callable[[Path], object], folder: Path) -> Iterator[Place]:
    """Each of the places where it was stopped, in the order of time; at none of them is there a result yet."""
    for place in places:
        stop(lambda: run(folder), *place)
        assert not (folder / "result.json").exists()
        yield place

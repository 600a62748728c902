"""Measure the time of each part of an online run, for one seed and for six. Prints two tables.

    python benchmarks/online.py                                  # the GPU if there is one, else the CPU
    python benchmarks/online.py --seeds 1 --refits warm          # one of the columns

The run is SAC with 20 updates per step and synthetic replay for 100K steps. The times are extrapolated from a run of
`synther online` of a few thousand steps. A step is an action, its outcome and 20 updates; on a GPU, the environments
take the next step while it trains. On a GPU, `scratch` is the paper's generator: 6 x 1024, 100K steps of batch 256, 1M
rows from 128 sampler steps, nine times. `warm` is the default of `synther online`: preset `best` and fits that stop
early. The first fit is on 10,000 rows. The time of the second is used for the seven fits after it, too. On a CPU
everything is small: this only shows that the benchmark works. Agents that have learned little fall early, so
evaluations of trained agents take longer than here. They run in parallel to the training.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from machine import command_line, keep, origin, print_table

from synther.compute import pick_device, synchronize
from synther.envs.vector_env import VectorEnv
from synther.experiments.online import train_to
from synther.experiments.refresh import Refreshing
from synther.experiments.specs import OnlineRun, Synthetic
from synther.presets import Settings, preset
from synther.progress import counted

_STEPS = 100_000
_WARM_UP = 50  # first steps of the last segment, which are not counted
_MINUTES: dict[int, dict[str, float]] = {1: {"scratch": 20, "warm": 3.3}, 6: {"warm": 7}}  # targets, by number of seeds

_BEFORE, _STEPPING = "steps before learning", "steps"
_FITTING, _SAMPLING = "fitting", "sampling"

Parts = dict[str, float]


@dataclass
class Watch:
    """Records when each step of the environments began, and how long each refresh took.

    The device is synchronised only before refreshes. In every step this would change what is measured.
    """

    device: torch.device
    stepped: list[float] = field(default_factory=list)
    refreshed: list[float] = field(default_factory=list)

    @contextmanager
    def watching(self) -> Iterator[None]:
        step, refresh = VectorEnv.step, Refreshing.refresh

        def noted(*given: Any, **named: Any) -> Any:
            self.stepped.append(time.perf_counter())
            return step(*given, **named)

        def timed(*given: Any, **named: Any) -> None:
            synchronize(self.device)
            began = time.perf_counter()
            refresh(*given, **named)
            self.refreshed.append(time.perf_counter() - began)

        with patch.object(VectorEnv, "step", noted), patch.object(Refreshing, "refresh", timed):
            yield


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--env", default="Walker2d-v4")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 6])
    parser.add_argument("--refits", nargs="*", choices=_MINUTES[1], default=list(_MINUTES[1]))
    chosen = parser.parse_args()
    device = pick_device(chosen.device)
    head = origin(device)
    found = {}
    for seeds in chosen.seeds:
        for refit in chosen.refits:
            found[seeds, refit] = _extrapolated(_plan(chosen.env, seeds, refit, device), device)
            print(
                f"{counted(seeds, 'seed')}, {refit}: {sum(found[seeds, refit].values()) / 60:.1f} minutes", flush=True
            )
    title = f"SAC, 20 updates a step, synthetic replay: {_STEPS:,} steps of {chosen.env}, seconds and share"
    tables = [title, print_table(*_parts_table(found)), "", print_table(*_targets_table(found))]
    keep(chosen.out, head, *tables)


def _plan(env_id: str, seeds: int, refit: str, device: torch.device) -> OnlineRun:
    """Return the shortest run that is enough. A warm run needs two refreshes, because the first starts from scratch."""
    whole, warm = device.type == "cuda", refit == "warm"
    every = (10_000 if warm else 2_000) if whole else 100
    synthetic = Synthetic(
        changes=_settings(refit, whole).to_json(),
        refresh_every=every,
        samples=1_000_000 if whole else 2_000,
        refit="warm" if warm else "scratch",
    )
    steps = (2 * every if warm else every) + (2_000 if whole else 100)
    return OnlineRun(
        "benchmark",
        env_id,
        utd=20,
        synthetic=synthetic,
        agent={} if whole else {"width": 32, "batch_size": 32},
        steps=steps,
        seeds=seeds,
        learning_starts=every // 2,
        evaluate_every=steps,
        device=str(device),
        tensorboard="off",
    )


def _settings(refit: str, whole: bool) -> Settings:
    if whole:
        return preset("best") if refit == "warm" else preset("paper", network={"embedding": 256})
    return preset("laptop", network={"width": 32, "depth": 1}, fit={"steps": 100}, sampler={"steps": 4})


def _extrapolated(plan: OnlineRun, device: torch.device) -> Parts:
    """Time a short run, and return the estimated seconds of each part of a whole run."""
    assert plan.synthetic is not None
    whole = replace(plan, steps=_STEPS, learning_starts=5_000, evaluate_every=5_000)
    whole = replace(whole, synthetic=replace(plan.synthetic, refresh_every=10_000))
    watch = Watch(device)
    with tempfile.TemporaryDirectory() as folder, watch.watching():
        called = time.perf_counter()
        result = train_to(plan, Path(folder) / "run", progress=False)
        returned = time.perf_counter()
        refreshes = json.loads((Path(folder) / "run" / "refreshes.json").read_text())["refreshes"]
    saving = result.seconds_of["checkpoints"] / len(plan.segments_until(plan.steps))
    waiting = result.seconds_of["waiting"]
    stepped = watch.stepped
    outside = stepped[0] - called + returned - stepped[-1]
    before, learning = _of_a_step(watch, plan)
    parts = {_BEFORE: whole.learning_starts * before, _STEPPING: (whole.steps - whole.learning_starts) * learning}
    parts |= _of_generators(watch.refreshed, refreshes, sum(map(whole.is_refreshed, range(_STEPS))))
    measured = -(-_STEPS // whole.evaluate_every)
    between = sum(parts.values()) / measured  # time between two evaluations; the evaluation runs in parallel to it
    late = max(0.0, waiting - between) * (measured - 1)
    return {
        **parts,
        "waiting for evaluations": waiting + late,
        "checkpoints": saving * len(whole.segments_until(_STEPS)),
        "beginning and end": outside - waiting - saving,
    }


def _of_a_step(watch: Watch, plan: OnlineRun) -> tuple[float, float]:
    """Return the mean seconds of a step: before learning starts, and in the last segment, where half of every batch is
    synthetic. A step lasts from one call of the environments to the next."""
    began = watch.stepped
    before = float(np.mean(np.diff(began[: plan.learning_starts])))
    count = plan.steps - plan.segments_until(plan.steps)[-2] - _WARM_UP
    return before, float(np.mean(np.diff(began[-count:])))


def _of_generators(taken: list[float], refreshes: list[dict[str, Any]], times: int) -> Parts:
    """Return the seconds of fitting and sampling in a whole run. All refreshes after the first count as the last one.

    Each entry of `refreshes` is about one seed. Seeds are sampled one after another.
    """
    steps = sorted({entry["added"] for entry in refreshes})
    drawn = [sum(entry["sample_seconds"] for entry in refreshes if entry["added"] == step) for step in steps]
    fitted = [all_of_it - sampled for all_of_it, sampled in zip(taken, drawn, strict=True)]
    return {_FITTING: fitted[0] + (times - 1) * fitted[-1], _SAMPLING: drawn[0] + (times - 1) * drawn[-1]}


def _parts_table(found: dict[tuple[int, str], Parts]) -> tuple[list[str], list[list[str]]]:
    names = next(iter(found.values()))
    whole = {column: sum(parts.values()) for column, parts in found.items()}
    lines = [
        [name, *(f"{parts[name]:,.1f} s, {parts[name] / whole[column]:.1%}" for column, parts in found.items())]
        for name in names
    ]
    minutes = ["all", *(f"{seconds / 60:.1f} min" for seconds in whole.values())]
    return ["part", *(f"{counted(seeds, 'seed')}, {refit}" for seeds, refit in found)], [*lines, minutes]


def _targets_table(found: dict[tuple[int, str], Parts]) -> tuple[list[str], list[list[str]]]:
    lines = []
    for (seeds, refit), parts in found.items():
        seconds = sum(parts.values())
        if refit in _MINUTES.get(seeds, {}):
            asked = f"at most {_MINUTES[seeds][refit]:g} min"
            lines.append([f"{counted(seeds, 'seed')}, {refit}", asked, f"{seconds / 60:.1f} min"])
        share = (parts[_FITTING] + parts[_SAMPLING]) / seconds
        lines.append([f"share of the generator, {counted(seeds, 'seed')}, {refit}", "-", f"{share:.1%}"])
    return ["on one H200", "asked", "found here"], lines


if __name__ == "__main__":
    main()

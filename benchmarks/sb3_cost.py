"""Measure the overhead of `SyntheticReplayBuffer` for an agent of Stable-Baselines3 on a CPU. Prints one table.

    python benchmarks/sb3_cost.py                        # rows as wide as those of Pendulum, Hopper and Humanoid
    python benchmarks/sb3_cost.py --batch 1024 --threads 1

The table has the median microseconds to add a step of one environment and of eight, and to sample a batch. It compares
the buffer of Stable-Baselines3, ours with real rows only, and ours with half of each batch synthetic. Refreshes are not
timed, because their time depends on the preset.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from machine import command_line, keep, origin, print_table
from stable_baselines3.common.buffers import ReplayBuffer

from synther import preset
from synther.integrations.sb3 import SyntheticReplayBuffer

WIDTHS = {"Pendulum": (3, 1), "Hopper": (11, 3), "Humanoid": (348, 17)}
CAPACITY = 20_000
GENERATOR = preset(
    "laptop",
    network={"width": 16, "depth": 1},
    fit={"steps": 10},
    sampler={"steps": 2},
    data={"spikes": False},
)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=1_000)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    head = origin(torch.device("cpu"))
    table = [
        [name, what, *(f"{1e6 * seconds:.0f}" for seconds in timed)]
        for name, widths in WIDTHS.items()
        for what, timed in measured(*widths, chosen.batch, chosen.repeats).items()
    ]
    text = print_table(["rows of", "µs to", "Stable-Baselines3", "ours, all real", "ours, half synthetic"], table)
    keep(chosen.out, head, text)


def measured(observations: int, actions: int, batch: int, repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each operation for each of the three buffers."""
    spaces = Box(-np.inf, np.inf, (observations,), np.float32), Box(-1, 1, (actions,), np.float32)
    generated = {"samples": CAPACITY, "preset": GENERATOR, "progress": False, "seed": 0}
    ours: dict[str, Any] = {"refresh_every": 10**9, **generated}
    found: dict[str, list[float]] = {}
    for kind, options, mixed in (
        (ReplayBuffer, {}, False),
        (SyntheticReplayBuffer, ours, False),
        (SyntheticReplayBuffer, ours, True),
    ):
        for envs in (1, 8):
            buffer = kind(CAPACITY, *spaces, device="cpu", n_envs=envs, **options)
            steps = [_step(observations, actions, envs, seed) for seed in range(100)]
            for step in steps:
                buffer.add(*step)
            if mixed:
                buffer.refresh()
            add = _median(partial(_add, buffer, steps), repeats)
            found.setdefault(f"add a step of {envs}", []).append(add)
        draw = _median(partial(_draw, buffer, batch), repeats)
        found.setdefault(f"draw {batch}", []).append(draw)
    return found


def _add(buffer: ReplayBuffer, steps: list[tuple[Any, ...]], turn: int) -> None:
    buffer.add(*steps[turn % len(steps)])


def _draw(buffer: ReplayBuffer, batch: int, turn: int) -> None:
    buffer.sample(batch)


def _step(observations: int, actions: int, envs: int, seed: int) -> tuple[Any, ...]:
    draw = np.random.default_rng(seed)
    here, following = draw.standard_normal((2, envs, observations)).astype(np.float32)
    action = draw.uniform(-1, 1, (envs, actions)).astype(np.float32)
    return here, following, action, draw.standard_normal(envs).astype(np.float32), draw.random(envs) < 0.01, [{}] * envs


def _median(call: Callable[[int], Any], repeats: int) -> float:
    times = []
    for turn in range(repeats):
        began = time.perf_counter()
        call(turn)
        times.append(time.perf_counter() - began)
    return float(np.median(times))


if __name__ == "__main__":
    main()

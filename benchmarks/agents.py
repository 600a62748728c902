"""Measure how long a million updates of each agent take, with several seeds and arms at once. Prints one table.

    python benchmarks/agents.py                       # on the GPU if there is one
    python benchmarks/agents.py --only td3_bc iql     # some of the agents
    python benchmarks/agents.py --networks            # TD3+BC with each kind of critics instead
    python benchmarks/agents.py --online              # the 20 updates of an online agent after one step instead

The rows are random and have the shape of Walker2d rows (17 observation and 6 action columns). Networks and batch sizes
are the defaults of each agent, except where the table says otherwise. Only updates are timed, no evaluations. For the
time of a whole run see the result of `synther train`. The time of a million updates is extrapolated from a few seconds.
The reference implementation trains one seed at a time. On a CPU everything is small: this only shows that it works.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from machine import command_line, keep, origin, print_table

from synther import Transitions
from synther.agents.agent import ALGORITHMS, Agent
from synther.agents.learner import Learner
from synther.agents.networks import NETWORKS
from synther.agents.rows import Arm, Member, Rows
from synther.agents.sac import REDQ_CONFIG, RLPD_CONFIG, SACConfig
from synther.compute import pick_device, synchronize
from synther.replay.columns import Columns

MILLION = 1_000_000
for _kind in ("mlp", "layer_norm", "layer_norm_last"):  # networks with a fast path, which "as a module" avoids
    NETWORKS.register(f"{_kind}, as a module", NETWORKS.get(_kind))
REFERENCE_MINUTES = {"td3_bc": "94", "iql": "161", "edac": "269"}
"""Minutes of the reference implementation for a million updates of one seed, on an H200."""
LARGER = {"width": 512, "depth": 3, "batch_size": 1024}
SMALL = {"width": 32, "batch_size": 32}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rows", type=int, help="rows of each arm; default: 1,000,000 on a GPU, else 10,000")
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of updates that are timed for every line")
    parser.add_argument("--only", nargs="*", choices=ALGORITHMS.names(), default=ALGORITHMS.names())
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--networks", action="store_true", help="compare kinds of critics instead of agents")
    parser.add_argument("--online", action="store_true", help="time online agents instead")
    chosen = parser.parse_args()
    device = pick_device(chosen.device)
    head = origin(device)
    whole = device.type == "cuda"
    if chosen.online:
        keep(chosen.out, head, _online(device, {} if whole else SMALL, chosen.seconds))
        return
    seeds, arms = (8, 5) if whole else (2, 2)
    tables = [_table(chosen.rows or (MILLION if whole else 10_000), arm) for arm in range(arms)]
    rows = Rows(tables, device=device)
    table = []
    for kind in NETWORKS.names() if chosen.networks else ():
        small = {} if whole else SMALL
        for members in (1, seeds):
            change = {**small, "critic_network": kind}
            table.append(_line("td3_bc", change, members, seeds, rows, chosen.seconds, chosen.precision, kind))
    for name in () if chosen.networks else chosen.only:
        if ALGORITHMS.get(name).needs_next_action:
            rows = Rows(tables, device=device, next_actions=True)
        for members in (1, seeds, arms * seeds):
            table.append(_line(name, {} if whole else SMALL, members, seeds, rows, chosen.seconds, chosen.precision))
        if whole and name in ("td3_bc", "iql"):
            table.append(_line(name, LARGER, seeds, seeds, rows, chosen.seconds, chosen.precision))
    header = ["agent", "networks", "batch", "members", "an update", "1M updates", "reference, one seed"]
    text = print_table(header, table)
    keep(chosen.out, head, text)


def _online(device: torch.device, small: dict[str, Any], seconds: float) -> str:
    """Return a table of the milliseconds for the 20 updates that follow a step, for one, three and six seeds."""
    kinds = ("mlp", "layer_norm", "mlp, as a module", "layer_norm, as a module")
    agents = {f"sac, {kind}": SACConfig(utd=20, critic_network=kind, **small) for kind in kinds}
    agents |= {"redq": replace(REDQ_CONFIG, **small), "rlpd": replace(RLPD_CONFIG, **small)}
    table = []
    for name, config in agents.items():
        cells = []
        for seeds in (1, 3, 6):
            shape: dict[str, Any] = {"capacity": 5_000, "samples": 5_000, "device": device}
            learner = Learner(config, range(seeds), 17, -np.ones(6), np.ones(6), **shape)
            rows = np.stack([Columns.of(table).pack(table) for table in (_table(5_000, seed) for seed in range(seeds))])
            learner.add(rows)
            for seed in range(seeds):
                learner.generate(seed, rows[seed])

            def steps(count: int, learner: Learner = learner) -> None:
                for _ in range(count):
                    learner.train()

            cells.append(f"{1e3 * _seconds_each(steps, device, seconds):.2f} ms")
        print(name, *cells, flush=True)
        table.append([name, *cells])
    return print_table(["20 updates", "1 seed", "3 seeds", "6 seeds"], table)


def _table(count: int, seed: int) -> Transitions:
    """Return random rows. Only their number and shape matter here."""
    draw = np.random.default_rng(seed)
    here, there = (draw.standard_normal((count, 17), np.float32) for _ in range(2))
    action = draw.uniform(-1, 1, (count, 6)).astype(np.float32)
    return Transitions(here, action, draw.standard_normal(count, np.float32), there, draw.random(count) < 0.01)


def _line(
    name: str,
    change: dict[str, Any],
    members: int,
    seeds: int,
    rows: Rows,
    seconds: float,
    precision: Any,
    kind: str = "",
) -> list[str]:
    """Time `members` agents, and return a line of the table. Arms have different rows and the same seeds."""
    config = ALGORITHMS.get(name).config_class(**change)
    everybody = [Member(index % seeds, Arm((index // seeds,))) for index in range(members)]
    update = _seconds_each(Agent(config, rows, everybody, precision=precision).train, rows.device, seconds)
    print(f"{name} {members}: {1e6 * update:.0f} us an update", flush=True)
    return [
        name,
        f"{config.width}x{config.depth} {kind}".strip(),
        str(config.batch_size),
        str(members),
        f"{1e6 * update:,.0f} us",
        f"{update * MILLION / 60:.1f} min",
        "-" if change else f"{REFERENCE_MINUTES.get(name, '-')} min".replace("- min", "-"),
    ]


def _seconds_each(work: Callable[[int], None], device: torch.device, seconds: float) -> float:
    """Return the seconds of each unit of `work(count)`, which is timed for about `seconds`."""
    work(40)  # loads the kernels and captures a round
    guess = _timed(work, device, 40)
    return _timed(work, device, max(40, int(seconds / guess) // 20 * 20))


def _timed(work: Callable[[int], None], device: torch.device, count: int) -> float:
    synchronize(device)
    began = time.perf_counter()
    work(count)
    synchronize(device)
    return (time.perf_counter() - began) / count


if __name__ == "__main__":
    main()

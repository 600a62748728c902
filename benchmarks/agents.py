"""How long a million updates of each agent take, all seeds at once and several arms at once: one command, one table.

    python benchmarks/agents.py                       # on the GPU where there is one
    python benchmarks/agents.py --only td3_bc iql     # some of the agents

Random rows in the shape of Walker2d (17 observation and 6 action columns), networks and batches as each agent has them
unless said otherwise. Updates alone, without evaluation: a result of `synther train` has the time of a whole run.
A million is extrapolated from as many updates as some seconds allow. The reference trains one seed at a time.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from machine import origin, print_table

from synther import Transitions
from synther.agents.agent import ALGORITHMS, Agent
from synther.agents.algorithm import AgentConfig
from synther.agents.rows import Arm, Member, Rows
from synther.compute import pick_device, synchronize

MILLION = 1_000_000
REFERENCE_MINUTES = {"td3_bc": "94", "iql": "161", "edac": "269"}
"""For one seed, on an H200."""
SEEDS, ARMS = 8, 5
LARGER = {"width": 512, "depth": 3, "batch": 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rows", type=int, default=MILLION, help="of each arm")
    parser.add_argument("--seconds", type=float, default=4.0, help="of updates that are timed for every line")
    parser.add_argument("--only", nargs="*", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    chosen = parser.parse_args()
    device = pick_device(chosen.device)
    head = origin()
    print("\n".join(head))
    rows = Rows([_table(chosen.rows, arm) for arm in range(ARMS)], device=device)
    table = []
    for name in chosen.only:
        for members in (1, SEEDS, ARMS * SEEDS):
            table.append(_line(name, {}, members, rows, chosen.seconds, chosen.precision))
        if name in ("td3_bc", "iql"):
            table.append(_line(name, LARGER, SEEDS, rows, chosen.seconds, chosen.precision))
    header = ["agent", "networks", "batch", "members", "an update", "1M updates", "reference, one seed"]
    text = print_table(header, table)
    if chosen.out:
        chosen.out.write_text("\n".join([*("    " + line for line in head), "", text, ""]))


def _table(count: int, seed: int) -> Transitions:
    """Random rows: their values do not matter here."""
    draw = np.random.default_rng(seed)
    here, there = (draw.standard_normal((count, 17), np.float32) for _ in range(2))
    action = draw.uniform(-1, 1, (count, 6)).astype(np.float32)
    return Transitions(here, action, draw.standard_normal(count, np.float32), there, draw.random(count) < 0.01)


def _line(name: str, change: dict[str, int], members: int, rows: Rows, seconds: float, precision: str) -> list[str]:
    config = ALGORITHMS[name][0](**change)
    update = _seconds_an_update(config, members, rows, seconds, precision)
    print(f"{name} {members}: {1e6 * update:.0f} us an update", flush=True)
    return [
        name,
        f"{config.width}x{config.depth}",
        str(config.batch),
        str(members),
        f"{1e6 * update:,.0f} us",
        f"{update * MILLION / 60:.1f} min",
        "-" if change else f"{REFERENCE_MINUTES.get(name, '-')} min".replace("- min", "-"),
    ]


def _seconds_an_update(config: AgentConfig, members: int, rows: Rows, seconds: float, precision: str) -> float:
    """Each arm has rows of its own and the same seeds."""
    everybody = [Member(index % SEEDS, Arm((index // SEEDS,))) for index in range(members)]
    agent = Agent(config, rows, everybody, precision=precision)
    agent.train(40)  # loads the kernels and captures a round
    guess = _timed(agent, 40)
    count = max(40, int(seconds / guess) // 20 * 20)
    return _timed(agent, count)


def _timed(agent: Agent, updates: int) -> float:
    """Seconds an update."""
    synchronize(agent.device)
    began = time.perf_counter()
    agent.train(updates)
    synchronize(agent.device)
    return (time.perf_counter() - began) / updates


if __name__ == "__main__":
    main()

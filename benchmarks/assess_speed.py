"""Measure how long an assessment takes. Prints one table.

    python benchmarks/assess_speed.py                    # 1M real and 1M synthetic rows, as wide as walker2d rows
    python benchmarks/assess_speed.py --rows 100000

The rows are random, because only their number and width matter. No simulator is used.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from machine import command_line, keep, origin, print_table

from synther import Transitions
from synther.assess.judge import assess


class Stages:
    """A progress display that records wall time and CPU time of every stage."""

    def __init__(self) -> None:
        self.table: list[list[str]] = []

    @contextmanager
    def phase(self, name: str, total: int, start: int = 0) -> Iterator[Stages]:
        self.wall, self.cpu = time.perf_counter(), time.process_time()
        began, spent = self.wall, self.cpu
        yield self
        self._note("all", began, spent)

    def advance(self, amount: int, note: str = "") -> None:
        self._note(note, self.wall, self.cpu)
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def _note(self, name: str, wall: float, cpu: float) -> None:
        self.table.append([name, f"{time.perf_counter() - wall:.1f} s", f"{time.process_time() - cpu:.1f} s"])


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--observations", type=int, default=17)
    parser.add_argument("--actions", type=int, default=6)
    chosen = parser.parse_args()
    head = origin()
    real, synthetic = (_rows(chosen.rows, chosen.observations, chosen.actions, seed) for seed in (0, 1))
    stages = Stages()
    assess(real, synthetic, progress=stages)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    text = print_table(["stage", "wall", "all cores"], [*stages.table, ["most memory", f"{memory:.1f} GiB", ""]])
    keep(chosen.out, head, text)


def _rows(count: int, observations: int, actions: int, seed: int) -> Transitions:
    draw = np.random.default_rng(seed)
    here = draw.standard_normal((count, observations), np.float32)
    return Transitions(
        observation=here,
        action=np.clip(draw.standard_normal((count, actions), np.float32), -1, 1),
        reward=draw.standard_normal(count, np.float32),
        next_observation=here + 0.1 * draw.standard_normal((count, observations), np.float32),
        terminal=draw.random(count) < 0.004,
    )


if __name__ == "__main__":
    main()

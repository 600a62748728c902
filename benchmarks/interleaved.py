"""How long the same work takes in two checkouts: one command, one table.

    git worktree add ../before 4a63305
    python benchmarks/interleaved.py ../before . --out results/interleaved.md

Each piece of work is a process of its own with one thread. The two checkouts take turns, so that a machine that is busy
for a while slows both, and medians are compared. The work uses only what both understand: fits and draws of fixed
length, agents, files.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import command_line, keep, origin, print_table

_ROWS = """
import numpy as np
from synther import Synthesizer, Transitions, read, write
draw = np.random.default_rng(0)
def rows(count, width=17, actions=6):
    s, a = draw.normal(size=(count, width)).astype("f4"), draw.uniform(-1, 1, (count, actions)).astype("f4")
    then = (0.9 * s + 0.1 * draw.normal(size=s.shape)).astype("f4")
    return Transitions(s, a, s[:, 0].copy(), then, then[:, 1] > 3)
network = {"width": 256, "depth": 4}
"""
_WORK = {
    "fit, 4 x 256, 600 steps of batch 256": _ROWS
    + "model = Synthesizer('paper', network=network, fit={'steps': 600}, sampler={'steps': 2})\n"
    "model.fit(rows(50_000), progress=False)",
    "draw 20,000 rows, SDE, 63 network calls": _ROWS
    + "model = Synthesizer('paper', network=network, fit={'steps': 20}, sampler={'steps': 32})\n"
    "model.fit(rows(5_000), progress=False).sample(20_000, seed=0, progress=False)",
    "draw 60,000 rows, Heun, 15 network calls": _ROWS
    + "model = Synthesizer('paper', network=network, fit={'steps': 20}, sampler={'kind': 'heun', 'steps': 8})\n"
    "model.fit(rows(5_000), progress=False).sample(60_000, seed=0, progress=False)",
    "write and read 1M rows, npz": _ROWS
    + "made, path = rows(1_000_000), 'rows.npz'\nwrite(*((made, path) if NEW else (path, made)))\nread(path)",
}
_AGENTS = {
    "td3_bc": "400",
    "iql": "400",
    "edac": "50",
}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    head = origin()
    trees = [chosen.before.resolve(), chosen.after.resolve()]
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data.npz")
        _run(trees[1], ["-c", "NEW = True" + _ROWS + f"write(rows(50_000), {str(data)!r})"], Path(folder))
        lines = []
        for name, work in {**_WORK, **{f"{agent}, {count} updates": agent for agent, count in _AGENTS.items()}}.items():
            times: list[list[float]] = [[], []]
            for _ in range(chosen.repeats):
                for tree, own in zip(trees, times, strict=True):
                    own.append(_timed(tree, work, data, is_new=tree == trees[1]))
            before, after = map(statistics.median, times)
            lines.append([name, f"{before:.1f} s", f"{after:.1f} s", f"{after / before:.2f}"])
            print("  ".join(lines[-1]), flush=True)
    keep(chosen.out, head, print_table(["work", "before", "after", "after / before"], lines))


def _timed(tree: Path, work: str, data: Path, *, is_new: bool) -> float:
    if work in _AGENTS:
        options = ["--updates", _AGENTS[work], "--seeds", "2", "--no-evaluate", "--out", "run"]
        command = ["-m", "synther", "train", work, str(data), *options]
    else:
        command = ["-c", f"NEW = {is_new}" + work]
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        _run(tree, command, Path(folder))
        return time.perf_counter() - began


def _run(tree: Path, command: list[str], folder: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{tree}: {' '.join(command)[:200]}\n{done.stderr[-2000:]}")


if __name__ == "__main__":
    main()

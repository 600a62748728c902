"""Compare how long the same work takes in two checkouts. Prints one table.

    git worktree add ../before 4a63305
    python benchmarks/interleaved.py ../before . --out interleaved.md
    python benchmarks/interleaved.py ../before . --device cuda       # the work for a GPU
    python benchmarks/interleaved.py ../before . --only iql online   # some of the work
    python benchmarks/interleaved.py ../before . --work gpu --scale 0.001   # a quick test

Two folders with the sources are enough. Git is only needed to make them. Each piece of work runs in its own process
with one thread. The start of the process is not timed. The two checkouts take turns, so that other load on the machine
slows both, and the medians are compared. The work only uses functions that both versions have: fits and samples of
fixed length, agents, files.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from machine import command_line, keep, origin, print_table

from synther.compute import pick_device

_START = """
import time
import numpy as np
import torch
from synther import Synthesizer, Transitions, read, write
from synther.cli import main
def rows(count, width=17, actions=6):
    draw = np.random.default_rng(0)
    s, a = draw.normal(size=(count, width)).astype("f4"), draw.uniform(-1, 1, (count, actions)).astype("f4")
    then = (0.9 * s + 0.1 * draw.normal(size=s.shape)).astype("f4")
    return Transitions(s, a, s[:, 0].copy(), then, then[:, 1] > 3)
def save(rows, path):
    write(*((rows, path) if NEW else (path, rows)))
def model(preset, fitted, **sampler):
    small = {"network": {"width": 256, "depth": 4}} if preset == "paper" else {}
    fit, data = {"steps": fitted, "overfit": None}, {"terminals": "generated"}
    return Synthesizer(preset, device=DEVICE, fit=fit, data=data, sampler={"restarts": 0, **sampler}, **small)
def command(*words):
    assert main([*map(str, words), "--device", DEVICE, "--tensorboard", "off", "--out", "run"]) == 0
"""
_TIMED = """
if DEVICE != "cpu": torch.cuda.synchronize()
began = time.perf_counter()
{}
if DEVICE != "cpu": torch.cuda.synchronize()
print(time.perf_counter() - began)
"""


@dataclass(frozen=True)
class Work:
    """A piece of work as source code. COUNT in the code is `count`, multiplied by `--scale`."""

    name: str
    count: int
    timed: str
    """Code that is timed."""
    before: str = ""
    """Code that runs before the clock starts."""

    def script(self, scale: float, device: str, is_new: bool) -> str:
        count = max(10, int(self.count * scale))
        return f"NEW, DEVICE, COUNT = {is_new}, {device!r}, {count}\n{_START}{self.before}\n{_TIMED.format(self.timed)}"


def _fit(preset: str, rows: int, steps: int, name: str) -> Work:
    made = f"made, data = model({preset!r}, COUNT, kind='heun', steps=8), rows({rows})"
    return Work(name, steps, "made.fit(data, progress=False)", made)


def _draw(preset: str, count: int, kind: str, steps: int, name: str) -> Work:
    made = f"made = model({preset!r}, 10, kind={kind!r}, steps={steps}).fit(rows(5_000), progress=False)"
    return Work(name, count, "made.sample(COUNT, seed=0, progress=False)", made)


def _offline(agent: str, updates: int, seeds: int) -> Work:
    timed = f"command('train', {agent!r}, 'data.npz', '--updates', COUNT, '--seeds', {seeds}, '--no-evaluate')"
    return Work(f"{agent}, {updates:,} updates of {seeds} seeds", updates, timed, "save(rows(50_000), 'data.npz')")


def _online(steps: int, seeds: int, width: int) -> Work:
    options = "'--utd', 1, '--episodes', 1, '--evaluate-every', COUNT, '--checkpoint-every', COUNT, '--workers', 1"
    begins = f"'--learning-starts' if NEW else '--random-steps', COUNT // 10, '--agent.width', {width}"
    timed = f"command('online', 'Pendulum-v1', '--steps', COUNT, '--seeds', {seeds}, {options}, {begins})"
    name = f"online, SAC of width {width}, {steps:,} steps of Pendulum-v1, {seeds} seeds"
    return Work(name, steps, timed, "import gymnasium")


_WORK = {
    "cpu": (
        _fit("paper", 50_000, 600, "fit, 4 x 256, 600 steps of batch 256"),
        _draw("paper", 20_000, "sde", 32, "draw 20,000 rows, SDE, 63 network calls"),
        _draw("paper", 60_000, "heun", 8, "draw 60,000 rows, Heun, 15 network calls"),
        Work(
            "write and read 1M rows, npz", 1_000_000, "save(data, 'rows.npz'); read('rows.npz')", "data = rows(COUNT)"
        ),
        _offline("td3_bc", 500, 2),
        _offline("iql", 300, 2),
        _offline("edac", 40, 2),
        _online(2_000, 2, 64),
    ),
    "gpu": (
        _fit("fast", 200_000, 5_000, "fit, preset fast, 5,000 steps"),
        _fit("best", 200_000, 5_000, "fit, preset best, 5,000 steps"),
        _draw("best", 1_000_000, "heun", 16, "draw 1M rows, 6 x 1024, Heun, 31 network calls"),
        _offline("td3_bc", 20_000, 8),
        _offline("iql", 20_000, 8),
    ),
}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("before", type=Path, help="folder with the sources of one version")
    parser.add_argument("after", type=Path, help="folder with the sources of another version")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--work", choices=_WORK, help="list of work; default: the list for the device")
    parser.add_argument("--only", nargs="*", default=[""], help="only do work with one of these texts in its name")
    parser.add_argument("--scale", type=float, default=1.0, help="multiply the amount of all work by this factor")
    chosen = parser.parse_args()
    head = origin(pick_device(chosen.device))
    lines = []
    for work in _WORK[chosen.work or ("cpu" if chosen.device == "cpu" else "gpu")]:
        if not any(text in work.name for text in chosen.only):
            continue
        before, after = _medians(work, chosen.before, chosen.after, chosen.repeats, chosen.scale, chosen.device)
        lines.append([work.name, f"{before:.1f} s", f"{after:.1f} s", f"{after / before:.2f}"])
        print("  ".join(lines[-1]), flush=True)
    keep(chosen.out, head, print_table(["work", "before", "after", "after / before"], lines))


def _medians(work: Work, before: Path, after: Path, repeats: int, scale: float, device: str) -> list[float]:
    times: list[list[float]] = [[], []]
    for _ in range(repeats):
        for is_new, tree in enumerate((before, after)):
            times[is_new].append(_seconds(tree.resolve(), work.script(scale, device, bool(is_new))))
    return [statistics.median(own) for own in times]


def _seconds(tree: Path, script: str) -> float:
    """Run a script in an empty folder with the sources of `tree`, and return the last number that it prints."""
    path = os.pathsep.join([str(tree), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, "-c", script], cwd=folder, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{tree}:\n{script}\n{done.stderr[-2000:]}")
    return float(done.stdout.split()[-1])


if __name__ == "__main__":
    main()

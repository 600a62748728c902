"""Measure how close synthetic rows are to real rows, with the simulator as the reference. Prints one table.

    python benchmarks/fidelity.py walker2d-mixed.npz --out results/fidelity.md

Fits the paper's network once on DATA and samples it with several samplers. The columns of the table: marginal and worst
column (1 - KS), correlation, dynamics (median z-scored squared error of the next observation against MuJoCo), novelty
(median z-scored distance to the nearest real row), share of terminals, share of rows with the same terminal as in
MuJoCo, and share of actions outside the real range. With `--out` the figures are also written as JSON beside the table.
Needs the extra `gym` and a task that can be set to a recorded state. Takes minutes on a GPU. On a CPU choose
`--preset laptop`.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from judging import HEADER, cells, judge
from machine import command_line, keep, origin, print_table

from synther import Synthesizer, Transitions, read
from synther.baselines.augmentation import Augmentation
from synther.diffusion.config import SamplerConfig

SAMPLERS = {
    "paper: SDE, 128 steps": SamplerConfig(),
    "SDE, 32 steps": SamplerConfig(steps=32),
    "fast: UniPC, 32 steps": SamplerConfig(kind="unipc", steps=32),
    "UniPC, 20 steps": SamplerConfig(kind="unipc", steps=20),
    "Heun, 18 steps": SamplerConfig(kind="heun", steps=18),
    "Euler, 64 steps": SamplerConfig(kind="euler", steps=64),
}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("data")
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--steps", type=int, help="fit steps instead of the preset's")
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", default="auto")
    parser.add_argument(
        "--only", nargs="*", default=list(SAMPLERS), help="samplers to try, by the beginning of their names"
    )
    parser.add_argument("--model", type=Path, help="file to load the model from, or to save it to after the fit")
    chosen = parser.parse_args()
    head = origin()

    real = read(chosen.data)
    if chosen.model and chosen.model.exists():
        model = Synthesizer.load(chosen.model, precision=chosen.precision)
    else:
        changes: dict[str, Any] = {"fit": {"steps": chosen.steps}} if chosen.steps else {}
        model = Synthesizer(chosen.preset, seed=chosen.seed, precision=chosen.precision, **changes).fit(real)
        if chosen.model:
            model.save(chosen.model)
    record = model.record
    loss = record.history[-1]["held_out"]
    head.append(
        f"fit:     {record.rows:,} rows, {record.steps:,} steps, {record.seconds:.1f} s, held-out loss {loss:.4f}"
    )
    print(head[-1], flush=True)

    draw = np.random.default_rng(chosen.seed)
    table: list[list[str]] = []
    figures: dict[str, object] = {}
    third = real[np.sort(draw.choice(len(real), len(real) // 3, replace=False))]
    noisy = Augmentation("additive").fit(real).sample(chosen.samples, seed=chosen.seed)
    for name, rows in (("real, a random third", third), ("additive noise N(0, 0.1)", noisy)):
        table.append(_line(name, 0, real, rows, 0.0, figures))
    for name, sampler in SAMPLERS.items():
        if any(name.startswith(wanted) for wanted in chosen.only):
            began = time.perf_counter()
            rows = model.sample(chosen.samples, seed=chosen.seed, sampler=sampler, progress=False)
            table.append(_line(name, sampler.network_calls, real, rows, time.perf_counter() - began, figures))
    text = print_table(["rows", "network calls", *HEADER, "seconds"], table)
    keep(chosen.out, head, text)
    if chosen.out:
        chosen.out.with_suffix(".json").write_text(json.dumps({"origin": head, "figures": figures}, indent=2) + "\n")


def _line(
    name: str, calls: int, real: Transitions, rows: Transitions, seconds: float, figures: dict[str, object]
) -> list[str]:
    measured = judge(real, rows)
    figures[name] = {**measured, "seconds": seconds}
    row = [name, str(calls), *cells(measured), f"{seconds:.1f}"]
    print("  ".join(row), flush=True)
    return row


if __name__ == "__main__":
    main()

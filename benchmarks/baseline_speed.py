"""Measure how long TVAE and CTGAN take to generate rows, with the settings that `synther compare` found.

    python benchmarks/baseline_speed.py halfcheetah-mixed.npz results/compare-halfcheetah.json

They are fitted for one epoch, because the time to generate a row does not depend on the weights. Each is timed three
times with 100K rows on one core. The table has the shortest CPU time, scaled to a million rows.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import torch
from machine import command_line, keep, origin, print_table

from synther import read
from synther.baselines.table import Table
from synther.baselines.tabular import CONFIGS, Tabular, config_of
from synther.compute import one_thread


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("data")
    parser.add_argument("comparison", type=Path, help="JSON of `synther compare`")
    parser.add_argument("--rows", type=int, default=100_000, help="number of rows that are timed")
    chosen = parser.parse_args()
    head = origin(torch.device("cpu"))
    table = Table.of(read(chosen.data))
    compared = json.loads(chosen.comparison.read_text())["comparison"]["generators"]
    settings = {generator["name"]: generator["settings"] for generator in compared}
    lines = []
    for name in CONFIGS:
        model = Tabular(replace(config_of(name, settings[name]), epochs=1), device="cpu")
        model.fit(table, progress=False)
        with one_thread():
            seconds = min(_seconds(model, chosen.rows) for _ in range(3))
        lines.append([name, f"{model.parameters:,}", f"{seconds * 1_000_000 / chosen.rows:.0f} s"])
    keep(chosen.out, head, print_table(["generator", "parameters", "1,000,000 rows"], lines))


def _seconds(model: Tabular, rows: int) -> float:
    began = time.process_time()
    model.sample(rows, seed=0)
    return time.process_time() - began


if __name__ == "__main__":
    main()

"""Compare a fit in memory with streamed fits, with windows of several sizes: time, memory and quality.

    python benchmarks/streaming.py                   # 300K rows of `noise` of law_worlds.py, preset laptop
    python benchmarks/streaming.py --rows 20M --preset best --steps 20000 --windows 4M,1M

The rows are in a folder of Parquet files: once in random order, and once sorted by a column, so that neighbouring rows
are similar. Every fit runs in its own process. Its memory is the peak during the fit minus the peak after a small fit.
`nats` is the mean log-likelihood of 500 new rows in their own units. Compare fits by `nats`, not by their held-out
losses: each fit holds out different rows and scales its columns differently.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from law_worlds import noise
from machine import command_line, keep, origin, print_table

from synther import Synthesizer, write
from synther.cli.options import parse_count
from synther.compute import pick_device

_FILE_ROWS, _CHUNK_ROWS, _FRESH = 100_000, 1_000_000, 500


@dataclass(frozen=True)
class Outcome:
    """Time, quality and memory of a fit."""

    seconds: float
    """Seconds from the call of `fit` to the fitted model."""
    steps_seconds: float
    """Seconds of the fit steps alone."""
    held_out: float
    nats: float
    host: float
    """Peak memory of the process minus the peak before the fit, in GB."""
    device: float
    """Peak of the allocated GPU memory, in GB."""


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--rows", type=parse_count, default=300_000)
    parser.add_argument("--windows", default="150K,50K,10K", help="rows per window, separated by commas")
    parser.add_argument("--preset", default="laptop")
    parser.add_argument("--steps", type=int, help="steps of each fit; default: those of the preset")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # options of a single fit, as JSON
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(asdict(_fit(json.loads(chosen.one)))))
        return
    head = origin(pick_device(chosen.device))
    with tempfile.TemporaryDirectory() as place:
        parts = [f"{chosen.rows:,} rows, preset {chosen.preset}, mean of {chosen.seeds} seeds"]
        for name in ("shuffled", "sorted"):
            folder = Path(place) / name
            size = _write(folder, chosen.rows, name == "sorted")
            title = f"\n**{name}**: {size / 1e6:.0f} MB in {len(list(folder.iterdir()))} files\n"
            print(title)
            parts += [title, _table(folder, chosen), ""]
    keep(chosen.out, head, *parts)


def _write(folder: Path, rows: int, ordered: bool) -> int:
    """Write the rows, and return the size of the files in bytes. `ordered` sorts each million rows by a column."""
    folder.mkdir()
    for start in range(0, rows, _CHUNK_ROWS):
        part = noise(min(_CHUNK_ROWS, rows - start), start + 1)
        if ordered:
            part = part[np.argsort(part.observation[:, 0])]
        for number, some in enumerate(part.chunks(_FILE_ROWS)):
            write(some, folder / f"part-{start // _FILE_ROWS + number:05d}.parquet")
    return sum(file.stat().st_size for file in folder.iterdir())


def _table(folder: Path, chosen: argparse.Namespace) -> str:
    lines = []
    windows = [parse_count(word) for word in chosen.windows.split(",")]
    for window in (None, *windows):
        found = [_apart(folder, window, seed, chosen) for seed in range(chosen.seeds)]
        mean = {name: float(np.mean([asdict(one)[name] for one in found])) for name in asdict(found[0])}
        nats = " ".join(f"{one.nats:.3f}" for one in found)
        lines.append(
            [
                "in memory" if window is None else f"window of {window:,}",
                f"{mean['seconds']:.1f} s",
                f"{mean['steps_seconds']:.1f} s",
                f"{mean['held_out']:.4f}",
                nats,
                f"{mean['host']:.2f} GB",
                f"{mean['device']:.2f} GB" if mean["device"] else "-",
            ]
        )
    header = ["fit", "whole fit", "its steps", "held-out loss", "nats of each seed", "host memory", "GPU memory"]
    return print_table(header, lines)


def _apart(folder: Path, window: int | None, seed: int, chosen: argparse.Namespace) -> Outcome:
    options = {"folder": str(folder), "window": window, "seed": seed}
    options |= {"preset": chosen.preset, "steps": chosen.steps, "device": chosen.device}
    command = [sys.executable, __file__, "--one", json.dumps(options)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Outcome(**json.loads(done.stdout.splitlines()[-1]))


def _fit(options: dict[str, Any]) -> Outcome:
    fit: dict[str, int] = {"window_rows": options["window"] or 1 << 40}
    if options["steps"]:
        fit["steps"] = options["steps"]
    model = Synthesizer(options["preset"], device=options["device"], seed=options["seed"], fit=fit)
    Synthesizer("laptop", device=options["device"], fit={"steps": 10}).fit(noise(2_000, 0), progress=False)  # warm up
    floor, began = _peak(), time.perf_counter()
    model.fit(options["folder"], progress=False)
    seconds, peak = time.perf_counter() - began, _peak()
    nats = float(model.log_likelihood(noise(_FRESH, 10**9), steps=32).mean())
    on_device = torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_available() else 0.0
    return Outcome(seconds, model.record.seconds, model.measured["held_out"], nats, peak - floor, on_device)


def _peak() -> float:
    """Return the peak memory of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "linux" else 1e9)


if __name__ == "__main__":
    main()

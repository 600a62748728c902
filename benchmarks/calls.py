"""Measure the quality of rows against the number of network calls, with and without a student. Prints one table.

    python benchmarks/calls.py walker2d-mixed.npz hopper-mixed.npz --folder calls --timed 1000000 --out results/calls.md

Fits the preset on each DATA with two seeds. The difference between the seeds shows the noise of a fit. The first model
is sampled with its own sampler, with UniPC with fewer calls, with the paper's sampler, and with students of different
numbers of calls. The figures are those of `benchmarks/fidelity.py`. `s / 1M` is the time of a million decoded
rows in this process. Models and figures that are already in FOLDER are not computed again, so you can stop and resume
the work. On a CPU choose `--preset laptop --samples 20000`.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from judging import HEADER, cells, judge
from machine import command_line, keep, origin, print_table

from synther import Synthesizer, Transitions, datasets, read
from synther.diffusion.config import SamplerConfig
from synther.presets import PRESETS

CALLS = (1, 2, 4, 8, 16, 32)
PAPER = SamplerConfig()
"""The paper's sampler, with 255 network calls."""


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("data", nargs="+", help="files, or names of data sets")
    parser.add_argument("--preset", choices=PRESETS, default="best")
    parser.add_argument("--folder", type=Path, required=True, help="folder for models and figures")
    parser.add_argument("--calls", nargs="*", type=int, default=CALLS, help="calls of samplers and students (<= 16)")
    parser.add_argument("--samples", type=int, default=100_000, help="rows to measure the figures on")
    parser.add_argument("--timed", type=int, default=0, help="rows to time, if more than --samples: 1000000 on a GPU")
    parser.add_argument("--fit-steps", type=int, help="fit steps instead of the preset's, for example for a short test")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    head, lines = origin(), []
    for data in chosen.data:
        real = datasets.read(data).rows if datasets.is_known(data) else read(data)
        lines += _measured(Path(data).stem, real, chosen)
    table = [
        [line["data"], line["name"], str(line["calls"]), *cells(line), f"{line['seconds']:.2f}", line["made_in"]]
        for line in lines
    ]
    keep(chosen.out, head, print_table(["data", "rows of", "calls", *HEADER, "s / 1M", "made in"], table))


def _measured(data: str, real: Transitions, chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the lines of one data set."""
    first, *others = (_model(data, real, seed, chosen) for seed in chosen.seeds)
    own = first.settings.sampler
    plain = replace(own, kind="unipc", restarts=0)
    lines = [_line(data, "own sampler", first, own, real, chosen)]
    for seed, other in zip(chosen.seeds[1:], others, strict=True):
        lines.append(_line(data, f"own sampler, fit of seed {seed}", other, own, real, chosen))
    for calls in chosen.calls:
        lines.append(_line(data, f"UniPC, {calls} steps", first, replace(plain, steps=calls), real, chosen))
    lines.append(_line(data, "the paper's sampler", first, PAPER, real, chosen))
    for calls in chosen.calls:
        if calls <= 16:
            lines.append(_line(data, f"student of {calls}", first, calls, real, chosen))
    return lines


def _model(data: str, real: Transitions, seed: int, chosen: argparse.Namespace) -> Synthesizer:
    place = chosen.folder / f"{data}-{chosen.preset}-{seed}.safetensors"
    if not place.exists():
        settings = replace(PRESETS[chosen.preset], distill=PRESETS["paper"].distill)  # students are distilled later
        if chosen.fit_steps:
            settings = settings.changed(fit={"steps": chosen.fit_steps})
        Synthesizer(settings, seed=seed).fit(real, progress=False).save(place)
    return Synthesizer.load(place)


def _line(
    data: str, name: str, model: Synthesizer, how: SamplerConfig | int, real: Transitions, chosen: argparse.Namespace
) -> dict[str, Any]:
    """Return the figures of rows from a sampler, or from a student if `how` is a number of calls."""
    place = chosen.folder / f"{data}-{chosen.preset}-{re.sub('[^a-z0-9]+', '-', name.lower())}.json"
    if place.exists():
        found: dict[str, Any] = json.loads(place.read_text())
        return found
    made = model.record.seconds
    if isinstance(how, int):
        began = time.perf_counter()
        how = model.distill(how, progress=False).sampler_for()
        made = time.perf_counter() - began
    model.sample(1, sampler=how, progress=False)  # prepares the sampler, so that this is not timed
    began = time.perf_counter()
    rows = model.sample(max(chosen.samples, chosen.timed), seed=1, sampler=how, progress=False)
    seconds = (time.perf_counter() - began) * 1e6 / len(rows)
    rows = rows[: chosen.samples]
    line = {"data": data, "name": name, "calls": how.network_calls, "seconds": seconds, "made_in": f"{made:.0f} s"}
    line |= judge(real, rows)
    place.write_text(json.dumps(line) + "\n")
    print("  ".join([data, name, *cells(line), f"{seconds:.2f} s"]), flush=True)
    return line


if __name__ == "__main__":
    main()

"""Measure the effect of each part of the preset `best`, and of alternatives. Prints one table.

    python benchmarks/ablation.py walker2d-mixed.npz hopper-mixed.npz --folder ablation --out results/ablation.md

Each line has the figures of `benchmarks/fidelity.py` for 100K rows that are sampled from one fit on DATA. Lines that
are already in FOLDER are not measured again, so you can stop and resume the work. You can also divide it: `--share 0/3`
does every third fit. A fit takes about a minute on a GPU.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from judging import HEADER, cells, judge
from machine import command_line, keep, origin, print_table

from synther import Synthesizer, read
from synther.presets import PRESETS

Changes = Mapping[str, Mapping[str, Any]]

VARIANTS: dict[str, tuple[str, Changes, dict[str, Changes]]] = {
    # name of a fit: preset, changed options, and further samplers for the same fit
    "paper": ("paper", {}, {"paper, 32 calls": {"sampler": {"kind": "unipc", "steps": 32}}}),
    "best": (
        "best",
        {},
        {
            "moments not matched": {"sampler": {"matched": False}},
            "no restarts, 32 steps": {"sampler": {"steps": 32, "restarts": 0}},
            "neither": {"sampler": {"steps": 32, "restarts": 0, "matched": False}},
            "3 restarts of 4 steps": {"sampler": {"restarts": 3, "restart_steps": 4}},
            "restarts from 0.05": {"sampler": {"restart_from": 0.05}},
            "restarts from 0.2": {"sampler": {"restart_from": 0.2}},
            "the paper's sampler": {"sampler": {"kind": "sde", "steps": 128, "restarts": 0, "matched": False}},
        },
    ),
    "no residuals": ("best", {"data": {"residuals": "none"}}, {}),
    "bent residuals": ("best", {"data": {"residuals": "bent"}}, {}),
    "terminals as generated": ("best", {"data": {"terminals": "generated"}}, {}),
    "no flags for spikes": ("best", {"data": {"spikes": False}}, {}),
    "standard scaling": ("best", {"data": {"scaling": "standard"}}, {}),
    "quantile scaling": ("best", {"data": {"scaling": "quantile"}}, {}),
    "actions by quantile": ("best", {"data": {"scaling": {"default": "blend", "action": "quantile"}}}, {}),
    "batch 256": ("best", {"fit": {"batch_size": 256}}, {}),
    "batch 2048": ("best", {"fit": {"batch_size": 2048}}, {}),
    "lower noise levels": ("best", {"noise": {"p_mean": -2.0}}, {}),
    "the paper's noise levels": ("best", {"noise": {"p_mean": -1.2}}, {}),
    "wider noise levels": ("best", {"noise": {"p_std": 1.5}}, {}),
    "learning rate 1e-3": ("best", {"fit": {"learning_rate": 1e-3}}, {}),
    "10 blocks": ("best", {"network": {"depth": 10}}, {}),
}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--folder", type=Path, required=True, help="folder for the lines")
    parser.add_argument("--only", nargs="*", choices=VARIANTS, default=list(VARIANTS), help="names of fits")
    parser.add_argument("--share", default="0/1", help="I/N: do every Nth fit, beginning with number I")
    parser.add_argument("--steps", type=int, help="fit steps instead of the preset's")
    parser.add_argument("--width", type=int, help="width of the network instead of the preset's, small for a CPU")
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--judges", type=int, default=4, help="processes that measure rows while the next fit runs")
    chosen = parser.parse_args()
    head = origin()
    first, every = map(int, chosen.share.split("/"))
    work = [(data, name) for name in chosen.only for data in chosen.data][first::every]
    chosen.folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(chosen.judges, multiprocessing.get_context("spawn")) as judges:
        waiting: list[Future[None]] = []
        for data, name in work:
            waiting += _measure(data, name, chosen, head, judges)
            for done in [entry for entry in waiting if entry.done()]:
                done.result()
        for entry in waiting:
            entry.result()
    text = _table(chosen.folder)
    keep(chosen.out, head, text)


def _measure(
    data: Path, name: str, chosen: argparse.Namespace, head: list[str], judges: ProcessPoolExecutor
) -> list[Future[None]]:
    preset, changes, samplers = VARIANTS[name]
    settings = PRESETS[preset].changed(**changes)
    if chosen.steps:
        settings = settings.changed(fit={"steps": chosen.steps})
    if chosen.width:
        settings = settings.changed(network={"width": chosen.width})
    drawn = {name: settings.sampler} | {label: settings.changed(**change).sampler for label, change in samplers.items()}
    missing = {label: sampler for label, sampler in drawn.items() if not _place(chosen.folder, data, label).exists()}
    if not missing:
        return []
    model = Synthesizer(settings, seed=chosen.seed).fit(read(data), progress=False)
    waiting = []
    for label, sampler in missing.items():
        rows = model.sample(chosen.samples, seed=chosen.seed, sampler=sampler, progress=False)
        line = {
            "data": data.name,
            "name": label,
            "calls": sampler.network_calls,
            "fit_seconds": model.record.seconds,
            "held_out_loss": model.measured["held_out"],
            "settings": settings.to_json() | {"sampler": asdict(sampler)},
            "origin": head,
        }
        waiting.append(judges.submit(_judge, data, rows, line, _place(chosen.folder, data, label)))
    print(f"{data.name}: {name}: fit {model.record.seconds:.0f} s", flush=True)
    return waiting


def _judge(data: Path, rows: Any, line: dict[str, Any], place: Path) -> None:
    figures = judge(read(data), rows, processes=1)
    beside = place.with_suffix(".partial")
    beside.write_text(json.dumps(line | figures) + "\n")
    beside.rename(place)
    print("  ".join([data.name, line["name"], *cells(figures)]), flush=True)


def _place(folder: Path, data: Path, label: str) -> Path:
    return folder / f"{data.stem}-{re.sub('[^a-z0-9]+', '-', label.lower())}.json"


def _table(folder: Path) -> str:
    lines = [json.loads(place.read_text()) for place in sorted(folder.glob("*.json"))]
    order = [label for name, (_, _, samplers) in VARIANTS.items() for label in (name, *samplers)]
    lines.sort(key=lambda line: (line["data"], order.index(line["name"]) if line["name"] in order else len(order)))
    header = ["data", "variant", "calls", "fit", *HEADER]
    table = [
        [line["data"], line["name"], str(line["calls"]), f"{line['fit_seconds']:.0f} s", *cells(line)] for line in lines
    ]
    return print_table(header, table)


if __name__ == "__main__":
    main()

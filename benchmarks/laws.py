"""Whether generated rows obey the laws of worlds that are known in closed form: one command, one table.

    python benchmarks/laws.py --presets best paper fast laptop --folder laws --out results/laws.md

Fits each preset on rows of each world of `law_worlds.py` and `law_tables.py`, draws new rows, and measures what
matters: the spread of outcomes given (s, a), the share of special values, rows that the world cannot produce, tail
quantiles. A figure misses (*) if it differs from the training rows' own figure by more than the tolerance, or exceeds a
fixed limit. A result in FOLDER is not measured again, so the work can be stopped and resumed, and divided:
`--share 0/3` does every third fit. Presets that differ only in the sampler, or in having a student, share a fit. With
several `--seeds`, each with rows and a fit of its own, figures are means, with the lowest and highest in brackets. Use
a new folder after a change of the generator.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import law_worlds as known
import numpy as np
from law_tables import FROZENLAKE, TAXI, tabular
from law_worlds import Law, Measure
from machine import command_line, keep, origin, print_table

from synther import Synthesizer, Transitions
from synther.durable import replacing
from synther.presets import PRESETS, Settings

RELATIVE = (0.05, 0.10)
"""Tolerance of a figure relative to the training rows' own: for most presets, and for `laptop`."""
STANDARD_ERRORS = 2
"""A tolerance is never tighter than this many standard errors of the difference."""
BLOCKS = 50
"""Parts of the training rows whose figures give the standard error."""

WORLDS: Mapping[str, tuple[Callable[[int, int], Transitions], tuple[Law, ...]]] = {
    "noise": (known.noise, known.NOISE),
    "special": (known.special, known.SPECIAL),
    "lattice": (known.lattice, known.LATTICE),
    "rare": (known.rare, known.RARE),
    "falls": (known.falls, known.FALLS),
    "slippery": (known.slippery, known.SLIPPERY),
    "frozenlake": (partial(tabular, "frozenlake"), FROZENLAKE),
    "taxi": (partial(tabular, "taxi"), TAXI),
}

Line = dict[str, Any]
"""A result: one preset in one world."""


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--presets", nargs="+", choices=PRESETS, default=list(PRESETS))
    parser.add_argument("--only", nargs="+", choices=WORLDS, default=list(WORLDS), help="names of worlds")
    parser.add_argument("--rows", type=int, default=200_000, help="rows of each world to fit")
    parser.add_argument("--samples", type=int, default=1_000_000, help="rows to draw from each model")
    parser.add_argument("--folder", type=Path, required=True, help="where each result is kept")
    parser.add_argument("--share", default="0/1", help="do every Nth fit, beginning with number I: I/N")
    parser.add_argument("--fit-steps", type=int, help="fit steps, if not the preset's: few make a smoke test")
    parser.add_argument("--keep", type=float, default=1.0, help="share of rows that an ensemble's filter keeps")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    chosen = parser.parse_args()
    head = origin()
    first, every = map(int, chosen.share.split("/"))
    work = [(seed, world, group) for seed in chosen.seeds for group in fits(chosen.presets) for world in chosen.only]
    for seed, world, group in work[first::every]:
        _measure_fit(seed, world, group, chosen, head)
    text = table(_results(chosen.folder, chosen.presets, chosen.only, chosen.seeds), chosen.presets)
    keep(chosen.out, head, text)


def fits(presets: Sequence[str]) -> list[list[str]]:
    """The presets in groups that need only one fit, because nothing but their sampler or their student differs."""
    groups: dict[str, list[str]] = {}
    for name in presets:
        fitted = {part: value for part, value in PRESETS[name].to_json().items() if part not in ("sampler", "distill")}
        groups.setdefault(json.dumps(fitted, sort_keys=True), []).append(name)
    return list(groups.values())


def _measure_fit(seed: int, world: str, group: Sequence[str], chosen: argparse.Namespace, head: list[str]) -> None:
    missing = [name for name in group if not _place(chosen.folder, world, name, seed).exists()]
    if not missing:
        return
    make, laws = WORLDS[world]
    real = make(chosen.rows, seed)
    settings: Settings = PRESETS[max(missing, key=_calls)]
    if chosen.fit_steps:
        settings = settings.changed(fit={"steps": chosen.fit_steps})
    model = Synthesizer(settings, seed=seed).fit(real, ensemble=chosen.keep < 1, progress=False)
    known = figures(laws, real)
    errors = {law_key(law): standard_error(law.measure, real) for law in laws}
    print(f"{world}: {', '.join(missing)}, seed {seed}: fit {model.record.seconds:.0f} s", flush=True)
    for name in missing:
        sampler = None if _calls(name) else PRESETS[name].sampler
        began = time.perf_counter()
        how = {"seed": seed + 1, "sampler": sampler, "keep": chosen.keep}
        drawn = model.sample(chosen.samples, **how, progress=False)
        line = {
            "world": world,
            "preset": name,
            "rows": len(real),
            "samples": len(drawn),
            "keep": chosen.keep,
            "fit_seconds": model.record.seconds,
            "sample_seconds": time.perf_counter() - began,
            "real": known,
            "errors": errors,
            "figures": figures(laws, drawn),
            "settings": replace(settings, sampler=PRESETS[name].sampler, distill=PRESETS[name].distill).to_json(),
            "origin": head,
        }
        with replacing(_place(chosen.folder, world, name, seed)) as beside:
            beside.write_text(json.dumps(line) + "\n")
        misses = sum(missed(law, line) for law in laws)
        print(f"  {name}: drawn in {line['sample_seconds']:.0f} s, misses {misses} of {len(laws)}", flush=True)


def _calls(name: str) -> int:
    """Of the preset's student, 0 if it has none."""
    return PRESETS[name].distill.calls


def law_key(law: Law) -> str:
    """The name of a law's figure in a result."""
    return f"{law.name}: {law.figure}"


def figures(laws: Sequence[Law], rows: Transitions) -> dict[str, float]:
    """The figure of each law on `rows`; NaN where the rows have nothing to measure it on."""
    return {law_key(law): law.measure(rows) for law in laws}


def standard_error(measure: Measure, rows: Transitions) -> float:
    """Of the figure on all `rows`, from its scatter over consecutive blocks (so episodes may be correlated)."""
    parts = [measure(part) for part in rows.chunks(max(1, len(rows) // BLOCKS))][:BLOCKS]
    found = np.array([value for value in parts if math.isfinite(value)])
    return float(found.std(ddof=1) / math.sqrt(len(found))) if len(found) > 1 else math.inf


def tolerance(law: Law, line: Mapping[str, Any]) -> float:
    """How far the drawn rows' figure may be from the training rows', or how large it may be if the law has limits."""
    lenient = line["preset"] == "laptop"
    if law.limits is not None:
        return law.limits[lenient]
    key = law_key(law)
    error = line["errors"][key] * math.sqrt(1 + line["rows"] / line["samples"])
    return float(max(RELATIVE[lenient] * abs(line["real"][key]), STANDARD_ERRORS * error))


def missed(law: Law, line: Mapping[str, Any]) -> bool:
    """Whether the drawn rows break the law. A figure that could not be measured counts as a miss."""
    value, real = line["figures"][law_key(law)], line["real"][law_key(law)]
    distance = value if law.limits is not None else abs(value - real)
    return not distance <= tolerance(law, line)


def _place(folder: Path, world: str, preset: str, seed: int) -> Path:
    return folder / f"{world}-{re.sub('[^a-z0-9]+', '-', preset.lower())}{f'-{seed}' if seed else ''}.json"


def _results(
    folder: Path, presets: Sequence[str], worlds: Sequence[str], seeds: Sequence[int]
) -> dict[tuple[str, str], Line]:
    """The mean of the seeds that were measured, by world and preset."""
    found: dict[tuple[str, str], Line] = {}
    for world, name in product(worlds, presets):
        places = [_place(folder, world, name, seed) for seed in seeds]
        lines = [json.loads(place.read_text()) for place in places if place.exists()]
        if lines:
            found[world, name] = mean(lines)
    return found


def mean(lines: Sequence[Line]) -> Line:
    """One line for several seeds, with the lowest and highest figure of each law as `ranges`."""

    def over(part: str, reduce: Callable[[list[float]], Any]) -> dict[str, Any]:
        return {key: reduce([line[part][key] for line in lines]) for key in lines[0][part]}

    errors = over("errors", lambda errors: float(np.mean(errors)) / math.sqrt(len(errors)))
    figures, real = over("figures", np.mean), over("real", np.mean)
    ranges = over("figures", lambda each: (min(each), max(each))) if len(lines) > 1 else {}
    seconds = {key: sum(line[key] for line in lines) for key in ("fit_seconds", "sample_seconds")}
    return {**lines[0], "figures": figures, "real": real, "errors": errors, "ranges": ranges, **seconds}


def table(results: Mapping[tuple[str, str], Line], presets: Sequence[str]) -> str:
    """One row a law, one column a preset; the last rows count the misses and the seconds."""
    rows: list[list[str]] = []
    misses, measured, seconds = (dict.fromkeys(presets, 0.0) for _ in range(3))
    for world, (_, laws) in WORLDS.items():
        lines = {name: results[world, name] for name in presets if (world, name) in results}
        for name, line in lines.items():
            seconds[name] += line["fit_seconds"] + line["sample_seconds"]
        for law in laws if lines else ():
            for name, line in lines.items():
                misses[name] += missed(law, line)
                measured[name] += 1
            rows.append(_row(world, law, lines, presets))
    rows.append(["misses", "", "", "", "", *(f"{misses[name]:.0f} of {measured[name]:.0f}" for name in presets)])
    rows.append(["seconds", "", "", "", "", *(f"{seconds[name]:.0f}" for name in presets)])
    return print_table(["world", "law", "figure", "real", "tolerance", *presets], rows)


def _row(world: str, law: Law, lines: Mapping[str, Line], presets: Sequence[str]) -> list[str]:
    key = law_key(law)
    cells = [_cell(law, lines[name]) if name in lines else "-" for name in presets]
    sign = "at most " if law.limits is not None else "± "
    allowed = {name: f"{sign}{tolerance(law, line):.2g}" for name, line in lines.items()}
    strict = next((text for name, text in allowed.items() if name != "laptop"), None)
    told = [text for text in (strict, f"laptop {allowed['laptop']}" if "laptop" in allowed else None) if text]
    return [world, law.name, law.figure, f"{next(iter(lines.values()))['real'][key]:.4g}", ", ".join(told), *cells]


def _cell(law: Law, line: Line) -> str:
    key = law_key(law)
    spread = "({:.3g} to {:.3g}) ".format(*line["ranges"][key]) if line["ranges"] else ""
    return f"{line['figures'][key]:.4g} {spread}{'*' if missed(law, line) else ''}".rstrip()


if __name__ == "__main__":
    main()

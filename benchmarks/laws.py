"""Measure whether generated rows obey the laws of worlds with a known distribution. Prints one table.

    python benchmarks/laws.py --presets best paper fast laptop --folder laws --out results/laws.md

Fits each preset on rows of each world of `law_worlds.py` and `law_tables.py`, samples new rows, and measures for
example the std of outcomes given (s, a), the share of special values, the share of impossible rows, and tail quantiles.
A figure is a miss (*) if it differs from the figure of the training rows by more than the tolerance, or if it exceeds a
fixed limit. Results in FOLDER are not measured again, so you can stop and resume the work. You can also divide it:
`--share 0/3` does every third fit. Presets that differ only in the sampler or the student share a fit. Each of several
`--seeds` has its own rows and its own fit. The table then shows means, with the lowest and highest figure in brackets.
Use a new folder after you change the generator.
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
"""Tolerance of a figure, relative to the figure of the training rows: (most presets, preset `laptop`)."""
STANDARD_ERRORS = 2
"""A tolerance is never smaller than this many standard errors of the difference."""
BLOCKS = 50
"""Number of blocks of training rows. The standard error of a figure comes from its spread over the blocks."""

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
"""The result of one preset in one world, as plain data."""


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--presets", nargs="+", choices=PRESETS, default=list(PRESETS))
    parser.add_argument("--only", nargs="+", choices=WORLDS, default=list(WORLDS), help="names of worlds")
    parser.add_argument("--rows", type=int, default=200_000, help="training rows of each world")
    parser.add_argument("--samples", type=int, default=1_000_000, help="rows to sample from each model")
    parser.add_argument("--folder", type=Path, required=True, help="folder for the results")
    parser.add_argument("--share", default="0/1", help="I/N: do every Nth fit, beginning with number I")
    parser.add_argument("--fit-steps", type=int, help="fit steps instead of the preset's, for example for a short test")
    parser.add_argument("--keep", type=float, default=1.0, help="share of rows that the ensemble's filter keeps")
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
    """Group the presets that differ only in sampler or student: one fit is enough for a group."""
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
    """Return the number of network calls of the preset's student, or 0 if it has no student."""
    return PRESETS[name].distill.calls


def law_key(law: Law) -> str:
    """Return the key of a law's figure in a result."""
    return f"{law.name}: {law.figure}"


def figures(laws: Sequence[Law], rows: Transitions) -> dict[str, float]:
    """Return the figure of each law on `rows`. It is NaN if no row can be used to measure it."""
    return {law_key(law): law.measure(rows) for law in laws}


def standard_error(measure: Measure, rows: Transitions) -> float:
    """Return the standard error of a figure on `rows`, estimated from its std over consecutive blocks of rows.

    Rows within a block may be correlated, as rows of an episode are.
    """
    parts = [measure(part) for part in rows.chunks(max(1, len(rows) // BLOCKS))][:BLOCKS]
    found = np.array([value for value in parts if math.isfinite(value)])
    return float(found.std(ddof=1) / math.sqrt(len(found))) if len(found) > 1 else math.inf


def tolerance(law: Law, line: Mapping[str, Any]) -> float:
    """Return the largest allowed distance to the training rows' figure, or the largest figure if the law has limits."""
    lenient = line["preset"] == "laptop"
    if law.limits is not None:
        return law.limits[lenient]
    key = law_key(law)
    error = line["errors"][key] * math.sqrt(1 + line["rows"] / line["samples"])
    return float(max(RELATIVE[lenient] * abs(line["real"][key]), STANDARD_ERRORS * error))


def missed(law: Law, line: Mapping[str, Any]) -> bool:
    """Return whether the generated rows break the law. A figure that could not be measured counts as a miss."""
    value, real = line["figures"][law_key(law)], line["real"][law_key(law)]
    distance = value if law.limits is not None else abs(value - real)
    return not distance <= tolerance(law, line)


def _place(folder: Path, world: str, preset: str, seed: int) -> Path:
    return folder / f"{world}-{re.sub('[^a-z0-9]+', '-', preset.lower())}{f'-{seed}' if seed else ''}.json"


def _results(
    folder: Path, presets: Sequence[str], worlds: Sequence[str], seeds: Sequence[int]
) -> dict[tuple[str, str], Line]:
    """Return the mean over all measured seeds, by world and preset."""
    found: dict[tuple[str, str], Line] = {}
    for world, name in product(worlds, presets):
        places = [_place(folder, world, name, seed) for seed in seeds]
        lines = [json.loads(place.read_text()) for place in places if place.exists()]
        if lines:
            found[world, name] = mean(lines)
    return found


def mean(lines: Sequence[Line]) -> Line:
    """Combine the lines of several seeds. The lowest and highest figure of each law are the new entry `ranges`."""

    def over(part: str, reduce: Callable[[list[float]], Any]) -> dict[str, Any]:
        return {key: reduce([line[part][key] for line in lines]) for key in lines[0][part]}

    errors = over("errors", lambda errors: float(np.mean(errors)) / math.sqrt(len(errors)))
    figures, real = over("figures", np.mean), over("real", np.mean)
    ranges = over("figures", lambda each: (min(each), max(each))) if len(lines) > 1 else {}
    seconds = {key: sum(line[key] for line in lines) for key in ("fit_seconds", "sample_seconds")}
    return {**lines[0], "figures": figures, "real": real, "errors": errors, "ranges": ranges, **seconds}


def table(results: Mapping[tuple[str, str], Line], presets: Sequence[str]) -> str:
    """Return a table with one row per law and one column per preset. The last rows count misses and seconds."""
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
    tolerances = [text for text in (strict, f"laptop {allowed['laptop']}" if "laptop" in allowed else None) if text]
    real = f"{next(iter(lines.values()))['real'][key]:.4g}"
    return [world, law.name, law.figure, real, ", ".join(tolerances), *cells]


def _cell(law: Law, line: Line) -> str:
    key = law_key(law)
    spread = "({:.3g} to {:.3g}) ".format(*line["ranges"][key]) if line["ranges"] else ""
    return f"{line['figures'][key]:.4g} {spread}{'*' if missed(law, line) else ''}".rstrip()


if __name__ == "__main__":
    main()

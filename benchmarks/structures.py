"""Measure whether synthetic rows keep the relations between columns, in worlds that the presets were not tuned on.

    python benchmarks/structures.py --preset laptop --out results/structures.md

Fits a preset on 20,000 rows of each world of `moving_worlds.py` and `discrete_worlds.py` and samples the same number of
rows. The table compares figures of real and synthetic rows, for example the share of rows that obey a rule.
"""

from __future__ import annotations

import time
from typing import Any

import discrete_worlds
import moving_worlds
from machine import command_line, keep, origin, print_table

from synther import Synthesizer
from synther.presets import PRESETS

WORLDS = {**moving_worlds.WORLDS, **discrete_worlds.WORLDS}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--preset", choices=PRESETS, default="laptop")
    parser.add_argument("--only", nargs="+", choices=WORLDS, default=list(WORLDS))
    parser.add_argument("--fit-steps", type=int, help="fit steps instead of the preset's, for example for a short test")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    head = origin()
    lines = []
    for name in chosen.only:
        make, measure = WORLDS[name]
        real, began = make(chosen.seed), time.perf_counter()
        more: dict[str, Any] = {"fit": {"steps": chosen.fit_steps}} if chosen.fit_steps else {}
        model = Synthesizer(chosen.preset, seed=chosen.seed, **more).fit(real, progress=False)
        drawn = model.sample(len(real), seed=chosen.seed + 1, progress=False)
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
        known, found = measure(real), measure(drawn)
        lines += [[name, figure, f"{known[figure]:.4g}", f"{found[figure]:.4g}"] for figure in known]
    keep(chosen.out, head, print_table(["world", "figure", "real rows", chosen.preset], lines))


if __name__ == "__main__":
    main()

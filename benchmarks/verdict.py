"""Compute the verdict on rows of known quality. Prints one table.

    python benchmarks/verdict.py hopper-sac walker2d-mixed.npz --samples-in verdict-samples --out results/verdict.md

Of each data set, a fifth of the rows (at most 20,000) is held out. Generators see the other rows. The table assesses
other real rows, copies, the paper's augmentations, noise with a std of 0.01, rows with shuffled columns, and samples of
the preset `laptop` after fits of different lengths. The number in brackets after a score is (1 - score), divided by
(1 - score) of networks that learned from real rows. After another figure it is the figure of real rows. The thresholds
in `synther/assess/verdict.py` were first chosen on this table. On two cores, a fit takes a minute or two, and an
assessment half a minute. The samples are kept in `--samples-in`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from machine import command_line, keep, origin, print_table

from synther import Synthesizer, Transitions, read, write
from synther.assess.assessment import Assessment
from synther.assess.judge import assess
from synther.baselines.augmentation import AUGMENTATIONS, Augmentation
from synther.envs.simulator import simulate
from synther.formats import shipped

HEADER = [
    "data",
    "rows",
    "outcomes",
    "mixed",
    "policy",
    "mixed",
    "dynamics error",
    "AUC",
    "marginal",
    "coverage",
    "memorised",
    "spread",
    "correlation",
    "verdict",
    "decided by",
]
SAMPLES = 30_000

Candidate = tuple[str, Transitions, Callable[[], Transitions]]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("data", nargs="+", help="files, or the names of shipped data")
    parser.add_argument("--steps", type=int, nargs="*", default=[300, 1_000, 3_500], help="steps of the laptop fits")
    parser.add_argument("--samples-in", type=Path, default=Path("verdict-samples"), help="folder for the samples")
    parser.add_argument("--simulator", action="store_true", help="compare with the simulator instead of networks")
    parser.add_argument("--only", nargs="*", help="rows to assess, by the beginning of their names")
    chosen = parser.parse_args()
    head = origin()
    table = []
    for data in chosen.data:
        real = read(shipped.path(data) if data in shipped.names() else data)
        simulator = partial(simulate, str(real.env_id)) if chosen.simulator else None
        order = np.random.default_rng(0).permutation(len(real))
        count = min(20_000, len(real) // 5)
        held_out, seen = real[order[:count]], real[np.sort(order[count:])]
        for name, reference, rows in _candidates(Path(data).stem, seen, chosen.steps, chosen.samples_in):
            if chosen.only is None or any(name.startswith(wanted) for wanted in chosen.only):
                found = assess(reference, rows(), held_out=held_out, simulator=simulator)
                table.append([Path(data).stem, name, *_figures(found)])
                print("  ".join(table[-1]), flush=True)
    text = print_table(HEADER, table)
    keep(chosen.out, head, text)


def _candidates(data: str, seen: Transitions, steps: list[int], folder: Path) -> Iterator[Candidate]:
    """Yield (name, real rows to compare with, function that returns the rows to assess)."""
    draw = np.random.default_rng(1)
    order = draw.permutation(len(seen))
    third = min(SAMPLES, len(seen) // 3)
    drawn = seen[draw.integers(len(seen), size=SAMPLES)]
    yield "other real rows", seen[order[third:]], lambda: seen[order[:third]]
    yield "copies", seen, lambda: drawn
    for kind in AUGMENTATIONS:
        yield f"{kind} noise", seen, partial(_augmented, kind, seen)
    yield "additive noise 0.01", seen, lambda: _disturbed(drawn, 0.01, draw)
    yield "shuffled columns", seen, lambda: _shuffled(drawn, draw)
    for count in steps:
        yield f"laptop, {count:,} steps", seen, partial(_fitted, data, seen, count, folder)


def _augmented(kind: str, seen: Transitions) -> Transitions:
    return Augmentation(kind).fit(seen).sample(SAMPLES, seed=0)


def _disturbed(rows: Transitions, deviation: float, draw: np.random.Generator) -> Transitions:
    here, there = (
        (part + draw.normal(0, deviation, part.shape)).astype(part.dtype)
        for part in (rows.observation, rows.next_observation)
    )
    return replace(rows, observation=here, next_observation=there)


def _shuffled(rows: Transitions, draw: np.random.Generator) -> Transitions:
    """Shuffle each column on its own, so that the columns are independent of each other."""
    fields: dict[str, Any] = {name: draw.permuted(array, axis=0) for name, array in rows.arrays().items()}
    return replace(rows, **fields)


def _fitted(data: str, seen: Transitions, steps: int, folder: Path) -> Transitions:
    kept = folder / f"{data}-{steps}.npz"
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True)
        model = Synthesizer("laptop", seed=0, fit={"steps": steps}).fit(seen, progress=False)
        write(model.sample(SAMPLES, seed=0, progress=False), kept)
    return read(kept)


def _figures(found: Assessment) -> list[str]:
    def loss(name: str) -> str:
        measure = found.measure(name)
        assert measure.value is not None
        assert measure.real is not None
        return f"{measure.value:.3f} ({(1 - measure.value) / (1 - measure.real):.2f})"

    def pair(name: str, digits: str) -> str:
        measure = found.measure(name)
        if measure.value is None or measure.real is None:
            return "-"
        return f"{measure.value:{digits}} ({measure.real:{digits}})"

    scores = [loss(f"{task}_score{kind}") for task in ("outcome", "policy") for kind in ("", "_mixed")]
    others = [pair("dynamics_error", ".2g"), *(pair(name, ".3f") for name in ("auc", "marginal", "coverage"))]
    verdict = found.verdict
    deciding = [reason.measure for reason in verdict.reasons if reason.says != "use"]
    others += [pair("memorisation", ".2f"), pair("outcome_spread", ".2f"), pair("worst_correlation", ".3f")]
    return [*scores, *others, verdict.decision, ", ".join(dict.fromkeys(deciding)) or "-"]


if __name__ == "__main__":
    main()

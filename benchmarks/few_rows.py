"""Measure when a fit on few rows should end: held-out losses, and scores of agents. Prints one table.

    python benchmarks/few_rows.py walker2d-mixed.npz --shares 0.03 0.07 0.15
    python benchmarks/few_rows.py --device cpu --shares 0.1 --preset laptop --updates 0         # only the losses

A preset has a fixed number of fit steps, for any number of rows. A fit can end earlier: with patience, with
`fit.overfit`, or with fewer steps, over which the learning rate decreases to 0. Agents are trained on the rows of the
fit with all steps, of both ways of early stopping, and of the shorter fit with the lowest loss.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from machine import command_line, keep, origin, print_table

from synther import Synthesizer, Transitions, preset, read
from synther.compute import pick_device
from synther.experiments.offline import train_to
from synther.experiments.results import MeanStd
from synther.experiments.sources import Given, TrainingData
from synther.experiments.specs import OfflineRun

EPOCHS = (50, 100, 200, 400, 800)
UNTIL_THE_END, PRESETS_OWN = "all steps", "fit.overfit 0.1"


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("data", nargs="?", default="hopper-sac")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.03, 0.07, 0.15])
    parser.add_argument("--preset", default="best")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--samples", type=int, default=5_000_000)
    parser.add_argument("--updates", type=int, default=500_000, help="updates of TD3+BC with eight seeds; 0: no agents")
    chosen = parser.parse_args()
    head, rows = origin(pick_device(chosen.device)), read(chosen.data)
    table = []
    for share in chosen.shares:
        few = rows.subsample(share, 0)
        endings = _endings(few, chosen.preset)
        fits = {name: _fitted(few, chosen.preset, fit, chosen.device) for name, fit in endings.items()}
        short = min((name for name in fits if name.endswith("epochs")), key=lambda name: _loss(fits[name][0]))
        scored = (UNTIL_THE_END, PRESETS_OWN, "patience 5", short)
        models = {name: fits[name][0] for name in scored}
        scores = _scores(few, models, chosen.samples, chosen.updates, chosen.device) if chosen.updates else {}
        for name, (model, seconds) in fits.items():
            kept = f"{model.measured['step']:,.0f} of {model.record.steps:,}"
            figures = [f"{_loss(model):.4f}", f"{seconds:.1f} s", scores.get(name, "-")]
            table.append([f"{100 * share:g} %", f"{len(few):,}", name, kept, *figures])
    columns = ["share", "rows", "ending", "kept after", "held-out loss", "fit", "TD3+BC"]
    keep(chosen.out, head, print_table(columns, table))


def _endings(rows: Transitions, name: str) -> dict[str, Mapping[str, Any]]:
    """Return the options of the fit for each way to end it."""
    whole, never = preset(name).fit, {"overfit": None}
    endings: dict[str, Mapping[str, Any]] = {
        UNTIL_THE_END: never,
        PRESETS_OWN: {"overfit": 0.1},
        "patience 5": {**never, "patience": 5},
    }
    for epochs in EPOCHS:
        steps = max(1, round(epochs * len(rows) / whole.batch_for(len(rows))))
        if steps < whole.steps:
            endings[f"{epochs} epochs"] = {**never, "steps": steps}
    return endings


def _fitted(rows: Transitions, name: str, fit: Mapping[str, Any], device: str) -> tuple[Synthesizer, float]:
    began = time.monotonic()
    model = Synthesizer(preset(name, fit=fit), device=device).fit(rows)
    return model, time.monotonic() - began


def _loss(model: Synthesizer) -> float:
    return model.measured["held_out"]


def _scores(
    real: Transitions, models: Mapping[str, Synthesizer], samples: int, updates: int, device: str
) -> dict[str, str]:
    """Return the final scores of agents that learned only from a model's rows, or returns if the task has no score."""
    others = {name: Given(model.sample(samples, seed=0)) for name, model in models.items()}
    material = TrainingData(real, dict(others), {name: {name: 1.0} for name in others})
    plan = OfflineRun(updates=updates, evaluate_every=min(updates, 100_000), tensorboard="off", device=device)
    with tempfile.TemporaryDirectory() as folder:
        result = train_to(plan, material, Path(folder) / "run")
    final = {name: curve[-1] for name, curve in result.curves.items()}
    return {name: str(MeanStd.of(standing.scores or standing.returns)) for name, standing in final.items()}


if __name__ == "__main__":
    main()

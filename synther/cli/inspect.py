"""`synther inspect FILE`"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import tyro

from synther.cli import options
from synther.cli.answer import answer, table
from synther.data.transitions import ROW_FIELDS, Transitions

_FIGURES = ("mean", "deviation", "lowest", "highest")


@dataclass
class Inspect(options.Output):
    """Say what a data file or a model file holds."""

    file: tyro.conf.Positional[str] = tyro.MISSING
    """Data in any format that can be read, a Minari id, or a model (.safetensors)."""


def run(arguments: list[str]) -> None:
    chosen = options.parse("inspect", Inspect, arguments)
    if chosen.file.endswith(".safetensors"):
        _model(chosen)
    else:
        _data(chosen)


def _model(chosen: Inspect) -> None:
    from synther.synthesizer import Synthesizer

    model = Synthesizer.load(chosen.file, device="cpu")
    record, settings, layout = model.record, model.settings, model.layout
    parameters = sum(weight.numel() for weight in model.network.parameters())
    facts: dict[str, Any] = {
        "kind": "model",
        "env_id": layout.env_id,
        "columns": list(layout.names),
        "parameters": parameters,
        "settings": settings.to_json(),
        "record": asdict(record),
    }
    network, sampler = settings.network, settings.sampler
    last = model.measured
    figures = [
        ("environment", layout.env_id or "-"),
        ("columns", f"{layout.width} modelled of {len(layout.source_names)}"),
        ("network", f"{network.kind}, {network.depth} x {network.width}, {parameters:,} parameters"),
        ("fitted on", f"{record.rows:,} rows, {record.steps:,} steps in {record.seconds:.1f} s on {record.device}"),
        ("loss", f"{last['loss']:.4f}" + (f", held out {last['held_out']:.4f}" if "held_out" in last else "")),
        ("sampler", f"{sampler.kind}, {sampler.steps} steps"),
        ("scaling", str(settings.data.scaling)),
        ("thresholds", ", ".join(f"{layout.names[c]} > {t:.3f}" for c, t in layout.thresholds.items()) or "-"),
    ]
    answer(chosen.json, facts, figures, f"model {chosen.file}")


def _data(chosen: Inspect) -> None:
    rows = options.read_rows(chosen.file)
    columns = list(_columns(rows))
    if chosen.json:
        facts = {"kind": "data", "rows": len(rows), "env_id": rows.env_id, "terminal_rate": float(rows.terminal.mean())}
        answer(True, {**facts, "columns": columns}, [])
        return
    print(rows.summary())
    cells = [(c["name"], *(f"{c[key]:.4g}" for key in _FIGURES)) for c in columns]
    table(("column", *_FIGURES), cells)


def _columns(rows: Transitions) -> Any:
    for name in ROW_FIELDS:
        array = getattr(rows, name)
        for number, column in enumerate(array.reshape(len(rows), -1).T):
            values = column.astype(np.float64)
            largest = float(np.abs(values).max()) or 1.0
            unit = values / largest  # so that the square of a large number is no infinity
            figures = {
                "mean": unit.mean() * largest,
                "deviation": unit.std() * largest,
                "lowest": values.min(),
                "highest": values.max(),
            }
            label = name if array.ndim == 1 else f"{name}[{number}]"
            yield {"name": label, **{key: float(value) for key, value in figures.items()}}

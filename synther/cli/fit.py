"""`synther fit DATA --out MODEL.safetensors`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from synther.cli import options
from synther.cli.answer import answer
from synther.errors import ConfigError


@dataclass(frozen=True)
class Fit(options.Named, options.Fitting):
    """Fit a model on DATA and save it as one file. After an interruption, the same command resumes."""

    data: options.Data = tyro.MISSING
    out: Path = tyro.MISSING
    """Where the model goes: a .safetensors file."""


def run(arguments: list[str]) -> None:
    chosen = options.parse("fit", Fit, arguments)
    if chosen.out.suffix != ".safetensors":
        raise ConfigError(f"--out must end in .safetensors, got {chosen.out}")
    from synther.synthesizer import Synthesizer
    from synther.upsample import fit_to

    rows = chosen.read(chosen.data, chosen.fraction, chosen.seed)
    model = Synthesizer(chosen.settings(), device=chosen.device, precision=chosen.precision, seed=chosen.seed)
    model = fit_to(chosen.out, rows, model, not chosen.quiet)
    record, last = model.record, model.measured
    facts = {"model": str(chosen.out), "rows": record.rows, "steps": record.steps, "seconds": record.seconds, **last}
    figures = [
        ("rows", f"{record.rows:,}"),
        ("steps", f"{record.steps:,} in {record.seconds:.1f} s on {record.device}"),
        ("loss", f"{last['loss']:.4f}"),
        ("held-out loss", f"{last['held_out']:.4f}" if "held_out" in last else "-"),
        ("model", str(chosen.out)),
    ]
    answer(chosen.json, facts, figures)

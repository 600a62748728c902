"""`synther upsample DATA --samples 5M --out FOLDER`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from synther.cli import options
from synther.cli.answer import answer


@dataclass(frozen=True)
class Upsample(options.Named, options.Fitting):
    """Fit a model on DATA, write synthetic rows, and compare them with the real ones.

    OUT receives model.safetensors, synthetic.hdf5, comparison.json and comparison.png. After an interruption,
    the same command resumes.
    """

    data: options.Data = tyro.MISSING
    out: Path = tyro.MISSING
    """Folder for the results."""
    samples: int = 1_000_000
    """Synthetic rows to write. K and M suffixes are accepted."""
    format: Literal["hdf5", "npz", "parquet"] = "hdf5"
    """How the synthetic rows are written."""


def run(arguments: list[str]) -> None:
    chosen = options.parse("upsample", Upsample, arguments)
    from synther.synthesizer import Synthesizer
    from synther.upsample import upsample

    rows = chosen.read(chosen.data, chosen.fraction, chosen.seed)
    model = Synthesizer(chosen.settings(), device=chosen.device, precision=chosen.precision, seed=chosen.seed)
    suffix = f".{chosen.format}"
    done = upsample(rows, chosen.out, model, chosen.samples, suffix=suffix, progress=not chosen.quiet)
    files = {name: str(getattr(done, name)) for name in ("model", "data", "picture", "figures")}
    facts = {"real_rows": len(rows), "samples": chosen.samples, **done.comparison.to_json(), "files": files}
    looked_at = done.comparison.rows_synthetic
    compared = f"{looked_at:,}" if looked_at == chosen.samples else f"the first {looked_at:,} of {chosen.samples:,}"
    figures = [*done.comparison.table(), *files.items()]
    answer(chosen.json, facts, figures, f"{len(rows):,} real rows against {compared} synthetic ones")

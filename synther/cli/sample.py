"""`synther sample MODEL --samples N --out FILE`"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro

from synther.cli import options
from synther.cli.answer import answer
from synther.diffusion.config import SAMPLERS
from synther.durable import check_new


@dataclass(frozen=True)
class Sample(options.Machine):
    """Write synthetic rows of a saved model. After an interruption, the same command resumes."""

    model: tyro.conf.Positional[Path] = tyro.MISSING
    """A file written by `synther fit` or `synther upsample`."""
    out: Path = tyro.MISSING
    """Where the rows go: a new file, .hdf5 (D4RL's keys), .npz or .parquet."""
    samples: int = 1_000_000
    """Rows to write. K and M suffixes are accepted."""
    sampler: str | None = None
    """sde, heun, euler, unipc or a registered sampler. Default: the model's own."""
    steps: int | None = None
    """Sampler steps. Default: the model's own."""


def run(arguments: list[str]) -> None:
    chosen = options.parse("sample", Sample, arguments)
    check_new(chosen.out)
    if chosen.sampler is not None:
        SAMPLERS.check(chosen.sampler, "--sampler")
    from synther.synthesizer import Synthesizer

    model = Synthesizer.load(chosen.model, device=chosen.device, precision=chosen.precision)
    changes: dict[str, Any] = {"kind": chosen.sampler, "steps": chosen.steps}
    sampler = replace(model.settings.sampler, **{name: value for name, value in changes.items() if value is not None})
    model.sample_to(chosen.out, chosen.samples, seed=chosen.seed, sampler=sampler, progress=not chosen.quiet)
    size = chosen.out.stat().st_size
    facts = {"data": str(chosen.out), "samples": chosen.samples, "bytes": size}
    figures = [
        ("rows", f"{chosen.samples:,}"),
        ("sampler", f"{sampler.kind}, {sampler.steps} steps, {sampler.network_calls} network calls a row"),
        ("file", f"{chosen.out} ({size / 1e6:.1f} MB)"),
    ]
    answer(chosen.json, facts, figures)

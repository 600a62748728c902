"""`synther assess REAL SYNTHETIC --out FOLDER`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from synther.cli import options
from synther.cli.answer import answer, table


@dataclass
class Assess(options.Machine):
    """Say whether SYNTHETIC is good enough to train on, and show why.

    OUT receives report.html, one page to read in a browser, and assessment.json with every figure.
    """

    real: tyro.conf.Positional[str] = tyro.MISSING
    """The rows that the generator was fitted on: a file, a Minari id or folder, or hopper-sac."""
    synthetic: tyro.conf.Positional[str] = tyro.MISSING
    """Rows that it made; or a model (.safetensors), which then makes some."""
    out: Path = tyro.MISSING
    """Folder for the report."""
    held_out: str | None = None
    """Real rows that the generator has not seen. Without them a fifth of REAL stands in for those."""
    env_id: str | None = None
    """The environment, where REAL does not name it: its simulator then judges the dynamics."""
    simulator: bool = True
    """Ask the simulator, where there is one."""
    model: Path | None = None
    """The model that made SYNTHETIC: adds its way from noise to data, and what fewer network calls would do. Found by
    itself in a folder of `synther upsample`."""
    samples: int = 100_000
    """Rows to draw where SYNTHETIC is a model."""


def run(arguments: list[str]) -> None:
    chosen = options.parse("assess", Assess, arguments)
    from synther.compute import pick_device
    from synther.experiments.assess import Pair, assess_to
    from synther.synthesizer import Synthesizer

    real = options.read_rows(chosen.real)
    held_out = None if chosen.held_out is None else options.read_rows(chosen.held_out)
    model_file = chosen.model or _model_of(chosen.synthetic)
    model = None
    if model_file is not None:
        model = Synthesizer.load(model_file, device=chosen.device, precision=chosen.precision)
    if model is not None and chosen.synthetic == str(model_file):
        synthetic = model.sample(chosen.samples, seed=chosen.seed, progress=not chosen.quiet)
    else:
        synthetic = options.read_rows(chosen.synthetic)
    pair = Pair(real, synthetic, Path(chosen.real).name, Path(chosen.synthetic).name, held_out, model)
    done = assess_to(
        chosen.out,
        pair,
        env_id=chosen.env_id,
        simulator=chosen.simulator,
        seed=chosen.seed,
        device=str(pick_device(chosen.device)),
        progress=not chosen.quiet,
    )
    found, verdict = done.assessment, done.assessment.verdict
    if chosen.json:
        return answer(True, found.to_json(), [])
    figures = [
        (measure.label, _figure(measure.value), _figure(measure.real), measure.better)
        for measure in found.measures
        if measure.value is not None
    ]
    title = f"{found.rows_real:,} real rows against {found.rows_synthetic:,} synthetic ones"
    table(("", "synthetic", "as good as real", "better"), figures, title)
    worst = [(column.name, f"{column.similarity:.3f}") for column in found.worst_columns()[:3]]
    print(f"least alike: {', '.join(f'{name} {value}' for name, value in worst)}")
    for note in found.notes:
        print(f"note: {note}")
    print(f"\n{verdict.decision.upper()}. {verdict.sentence}")
    for reason in verdict.reasons:
        print(f"- {reason.text}")
    print(f"\n{done.report}\n{done.figures}")


def _model_of(synthetic: str) -> Path | None:
    """The model itself, or the one beside the rows of `synther upsample`."""
    path = Path(synthetic)
    if path.suffix == ".safetensors":
        return path
    beside = path.parent / "model.safetensors"
    return beside if path.is_file() and (path.parent / "run.json").is_file() and beside.is_file() else None


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"

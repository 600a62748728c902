"""`synther assess REAL SYNTHETIC --out FOLDER`"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from synther.cli import options
from synther.cli.answer import answer, say, table
from synther.errors import ConfigError

if TYPE_CHECKING:
    from synther.report import Assessed


@dataclass(frozen=True)
class Assess(options.Preparing, options.Asking, options.Machine):
    """Assess whether SYNTHETIC is good enough to train on, and show why.

    The verdict is "use", "mix" or "do not use". OUT receives report.html, a page for the browser, and assessment.json
    with all figures. With --condition (for example reward=top:0.1), synthetic rows are compared only with the real rows
    that meet the condition. If Parquet files hold more than 2M rows, 2M rows from random places are read.
    """

    real: tyro.conf.Positional[str] = tyro.MISSING
    """The real rows that the model was fitted on: a file, a Minari id or folder, or the name of a data set."""
    synthetic: tyro.conf.Positional[str] = tyro.MISSING
    """Synthetic rows, or a model (.safetensors), which then generates --samples rows."""
    out: Path = tyro.MISSING
    """Folder for the report."""
    held_out: str | None = None
    """Real rows that the model was not fitted on. Default: a fifth of REAL."""
    env_id: str | None = None
    """Id of the environment, if REAL does not name it. Its simulator computes the true next observations."""
    simulator: options.On = True
    """Do not compare with a simulator of the environment."""
    model: Path | None = None
    """The model that generated SYNTHETIC, which adds sections to the report.
    Default: the model in the same folder, if `synther upsample` wrote both."""
    samples: int = 100_000
    """Number of rows to generate if SYNTHETIC is a model."""


def assess(arguments: list[str]) -> None:
    chosen = options.parse("assess", Assess, arguments)
    from synther.compute import pick_device
    from synther.conditions import asked, region
    from synther.formats.stream import SAMPLE_ROWS
    from synther.report import Pair, Plan, assess_to
    from synther.synthesizer import Synthesizer

    device = str(pick_device(chosen.device))
    command = shlex.join(["synther", "assess", *arguments])
    plan = Plan(chosen.out, chosen.env_id, chosen.simulator, chosen.seed, device, command)
    source = Path(chosen.synthetic).expanduser()
    drawn = source.suffix == ".safetensors"
    if drawn and chosen.model is not None:
        advice = "remove --model, or pass rows that the model generated as SYNTHETIC"
        raise ConfigError(f"{source} is a model itself: {advice}")
    requests = asked(chosen.condition, ()) or {}
    read: Any = {"seed": chosen.seed, "most": SAMPLE_ROWS}
    real = region(chosen.read_real(chosen.real, **read), requests)
    held_out = None if chosen.held_out is None else region(chosen.read_real(chosen.held_out, **read), requests)
    beside = source.parent / "model.safetensors"  # exists in a folder of `synther upsample`
    is_there = source.is_file() and (source.parent / "run.json").is_file() and beside.is_file()
    file = source if drawn else chosen.model or (beside if is_there else None)
    model = None if file is None else Synthesizer.load(file, device=chosen.device, precision=chosen.precision)
    if model is not None and drawn:
        synthetic = model.sample(chosen.samples, condition=requests or None, **chosen.passed("guidance", "seed"))
    else:
        synthetic = chosen.read(chosen.synthetic, **read)
    pair = Pair(real, synthetic, _name(chosen.real), _name(chosen.synthetic), held_out, model)
    done = assess_to(plan, pair, progress=not chosen.quiet)
    (_print_json if chosen.json else _tell)(done)


def _name(source: str) -> str:
    """Return the name of a file without its folder. An id is returned unchanged."""
    path = Path(source).expanduser()
    return path.resolve().name if path.exists() else source


def _print_json(done: Assessed) -> None:
    """Print the most important figures as JSON. Histograms, correlations and points are only in assessment.json."""
    plain = done.assessment.to_json()
    kept = ("rows_real", "rows_synthetic", "rows_held_out", "env_id", "verdict", "notes")
    facts = {key: plain[key] for key in kept}
    facts["measures"] = {one["name"]: {"value": one["value"], "real": one["real"]} for one in plain["measures"]}
    facts["columns"] = {column.name: column.similarity for column in done.assessment.worst_columns()}
    facts["files"] = {"report": str(done.report), "figures": str(done.figures)}
    answer(True, facts, [])


def _tell(done: Assessed) -> None:
    found, verdict = done.assessment, done.assessment.verdict
    measured = [one for one in found.measures if one.value is not None]
    figures = [(one.label, _figure(one.value), _figure(one.real), one.better) for one in measured]
    title = f"{found.rows_real:,} real rows against {found.rows_synthetic:,} synthetic ones"
    table(("", "synthetic", "real rows", "better"), figures, title)
    worst = ", ".join(f"{column.name} {column.similarity:.3f}" for column in found.worst_columns()[:3])
    say(f"least similar columns: {worst}")
    for note in found.notes:
        say(f"note: {note}")
    say(f"\n{verdict.decision.upper()}. {verdict.sentence}")
    for reason in verdict.reasons:
        say(f"- {reason.says}: {reason.text}")
    print(f"\n{done.report}\n{done.figures}")


def _figure(value: float | None) -> str:
    """Format a figure with four decimals, or with two significant digits if it is below 0.01. Below 1e-9 it is 0."""
    if value is None:
        return "-"
    if abs(value) < 1e-9:
        return "0"
    return f"{value:,.4f}" if abs(value) >= 0.01 else f"{value:#.2g}"

"""The commands for models: `synther fit`, `distill`, `sample`, `upsample` (fit and sample in one) and `presets`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from synther.cli import options
from synther.cli.answer import answer, answer_outcomes
from synther.diffusion.config import SAMPLERS
from synther.errors import ConfigError
from synther.presets import ABOUT, PRESETS
from synther.progress import Progress, resolve

if TYPE_CHECKING:
    from synther.data.transitions import Transitions
    from synther.formats.stream import StoredRows
    from synther.synthesizer import Synthesizer


@dataclass(frozen=True)
class _Fit(options.Preparing, options.Fitting):
    """The options that `fit` and `upsample` share."""

    data: options.Data = tyro.MISSING
    out: Path = tyro.MISSING
    condition: tuple[str, ...] = ()
    """Conditions of the model: reward, return, or other relevance functions.
    `synther sample --condition` can then request rows by them."""
    ensemble: bool = False
    """Also fit an ensemble of small dynamics models, for --keep and --relabel of `synther sample`."""
    tensorboard: options.Flag = False
    """Write TensorBoard events of the fit to OUT/tensorboard. If OUT is a model file, its suffix is left out."""

    def rows_and_model(self) -> tuple[Transitions | StoredRows, Synthesizer]:
        """Return the real rows, and the model to fit on them. The model is not fitted yet."""
        from synther.synthesizer import Synthesizer
        from synther.upsample import stored_to_fit

        if self.tensorboard:
            from synther import trackers

            trackers.check("on", None)
        settings = self.settings()
        is_plain = self.n_step == 1 and not self.next_actions
        rows = stored_to_fit(self.data, settings.fit.window_rows, self.fraction, self.seed, is_plain)
        rows = self.part(self.read_real(self.data, self.seed)) if rows is None else rows
        return rows, Synthesizer(settings, device=self.device, precision=self.precision, seed=self.seed)

    def progress(self, shown: Progress | None = None) -> Progress:
        """Return the object that reports progress on stderr, and writes it to TensorBoard if the option is given."""
        from synther.trackers import Watched

        shown = shown or resolve(not self.quiet)
        folder = self.out.with_name(self.out.name.removesuffix(".safetensors"))
        return Watched(folder, shown) if self.tensorboard else shown


@dataclass(frozen=True)
class Fit(options.Engine, _Fit):
    """Fit a model on DATA and save it as one file. After an interruption, the same command resumes.

    With --models N, N models with different seeds are saved in the folder OUT. Several workers can fit them at the same
    time (--parallel, --engine ray).
    """

    out: Path = tyro.MISSING
    """File for the model (.safetensors). With --models: a folder."""
    models: int = 1
    """Number of models to fit. The seeds are SEED, SEED + 1 and so on, the files OUT/seed-N/model.safetensors."""


@dataclass(frozen=True)
class _OfSeed:
    """The fit of one of several models, as a task of `synther.engines`."""

    chosen: Fit

    @property
    def name(self) -> str:
        return f"seed-{self.chosen.seed}"

    def execute(self, folder: Path, progress: Progress) -> None:
        chosen = replace(self.chosen, out=folder / "model.safetensors")
        _fit(chosen, chosen.progress(progress))

    def done(self, folder: Path) -> bool:
        """Return False: only `execute` compares data and options with those of the file, and skips a finished fit."""
        return False


@dataclass(frozen=True)
class Upsample(options.Asking, _Fit):
    """Fit a model on DATA, write synthetic rows, and compare them with the real ones.

    OUT receives model.safetensors, synthetic.hdf5, comparison.json and comparison.png. After an interruption,
    the same command resumes.
    """

    out: options.Results = tyro.MISSING
    samples: int = 1_000_000
    """Synthetic rows to write. K and M suffixes are accepted."""
    format: Literal["hdf5", "npz", "parquet"] = "hdf5"
    """File format of the synthetic rows."""
    keep: float = 1.0
    """Share of the generated rows to keep.
    Below 1, an ensemble of dynamics models is fitted too, and the rows that contradict it most are discarded."""
    relabel: Literal["ensemble"] | None = None
    """ensemble: replace rewards and terminals with the predictions of the ensemble. Implies --ensemble."""


@dataclass(frozen=True)
class Distill(options.Machine):
    """Add a student to a saved model: a second network that generates a row in a few network calls.

    The student is saved in the file of the model. `synther sample` then uses the student, except with --condition.
    After an interruption, the same command resumes.
    """

    model: tyro.conf.Positional[Path] = tyro.MISSING
    """A file written by `synther fit` or `synther upsample`."""
    calls: int = 2
    """Network calls of the student for each row, from 1 to 16."""
    steps: int | None = None
    """Optimiser steps. Default: half as many as the fit had."""
    rows: int | None = None
    """Number of generated rows that the student learns from. Default: depends on the length of the fit, at most 1M."""


@dataclass(frozen=True)
class Sample(options.Guiding, options.Asking, options.Engine, options.Machine):
    """Generate synthetic rows with a saved model. After an interruption, the same command resumes.

    If OUT is a folder, several workers can write its files at the same time (--parallel, --engine ray).
    """

    model: tyro.conf.Positional[Path] = tyro.MISSING
    """A file written by `synther fit` or `synther upsample`."""
    out: Annotated[str, tyro.conf.arg(metavar="PATH")] = tyro.MISSING
    """A new file: .hdf5 (with D4RL's keys), .npz or .parquet. Or a folder for Parquet files, written FOLDER/."""
    samples: int = 1_000_000
    """Synthetic rows to write. K, M and B suffixes are accepted."""
    sampler: str | None = None
    """sde, heun, euler, unipc, a registered sampler, distilled (the student) or teacher (without the student).
    Default: the student if there is one, otherwise the model's own sampler."""
    steps: int | None = None
    """Sampler steps. Default: as saved in the model."""
    keep: float = 1.0
    """Share of the generated rows to keep.
    Below 1, the rows that contradict the model's ensemble of dynamics models most are discarded."""
    relabel: Literal["ensemble"] | None = None
    """ensemble: replace rewards and terminals with the predictions of the model's ensemble."""


@dataclass(frozen=True)
class Presets(options.Output):
    """List the presets and their settings: network, fit steps, sampler, and network calls for each row."""


def fit(arguments: list[str]) -> None:
    chosen = options.parse("fit", Fit, arguments)
    if chosen.models != 1:
        return _fit_several(chosen)
    options.refuse(chosen, chosen.run_by(), "is for fitting several models: add --models")
    if chosen.out.suffix != ".safetensors":
        raise ConfigError(f"--out must end in .safetensors, got {chosen.out}")
    model = _fit(chosen, chosen.progress())
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


def _fit(chosen: Fit, progress: Progress) -> Synthesizer:
    from synther.upsample import fit_to

    return fit_to(chosen.out, *chosen.rows_and_model(), progress, chosen.condition, chosen.ensemble)


def _fit_several(chosen: Fit) -> None:
    from synther.engines import run_all
    from synther.plain import check_least

    check_least(chosen, models=1)
    if chosen.out.suffix == ".safetensors":
        raise ConfigError(f"--out must be a folder for --models {chosen.models}, got {chosen.out}")
    folder, policies = options.from_anywhere(chosen.folder), options.from_anywhere(chosen.policies)
    chosen = replace(chosen, data=options.from_anywhere(chosen.data), folder=folder, policies=policies)
    tasks = [_OfSeed(replace(chosen, seed=chosen.seed + number)) for number in range(chosen.models)]
    answer_outcomes(chosen.json, run_all(tasks, chosen.out, **chosen.run_by(), progress=not chosen.quiet), "model")


def distill(arguments: list[str]) -> None:
    chosen = options.parse("distill", Distill, arguments)
    from synther.upsample import distill_to

    how = chosen.passed("steps", "rows", "seed", "device", "precision")
    model = distill_to(chosen.model, chosen.calls, **how)
    assert model.student is not None
    steps, seconds, loss = model.student.steps, model.student.seconds, model.student.history[-1]["loss"]
    facts = {"model": str(chosen.model), "calls": chosen.calls, "steps": steps, "seconds": seconds, "loss": loss}
    figures = [
        ("network calls", f"{chosen.calls} per row, {model.settings.sampler.network_calls} without the student"),
        ("steps", f"{steps:,} in {seconds:.1f} s"),
        ("loss", f"{loss:.4f}"),
        ("model", str(chosen.model)),
    ]
    answer(chosen.json, facts, figures)


def sample(arguments: list[str]) -> None:
    chosen = options.parse("sample", Sample, arguments)
    if chosen.sampler not in (None, "teacher"):
        SAMPLERS.check(chosen.sampler, "--sampler")
    chosen.check_policy()
    from synther.conditions import asked
    from synther.synthesizer import Synthesizer
    from synther.upsample import sample_once

    model = Synthesizer.load(chosen.model, device=chosen.device, precision=chosen.precision)
    kind: Any = {} if chosen.sampler in (None, "teacher") else {"kind": chosen.sampler}
    wanted = chosen.sampler if chosen.steps is None else {**kind, "steps": chosen.steps}
    requests = asked(chosen.condition, model.conditions.named)
    guide = None
    if chosen.policy is not None:
        from synther.experiments.sources import agent_guide

        guide = agent_guide(chosen.policy, model, chosen.policy_strength, chosen.policy_std)
        guide = guide if guide.strength else None  # a guide of strength 0 must change nothing, not even the sampler
    sampler = model.sampler_for(wanted, asked=requests is not None or guide is not None)
    how: Any = {"condition": requests, "guidance": chosen.guidance, "sampler": sampler, "seed": chosen.seed}
    how |= {"keep": chosen.keep, "relabel": chosen.relabel, **({} if guide is None else {"guide": guide})}
    files = sample_once(chosen.model, model, chosen.out, chosen.samples, how, chosen.run_by(), not chosen.quiet)
    out, size, several = Path(chosen.out).expanduser(), sum(file.stat().st_size for file in files), len(files) > 1
    facts = {"data": str(out), "samples": chosen.samples, "files": len(files), "bytes": size}
    figures = [
        ("rows", f"{chosen.samples:,}"),
        ("sampler", f"{sampler.kind}, {sampler.steps} steps, {sampler.network_calls} network calls per row"),
        ("file", f"{out} ({f'{len(files):,} files, ' * several}{size / 1e6:.1f} MB)"),
    ]
    answer(chosen.json, facts, figures)


def upsample(arguments: list[str]) -> None:
    chosen = options.parse("upsample", Upsample, arguments)
    from synther import upsample
    from synther.conditions import parse_all
    from synther.synthesizer import Synthesizer
    from synther.trackers import Watched

    rows, model = chosen.rows_and_model()
    progress = chosen.progress()
    how = chosen.passed("guidance", "ensemble", "keep", "relabel") | {"progress": progress}
    how |= {"conditions": parse_all(chosen.condition), "suffix": f".{chosen.format}"}
    done = upsample.upsample(rows, chosen.out, model, chosen.samples, **how)
    if isinstance(progress, Watched):
        progress.fitted(Synthesizer.load(done.model, device="cpu").record.history)
        measured = {name: getattr(done.comparison, name) for name in ("marginal", "correlation")}
        progress.write("comparison", model.settings.fit.steps, measured)
        progress.close()
    files = {name: str(getattr(done, name)) for name in ("model", "data", "picture", "figures")}
    facts = {"real_rows": len(rows), "samples": chosen.samples, **done.comparison.to_json(), "files": files}
    looked_at = done.comparison.rows_synthetic
    compared = f"{looked_at:,}" if looked_at == chosen.samples else f"the first {looked_at:,} of {chosen.samples:,}"
    figures = [*done.comparison.table(), *files.items()]
    answer(chosen.json, facts, figures, f"{len(rows):,} real rows against {compared} synthetic ones")


def presets(arguments: list[str]) -> None:
    chosen = options.parse("presets", Presets, arguments)
    facts = {name: {"about": ABOUT[name], **settings.to_json()} for name, settings in PRESETS.items()}
    rows = []
    for name, settings in PRESETS.items():
        network, steps, sampler = settings.network, f"{settings.fit.steps:,}", settings.sampler
        size, calls = f"{network.depth} x {network.width}", str(settings.distill.calls or sampler.network_calls)
        rows.append((name, size, steps, f"{sampler.kind} {sampler.steps}", calls, ABOUT[name]))
    answer(chosen.json, facts, rows, header=("preset", "network", "fit steps", "sampler", "calls", "what for"))

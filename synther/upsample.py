"""The job behind `synther upsample`: fit a model, sample rows, write them, and compare them with the real rows.

All results go into one folder. The same call continues a run that was stopped. The module also contains the jobs that
fit, distil or sample a model from file to file.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from synther import compute, formats, schema
from synther.assess.fidelity import Comparison, compare
from synther.assess.picture import draw
from synther.compute import Precision
from synther.conditions import Request, region
from synther.data.checks import check_count, check_rows
from synther.data.fingerprint import fingerprint
from synther.data.transitions import Transitions
from synther.diffusion.config import DistillConfig, SamplerConfig
from synther.diffusion.gradient import is_narrow
from synther.durable import check_folder, check_writable, partial_folder, replacing
from synther.errors import ConfigError, FormatError, SyntherError
from synther.folder import ANOTHER, RunFolder, digest_of, only_writer, write_object, written_once
from synther.formats import parquet
from synther.formats.stream import StoredRows, stored_rows
from synther.guides import identity_of
from synther.locks import owned
from synther.presets import Settings, name_of
from synther.progress import Progress, counted
from synther.relevance.consistency import check_keep
from synther.synthesizer import Synthesizer, student_checkpoint
from synther.synthesizer.row_conditions import check_streamed
from synther.synthesizer.shards import Workers
from synther.synthesizer.single_file import PREVIEW_ROWS
from synther.synthesizer.together import fit_models, forget

log = logging.getLogger(__name__)

_MODEL = "model.safetensors"


@dataclass(frozen=True)
class Upsampled:
    """The files of a finished run, and the comparison with the real rows."""

    model: Path
    data: Path
    picture: Path
    figures: Path
    comparison: Comparison


def upsample(
    rows: Transitions | StoredRows,
    folder: Path,
    model: Synthesizer,
    samples: int,
    *,
    suffix: str,
    progress: Progress | bool,
    conditions: Mapping[str, Request | None] | None = None,
    guidance: float = 1.0,
    ensemble: bool = False,
    keep: float = 1.0,
    relabel: str | None = None,
) -> Upsampled:
    """Fit `model` on `rows`, and write the model, `samples` synthetic rows and a comparison with real rows to `folder`.

    `conditions` maps names of relevance functions to requests. The model is fitted with all of them. If a condition has
    a request, rows are sampled for it, and are compared with the real rows that meet it. `keep` and `relabel` are those
    of `Synthesizer.sample`. They need an ensemble, which is then fitted as well.

    A second call with the same arguments continues where the first one was stopped. A call with other arguments, or
    while another process uses the folder, raises an error and does not change the folder.
    """
    data, picture, figures = folder / f"synthetic{suffix}", folder / "comparison.png", folder / "comparison.json"
    real = rows.sample(PREVIEW_ROWS, model.seed).rows if isinstance(rows, StoredRows) else rows
    check_rows(real)
    check_count(samples)
    formats.check_rows_target(data)
    more = f"to get more rows of its model, use `synther sample {folder / _MODEL} --seed {model.seed + 1}`"
    run = RunFolder(folder, advice=f"{ANOTHER}; {more}")
    conditions = conditions or {}
    requests = {name: request for name, request in conditions.items() if request is not None}
    if guidance != 1.0 and not requests:  # checked before a long fit
        raise ConfigError("guidance needs a request, such as reward=top:0.1")
    if isinstance(rows, StoredRows):
        check_streamed(list(conditions) or None)
    requested = region(real, requests)
    described = _description(rows, model, samples, suffix)
    if conditions:
        named = {name: request and request.to_json() for name, request in conditions.items()}
        described |= {"conditions": named, "guidance": guidance}
    ensemble = ensemble or check_keep(keep) < 1 or relabel is not None
    if ensemble:
        described |= {"ensemble": True, "keep": keep, "relabel": relabel}
    options: Any = {"condition": requests or None, "guidance": guidance, "seed": model.seed, "progress": progress}
    options |= {"keep": keep, "relabel": relabel}
    with run.work(described, lambda: all(file.exists() for file in (data, figures, picture))) as unfinished:
        model = fit_to(folder / _MODEL, rows, model, progress, tuple(conditions), ensemble)
        if not unfinished:
            comparison = _read(figures)
        else:
            if data.exists():  # stopped during the comparison: draw the same rows again
                with only_writer(partial_folder(data)):  # also removes the lock of a killed command
                    shutil.rmtree(partial_folder(data), ignore_errors=True)
                preview = model.sample(min(samples, PREVIEW_ROWS), **options)
            else:
                announce_sampling(model, model.sampler_for(asked=bool(requests)), samples, data)
                preview = model.sample_to(data, samples, **options)
            comparison = compare(requested, preview)
            draw(requested, preview, picture, comparison)
            write_object(figures, comparison.to_json())
    return Upsampled(folder / _MODEL, data, picture, figures, comparison)


def announce_fit(model: Synthesizer, rows: int, models: int = 1) -> None:
    """Log the preset, the size of the network, the longest duration and the device of a fit.

    `models` is the number of models that are fitted together.
    """
    settings, fit = model.settings, model.settings.fit
    size = f"{settings.network.depth} x {settings.network.width}"
    limit = f"{fit.steps:,} steps" + ("" if fit.minutes is None else f" or {fit.minutes:g} minutes")
    threads = 1 if is_narrow(settings.network) else torch.get_num_threads()
    cores = f", {counted(threads, 'thread')}" if model.device.type == "cpu" else ""
    where = f"{compute.describe(model.device)} ({model.precision}{cores})"
    several = f"{models} models together, each " if models > 1 else ""
    details = several, name_of(settings), size, f"{rows:,}", limit, fit.batch_for(rows), where
    log.info("fitting %spreset %s, a network of %s, on %s rows: at most %s, batches of %d, on %s", *details)


def sample_once(
    file: Path, model: Synthesizer, out: str, samples: int, how: dict[str, Any], workers: Workers, progress: bool
) -> list[Path]:
    """Sample rows of the model that was loaded from `file`, write them to `out`, and return the paths of the files.

    If the same call has written the file before, it is not written again.
    """
    guide = how.get("guide")
    made = {name: value for name, value in how.items() if name != "guide"}
    made |= {"samples": samples, "precision": model.precision}
    made |= {} if guide is None else {"guide": identity_of(guide)}
    target = Path(out).expanduser()
    into_folder = formats.names_folder(out)
    with nullcontext(True) if into_folder else written_once(target, {"model": digest_of(file), **made}) as unfinished:
        if unfinished:
            announce_sampling(model, how["sampler"], samples, target)
            model.sample_to(out, samples, **how, **workers, progress=progress)
    return parquet.files_in(target) if into_folder else [target]


def announce_sampling(model: Synthesizer, sampler: SamplerConfig, samples: int, target: Path) -> None:
    """Log the number of rows, the sampler, the device and the target of a draw."""
    details = f"{samples:,}", sampler.kind, sampler.network_calls, compute.describe(model.device), target
    log.info("sampling %s rows with %s, %d network calls per row, on %s, to %s", *details)


def _read(figures: Path) -> Comparison:
    try:
        return Comparison.from_json(schema.read(figures))
    except FormatError as error:
        raise FormatError(f"{figures} is damaged ({error}): remove it, and run the same command again") from None


def stored_to_fit(
    source: str, most: int, fraction: float | None, seed: int, is_plain: bool
) -> StoredRows | Transitions | None:
    """Return the rows of Parquet files with more than `most` rows as `StoredRows`, which are streamed from disk.

    If `fraction` selects at most `most` rows, return a random sample of that size in memory instead. Return None for
    other sources. `is_plain` says that rows are fitted as they are in the files (no --n-step, no --next-actions).
    """
    stored = stored_rows(source, most)
    if stored is None or (is_plain and fraction is None):
        return stored
    count = round((fraction or 1) * len(stored))
    if is_plain and 0 < count <= most:
        return stored.sample(count, seed).rows
    raise ConfigError(
        f"{source} has {len(stored):,} rows, more than --fit.window-rows {most:,}, so it is streamed from disk. "
        "--n-step, --next-actions and large fractions need all rows in memory: remove these options, or raise "
        "--fit.window-rows"
    )


def fit_to(
    path: Path,
    rows: Transitions | StoredRows,
    model: Synthesizer,
    progress: Progress | bool,
    condition: Sequence[str] = (),
    ensemble: bool = False,
) -> Synthesizer:
    """Return the model saved at `path`. If it does not exist yet, fit `model` on `rows` and save it there.

    The checkpoint of the fit is a file beside it. A model of other data or options at `path` is an error.
    """
    checkpoint = _checkpoint(path)
    if path.is_dir():
        raise ConfigError(f"{path} is a folder: choose another name for the model")
    if path.exists():
        saved = Synthesizer.load(path, device=str(model.device), precision=model.precision)
        own = saved.settings
        if not model.settings.distill.calls:  # a model that was distilled later is still the same model
            own = replace(own, distill=model.settings.distill)
        made_from = saved.record.data, own, saved.seed, saved.conditions.named, saved.ensemble is not None
        if made_from != (fingerprint(rows), model.settings, model.seed, tuple(condition), ensemble):
            raise ConfigError(
                f"{path} is a model that was fitted with other data or options: remove it, or choose another path"
            )
        log.info("%s is already fitted", path)
        _forget(checkpoint)  # exists if a run was stopped right after it saved the model
        return saved
    existing = check_folder(path.parent, "choose another path for the model")
    check_writable(existing)
    with only_writer(path):
        if path.exists():  # another process has fitted it in the meantime
            return fit_to(path, rows, model, progress, condition, ensemble)
        announce_fit(model, len(rows))
        options: Any = {"ensemble": ensemble, "checkpoint": checkpoint, "progress": progress}
        model.fit(rows, condition=list(condition) or None, **options)
        model.save(path)
        _forget(checkpoint)
    return model


def fit_together(
    folder: Path,
    tables: Iterable[Transitions],
    seeds: Sequence[int],
    settings: Settings,
    *,
    device: str = "auto",
    precision: Precision = "auto",
    progress: Progress | bool = True,
) -> list[Path]:
    """Fit one model for each seed on its own rows, save them in `folder`, and return their paths.

    `folder` is created when all models are fitted. If it exists, nothing is fitted and no rows are read. The models are
    fitted together, so rounding errors depend on which models are in the group.
    """
    files = [folder / f"seed-{seed}.safetensors" for seed in seeds]
    under_way = folder.with_name(f"{folder.name}.fit")
    if not folder.exists():
        models = [Synthesizer(settings, device=device, precision=precision, seed=seed) for seed in seeds]
        rows = list(tables)
        announce_fit(models[0], len(rows[0]), len(models))
        outcomes = fit_models(models, rows, checkpoint=under_way, progress=progress)
        for seed, fitted in zip(seeds, outcomes, strict=True):
            if isinstance(fitted, SyntherError):
                raise SyntherError(f"the generator of seed {seed}: {fitted}") from fitted
        with replacing(folder) as beside:
            beside.mkdir()
            for model, file in zip(models, files, strict=True):
                model.save(beside / file.name)
    forget(under_way)
    return files


def distill_to(
    path: Path,
    calls: int,
    *,
    steps: int | None = None,
    rows: int | None = None,
    seed: int = 0,
    device: str = "auto",
    precision: Precision = "auto",
    progress: Progress | bool = True,
) -> Synthesizer:
    """Return the model saved at `path`. If it has no student with these options, distil it and save it first.

    The checkpoint of the distillation is a file beside the model.
    """
    checkpoint = student_checkpoint(_checkpoint(path))
    with owned(path.with_name(f".{path.name}.lock")) if path.is_file() else nullcontext():
        model = Synthesizer.load(path, device=device, precision=precision)
        current, wanted = model.settings.distill, DistillConfig(calls, steps, rows)
        has_student = model.student is not None and model.student.seed == seed
        if has_student and current == replace(wanted, teacher_steps=current.teacher_steps):
            log.info("%s is already distilled", path)
        else:
            model.distill(calls, steps=steps, rows=rows, seed=seed, checkpoint=checkpoint, progress=progress)
            model.save(path)
        checkpoint.unlink(missing_ok=True)
    return model


def _checkpoint(path: Path) -> Path:
    return path.with_name(path.name + ".checkpoint")


def _forget(checkpoint: Path) -> None:
    """Remove the checkpoints of a fit. They may be missing if another process has fitted the same model meanwhile."""
    for file in (checkpoint, student_checkpoint(checkpoint)):
        file.unlink(missing_ok=True)


def _description(rows: Transitions | StoredRows, model: Synthesizer, samples: int, suffix: str) -> dict[str, Any]:
    """Return everything that identifies a run, for `run.json`."""
    settings = model.settings.to_json()
    return {
        "data": fingerprint(rows),
        "settings": settings,
        "precision": model.precision,
        "seed": model.seed,
        "samples": samples,
        "suffix": suffix,
    }

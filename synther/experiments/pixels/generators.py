"""Generators of the latents of all seeds, fitted together, and the rows that they make."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from synther import compute
from synther.data import formats
from synther.data.checks import check_count, check_rows
from synther.data.fingerprint import fingerprint
from synther.data.transitions import Transitions
from synther.durable import replacing
from synther.errors import SyntherError
from synther.experiments.pixels.rows import file_of, latents_in
from synther.folder import RunFolder
from synther.presets import Settings
from synther.progress import Progress, resolve
from synther.synthesizer import Synthesizer
from synther.synthesizer.together import fit_models, forget


def fit_to(
    folder: Path,
    latents: Sequence[Transitions],
    seeds: Sequence[int],
    settings: Settings,
    *,
    device: str = "auto",
    precision: compute.Precision = "auto",
    progress: Progress | bool = True,
) -> list[Path]:
    """A model of each seed's latents in `folder`, which appears when all are there: fitted together they are what they
    are, rounding included, only in this company."""
    files = [folder / f"seed-{seed}.safetensors" for seed in seeds]
    under_way = folder.with_name(f"{folder.name}.fit")
    if not folder.exists():
        models = [Synthesizer(settings, device=device, precision=precision, seed=seed) for seed in seeds]
        outcomes = fit_models(models, latents, checkpoint=under_way, progress=progress)
        for seed, fitted in zip(seeds, outcomes, strict=True):
            if isinstance(fitted, SyntherError):
                raise SyntherError(f"the generator of seed {seed}: {fitted}") from fitted
        with replacing(folder) as beside:
            beside.mkdir()
            for model, file in zip(models, files, strict=True):
                model.save(beside / file.name)
    forget(under_way)
    return files


def upsample(
    source: Path,
    folder: Path,
    settings: Settings,
    samples: int,
    *,
    device: str = "auto",
    precision: compute.Precision = "auto",
    progress: Progress | bool = True,
) -> list[Path]:
    """`samples` rows like those of each seed in `source`, a folder of latents: `seed-0.hdf5` and so on in `folder`, and
    the models that they are from in its `models`.

    Started again it goes on where it was stopped; with other latents or options it refuses to touch the folder.
    """
    progress = resolve(progress)
    check_count(samples)
    about = latents_in(source)
    seeds = about["run"]["seeds"]
    latents = [formats.read(file_of(source, seed)) for seed in seeds]
    for rows in latents:
        check_rows(rows)
    description = {
        "kind": "synthetic",
        **{name: about[name] for name in ("run", "features")},
        "data": [fingerprint(rows) for rows in latents],
        "settings": settings.to_json(),
        "precision": Synthesizer(settings, device=device, precision=precision).precision,
        "samples": samples,
    }
    files = [folder / f"seed-{seed}.hdf5" for seed in seeds]
    how: dict[str, Any] = {"device": device, "precision": precision}
    with RunFolder(folder).work(description, lambda: all(file.exists() for file in files)) as unfinished:
        if unfinished:
            models = fit_to(folder / "models", latents, seeds, settings, **how, progress=progress)
            for model, file, seed in zip(models, files, seeds, strict=True):
                if not file.exists():
                    Synthesizer.load(model, **how).sample_to(file, samples, seed=seed, progress=progress)
    return files

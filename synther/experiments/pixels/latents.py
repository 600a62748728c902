"""Latents of each seed: where they are, where they come from, and the generators that make more of them."""

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
from synther.errors import ConfigError, FormatError, SyntherError
from synther.experiments.sources import Stored
from synther.folder import RunFolder, read_object
from synther.pixels.encoder import Features
from synther.presets import Settings
from synther.progress import Progress, resolve
from synther.synthesizer import Synthesizer
from synther.synthesizer.together import fit_models, forget

_THEIRS = {"mixed": "medium_replay", "medium-expert": "medium_expert"}
"""V-D4RL's names of levels, where they are not ours."""


def frames_of(task: str, level: str, data: Path | None) -> Path:
    """What `pixels.files.read` reads as the data set: `walker-walk-medium`, alone or with .hdf5, in the folder `data`,
    or `walker_walk/medium/84px` there or in its folder `main`, as V-D4RL distributes it."""
    if data is None:
        raise ConfigError(f"{task}-{level}: frames do not come with the package; name their folder with --data")
    name, theirs = f"{task}-{level}", Path(task.replace("-", "_"), _THEIRS.get(level, level), "84px")
    wanted = [Path(name), Path(f"{name}.hdf5"), theirs, Path("main") / theirs]
    for place in wanted:
        if (data / place).exists():
            return data / place
    raise FormatError(f"no frames of {name} in {data}: expected {', '.join(map(str, wanted[:-1]))} or {wanted[-1]}")


def file_of(folder: Path, seed: int) -> Path:
    """The rows of a seed in a folder that has a file for each: `seed-0.npz`, or another suffix."""
    suffixes = formats.suffixes()
    found = [file for file in sorted(folder.glob(f"seed-{seed}.*")) if file.suffix.lower() in suffixes]
    if len(found) != 1:
        told = "none" if not found else ", ".join(file.name for file in found)
        raise FormatError(f"{folder}: expected one file seed-{seed} ({', '.join(suffixes)}), got {told}")
    return found[0]


def stored(folder: Path, run: dict[str, Any]) -> tuple[Features, list[Stored]]:
    """The features of the latents in `folder`, real or synthetic, and the file of each seed. They must be latents of
    the agents that `run` identifies, see `stage_one.identity`."""
    about = latents_in(folder)
    if about["run"] != run:
        raise ConfigError(f"{folder} holds latents of other agents: encode the frames with these")
    return about["features"], [Stored(file_of(folder, seed)) for seed in run["seeds"]]


def latents_in(folder: Path) -> dict[str, Any]:
    """What a folder of latents, real or synthetic, says of itself."""
    about = read_object(folder / "run.json") if (folder / "run.json").exists() else {}
    if about.get("kind") not in ("latents", "synthetic") or not {"run", "features"} <= about.keys():
        raise ConfigError(f"{folder} holds no latents: expected the --out of `synther pixels encode` or `upsample`")
    return about


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

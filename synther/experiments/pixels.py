"""Offline training of pixel agents as resumable runs in folders: training on frames, latents, retraining of the heads.

1. `train_to` trains agents on frames, all seeds at once. This is stage one.
2. `encode_to` encodes the frames with the agents of each seed, and writes rows of latents.
3. `upsample` fits generators on these latents and writes synthetic latents.
4. `retrain_to` trains the heads again on latents, real or synthetic, in groups of seeds that fit into memory.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import torch

from synther import compute, formats, trackers
from synther.agents.agent import Agent
from synther.agents.drq_bc import DrQBCConfig
from synther.agents.policy import load_policy
from synther.agents.rows import Arm, Member, Rows
from synther.agents.stacked import Stack
from synther.data.checks import check_count, check_rows
from synther.data.fingerprint import fingerprint
from synther.data.transitions import Transitions
from synther.errors import ConfigError, DataError, FormatError
from synther.experiments import loop
from synther.experiments.record import check_alive
from synther.experiments.results import Result
from synther.experiments.sources import Given, Sampled, Stored
from synther.experiments.specs import STAGE_ONE, PixelRun
from synther.folder import RunFolder, read_object, write_object
from synther.pixels.agent import PIXEL_ALGORITHMS, PixelAgent, PixelConfig
from synther.pixels.encoder import Features
from synther.pixels.frames import Frames
from synther.pixels.latents import SHIFTS, encode, pairs_of
from synther.pixels.policy import PixelPolicy, load_pixel_policy
from synther.plain import check_one_of
from synther.presets import Settings
from synther.progress import Progress, resolve
from synther.synthesizer import Synthesizer
from synther.upsample import announce_sampling, fit_together

log = logging.getLogger(__name__)

FRAMES, LATENTS = "frames", "latents"
"""Names in results: the agents of stage one, and heads that were trained on latents."""

POLICY = "policy.safetensors"
_TRAINED = "trained.json"
"""File that exists when a training is finished: its result, without an evaluation."""
_REQUIRED = ("kind", "seeds", "env_id", "action_repeat", "updates", "precision", "device")
"""Keys that the `run.json` of a training must have."""

_CPU_BYTES = 4 << 30
"""Bytes of main memory that the rows of a group of seeds may take, if agents train on a CPU."""
_GPU_SHARE = 0.25
"""Share of the GPU memory that the rows of a group of seeds may take."""


def is_trained(folder: Path) -> bool:
    """Return whether the folder holds a finished training."""
    return (folder / _TRAINED).exists()


def result_of(folder: Path) -> Result:
    """Return the result of a finished training, without an evaluation."""
    return Result.read(folder / _TRAINED)


def finish(folder: Path, result: Result, policy: PixelPolicy | None = None) -> None:
    """Write policy and result of a training. This marks the training as finished."""
    if policy is not None:
        policy.save(folder / POLICY)
    write_object(folder / _TRAINED, result.to_json())


def description(folder: Path) -> dict[str, Any]:
    """Return the description of a finished training, the content of its `run.json`."""
    if not is_trained(folder):
        raise ConfigError(f"{folder} holds no finished training: expected the --out of `synther pixels train`")
    about: dict[str, Any] = read_object(folder / "run.json")
    missing = [name for name in _REQUIRED if name not in about]
    if missing:
        raise ConfigError(f"{folder / 'run.json'} is damaged: {missing[0]!r} is missing; train again in another folder")
    return about


def identity(folder: Path) -> dict[str, Any]:
    """Return the entries of a description that identify the agents of a finished stage one."""
    about = description(folder)
    if about["kind"] != "frames":
        raise ConfigError(f"{folder} holds {about['kind']}: expected the --out of `synther pixels train`")
    return {name: about[name] for name in ("agent", "seeds", "data", "updates", "precision", "device")}


def kind_of(algorithm: str) -> type[PixelConfig]:
    """Return the class of an algorithm's options."""
    check_one_of("algorithm", algorithm, PIXEL_ALGORITHMS)
    return PIXEL_ALGORITHMS[algorithm][0]


def train_to(spec: PixelRun, frames: Frames, folder: Path | str, *, progress: Progress | bool = True) -> Result:
    """Train every seed on frames (stage one), or resume the training. Write `log.jsonl`, `checkpoint.safetensors`,
    `policy.safetensors` and, at the end, `trained.json` into `folder`. Raise an error if it holds a training with other
    frames or options, or if another process is training there."""
    folder, device, config = Path(folder), compute.pick_device(spec.device), spec.config
    trackers.check(spec.tensorboard, spec.wandb)
    described = {
        "kind": "frames",
        "agent": {"algorithm": spec.algorithm, **asdict(config)},
        "seeds": list(spec.all_seeds),
        "data": frames.digest(),
        "env_id": spec.env_id or frames.env_id,
        "action_repeat": frames.action_repeat,
        "shadow_size": frames.shadow_size,
        **{name: getattr(spec, name) for name in ("updates", "measure_every", "precision")},
        "device": device.type,
    }
    run = RunFolder(folder)
    run.check(described)
    if is_trained(folder):
        log.info("%s is finished already", folder)
        return result_of(folder)
    agent = PixelAgent(config, frames, spec.all_seeds, device=device, precision=spec.precision)
    # The folder is created only now, when errors of wrong settings or frames have been raised.
    with run.work(described, lambda: is_trained(folder)) as unfinished:
        if unfinished:
            how = [FRAMES], spec.all_seeds, resolve(progress)
            finish(folder, loop.train(agent, spec, folder, *how, label=f"train {FRAMES}"), agent.policy())
    return result_of(folder)


def _check_frames(run: Path, frames: Frames) -> None:
    """Raise an error if the frames belong to another task than the agents of `run`. Warn if they are other frames of
    the same task."""
    about, policy = description(run), load_pixel_policy(run / POLICY)
    own, theirs = (f"{len(policy.low)} actions", about["env_id"]), (f"{frames.action.shape[1]} actions", frames.env_id)
    for known, found in zip(own, theirs, strict=True):
        if known and found and known != found:
            advice = "encode the frames that the agents were trained on"
            raise DataError(f"{run} has agents of {known}, but the frames are of {found}: {advice}")
    if frames.digest() != about["data"]:
        log.warning("the agents of %s were trained on other frames than these", run)


def encode_to(
    run: Path,
    frames: Frames,
    folder: Path,
    *,
    features: Features | None = None,
    shifts: int = SHIFTS,
    pairs: bool = False,
    seed: int = 0,
    device: str = "auto",
    progress: Progress | bool = True,
) -> list[Path]:
    """Encode frames with each seed's agent of the stage one in the folder `run`. Write the latents to `seed-0.npz` and
    so on in `folder`, and return these files. `features` of None means all features of the agents. `shifts` and `pairs`
    are described at `latents.encode`."""
    own = identity(run)
    _check_frames(run, frames)
    chosen = features or ("both" if kind_of(own["agent"]["algorithm"]) is DrQBCConfig else "actor")
    seeds = own["seeds"]
    described = {"kind": "latents", "run": own, "features": chosen, "seed": seed, "frames": frames.digest()}
    described |= {"shifts": shifts, "pairs": pairs or None}
    files = [folder / f"seed-{each}.npz" for each in seeds]
    written = RunFolder(folder)
    written.check(described)
    if all(file.exists() for file in files):
        return files
    work = f"{len(frames):,}", max(shifts, 1), len(seeds), run, compute.describe(compute.pick_device(device)), folder
    log.info("encoding %s frames, %d times each, with the trunks of %d agents of %s, on %s, to %s", *work)
    # The folder is created after this, so that wrong frames or features leave no folder behind.
    how: dict[str, Any] = {"shifts": shifts, "pairs": pairs, "seed": seed, "device": device, "progress": progress}
    latents = encode(run / loop.CHECKPOINT, frames, features=chosen, **how)
    with written.work(described, lambda: all(file.exists() for file in files)) as unfinished:
        if unfinished:
            for rows, file in zip(latents, files, strict=True):
                formats.write(rows, file)
    return files


def file_of(folder: Path, seed: int) -> Path:
    """Return the file of a seed's rows in a folder with one file per seed, such as `seed-0.npz`."""
    suffixes = formats.suffixes()
    found = [file for file in sorted(folder.glob(f"seed-{seed}.*")) if file.suffix.lower() in suffixes]
    if len(found) != 1:
        names = "none" if not found else ", ".join(file.name for file in found)
        raise FormatError(f"{folder}: expected one file seed-{seed} ({', '.join(suffixes)}), got {names}")
    return found[0]


def stored(folder: Path, run: dict[str, Any]) -> tuple[Features, list[Stored]]:
    """Return the features of the latents in `folder`, real or synthetic, and the file of each seed. Raise an error if
    they are not latents of the agents that `run` identifies (see `identity`)."""
    about = latents_in(folder)
    if about["run"] != run:
        raise ConfigError(f"{folder} holds latents of other agents: encode the frames with the agents of this run")
    return about["features"], [Stored(file_of(folder, seed)) for seed in run["seeds"]]


def latents_in(folder: Path) -> dict[str, Any]:
    """Return the description of a folder of latents, real or synthetic."""
    about = read_object(folder / "run.json") if (folder / "run.json").exists() else {}
    if about.get("kind") not in ("latents", "synthetic") or not {"run", "features"} <= about.keys():
        raise ConfigError(f"{folder} holds no latents: expected the --out of `synther pixels encode` or `upsample`")
    return about


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
    """Fit a generator on the latents of each seed in the folder `source`, and sample `samples` synthetic rows from it.
    Write them to `seed-0.hdf5` and so on in `folder`, and the models to its subfolder `models`. A second call resumes
    the work. It raises an error if the folder holds results of other latents or options."""
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
            models = fit_together(folder / "models", latents, seeds, settings, **how, progress=progress)
            for model, file, seed in zip(models, files, seeds, strict=True):
                if not file.exists():
                    fitted = Synthesizer.load(model, **how)
                    announce_sampling(fitted, fitted.settings.sampler, samples, file)
                    fitted.sample_to(file, samples, seed=seed, progress=progress)
    return files


LatentSource = Given | Sampled | Stored
"""Latents of one seed. They are loaded seed by seed, because those of all seeds may not fit into memory."""
_Group = dict[int, tuple[LatentSource, ...]]
"""Seeds that train together, because all their rows fit into memory, with the sources of each seed."""


def retrain_to(
    spec: PixelRun,
    run: Path,
    sources: Sequence[LatentSource],
    folder: Path,
    *,
    features: Features,
    real: Sequence[LatentSource] = (),
    ratio: float = 0.5,
    progress: Progress | bool = True,
) -> Result:
    """Train the heads of every seed of the stage one in the folder `run` on latents. Encoder and trunks do not change.

    `sources` has the latents of each seed. If `real` is given, it has further latents of each seed: a share `ratio` of
    every batch comes from `sources`, and the rest from `real`. `folder` gets the same files as in stage one, and a
    subfolder for each group of seeds. Only the length of the training and the options of the machine are taken from
    `spec`. A second call resumes the training. It raises an error if the folder holds one with other rows or options.
    """
    own, about = identity(run), description(run)
    seeds: list[int] = about["seeds"]
    if len(sources) != len(seeds):
        raise ConfigError(f"{run} has {len(seeds)} seeds: expected rows for each of them, got {len(sources)}")
    if real and (len(real) != len(seeds) or not 0 < ratio < 1):
        raise ConfigError(f"expected {len(seeds)} real sources and 0 < ratio < 1, got {len(real)} and {ratio}")
    policy = load_pixel_policy(run / loop.CHECKPOINT, features=features)
    device = compute.pick_device(spec.device)
    groups = _groups(dict(zip(seeds, zip(sources, *([real] if real else []), strict=True), strict=True)), device)
    folders = [folder / f"seeds-{min(group)}-{max(group)}" for group in groups]
    heads = heads_of(about["agent"], features)
    # The exploration noise decreases over the same share of the updates as in stage one.
    heads = replace(heads, stddev_updates=max(1, round(heads.stddev_updates * spec.updates / about["updates"])))
    if spec.precision == "bf16":  # the matrix products of heads are too small to be faster in bf16
        raise ConfigError("heads are trained in float32 or tf32, got bf16")
    trackers.check(spec.tensorboard, spec.wandb)
    described = {
        "kind": "heads",
        "run": own,
        "features": features,
        "rows": [source.description() for source in sources],
        "groups": [list(group) for group in groups],
        **{name: getattr(spec, name) for name in ("updates", "measure_every", "precision")},
        "device": device.type,
        **{name: about.get(name) for name in ("seeds", "env_id", "action_repeat", "shadow_size")},
    }
    if real:
        described |= {"real": [source.description() for source in real], "ratio": ratio}
    shares = (ratio, 1 - ratio) if real else (1.0,)
    written = RunFolder(folder)
    new = not written.begun
    with written.work(described, lambda: is_trained(folder)) as unfinished:
        if unfinished:
            how = shares, resolve(progress), len(groups) > 1
            placed = zip(groups, folders, strict=True)
            try:
                found = [_train_group(spec, heads, policy, group, place, *how) for group, place in placed]
            except (ConfigError, DataError, FormatError):
                if new and not any(folder.rglob(loop.CHECKPOINT)):
                    written.release()  # otherwise the folder would be reserved for the wrong rows
                raise
            result = _together(groups, found)
            check_alive(result.updates, [place in result.diverged[LATENTS] for place in range(len(seeds))])
            weights = torch.cat([load_policy(each / loop.CHECKPOINT).actor.weights for each in folders])
            finish(folder, result, policy.with_heads(Stack(weights, policy.actor.sizes)))
    return result_of(folder)


def train_arms(spec: PixelRun, frames: Frames, folder: Path, progress: Progress) -> None:
    """Train all arms of a run of an experiment, each in its own subfolder of `folder`. Arms may share latents and
    models, which are also stored in `folder`. The latents are deleted at the end."""
    one, encoded = folder / STAGE_ONE, folder / "encoded"
    train_to(spec, frames, one, progress=progress)
    how: dict[str, Any] = {"device": spec.device, "progress": progress}
    for arm, own in spec.arms.items():
        if is_trained(folder / arm):
            continue
        made: dict[str, Any] = {"features": own.features, "shifts": own.shifts, "seed": spec.seed}
        latents = encode_to(one, frames, encoded / own.latents, **made, **how)
        real = [Stored(file) for file in latents]
        if own.recipe is None:
            retrain_to(spec, one, real, folder / arm, features=own.features, progress=progress)
            continue
        assert own.recipe.samples is not None
        first = next(name for name, other in spec.arms.items() if other.models == own.models)
        rows = (formats.read(file) for file in latents)
        rows = (pairs_of(some) for some in rows) if own.pairs else rows
        models = fit_together(folder / f"{first}-models", rows, spec.all_seeds, own.recipe.settings(), **how)
        seeds = zip(models, spec.all_seeds, strict=True)
        synthetic = [Sampled(model, own.recipe.samples, seed, spec.device) for model, seed in seeds]
        mixed: dict[str, Any] = {"real": real if own.ratio < 1 else [], "ratio": own.ratio, "features": own.features}
        retrain_to(spec, one, synthetic, folder / arm, **mixed, progress=progress)
    shutil.rmtree(encoded, ignore_errors=True)  # the files are large, and can be encoded again in short time


def earned(frames: Frames) -> str:
    """Return the mean and std of the returns of all episodes with the maximum length, as text."""
    starts, ends = frames.episodes
    lengths = ends - starts
    whole = frames.returns()[lengths == lengths.max()]
    return f", whose {len(whole):,} whole episodes return {whole.mean():,.1f} ± {whole.std():,.1f}"


def _groups(sources: _Group, device: torch.device) -> list[_Group]:
    """Split seeds into groups of consecutive seeds, each as large as fits into memory, with at least one seed. The
    groups are always the same on the same machine."""
    room = float(_CPU_BYTES)
    if device.type == "cuda":
        room = _GPU_SHARE * torch.cuda.get_device_properties(device).total_memory
    groups: list[_Group] = []
    taken = 0
    for seed, own in sources.items():
        size = sum(each.size() for each in own)
        if not groups or taken + size > room:
            groups.append({})
            taken = 0
        groups[-1][seed] = own
        taken += size
    return groups


def _train_group(
    spec: PixelRun,
    heads: PixelConfig,
    policy: PixelPolicy,
    group: _Group,
    folder: Path,
    shares: tuple[float, ...],
    progress: Progress,
    others: bool,
) -> Result:
    """Train the heads of a group of seeds. Each source of a seed has its share of every batch in `shares`. `others`
    says whether there are other groups."""
    if is_trained(folder):
        return result_of(folder)
    RunFolder(folder).claim({"kind": "group", "seeds": list(group)})
    wanted = policy.trunk.features * (2 if getattr(heads, "features", "shared") == "both" else 1)

    def tables() -> Iterator[Transitions]:
        for source in chain(*group.values()):
            rows = source.rows(None, progress)
            if (got := rows.observation.shape[1]) != wanted:
                raise DataError(f"expected latents of {wanted} columns for these heads, got {got}")
            yield rows
            del rows  # frees the memory before the next rows are loaded

    device, precision = compute.pick_device(spec.device), spec.precision
    assert precision != "bf16"
    each, count = len(shares), len(shares) * len(group)
    with compute.working_on(device, "take fewer rows, or seeds"):
        rows = Rows(tables(), device=device, low=policy.low.numpy(), high=policy.high.numpy(), count=count)
    arms = [Arm(tuple(range(first, first + each)), shares, first) for first in range(0, count, each)]
    members = [Member(seed, arm) for seed, arm in zip(group, arms, strict=True)]
    agent = Agent(heads, rows, members, precision=precision)
    result = loop.train(agent, spec, folder, [LATENTS], list(group), progress, label=f"train {LATENTS}", others=others)
    finish(folder, result)
    return result


def heads_of(described: Mapping[str, Any], features: Features) -> PixelConfig:
    """Return the options of heads for latents of the given features, from the description of an agent in a run."""
    kind = kind_of(described["algorithm"])
    heads = kind(**{option.name: described[option.name] for option in fields(kind) if option.init})
    if isinstance(heads, DrQBCConfig):
        return replace(heads, features="both" if features == "both" else "shared")
    return heads


def _together(groups: Sequence[_Group], found: Sequence[Result]) -> Result:
    """Combine the results of all groups, which were trained one after another."""
    parts = {part: sum(result.seconds_of[part] for result in found) for part in found[0].seconds_of}
    firsts = accumulate([len(group) for group in groups], initial=0)
    placed = zip(firsts, found, strict=False)
    lost = tuple(first + seed for first, result in placed for seed in result.diverged[LATENTS])
    return replace(found[0], seconds=sum(parts.values()), seconds_of=parts, diverged={LATENTS: lost})

"""The commands `synther pixels train`, `encode`, `upsample`, `retrain` and `evaluate`."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from synther.cli import options
from synther.cli.answer import answer, of_run, seeds
from synther.errors import ConfigError
from synther.experiments.spec import PixelOptions, SeedOptions

if TYPE_CHECKING:
    from synther.experiments.results import Result

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pixels(options.Output):
    """Train pixel agents, and retrain them on synthetic latents, in five steps.

    - train: train agents on frames.
    - encode: convert the frames to latents, which are the outputs of the agents' trunks.
    - upsample: fit diffusion models on the latents, and generate synthetic latents.
    - retrain: train the heads of the agents again, on synthetic latents.
    - evaluate: play episodes with the agents, on a machine that can render frames.

    Each step has its own options: see `synther pixels train --help` and so on.
    """

    action: tyro.conf.Positional[Literal["train", "encode", "upsample", "retrain", "evaluate"]] = tyro.MISSING
    """train, encode, upsample, retrain or evaluate."""


@dataclass(frozen=True)
class Training(PixelOptions, options.Output):
    """The options that `train` and `retrain` share."""

    out: options.Results = tyro.MISSING
    evaluate: options.On = True
    """Do not evaluate the agents now. `synther pixels evaluate` can do it later."""


@dataclass(frozen=True)
class Train(SeedOptions, Training):
    """Train agents on FRAMES with several seeds at once, and evaluate them.

    OUT receives log.jsonl, TensorBoard events, checkpoint.safetensors, policy.safetensors and, after the evaluation,
    result.json. After an interruption, the same command resumes. To see the options of an algorithm, run `synther
    pixels train ALGORITHM --help`.
    """

    algorithm: tyro.conf.Positional[str] = tyro.MISSING
    """drq_bc or bc."""
    frames: tyro.conf.Positional[str] = tyro.MISSING
    """Files of V-D4RL (a folder or one .hdf5), a folder of .npz episodes, a Minari data set, or output of `collect`."""
    env_id: str | None = None
    """Id of the environment, such as dm_control/walker-walk-v0, if FRAMES do not name it."""
    precision: Literal["auto", "float32", "tf32", "bf16"] = "auto"
    """Precision of the computation. auto: bf16 on a GPU, float32 on a CPU."""


@dataclass(frozen=True)
class Encode(options.Output):
    """Convert FRAMES to latents with the trunks of the agents in RUN. OUT receives seed-0.npz and so on."""

    run: tyro.conf.Positional[Path] = tyro.MISSING
    """Folder of `synther pixels train`."""
    frames: tyro.conf.Positional[str] = tyro.MISSING
    """The frames that RUN was trained on."""
    out: Path = tyro.MISSING
    """Folder for the latents."""
    features: Literal["both", "actor", "critic"] | None = None
    """Trunks that compute the latents. both: actor and critic each use their own. actor or critic: both use this one.
    Default: all trunks of the agent. BC has only an actor."""
    shifts: int = 8
    """Number of random shifts of each frame. Every shifted frame becomes a row. 0: encode frames without a shift."""
    pairs: options.Flag = False
    """Write only latents and actions. The heads of BC need nothing else."""
    seed: int = 0
    """Seed of the random shifts."""
    device: options.Device = "auto"


@dataclass(frozen=True)
class Upsample(options.Fitting):
    """Fit a model on the latents of each seed, and write synthetic latents.

    OUT receives seed-0.hdf5 and so on, and the models. After an interruption, the same command resumes. The presets
    best and laptop have special settings for latents.
    """

    of_latents = True
    latents: tyro.conf.Positional[Path] = tyro.MISSING
    """Folder written by `synther pixels encode`."""
    out: options.Results = tyro.MISSING
    samples: int = 5_000_000
    """Number of synthetic rows for each seed. K and M suffixes are accepted."""
    seed: Annotated[int, tyro.conf.Suppress] = 0  # not used: every model has the seed of its agent
    fraction: Annotated[float | None, tyro.conf.Suppress] = None


@dataclass(frozen=True)
class Retrain(Training):
    """Train the heads of the agents in RUN again, on the latents in DATA, and evaluate the agents.

    Encoders and trunks are not changed. OUT receives the same files as from `synther pixels train`. After an
    interruption, the same command resumes.
    """

    run: tyro.conf.Positional[Path] = tyro.MISSING
    """Folder written by `synther pixels train`."""
    data: tyro.conf.Positional[Path] = tyro.MISSING
    """Folder of latents: synthetic ones (`synther pixels upsample`) or real ones (`synther pixels encode`)."""
    real: Path | None = None
    """Folder of real latents (`synther pixels encode`), to mix with the latents in DATA."""
    ratio: float = 0.5
    """With --real: the share of latents from DATA in every batch."""
    precision: Literal["auto", "float32", "tf32"] = "auto"
    """Precision of the computation. auto: tf32 on a GPU, float32 on a CPU."""


@dataclass(frozen=True)
class Evaluate(options.Output):
    """Play episodes with the agents in RUN, and write result.json there.

    This can run on another machine than the training. After an interruption, the same command resumes.
    """

    run: tyro.conf.Positional[Path] = tyro.MISSING
    """Folder written by `synther pixels train` or `retrain`, or a copy of its policy.safetensors and .json files."""
    episodes: int = 10
    """Number of episodes for each seed."""
    env_id: str | None = None
    """Id of the environment, such as dm_control/walker-walk-v0, if the frames of RUN did not name it."""
    repeat: int | None = None
    """Number of times that each action is repeated. Default: as in the frames of RUN, or 2."""
    workers: int | None = None
    """Number of processes that play episodes. Default: all cores."""


def pixels(arguments: list[str]) -> None:
    action, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if action not in ACTIONS:
        options.parse("pixels", Pixels, arguments)  # prints help or an error for an unknown action, and exits
    ACTIONS[action](rest)


def _train(arguments: list[str]) -> None:
    if set(arguments) <= {"-h", "--help"}:
        options.parse("pixels train", Train, arguments)  # prints help and exits, without importing PyTorch
    from synther.envs.pixels import check_task
    from synther.experiments.pixels import kind_of, train_to
    from synther.experiments.specs import PixelRun
    from synther.pixels import files
    from synther.pixels.agent import PIXEL_ALGORITHMS

    config = kind_of(options.positional(Train, arguments, PIXEL_ALGORITHMS, "drq_bc"))  # decides the agent's options
    # The option `features` is hidden: it only has an effect when heads are trained alone.
    chosen, agent = options.parse_with_agent("pixels train", Train, arguments, config(), "features")
    spec = options.build(PixelRun, chosen, name=chosen.out.name, agent=agent)
    frames = files.read(chosen.frames, not chosen.quiet)
    if chosen.evaluate and chosen.env_id is not None:
        check_task(chosen.env_id, frames.action.shape[1])  # before the training, not after it
    trained = train_to(spec, frames, chosen.out, progress=not chosen.quiet)
    _print(chosen.json, chosen.out, _evaluated(chosen, trained), f"{chosen.algorithm} on frames")


def _encode(arguments: list[str]) -> None:
    chosen = options.parse("pixels encode", Encode, arguments)
    from synther.experiments.pixels import encode_to
    from synther.pixels import files

    frames = files.read(chosen.frames, not chosen.quiet)
    how = chosen.passed("features", "shifts", "pairs", "seed", "device")
    written = encode_to(chosen.run, frames, chosen.out, **how)
    facts = {"frames": len(frames), "files": list(map(str, written))}
    figures = [("frames", f"{len(frames):,}"), ("folder", str(chosen.out))]
    answer(chosen.json, facts, figures, f"latents of {seeds(len(written))}")


def _upsample(arguments: list[str]) -> None:
    chosen = options.parse("pixels upsample", Upsample, arguments)
    from synther.experiments.pixels import upsample

    how = chosen.passed("device", "precision")
    written = upsample(chosen.latents, chosen.out, chosen.settings(), chosen.samples, **how)
    facts = {"samples": chosen.samples, "files": list(map(str, written))}
    figures = [("rows of each seed", f"{chosen.samples:,}"), ("folder", str(chosen.out))]
    answer(chosen.json, facts, figures, f"synthetic latents of {seeds(len(written))}")


def _retrain(arguments: list[str]) -> None:
    chosen = options.parse("pixels retrain", Retrain, arguments)
    from synther.experiments.pixels import identity, retrain_to, stored
    from synther.experiments.specs import PixelRun

    features, sources = stored(chosen.data, identity(chosen.run))
    mixed = chosen.passed("ratio")
    if chosen.real is not None:
        others, mixed["real"] = stored(chosen.real, identity(chosen.run))
        if others != features:
            raise ConfigError(f"expected latents of {features} in {chosen.real}, as in {chosen.data}, got {others}")
    spec = options.build(PixelRun, chosen, name=chosen.out.name)
    trained = retrain_to(spec, chosen.run, sources, chosen.out, features=features, **mixed)
    _print(chosen.json, chosen.out, _evaluated(chosen, trained), f"heads on the latents in {chosen.data}")


def _evaluate(arguments: list[str]) -> None:
    chosen = options.parse("pixels evaluate", Evaluate, arguments)
    from synther.experiments.evaluation import evaluate

    found = evaluate(chosen.run, **chosen.passed("episodes", "env_id", "repeat", "workers"))
    title = f"{chosen.run}, {chosen.episodes} episode{'s' * (chosen.episodes > 1)} of each seed"
    _print(chosen.json, chosen.run, found, title)


def _evaluated(chosen: Training, trained: Result) -> Result:
    """Evaluate the agents and return the result. If frames cannot be rendered here, warn and return `trained`."""
    from synther.experiments.evaluation import evaluate, why_not

    if not chosen.evaluate:
        return trained
    obstacle = why_not(chosen.out)
    if obstacle is not None:
        log.warning("the agents are trained, but not evaluated: %s", obstacle)
        return trained
    return evaluate(chosen.out, **chosen.passed("episodes", "workers"))


def _print(as_json: bool, folder: Path, result: Result, title: str) -> None:
    (arm,) = result.curves
    figures = of_run(result, arm, folder, missing=f"none yet: synther pixels evaluate {folder}")
    answer(as_json, {**result.to_json(), "folder": str(folder)}, figures, f"{title}: mean ± std")


ACTIONS = {"train": _train, "encode": _encode, "upsample": _upsample, "retrain": _retrain, "evaluate": _evaluate}

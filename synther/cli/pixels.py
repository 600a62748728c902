"""`synther pixels train|encode|upsample|retrain|evaluate ...`"""

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
    """Pixel agents, and synthetic latents for them, in five steps.

    `train` an agent on frames; `encode` the frames to latents, the outputs of its trunks; `upsample` the latents with
    diffusion models; `retrain` the agent's heads on them; `evaluate` the agents where frames can be rendered. Each step
    has its own options: see `synther pixels train --help` and so on.
    """

    action: tyro.conf.Positional[Literal["train", "encode", "upsample", "retrain", "evaluate"]] = tyro.MISSING
    """train, encode, upsample, retrain or evaluate."""


@dataclass(frozen=True)
class Training(PixelOptions, options.Output):
    """How agents are trained and evaluated."""

    out: options.Results = tyro.MISSING
    evaluate: options.On = True
    """Leave the evaluation to `synther pixels evaluate`."""


@dataclass(frozen=True)
class Train(SeedOptions, Training):
    """Train agents on FRAMES with several seeds at once, and evaluate them.

    OUT receives log.jsonl, TensorBoard events, checkpoint.safetensors, policy.safetensors and, after the evaluation,
    result.json. After an interruption, the same command resumes. `synther pixels train ALGORITHM --help` shows the
    options of that algorithm.
    """

    algorithm: tyro.conf.Positional[str] = tyro.MISSING
    """drq_bc or bc."""
    frames: tyro.conf.Positional[str] = tyro.MISSING
    """V-D4RL's files (a folder or one .hdf5), a folder of .npz episodes, a Minari data set, or what `collect` wrote."""
    env_id: str | None = None
    """The environment, if FRAMES do not name it: dm_control/walker-walk-v0."""
    precision: Literal["auto", "float32", "tf32", "bf16"] = "auto"
    """auto is bf16 on a GPU and float32 on a CPU."""


@dataclass(frozen=True)
class Encode(options.Output):
    """Encode FRAMES with the trunks of RUN. OUT receives seed-0.npz and so on."""

    run: tyro.conf.Positional[Path] = tyro.MISSING
    """Folder of `synther pixels train`."""
    frames: tyro.conf.Positional[str] = tyro.MISSING
    """The frames that RUN was trained on."""
    out: Path = tyro.MISSING
    """Folder for the latents."""
    features: Literal["both", "actor", "critic"] | None = None
    """Whose trunk makes the latents: each its own, or one for both. Default: all trunks. BC has an actor only."""
    shifts: int = 8
    """Random shifts with which each frame is encoded, as rows of their own; 0 for none."""
    pairs: options.Flag = False
    """Only latents and actions, which is all that the heads of BC learn from."""
    seed: int = 0
    """Seed of the random shifts."""
    device: str = "auto"
    """Device to run on: auto (a GPU if there is one), cpu, cuda or cuda:N."""


@dataclass(frozen=True)
class Upsample(options.Fitting):
    """Fit a model on the LATENTS of each seed, and write synthetic latents.

    OUT receives seed-0.hdf5 and so on, and the models. After an interruption, the same command resumes.
    """

    of_latents = True
    latents: tyro.conf.Positional[Path] = tyro.MISSING
    """Folder of `synther pixels encode`."""
    out: options.Results = tyro.MISSING
    samples: int = 5_000_000
    """Synthetic rows of each seed. K and M suffixes are accepted."""
    seed: Annotated[int, tyro.conf.Suppress] = 0  # each has its own
    fraction: Annotated[float | None, tyro.conf.Suppress] = None


@dataclass(frozen=True)
class Retrain(Training):
    """Retrain the heads of RUN on the latents in DATA, and evaluate the agents.

    Encoder and trunks are not changed. OUT receives the same files as from `train`. After an interruption, the same
    command resumes.
    """

    run: tyro.conf.Positional[Path] = tyro.MISSING
    """Folder of `synther pixels train`."""
    data: tyro.conf.Positional[Path] = tyro.MISSING
    """Folder of `synther pixels upsample`, or of `encode` for the real latents."""
    real: Path | None = None
    """Folder of `encode`, whose real latents are mixed with those in DATA."""
    ratio: float = 0.5
    """With --real: the share of latents from DATA in every batch."""
    precision: Literal["auto", "float32", "tf32"] = "auto"
    """auto is tf32 on a GPU and float32 on a CPU."""


@dataclass(frozen=True)
class Evaluate(options.Output):
    """Play episodes with the agents of RUN, and write its result.json. This may run on another machine than `train`.

    After an interruption, the same command resumes.
    """

    run: tyro.conf.Positional[Path] = tyro.MISSING
    """Folder of `synther pixels train` or `retrain`, or a copy of its policy.safetensors and .json files."""
    episodes: int = 10
    """Episodes of each seed."""
    env_id: str | None = None
    """The environment, if the frames of RUN do not name it: dm_control/walker-walk-v0."""
    repeat: int | None = None
    """How often each action is repeated. Default: as in the frames of RUN, or 2."""
    workers: int | None = None
    """Processes that play episodes. Default: all cores."""


def pixels(arguments: list[str]) -> None:
    action, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if action not in ACTIONS:
        options.parse("pixels", Pixels, arguments)  # exits: it is --help, or an unknown action
    ACTIONS[action](rest)


def _train(arguments: list[str]) -> None:
    """The options of the agent depend on the algorithm, so that is looked for first."""
    if set(arguments) <= {"-h", "--help"}:
        options.parse("pixels train", Train, arguments)  # prints help and exits, without importing PyTorch
    from synther.envs.pixels import check_task
    from synther.experiments.pixels import kind_of, train_to
    from synther.experiments.specs import PixelRun
    from synther.pixels import files
    from synther.pixels.agent import PIXEL_ALGORITHMS

    config = kind_of(options.positional(Train, arguments, PIXEL_ALGORITHMS, "drq_bc"))
    # Features only matter to heads that are trained alone.
    chosen, agent = options.parse_with_agent("pixels train", Train, arguments, config(), "features")
    spec = options.build(PixelRun, chosen, name=chosen.out.name, agent=agent)
    frames = files.read(chosen.frames, not chosen.quiet)
    if chosen.evaluate and chosen.env_id is not None:
        check_task(chosen.env_id, frames.action.shape[1])  # now, not when all is trained
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
    """The result with its evaluation, if frames can be rendered here."""
    from synther.experiments.evaluation import evaluate, why_not

    if not chosen.evaluate:
        return trained
    obstacle = why_not(chosen.out)
    if obstacle is not None:
        log.warning("trained, but not evaluated: %s", obstacle)
        return trained
    return evaluate(chosen.out, **chosen.passed("episodes", "workers"))


def _print(as_json: bool, folder: Path, result: Result, title: str) -> None:
    (arm,) = result.curves
    figures = of_run(result, arm, folder, missing=f"none yet: synther pixels evaluate {folder}")
    answer(as_json, {**result.to_json(), "folder": str(folder)}, figures, f"{title}: mean ± std")


ACTIONS = {"train": _train, "encode": _encode, "upsample": _upsample, "retrain": _retrain, "evaluate": _evaluate}

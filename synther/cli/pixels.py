"""`synther pixels train|encode|upsample|retrain|evaluate ...`"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from synther.cli import options
from synther.cli.answer import answer, of_run, seeds
from synther.experiments.spec import Tracked

if TYPE_CHECKING:
    from synther.experiments.results import Result
    from synther.experiments.specs import PixelRun
    from synther.pixels.agent import PixelConfig

log = logging.getLogger(__name__)

Action = Literal["train", "encode", "upsample", "retrain", "evaluate"]


@dataclass(frozen=True)
class Pixels(options.Output):
    """Pixel agents, and synthetic latents for them, in five steps with options of their own.

    `train` an agent on frames; `encode` the frames to what its trunks make of them; `upsample` these latents with
    diffusion models; `retrain` the agent's heads on them; `evaluate` what came of it where frames can be drawn.
    `synther pixels train --help` shows the options of `train`, and so on.
    """

    action: tyro.conf.Positional[Action] = tyro.MISSING
    """train, encode, upsample, retrain or evaluate."""


@dataclass(frozen=True)
class Training(Tracked, options.Output):
    """How agents are trained and evaluated."""

    out: Path = tyro.MISSING
    """Folder for the results."""
    updates: int = 550_000
    """Updates of every seed. The default is V-D4RL's. K and M suffixes are accepted."""
    measure_every: int = 10_000
    """Updates between two lines of the log."""
    episodes: int = 10
    """Of each seed, at the end."""
    evaluate: options.On = True
    """Leave the evaluation to `synther pixels evaluate`."""
    workers: int | None = None
    """Processes that play episodes. Default: all cores."""

    def spec(self, *names: str, **more: Any) -> PixelRun:
        """The run, with some of the options beside those of every training."""
        from synther.experiments.specs import PixelRun

        own = {name: getattr(self, name) for name in ("updates", "measure_every", "episodes", "workers", *names)}
        return PixelRun(self.out.name, **own, **options.group(self, Tracked), **more)


@dataclass(frozen=True)
class Train(Training):
    """Train agents on FRAMES with several seeds at once, and evaluate them.

    OUT receives log.jsonl, TensorBoard events, checkpoint.safetensors, policy.safetensors and, once they are evaluated,
    result.json. After an interruption, the same command resumes. `synther pixels train ALGORITHM --help` shows
    the options of that algorithm.
    """

    algorithm: tyro.conf.Positional[str] = tyro.MISSING
    """drq_bc or bc."""
    frames: tyro.conf.Positional[str] = tyro.MISSING
    """V-D4RL's files (a folder or one .hdf5), a folder of .npz episodes, a Minari data set, or what `collect` wrote."""
    seeds: int = 6
    """Trainings at once, which differ in their seed alone."""
    seed: int = 0
    """The first seed; the same seed on the same machine gives the same result."""
    env_id: str | None = None
    """The environment, where FRAMES do not name it: dm_control/walker-walk-v0."""
    precision: Literal["auto", "float32", "tf32", "bf16"] = "auto"
    """auto is bf16 on a GPU and float32 on a CPU."""


@dataclass(frozen=True)
class Encode(options.Output):
    """Write FRAMES as the trunks of RUN, a folder of `train`, see them: OUT receives seed-0.npz and so on."""

    run: tyro.conf.Positional[Path] = tyro.MISSING
    """Folder of `synther pixels train`."""
    frames: tyro.conf.Positional[str] = tyro.MISSING
    """What RUN was trained on."""
    out: Path = tyro.MISSING
    """Folder for the latents."""
    features: Literal["both", "actor", "critic"] | None = None
    """Whose trunk makes the latents: each its own, or one for both. Default: all trunks. BC has an actor only."""
    seed: int = 0
    """Of the random shifts."""
    device: str = "auto"
    """auto (the GPU where there is one), cpu, cuda or cuda:N."""


@dataclass(frozen=True)
class Upsample(options.Fitting):
    """Fit a model on each seed's LATENTS, all of them together, and write synthetic ones.

    OUT receives seed-0.hdf5 and so on, and their models. After an interruption, the same command resumes.
    """

    of_latents = True
    preset: str = "auto"
    """A name of `synther presets`; auto is laptop without a GPU, best with one, each with what suits latents."""
    latents: tyro.conf.Positional[Path] = tyro.MISSING
    """Folder of `synther pixels encode`."""
    out: Path = tyro.MISSING
    """Folder for the results."""
    samples: int = 5_000_000
    """Synthetic rows of each seed. K and M suffixes are accepted."""
    seed: Annotated[int, tyro.conf.Suppress] = 0  # each has its own
    fraction: Annotated[float | None, tyro.conf.Suppress] = None


@dataclass(frozen=True)
class Retrain(Training):
    """Train the heads of RUN again, on the latents in DATA, and evaluate the agents.

    Encoder and trunks stay as they are. OUT receives what `train` leaves behind. Interrupted, the same command goes on
    where it stopped.
    """

    run: tyro.conf.Positional[Path] = tyro.MISSING
    """Folder of `synther pixels train`."""
    data: tyro.conf.Positional[Path] = tyro.MISSING
    """Folder of `synther pixels upsample`, or of `encode` for the real latents."""
    precision: Literal["auto", "float32", "tf32"] = "auto"
    """auto is tf32 on a GPU and float32 on a CPU."""


@dataclass(frozen=True)
class Evaluate(options.Output):
    """Play episodes with the agents of RUN, and write its result.json. It need not be the machine that trained them.

    After an interruption, the same command resumes.
    """

    run: tyro.conf.Positional[Path] = tyro.MISSING
    """Folder of `synther pixels train` or `retrain`, or a copy of its policy.safetensors and .json files."""
    episodes: int = 10
    """Of each seed."""
    env_id: str | None = None
    """The environment, where the frames of RUN do not name it: dm_control/walker-walk-v0."""
    repeat: int | None = None
    """How often each action is repeated. Default: as in the frames of RUN, or 2."""
    workers: int | None = None
    """Processes that play episodes. Default: all cores."""


def run(arguments: list[str]) -> None:
    action, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if action not in ACTIONS:
        options.parse("pixels", Pixels, arguments)  # which leaves: it is --help, or no action that there is
    ACTIONS[action][1](rest)


def _train(arguments: list[str]) -> None:
    chosen, agent = _parse_train(arguments)
    from synther.envs.pixels import check_task
    from synther.experiments.pixels.stage_one import train_to
    from synther.pixels import files

    own = {option.name: getattr(agent, option.name) for option in fields(agent) if option.init}
    spec = chosen.spec("algorithm", "seeds", "seed", "env_id", "precision", agent=own)
    frames = files.read(chosen.frames, not chosen.quiet)
    if chosen.evaluate and chosen.env_id is not None:
        check_task(chosen.env_id, frames.action.shape[1])  # now, not when all is trained
    trained = train_to(spec, frames, chosen.out, progress=not chosen.quiet)
    _print(chosen, _evaluated(chosen, trained), f"{chosen.algorithm} on frames")


def _parse_train(arguments: list[str]) -> tuple[Train, PixelConfig]:
    """The options of the agent follow from the algorithm, so that is looked for first."""
    if set(arguments) <= {"-h", "--help"}:
        options.parse("pixels train", Train, arguments)  # which leaves, without waiting for PyTorch
    from synther.experiments.pixels.stage_one import kind_of
    from synther.pixels.agent import PIXEL_ALGORITHMS

    config = kind_of(options.positional(Train, arguments, PIXEL_ALGORITHMS, "drq_bc"))
    # Features only matter to heads that are trained alone.
    chosen, agent = options.parse_with_agent("pixels train", Train, arguments, config(), "features")
    kind_of(chosen.algorithm)  # which refuses unknown ones
    return chosen, agent


def _encode(arguments: list[str]) -> None:
    chosen = options.parse("pixels encode", Encode, arguments)
    from synther.experiments.pixels.stage_one import encode_to
    from synther.pixels import files

    frames = files.read(chosen.frames, not chosen.quiet)
    written = encode_to(
        chosen.run,
        frames,
        chosen.out,
        features=chosen.features,
        seed=chosen.seed,
        device=chosen.device,
        progress=not chosen.quiet,
    )
    facts = {"frames": len(frames), "files": list(map(str, written))}
    figures = [("frames", f"{len(frames):,}"), ("folder", str(chosen.out))]
    answer(chosen.json, facts, figures, f"latents of {seeds(len(written))}")


def _upsample(arguments: list[str]) -> None:
    chosen = options.parse("pixels upsample", Upsample, arguments)
    from synther.experiments.pixels.latents import upsample

    settings, quiet = chosen.settings(), chosen.quiet
    written = upsample(
        chosen.latents,
        chosen.out,
        settings,
        chosen.samples,
        device=chosen.device,
        precision=chosen.precision,
        progress=not quiet,
    )
    facts = {"samples": chosen.samples, "files": list(map(str, written))}
    figures = [("rows of each seed", f"{chosen.samples:,}"), ("folder", str(chosen.out))]
    answer(chosen.json, facts, figures, f"synthetic latents of {seeds(len(written))}")


def _retrain(arguments: list[str]) -> None:
    chosen = options.parse("pixels retrain", Retrain, arguments)
    from synther.experiments.pixels.heads import retrain_to
    from synther.experiments.pixels.latents import stored
    from synther.experiments.pixels.stage_one import identity

    features, sources = stored(chosen.data, identity(chosen.run))
    trained = retrain_to(
        chosen.spec("precision"), chosen.run, sources, chosen.out, features=features, progress=not chosen.quiet
    )
    _print(chosen, _evaluated(chosen, trained), f"heads on the latents in {chosen.data}")


def _evaluate(arguments: list[str]) -> None:
    chosen = options.parse("pixels evaluate", Evaluate, arguments)
    from synther.experiments.evaluation import evaluate

    found = evaluate(
        chosen.run,
        episodes=chosen.episodes,
        env_id=chosen.env_id,
        repeat=chosen.repeat,
        workers=chosen.workers,
        progress=not chosen.quiet,
    )
    _print(chosen, found, f"{chosen.run}, {chosen.episodes} episode{'s' * (chosen.episodes > 1)} of each seed")


def _evaluated(chosen: Training, trained: Result) -> Result:
    """With what its agents are worth, where that can be found out here."""
    from synther.experiments.evaluation import evaluate, why_not

    if not chosen.evaluate:
        return trained
    obstacle = why_not(chosen.out)
    if obstacle is not None:
        log.warning("trained, and not evaluated: %s", obstacle)
        return trained
    return evaluate(chosen.out, episodes=chosen.episodes, workers=chosen.workers, progress=not chosen.quiet)


def _print(chosen: Training | Evaluate, result: Result, title: str) -> None:
    folder = chosen.run if isinstance(chosen, Evaluate) else chosen.out
    (arm,) = result.curves
    figures = of_run(result, arm, folder, missing=f"none yet: synther pixels evaluate {folder}")
    answer(chosen.json, {**result.to_json(), "folder": str(folder)}, figures, f"{title}: mean ± std")


ACTIONS: dict[str, tuple[type[options.Output], Callable[[list[str]], None]]] = {
    "train": (Train, _train),
    "encode": (Encode, _encode),
    "upsample": (Upsample, _upsample),
    "retrain": (Retrain, _retrain),
    "evaluate": (Evaluate, _evaluate),
}
"""Its options, and what does it."""

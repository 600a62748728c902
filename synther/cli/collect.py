"""`synther collect ENV --steps 100K --policy AGENT.safetensors --out DATA`, `synther collect RUN --out DATA`

With `--pixels` the frames are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import tyro

from synther.cli import options
from synther.cli.answer import answer
from synther.errors import ConfigError

if TYPE_CHECKING:
    from synther.collect.recorder import FrameRecorder
    from synther.data.transitions import Transitions

_Kept = TypeVar("_Kept")

_STEPS, _POLICY = 100_000, "random"


@dataclass(frozen=True)
class Collect(options.Output):
    """Keep experience as a data set: episodes of a policy in an environment, or the real buffer of an online run.

    Episodes are played on all cores. OUT appears when it is whole; one that exists is not replaced. With --pixels the
    frames of a task of the dm_control suite are kept, which takes EGL or OSMesa; stopped, the same command goes on from
    the episodes in OUT.partial.
    """

    source: tyro.conf.Positional[str] = tyro.MISSING
    """An id of Gymnasium or of the dm_control suite, such as Hopper-v4, or a folder written by `synther online`."""
    out: str = tyro.MISSING
    """A file (.npz, .hdf5, .parquet; .hdf5 for frames), minari:NAMESPACE/NAME-v0, or a folder for a Minari data set."""
    steps: int | None = None
    """Rows to collect in an environment. Default: 100K. K and M suffixes are accepted."""
    policy: str | None = None
    """random (the default), FILE.npz:ENV/LEVEL, or an agent's file (.safetensors) of `train` or `online`."""
    member: int | None = None
    """Index of the agent in its file. Default: 0, the first."""
    noise: float | None = None
    """Standard deviation of noise added to an agent's actions, scaled to [-1, 1]. Default: no noise."""
    env_options: str | None = None
    """Arguments of gymnasium.make, as JSON: '{"max_episode_steps": 500}'."""
    seed: int | None = None
    """The same seed gives the same rows on any number of cores. Default: 0."""
    pixels: options.Flag = False
    """Keep frames of 84 x 84 pixels, while the policy acts on states: for pixel agents."""
    repeat: int | None = None
    """With --pixels: how often each action is repeated. Default: 2. --steps counts decisions."""


def run(arguments: list[str]) -> None:
    chosen = options.parse("collect", Collect, arguments)
    if chosen.pixels:
        _keep_frames(chosen)
        return
    if chosen.repeat is not None:
        raise ConfigError("--repeat is for frames: expected --pixels with it")
    from synther.collect.rows import Summary, target_of
    from synther.data import formats

    target = target_of(chosen.out)
    rows = _rows(chosen)
    formats.write(rows, target)
    found = Summary.of(rows)
    facts = {"data": str(target), "env_id": rows.env_id, **asdict(found)}
    figures = [("environment", rows.env_id or "-"), ("rows", f"{found.rows:,}"), _episodes(found.episodes, found.whole)]
    if found.mean_return is not None:
        figures.append(("return", f"{found.mean_return:,.1f} ± {found.std:,.1f}"))
    if found.score is not None:
        figures.append(("score", f"{found.score:.1f}"))
    figures.append(("data", str(target)))
    answer(chosen.json, facts, figures)


def _keep_frames(chosen: Collect) -> None:
    from synther.collect.recorder import frames_target, save_frames

    target = frames_target(chosen.out)
    found = save_frames(_frames(chosen), target, progress=not chosen.quiet)
    figures = [
        ("environment", found.env_id or "-"),
        ("frames", f"{found.frames:,}"),
        ("decisions", f"{found.decisions:,}"),
        _episodes(found.episodes, found.whole),
    ]
    if found.mean_return is not None:
        figures.append(("return", f"{found.mean_return:,.1f} ± {found.std:,.1f}"))
    figures.append(("data", str(target)))
    answer(chosen.json, {"data": str(target), **asdict(found)}, figures)


def _episodes(count: int, whole: int) -> tuple[str, str]:
    return "episodes", f"{count:,}" + (f", {count - whole:,} of them cut" if count > whole else "")


def _frames(chosen: Collect) -> FrameRecorder:
    from synther.collect.frames import record_frames, record_run_frames
    from synther.envs.pixels import REPEAT

    run = _run_of(chosen)
    if run is not None:
        return record_run_frames(run, progress=not chosen.quiet)
    if chosen.env_options is not None:
        raise ConfigError("--env-options are for rows: frames are drawn of tasks of the dm_control suite as they are")
    return _played(chosen, record_frames, repeat=REPEAT if chosen.repeat is None else chosen.repeat)


def _rows(chosen: Collect) -> Transitions:
    from synther.collect.rows import buffer_of, roll_out

    run = _run_of(chosen)
    if run is not None:
        return buffer_of(run)
    return _played(chosen, roll_out, options=options.env_options(chosen.env_options))


def _run_of(chosen: Collect) -> Path | None:
    """The folder of a run, where the source is one."""
    folder = Path(chosen.source).expanduser()
    if not folder.is_dir():
        return None
    own = ("steps", "policy", "member", "noise", "env_options", "seed", "repeat")
    given = [name.replace("_", "-") for name in own if getattr(chosen, name) is not None]
    if given:
        raise ConfigError(f"{folder} is a run, whose rows are there already: --{given[0]} is for an environment")
    return folder


def _played(chosen: Collect, play: Callable[..., _Kept], **more: Any) -> _Kept:
    """What comes of `play`ing the policy in the environment."""
    return play(
        chosen.source,
        _POLICY if chosen.policy is None else chosen.policy,
        _STEPS if chosen.steps is None else chosen.steps,
        member=chosen.member,
        noise=chosen.noise,
        seed=chosen.seed or 0,
        progress=not chosen.quiet,
        **more,
    )

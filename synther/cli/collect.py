"""`synther collect ENV --steps 100K --policy AGENT.safetensors --out DATA`, `synther collect RUN --out DATA`"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro

from synther.cli import options
from synther.cli.answer import answer
from synther.folder import digest_of, written_once


@dataclass(frozen=True)
class Collect(options.Output):
    """Keep experience as a data set: episodes of a policy in an environment, or the real buffer of an online run.

    Episodes are played on all cores. OUT appears when it is complete; an existing OUT is not replaced. With --pixels,
    frames of a task of the dm_control suite are rendered, which needs EGL or OSMesa. After an interruption, the same
    command resumes from the episodes in OUT.partial.
    """

    source: tyro.conf.Positional[str] = tyro.MISSING
    """An id of Gymnasium or of the dm_control suite, such as Hopper-v4, or a folder written by `synther online`."""
    out: str = tyro.MISSING
    """A file (.npz, .hdf5, .parquet; .hdf5 for frames), minari:NAMESPACE/NAME-v0, or a folder for a Minari data set."""
    steps: int | None = None
    """Rows to collect in an environment. Default: 100K. K and M suffixes are accepted."""
    policy: tuple[str, ...] = ()
    """random (the default), FILE.npz:ENV/LEVEL, or agents' files (.safetensors); of several, equal shares."""
    member: int | None = None
    """Index of the agent in its file. Default: 0, the first."""
    noise: float | None = None
    """Standard deviation of noise added to an agent's actions, scaled to [-1, 1]. Default: no noise."""
    stochastic: options.Flag = False
    """Let an agent draw its actions from its distribution, as in training (SAC and its relatives)."""
    env_options: dict[str, Any] | None = None
    """Arguments of gymnasium.make: '{"max_episode_steps": 500}'."""
    seed: int | None = None
    """The same seed gives the same rows on any number of cores. Default: 0."""
    pixels: options.Flag = False
    """Keep frames of 84 x 84 pixels, while the policy acts on states: for pixel agents."""
    repeat: int | None = None
    """With --pixels: how often each action is repeated. Default: 2. --steps counts decisions."""
    shadow_size: int | None = None
    """With --pixels: width of the shadow map. Default: 4,096, as dm_control's. 512 takes half the time."""
    workers: int | None = None
    """Processes that play episodes, or render them. Default: all cores."""


def collect(arguments: list[str]) -> None:
    chosen = options.parse("collect", Collect, arguments)
    from synther.collect.frames import frames_target
    from synther.formats.targets import target_of

    place = frames_target if chosen.pixels else target_of
    target, collected = place(chosen.out, new=False), _frames if chosen.pixels else _rows
    made = {name: value for name, value in vars(chosen).items() if name not in ("out", "json", "quiet", "workers")}
    names = *(name.partition(":")[0] for name in chosen.policy), f"{chosen.source}/replay.npz"
    made["files"] = [digest_of(Path(name)) for name in names if Path(name).is_file()]
    with nullcontext(True) if isinstance(target, str) else written_once(target, made) as unfinished:
        if not unfinished:
            return answer(chosen.json, {"data": str(target)}, [("data", f"{target}, finished already")])
        found = collected(chosen, target)
    cut = found["episodes"] - found["whole"]
    figures = [("environment", found["env_id"] or "-")]
    figures += [(name, f"{found[name]:,}") for name in ("frames", "rows") if name in found]
    figures.append(("episodes", f"{found['episodes']:,}" + (f", {cut:,} of them cut" if cut else "")))
    if found["mean_return"] is not None:
        figures.append(("return", f"{found['mean_return']:,.1f} ± {found['std']:,.1f}"))
    if found["score"] is not None:
        figures.append(("score", f"{found['score']:.1f}"))
    answer(chosen.json, {"data": str(target), **found}, [*figures, ("data", str(target))])


def _rows(chosen: Collect, target: str | Path) -> dict[str, Any]:
    """Write rows; returns their summary."""
    from synther import formats
    from synther.collect.rows import Summary, buffer_of, roll_out

    options.refuse(chosen, ("repeat", "shadow_size"), "is for frames: expected --pixels with it")
    run = _run_of(chosen)
    rows = _played(chosen, roll_out, options=chosen.env_options) if run is None else buffer_of(run)
    formats.write(rows, target)
    return asdict(Summary.of(rows))


def _frames(chosen: Collect, target: str | Path) -> dict[str, Any]:
    """Write frames; returns their summary."""
    from synther.collect.frames import record_frames, record_run_frames, save_frames
    from synther.envs.pixels import REPEAT

    run = _run_of(chosen)
    options.refuse(chosen, ["env_options"], "is for rows: frames are rendered of dm_control's own tasks")
    if run is None:
        more = {"repeat": REPEAT if chosen.repeat is None else chosen.repeat, "shadow_size": chosen.shadow_size}
        recorder = _played(chosen, record_frames, **more)
    else:
        recorder = record_run_frames(run, processes=chosen.workers, **chosen.passed("shadow_size"))
    found = save_frames(recorder, Path(target), progress=not chosen.quiet)
    return {"frames": found.rows + found.episodes, **asdict(found)}  # one more than decisions in each episode


def _run_of(chosen: Collect) -> Path | None:
    """The folder of a run, if SOURCE is one."""
    folder = Path(chosen.source).expanduser()
    if not folder.is_dir():
        return None
    of_environments = "steps", "policy", "member", "noise", "stochastic", "env_options", "seed", "repeat"
    options.refuse(chosen, of_environments, f"is for an environment: {folder} is a run, whose rows exist already")
    return folder


def _played(chosen: Collect, play: Callable[..., Any], **more: Any) -> Any:
    """`play` the policy in the environment."""
    steps = 100_000 if chosen.steps is None else chosen.steps
    how = chosen.passed("member", "noise", "stochastic") | {"seed": chosen.seed or 0, "processes": chosen.workers}
    return play(chosen.source, chosen.policy or "random", steps, **how, **more)

"""The command `synther collect`, for example `synther collect Hopper-v4 --policy AGENT.safetensors --out DATA`."""

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
class Collect(options.Actors):
    """Save experience as a data set: play episodes with a policy, or export the real rows of an online run.

    Episodes are played on all cores. OUT appears when it is complete. An existing OUT is never replaced. With --pixels,
    frames of a dm_control task are saved instead of rows. Rendering needs EGL or OSMesa. After an interruption, the
    same command resumes: with --pixels from the episodes in OUT.partial, otherwise from the start.
    """

    source: tyro.conf.Positional[str] = tyro.MISSING
    """An environment of Gymnasium (Hopper-v4) or the dm_control suite, or a folder written by `synther online`."""
    out: str = tyro.MISSING
    """A new file (.npz, .hdf5 or .parquet; for frames .hdf5), minari:NAMESPACE/NAME-v0, or a new Minari folder."""
    steps: int | None = None
    """Number of rows to collect in an environment. Default: 100K. K and M suffixes are accepted."""
    policy: tuple[str, ...] = ()
    """random (the default), FILE.npz:ENV/LEVEL, or a file of agents (.safetensors).
    Several policies play equal shares of the steps."""
    member: int | None = None
    """Index of the agent in a file of several agents. Default: 0, the first."""
    noise: float | None = None
    """Standard deviation of the noise added to an agent's actions, for actions in [-1, 1]. Default: no noise."""
    stochastic: options.Flag = False
    """Draw an agent's actions from its own distribution, as in training (SAC and related algorithms)."""
    env_options: dict[str, Any] | None = None
    """Arguments for gymnasium.make, as JSON. Example: '{"max_episode_steps": 500}'"""
    seed: int | None = None
    """Random seed. The same seed gives the same rows on any number of cores. Default: 0."""
    pixels: options.Flag = False
    """Save frames of 84 x 84 pixels, for pixel agents. The policy itself acts on states."""
    repeat: int | None = None
    """With --pixels: number of times that each action is repeated (--steps counts it once). Default: 2."""
    shadow_size: int | None = None
    """With --pixels: width of the shadow map. Default: 4,096, as in dm_control. 512 renders in half the time."""
    workers: int | None = None
    """Number of processes that play or render episodes. Default: all cores."""


def collect(arguments: list[str]) -> None:
    chosen = options.parse("collect", Collect, arguments)
    chosen.register_networks()
    from synther.collect.frames import frames_target
    from synther.formats.targets import target_of

    place, collected = (frames_target, _frames) if chosen.pixels else (target_of, _rows)
    target = place(chosen.out, new=False)
    aside = "out", "json", "quiet", "workers", "network"
    made = {name: value for name, value in vars(chosen).items() if name not in aside}
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
        spread = f" ± {found['std']:,.1f}" if found["whole"] > 1 else ""
        figures.append(("return", f"{found['mean_return']:,.1f}{spread}"))
    if found["score"] is not None:
        figures.append(("score", f"{found['score']:.1f}"))
    answer(chosen.json, {"data": str(target), **found}, [*figures, ("data", str(target))])


def _rows(chosen: Collect, target: str | Path) -> dict[str, Any]:
    from synther import formats
    from synther.collect.rows import Summary, buffer_of, roll_out

    options.refuse(chosen, ("repeat", "shadow_size"), "is for frames: add --pixels, or remove it")
    run = _run_of(chosen)
    rows = _played(chosen, roll_out, options=chosen.env_options) if run is None else buffer_of(run)
    formats.write(rows, target)
    return asdict(Summary.of(rows))


def _frames(chosen: Collect, target: str | Path) -> dict[str, Any]:
    from synther.collect.frames import record_frames, record_run_frames, save_frames
    from synther.envs.pixels import REPEAT

    run = _run_of(chosen)
    options.refuse(chosen, ["env_options"], "is not possible with --pixels: the tasks of dm_control have no options")
    if run is None:
        more = {"repeat": REPEAT if chosen.repeat is None else chosen.repeat, "shadow_size": chosen.shadow_size}
        recorder = _played(chosen, record_frames, **more)
    else:
        recorder = record_run_frames(run, processes=chosen.workers, **chosen.passed("shadow_size"))
    found = save_frames(recorder, Path(target), progress=not chosen.quiet)
    return {"frames": found.rows + found.episodes, **asdict(found)}  # each episode has one frame more than actions


def _run_of(chosen: Collect) -> Path | None:
    """Return SOURCE as the folder of a run, or None if it is an environment."""
    folder = Path(chosen.source).expanduser()
    if not folder.is_dir():
        return None
    names = "steps", "policy", "member", "noise", "stochastic", "env_options", "seed", "repeat"
    options.refuse(chosen, names, f"is only for an environment, but {folder} is the folder of a run: remove it")
    return folder


def _played(chosen: Collect, play: Callable[..., Any], **more: Any) -> Any:
    steps = 100_000 if chosen.steps is None else chosen.steps
    how = chosen.passed("member", "noise", "stochastic") | {"seed": chosen.seed or 0, "processes": chosen.workers}
    return play(chosen.source, chosen.policy or "random", steps, **how, **more)

"""The command `synther online`, for example `synther online ENV --agent sac --synthetic --steps 100K --out FOLDER`."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from synther.cli import options
from synther.cli.answer import answer, of_run, over
from synther.errors import ConfigError
from synther.experiments.spec import OnlineOptions, RefreshOptions

if TYPE_CHECKING:
    from synther.experiments.specs import OnlinePixelRun, OnlineRun


@dataclass(frozen=True)
class Online(OnlineOptions, RefreshOptions, options.Fitting):
    """Train agents online in ENV, with several seeds at once, and evaluate them.

    With --synthetic, each seed has a model that is fitted on its experience so far, and half of every batch (--ratio)
    is synthetic. The options of the preset are for these models. OUT receives log.jsonl, TensorBoard events,
    checkpoint.safetensors, replay.npz and result.json. After an interruption, the same command resumes. A step
    is one action in the environment of every seed. Actions are not repeated, also on the dm_control suite. To see the
    options of the agent too, run `synther online ENV --help`.
    """

    env: tyro.conf.Positional[str] = tyro.MISSING
    """An environment of Gymnasium (such as Walker2d-v4) or of the dm_control suite (dm_control/cheetah-run-v0)."""
    out: options.Results = tyro.MISSING
    agent: str = "sac"
    """sac, redq, droq, rlpd, simba, crossq, td3, dqn (for discrete actions), or your own class as module:Class."""
    utd: int | None = None
    """Critic updates for each environment step. Default: depends on the agent, such as 1 for sac and 20 for redq."""
    prior: str | None = None
    """Earlier data of this task: a file, a Minari id or a name. Half of the real rows in every batch come from it."""
    prior_folder: Path | None = None
    """With --prior: folder to search for data sets by name."""
    synthetic: options.Flag = False
    """Also train on synthetic rows. Each seed has a model of its own."""
    samples: int | None = None
    """With --synthetic: number of synthetic rows for each seed. Default: 1M on a GPU, 100K on a CPU."""
    pixels: options.Flag = False
    """Train pixel agents. `synther online ENV --pixels --help` shows their options."""
    env_options: dict[str, Any] | None = None
    """Arguments for gymnasium.make, as JSON. Example: '{"max_episode_steps": 500}'"""
    fraction: Annotated[float | None, tyro.conf.Suppress] = None
    minutes: Annotated[float | None, tyro.conf.Suppress] = None


@dataclass(frozen=True)
class OnlinePixels(Online):
    """Train pixel agents (DrQ-v2) online in ENV, with several seeds at once, and evaluate them.

    Agents see the last three frames of a task of the dm_control suite. Rendering needs EGL or OSMesa. With --synthetic,
    models are fitted on the latents of the agents' encoders. After each refresh, the heads of the agents are trained on
    generated latents. OUT receives log.jsonl, TensorBoard events, checkpoint.safetensors, result.json, and all frames
    in `frames`. After an interruption, the same command resumes. A step is one decision of every seed. Every
    action is repeated twice.
    """

    of_latents = True
    env: tyro.conf.Positional[str] = tyro.MISSING
    """Environment: a task of the dm_control suite, such as dm_control/walker-walk-v0."""
    agent: Annotated[str, tyro.conf.Suppress] = "sac"
    prior: Annotated[str | None, tyro.conf.Suppress] = None
    prior_folder: Annotated[Path | None, tyro.conf.Suppress] = None
    env_options: Annotated[dict[str, Any] | None, tyro.conf.Suppress] = None
    utd: Annotated[int | None, tyro.conf.Suppress] = None
    n_step: Annotated[int, tyro.conf.Suppress] = 1
    samples: int | None = 250_000
    """With --synthetic: number of synthetic latents for each seed."""
    updates_per_refresh: int = 5_000
    """With --synthetic: updates of the heads on synthetic latents after each refresh. The latents are then deleted."""
    shadow_size: int | None = None
    """Width of the shadow map in pixels. Default: 4,096, as in dm_control. With 512, rendering takes half the time."""
    learning_starts: int = 2_000
    evaluate_every: int = 10_000
    workers: int | None = None
    """Number of processes that render environments, and of processes that play episodes. Default: all cores."""
    precision: Literal["auto", "float32", "tf32"] = "auto"
    """Precision of the agents. auto: bf16 on a GPU, float32 on a CPU. Generators choose their precision themselves."""


def online(arguments: list[str]) -> None:
    if set(arguments) <= {"-h", "--help"}:
        options.parse("online", Online, arguments)  # prints help and exits, without importing PyTorch
    if not {"--synthetic", "-h", "--help"} & set(arguments):
        names = [*(option.name for option in fields(RefreshOptions)), "samples", "updates_per_refresh"]
        names += ["preset", "fit", "network", "sampler", "noise", "data"]  # groups of options
        of_generators = options.named([f"--{name}" for name in names])
        for option in options.named(arguments):
            if option.partition(".")[0] in of_generators:
                raise ConfigError(f"{option} needs --synthetic, which is not given: add it")
    chosen, spec = _of_pixels(arguments) if "--pixels" in arguments else _of_states(arguments)
    from synther import datasets
    from synther.experiments.online import train_to

    progress, name = not chosen.quiet, chosen.prior
    prior = None if name is None else datasets.read(name, data=chosen.prior_folder, progress=progress).rows
    result = train_to(spec, chosen.out, prior=prior, progress=progress)
    figures = of_run(result, spec.arm, chosen.out, unit="steps")
    facts = {"env": chosen.env, "agent": spec.arm, **result.to_json(), "folder": str(chosen.out)}
    answer(chosen.json, facts, figures, f"{spec.arm} in {chosen.env}, {over(chosen.seeds)}")


def _of_states(arguments: list[str]) -> tuple[Online, OnlineRun]:
    from synther.agents.learner import ONLINE_AGENTS
    from synther.agents.own_code import register_typed
    from synther.compute import pick_device
    from synther.experiments.specs import OnlineRun, Synthetic
    from synther.replay.refit import usual_samples

    register_typed(arguments, online=True)
    name = options.ahead(arguments, agent="sac").agent  # read first: the defaults of the agent's options depend on it
    ONLINE_AGENTS.check(name, "--agent")
    default = ONLINE_AGENTS.get(name).config
    chosen, agent = options.parse_with_agent("online", Online, arguments, default, "utd")
    if chosen.samples is None:
        chosen = replace(chosen, samples=usual_samples(pick_device(chosen.device)))
    # All settings of the generators are stored, not the name of the preset: `auto` depends on the machine.
    more = {"preset": "paper", "changes": chosen.settings().to_json()}
    how = options.build(Synthetic, chosen, **more) if chosen.synthetic else None
    utd = default.utd if chosen.utd is None else chosen.utd
    own: dict[str, Any] = {"algorithm": chosen.agent, "utd": utd, "agent": agent, "synthetic": how}
    return chosen, options.build(OnlineRun, chosen, name=chosen.out.name, env_id=chosen.env, **own)


def _of_pixels(arguments: list[str]) -> tuple[OnlinePixels, OnlinePixelRun]:
    from synther.agents.drq_v2 import DrQv2Config
    from synther.experiments.specs import OnlinePixelRun, SyntheticLatents

    for option in ("--agent", "--utd", "--env-options", "--prior", "--n-step"):
        if option in options.named(arguments):
            raise ConfigError(f"{option} is for agents that observe states: remove it, or remove --pixels (DrQ-v2)")
    chosen, agent = options.parse_with_agent("online", OnlinePixels, arguments, DrQv2Config())
    more = {"updates": chosen.updates_per_refresh, "preset": "paper", "changes": chosen.settings().to_json()}
    how = options.build(SyntheticLatents, chosen, **more) if chosen.synthetic else None
    own = {"utd": 1, "agent": agent, "synthetic": how}
    return chosen, options.build(OnlinePixelRun, chosen, name=chosen.out.name, env_id=chosen.env, **own)

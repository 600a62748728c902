"""`synther online ENV --agent sac --utd 20 --synthetic --steps 100K --seeds 6 --out FOLDER`

With `--pixels` the agents see.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from synther.cli import options
from synther.cli.answer import answer, of_run, over
from synther.errors import ConfigError
from synther.experiments.spec import OnlineOptions

if TYPE_CHECKING:
    from synther.agents.drq_v2 import DrQv2Config
    from synther.agents.sac import SACConfig
    from synther.experiments.results import Result
    from synther.experiments.specs import OnlineRun


@dataclass(frozen=True)
class Online(OnlineOptions, options.Fitting):
    """Let agents act in ENV and learn as they go, with several seeds at once, and evaluate them.

    With --synthetic, half of what they learn from is generated from what they have seen. OUT receives log.jsonl,
    TensorBoard events, checkpoint.safetensors, replay.npz and result.json. Interrupted, the same command goes on where
    it stopped. A step is one decision of every seed; no action is repeated, on the dm_control suite either.
    `synther online ENV --help` shows the options of the agent too; those of the preset are for --synthetic.
    """

    env: tyro.conf.Positional[str] = tyro.MISSING
    """An id of Gymnasium, such as Walker2d-v4, or of the dm_control suite, such as dm_control/cheetah-run-v0."""
    out: Path = tyro.MISSING
    """Folder for the results."""
    agent: Literal["sac", "redq"] = "sac"
    """SAC (two critics), or REDQ (ten, of which a random two say what the others learn)."""
    utd: int | None = None
    """Critic updates for each step. Default: 1 for SAC, 20 for REDQ."""
    synthetic: options.Flag = False
    """Upsample what the agents see, with a generator of each seed's own."""
    ratio: float = 0.5
    """With --synthetic: the share of generated rows in every batch."""
    samples: int | None = None
    """With --synthetic: generated rows of each seed. Default: 1M on a GPU, 100K on a CPU."""
    refresh_every: int = 10_000
    """With --synthetic: steps after which generators are fitted again and all generated rows replaced."""
    refit: Literal["warm", "scratch"] = "warm"
    """From the weights of the fit before, stopped early, or from scratch as in the paper."""
    pixels: options.Flag = False
    """Let agents see: `synther online ENV --pixels --help` shows their options."""
    env_options: str | None = None
    """Arguments of gymnasium.make, as JSON: '{"max_episode_steps": 500}'."""
    fraction: Annotated[float | None, tyro.conf.Suppress] = None
    minutes: Annotated[float | None, tyro.conf.Suppress] = None


@dataclass(frozen=True)
class Seeing(Online):
    """Let agents act in ENV by what they see of it and learn as they go, with several seeds at once.

    They are DrQ-v2, and see three frames of a task of the dm_control suite, which takes EGL or OSMesa. With --synthetic
    latents are generated, what they make of the frames, and their heads learn from them after each refresh. OUT
    receives log.jsonl, TensorBoard events, checkpoint.safetensors, result.json, and in `frames` all that was seen.
    After an interruption, the same command resumes. A step is one decision of every seed, which is taken twice.
    """

    of_latents = True
    preset: str = "auto"
    """A name of `synther presets`; auto is laptop without a GPU, best with one, each with what suits latents."""
    env: tyro.conf.Positional[str] = tyro.MISSING
    """A task of the dm_control suite, such as dm_control/walker-walk-v0."""
    agent: Annotated[Literal["sac", "redq"], tyro.conf.Suppress] = "sac"
    env_options: Annotated[str | None, tyro.conf.Suppress] = None
    utd: Annotated[int | None, tyro.conf.Suppress] = None
    ratio: float = 0.5
    """With --synthetic: the share of generated latents in every batch of the heads."""
    samples: int | None = 250_000
    """With --synthetic: generated latents of each seed."""
    refresh_every: int = 10_000
    """With --synthetic: steps after which frames are encoded, generators fitted and heads trained."""
    updates_per_refresh: int = 5_000
    """With --synthetic: updates of the heads on real and generated latents, after which these are dropped."""
    learning_starts: int = 2_000
    """Learning starts after so many steps with random actions."""
    evaluate_every: int = 10_000
    """Steps between two evaluations; the last step is always evaluated."""
    workers: int | None = None
    """Processes that draw worlds, and those that play episodes; all cores by default."""
    precision: Literal["auto", "float32", "tf32"] = "auto"
    """Of the agents: auto is bf16 on a GPU and float32 on a CPU. Generators choose their own."""


def run(arguments: list[str]) -> None:
    if set(arguments) <= {"-h", "--help"}:
        options.parse("online", Online, arguments)  # which leaves, without waiting for PyTorch
    _check_generators_are_asked_for(arguments)
    answered = _seen(arguments) if "--pixels" in arguments else _sensed(arguments)
    _print(*answered)


_REFRESHING = ("refresh_every", "samples", "ratio", "refit")
"""Options that upsampling has, too."""


_OF_GENERATORS = (*_REFRESHING, "updates_per_refresh", "preset", "fit", "network", "sampler", "noise", "data")


def _check_generators_are_asked_for(arguments: list[str]) -> None:
    """Options of a generator in a run without one would be found out about hours later."""
    if not {"--synthetic", "-h", "--help"} & set(arguments):
        theirs = options.named([f"--{name}" for name in _OF_GENERATORS])
        for option in options.named(arguments):
            if option.partition(".")[0] in theirs:
                raise ConfigError(f"{option} is for --synthetic, without which nothing is generated: add it")


def _sensed(arguments: list[str]) -> tuple[Online, OnlineRun, Result]:
    """Agents of states."""
    chosen, agent = _parse_states(arguments)
    from synther.compute import pick_device
    from synther.experiments.online import train_to
    from synther.experiments.specs import OnlineRun, Synthetic
    from synther.replay.refit import usual_samples

    if chosen.samples is None:
        chosen = replace(chosen, samples=usual_samples(pick_device(chosen.device)))
    how = Synthetic.of(chosen.settings(), **_those(chosen, _REFRESHING)) if chosen.synthetic else None
    made = options.env_options(chosen.env_options)
    spec = OnlineRun(
        chosen.out.name,
        chosen.env,
        chosen.agent,
        agent.utd,
        how,
        _options_of(agent, "utd"),
        env_options=made,
        **options.group(chosen, OnlineOptions),
    )
    return chosen, spec, train_to(spec, chosen.out, progress=not chosen.quiet)


def _seen(arguments: list[str]) -> tuple[Seeing, OnlineRun, Result]:
    """Pixel agents."""
    chosen, agent = _parse_pixels(arguments)
    from synther.experiments.online import train_to
    from synther.experiments.specs import OnlinePixelRun, SyntheticLatents

    how = None
    if chosen.synthetic:
        updates = chosen.updates_per_refresh
        how = SyntheticLatents.of(chosen.settings(), **_those(chosen, _REFRESHING), updates=updates)
    own = options.group(chosen, OnlineOptions)
    spec = OnlinePixelRun(chosen.out.name, chosen.env, synthetic=how, agent=_options_of(agent), **own)
    return chosen, spec, train_to(spec, chosen.out, progress=not chosen.quiet)


def _those(chosen: Online, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(chosen, name) for name in names}


def _options_of(agent: SACConfig | DrQv2Config, *but: str) -> dict[str, Any]:
    return {
        option.name: getattr(agent, option.name) for option in fields(agent) if option.init and option.name not in but
    }


def _parse_states(arguments: list[str]) -> tuple[Online, SACConfig]:
    """The defaults of the agent's options follow from --agent, so that is looked for first."""
    from synther.agents.sac import REDQ_CONFIG, SAC_CONFIG

    default = REDQ_CONFIG if options.ahead(arguments, agent="sac").agent == "redq" else SAC_CONFIG
    parsed, agent = options.parse_with_agent("online", Online, arguments, default, "utd")
    return parsed, agent if parsed.utd is None else replace(agent, utd=parsed.utd)


def _parse_pixels(arguments: list[str]) -> tuple[Seeing, DrQv2Config]:
    from synther.agents.drq_v2 import DrQv2Config

    for option in ("--agent", "--utd", "--env-options"):
        if option in options.named(arguments):
            raise ConfigError(f"{option} is for agents of states: with --pixels they are DrQ-v2, leave it out")
    return options.parse_with_agent("online", Seeing, arguments, DrQv2Config())


def _print(chosen: Online, spec: OnlineRun, result: Result) -> None:
    figures = of_run(result, spec.arm, chosen.out, unit="steps")
    facts = {"env": chosen.env, "agent": spec.arm, **result.to_json(), "folder": str(chosen.out)}
    answer(chosen.json, facts, figures, f"{spec.arm} in {chosen.env}, {over(chosen.seeds)}")

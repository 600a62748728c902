"""`synther online ENV --agent sac --utd 20 --synthetic --steps 100K --seeds 6 --out FOLDER`"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from synther.cli import options
from synther.cli.answer import answer, standing

if TYPE_CHECKING:
    from synther.agents.sac import SACConfig
    from synther.experiments.measurements import Result
    from synther.experiments.online import Plan


@dataclass
class Online(options.Fitting):
    """Let agents act in ENV and learn as they go, with several seeds at once, and say how good they become.

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
    """Updates of the critics for each step; 1 for SAC and 20 for REDQ unless said."""
    steps: int = 100_000
    """Of every seed; 100K is understood."""
    seeds: int = 6
    """Agents at once, which differ in their seed alone."""
    synthetic: bool = False
    """Upsample what the agents see, with a generator of each seed's own."""
    ratio: float = 0.5
    """With --synthetic: the share of generated rows in every batch."""
    samples: int = 1_000_000
    """With --synthetic: generated rows of each seed."""
    refresh_every: int = 10_000
    """With --synthetic: steps after which generators are fitted again and all generated rows replaced."""
    refit: Literal["warm", "scratch"] = "warm"
    """From the weights of the fit before, stopped early, or from scratch as in the paper."""
    random_steps: int = 5_000
    """Steps at the beginning with random actions, from which nothing is learned yet."""
    checkpoint_every: int = 10_000
    """Steps between two checkpoints, at which all environments start over."""
    evaluate_every: int = 5_000
    """Steps between two evaluations; the last step is always evaluated."""
    episodes: int = 10
    """Of each seed and evaluation."""
    workers: int | None = None
    """Processes that play episodes; all cores but one where it is not given."""
    tensorboard: Literal["auto", "on", "off"] = "auto"
    """Write events for TensorBoard into OUT/tensorboard; auto does where it is installed."""
    wandb: str | None = None
    """Have Weights & Biases follow the run, in this project."""
    precision: Literal["auto", "float32", "tf32"] = "auto"
    """Of the agents: auto is tf32 on a GPU and float32 on a CPU. Generators choose their own."""
    fraction: Annotated[float | None, tyro.conf.Suppress] = None
    minutes: Annotated[float | None, tyro.conf.Suppress] = None


def run(arguments: list[str]) -> None:
    chosen, agent = _parse(arguments)
    plan = _plan(chosen, agent)
    from synther.experiments.online import train_to

    result = train_to(plan, chosen.out, progress=not chosen.quiet)
    _print(chosen, plan, result)


def _parse(arguments: list[str]) -> tuple[Online, SACConfig]:
    """The defaults of the agent's options follow from --agent, so that is looked for first."""
    if set(arguments) <= {"-h", "--help"}:
        options.parse("online", Online, arguments)  # which leaves, without waiting for PyTorch
    from synther.agents.sac import REDQ_CONFIG, SAC_CONFIG, SACConfig

    redq = "--agent=redq" in arguments or ["--agent", "redq"] in [arguments[i : i + 2] for i in range(len(arguments))]
    default = REDQ_CONFIG if redq else SAC_CONFIG
    named = [option.name for option in fields(SACConfig) if option.init]
    # Not among the agent's options: --utd, which has a place of its own, and what no online agent can do.
    hidden = [
        ("utd", Annotated[int, tyro.conf.Suppress], default.utd),
        ("normalize", Annotated[bool, tyro.conf.Suppress], field(default=False, init=False)),
    ]
    config: Any = make_dataclass("SACConfig", hidden, bases=(SACConfig,), frozen=True)
    values = {name: getattr(default, name) for name in named}
    group = ("config", Annotated[config, tyro.conf.arg(name="agent")], field(default_factory=lambda: config(**values)))
    kind: type[Any] = make_dataclass("Online", [group], bases=(Online,), namespace={"__doc__": Online.__doc__})
    parsed = options.parse("online", kind, arguments)
    agent = {name: getattr(parsed.config, name) for name in named}
    return parsed, SACConfig(**agent if parsed.utd is None else {**agent, "utd": parsed.utd})


def _plan(chosen: Online, agent: SACConfig) -> Plan:
    from synther.experiments.online import Plan, Upsampling

    upsampling = None
    if chosen.synthetic:
        how = {name: getattr(chosen, name) for name in ("refresh_every", "samples", "ratio", "refit")}
        upsampling = Upsampling(chosen.settings(), **how)
    names = ("steps", "seeds", "seed", "random_steps", "checkpoint_every", "evaluate_every", "episodes", "workers")
    same = {name: getattr(chosen, name) for name in (*names, "device", "precision", "tensorboard", "wandb")}
    return Plan(chosen.env, agent, upsampling=upsampling, **same)


def _print(chosen: Online, plan: Plan, result: Result) -> None:
    final, best = result.final(plan.name), result.best(plan.name)
    figures = [*standing("final", final, "steps"), *standing("best", best, "steps")]
    lost = len(result.diverged[plan.name])
    if lost:
        figures.append(("diverged", f"{lost} of {chosen.seeds} seeds, which no mean counts"))
    spent = ", ".join(f"{name} {seconds:,.0f}" for name, seconds in result.seconds_of.items())
    figures += [
        ("seconds", f"{result.seconds:,.0f} ({spent})"),
        ("steps a second", f"{result.updates_a_second:,.0f}"),
        ("folder", str(chosen.out)),
    ]
    facts = {"env": chosen.env, "agent": plan.name, **result.to_json(), "folder": str(chosen.out)}
    answer(chosen.json, facts, figures, f"{plan.name} in {chosen.env}, {chosen.seeds} seeds: mean ± deviation")

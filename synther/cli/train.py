"""`synther train td3_bc DATA --seeds 8 --out FOLDER`"""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from synther.agents.agent import ALGORITHMS
from synther.agents.algorithm import AgentConfig
from synther.agents.iql import IQLConfig
from synther.agents.td3_bc import TD3BCConfig
from synther.cli import options
from synther.cli.answer import answer
from synther.errors import ConfigError

if TYPE_CHECKING:
    from synther.data.transitions import Transitions
    from synther.experiments.measurements import Result
    from synther.experiments.sources import Source

SAMPLES = 5_000_000


@dataclass
class Train(options.Output):
    """Train agents on DATA, or on synthetic rows, with several seeds at once, and say how good they become.

    OUT receives log.jsonl, checkpoint.safetensors and result.json. Interrupted, the same command goes on where it
    stopped. `synther train ALGORITHM --help` shows the options of that algorithm.
    """

    algorithm: tyro.conf.Positional[str] = tyro.MISSING
    """One of bc, td3_bc, iql, edac, cql."""
    data: tyro.conf.Positional[str] = tyro.MISSING
    """A file (.npz, .hdf5, .parquet), a Minari id or folder, or hopper-sac, which ships with the package."""
    out: Path = tyro.MISSING
    """Folder for the results."""
    seeds: int = 8
    """Trainings at once, which differ in their seed alone."""
    synthetic: str | None = None
    """Train on these rows instead: data, or a model (.safetensors), of which --samples are drawn."""
    augment: Literal["additive", "multiplicative", "dynamics"] | None = None
    """Train on --samples disturbed rows of DATA instead."""
    samples: int | None = None
    """Rows of the model or the augmentation, 5M unless said."""
    ratio: float | None = None
    """With --synthetic or --augment: the share of those rows in every batch; the others are real."""
    fraction: float | None = None
    """Use a random share of the rows of DATA."""
    updates: int = 1_000_000
    """Of every seed; 1M and 100K are understood."""
    evaluate_every: int = 5_000
    """Updates between two evaluations; the last update is always evaluated."""
    episodes: int = 10
    """Of each seed and evaluation."""
    env_id: str | None = None
    """The environment, where DATA does not name it."""
    evaluate: bool = True
    """Train without an environment."""
    workers: int | None = None
    """Processes that play episodes; all cores but one where it is not given."""
    device: str = "auto"
    """auto (the GPU where there is one), cpu, cuda or cuda:N."""
    precision: Literal["auto", "float32", "tf32"] = "auto"
    """auto is tf32 on a GPU and float32 on a CPU."""
    seed: int = 0
    """The first seed; the same seed on the same machine gives the same result."""
    agent: AgentConfig = field(default_factory=TD3BCConfig)


def run(arguments: list[str]) -> None:
    chosen = _parse(arguments)
    _check(chosen)
    from synther.experiments.offline import Plan, train_to
    from synther.experiments.sources import Material

    plan = Plan(
        agent=chosen.agent,
        updates=chosen.updates,
        seeds=chosen.seeds,
        seed=chosen.seed,
        evaluate_every=chosen.evaluate_every,
        episodes=chosen.episodes,
        env_id=chosen.env_id,
        evaluate=chosen.evaluate,
        workers=chosen.workers,
        device=chosen.device,
        precision=chosen.precision,
    )
    real = options.read_rows(chosen.data, chosen.fraction, chosen.seed)
    material = Material.mixed(real, _source(chosen, real), chosen.ratio)
    result = train_to(plan, material, chosen.out, progress=not chosen.quiet)
    _print(chosen, result)


def _parse(arguments: list[str]) -> Train:
    """The options of the agent follow from the algorithm, so that is looked for first."""
    name = next((word for word in arguments if word in ALGORITHMS), "td3_bc")
    config = ALGORITHMS[name][0]
    agent = ("agent", config, field(default_factory=config))
    kind: type[Train] = make_dataclass("Train", [agent], bases=(Train,), namespace={"__doc__": Train.__doc__})
    chosen = options.parse("train", kind, arguments)
    if chosen.algorithm not in ALGORITHMS:
        raise ConfigError(f"unknown algorithm {chosen.algorithm!r}: expected one of {', '.join(ALGORITHMS)}")
    if isinstance(chosen.agent, IQLConfig) and not any(word.startswith("--agent.decay") for word in arguments):
        chosen.agent = replace(chosen.agent, decay_updates=max(1, chosen.updates))
    return chosen


def _check(chosen: Train) -> None:
    """Options that only together are wrong, before any file is read."""
    synthetic = chosen.synthetic is not None
    if synthetic and chosen.augment is not None:
        raise ConfigError("--synthetic and --augment both say what to train on: choose one")
    if chosen.ratio is not None and not synthetic and chosen.augment is None:
        raise ConfigError("--ratio mixes real rows with others: give --synthetic or --augment too")
    if chosen.ratio is not None and not 0 <= chosen.ratio <= 1:
        raise ConfigError(f"--ratio must lie in [0, 1], got {chosen.ratio}")
    if chosen.samples is not None and chosen.augment is None and not _is_model(chosen.synthetic):
        raise ConfigError("--samples is for a model (--synthetic MODEL.safetensors) or --augment: there is neither")
    if chosen.env_id is not None and not chosen.evaluate:
        raise ConfigError("--env-id names an environment and --no-evaluate refuses it: choose one")


def _is_model(synthetic: str | None) -> bool:
    return synthetic is not None and Path(synthetic).suffix == ".safetensors"


def _source(chosen: Train, real: Transitions) -> Source | None:
    from synther.experiments.sources import Augmented, Given, Sampled

    samples = SAMPLES if chosen.samples is None else chosen.samples
    if chosen.augment is not None:
        return Augmented(chosen.augment, real, samples, chosen.seed)
    if chosen.synthetic is None:
        return None
    if _is_model(chosen.synthetic):
        return Sampled(Path(chosen.synthetic), samples, chosen.seed, chosen.device)
    return Given(options.read_rows(chosen.synthetic))


def _print(chosen: Train, result: Result) -> None:
    (arm,) = result.curves
    final, best = result.final(arm), result.best(arm)
    figures: list[tuple[str, str]] = []
    for name, standing in (("final", final), ("best", best)):
        if standing is not None:
            at = f"after {standing.updates:,} updates"
            if standing.spread_of_scores is not None:
                figures.append((f"{name} score", f"{standing.spread_of_scores} {at}"))
            figures.append((f"{name} return", f"{standing.spread_of_returns} {at}"))
    if final is None:
        figures.append(("evaluation", "none"))
    figures += [("seconds", f"{result.seconds:,.0f}"), ("folder", str(chosen.out))]
    facts = {"algorithm": chosen.algorithm, "arm": arm, **result.to_json(), "folder": str(chosen.out)}
    answer(chosen.json, facts, figures, f"{chosen.algorithm} on {arm} rows, {chosen.seeds} seeds: mean ± deviation")

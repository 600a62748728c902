"""The command `synther train`, for example `synther train td3_bc DATA --seeds 8 --out FOLDER`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from synther.cli import options
from synther.cli.answer import answer, of_run, over
from synther.errors import ConfigError
from synther.experiments.spec import OfflineOptions
from synther.experiments.specs import OfflineRun
from synther.plain import whole_seed

if TYPE_CHECKING:
    from synther.data.transitions import Transitions
    from synther.datasets import Dataset
    from synther.experiments.sources import Source


@dataclass(frozen=True)
class Train(OfflineOptions, options.Guiding, options.Named):
    """Train agents offline on DATA, or on synthetic rows, with several seeds at once, and evaluate them.

    OUT receives log.jsonl, TensorBoard events, checkpoint.safetensors and result.json. After an interruption, the same
    command resumes. To see the options of an algorithm, run `synther train ALGORITHM --help`.
    """

    algorithm: tyro.conf.Positional[str] = tyro.MISSING
    """One of bc, td3_bc, iql, edac, cql, rebrac, or your own class as module:Class."""
    data: options.Data = tyro.MISSING
    out: options.Results = tyro.MISSING
    synthetic: str | None = None
    """Train on synthetic rows instead of DATA: a data file, or a model (.safetensors) that generates --samples rows."""
    augment: Literal["additive", "multiplicative", "dynamics"] | None = None
    """Train on --samples rows of DATA with noise of this kind, instead of DATA itself."""
    samples: int | None = None
    """Rows to generate with --augment or a model (--synthetic). Default: 5M. K and M suffixes are accepted."""
    ratio: float | None = None
    """Share of synthetic or augmented rows in every batch; the other rows are real. Default: 1."""
    evaluate: options.On = True
    """Do not evaluate the agents."""
    data_seed: int = 0
    """Random seed of the rows: the selection by --fraction, generated rows, and data that is rolled out."""


def train(arguments: list[str]) -> None:
    chosen, agent = _parse(arguments)
    _check(chosen)
    run = options.build(OfflineRun, chosen, agent=agent)  # checks the options before data is read
    from synther import datasets
    from synther.data.episodes import hold_out
    from synther.experiments.offline import train_to
    from synther.experiments.sources import TrainingData

    dataset = datasets.read(chosen.data, data=chosen.folder, seed=chosen.data_seed, **chosen.passed("policies"))
    rows = dataset.rows_for(chosen.algorithm)
    rows = replace(rows, env_id=dataset.env_id, env_options=dataset.env_options or rows.env_options)
    real = rows if chosen.fraction is None else rows.subsample(chosen.fraction, chosen.data_seed)
    real, held_out = hold_out(real, chosen.holdout, chosen.data_seed)
    material = replace(TrainingData.mixed(real, _source(chosen, real, dataset), chosen.ratio), held_out=held_out)
    result = train_to(run.on(dataset), material, chosen.out, progress=not chosen.quiet)
    (arm,) = result.curves
    facts = {"algorithm": chosen.algorithm, "arm": arm, **result.to_json(), "folder": str(chosen.out)}
    noise = "" if chosen.augment is None else f" ({chosen.augment} noise)"
    title = f"{chosen.algorithm} on {arm} rows{noise}, {over(chosen.seeds)}"
    answer(chosen.json, facts, of_run(result, arm, chosen.out), title)


def _parse(arguments: list[str]) -> tuple[Train, dict[str, Any]]:
    """Return the options, and those options of the agent that were given: other defaults depend on the data set."""
    if set(arguments) <= {"-h", "--help"}:
        options.parse("train", Train, arguments)  # prints help and exits, without importing PyTorch
    from synther.agents.agent import ALGORITHMS
    from synther.agents.own_code import register_typed

    register_typed(arguments)
    name = options.positional(Train, arguments, ALGORITHMS.names(), "td3_bc")  # decides the agent's options
    chosen, agent = options.parse_with_agent("train", Train, arguments, ALGORITHMS.get(name).config_class())
    if chosen.algorithm not in ALGORITHMS:
        raise ConfigError(
            f"unknown algorithm {chosen.algorithm!r}: expected one of {', '.join(ALGORITHMS.names())}, or your own as "
            "module:Class; pixel agents are trained with `synther pixels train`"
        )
    given = options.named(arguments)
    return chosen, {name: value for name, value in agent.items() if f"--agent.{name.replace('_', '-')}" in given}


def _check(chosen: Train) -> None:
    """Raise an error if options contradict each other, before any file is read."""
    from synther.experiments.sources import check_ratio

    if chosen.synthetic is not None and chosen.augment is not None:
        raise ConfigError("--synthetic and --augment cannot be combined: choose one")
    check_ratio(chosen.ratio, mixing=chosen.synthetic is not None or chosen.augment is not None)
    if chosen.samples is not None and chosen.augment is None and not _is_model(chosen.synthetic):
        raise ConfigError("--samples needs a model (--synthetic MODEL.safetensors) or --augment: add one of them")
    chosen.check_policy()
    if chosen.policy is not None and not _is_model(chosen.synthetic):
        raise ConfigError("--policy guides a model that generates rows: add --synthetic MODEL.safetensors")
    if not chosen.evaluate:
        why = "is for the evaluation, but --no-evaluate is given too: remove one of them"
        options.refuse(chosen, ("env_id", "env_options"), why)
    whole_seed(chosen.data_seed, "--data-seed")


def _is_model(synthetic: str | None) -> bool:
    return synthetic is not None and Path(synthetic).suffix == ".safetensors"


def _source(chosen: Train, real: Transitions, dataset: Dataset) -> Source | None:
    from synther.experiments.sources import Augmented, Given, Sampled, rewarded

    samples = 5_000_000 if chosen.samples is None else chosen.samples
    if chosen.augment is not None:
        return Augmented(chosen.augment, real, samples, chosen.data_seed)
    if chosen.synthetic is None:
        return None
    if not _is_model(chosen.synthetic):
        return Given(dataset.rows_for(chosen.algorithm, chosen.read(chosen.synthetic)))
    how: dict[str, Any] = {"policy": chosen.policy, "strength": chosen.policy_strength, "std": chosen.policy_std}
    source = Sampled(Path(chosen.synthetic).expanduser(), samples, chosen.data_seed, chosen.device, **how)
    return rewarded(source, dataset, chosen.algorithm)

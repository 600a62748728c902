"""`synther train td3_bc DATA --seeds 8 --out FOLDER`"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
    from synther.experiments.results import Result
    from synther.experiments.sources import Source

SAMPLES = 5_000_000


@dataclass(frozen=True)
class Train(OfflineOptions, options.Named):
    """Train agents on DATA, or on synthetic rows, with several seeds at once, and evaluate them.

    OUT receives log.jsonl, TensorBoard events, checkpoint.safetensors and result.json. After an interruption,
    the same command resumes. `synther train ALGORITHM --help` shows the options of that algorithm.
    """

    algorithm: tyro.conf.Positional[str] = tyro.MISSING
    """One of bc, td3_bc, iql, edac, cql."""
    data: Annotated[tyro.conf.Positional[str], tyro.conf.arg(help=options.DATA)] = tyro.MISSING
    out: Path = tyro.MISSING
    """Folder for the results."""
    synthetic: str | None = None
    """Train on these rows instead: data, or a model (.safetensors), of which --samples are drawn."""
    augment: Literal["additive", "multiplicative", "dynamics"] | None = None
    """Train on --samples disturbed rows of DATA instead."""
    samples: int | None = None
    """Rows of the model or the augmentation. Default: 5M. K and M suffixes are accepted."""
    ratio: float | None = None
    """With --synthetic or --augment: the share of those rows in every batch; the others are real."""
    fraction: float | None = None
    """Use a random share of the rows of DATA."""
    episodes: int | None = None
    """Episodes of each seed and evaluation. Default: 10, in mazes 100."""
    env_options: str | None = None
    """Arguments of gymnasium.make, as JSON, in place of those of DATA: '{"max_episode_steps": 500}'."""
    evaluate: options.On = True
    """Train without an environment."""
    data_seed: int = 0
    """Decides about the rows: which --fraction, which --samples, and those that are rolled out."""


def run(arguments: list[str]) -> None:
    chosen, agent = _parse(arguments)
    _check(chosen)
    asked = _asked(chosen, agent)  # which refuses wrong options before data is looked for
    from synther import datasets
    from synther.experiments.offline import train_to
    from synther.experiments.sources import TrainingData

    dataset = datasets.read(
        chosen.data, data=chosen.folder, policies=chosen.policies, seed=chosen.data_seed, progress=not chosen.quiet
    )
    rows = dataset.rows_for(chosen.algorithm)
    rows = replace(rows, env_id=dataset.env_id, env_options=dataset.env_options or rows.env_options)
    real = rows if chosen.fraction is None else rows.subsample(chosen.fraction, chosen.data_seed)
    material = TrainingData.mixed(real, _source(chosen, real, dataset), chosen.ratio)
    result = train_to(asked.on(dataset), material, chosen.out, progress=not chosen.quiet)
    _print(chosen, result)


def _parse(arguments: list[str]) -> tuple[Train, dict[str, Any]]:
    """The options of the command, and those of the agent that were given: a data set changes the defaults of others.

    Which options the agent has depends on the algorithm, so that is looked for first.
    """
    if set(arguments) <= {"-h", "--help"}:
        options.parse("train", Train, arguments)  # which leaves, without waiting for PyTorch
    from synther.agents.agent import ALGORITHMS

    config = ALGORITHMS[options.positional(Train, arguments, ALGORITHMS, "td3_bc")][0]
    chosen, agent = options.parse_with_agent("train", Train, arguments, config())
    if chosen.algorithm not in ALGORITHMS:
        raise ConfigError(
            f"unknown algorithm {chosen.algorithm!r}: expected one of {', '.join(ALGORITHMS)}; pixel agents are "
            "trained with `synther pixels train`"
        )
    given = options.named(arguments)
    names = [option.name for option in fields(config) if f"--agent.{option.name.replace('_', '-')}" in given]
    return chosen, {name: getattr(agent, name) for name in names}


def _asked(chosen: Train, agent: dict[str, Any]) -> OfflineRun:
    return OfflineRun(
        data=chosen.data,
        algorithm=chosen.algorithm,
        fraction=chosen.fraction,
        agent=agent,
        episodes=chosen.episodes,
        env_options=options.env_options(chosen.env_options),
        evaluate=chosen.evaluate,
        **options.group(chosen, OfflineOptions),
    )


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
    for name, asked in (("--env-id", chosen.env_id), ("--env-options", chosen.env_options)):
        if asked is not None and not chosen.evaluate:
            raise ConfigError(f"{name} is about an environment, and --no-evaluate refuses one: choose one of them")
    whole_seed(chosen.data_seed, "--data-seed")


def _is_model(synthetic: str | None) -> bool:
    return synthetic is not None and Path(synthetic).suffix == ".safetensors"


def _source(chosen: Train, real: Transitions, dataset: Dataset) -> Source | None:
    from synther.experiments.sources import Augmented, Given, Rewarded, Sampled

    samples = SAMPLES if chosen.samples is None else chosen.samples
    if chosen.augment is not None:
        return Augmented(chosen.augment, real, samples, chosen.data_seed)
    if chosen.synthetic is None:
        return None
    if not _is_model(chosen.synthetic):
        return Given(dataset.rows_for(chosen.algorithm, chosen.read(chosen.synthetic)))
    source = Sampled(Path(chosen.synthetic).expanduser(), samples, chosen.data_seed, chosen.device)
    return Rewarded(source, dataset, chosen.algorithm) if chosen.algorithm in dataset.rewards else source


def _print(chosen: Train, result: Result) -> None:
    (arm,) = result.curves
    figures = of_run(result, arm, chosen.out)
    facts = {"algorithm": chosen.algorithm, "arm": arm, **result.to_json(), "folder": str(chosen.out)}
    noise = "" if chosen.augment is None else f" ({chosen.augment} noise)"
    answer(chosen.json, facts, figures, f"{chosen.algorithm} on {arm} rows{noise}, {over(chosen.seeds)}")

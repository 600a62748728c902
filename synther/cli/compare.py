"""`synther compare DATA --generators diffusion,tvae,ctgan,noise --out FOLDER`"""

from __future__ import annotations

import os
import shlex
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated

import tyro

from synther.cli import options
from synther.cli.answer import answer, table
from synther.errors import ConfigError


@dataclass(frozen=True)
class Compare(options.Named, options.Fitting):
    """Fit several generators on DATA and say how close the rows of each come to the real ones.

    OUT receives comparison.md and comparison.json, and a folder for each generator with its settings and rows.
    After an interruption, the same command resumes; with more --generators it adds them to the table.
    """

    data: Annotated[tyro.conf.Positional[str], tyro.conf.arg(help=options.DATA)] = tyro.MISSING
    out: Path = tyro.MISSING
    """Folder for the results."""
    generators: str = "diffusion,tvae,ctgan,noise"
    """Some of diffusion, tvae, ctgan, additive, multiplicative, dynamics; noise is the last three."""
    samples: int = 100_000
    """Synthetic rows of each generator. K and M suffixes are accepted."""
    trials: int = 30
    """Settings tried for tvae and ctgan, beside their defaults; 0 takes the defaults."""
    epochs: int = 300
    """Of tvae and ctgan, once their settings are found."""
    trial_epochs: int = 30
    """Of each trial."""
    trial_rows: int = 20_000
    """Of each trial, at most."""
    jobs: int | None = None
    """Trials that run at once, each in its own process. Default: one for each core, at most 16."""
    env_id: str | None = None
    """The environment whose simulator judges next observations. Default: that of the data."""
    simulator: options.On = True
    """Do without a simulator, and so without the dynamics error."""


def run(arguments: list[str]) -> None:
    chosen = options.parse("compare", Compare, arguments)
    from synther.compare.generators import Plan
    from synther.compare.run import SHORT_HEADER, compare_generators, names_of

    names = names_of(chosen.generators)
    if chosen.env_id is not None and not chosen.simulator:
        raise ConfigError("--env-id names a simulator and --no-simulator refuses it: choose one")
    own = {option.name: getattr(chosen, option.name) for option in fields(Plan) if option.name != "settings"}
    own["jobs"] = min(16, os.cpu_count() or 1) if chosen.jobs is None else chosen.jobs
    plan = Plan(settings=chosen.settings(), **own)
    rows = chosen.read(chosen.data, chosen.fraction, chosen.seed)
    command = shlex.join(["synther", "compare", *arguments])
    done = compare_generators(rows, chosen.out, names, plan, command=command, progress=not chosen.quiet)
    if chosen.json:
        answer(True, {"real_rows": len(rows), "generators": [asdict(row) for row in done]}, [])
        return
    title = f"{len(rows):,} real rows against {chosen.samples:,} of each; more in {chosen.out / 'comparison.md'}"
    table(SHORT_HEADER, [row.short_cells() for row in done], title)

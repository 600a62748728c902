"""`synther compare DATA --generators diffusion,tvae,ctgan,noise --out FOLDER`"""

from __future__ import annotations

import os
import shlex
from dataclasses import asdict, dataclass

import tyro

from synther.cli import options
from synther.cli.answer import answer
from synther.errors import ConfigError


@dataclass(frozen=True)
class Compare(options.Named, options.Fitting):
    """Fit several generators on DATA and measure how close the rows of each are to the real ones.

    OUT receives comparison.md and comparison.json, and a folder for each generator with its settings and rows.
    After an interruption, the same command resumes; with more --generators it adds them to the table.
    """

    data: options.Data = tyro.MISSING
    out: options.Results = tyro.MISSING
    generators: str = "diffusion,tvae,ctgan,noise"
    """Some of diffusion, tvae, ctgan, mbpo, additive, multiplicative, dynamics; noise is the last three."""
    samples: int = 100_000
    """Synthetic rows of each generator. K and M suffixes are accepted."""
    trials: int = 30
    """Settings that are tried for tvae and ctgan. 0: only their defaults."""
    epochs: int = 300
    """Epochs of tvae and ctgan with the best settings."""
    trial_epochs: int = 30
    """Epochs of a trial."""
    trial_rows: int = 20_000
    """Maximum number of rows of a trial."""
    jobs: int | None = None
    """Trials that run at the same time, each in its own process. Default: one for each core, at most 16."""
    env_id: str | None = None
    """The environment whose simulator judges next observations. Default: that of the data."""
    simulator: options.On = True
    """Do not use a simulator; there is then no dynamics error."""


def compare(arguments: list[str]) -> None:
    chosen = options.parse("compare", Compare, arguments)
    from synther.compare.generators import Plan
    from synther.compare.run import compare_generators, names_of

    names = names_of(chosen.generators)
    if chosen.env_id is not None and not chosen.simulator:
        raise ConfigError("--env-id names a simulator, but --no-simulator is given too: choose one")
    jobs = min(16, os.cpu_count() or 1) if chosen.jobs is None else chosen.jobs
    plan = options.build(Plan, chosen, settings=chosen.settings(), jobs=jobs)
    rows = chosen.part(chosen.read(chosen.data, chosen.seed))
    command = shlex.join(["synther", "compare", *arguments])
    done = compare_generators(rows, chosen.out, names, plan, command=command, progress=not chosen.quiet)
    facts = {"real_rows": len(rows), "generators": [asdict(row) for row in done]}
    title = f"{len(rows):,} real rows against {chosen.samples:,} of each; more in {chosen.out / 'comparison.md'}"
    cells = [row.short_cells() for row in done]
    answer(chosen.json, facts, [list(row.values()) for row in cells], title, header=list(cells[0]))

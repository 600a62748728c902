"""The command `synther compare`, for example `synther compare DATA --generators diffusion,noise --out FOLDER`."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass

import tyro

from synther.cli import options
from synther.cli.answer import answer
from synther.cores import cores
from synther.errors import ConfigError


@dataclass(frozen=True)
class Compare(options.Named, options.Fitting):
    """Fit several generators on DATA, and measure how close their rows are to the real rows.

    OUT receives comparison.md, comparison.json, and a folder for each generator with its settings and rows. After an
    interruption, the same command resumes. To add generators to the table, run it again with other --generators.
    """

    data: options.Data = tyro.MISSING
    out: options.Results = tyro.MISSING
    generators: str = "diffusion,tvae,ctgan,noise"
    """Some of diffusion, tvae, ctgan, mbpo, additive, multiplicative and dynamics. noise stands for the last three."""
    samples: int = 100_000
    """Number of synthetic rows from each generator. K and M suffixes are accepted."""
    trials: int = 30
    """Number of settings to try for tvae and for ctgan. 0: use only their defaults."""
    epochs: int = 300
    """Epochs of the final fit of tvae and ctgan, with the best settings."""
    trial_epochs: int = 30
    """Epochs of each trial."""
    trial_rows: int = 20_000
    """Maximum number of rows that a trial is fitted on."""
    jobs: int | None = None
    """Number of trials at the same time, each in its own process. Default: one for each core, at most 16."""
    env_id: str | None = None
    """Id of the environment that simulates the true next observations. Default: the one that the data names."""
    simulator: options.On = True
    """Do not use a simulator. The table then has no dynamics error."""


def compare(arguments: list[str]) -> None:
    chosen = options.parse("compare", Compare, arguments)
    from synther.compare.generators import Plan
    from synther.compare.run import compare_generators, names_of

    names = names_of(chosen.generators)
    if chosen.env_id is not None and not chosen.simulator:
        raise ConfigError("--env-id and --no-simulator cannot be combined: remove one of them")
    jobs = min(16, cores()) if chosen.jobs is None else chosen.jobs
    plan = options.build(Plan, chosen, settings=chosen.settings(), jobs=jobs)
    rows = chosen.part(chosen.read(chosen.data, chosen.seed))
    command = shlex.join(["synther", "compare", *arguments])
    done = compare_generators(rows, chosen.out, names, plan, command=command, progress=not chosen.quiet)
    facts = {"real_rows": len(rows), "generators": [asdict(row) for row in done]}
    title = f"{len(rows):,} real rows against {chosen.samples:,} of each; more in {chosen.out / 'comparison.md'}"
    cells = [row.short_cells() for row in done]
    answer(chosen.json, facts, [list(row.values()) for row in cells], title, header=list(cells[0]))

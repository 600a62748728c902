"""Compare generators on the same rows, as in the left half of the paper's comparison of diffusion, VAE and GAN.

A comparison has one folder, with a folder for each generator. Finished generators are not fitted again. A later call
can add more generators to the table.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from synther import compute
from synther.assess.dynamics import Simulator, dynamics_error
from synther.assess.fidelity import at_most, compare
from synther.assess.neighbours import novelty
from synther.baselines.tabular import CONFIGS, require
from synther.compare.generators import GENERATORS, NOISE, Maker, Plan
from synther.data.checks import check_rows
from synther.data.fingerprint import fingerprint
from synther.data.transitions import Transitions
from synther.durable import replacing
from synther.envs.simulator import Judge, judge_of, supports
from synther.errors import ConfigError, SyntherError
from synther.folder import RunFolder, read_object, write_object
from synther.origin import origin
from synther.plots import markdown
from synther.progress import Progress, resolve

log = logging.getLogger(__name__)

REAL = "real"
"""Name of the reference row of the table: a random half of the real rows compared with the other half."""

SIMULATED_ROWS = 20_000
"""Maximum number of rows that the simulator computes. More rows change the median error by less than 1 %."""

_SHORT = {"worst column": "worst", "correlation": "corr.", "dynamics error": "dynamics", "terminals": "ends"}
"""Shorter headings, for a terminal with 80 columns."""


@dataclass(frozen=True)
class Row:
    """The figures of one generator. None: the figure could not be measured."""

    name: str
    marginal: float
    worst_value: float
    worst_column: str
    correlation: float | None
    dynamics: float | None
    novelty: float
    terminal_rate: float
    seconds: float | None = None
    parameters: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    def cells(self) -> dict[str, str]:
        """Return the text of each cell of the row by its heading."""
        return {
            "generator": self.name,
            "marginal": f"{self.marginal:.4f}",
            "worst column": f"{self.worst_value:.3f} {self.worst_column}",
            "correlation": _figure(self.correlation, ".4f"),
            "dynamics error": _figure(self.dynamics, ".5f"),
            "novelty": f"{self.novelty:.2f}",
            "terminals": f"{self.terminal_rate:.2%}",
            "seconds to fit": _figure(self.seconds, ".1f"),
            "parameters": _figure(self.parameters or None, ",d"),
        }

    def short_cells(self) -> dict[str, str]:
        """Return the first seven cells, for a terminal with 80 columns. The files have the other cells too."""
        own = self.cells() | {"worst column": f"{self.worst_value:.3f}"}
        return {_SHORT.get(heading, heading): own[heading] for heading in list(own)[:7]}


def names_of(text: str) -> tuple[str, ...]:
    """Parse a list of generators such as `noise,diffusion`, where "noise" stands for all augmentations. Return the
    names in the order of `GENERATORS`."""
    chosen: set[str] = set()
    for word in text.split(","):
        name = word.strip()
        if name not in (*GENERATORS, "noise"):
            raise ConfigError(f"unknown generator {name!r}: expected one or more of {', '.join(GENERATORS)}, noise")
        chosen.update(NOISE if name == "noise" else [name])
    return tuple(name for name in GENERATORS if name in chosen)


def compare_generators(
    rows: Transitions, folder: Path, names: Sequence[str], plan: Plan, *, command: str, progress: Progress | bool
) -> tuple[Row, ...]:
    """Fit each generator on `rows`, sample, measure, and write `comparison.json` and `comparison.md` to `folder`. A
    repeated call resumes an interrupted one. A folder of other data or options is refused."""
    check_rows(rows)
    if set(names) & set(CONFIGS):
        require(search=plan.trials > 0)
    judge = _judge(rows, plan)
    simulator = None if judge is None else judge.task
    maker = Maker(rows, plan, resolve(progress))
    described = {"data": fingerprint(rows), "samples": plan.samples, "seed": plan.seed, "simulator": simulator}
    files = {name: folder / name / "figures.json" for name in (REAL, *GENERATORS)}
    facts = ", ".join(names), f"{len(rows):,}", f"{plan.samples:,}", compute.pick_device(plan.device), folder
    log.info("comparing %s on %s rows: %s synthetic rows of each, on %s, in %s", *facts)
    with RunFolder(folder).work(described, lambda: False):  # never finished: the table is always written again
        for name in names:  # first of all, so that wrong options are refused before hours of work
            RunFolder(folder / name).claim(maker.description(name))
        for name in (REAL, *names):
            if files[name].exists():
                log.info("%s is measured already", name)
            else:
                if name == REAL:  # compare one half of the real rows with the other half
                    order = np.random.default_rng(plan.seed).permutation(len(rows))
                    one, other = (rows[np.sort(half)] for half in np.array_split(order, 2))
                    row = measured(REAL, one, other, judge, plan.seed)
                else:
                    made, fitted = maker.rows(name, folder / name)
                    row = measured(name, rows, made, judge, plan.seed, **vars(fitted))
                write_object(files[name], asdict(row))
        table = tuple(read_object(file, Row) for file in files.values() if file.exists())
        rates = {"data": f"{len(rows):,} rows", "samples": f"{plan.samples:,}", "simulator": simulator or "none"}
        _write(folder, table, {"command": command, **origin(compute.pick_device(plan.device)), **rates})
    return table


def _judge(rows: Transitions, plan: Plan) -> Judge | None:
    """Return the simulator of the environment. If there is none, return None, or raise an error if `plan` names it."""
    env_id = plan.env_id or rows.env_id
    if not plan.simulator or env_id is None:
        return None
    if plan.env_id is None and not supports(env_id):
        log.info("there is no simulator for %s: the dynamics error is left out", env_id)
        return None
    found = judge_of(rows, env_id, named=plan.env_id is not None)
    if isinstance(found, SyntherError):
        log.info("%s; the dynamics error is left out", found)
        return None
    return found


def measured(name: str, real: Transitions, made: Transitions, judge: Simulator | None, seed: int, **more: Any) -> Row:
    """Measure the rows `made` against the `real` rows. `judge` computes the true next observations."""
    found = compare(real, made, seed=seed)
    error = None
    if judge is not None:
        few = at_most(made, SIMULATED_ROWS, seed)
        error = dynamics_error(few, judge(few.observation, few.action)[0], real)
    return Row(
        name,
        found.marginal,
        found.worst_value,
        found.worst_column,
        _finite(found.correlation),
        _finite(error),
        novelty(real, made, seed=seed),
        found.terminal_rate_synthetic,
        **more,
    )


def _write(folder: Path, table: Sequence[Row], origin: Mapping[str, str]) -> None:
    """Write `comparison.json` and `comparison.md`: origin, table, and the settings that the search has found."""
    write_object(folder / "comparison.json", {"origin": dict(origin), "generators": [asdict(row) for row in table]})
    cells = [row.cells() for row in table]
    drawn = markdown.table([list(cells[0]), *(list(row.values()) for row in cells)])
    found = [
        f"- {row.name}: {', '.join(f'{option} {value}' for option, value in row.settings.items())}"
        for row in table
        if row.settings and row.name != "diffusion"  # the many settings of diffusion are only in the JSON
    ]
    lines = [*markdown.head(origin), "", *drawn, *(["", "Settings:", "", *found] if found else []), ""]
    with replacing(folder / "comparison.md") as beside:
        beside.write_text("\n".join(lines))


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None

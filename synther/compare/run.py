"""Generators side by side on the same rows: the left half of the paper's table of diffusion, VAE and GAN.

A run has one folder, with a folder for each generator. Finished generators are not fitted again, and generators that
are named later join the table.
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
from synther.assess.fidelity import compare
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
"""The row that no generator can beat: a random half of the real rows against the other half."""

SIMULATED_ROWS = 20_000
"""Rows that the simulator follows; more rows change the median by less than a hundredth of it."""

_SHORT = {"worst column": "worst", "correlation": "corr.", "dynamics error": "dynamics", "terminals": "ends"}
"""Headings for a terminal of 80 columns."""


@dataclass(frozen=True)
class Row:
    """One generator's figures; None if a figure could not be measured."""

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
        """Text by heading."""
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
        """The first seven cells, for a terminal of 80 columns; the files have the rest."""
        own = self.cells() | {"worst column": f"{self.worst_value:.3f}"}
        return {_SHORT.get(heading, heading): own[heading] for heading in list(own)[:7]}


def names_of(text: str) -> tuple[str, ...]:
    """`noise,diffusion` as names in the order of `GENERATORS`; noise stands for all augmentations."""
    chosen: set[str] = set()
    for word in text.split(","):
        name = word.strip()
        if name not in (*GENERATORS, "noise"):
            raise ConfigError(f"unknown generator {name!r}: expected some of {', '.join(GENERATORS)}, or noise")
        chosen.update(NOISE if name == "noise" else [name])
    return tuple(name for name in GENERATORS if name in chosen)


def compare_generators(
    rows: Transitions, folder: Path, names: Sequence[str], plan: Plan, *, command: str, progress: Progress | bool
) -> tuple[Row, ...]:
    """Fit each generator on `rows`, sample, measure, and write `comparison.json` and `comparison.md` into `folder`.

    An interrupted call can be repeated and resumes. A folder of other data or options is refused.
    """
    check_rows(rows)
    if set(names) & set(CONFIGS):
        require(search=plan.trials > 0)
    judge = _judge(rows, plan)
    simulator = None if judge is None else judge.task
    maker = Maker(rows, plan, resolve(progress))
    described = {"data": fingerprint(rows), "samples": plan.samples, "seed": plan.seed, "simulator": simulator}
    files = {name: folder / name / "figures.json" for name in (REAL, *GENERATORS)}
    told = ", ".join(names), f"{len(rows):,}", f"{plan.samples:,}", plan.device, folder
    log.info("comparing %s on %s rows: %s samples of each, on device %s, in %s", *told)
    with RunFolder(folder).work(described, lambda: False):  # the table is always written, with all that is there
        for name in names:  # every refusal comes before the first hour of work
            RunFolder(folder / name).claim(maker.description(name))
        for name in (REAL, *names):
            if files[name].exists():
                log.info("%s is measured already", name)
            else:
                if name == REAL:  # one half against the other
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
    """The environment that judges dynamics, if it can be simulated here. It must if `plan` names it."""
    env_id = plan.env_id or rows.env_id
    if not plan.simulator or env_id is None:
        return None
    if plan.env_id is None and not supports(env_id):
        log.info("no simulator for %s: the dynamics error is left out", env_id)
        return None
    found = judge_of(rows, env_id, named=plan.env_id is not None)
    if isinstance(found, SyntherError):
        log.info("%s; the dynamics error is left out", found)
        return None
    return found


def measured(name: str, real: Transitions, made: Transitions, judge: Simulator | None, seed: int, **more: Any) -> Row:
    """The figures of `made` against `real`; `judge` simulates the true next observations."""
    found = compare(real, made, seed=seed)
    error = None
    if judge is not None:
        few = made if len(made) <= SIMULATED_ROWS else made.subsample(SIMULATED_ROWS / len(made), seed)
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
    """Write `comparison.json` and `comparison.md`: origin, table, and the settings that were found."""
    write_object(folder / "comparison.json", {"origin": dict(origin), "generators": [asdict(row) for row in table]})
    cells = [row.cells() for row in table]
    drawn = markdown.table([list(cells[0]), *(list(row.values()) for row in cells)])
    found = [
        f"- {row.name}: {', '.join(f'{option} {value}' for option, value in row.settings.items())}"
        for row in table
        if row.settings and row.name != "diffusion"  # whose many settings are in the JSON
    ]
    lines = [*markdown.head(origin), "", *drawn, *(["", "Settings:", "", *found] if found else []), ""]
    with replacing(folder / "comparison.md") as beside:
        beside.write_text("\n".join(lines))


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None

"""The generators side by side on the same rows: the left half of the paper's table of diffusion, VAE and GAN.

One folder a run, and in it one for each generator; whatever is done there is never done again. Generators that are
named later join the table.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from synther import compute
from synther.assess.dynamics import Simulator
from synther.baselines.tabular import CONFIGS, require
from synther.compare.generators import GENERATORS, NOISE, Maker, Plan
from synther.compare.judges import Judge, judge_of
from synther.compare.table import Row, measured, write
from synther.data.checks import check_rows
from synther.data.fingerprint import fingerprint
from synther.data.transitions import Transitions
from synther.envs.simulator import supports
from synther.errors import ConfigError
from synther.folder import RunFolder, read_object, write_object
from synther.origin import origin
from synther.progress import Progress, resolve

log = logging.getLogger(__name__)

REAL = "real"
"""What no generator can beat: one half of the real rows, drawn at random, against the other."""


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

    Started again it goes on where it was stopped; with other data or options it refuses to touch the folder.
    """
    check_rows(rows)
    if set(names) & set(CONFIGS):
        require(search=plan.trials > 0)
    judge = _judge(rows, plan)
    simulator = None if judge is None else judge.task
    maker = Maker(rows, plan, resolve(progress))
    described = {"data": fingerprint(rows), "samples": plan.samples, "seed": plan.seed, "simulator": simulator}
    files = {name: folder / name / "figures.json" for name in (REAL, *GENERATORS)}
    with RunFolder(folder).work(described, lambda: False):  # the table is always written, with all that is there
        for name in names:  # every refusal comes before the first hour of work
            RunFolder(folder / name).claim(maker.description(name))
        for name in (REAL, *names):
            if files[name].exists():
                log.info("%s is measured already", name)
            else:
                row = _half_against_half(rows, plan, judge) if name == REAL else _row(name, maker, folder, judge)
                write_object(files[name], row.to_json())
        table = tuple(Row.from_json(read_object(file)) for file in files.values() if file.exists())
        rates = {"data": f"{len(rows):,} rows", "samples": f"{plan.samples:,}", "simulator": simulator or "none"}
        write(folder, table, {"command": command, **origin(compute.pick_device(plan.device)), **rates})
    return table


def _half_against_half(rows: Transitions, plan: Plan, judge: Simulator | None) -> Row:
    order = np.random.default_rng(plan.seed).permutation(len(rows))
    one, other = (rows[np.sort(half)] for half in np.array_split(order, 2))
    return measured(REAL, one, other, judge, plan.seed)


def _row(name: str, maker: Maker, folder: Path, judge: Simulator | None) -> Row:
    made, fitted = maker.rows(name, folder / name)
    return measured(name, maker.real, made, judge, maker.plan.seed, **vars(fitted))


def _judge(rows: Transitions, plan: Plan) -> Judge | None:
    """The environment that judges, if there is one here. One that was asked for must be."""
    env_id = plan.env_id or rows.env_id
    if not plan.simulator or env_id is None:
        return None
    if plan.env_id is None and not supports(env_id):
        log.info("no simulator for %s: the dynamics error is left out", env_id)
        return None
    found = judge_of(rows, env_id, named=plan.env_id is not None)
    if isinstance(found, Judge):
        return found
    log.info("%s; the dynamics error is left out", found)
    return None

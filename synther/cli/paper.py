"""The commands `synther paper list`, `synther paper run NAME` and `synther paper table NAME`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

import tyro

from synther.cli import options
from synther.cli.answer import answer, answer_outcomes, say
from synther.errors import ConfigError
from synther.experiments.spec import ChangeOptions


@dataclass(frozen=True)
class Paper(ChangeOptions, options.Engine, options.Named):
    """Repeat the paper's experiments (offline, online and on frames), or run ours on freely available data.

    - list: list the experiments.
    - run NAME: train all runs of an experiment. OUT/runs receives a folder for each run, and OUT/models the fitted
    generators. Experiments share these. Finished runs are skipped. After an interruption, the same command resumes. If
    the data of a run is missing, that run is reported, and the others continue.
    - table NAME: show the results as mean ± standard deviation, with the paper's results in brackets. OUT receives
    NAME.md, NAME.json and pictures.
    """

    action: tyro.conf.Positional[Literal["list", "run", "table"]] = tyro.MISSING
    """list, run or table."""
    name: tyro.conf.Positional[str] = ""
    """Name of the experiment, for run and table."""
    out: Path = Path("paper")
    """Folder for the results of all experiments."""
    only: tuple[str, ...] = ()
    """Execute only the runs that have one of these texts in their names, such as: walker2d-mixed iql"""
    workers: int | None = None
    """Number of processes that play episodes, for each run. Default: all cores but one."""
    device: options.Device = "auto"


def paper(arguments: list[str]) -> None:
    chosen = options.parse("paper", Paper, arguments)
    folder, policies = options.from_anywhere(chosen.folder), options.from_anywhere(chosen.policies)
    chosen = replace(chosen, out=chosen.out.resolve(), folder=folder, policies=policies)
    command = shlex.join(["synther", "paper", *arguments])
    if chosen.action == "run":
        return _run(chosen, command)
    of_all = ("json", "quiet", "config_file", "write_config", "action", "name", "out")
    of_run = (option.name for option in fields(chosen) if option.name not in of_all)
    options.refuse(chosen, of_run, f"is for `synther paper run`, not for `synther paper {chosen.action}`: remove it")
    if chosen.action == "table":
        _table(chosen, command)
    else:
        _list(chosen)


def _list(chosen: Paper) -> None:
    from synther.paper import EXPERIMENTS

    facts = {
        name: {"label": found.label, "about": found.about, "runs": [job.to_json() for job in found.jobs]}
        for name, found in EXPERIMENTS.items()
    }
    rows = [(one.name, "paper" if one.label else "ours", str(len(one.jobs)), one.about) for one in EXPERIMENTS.values()]
    answer(chosen.json, facts, rows, header=("experiment", "from", "runs", "description"))


def _run(chosen: Paper, command: str) -> None:
    from synther.compute import pick_device
    from synther.datasets import Request
    from synther.experiments.spec import Place, execute_all
    from synther.paper import find
    from synther.paper.tables import RUNS
    from synther.plain import check_least

    wanted = find(chosen.name)
    check_least(chosen, workers=1)
    Request("", chosen.folder, chosen.policies)  # raises an error if the folder or the file does not exist
    if chosen.engine == "local":
        pick_device(chosen.device)  # with Ray, only the workers need the device
    jobs = wanted.chosen(chosen.only)
    if not jobs:
        texts, names = " or ".join(chosen.only), ", ".join(job.name for job in wanted.jobs)
        raise ConfigError(f"no run of {wanted.name} has {texts} in its name: expected part of {names}")
    place = Place(chosen.out / "models", chosen.folder, chosen.policies, chosen.device, chosen.workers, command)
    specs = [job.changed(chosen) for job in jobs]
    outcomes = execute_all(specs, chosen.out / RUNS, place, **chosen.run_by(), progress=not chosen.quiet)
    answer_outcomes(chosen.json, outcomes, "run")


def _table(chosen: Paper, command: str) -> None:
    from synther import compute
    from synther.origin import origin
    from synther.paper import find
    from synther.paper.tables import Table
    from synther.plots import markdown

    wanted = find(chosen.name)
    if not chosen.out.is_dir():
        raise ConfigError(f"{chosen.out}: no such folder; expected the --out folder of `synther paper run`")
    found = Table.of(wanted, chosen.out)
    facts = {"command": command, **origin(compute.pick_device("cpu"))}
    files = found.write(chosen.out, facts)
    header, *lines = found.lines()
    answer(chosen.json, found.to_json(facts), lines, found.title(), header)
    if chosen.json:
        return
    for note in found.notes():
        say(f"- {note}")
    for line in markdown.table(found.differences()) if found.paired else ():
        say(line)
    print(f"More in {files[0]}")

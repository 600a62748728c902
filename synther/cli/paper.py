"""`synther paper list`, `synther paper run NAME`, `synther paper table NAME`"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_type_hints

import tyro

from synther.cli import options
from synther.cli.answer import answer, say, table
from synther.errors import ConfigError, SyntherError

if TYPE_CHECKING:
    from synther.experiments.engines import Outcome


@dataclass(frozen=True)
class Paper(options.Output):
    """The paper's experiments, offline, online and on frames, and our own on data that can be had anywhere.

    `list` names them. `run NAME` trains all that one of them asks for: OUT/runs receives a folder a run, which other
    experiments share, OUT/models the fitted generators. What is done is left alone, and interrupted, the same command
    goes on where it stopped; a run whose data cannot be found is reported, and the others go on. `table NAME` shows
    what came of it, mean ± standard deviation, in brackets the paper's: OUT receives NAME.md, NAME.json and pictures.
    """

    action: tyro.conf.Positional[Literal["list", "run", "table"]] = tyro.MISSING
    """list, run or table."""
    name: tyro.conf.Positional[str] = ""
    """Of the experiment, for run and table."""
    out: Path = Path("paper")
    """Folder for the results of all experiments."""
    only: tuple[str, ...] = ()
    """Run only those with one of these texts in their names: walker2d-mixed, iql."""
    data: Path | None = None
    """Folder with data sets: walker2d-mixed.npz, D4RL's or V-D4RL's own files, walker-walk-collected.hdf5."""
    policies: Path | None = None
    """File of policies (.npz) with which data sets can be rolled out that are not there."""
    updates: int | None = None
    """Updates (online: steps) of every seed, instead of the experiment's number. K and M suffixes are accepted."""
    seeds: int | None = None
    """Trainings at once, instead of the experiment's number."""
    evaluate_every: int | None = None
    """Updates between two evaluations, instead of the experiment's number."""
    samples: int | None = None
    """Synthetic rows of every kind, at most."""
    preset: str | None = None
    """How diffusion models are fitted and sampled, instead of the experiment's preset."""
    fit_steps: int | None = None
    """Of every fit of a diffusion model, at most."""
    engine: Literal["local", "ray"] = "local"
    """One run after another here, or several at once on a Ray cluster."""
    gpus: float | None = None
    """With ray: GPUs of a run, 0.5 for two runs a GPU."""
    address: str | None = None
    """With ray: a cluster that is there already, such as 10.0.0.1:6379."""
    workers: int | None = None
    """Processes of a run that play episodes. Default: all cores but one."""
    device: str = "auto"
    """auto (the GPU where there is one), cpu, cuda or cuda:N."""


_SHARED = ("json", "quiet", "action", "name", "out")
"""Options that mean something for a table, too."""


def run(arguments: list[str]) -> None:
    chosen = options.parse("paper", Paper, arguments)
    chosen = replace(chosen, out=_absolute(chosen.out))
    command = shlex.join(["synther", "paper", *arguments])
    if chosen.action == "run":
        _run(chosen, command)
        return
    for option in fields(chosen):
        if option.name not in _SHARED and getattr(chosen, option.name) != option.default:
            raise ConfigError(f"--{option.name.replace('_', '-')} is for `synther paper run`, not for {chosen.action}")
    if chosen.action == "table":
        _table(chosen, command)
    else:
        _list(chosen)


def _list(chosen: Paper) -> None:
    from synther.paper import EXPERIMENTS

    if chosen.json:
        facts = {
            name: {"label": found.label, "about": found.about, "runs": [job.to_json() for job in found.jobs]}
            for name, found in EXPERIMENTS.items()
        }
        answer(True, facts, [])
        return
    rows = [
        (name, "paper" if found.label else "ours", str(len(found.jobs)), found.about)
        for name, found in EXPERIMENTS.items()
    ]
    table(("experiment", "whose", "runs", "what"), rows)


def _run(chosen: Paper, command: str) -> None:
    from synther.experiments.spec import Changes, Place, execute_all
    from synther.paper import find
    from synther.paper.tables import RUNS

    wanted = find(chosen.name)
    _check(chosen)
    jobs = wanted.chosen(chosen.only)
    if not jobs:
        names = ", ".join(job.name for job in wanted.jobs)
        raise ConfigError(
            f"no run of {wanted.name} has {' or '.join(chosen.only)} in its name: expected some of {names}"
        )
    changes = {name: getattr(chosen, name) for name in get_type_hints(Changes)}
    data, policies = (path and _absolute(path) for path in (chosen.data, chosen.policies))
    place = Place(chosen.out / "models", data, policies, chosen.device, chosen.workers, command)
    outcomes = execute_all(
        [job.changed(**changes) for job in jobs],
        chosen.out / RUNS,
        place,
        engine=chosen.engine,
        gpus=chosen.gpus,
        address=chosen.address,
        progress=not chosen.quiet,
    )
    _tell(chosen, outcomes)


def _absolute(path: Path) -> Path:
    """The same for workers of a cluster, which start elsewhere."""
    return path.resolve()


def _check(chosen: Paper) -> None:
    """What every single run would stumble over."""
    from synther import compute
    from synther.plain import check_least

    check_least(chosen, workers=1)
    if chosen.engine == "local":
        if chosen.gpus is not None or chosen.address is not None:
            raise ConfigError("--gpus and --address are for a cluster: give --engine ray too")
        compute.pick_device(chosen.device)  # who sends runs elsewhere need not have it
    if chosen.data is not None and not _absolute(chosen.data).is_dir():
        raise ConfigError(f"--data {chosen.data}: no such folder; expected the one that holds your data sets")
    if chosen.policies is not None and not _absolute(chosen.policies).is_file():
        raise ConfigError(f"--policies {chosen.policies}: no such file; expected an archive of policies (.npz)")


def _tell(chosen: Paper, outcomes: list[Outcome]) -> None:
    if chosen.json:
        answer(True, {"runs": [vars(outcome) for outcome in outcomes]}, [])
    else:
        table(("run", "what became of it"), [(outcome.name, _words(outcome)) for outcome in outcomes])
    lost = [outcome.name for outcome in outcomes if outcome.error is not None]
    if lost:
        raise SyntherError(f"{len(lost)} of {len(outcomes)} runs are not finished: {', '.join(lost)}")


def _words(outcome: Outcome) -> str:
    if outcome.error is not None:
        return outcome.error
    return "was done already" if outcome.was_done else f"done in {outcome.seconds:,.0f} s"


def _table(chosen: Paper, command: str) -> None:
    from synther import compute
    from synther.origin import origin
    from synther.paper import find
    from synther.paper.tables import Table

    wanted = find(chosen.name)
    if not chosen.out.is_dir():
        raise ConfigError(f"{chosen.out}: no such folder; expected the --out of `synther paper run`")
    found = Table.of(wanted, chosen.out)
    facts = {"command": command, **origin(compute.pick_device("cpu"))}
    files = found.write(chosen.out, facts)
    if chosen.json:
        answer(True, found.to_json(facts), [])
        return
    header, *lines = found.lines()
    table(header, lines, found.title())
    for note in found.notes():
        say(f"- {note}")
    print(f"More in {files[0]}")

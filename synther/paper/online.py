"""Online experiments: the paper's figure, and our own with warm-started generators.

The paper uses version v2 of the Gym environments, which no longer runs. Version v4 has the same rewards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from synther.experiments.specs import OnlineRun, Synthetic
from synther.paper.experiment import Cell, Contrast, Experiment
from synther.paper.published import HOURS, NEIGHBOURS

GYM = {"hopper": "Hopper-v4", "walker2d": "Walker2d-v4", "halfcheetah": "HalfCheetah-v4"}
SUITE = {task: f"dm_control/{task}-v0" for task in ("cheetah-run", "reacher-hard", "quadruped-walk")}
TASKS = GYM | SUITE | {"ant": "Ant-v4"}

SYNTHER = "SAC (SynthER, UTD 20)"


@dataclass(frozen=True)
class Method:
    """The method of a column of the table. `name` is part of the names of its runs."""

    name: str
    algorithm: str
    utd: int
    synthetic: Synthetic | None = None
    agent: dict[str, Any] = field(default_factory=dict)

    def run(self, task: str, steps: int) -> OnlineRun:
        """Return the run of this method on a task. Experiments share runs of the same name."""
        name = f"{task}-{steps // 1000}k-{self.name}"
        return OnlineRun(name, TASKS[task], self.algorithm, self.utd, self.synthetic, self.agent, steps=steps)


OURS = {
    "SAC (UTD 1)": Method("sac-utd1", "sac", 1),
    "SAC (UTD 20)": Method("sac-utd20", "sac", 20),
    "REDQ (UTD 20)": Method("redq-utd20", "redq", 20),
    SYNTHER: Method("synther-utd20", "sac", 20, Synthetic()),
}
_PAPERS = Synthetic("paper", changes={"network": {"embedding": 256}}, refit="scratch")
PAPERS = {title: method for title, method in OURS.items() if title != "SAC (UTD 20)"}
PAPERS |= {SYNTHER: Method("synther-utd20-paper", "sac", 20, _PAPERS)}

NOT_PRINTED = (
    "The paper shows these returns only as a figure. It prints hours on a V100 for 200,000 steps of the dm_control "
    f"suite: {', '.join(f'{name} {hours:g}' for name, hours in HOURS.items())}."
)
NORMALISED = "Tasks are aggregated by normalised score: D4RL's for Gym, return / 10 for the dm_control suite."


def _experiment(
    name: str, about: str, steps: dict[str, int], methods: dict[str, Method] = OURS, contrasts: Sequence[Contrast] = ()
) -> Experiment:
    """Return an experiment: a row per task in `steps`, a column per method. By default SynthER is compared with all."""
    runs = {task: {title: method.run(task, steps[task]) for title, method in methods.items()} for task in steps}
    table = {task: {title: Cell(run.name, run.arm) for title, run in row.items()} for task, row in runs.items()}
    jobs = tuple(run for row in runs.values() for run in row.values())
    contrasts = tuple(contrasts) or tuple((SYNTHER, title) for title in methods if title != SYNTHER)
    remarks = (NORMALISED, NOT_PRINTED, _neighbours(steps))
    return Experiment(name, "", about, jobs, table, contrasts=contrasts, remarks=remarks)


def online() -> Experiment:
    about = "the paper's settings, 200,000 steps of the dm_control suite and 100,000 of Gym"
    steps = dict.fromkeys(SUITE, 200_000) | dict.fromkeys(GYM, 100_000)
    return replace(_experiment("online", about, steps, PAPERS), label="fig:online_dmc")


def online_first() -> Experiment:
    about = "where the paper's effect is largest: halfcheetah and cheetah-run, 100,000 steps"
    return _experiment("online-first", about, dict.fromkeys(("halfcheetah", "cheetah-run"), 100_000))


def online_100k() -> Experiment:
    return _experiment("online-100k", "all six environments, 100,000 steps", dict.fromkeys(GYM | SUITE, 100_000))


def online_200k() -> Experiment:
    return _experiment("online-200k", "the dm_control suite, 200,000 steps", dict.fromkeys(SUITE, 200_000))


_NORMED = {"critic_network": "layer_norm", "actor_network": "layer_norm"}
REGULARISED = {
    "SAC": OURS["SAC (UTD 20)"],
    "layer norm": Method("sac-layer_norm-utd20", "sac", 20, agent=_NORMED),
    "SimBa": Method("simba-utd2", "simba", 2),
}


def regularisation_online() -> Experiment:
    about = "is it only regularisation? SAC, SAC with layer norm and SimBa: alone, with synthetic replay, with copies"
    methods = {}
    for title, plain in REGULARISED.items():
        methods[title] = plain
        with_rows = replace(plain, name=f"{plain.name}-synther", synthetic=Synthetic())
        methods[f"{title} + SynthER"] = OURS[SYNTHER] if title == "SAC" else with_rows
        methods[f"{title} + copies"] = replace(plain, name=f"{plain.name}-copies", synthetic=Synthetic(copies=True))
    contrasts = tuple((f"{title} + SynthER", f"{title}{more}") for title in REGULARISED for more in ("", " + copies"))
    steps = dict.fromkeys(("halfcheetah", "ant", "quadruped-walk"), 100_000)
    return _experiment("regularisation-online", about, steps, methods, contrasts)


GUIDED = {
    "SynthER": OURS[SYNTHER],
    "curiosity": Method("guided-curiosity", "sac", 20, Synthetic(relevance="curiosity")),
    "TD error": Method("guided-td_error", "sac", 20, Synthetic(relevance="td_error")),
    "no guidance": Method("guided-control", "sac", 20, Synthetic(relevance="curiosity", guidance=0.0)),
}
"""Methods with different guidance. "no guidance" has the same network as "curiosity", but samples without guidance."""


def guided() -> Experiment:
    about = "rows that the agent needs: guidance by curiosity and by TD error, and the same network without guidance"
    contrasts = tuple((title, other) for title in ("curiosity", "TD error") for other in GUIDED if other != title)
    steps = dict.fromkeys(("quadruped-walk", "cheetah-run"), 100_000)
    return _experiment("guided", about, steps, GUIDED, contrasts)


def _neighbours(tasks: Iterable[str]) -> str:
    """Return a remark with the returns that other papers print for these tasks."""
    known = {task: NEIGHBOURS[task].items() for task in tasks if task in NEIGHBOURS}
    printed = [f"{task} {', '.join(f'{name} {value}' for name, value in found)}" for task, found in known.items()]
    return (
        f"Returns that other papers print for 100,000 frames: {'; '.join(printed)}. They count frames and decisions "
        "differently. Steps here are decisions: with every action repeated twice, 100,000 frames are 50,000 decisions."
    )

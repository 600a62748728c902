"""An environment as the judge of rows: asked as it was made, or why it cannot be asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from synther.data.transitions import Transitions
from synther.envs.simulator import Answer, describe, simulate
from synther.errors import SyntherError

Array = NDArray[Any]


@dataclass(frozen=True)
class Judge:
    """What knows the true outcome of a state and an action."""

    task: str
    options: dict[str, Any] = field(default_factory=dict)
    """What it was made with beside its id."""

    def __call__(self, observations: Array, actions: Array, *, processes: int | None = None) -> Answer:
        return simulate(self.task, observations, actions, options=self.options, processes=processes)

    def __str__(self) -> str:
        told = ", ".join(f"{name} {value}" for name, value in self.options.items())
        return describe(self.task) + (f" with {told}" if told else "")


def judge_of(rows: Transitions, task: str, *, named: bool) -> Judge | SyntherError:
    """The environment `task` for these rows, or why it cannot be asked about them; one that was `named` must be.

    Else it is the one that the rows name, and was made with their options.
    """
    judge = Judge(task, {} if named else rows.env_options or {})
    try:
        judge(rows.observation[:1], rows.action[:1], processes=1)
    except SyntherError as error:
        if named:
            raise
        return error
    return judge

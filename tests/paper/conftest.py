"""Finished runs made by hand, and statistics that take no time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synther.experiments.results import EvalPoint, Result
from synther.experiments.spec import RunSpec
from synther.folder import write_object
from synther.paper import findings
from synther.paper.tables import RUNS
from synther.plots.statistics import Aggregate, Interval

Seeds = Sequence[float | None]


def finish(
    out: Path,
    run: RunSpec,
    length: int,
    scores: Mapping[str, Seeds],
    *,
    by: float = 10.0,
    before: float | None = 0.5,
    minutes: float = 1.0,
    **known: Any,
) -> None:
    """A finished run of some `length` with these final scores of its arms, and a part of them `before`.

    Returns are the scores `by` a factor; `known` goes to provenance.json.
    """

    def at(updates: int, values: Seeds, part: float) -> EvalPoint:
        found = tuple(None if value is None else part * value for value in values)
        return EvalPoint(updates, tuple(None if value is None else by * value for value in found), found)

    curves = {
        arm: (*([] if before is None else [at(length // 2, values, before)]), at(length, values, 1.0))
        for arm, values in scores.items()
    }
    folder = out / RUNS / run.name
    write_object(folder / "run.json", run.to_json())
    write_object(folder / "provenance.json", {"command": "synther paper run example", **known})
    origin = {"synther": "0.1.0 abc", "machine": "a machine", "python": "3"}
    result = Result(length, 60 * minutes, curves, dict.fromkeys(curves, ()), {}, origin)
    write_object(run.result(folder), result.to_json())


@pytest.fixture
def quick_statistics(monkeypatch) -> None:
    """Intervals that take no time."""

    def interval(scores) -> Interval:
        return Interval(float(np.mean(scores)), 0.0, 1.0)

    def aggregate(scores):
        return {name: Aggregate(*[interval(values)] * 4) for name, values in scores.items()}

    monkeypatch.setattr(findings, "aggregate", aggregate)
    monkeypatch.setattr(findings, "improvement", lambda one, other: interval(one > other))

"""Tables for `verdict_agents.py`: verdicts and measures of assessments, compared with the scores of agents."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.assess.assessment import Measure
from synther.assess.verdict import decide
from synther.experiments.sources import REAL

Array = NDArray[Any]

ORDER = ("use", "mix", "do not use")
OUTCOMES = {"as good": 0.9, "costs": 0.6, "useless": -np.inf}
"""The lowest score of each outcome, as a share of the score on real rows."""


@dataclass(frozen=True)
class Case:
    """One synthetic data set with its assessment and the scores of agents that were trained on it."""

    data: str
    """Name of the real data."""
    name: str
    unit: str
    floor: float
    """The score of random actions."""
    values: Array
    """The score of each seed."""
    reference: float
    """The mean score of agents that were trained on the real rows."""
    verdict: str
    decided_by: str
    """Names of the measures that caused the verdict, or `-`."""
    measures: dict[str, Measure]

    @classmethod
    def of(cls, data: Path, name: str, *, again: bool) -> Case:
        """Read a case from the files of `train` and `assess`. `again` computes the verdict again, with the thresholds
        of this version."""
        scored, real = (json.loads((data / "scores" / f"{one}.json").read_text()) for one in (name, REAL))
        assessed = json.loads((data / "assessments" / f"{name}.json").read_text())
        measures = {entry["name"]: Measure(**entry) for entry in assessed["measures"]}
        if again:
            verdict = decide(measures)
            decision, reasons = str(verdict.decision), [(one.measure, one.says) for one in verdict.reasons]
        else:
            decision = assessed["verdict"]["decision"]
            reasons = [(one["measure"], one["says"]) for one in assessed["verdict"]["reasons"]]
        deciding = [measure for measure, says in reasons if says == decision != "use"]
        return cls(
            data=data.name,
            name=name,
            unit=scored["unit"],
            floor=scored["floor"],
            values=_values(scored),
            reference=float(_values(real).mean()),
            verdict=decision,
            decided_by=", ".join(dict.fromkeys(deciding)) or "-",
            measures=measures,
        )

    def relative(self, score: float) -> float:
        """Return a score on the scale on which 0 is the score of random actions, and 1 the score on real rows."""
        return (score - self.floor) / (self.reference - self.floor)

    @property
    def share(self) -> float:
        """The mean score of the seeds, relative to the score on real rows."""
        return self.relative(float(self.values.mean()))

    @property
    def outcome(self) -> str:
        return next(name for name, least in OUTCOMES.items() if self.share >= least)

    def gap(self, name: str) -> float:
        """Return how much worse the set is than real rows by this measure, or NaN if the measure has no figure."""
        if name == "verdict":
            return float(ORDER.index(self.verdict))
        measure = self.measures.get(name)
        if measure is None or measure.value is None:
            return np.nan
        gap = measure.value - (measure.real or 0.0)
        return {"higher": -gap, "lower": gap, "nearer": abs(gap)}[measure.better]

    def to_json(self) -> dict[str, Any]:
        names = ("data", "name", "unit", "floor", "reference", "verdict", "decided_by", "share", "outcome")
        plain = {name: getattr(self, name) for name in names}
        measures = {name: [measure.value, measure.real] for name, measure in self.measures.items()}
        return plain | {"values": self.values.tolist(), "measures": measures}


def _values(scored: Mapping[str, Any]) -> Array:
    """Return the score of each seed. A seed that has diverged gets the score of random actions."""
    return np.array([scored["floor"] if value is None else value for value in scored["values"]], float)


@dataclass(frozen=True)
class Sheet:
    title: str
    header: list[str]
    rows: list[list[str]]
    figures: Any = None
    """The content of the table as numbers, for JSON."""


Cases = Mapping[str, Sequence[Case]]
"""Cases by the name of their real data."""


def sheets_of(cases: Cases, draws: int) -> list[Sheet]:
    draw = np.random.default_rng(0)
    made = {data: [case for case in found if case.name != REAL] for data, found in cases.items()}
    return [
        *(_scores(data, found, draws, draw) for data, found in cases.items()),
        _verdicts(made),
        _ranks(made, draws, draw),
        *(_limits(made, question) for question in ("as good", "useless") if len(made) > 1),
    ]


def _scores(data: str, cases: Sequence[Case], draws: int, draw: np.random.Generator) -> Sheet:
    rows = []
    for case in sorted(cases, key=lambda case: -case.share):
        picked = case.values[draw.integers(len(case.values), size=(draws, len(case.values)))].mean(1)
        low, high = np.quantile(picked, [0.025, 0.975])
        measure = case.measures.get("auc")
        auc = "-" if measure is None or measure.value is None else f"{measure.value:.3f}"
        score = f"{case.values.mean():.1f} [{low:.1f}, {high:.1f}]"
        rows.append([case.name, case.verdict, case.decided_by, auc, score, f"{case.share:.0%}", case.outcome])
    seeds, unit = len(cases[0].values), cases[0].unit
    title = f"{data}: mean {unit} of {seeds} seeds and 95 % interval"
    return Sheet(title, ["set", "verdict", "decided by", "AUC", unit, "of real", "outcome"], rows)


def _verdicts(made: Cases) -> Sheet:
    rows, figures = [], {}
    for data, cases in _with_all(made).items():
        for verdict in ORDER:
            outcomes = [case.outcome for case in cases if case.verdict == verdict]
            counts = {outcome: outcomes.count(outcome) for outcome in OUTCOMES}
            rows.append([data, verdict, *map(str, counts.values())])
            figures[f"{data}: {verdict}"] = counts
    return Sheet("Verdict against outcome: number of sets", ["data", "verdict", *OUTCOMES], rows, figures)


def _ranks(made: Cases, draws: int, draw: np.random.Generator) -> Sheet:
    """Return the rank correlations of measures and scores. The group `all` combines all data sets: its scores are
    relative to the scores on real rows, its measures are gaps to real rows."""
    groups = _with_all(made)
    figures = {
        name: {data: _ranked(cases, name, draws, draw) for data, cases in groups.items()} for name in _measures(made)
    }
    order = sorted(figures, key=lambda name: -(figures[name]["all"] or (-np.inf,))[0])
    rows = [[name, *map(_interval, figures[name].values())] for name in order]
    title = "Rank correlation of each measure with the score, and 95 % interval (bootstrap over sets and seeds)"
    return Sheet(title, ["measure", *groups], rows, figures)


def _interval(found: tuple[float, float, float] | None) -> str:
    return "-" if found is None else "{:.2f} [{:.2f}, {:.2f}]".format(*found)


def _with_all(made: Cases) -> dict[str, Sequence[Case]]:
    return {**made, "all": [case for cases in made.values() for case in cases]}


def _measures(made: Cases) -> list[str]:
    """Return `verdict` and the names of all measures that do not have the same gap for every set."""
    cases = _with_all(made)["all"]
    names = dict.fromkeys(name for case in cases for name in case.measures)
    gaps = {name: np.array([case.gap(name) for case in cases]) for name in names}
    return ["verdict", *(name for name in names if len(np.unique(gaps[name][np.isfinite(gaps[name])])) > 1)]


def _ranked(
    cases: Sequence[Case], name: str, draws: int, draw: np.random.Generator
) -> tuple[float, float, float] | None:
    """Return the rank correlation of a measure with the score, and its 95 % interval. None if it cannot be computed."""
    known = [case for case in cases if np.isfinite(case.gap(name))]
    if len(known) < 3:
        return None
    closeness = np.array([-case.gap(name) for case in known])
    found = spearman(closeness, np.array([case.share for case in known]))
    drawn = []
    for _ in range(draws):
        places = draw.integers(len(known), size=len(known))
        values = [known[place].values for place in places]
        means = [float(draw.choice(seeds, len(seeds)).mean()) for seeds in values]
        shares = [known[place].relative(mean) for place, mean in zip(places, means, strict=True)]
        drawn.append(spearman(closeness[places], np.array(shares)))
    there = [value for value in drawn if value is not None]
    if found is None or not there:
        return None
    low, high = np.quantile(there, [0.025, 0.975])
    return found, float(low), float(high)


def spearman(one: Array, other: Array) -> float | None:
    """Return Spearman's rank correlation, or None if one side is constant. Equal values get the mean of their ranks."""
    ranks = [_ranks_of(one), _ranks_of(other)]
    if min(float(np.ptp(rank)) for rank in ranks) == 0:
        return None
    return float(np.corrcoef(ranks)[0, 1])


def _ranks_of(values: Array) -> Array:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    middles: Array = np.cumsum(counts) - (counts - 1) / 2
    return middles[place]


def _limits(made: Cases, question: str) -> Sheet:
    """Return for each data set the limit of a measure that is best on the other data sets, and its accuracy."""
    rows, figures = [], {}
    for name in _measures(made):
        found = {data: _limit(made, data, name, question) for data in made}
        figures[name] = {data: dict(zip(("limit", "others", "this"), one, strict=True)) for data, one in found.items()}
        rows.append([name, *(_limit_cell(*one) for one in found.values())])
    title = (
        f"Is the outcome '{question}'? The limit of the gap to real rows that is best on the other data sets, "
        "its balanced accuracy there, and on this one"
    )
    return Sheet(title, ["measure", *made], rows, figures)


def _limit(made: Cases, data: str, name: str, question: str) -> tuple[float | None, float | None, float | None]:
    others = [case for other, found in made.items() if other != data for case in found]
    limit, seen = best_limit(*_gaps_and_answers(others, name, question))
    if limit is None:
        return None, None, None
    return limit, seen, balanced_accuracy(*_gaps_and_answers(made[data], name, question), limit)


def _limit_cell(limit: float | None, seen: float | None, unseen: float | None) -> str:
    if limit is None:
        return "-"
    return f"{limit:.3g}: {seen:.2f}, " + ("-" if unseen is None else f"{unseen:.2f}")


def _gaps_and_answers(cases: Sequence[Case], name: str, question: str) -> tuple[Array, Array]:
    """Return the gaps of a measure, and whether they should be above the limit: sets that are not `as good` as real
    rows, or sets that are `useless`."""
    known = [case for case in cases if np.isfinite(case.gap(name))]
    above = [(case.outcome == question) != (question == "as good") for case in known]
    return np.array([case.gap(name) for case in known]), np.array(above, bool)


def balanced_accuracy(gaps: Array, above: Array, limit: float) -> float | None:
    """Return the mean share of correct answers over both classes, or None if there is only one class."""
    if not above.any() or above.all():
        return None
    return float(((gaps[above] > limit).mean() + (gaps[~above] <= limit).mean()) / 2)


def best_limit(gaps: Array, above: Array) -> tuple[float | None, float | None]:
    """Return the limit with the highest balanced accuracy, halfway between two gaps, and this accuracy."""
    values = np.unique(gaps)
    limits = (values[1:] + values[:-1]) / 2
    found = [(balanced_accuracy(gaps, above, limit), float(limit)) for limit in limits]
    right = [(accuracy, limit) for accuracy, limit in found if accuracy is not None]
    if not right:
        return None, None
    accuracy, limit = max(right)
    return limit, accuracy

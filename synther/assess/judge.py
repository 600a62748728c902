"""Is the synthetic data any good? All measures, each beside what real rows reach, and a verdict."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from synther.assess import catalogue, columns, usefulness
from synther.assess.assessment import Assessment, Cloud, Column, Correlations
from synther.assess.bounds import Bounds, share_outside
from synther.assess.classifier import tell_apart
from synther.assess.dynamics import Array, Simulator, next_errors, predicted, reward_errors
from synther.assess.features import Features
from synther.assess.fidelity import MAX_ROWS, alike_pairs, correlation, marginal, matrices_of, pearson, varying
from synther.assess.neighbours import QUERY_ROWS, coverage, memorised, nearest, scaled_rows
from synther.assess.split import Split
from synther.assess.standard import Standard
from synther.assess.terminals import TerminalJudge, agreement
from synther.assess.threads import WORKERS, one_thread
from synther.assess.usefulness import Lesson
from synther.assess.verdict import decide
from synther.data.transitions import Transitions
from synther.errors import ConfigError
from synther.progress import Progress, resolve

FIT_ROWS = 100_000
"""Rows of each kind that networks learn from."""

FEWEST_TO_LEARN = 100
"""Rows of either side below which nothing can be learned that says something about the rows."""

JUDGED_ROWS = 20_000
"""Synthetic rows that a simulator or networks judge."""

FAR = 1e6
"""Squared deviations by which a row is off that the simulator could not follow."""

COVER_ROWS = 50_000
"""Synthetic rows, and real ones, among which `coverage` looks for neighbours."""

SCORED_ROWS = 10_000
"""Held-out rows that networks are scored on."""


def assess(
    real: Transitions,
    synthetic: Transitions,
    *,
    held_out: Transitions | None = None,
    simulator: Simulator | None = None,
    simulator_name: str | None = None,
    parameters: int | None = None,
    max_rows: int = MAX_ROWS,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Progress | bool = False,
    real_name: str = "real",
    synthetic_name: str = "synthetic",
) -> Assessment:
    """Everything that `docs/assess.md` describes, of any two sets of rows with the same columns.

    `held_out` are real rows that the generator has not seen; without them a fifth of the real rows stands in, at most
    20,000. `simulator` gives the true next observations, rewards and terminals of observations and actions, for
    instance `functools.partial(simulate, "Hopper-v5")`; without it networks fitted on real rows judge. `parameters` is
    the size of the generator. Of either side at most `max_rows` rows are looked at. The same seed gives the same
    figures on the same machine.
    """
    if parameters is not None and parameters < 1:
        raise ConfigError(f"parameters must be at least 1, got {parameters}")
    split = Split.of(real, synthetic, held_out, max_rows=max_rows, seed=seed)
    with one_thread(), ThreadPoolExecutor(WORKERS) as pool:
        work = _Work(split, simulator, simulator_name, seed, device, pool)
        _go(work, resolve(progress))
    figures = work.figures
    figures["compression"] = (len(real) * len(work.columns) / parameters if parameters else None, None)
    measures = tuple(catalogue.measure(name, *figures.get(name, (None, None))) for name in catalogue.KINDS)
    return Assessment(
        rows_real=len(real),
        rows_synthetic=len(synthetic),
        rows_held_out=len(split.held_out),
        env_id=real.env_id,
        real_name=real_name,
        synthetic_name=synthetic_name,
        verdict=decide({measure.name: measure for measure in measures}),
        measures=measures,
        columns=work.columns,
        correlations=work.correlations,
        cloud=work.cloud,
        notes=tuple(work.notes),
    )


def _go(work: _Work, progress: Progress) -> None:
    stages: tuple[tuple[str, Callable[[], None]], ...] = (
        ("columns", work.likeness),
        ("bounds", work.bounds),
        ("neighbours", work.neighbours),
        ("learning", work.learn),
        ("dynamics", work.physics),
    )
    with progress.phase("assess", len(stages)) as phase:
        for name, stage in stages:
            stage()
            phase.advance(1, name)


@dataclass(eq=False)
class _Work:
    """What is found, stage by stage."""

    split: Split
    simulator: Simulator | None
    simulator_name: str | None
    seed: int
    device: torch.device | str
    pool: Executor
    figures: dict[str, tuple[float | None, float | None]] = field(default_factory=dict)
    """Of the synthetic rows, and of held-out real ones."""
    notes: list[str] = field(default_factory=list)
    columns: tuple[Column, ...] = ()
    correlations: Correlations = field(default_factory=lambda: Correlations((), ()))
    cloud: Cloud | None = None
    distances: tuple[Array, Array] = field(default_factory=lambda: (np.empty(0), np.empty(0)))
    """To the nearest real row: of the first synthetic and of the first held-out rows."""
    features: Features | None = None
    outcomes: Lesson | None = None

    def likeness(self) -> None:
        split, shrink = self.split, self.split.shrink()
        real, synthetic = matrices_of(split.real, split.synthetic)
        reference, held_out = matrices_of(split.reference, split.held_out)
        found, chance = (self.pool.submit(marginal, *sides) for sides in ((real, synthetic), (reference, held_out)))
        r = [self.pool.submit(pearson, side) for side in (real, synthetic)]
        pairs = self.pool.submit(correlation, reference, held_out)
        similarity, mean = found.result()
        similarity_real = 1 - shrink * (1 - chance.result()[0])
        self.columns = columns.describe(split.real, split.synthetic, similarity.tolist(), similarity_real.tolist())
        self.figures["marginal"] = mean, float(similarity_real.mean())
        self.figures["worst_column"] = float(similarity.min()), float(similarity_real.min())
        matrices = [future.result() for future in r]
        value = alike_pairs(matrices[0], matrices[1], varying(real) & varying(synthetic))
        self.figures["correlation"] = value, 1 - shrink * (1 - pairs.result())
        self.correlations = Correlations(*(tuple(map(tuple, matrix.tolist())) for matrix in matrices))

    def bounds(self) -> None:
        split = self.split
        limits, narrower = Bounds.of(split.real), Bounds.of(split.reference)
        for name, fields in (
            ("actions_outside", ("action",)),
            ("observations_outside", ("observation", "next_observation")),
        ):
            self.figures[name] = (
                share_outside(limits, split.synthetic, *fields),
                share_outside(narrower, split.held_out, *fields),
            )
        self.figures["terminal_rate"] = float(split.synthetic.terminal.mean()), float(split.real.terminal.mean())

    def neighbours(self) -> None:
        split = self.split
        few = min(COVER_ROWS, len(split.reference) // 2, len(split.synthetic))
        known, asked, held_out = scaled_rows(split.reference, split.synthetic[: max(few, QUERY_ROWS)], split.held_out)
        held_out = held_out[:QUERY_ROWS]
        search = partial(nearest, device=self.device)
        cover = partial(coverage, held_out, known[:few], device=self.device)
        found = [self.pool.submit(search, known, rows) for rows in (asked[:QUERY_ROWS], held_out)]
        covered = [self.pool.submit(cover, others) for others in (asked[:few], known[few : 2 * few]) if few]
        near, near_real = (future.result()[:, 0] for future in found)
        self.distances = near, near_real
        self.figures["novelty"] = float(np.median(near)), float(np.median(near_real))
        self.figures["memorisation"] = memorised(near_real, near)
        if few:
            self.figures["coverage"] = covered[0].result(), covered[1].result()

    def learn(self) -> None:
        split = self.split
        rows = min(FIT_ROWS, len(split.reference), len(split.synthetic))
        if rows < FEWEST_TO_LEARN or len(split.held_out) < FEWEST_TO_LEARN // 5:
            self.notes.append(
                f"fewer than {FEWEST_TO_LEARN} rows to learn from: no network was fitted, "
                "and the verdict rests on what can be measured without"
            )
            return
        real, synthetic, held_out = split.reference[:rows], split.synthetic[:rows], split.held_out[:SCORED_ROWS]
        self.features = features = Features.of(real)
        parts, seed, device = (features, real, synthetic, held_out), self.seed, self.device
        foreseen = self.pool.submit(usefulness.outcomes, *parts, seed=seed, device=device)
        cloned = self.pool.submit(usefulness.actions, *parts, seed=seed, device=device)
        told = self.pool.submit(self._tell_apart, features)
        self.outcomes, self.figures["auc"] = foreseen.result(), told.result()
        for name, lesson in (("outcome_score", self.outcomes), ("policy_score", cloned.result())):
            self.figures[name] = lesson.scores.synthetic, lesson.scores.real
            self.figures[f"{name}_mixed"] = lesson.scores.mixed, lesson.scores.real

    def _tell_apart(self, features: Features) -> tuple[float, float]:
        """Networks learn to tell reference rows from synthetic ones, and from other reference rows; each is scored on
        rows that none has seen."""
        split = self.split
        scored = min(SCORED_ROWS, len(split.held_out) // 2, len(split.synthetic) // 3)
        rows = min(FIT_ROWS, len(split.reference) // 2, len(split.synthetic) - scored)
        fitted = (split.reference[:rows], split.synthetic[scored:][:rows], split.reference[rows:][:rows])
        unseen = (split.held_out[:scored], split.synthetic[:scored], split.held_out[scored:][:scored])
        groups = ([features.whole(part) for part in parts] for parts in (fitted, unseen))
        value, real = tell_apart(*groups, seed=self.seed, device=self.device)
        return value, real

    def physics(self) -> None:
        asked = self.split.synthetic[:JUDGED_ROWS], self.split.held_out[: JUDGED_ROWS // 4]
        if self.simulator is not None:
            judge = self.simulator_name or "a simulator"
            truths = [self.simulator(rows.observation, rows.action) for rows in asked]
        elif self.features is None or self.outcomes is None:
            return
        else:
            judge = f"{usefulness.MEMBERS} networks fitted on real rows"
            self.notes.append(f"no simulator: {judge} judge next observations, rewards and terminals instead")
            features, networks = self.features, self.outcomes.networks
            ends = TerminalJudge(features, self.split.reference[:FIT_ROWS], seed=self.seed, device=self.device)
            truths = [(*predicted(networks, features, rows), ends(rows)) for rows in asked]
        self._terminals(asked, truths)
        scale = Standard.of(self.split.reference.next_observation), Standard.of(self.split.reference.reward[:, None])
        if scale[0].varies.any():
            errors = [next_errors(rows, truth[0], scale[0]) for rows, truth in zip(asked, truths, strict=True)]
            self.figures["dynamics_error"] = _median(errors[0]), _median(errors[1])
            points = [_points(near, error) for near, error in zip(self.distances, errors, strict=True)]
            self.cloud = Cloud(judge, *points)
            lost = float(np.mean(np.isinf(errors[0])))
            if lost:
                self.notes.append(f"{judge} could not follow {lost:.2%} of the synthetic rows")
        if scale[1].varies.all():
            rewards = [reward_errors(rows, truth[1], scale[1]) for rows, truth in zip(asked, truths, strict=True)]
            self.figures["reward_error"] = _median(rewards[0]), _median(rewards[1])

    def _terminals(self, asked: tuple[Transitions, ...], truths: list[tuple[Array, Array, Array]]) -> None:
        found, real = (agreement(rows.terminal, truth[2]) for rows, truth in zip(asked, truths, strict=True))
        self.figures["terminal_correctness"] = found.correct, real.correct
        self.figures["terminal_precision"] = found.precision, real.precision
        self.figures["terminal_recall"] = found.recall, real.recall


def _median(errors: Array) -> float:
    """A row that nobody can follow counts as far off, but as a number: the worst data still has a figure."""
    return float(np.median(np.minimum(errors, FAR)))


def _points(near: Array, error: Array) -> tuple[tuple[float, float], ...]:
    rows = min(len(near), len(error))
    pairs = np.column_stack([near[:rows], error[:rows]])
    return tuple((float(x), float(y)) for x, y in pairs[np.isfinite(pairs).all(axis=1)])

"""Is the synthetic data any good? All metrics, each beside what real rows reach, and a verdict."""

from __future__ import annotations

import math
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import torch

from synther.assess import columns, discrete, payouts, spread, usefulness
from synther.assess.assessment import Assessment, Better, Cloud, Column, Correlations
from synther.assess.bounds import Bounds, action_scale, rescaled_actions, share_outside
from synther.assess.classifier import tell_apart
from synther.assess.dynamics import Array, Simulator, next_errors, predicted, reward_errors
from synther.assess.features import Features
from synther.assess.fidelity import (
    MAX_ROWS,
    alike_pairs,
    correlation_variance,
    marginal,
    matrices_of,
    pearson,
    varying,
    worst_pair,
)
from synther.assess.metrics import METRICS, Figure, measure
from synther.assess.neighbours import QUERY_ROWS, coverage, memorised, nearest, scaled_rows, start_coverage
from synther.assess.split import Split
from synther.assess.standard import Standard
from synther.assess.terminals import TerminalJudge, agreement
from synther.assess.usefulness import Lesson
from synther.assess.verdict import decide
from synther.compute import one_thread
from synther.data.transitions import Transitions
from synther.errors import ConfigError
from synther.progress import Progress, resolve

WORKERS = 2
"""Tasks of an assessment that run at a time, each on one thread."""

FIT_ROWS = 100_000
"""Rows of each kind that networks learn from."""

FEWEST_TO_LEARN = 100
"""Rows of either side below which nothing can be learned that says something about the rows."""

JUDGED_ROWS = 20_000
"""Synthetic rows that a simulator or networks judge."""

FAR = 1e6
"""Squared stds by which a row is off that the simulator could not follow."""

FAR_REWARD = 10.0
"""Squared stds that a reward counts as off at most: a few rows do not decide."""

COVER_ROWS = 50_000
"""Synthetic rows, and real ones, among which `coverage` looks for neighbours."""

SCORED_ROWS = 10_000
"""Held-out rows that networks are scored on."""

EXACT = 1e-4
"""Error of real rows, in squared stds, below which a simulator shows that the environment is deterministic."""

FEWEST_ENDS = 10
"""Ends of episodes, or rows flagged as such, below which no share of them is given."""

Figures = dict[str, Figure]

_NONE = Figure(None, None)


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
    metrics, measures = dict(METRICS.items()), []
    with one_thread(), ThreadPoolExecutor(WORKERS) as pool, resolve(progress).phase("assess", len(metrics)) as phase:
        rows = Comparison(split, simulator, simulator_name, seed, device, pool, len(real), parameters)
        for name, metric in metrics.items():
            measures.append(measure(name, *(metric.compute(rows) or _NONE)))
            phase.advance(1, metric.label)
        likeness, physics = rows.likeness, rows.physics
    return Assessment(
        rows_real=len(real),
        rows_synthetic=len(synthetic),
        rows_held_out=len(split.held_out),
        env_id=real.env_id,
        real_name=real_name,
        synthetic_name=synthetic_name,
        verdict=decide({found.name: found for found in measures}),
        measures=tuple(measures),
        columns=likeness.columns,
        correlations=likeness.correlations,
        cloud=physics.cloud,
        notes=tuple(rows.notes),
    )


class Likeness(NamedTuple):
    figures: Figures
    columns: tuple[Column, ...]
    correlations: Correlations


class Neighbours(NamedTuple):
    figures: Figures
    distances: tuple[Array, Array]
    """To the nearest real row: of the first synthetic and of the first held-out rows."""


class Learned(NamedTuple):
    """The last two are None where there are too few rows to learn from."""

    figures: Figures
    features: Features | None = None
    outcomes: Lesson | None = None


class Physics(NamedTuple):
    figures: Figures
    cloud: Cloud | None = None


@dataclass(eq=False)
class Comparison:
    """Rows that are compared, and work that metrics share: each part is done when a metric first asks for it."""

    split: Split
    simulator: Simulator | None
    simulator_name: str | None
    seed: int
    device: torch.device | str
    pool: Executor
    rows_real: int
    """All real rows, of which `split` may have a part."""
    parameters: int | None
    """Of the generator."""
    notes: list[str] = field(default_factory=list)
    """For the reader of the report: what was left out, and why."""

    @cached_property
    def likeness(self) -> Likeness:
        split, shrink = self.split, self.split.shrink()
        real, synthetic = matrices_of(split.real, split.synthetic)
        reference, held_out = matrices_of(*split.by_rows())
        found, chance = (self.pool.submit(marginal, *sides) for sides in ((real, synthetic), (reference, held_out)))
        r = [self.pool.submit(pearson, side) for side in (real, synthetic, reference, held_out)]
        similarity, mean = found.result()
        similarity_real = 1 - shrink * (1 - chance.result()[0])
        described = columns.describe(split.real, split.synthetic, similarity.tolist(), similarity_real.tolist())
        worst = int(similarity.argmin())
        least = Figure(float(similarity[worst]), float(similarity_real.min()), detail=described[worst].name)
        matrices = [future.result() for future in r]
        value = alike_pairs(matrices[0], matrices[1], varying(real) & varying(synthetic))
        alike = alike_pairs(matrices[2], matrices[3], varying(reference) & varying(held_out))
        figures = {
            "marginal": Figure(mean, float(similarity_real.mean())),
            "worst_column": least,
            "correlation": Figure(value, 1 - shrink * (1 - alike)),
            "worst_correlation": self._worst_correlation((real, synthetic, reference, held_out), matrices, described),
        }
        correlations = Correlations(*(tuple(map(tuple, matrix.tolist())) for matrix in matrices[:2]))
        return Likeness(figures, described, correlations)

    def _worst_correlation(self, sides: tuple[Array, ...], r: list[Array], described: tuple[Column, ...]) -> Figure:
        """A column that is constant in synthetic rows alone has lost its correlations; one in held-out rows is rare."""
        split = self.split
        episodes: list[Array | None] = [None] * 4
        if split.synthetic_episodes is not None:  # not generated, so what differs between episodes is chance
            episodes[:2] = split.episodes, split.synthetic_episodes
        waiting = [self.pool.submit(correlation_variance, *side) for side in zip(sides, r, episodes, strict=True)]
        variance = [future.result() for future in waiting]
        value, pair = worst_pair(r[0], r[1], variance[0] + variance[1], varying(sides[0]))
        real, _ = worst_pair(r[2], r[3], variance[2] + variance[3], varying(sides[2]) & varying(sides[3]))
        detail = ""
        if pair is not None:
            names = " and ".join(described[at].name for at in pair)
            detail = f"{names}: {r[1][pair]:.3f}, in real rows {r[0][pair]:.3f}"
        return Figure(value, self.split.shrink() * real, detail=detail)

    @property
    def compression(self) -> Figure | None:
        if self.parameters is None:
            return None
        return Figure(self.rows_real * len(self.likeness.columns) / self.parameters, None)

    @cached_property
    def bounds(self) -> Figures:
        split, figures = self.split, {}
        limits, narrower = Bounds.of(split.real), Bounds.of(split.reference)
        for name, fields in (
            ("actions_outside", ("action",)),
            ("observations_outside", ("observation", "next_observation")),
        ):
            figures[name] = Figure(
                share_outside(limits, split.synthetic, *fields), share_outside(narrower, split.held_out, *fields)
            )
        rates = float(split.synthetic.terminal.mean()), float(split.real.terminal.mean())
        chance = math.sqrt(max(rates) * (1 / len(split.synthetic) + 1 / len(split.real)))
        figures["terminal_rate"] = Figure(*rates, chance=2 * chance)
        rescaled = rescaled_actions(split.real, split.synthetic)
        scales = action_scale(split.real, split.synthetic), action_scale(split.reference, split.held_out)
        figures["action_scale"] = Figure(*scales, detail=rescaled or "")
        if rescaled is not None:
            self.notes.append(rescaled[0].lower() + rescaled[1:].rstrip("."))
        return figures

    @cached_property
    def states(self) -> Figures:
        return discrete.figures(self.split.reference, self.split.synthetic, self.split.held_out)

    @cached_property
    def neighbours(self) -> Neighbours:
        split = self.split
        few = min(COVER_ROWS, len(split.reference) // 2, len(split.synthetic))
        known, asked, held_out = scaled_rows(split.reference, split.synthetic[: max(few, QUERY_ROWS)], split.held_out)
        held_out = held_out[:QUERY_ROWS]
        search = partial(nearest, device=self.device)
        parts = split.few_episodes(few)
        cover = partial(coverage, held_out, known[parts[0]], device=self.device)
        found = [self.pool.submit(search, known, rows) for rows in (asked[:QUERY_ROWS], held_out)]
        covered = [self.pool.submit(cover, others) for others in (asked[:few], known[parts[1]]) if few]
        near, near_real = (future.result()[:, 0] for future in found)
        figures = {
            "novelty": Figure(float(np.median(near)), float(np.median(near_real))),
            "memorisation": Figure(*memorised(near_real, near)),
        }
        if few:
            chance = 1 / math.sqrt(len(held_out))
            figures["coverage"] = Figure(covered[0].result(), covered[1].result(), chance)
        if split.episodes is not None:
            starts = np.diff(split.episodes, prepend=-1) > 0
            seen, made = (rows.observation.reshape(len(rows), -1) for rows in (split.real, split.synthetic))
            figures["start_coverage"] = Figure(start_coverage(seen, starts, made, device=self.device), 1.0)
        return Neighbours(figures, (near, near_real))

    @cached_property
    def learned(self) -> Learned:
        split = self.split
        rows = min(FIT_ROWS, len(split.reference), len(split.synthetic))
        if rows < FEWEST_TO_LEARN or len(split.held_out) < FEWEST_TO_LEARN // 5:
            self.notes.append(
                f"fewer than {FEWEST_TO_LEARN} rows to learn from: no network was fitted, "
                "and the verdict rests on what can be measured without"
            )
            return Learned({})
        real, synthetic, held_out = split.reference[:rows], split.synthetic[:rows], split.held_out[:SCORED_ROWS]
        features = Features.of(real)
        parts, seed, device = (features, real, synthetic, held_out), self.seed, self.device
        predicting = self.pool.submit(usefulness.outcomes, *parts, seed=seed, device=device)
        cloned = self.pool.submit(usefulness.actions, *parts, seed=seed, device=device)
        told = self.pool.submit(self._tell_apart, features)
        outcomes, figures = predicting.result(), {"auc": told.result()}
        for name, lesson in (("outcome_score", outcomes), ("policy_score", cloned.result())):
            figures[name] = Figure(lesson.scores.synthetic, lesson.scores.real)
            figures[f"{name}_mixed"] = Figure(lesson.scores.mixed, lesson.scores.real)
        return Learned(figures, features, outcomes)

    def _tell_apart(self, features: Features) -> Figure:
        """Networks learn to tell reference rows from synthetic ones, and from other reference rows; each is scored on
        rows that none has seen."""
        split = self.split
        scored = min(SCORED_ROWS, len(split.held_out) // 2, len(split.synthetic) // 3)
        rows = min(FIT_ROWS, len(split.reference) // 2, len(split.synthetic) - scored)
        fitted = (split.reference[:rows], split.synthetic[scored:][:rows], split.reference[rows:][:rows])
        unseen = (split.held_out[:scored], split.synthetic[:scored], split.held_out[scored:][:scored])
        groups = ([features.whole(part) for part in parts] for parts in (fitted, unseen))
        value, real = tell_apart(*groups, seed=self.seed, device=self.device)
        return Figure(value, real, chance=2 / math.sqrt(6 * max(scored, 1)))

    @cached_property
    def physics(self) -> Physics:
        features, outcomes = self.learned.features, self.learned.outcomes
        asked = self.split.synthetic[:JUDGED_ROWS], self.split.held_out[: JUDGED_ROWS // 4]
        if self.simulator is not None:
            judge = self.simulator_name or "a simulator"
            truths = [self.simulator(rows.observation, rows.action) for rows in asked]
        elif features is None or outcomes is None:
            return Physics({})
        else:
            judge = f"{usefulness.MEMBERS} networks fitted on real rows"
            self.notes.append(f"no simulator: {judge} judge next observations, rewards and terminals instead")
            ends = TerminalJudge(features, self.split.reference[:FIT_ROWS], seed=self.seed, device=self.device)
            truths = [(*predicted(outcomes.networks, features, rows), ends(rows)) for rows in asked]
        figures, cloud = self._terminals(asked, truths), None
        # Networks only know the mean of outcomes: rows that lie closer to it than real ones are not better.
        better: Better | None = "nearer" if self.simulator is None else None
        scale = Standard.of(self.split.reference.next_observation), Standard.of(self.split.reference.reward[:, None])
        if scale[0].varies.any():
            errors = [next_errors(rows, truth[0], scale[0]) for rows, truth in zip(asked, truths, strict=True)]
            chance = math.hypot(*map(_median_error, errors))
            figures["dynamics_error"] = Figure(_median(errors[0]), _median(errors[1]), chance, better=better)
            points = [_points(near, error) for near, error in zip(self.neighbours.distances, errors, strict=True)]
            cloud = Cloud(judge, *points)
            lost = float(np.mean(np.isinf(errors[0])))
            if lost:
                self.notes.append(f"{judge} could not follow {lost:.2%} of the synthetic rows")
        if scale[1].varies.all():
            rewards = [reward_errors(rows, truth[1], scale[1]) for rows, truth in zip(asked, truths, strict=True)]
            found, real = (np.minimum(errors, FAR_REWARD) for errors in rewards)
            chance = 2 * math.hypot(*(float(errors.std()) / math.sqrt(len(errors)) for errors in (found, real)))
            figures["reward_error"] = Figure(float(found.mean()), float(real.mean()), chance, better=better)
        return Physics(figures, cloud)

    def _terminals(self, asked: tuple[Transitions, ...], truths: list[tuple[Array, Array, Array]]) -> Figures:
        found, real = (agreement(rows.terminal, truth[2]) for rows, truth in zip(asked, truths, strict=True))
        figures = {"terminal_correctness": Figure(found.correct, real.correct)}
        for name, counted in (("precision", [rows.terminal for rows in asked]), ("recall", [one[2] for one in truths])):
            counts = [int(np.count_nonzero(flags)) for flags in counted]
            if counts[0] >= FEWEST_ENDS:
                shares = getattr(found, name), getattr(real, name)
                chance = math.hypot(*map(_share_error, shares, counts))
                figures[f"terminal_{name}"] = Figure(*shares, chance)
        return figures

    @cached_property
    def payouts(self) -> Figures:
        """Whoever judges rewards: rare ones are lost in the mean of all."""
        split, features = self.split, self.learned.features
        if features is None:
            return {}
        real, synthetic = split.reference[:FIT_ROWS], split.synthetic[:FIT_ROWS]
        return payouts.figures(features, real, synthetic, split.held_out, seed=self.seed, device=self.device)

    @cached_property
    def spread(self) -> Figures:
        """Unless the states can be counted, which is exact, or the simulator shows that nothing is random."""
        split, features, lesson = self.split, self.learned.features, self.learned.outcomes
        rows = min(FIT_ROWS, len(split.reference), len(split.synthetic))
        if features is None or lesson is None or rows < spread.FEWEST_ROWS or "frequency_error" in self.states:
            return {}
        errors = [self.physics.figures.get(name, _NONE).real for name in ("dynamics_error", "reward_error")]
        if self.simulator is not None and all(error is None or error < EXACT for error in errors):
            return {}
        parts = spread.Parts(split.reference[:rows], split.synthetic[:rows], split.held_out)
        return spread.figures(features, lesson, parts, spread.How(self.seed, self.device, self.pool))


def _median(errors: Array) -> float:
    """A row that the judge cannot follow counts as far off, but as a number: the worst data still has a figure."""
    return float(np.median(np.minimum(errors, FAR)))


def _median_error(errors: Array) -> float:
    """Two standard errors of the median, from the values whose ranks are so far from the middle."""
    far = min(0.5, 1 / math.sqrt(len(errors)))
    low, high = np.quantile(np.minimum(errors, FAR), [0.5 - far, 0.5 + far])
    return float(high - low) / 2


def _share_error(share: float | None, count: int) -> float:
    """Two standard errors of a share of so many rows, of which one more may be and one more may not: few that are all
    right do not prove that all are."""
    if share is None:
        return 0.0
    likely = (share * count + 1) / (count + 2)
    return 2 * math.sqrt(likely * (1 - likely) / count)


def _points(near: Array, error: Array) -> tuple[tuple[float, float], ...]:
    rows = min(len(near), len(error))
    pairs = np.column_stack([near[:rows], error[:rows]])
    return tuple((float(x), float(y)) for x, y in pairs[np.isfinite(pairs).all(axis=1)])

"""Assess synthetic rows: compute all metrics for synthetic and for held-out real rows, and derive a verdict.

`assess` is the entry point. It splits the real rows (`split.py`) and asks every metric of `METRICS` for its figure. The
metrics take their figures from a `Comparison`, which does the work that several of them share (such as fitting
networks) only once.
"""

from __future__ import annotations

import math
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import torch

from synther.assess import cells, columns, discrete, held, payouts, spread, usefulness
from synther.assess.assessment import Assessment, Better, Cloud, Column, Correlations
from synther.assess.bounds import Bounds, action_scale, rescaled_actions, share_outside
from synther.assess.classifier import tell_apart
from synther.assess.dynamics import Array, Simulator, next_errors, predicted, reward_errors
from synther.assess.features import Features
from synther.assess.fidelity import (
    MAX_ROWS,
    correlation_variance,
    marginal,
    matrices_of,
    pair_similarity,
    pearson,
    varying,
    worst_pair,
)
from synther.assess.figure import Figure, standard_error
from synther.assess.metrics import METRICS, measure
from synther.assess.neighbours import QUERY_ROWS, coverage, memorised, nearest, scaled_rows, start_coverage
from synther.assess.split import Split
from synther.assess.standard import Standard, far_values
from synther.assess.terminals import TerminalJudge, agreement
from synther.assess.usefulness import Lesson
from synther.assess.verdict import decide
from synther.compute import one_thread
from synther.data.transitions import Transitions
from synther.errors import ConfigError
from synther.progress import Progress, resolve

WORKERS = 2
"""Number of tasks of an assessment that run at the same time, each on one thread."""

FIT_ROWS = 100_000
"""Largest number of real rows, and of synthetic rows, that networks learn from."""

FEWEST_TO_LEARN = 100
"""Smallest number of reference rows, and of synthetic rows, for which networks are fitted. With fewer rows their scores
would say nothing about the rows."""

JUDGED_ROWS = 20_000
"""Largest number of synthetic rows that a simulator or networks judge. Of held-out rows, a quarter of this."""

FAR = 1e6
"""Largest `dynamics_error` of a row, in squared stds. Rows that the simulator cannot simulate get this value."""

FAR_REWARD = 10.0
"""Largest `reward_error` of a row, in squared stds, so that a few rows do not decide the mean."""

COVER_ROWS = 50_000
"""Largest number of synthetic rows, and of real rows, in which `coverage` searches for neighbours."""

SCORED_ROWS = 10_000
"""Largest number of held-out rows that networks are scored on."""

EXACT = 1e-4
"""If a simulator reproduces real rows with an error below this, in squared stds, the environment is deterministic."""

FEWEST_ENDS = 10
"""Smallest number of synthetic rows that should end an episode (for `terminal_recall`), or that are flagged terminal
(for `terminal_precision`). With fewer rows the figure is missing."""

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
    """Compare two sets of rows with the same columns by all measures of `docs/assess.md`, and return the assessment.

    `held_out` are real rows that the generator has not seen. Default: a fifth of the real rows, at most 20,000.
    `simulator` maps observations and actions to the true next observations, rewards and terminals, for example
    `functools.partial(simulate, "Hopper-v5")`. Without a simulator, networks fitted on real rows judge. `parameters` is
    the number of parameters of the generator, for `compression`. At most `max_rows` rows of each side are used. The
    same seed gives the same figures on the same machine.
    """
    if parameters is not None and parameters < 1:
        raise ConfigError(f"parameters must be at least 1, got {parameters}")
    split = Split.of(real, synthetic, held_out, max_rows=max_rows, seed=seed)
    metrics, measures = dict(METRICS.items()), []
    with one_thread(), ThreadPoolExecutor(WORKERS) as pool, resolve(progress).phase("assess", len(metrics)) as phase:
        rows = Comparison(split, simulator, simulator_name, seed, device, pool, len(real), parameters)
        for name, metric in metrics.items():
            measures.append(measure(name, metric.compute(rows) or _NONE))
            phase.advance(1, metric.label)
        likeness, physics = rows.likeness, rows.physics
    return Assessment(
        rows_real=len(real),
        rows_synthetic=len(synthetic),
        rows_held_out=len(split.held_out),
        env_id=real.env_id,
        real_name=real_name,
        synthetic_name=synthetic_name,
        verdict=decide({one.name: one for one in measures}),
        measures=tuple(measures),
        columns=likeness.columns,
        correlations=likeness.correlations,
        cloud=physics.cloud,
        notes=tuple(rows.notes),
    )


class Likeness(NamedTuple):
    """How similar the distributions of columns and pairs of columns are."""

    figures: Figures
    columns: tuple[Column, ...]
    correlations: Correlations


class Neighbours(NamedTuple):
    """Distances to the nearest real rows, and the figures that follow from them."""

    figures: Figures
    distances: tuple[Array, Array]
    """Distances to the nearest reference row: of the first synthetic rows and of the first held-out rows."""


class Learned(NamedTuple):
    """What networks learned from the rows. `features` and `outcomes` are None if there are too few rows."""

    figures: Figures
    features: Features | None = None
    outcomes: Lesson | None = None
    """The networks that predict outcomes."""


class Physics(NamedTuple):
    """How consistent rows are with the environment."""

    figures: Figures
    cloud: Cloud | None = None


@dataclass(eq=False)
class Comparison:
    """The rows to compare, and the work that metrics share. Each property is computed when a metric first needs it."""

    split: Split
    simulator: Simulator | None
    simulator_name: str | None
    seed: int
    device: torch.device | str
    pool: Executor
    rows_real: int
    """Number of all real rows. `split` may contain only a part of them."""
    parameters: int | None
    """Number of parameters of the generator, if it is known."""
    notes: list[str] = field(default_factory=list)
    """Notes for the reader of the report: what was left out, and why."""

    @cached_property
    def likeness(self) -> Likeness:
        """Compare the distributions of columns and their correlations."""
        split, shrink = self.split, self.split.shrink()
        real, synthetic = matrices_of(split.real, split.synthetic)
        reference, held_out = matrices_of(*split.by_rows())
        synthetic_task, held_out_task = (
            self.pool.submit(marginal, *sides) for sides in ((real, synthetic), (reference, held_out))
        )
        r = [self.pool.submit(pearson, side) for side in (real, synthetic, reference, held_out)]
        similarity, mean = synthetic_task.result()
        similarity_real = 1 - shrink * (1 - held_out_task.result()[0])
        described = columns.describe(split.real, split.synthetic, similarity.tolist(), similarity_real.tolist())
        worst = int(similarity.argmin())
        worst_column = Figure(float(similarity[worst]), float(similarity_real.min()), detail=described[worst].name)
        matrices = [future.result() for future in r]
        value = pair_similarity(matrices[0], matrices[1], varying(real) & varying(synthetic))
        value_real = pair_similarity(matrices[2], matrices[3], varying(reference) & varying(held_out))
        figures = {
            "marginal": Figure(mean, float(similarity_real.mean())),
            "worst_column": worst_column,
            "correlation": Figure(value, 1 - shrink * (1 - value_real)),
            "worst_correlation": self._worst_correlation((real, synthetic, reference, held_out), matrices, described),
        }
        correlations = Correlations(*(tuple(map(tuple, matrix.tolist())) for matrix in matrices[:2]))
        return Likeness(figures, described, correlations)

    def _worst_correlation(self, sides: tuple[Array, ...], r: list[Array], described: tuple[Column, ...]) -> Figure:
        """Return `worst_correlation`, with the pair of columns as detail.

        A column that is constant only in synthetic rows takes part, because it has lost its correlations. A column that
        is constant only in held-out rows does not: it varies too rarely.
        """
        split = self.split
        episodes: list[Array | None] = [None] * 4
        if split.synthetic_episodes is not None:  # recorded rows: differences between episodes are chance
            episodes[:2] = split.episodes, split.synthetic_episodes
        tasks = [self.pool.submit(correlation_variance, *side) for side in zip(sides, r, episodes, strict=True)]
        variance = [task.result() for task in tasks]
        value, pair = worst_pair(r[0], r[1], variance[0] + variance[1], varying(sides[0]))
        real, _ = worst_pair(r[2], r[3], variance[2] + variance[3], varying(sides[2]) & varying(sides[3]))
        detail = ""
        if pair is not None:
            names = " and ".join(described[at].name for at in pair)
            detail = f"{names}: {r[1][pair]:.3f} in synthetic rows, {r[0][pair]:.3f} in real rows"
        return Figure(value, self.split.shrink() * real, detail=detail)

    @property
    def compression(self) -> Figure | None:
        """Number of values in all real rows, divided by the number of parameters of the generator."""
        if self.parameters is None:
            return None
        return Figure(self.rows_real * len(self.likeness.columns) / self.parameters, None)

    @cached_property
    def bounds(self) -> Figures:
        """Values out of bounds, the scale of actions, and the rate of terminals."""
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
        """Measures for environments with few distinct states."""
        return discrete.figures(self.split.reference, self.split.synthetic, self.split.held_out)

    @cached_property
    def held(self) -> Figures:
        """How often columns stay as they are."""
        split = self.split
        known = split.reference_episodes, split.synthetic_episodes
        return held.figures(split.reference, split.synthetic, split.held_out, *known)

    @cached_property
    def neighbours(self) -> Neighbours:
        """Novelty, memorisation and coverage."""
        split = self.split
        few = min(COVER_ROWS, len(split.reference) // 2, len(split.synthetic))
        reference, synthetic, held_out = scaled_rows(
            split.reference, split.synthetic[: max(few, QUERY_ROWS)], split.held_out
        )
        held_out = held_out[:QUERY_ROWS]
        search = partial(nearest, device=self.device)
        parts = split.few_episodes(few)
        cover = partial(coverage, held_out, reference[parts[0]], device=self.device)
        searches = [self.pool.submit(search, reference, rows) for rows in (synthetic[:QUERY_ROWS], held_out)]
        covered = [self.pool.submit(cover, others) for others in (synthetic[:few], reference[parts[1]]) if few]
        near, near_real = (task.result()[:, 0] for task in searches)
        figures = {
            "novelty": Figure(float(np.median(near)), float(np.median(near_real))),
            "memorisation": Figure(*memorised(near_real, near)),
        }
        if few:
            chance = 1 / math.sqrt(len(held_out))
            figures["coverage"] = Figure(covered[0].result(), covered[1].result(), chance)
        if split.episodes is not None:
            real, generated = (rows.observation.reshape(len(rows), -1) for rows in (split.real, split.synthetic))
            figures["start_coverage"] = Figure(start_coverage(real, split.episodes, generated, device=self.device), 1.0)
        return Neighbours(figures, (near, near_real))

    @cached_property
    def learned(self) -> Learned:
        """Train networks on synthetic and on real rows, and score them on held-out real rows."""
        split = self.split
        rows = min(FIT_ROWS, len(split.reference), len(split.synthetic))
        if rows < FEWEST_TO_LEARN or len(split.held_out) < FEWEST_TO_LEARN // 5:
            self.notes.append(
                f"fewer than {FEWEST_TO_LEARN} rows to learn from: no network was fitted, "
                "and the verdict only uses measures that need no network"
            )
            return Learned({})
        real, synthetic, held_out = split.reference[:rows], split.synthetic[:rows], split.held_out[:SCORED_ROWS]
        features = Features.of(real)
        parts, seed, device = (features, real, synthetic, held_out), self.seed, self.device
        outcome_task = self.pool.submit(usefulness.outcomes, *parts, seed=seed, device=device)
        policy_task = self.pool.submit(usefulness.actions, *parts, seed=seed, device=device)
        auc_task = self.pool.submit(self._tell_apart, features)
        outcomes, figures = outcome_task.result(), {"auc": auc_task.result()}
        for name, lesson in (("outcome_score", outcomes), ("policy_score", policy_task.result())):
            figures[name] = Figure(lesson.scores.synthetic, lesson.scores.real)
            figures[f"{name}_mixed"] = Figure(lesson.scores.mixed, lesson.scores.real)
        return Learned(figures, features, outcomes)

    def _tell_apart(self, features: Features) -> Figure:
        """Return `auc`. One network learns to separate reference from synthetic rows, another one to separate reference
        rows from other reference rows. Both are scored on rows that no network has seen."""
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
        """Compare next observations, rewards and terminals with those of the judge (a simulator, or networks)."""
        features, outcomes = self.learned.features, self.learned.outcomes
        judged = self.split.synthetic[:JUDGED_ROWS], self.split.held_out[: JUDGED_ROWS // 4]
        if self.simulator is not None:
            judge = self.simulator_name or "a simulator"
            truths = [self.simulator(rows.observation, rows.action) for rows in judged]
        elif features is None or outcomes is None:
            return Physics({})
        else:
            judge = f"{usefulness.MEMBERS} networks fitted on real rows"
            self.notes.append(
                "no simulator: networks fitted on real rows judge next observations, rewards and terminals"
            )
            ends = TerminalJudge(features, self.split.reference[:FIT_ROWS], seed=self.seed, device=self.device)
            truths = [(*predicted(outcomes.networks, features, rows), ends(rows)) for rows in judged]
        figures, cloud = self._terminals(judged, truths), None
        # Networks only predict the mean of outcomes. Rows that are closer to it than real rows are not better.
        better: Better | None = "nearer" if self.simulator is None else None
        after, reward = self.split.reference.next_observation, self.split.reference.reward[:, None]
        scale = Standard.of(after, far_values(after)), Standard.of(reward)
        if scale[0].varies.any():
            errors = [next_errors(rows, truth[0], scale[0]) for rows, truth in zip(judged, truths, strict=True)]
            chance = math.hypot(*map(_median_error, errors))
            figures["dynamics_error"] = Figure(_median(errors[0]), _median(errors[1]), chance, better=better)
            points = [_points(near, error) for near, error in zip(self.neighbours.distances, errors, strict=True)]
            cloud = Cloud(judge, *points)
            lost = float(np.mean(np.isinf(errors[0])))
            if lost:
                self.notes.append(f"{judge} could not simulate {lost:.2%} of the synthetic rows")
        if scale[1].varies.all():
            rewards = [reward_errors(rows, truth[1], scale[1]) for rows, truth in zip(judged, truths, strict=True)]
            synthetic, real = (np.minimum(errors, FAR_REWARD) for errors in rewards)
            episodes = self.split.synthetic_episodes, self.split.held_out_episodes
            uncertain = (
                float(standard_error(errors, None if own is None else own[: len(errors)]))
                for errors, own in zip((synthetic, real), episodes, strict=True)
            )
            chance = 2 * math.hypot(*uncertain)
            figures["reward_error"] = Figure(float(synthetic.mean()), float(real.mean()), chance, better=better)
        return Physics(figures, cloud)

    def _terminals(self, judged: tuple[Transitions, ...], truths: list[tuple[Array, Array, Array]]) -> Figures:
        """Return accuracy, precision and recall of the terminal flags of synthetic and held-out rows (`judged`)."""
        synthetic, real = (agreement(rows.terminal, truth[2]) for rows, truth in zip(judged, truths, strict=True))
        figures = {"terminal_correctness": Figure(synthetic.correct, real.correct)}
        flagged, true = [rows.terminal for rows in judged], [truth[2] for truth in truths]
        for name, counted in (("precision", flagged), ("recall", true)):
            counts = [int(np.count_nonzero(flags)) for flags in counted]
            if counts[0] >= FEWEST_ENDS:
                shares = getattr(synthetic, name), getattr(real, name)
                chance = math.hypot(*map(_share_error, shares, counts))
                figures[f"terminal_{name}"] = Figure(*shares, chance)
        return figures

    @cached_property
    def payouts(self) -> Figures:
        """Figures on rare large rewards, which the mean over all rows would hide."""
        split, features = self.split, self.learned.features
        if features is None:
            return {}
        real, synthetic = split.reference[:FIT_ROWS], split.synthetic[:FIT_ROWS]
        return payouts.figures(features, real, synthetic, split.held_out, seed=self.seed, device=self.device)

    @cached_property
    def spread(self) -> Figures:
        """How far outcomes scatter given (s, a). Empty if `frequency_error` exists, because counting states is exact,
        or if the simulator shows that nothing is random."""
        split, features, lesson = self.split, self.learned.features, self.learned.outcomes
        rows = min(FIT_ROWS, len(split.reference), len(split.synthetic))
        if features is None or lesson is None or rows < spread.FEWEST_ROWS or "frequency_error" in self.states:
            return {}
        errors = [self.physics.figures.get(name, _NONE).real for name in ("dynamics_error", "reward_error")]
        if self.simulator is not None and all(error is None or error < EXACT for error in errors):
            return {}
        known = [None if each is None else each[:rows] for each in (split.reference_episodes, split.synthetic_episodes)]
        parts = spread.Parts(split.reference[:rows], split.synthetic[:rows], split.held_out, *known)
        return spread.figures(features, lesson, parts, spread.FitOptions(self.seed, self.device, self.pool))

    @cached_property
    def cells(self) -> Figures:
        """How far outcomes scatter in each combination of discrete values. Empty if `frequency_error` exists."""
        if "frequency_error" in self.states:
            return {}
        split = self.split
        return cells.figures(split.reference[:FIT_ROWS], split.synthetic[:FIT_ROWS], split.held_out)


def _median(errors: Array) -> float:
    """Return the median of `errors`, at most `FAR`. So rows that cannot be simulated still give a finite figure."""
    return float(np.median(np.minimum(errors, FAR)))


def _median_error(errors: Array) -> float:
    """Return two standard errors of the median, from the quantiles that are 1 / sqrt(n) above and below it."""
    far = min(0.5, 1 / math.sqrt(len(errors)))
    low, high = np.quantile(np.minimum(errors, FAR), [0.5 - far, 0.5 + far])
    return float(high - low) / 2


def _share_error(share: float | None, count: int) -> float:
    """Return two standard errors of a share of `count` rows.

    One success and one failure are added (Laplace), because a few correct rows do not prove that all are correct.
    """
    if share is None:
        return 0.0
    likely = (share * count + 1) / (count + 2)
    return 2 * math.sqrt(likely * (1 - likely) / count)


def _points(near: Array, error: Array) -> tuple[tuple[float, float], ...]:
    """Return the finite pairs of distance and error, for the figure of novelty against dynamics error."""
    rows = min(len(near), len(error))
    pairs = np.column_stack([near[:rows], error[:rows]])
    return tuple((float(x), float(y)) for x, y in pairs[np.isfinite(pairs).all(axis=1)])

"""An assessment with every part: rows of the shipped replay against the same rows under additive noise."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from synther.assess.assessment import (
    Assessment,
    Cloud,
    Column,
    Correlations,
    Effort,
    Measure,
    Process,
    Reason,
    Verdict,
)
from synther.assess.fidelity import column_names, ks_similarity, marginal, matrices_of, pearson
from synther.assess.process import project
from synther.assess.report.correlations import png
from synther.baselines.augmentation import Augmentation
from synther.data import shipped
from synther.data.formats import read

ROWS = 2_000


@cache
def example() -> Assessment:
    rows = read(shipped.hopper())
    real, held_out = rows[:: len(rows) // ROWS], rows[1 :: len(rows) // ROWS]
    synthetic = Augmentation("additive").fit(rows).sample(ROWS, seed=0)
    first, second = matrices_of(real, synthetic)
    other, _ = matrices_of(held_out, synthetic)
    names = column_names(real)
    per_column, mean = marginal(first, second)
    worst = float(per_column.min())
    marginal_real = marginal(first, other)[1]
    return Assessment(
        rows_real=len(rows),
        rows_synthetic=ROWS,
        rows_held_out=len(held_out),
        env_id="Hopper-v5",
        real_name="hopper-sac.npz",
        synthetic_name="additive-noise.npz",
        verdict=Verdict(
            "do not use",
            "The rows look right one column at a time, but what follows from an action is not what physics does.",
            (
                Reason("dynamics", "do not use", "The next observation is off by 0.28 squared standard deviations."),
                Reason("auc", "mix", "A classifier tells the rows apart in 94 of 100 cases."),
                Reason("marginal", "use", f"Single columns are {mean:.3f} alike; real rows reach {marginal_real:.3f}."),
            ),
        ),
        measures=measures(mean, marginal_real, worst),
        columns=tuple(
            column(name, first[:, at], second[:, at], ks_similarity(first[:, at], other[:, at]))
            for at, name in enumerate(names)
        ),
        correlations=Correlations(table(pearson(first)), table(pearson(second))),
        cloud=cloud(first, second, other),
        process=process(first, second),
        efforts=(
            Effort("SDE", 255, 0.9904, 0.9975, 0.00079, 1.0),
            Effort("SDE", 63, 0.9900, 0.9983, 0.00099, 0.3),
            Effort("DPM-Solver++(2M)", 32, 0.9900, 0.9978, 0.00097, 0.2),
            Effort("DPM-Solver++(2M)", 20, 0.9890, 0.9978, 0.00102, 0.1),
            Effort("Heun", 35, 0.9884, 0.9978, 0.00117, 0.2),
            Effort("Euler", 64, 0.9853, 0.9963, None, 0.3),
        ),
        notes=(
            "Novelty, coverage and memorisation look at 2,000 of the synthetic rows.",
            "No simulator for these rows: 7 dynamics models judge instead.",
        ),
    )


def without_figures(odd: float | None) -> Assessment:
    """The same with `odd`, which is no finite number, wherever a figure may stand."""
    whole = example()
    floats = ("similarity_real", "real_mean", "real_std", "synthetic_mean", "synthetic_std", "outside")
    number = float("nan") if odd is None else odd
    return replace(
        whole,
        measures=tuple(replace(measure, value=odd, real=odd) for measure in whole.measures),
        columns=tuple(replace(column, **dict.fromkeys(floats, number)) for column in whole.columns),
        correlations=Correlations(table(np.full((27, 27), number)), whole.correlations.synthetic),
        cloud=Cloud("nobody", ((number, 1.0), (1.0, number)), whole.cloud.real),
        efforts=tuple(replace(effort, marginal=number, dynamics=odd) for effort in whole.efforts),
    )


def measures(mean: float, mean_real: float, worst: float) -> tuple[Measure, ...]:
    alike, physics, new = "Do the rows look alike?", "Do they follow the same rules?", "Are they more than copies?"
    return (
        Measure(
            "marginal",
            "Marginal similarity",
            alike,
            mean,
            mean_real,
            "higher",
            0.0,
            1.0,
            "Mean over the columns of 1 \u2212 KS: does each column, looked at alone, have the right distribution?",
        ),
        Measure("worst", "Worst column", alike, worst, 0.981, "higher", 0.0, 1.0, "The least alike of the columns."),
        Measure(
            "auc",
            "Real-or-synthetic classifier",
            alike,
            0.9412,
            0.503,
            "lower",
            0.5,
            1.0,
            "How well a small network tells the two apart: 0.5 is by chance, 1 always.",
        ),
        Measure(
            "dynamics",
            "Dynamics error",
            physics,
            0.281,
            2.1e-5,
            "lower",
            0.0,
            None,
            "Median squared distance between the next observation and the true one, in real stds.",
        ),
        Measure(
            "terminal_rate",
            "Terminal rate",
            physics,
            0.0036,
            0.0035,
            "nearer",
            0.0,
            1.0,
            "Share of rows that end an episode.",
        ),
        Measure("novelty", "Novelty", new, 1.46, 0.92, "nearer", 0.0, None, "Distance to the nearest real row."),
        Measure(
            "compression",
            "Compression",
            new,
            None,
            None,
            "higher",
            0.0,
            None,
            "Values stored against parameters of the model, where there is a model.",
        ),
    )


def column(name: str, real: np.ndarray, synthetic: np.ndarray, similarity_real: float) -> Column:
    both = np.concatenate([real, synthetic]).astype(float)
    whole = bool(np.all(both == np.round(both)))
    edges = np.arange(both.min() - 0.5, both.max() + 1.0) if whole else np.linspace(both.min(), both.max(), 61)
    return Column(
        name=name,
        similarity=ks_similarity(real, synthetic),
        similarity_real=similarity_real,
        real_mean=float(real.mean()),
        real_std=float(real.std()),
        synthetic_mean=float(synthetic.mean()),
        synthetic_std=float(synthetic.std()),
        outside=float(np.mean((synthetic < real.min()) | (synthetic > real.max()))),
        edges=tuple(edges.tolist()),
        real_shares=tuple((np.histogram(real, edges)[0] / len(real)).tolist()),
        synthetic_shares=tuple((np.histogram(synthetic, edges)[0] / len(synthetic)).tolist()),
    )


def cloud(real: np.ndarray, synthetic: np.ndarray, held_out: np.ndarray) -> Cloud:
    """Real rows' errors are drawn, the noisy rows' follow from the noise; distances are true ones."""
    draw = np.random.default_rng(0)
    std = np.maximum(real.std(axis=0), 1e-3)

    def points(rows: np.ndarray, errors: np.ndarray) -> tuple[tuple[float, float], ...]:
        chosen = rows[: len(errors)] / std
        near = [float(np.linalg.norm(real / std - row, axis=1).min()) for row in chosen]
        return tuple(zip(near, errors.tolist(), strict=True))

    return Cloud(
        judge="7 dynamics models",
        synthetic=points(synthetic, draw.chisquare(11, 400) / 40),
        real=points(held_out, np.append(np.exp(draw.normal(-9, 1.5, 398)), [0.0, 1e-14])),
    )


def process(real: np.ndarray, synthetic: np.ndarray) -> Process:
    draw = np.random.default_rng(0)
    centre, std = real.mean(axis=0), np.maximum(real.std(axis=0), 1e-3)
    rows = (synthetic[:200] - centre) / std
    sigmas = np.append((80 ** (1 / 7) + np.linspace(0, 1, 9) * (0.002 ** (1 / 7) - 80 ** (1 / 7))) ** 7, 0.0)
    paths = rows + sigmas[:, None, None] * draw.normal(size=rows.shape)
    frames = [png(draw.integers(-127, 128, (24, 24))) for _ in sigmas]
    return project((real - centre) / std, paths, sigmas, frames=frames)


def table(matrix: np.ndarray) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in matrix.tolist())

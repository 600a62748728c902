"""An assessment with every part: rows of the shipped replay against the same rows under additive noise."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from synther.assess.assessment import Assessment, Cloud, Correlations, Effort, Measure, Process, Reason, Verdict
from synther.assess.columns import describe
from synther.assess.fidelity import marginal, matrices_of, pearson
from synther.assess.process import project
from synther.assess.report.correlations import png
from synther.baselines.augmentation import Augmentation
from synther.formats import read, shipped

ROWS = 2_000
ALIKE, PHYSICS, NEW = "Do the rows look alike?", "Do they follow the same rules?", "Are they more than copies?"
MEASURES = (
    Measure("marginal", "Marginal similarity", ALIKE, 0.9801, 0.9908, "higher", 0.0, 1.0, "Are single columns alike?"),
    Measure("worst", "Worst column", ALIKE, 0.95, 0.981, "higher", 0.0, 1.0, "The least alike of the columns."),
    Measure("auc", "Real-or-synthetic classifier", ALIKE, 0.9412, 0.503, "lower", 0.5, 1.0, "0.5 is by chance."),
    Measure("dynamics", "Dynamics error", PHYSICS, 0.281, 2.1e-5, "lower", 0.0, None, "A median, in real stds."),
    Measure("terminal_rate", "Terminal rate", PHYSICS, 0.0036, 0.0035, "nearer", 0.0, 1.0, "Share of last rows."),
    Measure("novelty", "Novelty", NEW, 1.46, 0.92, "nearer", 0.0, None, "Distance to the nearest real row."),
    Measure("compression", "Compression", NEW, None, None, "higher", 0.0, None, "Where there is a model."),
)
VERDICT = Verdict(
    "do not use",
    "The rows look right one column at a time, but what follows from an action is not what physics does.",
    (
        Reason("dynamics", "do not use", "The next observation is off by 0.28 squared standard deviations."),
        Reason("auc", "mix", "A classifier tells the rows apart in 94 of 100 cases."),
        Reason("marginal", "use", "Single columns are 0.980 alike; real rows reach 0.991."),
    ),
)
EFFORTS = (
    Effort("SDE", 255, 0.9904, 0.9975, 0.00079, 1.0),
    Effort("SDE", 63, 0.9900, 0.9983, 0.00099, 0.3),
    Effort("DPM-Solver++(2M)", 32, 0.9900, 0.9978, 0.00097, 0.2),
    Effort("Heun", 35, 0.9884, 0.9978, 0.00117, 0.2),
    Effort("Euler", 64, 0.9853, 0.9963, None, 0.3),
)


@cache
def example() -> Assessment:
    rows = read(shipped.hopper())
    real, held_out = rows[:: len(rows) // ROWS], rows[1 :: len(rows) // ROWS]
    synthetic = Augmentation("additive").fit(rows).sample(ROWS, seed=0)
    first, second = matrices_of(real, synthetic)
    similarity, similarity_real = marginal(first, second)[0], marginal(*matrices_of(real, held_out))[0]
    return Assessment(
        rows_real=len(rows),
        rows_synthetic=ROWS,
        rows_held_out=len(held_out),
        env_id="Hopper-v5",
        real_name="hopper-sac.npz",
        synthetic_name="additive-noise.npz",
        verdict=VERDICT,
        measures=MEASURES,
        columns=describe(real, synthetic, similarity.tolist(), similarity_real.tolist()),
        correlations=Correlations(table(pearson(first)), table(pearson(second))),
        cloud=cloud(),
        process=process(first, second),
        efforts=EFFORTS,
        notes=("Novelty looks at 2,000 of the synthetic rows.", "No simulator: 7 dynamics models judge instead."),
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


def cloud() -> Cloud:
    draw = np.random.default_rng(0)
    near = draw.gamma(4, 0.3, (2, 400))
    synthetic, real = draw.chisquare(11, 400) / 40, np.append(np.exp(draw.normal(-9, 1.5, 398)), [0.0, 1e-14])
    return Cloud(
        "7 dynamics models", *(table(np.column_stack(pair)) for pair in zip(near, (synthetic, real), strict=True))
    )


def process(real: np.ndarray, synthetic: np.ndarray) -> Process:
    draw = np.random.default_rng(0)
    centre, std = real.mean(axis=0), np.maximum(real.std(axis=0), 1e-3)
    rows = (synthetic[:200] - centre) / std
    sigmas = np.append(np.geomspace(80, 0.002, 9), 0.0)
    paths = rows + sigmas[:, None, None] * draw.normal(size=rows.shape)
    frames = [png(draw.integers(-127, 128, (24, 24))) for _ in sigmas]
    return project((real - centre) / std, paths, sigmas, frames=frames)


def table(matrix: np.ndarray) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in matrix.tolist())

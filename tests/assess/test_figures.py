"""The figures of an assessment against plain arithmetic, and whose rows each of them is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from synther.assess import judge, learners
from synther.assess.judge import assess
from synther.assess.split import Split
from synther.data.transitions import ROW_FIELDS, Transitions


def world(observations: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    there = observations.astype(float) + 0.5 * actions
    return there, there[:, 0] - there[:, 1], there[:, 0] > 1


def rows(count: int, seed: int, spread: float = 1.0) -> Transitions:
    """Of that world, but for some noise: nothing of two sets of them is the same by chance."""
    rng = np.random.default_rng(seed)
    here, action = spread * rng.normal(size=(count, 2)), rng.normal(size=(count, 2))
    there, reward, terminal = world(here, action)
    return Transitions(
        here,
        action,
        reward + 0.2 * spread * rng.normal(size=count),
        there + 0.1 * spread * rng.normal(size=(count, 2)),
        terminal ^ (rng.random(count) < 0.1),
    )


def matrix(part: Transitions) -> np.ndarray:
    return np.column_stack([getattr(part, field).astype(float) for field in ROW_FIELDS])


def distances(asked: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Of all pairs, the nearest first."""
    return np.sort(np.linalg.norm(asked[:, None] - known, axis=-1), axis=1)


def likeness(one: Transitions, other: Transitions) -> tuple[np.ndarray, float]:
    """1 - KS of every column, and how alike their correlations are."""
    pairs = list(zip(matrix(one).T, matrix(other).T, strict=True))
    gaps = [max(abs(np.mean(a <= value) - np.mean(b <= value)) for value in (*a, *b)) for a, b in pairs]
    difference = np.abs(np.corrcoef(matrix(one).T) - np.corrcoef(matrix(other).T))
    return 1 - np.array(gaps), float(1 - difference[np.triu_indices(len(difference), 1)].mean() / 2)


def outside(known: Transitions, part: Transitions, *fields: str) -> float:
    seen, asked = (np.stack([getattr(one, field) for field in fields]) for one in (known, part))
    low, high = seen.min(axis=(0, 1)), seen.max(axis=(0, 1))
    return float(np.mean(((asked < low) | (asked > high)).any(axis=(0, 2))))


def off(part: Transitions, known: Transitions) -> tuple[np.ndarray, np.ndarray]:
    """Squared errors of the next observation and of the reward, in stds of known rows."""
    there, reward, _ = world(part.observation, part.action)
    nexts = ((part.next_observation - there) / known.next_observation.std(axis=0)) ** 2
    return nexts.mean(axis=1), ((part.reward - reward) / known.reward.std()) ** 2


@pytest.mark.parametrize("drawn", [True, False])
def test_every_figure_without_networks_is_what_arithmetic_says(drawn: bool) -> None:
    real, synthetic, apart = rows(90, 0), rows(70, 1, 1.5), None if drawn else rows(30, 2, 1.2)
    found = assess(real, synthetic, held_out=apart, simulator=world, parameters=100, seed=3)
    split = Split.of(real, synthetic, apart, max_rows=1_000, seed=3)
    reference, held_out = split.reference, split.held_out
    shrink = np.sqrt((1 / 90 + 1 / 70) / (1 / 72 + 1 / 18)) if drawn else 1.0
    columns, r = likeness(real, synthetic)
    chance, chance_r = likeness(reference, held_out)
    columns_real = 1 - shrink * (1 - chance)
    std = matrix(reference).std(axis=0)
    known, made, kept = (matrix(part) / std for part in (reference, split.synthetic, held_out))
    near, near_real = distances(made, known)[:, 0], distances(kept, known)[:, 0]
    close = np.sort(near_real)[int(np.ceil(0.05 * len(near_real))) - 1]
    few = len(known) // 2
    balls = distances(kept, known[:few])[:, 4]
    (error, reward), (error_real, reward_real) = off(split.synthetic, reference), off(held_out, reference)
    ends, ends_real = (world(part.observation, part.action)[2] for part in (split.synthetic, held_out))
    expected = {
        "marginal": (columns.mean(), columns_real.mean()),
        "worst_column": (columns.min(), columns_real.min()),
        "correlation": (r, 1 - shrink * (1 - chance_r)),
        "dynamics_error": (np.median(error), np.median(error_real)),
        "reward_error": (np.minimum(reward, 10).mean(), np.minimum(reward_real, 10).mean()),
        "actions_outside": (outside(real, synthetic, "action"), outside(reference, held_out, "action")),
        "observations_outside": (
            outside(real, synthetic, "observation", "next_observation"),
            outside(reference, held_out, "observation", "next_observation"),
        ),
        "terminal_rate": (synthetic.terminal.mean(), real.terminal.mean()),
        "terminal_correctness": (np.mean(ends == split.synthetic.terminal), np.mean(ends_real == held_out.terminal)),
        "novelty": (np.median(near), np.median(near_real)),
        "memorisation": (np.mean(near <= close), np.mean(near_real <= close)),
        "coverage": tuple(np.mean(distances(kept, part)[:, 0] <= balls) for part in (made[:few], known[few : 2 * few])),
    }
    for name, (value, real_one) in expected.items():
        measure = found.measure(name)
        assert measure.value == pytest.approx(value, rel=1e-4), name
        assert measure.real == pytest.approx(real_one, rel=1e-4), name
    assert found.measure("compression").value == pytest.approx(90 * 8 / 100)
    assert found.cloud is not None
    assert np.allclose(found.cloud.synthetic, np.column_stack([near, error]), rtol=1e-4)
    assert np.allclose(found.cloud.real, np.column_stack([near_real, error_real]), rtol=1e-4)
    assert np.allclose([column.similarity for column in found.columns], columns)
    assert np.allclose([column.synthetic_std for column in found.columns], matrix(synthetic).std(axis=0))


def test_who_tells_rows_apart_is_asked_about_rows_that_it_has_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learners, "MOST_STEPS", 1)
    monkeypatch.setattr(judge.Features, "whole", lambda _, part: part.reward)  # by which a row is known again
    heard: list[Sequence[np.ndarray]] = []

    def told(fitted: Sequence[np.ndarray], scored: Sequence[np.ndarray], **how: Any) -> list[float]:
        heard.extend([fitted, scored])
        return [0.7, 0.5]

    monkeypatch.setattr(judge, "tell_apart", told)
    real, synthetic, held_out = np.split(np.arange(600.0), [300, 500])
    sides = [replace(rows(len(side), 0), reward=side) for side in (real, synthetic, held_out)]
    found = assess(sides[0], sides[1], held_out=sides[2])
    assert (found.measure("auc").value, found.measure("auc").real) == (0.7, 0.5)
    origins = [(real, synthetic, real), (held_out, synthetic, held_out)]
    for groups, sources in zip(heard, origins, strict=True):
        assert all(np.isin(group, source).all() for group, source in zip(groups, sources, strict=True))
    every = np.concatenate([group for groups in heard for group in groups])
    assert len(np.unique(every)) == len(every) == 3 * 150 + 3 * 50  # none twice: what was learned is not asked about

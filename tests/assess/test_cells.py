"""Spread of outcomes in each combination of discrete values, in worlds whose law is known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from synther.assess.assessment import Verdict
from synther.assess.cells import figures
from synther.assess.figure import Figure
from synther.assess.metrics import measure
from synther.assess.verdict import LIMITS, decide, votes
from synther.data.transitions import Transitions

DRAIN = np.random.default_rng(7).uniform(0.2, 2.0, (6, 5, 3))


def rover(rows: int, seed: int, factor: float = 1.0, known: bool = True) -> Transitions:
    """A rover on 30 fields with a battery. What a step costs depends on field and action together, if that is `known`.
    Its randomness is `factor` times the true one."""
    draw = np.random.default_rng(seed)
    field, action = np.stack([draw.integers(6, size=rows), draw.integers(5, size=rows)]), draw.integers(3, size=rows)
    cost = DRAIN[(*field, action)] if known else draw.choice(DRAIN.ravel(), rows)
    battery = draw.uniform(10, 20, rows)
    after = battery - cost - 0.05 * factor * draw.normal(size=rows)
    here, there = (np.stack([*field, each], axis=1).astype(np.float32) for each in (battery, after))
    return Transitions(here, action, draw.normal(size=rows), there, np.zeros(rows, bool))


def found(synthetic: Transitions) -> Figure:
    return figures(rover(10_000, 0), synthetic, rover(4_000, 2))["cell_spread"]


@pytest.mark.parametrize("factor", [1.0, 1.7, 0.5])
def test_the_factor_of_the_randomness_is_found(factor: float):
    figure = found(rover(10_000, 1, factor))
    unsure = DRAIN.size / 10_000  # squared error of the mean of a cell, in stds
    expected = math.sqrt((factor**2 + unsure) / (1 + unsure))
    assert figure.value / figure.real == pytest.approx(expected, rel=0.03)
    assert figure.real == pytest.approx(1, abs=0.03)
    assert figure.detail == "next_observation[2]" or factor == 1.0
    (vote,) = votes({"cell_spread": measure("cell_spread", figure)}, LIMITS)
    assert vote.says == ("use" if factor == 1.0 else "mix")


def test_costs_of_other_fields_are_noticed():
    figure = found(rover(10_000, 1, known=False))
    assert figure.value > 5 * figure.real
    verdict = decide({"cell_spread": measure("cell_spread", figure)})
    assert isinstance(verdict, Verdict)
    assert "next_observation[2]" in next(reason.text for reason in verdict.reasons if reason.measure == "cell_spread")


def test_what_differs_between_real_episodes_is_no_reason():
    """Held-out episodes that scatter less than the reference ones, as in a world of few and long episodes."""
    figure = figures(rover(10_000, 0), rover(10_000, 1), rover(4_000, 2, 0.5))["cell_spread"]
    assert figure.value > 1.5 * figure.real
    (vote,) = votes({"cell_spread": measure("cell_spread", figure)}, LIMITS)
    assert vote.says == "use"


def test_nothing_is_said_without_discrete_columns_or_with_too_few_rows_in_each_cell():
    real = rover(3_000, 0)
    noise = np.random.default_rng(3).normal(size=(3_000, 3)).astype(np.float32)
    smooth = replace(real, observation=noise, next_observation=noise, action=noise[:, :1])
    assert figures(smooth, smooth, smooth) == {}
    assert figures(rover(60, 0), rover(60, 1), rover(60, 2)) == {}


def test_a_column_with_too_many_combinations_is_ignored():
    def with_ids(rows: Transitions) -> Transitions:
        ids = np.random.default_rng(len(rows)).integers(30, size=(len(rows), 1)).astype(np.float32)
        sides = (np.hstack([side, ids]) for side in (rows.observation, rows.next_observation))
        return replace(rows, observation=next(sides), next_observation=next(sides))

    real, held_out = with_ids(rover(10_000, 0)), with_ids(rover(4_000, 2))
    figure = figures(real, with_ids(rover(10_001, 1, 1.7)), held_out)["cell_spread"]
    assert figure.value / figure.real == pytest.approx(1.7, rel=0.03)

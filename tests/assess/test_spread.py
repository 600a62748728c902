"""Spread of outcomes given (s, a), against worlds whose law is known."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from synther import read
from synther.assess import usefulness
from synther.assess.assessment import Verdict
from synther.assess.features import Features
from synther.assess.figure import Figure
from synther.assess.judge import assess
from synther.assess.metrics import measure
from synther.assess.spread import (
    BANDS,
    FitOptions,
    Parts,
    figures,
    furthest,
    information,
    inside,
    not_wider,
    spread_ratio,
)
from synther.assess.verdict import LIMITS, votes
from synther.data.transitions import Transitions
from synther.formats import shipped

from ..support.short import short_learners
from . import worlds

World = Callable[..., Transitions]


def found(world: World, factor: float, rows: int = 3_000) -> dict[str, Figure]:
    """The figures of synthetic rows whose randomness is `factor` times the real one."""
    real, synthetic, held_out = world(rows, 0), world(rows, 1, factor), world(rows // 4, 2)
    features = Features.of(real)
    lesson = usefulness.outcomes(features, real, synthetic, held_out, seed=0)
    with ThreadPoolExecutor(1) as pool:
        return figures(features, lesson, Parts(real, synthetic, held_out), FitOptions(0, "cpu", pool))


def against(figures: dict[str, Figure]) -> set[str]:
    """The measures that speak against `use`."""
    measures = {name: measure(name, figure) for name, figure in figures.items()}
    return {reason.measure for reason in votes(measures, LIMITS) if reason.says != "use"}


class TestWorlds:
    @pytest.mark.parametrize("factor", [0.8, pytest.param(1.3, marks=pytest.mark.slow)])
    def test_too_narrow_and_too_wide_outcomes_are_seen(self, factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
        short_learners(monkeypatch, 200)
        seen = found(worlds.linear, factor)
        assert seen["outcome_spread"].value == pytest.approx(factor, abs=0.04)
        assert seen["outcome_spread"].real == pytest.approx(1, abs=0.08)
        assert {"outcome_spread", "band_50"} <= against(seen)
        for name, share in BANDS.items():
            assert seen[name].real == pytest.approx(share, abs=0.03)
            assert (seen[name].value > share) == (factor < 1)
        assert seen["outcome_information"].value > 0.02

    @pytest.mark.slow
    @pytest.mark.parametrize("factor", [0.95, 1.05])
    def test_small_differences_pass(self, factor: float) -> None:
        seen = found(worlds.linear, factor)
        assert seen["outcome_spread"].value == pytest.approx(factor, abs=0.05)
        assert seen["outcome_information"].value < 0.02
        assert not against(seen)

    @pytest.mark.slow
    def test_the_column_is_named(self) -> None:
        seen = found(worlds.one_random_column, 0.65, 6_000)
        assert seen["outcome_spread"].detail == "next_observation[2]"
        assert "outcome_spread" in against(seen)

    def test_where_nothing_is_random_there_is_no_spread(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(usefulness, "MEMBERS", 1)
        short_learners(monkeypatch, 200, width=96)
        assert found(worlds.deterministic, 1.0) == {}


class TestRatio:
    def test_is_that_of_standard_deviations(self) -> None:
        draw = np.random.default_rng(0)
        real, others = draw.normal(size=(20_000, 3)), draw.normal(size=(5_000, 3)) * [0.5, 1.0, 2.0]
        ratio, error = spread_ratio(real, others)
        np.testing.assert_allclose(ratio, [0.5, 1.0, 2.0], rtol=0.03)
        np.testing.assert_allclose(error, np.sqrt(1 / 40_000 + 1 / 10_000), rtol=0.1)
        assert furthest(np.array([0.9, 1.3, 0.75]), np.array([0.0, 0.0, 0.2])) == 1

    def test_outcomes_are_not_wider_than_around_the_real_mean(self) -> None:
        """A generator with another mean is no wider, nor is one whose networks err where nothing is random."""
        own, around_real = np.array([0.8, 0.8, 1.3, 1.3, 1.4]), np.array([0.7, 1.2, 1.5, 1.2, 0.9])
        assert not_wider(own, around_real).tolist() == [0.8, 0.8, 1.3, 1.2, 1.0]

    def test_is_less_certain_where_episodes_differ(self) -> None:
        """In one column all rows are independent, in the other one the noise of an episode is large or small."""
        draw, episodes = np.random.default_rng(0), np.random.default_rng(1).permutation(20_000) // 200

        def residuals() -> np.ndarray:
            scale = np.stack([np.ones(100), draw.uniform(0, 2, 100)], 1)[episodes]
            return scale * draw.normal(size=(20_000, 2))

        pairs = [spread_ratio(residuals(), residuals(), episodes, episodes) for _ in range(200)]
        logs, errors = np.log([ratio for ratio, _ in pairs]), np.mean([error for _, error in pairs], axis=0)
        np.testing.assert_allclose(errors, logs.std(axis=0), rtol=0.15)
        assert errors[1] > 4 * errors[0]


class TestBands:
    def test_at_best_and_at_worst(self) -> None:
        real = np.random.default_rng(0).normal(size=(50_000, 2))
        assert inside(real, real, 0.5)[0] == pytest.approx(0.5, abs=1e-3)
        assert inside(real, np.zeros((7, 2)), 0.5)[0] == 1
        assert inside(real, real + 100, 0.9)[0] == 0
        assert inside(real, 0.8 * real, 0.5)[0] == pytest.approx(0.600, abs=0.01)
        assert inside(real, 0.8 * real, 0.9)[0] == pytest.approx(0.960, abs=0.005)


class TestInformation:
    def groups(self, seed: int, factor: float, moved: float = 0.0) -> list[tuple[np.ndarray, np.ndarray]]:
        draw = np.random.default_rng(seed)
        given = [draw.normal(size=(2_000, 2)) + shift for shift in (0.0, moved, 0.0)]
        return [
            (part.astype(np.float32), scale * draw.normal(size=(2_000, 3)))
            for part, scale in zip(given, (1, factor, 1), strict=True)
        ]

    @pytest.fixture(autouse=True)
    def short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        short_learners(monkeypatch, 150, width=64)

    def test_it_is_of_the_outcome_and_not_of_the_state(self) -> None:
        (moved, _), (same, _) = information(self.groups(0, 1.0, 1.0), self.groups(1, 1.0, 1.0), seed=0)
        assert moved < 0.02
        assert same < 0.02
        (narrow, chance), _ = information(self.groups(0, 0.5, 1.0), self.groups(1, 0.5, 1.0), seed=0)
        assert narrow > 0.15
        assert chance < 0.05

    def test_outcomes_that_give_every_row_away(self) -> None:
        groups = [(given, outcome + 9 * (at == 1)) for at, (given, outcome) in enumerate(self.groups(0, 1.0))]
        assert information(groups, groups, seed=0)[0][0] > 0.95


@pytest.mark.slow
class TestVerdicts:
    @pytest.mark.parametrize(
        "world", [worlds.linear, worlds.one_random_column, worlds.heteroscedastic, worlds.heavy_tailed]
    )
    @pytest.mark.parametrize("rows", [5_000, 20_000])
    @pytest.mark.parametrize(
        ("factor", "used"), [(0.65, False), (0.8, False), (0.95, True), (1.05, True), (1.3, False)]
    )
    def test_of_random_worlds(self, world: World, rows: int, factor: float, used: bool) -> None:
        assert (self.verdict(world, rows, factor).decision == "use") == used

    @pytest.mark.parametrize(("factor", "used"), [(0.8, False), (0.95, True), (1.05, True), (1.3, False)])
    def test_of_many_rows(self, factor: float, used: bool) -> None:
        assert (self.verdict(worlds.linear, 100_000, factor).decision == "use") == used

    @pytest.mark.parametrize("rows", [5_000, 20_000])
    def test_of_a_deterministic_world(self, rows: int) -> None:
        assert self.verdict(worlds.deterministic, rows, 1.0).decision == "use"

    @pytest.mark.parametrize("one_hot", [False, True])
    def test_of_slippery_worlds(self, one_hot: bool) -> None:
        real, same = (worlds.slippery_line(5_000, seed, one_hot=one_hot) for seed in (0, 1))
        rarer = worlds.slippery_line(5_000, 2, 0.1, one_hot=one_hot)
        assert assess(real, same).verdict.decision == "use"
        assert assess(real, rarer).verdict.decision != "use"

    def test_of_real_rows_of_the_shipped_replay(self) -> None:
        rows = read(shipped.hopper())
        order = np.random.default_rng(0).permutation(len(rows))
        assert assess(rows[np.sort(order[7_000:])], rows[order[:7_000]]).verdict.decision == "use"

    def verdict(self, world: World, rows: int, factor: float) -> Verdict:
        return assess(world(rows, 0), world(rows, 1, factor)).verdict


def test_a_mark_for_missing_values_does_not_hide_how_wide_outcomes_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_missing(rows: int, seed: int, factor: float = 1.0) -> Transitions:
        made, draw = worlds.linear(rows, seed, factor), np.random.default_rng(seed)
        observation, after = made.observation.copy(), made.next_observation.copy()
        for side in (observation, after):
            side[draw.random(side.shape) < 0.02] = -999
        return replace(made, observation=observation, next_observation=after)

    short_learners(monkeypatch, 200)
    assert Features.of(with_missing(3_000, 0)).observations.std.max() < 10
    assert {"band_50", "band_90"} <= against(found(with_missing, 2.0))
    assert not {"band_50", "band_90"} & against(found(with_missing, 1.0))

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synther.assess.neighbours import (
    BALL,
    MEMORISED_SHARE,
    coverage,
    memorised,
    nearest,
    novelty,
    scaled_rows,
    start_coverage,
)
from synther.errors import DataError

from .worlds import normal_rows as rows


def normal(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 6)).astype(np.float32)


def brute_force(known: np.ndarray, asked: np.ndarray, neighbours: int) -> np.ndarray:
    gaps = known[None].astype(float) - asked[:, None]
    return np.sort(np.sqrt(np.square(gaps).sum(2)), axis=1)[:, :neighbours]


class TestNearest:
    @given(st.integers(1, 300), st.integers(1, 8), st.integers(1, 4), st.floats(-50, 50), st.integers(0, 99))
    @settings(max_examples=40)
    def test_equals_brute_force(self, count: int, neighbours: int, width: int, offset: float, seed: int) -> None:
        rng = np.random.default_rng(seed)
        neighbours = min(neighbours, count)
        known = (rng.normal(size=(count, width)) + offset).astype(np.float32)
        asked = (rng.normal(size=(7, width)) + offset).astype(np.float32)
        np.testing.assert_allclose(nearest(known, asked, neighbours), brute_force(known, asked, neighbours), atol=1e-9)

    def test_many_rows_of_any_size(self) -> None:
        draw = np.random.default_rng(0)
        for drawn in (draw.normal, draw.standard_cauchy):
            known, asked = (drawn(size=(count, 5)).astype(np.float32) for count in (5_000, 40))
            np.testing.assert_allclose(nearest(known, asked, 5), brute_force(known, asked, 5), rtol=1e-9, atol=1e-9)

    def test_copies_are_at_zero_however_far_from_the_origin(self) -> None:
        known = (np.random.default_rng(0).normal(size=(3_000, 8)) + 1_000).astype(np.float32)
        assert (nearest(known, known[::7])[:, 0] == 0).all()
        assert (nearest(np.ones((900, 2), np.float32), np.ones((3, 2), np.float32), 5) == 0).all()

    def test_copies_among_many_rows_in_little_room(self) -> None:
        """Rough distances of hundreds of groups tie: those that may be the nearest are all looked at."""
        known = np.random.default_rng(0).normal(size=(60_000, 1)).astype(np.float32)
        assert (nearest(known, known[::500])[:, 0] == 0).all()

    def test_more_neighbours_than_rows(self) -> None:
        with pytest.raises(DataError, match="3 neighbours among 2 rows"):
            nearest(np.zeros((2, 1), np.float32), np.zeros((1, 1), np.float32), 3)


class TestNovelty:
    def test_copies_are_at_zero(self) -> None:
        real = rows(300)
        assert novelty(real, real[::7]) == novelty(real[:1], real[:1]) == 0

    def test_far_rows_are_far_and_a_draw_is_repeatable(self) -> None:
        real, far = rows(500), rows(500, 1, shift=100.0)
        assert novelty(real, far) > 50
        assert novelty(real, far, max_rows=20) == novelty(real, far, max_rows=20)
        assert novelty(real, far, max_rows=20) != novelty(real, far, max_rows=20, seed=1)

    def test_constant_columns_are_left_out(self) -> None:
        real = replace(rows(50), reward=np.full(50, 0.1, np.float32))
        assert novelty(real, replace(real, reward=np.full(50, 9.0, np.float32))) == 0
        assert scaled_rows(real)[0].std() > 0.1


class TestMemorised:
    known, held_out, fresh = normal(4_000, 0), normal(2_000, 1), normal(2_000, 2)

    def share(self, synthetic: np.ndarray, held_out: np.ndarray | None = None) -> tuple[float, float]:
        held_out = self.held_out if held_out is None else held_out
        return memorised(nearest(self.known, held_out)[:, 0], nearest(self.known, synthetic)[:, 0])

    def test_fresh_rows_are_as_near_as_held_out_ones(self) -> None:
        value, real = self.share(self.fresh)
        assert real == MEMORISED_SHARE
        assert value == pytest.approx(MEMORISED_SHARE, abs=0.02)

    def test_replayed_rows_are_found_with_and_without_noise(self) -> None:
        assert self.share(self.known[:2_000])[0] == 1
        assert self.share(self.known[:2_000] + 1e-3 * self.fresh)[0] > 0.99
        half = np.concatenate([self.known[:1_000], self.fresh[:1_000]])
        assert self.share(half)[0] == pytest.approx(0.5 + MEMORISED_SHARE / 2, abs=0.02)

    def test_real_rows_that_repeat_do_not_hide_it(self) -> None:
        repeating = np.concatenate([self.held_out[:1_000], self.known[:1_000]])
        value, real = self.share(self.known[:2_000] + 1e-3 * self.fresh, repeating)
        assert real == pytest.approx(0.5 + MEMORISED_SHARE / 2, abs=1e-3)
        assert value > 0.99

    def test_one_row_and_nothing_but_copies(self) -> None:
        assert memorised(np.array([0.3]), np.array([0.5])) == (0, 1)
        assert memorised(np.zeros(4), np.array([0.0, 1.0])) == (0.5, 1)


class TestCoverage:
    def cloud(self, count: int, seed: int, centres: tuple[float, ...] = (-20.0, 20.0)) -> np.ndarray:
        places = np.random.default_rng(seed).choice(centres, (count, 1))
        return normal(count, seed) + places.astype(np.float32)

    def test_the_same_distribution_reaches_its_closed_form(self) -> None:
        value = coverage(self.cloud(2_000, 0), self.cloud(4_000, 1), self.cloud(4_000, 2))
        assert value == pytest.approx(1 - 2.0**-BALL, abs=0.02)

    def test_a_missing_mode_is_not_covered(self) -> None:
        value = coverage(self.cloud(2_000, 0), self.cloud(4_000, 1), self.cloud(4_000, 2, (20.0,)))
        assert value == pytest.approx(0.5, abs=0.05)

    def test_best_worst_and_one_row(self) -> None:
        real = self.cloud(50, 0)
        assert coverage(real, real, real) == 1
        assert coverage(real, real, real + 1_000) == 0
        assert coverage(real[:1], real[:1], real[:1]) == 1


class TestStartCoverage:
    """Episodes that begin at rest, far from where they go on."""

    @pytest.fixture
    def observation(self):
        draw = np.random.default_rng(0)
        rows = draw.normal(3, 1, (4_000, 6))
        starts = np.arange(4_000) % 100 == 0
        rows[starts] = draw.normal(-1, 0.05, (40, 6))
        return rows, starts

    def test_real_rows_and_rows_like_them_cover_all(self, observation):
        rows, starts = observation
        episodes = np.cumsum(starts) - 1
        assert start_coverage(rows, episodes, rows) == 1
        alike = rows + np.random.default_rng(1).normal(0, 0.1, rows.shape)
        assert start_coverage(rows, episodes, alike) == 1
        assert start_coverage(rows, episodes, alike[::10]) == 1  # fewer rows, of which 4 are starts
        assert start_coverage(rows, episodes, rows[~starts]) == 0

    def test_half_of_two_kinds_of_starts(self, observation):
        rows, starts = observation
        rows[200::200] += np.where(starts[200::200, None], 20, 0)
        far = starts & (rows[:, 0] > 10)
        episodes = np.cumsum(starts) - 1
        assert start_coverage(rows, episodes, rows[~far]) == pytest.approx(1 - far.sum() / starts.sum())

    def test_starts_that_lie_among_the_other_rows(self):
        draw = np.random.default_rng(0)
        rows, others = draw.uniform(size=(2, 4_000, 3))
        episodes = np.arange(4_000) // 100
        assert start_coverage(rows, episodes, others) > 0.9
        assert start_coverage(rows, episodes, others[:400]) > 0.9
        assert start_coverage(rows, np.arange(4_000), others) > 0.9

    def test_a_goal_that_no_other_episode_has(self):
        """Other real rows have other goals. None of them is as near as the rest of the episode."""
        draw = np.random.default_rng(0)

        def moment(episodes: int) -> np.ndarray:
            goals = np.repeat(draw.uniform(size=(episodes, 2)), 100, 0)
            steps = np.tile(np.arange(100) / 100, episodes)
            return np.concatenate([goals, steps[:, None] + 0.01 * draw.normal(size=(len(goals), 1))], 1)

        rows, episodes = moment(40), np.arange(4_000) // 100
        assert start_coverage(rows, episodes, moment(40)) > 0.8
        later = moment(40)
        assert start_coverage(rows, episodes, later[later[:, 2] > 0.3]) < 0.5, "as few as make the verdict *mix*"

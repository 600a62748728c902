from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synther.assess.fidelity import (
    Comparison,
    column_names,
    compare,
    correlation,
    correlation_variance,
    ks_similarity,
    marginal,
    matrices_of,
    pearson,
    worst_pair,
)
from synther.data.transitions import Transitions
from synther.errors import DataError

from .worlds import normal_rows as rows


def brute_force_ks(first: list[float], second: list[float]) -> float:
    a, b = np.array(first), np.array(second)
    return max(abs(np.mean(a <= x) - np.mean(b <= x)) for x in [*first, *second])


class TestKsSimilarity:
    @given(
        st.lists(st.integers(-5, 5).map(float) | st.floats(-5, 5), min_size=1, max_size=30),
        st.lists(st.integers(-5, 5).map(float) | st.floats(-5, 5), min_size=1, max_size=30),
    )
    def test_equals_brute_force(self, first: list[float], second: list[float]) -> None:
        first, second = ([float(np.float32(value)) for value in side] for side in (first, second))
        expected = 1 - brute_force_ks(first, second)
        assert ks_similarity(first, second) == pytest.approx(expected, abs=1e-12)
        assert ks_similarity(second, first) == pytest.approx(expected, abs=1e-12)

    def test_best_worst_constant_and_one_row(self) -> None:
        values = np.arange(10.0)
        assert ks_similarity(values, values[::-1]) == 1
        assert ks_similarity(values, np.repeat(values, 3)) == 1
        assert ks_similarity(values, values + 100) == 0
        assert ks_similarity(np.full(5, 2.0), np.full(9, 2.0)) == 1
        assert ks_similarity([1.0], [1.0]) == 1
        assert ks_similarity([1.0], [2.0]) == 0
        assert ks_similarity([False, True], [True, True]) == 0.5

    def test_storing_more_coarsely_is_the_same_distribution(self) -> None:
        values = np.random.default_rng(0).normal(size=100)
        assert ks_similarity(np.full(10, 0.1), np.full(10, 0.1, np.float32)) == 1
        assert ks_similarity(values, values.astype(np.float32)) == 1

    def test_what_is_no_column(self) -> None:
        with pytest.raises(DataError, match="at least one row"):
            ks_similarity([], [1.0])
        with pytest.raises(DataError, match="NaN"):
            ks_similarity([1.0], [math.nan])


def test_marginal_is_the_mean_over_columns() -> None:
    real = np.column_stack([np.arange(10.0), np.arange(10.0)])
    per_column, mean = marginal(real, real + np.array([0.0, 100.0]))
    assert per_column.tolist() == [1, 0]
    assert mean == 0.5
    with pytest.raises(DataError, match="3"):
        marginal(np.zeros((4, 2)), np.zeros((4, 3)))


class TestCorrelation:
    def test_constant_columns_are_left_out(self) -> None:
        rng = np.random.default_rng(0)
        real, synthetic = rng.normal(size=(2, 50, 3))
        # a constant float32 whose mean is not exactly itself
        flat = np.column_stack([synthetic, np.full(50, 0.1)]).astype(np.float32)
        more = np.column_stack([real, rng.normal(size=50)]).astype(np.float32)
        assert correlation(more, flat) == pytest.approx(correlation(more[:, :3], flat[:, :3]))
        assert pearson(flat)[3].tolist() == [0, 0, 0, 1]

    def test_undefined(self) -> None:
        assert math.isnan(correlation(np.ones((1, 3)), np.ones((1, 3))))
        assert math.isnan(correlation(np.random.default_rng(0).normal(size=(9, 1)), np.ones((9, 1))))


class TestCompare:
    def test_the_same_rows_and_others(self) -> None:
        same = compare(rows(), rows())
        assert (same.marginal, same.worst_value, same.actions_outside) == (1, 1, 0)
        assert same.correlation == pytest.approx(1)
        few, more = (replace(rows(), terminal=np.arange(len(rows())) < count) for count in (1, 5))
        ends = compare(few, more)
        assert (ends.terminal_rate_real, ends.terminal_rate_synthetic) == (1 / 200, 5 / 200)
        assert dict(ends.table())["terminals"] == "2.500% (real 0.500%)"
        real, other = rows(), rows(seed=1)
        found = compare(real, replace(other, reward=other.reward + 50))
        assert (found.worst_column, found.worst_value) == ("reward", 0)
        assert list(found.columns) == column_names(real)
        assert column_names(real)[2:6] == ["observation[2]", "action[0]", "action[1]", "reward"]
        assert column_names(real)[-1] == "terminal"
        assert found.marginal == pytest.approx(np.mean(list(found.columns.values())))

    def test_json_and_table(self) -> None:
        found = compare(rows(1), rows(1, seed=1))
        assert math.isnan(found.correlation)
        assert json.loads(json.dumps(found.to_json(), allow_nan=False))["correlation"] is None
        assert [name for name, _ in found.table()][:3] == ["marginal", "worst column", "correlation"]
        whole = compare(rows(), rows(seed=1))
        earlier = {**whole.to_json(), "dynamics": None, "novelty": None}
        assert Comparison.from_json(earlier) == whole

    def test_a_field_keeps_the_precision_that_both_sides_store_it_in(self) -> None:
        def far(seed: int, shift: float) -> Transitions:
            near = rows(seed=seed, shift=shift)
            return replace(
                near,
                observation=near.observation.astype(np.float64) + 1e9,
                next_observation=near.next_observation.astype(np.float64) + 1e9,
            )

        near, found = compare(rows(), rows(seed=1, shift=9)), compare(far(0, 0.0), far(1, 9.0))
        assert found.columns["observation[0]"] == near.columns["observation[0]"] == 0.0
        assert found.correlation == pytest.approx(near.correlation, abs=1e-6)
        assert compare(far(0, 0.0), replace(far(0, 0.0), reward=far(0, 0.0).reward.astype(np.float64))).marginal == 1.0

    def test_whole_numbers_that_float32_cannot_hold_are_told_apart(self) -> None:
        real = replace(rows(), action=np.full(200, 2**24))
        assert compare(real, replace(real, action=real.action + 1)).columns["action"] == 0.0
        assert matrices_of(replace(real, action=real.action // 2))[0].dtype == np.float32

    def test_max_rows_and_other_shapes(self) -> None:
        found = compare(rows(500), rows(400, 1), max_rows=50)
        assert (found.rows_real, found.rows_synthetic) == (500, 400)
        with pytest.raises(DataError, match="max_rows"):
            compare(rows(), rows(), max_rows=0)
        with pytest.raises(DataError, match="observation"):
            compare(rows(), rows(width=4))


class TestWorstPair:
    def draw(self, seed: int, rows: int = 4_000) -> np.ndarray:
        """A rare flag that goes with the first of three columns, of which one has heavy tails."""
        rng = np.random.default_rng(seed)
        first, tails = rng.normal(size=rows), rng.standard_t(5, size=rows)
        return np.column_stack([first, tails, 0.5 * first + rng.normal(size=rows), first + rng.normal(size=rows) > 3])

    def test_the_variance_is_what_repeated_draws_have(self) -> None:
        many = [pearson(self.draw(seed, 500)) for seed in range(400)]
        expected = np.mean([correlation_variance(self.draw(seed, 500), many[seed]) for seed in range(20)], axis=0)
        pairs = np.triu_indices(4, k=1)
        np.testing.assert_allclose(np.sqrt(expected[pairs]), np.std(many, axis=0)[pairs], rtol=0.25)

    def test_a_correlation_that_disappears_is_found_and_chance_is_not(self) -> None:
        real, same = self.draw(0), self.draw(1)
        broken = same.copy()
        broken[:, 3] = np.random.default_rng(2).permutation(broken[:, 3])
        r = [pearson(side) for side in (real, same, broken)]
        variance = [correlation_variance(*side) for side in zip((real, same, broken), r, strict=True)]
        varies = np.ones(4, bool)
        assert worst_pair(r[0], r[1], variance[0] + variance[1], varies) == (0.0, None)
        gap, pair = worst_pair(r[0], r[2], variance[0] + variance[2], varies)
        assert pair == (0, 3)
        assert gap == pytest.approx(abs(r[0][0, 3] - r[2][0, 3]))
        assert worst_pair(r[0], r[2], variance[0] + variance[2], np.array([True, False, False, False])) == (0.0, None)

    def test_constant_columns_and_one_row(self) -> None:
        still = np.ones((5, 2))
        assert not correlation_variance(still, pearson(still))[0, 1]
        assert np.isfinite(correlation_variance(np.ones((1, 3)), np.eye(3))).all()


def test_rows_of_an_episode_tell_less_than_as_many_independent_rows():
    """Each episode repeats one row of two Gaussian columns: r varies as that of as many rows as there are episodes."""
    draw = np.random.default_rng(0)
    single = draw.multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], 2_000)
    rows, numbers = np.repeat(single, 10, axis=0), np.repeat(np.arange(2_000), 10)
    order = draw.permutation(len(rows))
    r = pearson(rows)
    expected = (1 - 0.6**2) ** 2 / 2_000
    assert correlation_variance(rows[order], r, numbers[order])[0, 1] == pytest.approx(expected, rel=0.15)
    assert correlation_variance(rows[order], r)[0, 1] == pytest.approx(expected / 10, rel=0.15)
    independent = np.arange(len(single))
    assert correlation_variance(single, pearson(single), independent)[0, 1] == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_marginal_and_correlation_are_those_of_sdmetrics_which_defined_them(kind: type) -> None:
    with warnings.catch_warnings():  # of its own making, at import, which takes seconds
        warnings.simplefilter("ignore")
        from sdmetrics.column_pairs import CorrelationSimilarity
        from sdmetrics.single_column import KSComplement
    rng = np.random.default_rng(0)
    real = rng.normal(size=(4_000, 5)) @ rng.normal(size=(5, 5))
    synthetic = rng.normal(0.1, 1, size=(3_000, 5)) @ rng.normal(size=(5, 5))
    for side in (real, synthetic):
        side[:, 1] = np.clip(side[:, 1], -1, 1)  # ties at both ends, as actions have
        side[:, 2] = np.round(side[:, 2])
        side[:, 3] = side[:, 3] > 0.5
    real, synthetic = real.astype(kind), synthetic.astype(kind)
    per_column, mean = marginal(real, synthetic)
    theirs = [KSComplement.compute(pd.Series(real[:, c]), pd.Series(synthetic[:, c])) for c in range(5)]
    np.testing.assert_allclose(per_column, theirs, atol=1e-6)
    assert mean == pytest.approx(np.mean(theirs), abs=1e-6)

    frames = pd.DataFrame(real.astype(float)), pd.DataFrame(synthetic.astype(float))
    pairs = [(i, j) for i in range(5) for j in range(i + 1, 5)]
    theirs = [CorrelationSimilarity.compute(*(frame[list(pair)] for frame in frames)) for pair in pairs]
    assert correlation(real, synthetic) == pytest.approx(np.mean(theirs), abs=1e-6)

from __future__ import annotations

import json
from collections.abc import Iterator
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from synther.data import scaling
from synther.data.layout import Layout
from synther.data.moments import Moments, RowSample
from synther.data.scaling import SCALINGS, Scaler, resolve_kinds
from synther.data.transitions import Transitions
from synther.errors import ConfigError, DataError

RAW = np.random.default_rng(0).gamma(2.0, 3.0, (5000, 3)) * [1.0, 1e-9, 1e9] + [0.0, 1.0, -1e10]


def all_of(kind: str, matrix: np.ndarray = RAW) -> Scaler:
    return Scaler.fit(matrix, [kind] * matrix.shape[1])


def test_standard_minmax_and_none():
    standard, minmax, none = (all_of(kind).transform(RAW) for kind in ("standard", "minmax", "none"))
    assert np.allclose(standard.mean(0), 0, atol=1e-6)
    assert np.allclose(standard.std(0), 1, atol=1e-9)
    assert np.allclose(minmax.min(0), -1, atol=1e-7)
    assert np.allclose(minmax.max(0), 1, atol=1e-7)
    assert np.array_equal(none, RAW)


def test_quantile_makes_a_skewed_sample_normal():
    scaled = all_of("quantile").transform(RAW)
    normal = NormalDist()
    for column in scaled.T:
        ordered = np.sort(column)
        expected = [normal.inv_cdf((rank + 0.5) / len(ordered)) for rank in range(len(ordered))]
        assert np.abs(ordered - expected).max() < 0.02


@pytest.mark.parametrize("kind", SCALINGS)
def test_inverse_undoes_transform_inside_and_outside_the_data(kind: str):
    scaler = all_of(kind, RAW[:1000])
    wider = np.concatenate([RAW, RAW.min(0)[None] - RAW.std(0), RAW.max(0)[None] + RAW.std(0)])
    error = np.abs(scaler.inverse(scaler.transform(wider)) - wider)
    assert (error <= 1e-12 * (np.abs(wider) + RAW.std(0))).all()
    back = np.random.default_rng(1).normal(size=(1000, 3)) * (3 if kind != "none" else 1)
    assert np.allclose(scaler.transform(scaler.inverse(back)), back, atol=1e-6)


@pytest.mark.parametrize("kind", SCALINGS[1:])
def test_transform_is_strictly_increasing(kind: str):
    column = np.concatenate([np.zeros(500), np.random.default_rng(0).exponential(size=500)])[:, None]
    scaler = all_of(kind, column)
    grid = np.linspace(-2, 12, 4001)[:, None]
    assert (np.diff(scaler.transform(grid)[:, 0]) > 0).all()


@pytest.mark.parametrize("kind", ["standard", "minmax", "quantile"])
@pytest.mark.parametrize("size", [1e-320, 1e-200, 1e-30, 1e30, 1e200, 1e300])
def test_extreme_scales_come_out_ordinary(kind: str, size: float):
    column = np.random.default_rng(0).uniform(-1, 1, (1000, 1)) * size
    scaler = all_of(kind, column)
    scaled = scaler.transform(column)
    assert 0.5 < np.abs(scaled).max() < 5
    assert 0.3 < scaled.std() < 1.2
    assert np.allclose(scaler.inverse(scaled) / size, column / size, atol=1e-2 if size == 1e-320 else 1e-13)


def test_a_large_offset_or_a_tiny_variance_costs_no_precision():
    noise = np.random.default_rng(0).normal(size=(20_000, 1))
    for column in (1e6 + 1e-3 * noise, 1e-9 * noise):
        scaled = all_of("standard", column).transform(column)
        assert abs(scaled.mean()) < 1e-6  # the mean itself is rounded to 1e-10, a ten-millionth of a deviation
        assert scaled.std() == pytest.approx(1, abs=1e-9)
        assert np.corrcoef(scaled[:, 0], noise[:, 0])[0, 1] > 1 - 1e-9
    smallest = np.zeros((1000, 1))
    smallest[3] = 5e-324
    assert all_of("standard", smallest).transform(smallest).max() == 1


def cut(matrix: np.ndarray, sizes: list[int]) -> Iterator[np.ndarray]:
    start = 0
    for size in sizes:
        yield matrix[start : start + size]
        start += size
    yield matrix[start:]


@pytest.mark.parametrize("kind", SCALINGS)
def test_chunks_give_what_the_whole_gives(kind: str):
    whole, chunked = all_of(kind), Scaler.fit(cut(RAW, [1, 10, 0, 2000]), [kind] * 3)
    assert np.allclose(whole.transform(RAW), chunked.transform(RAW), rtol=1e-9, atol=1e-9)


@settings(deadline=None)
@given(
    blocks=st.lists(
        hnp.arrays(np.float64, st.tuples(st.integers(1, 5), st.just(2)), elements=st.floats(-1e6, 1e6))
    ).filter(len)
)
def test_moments_of_blocks_are_those_of_the_rows(blocks: list[np.ndarray]):
    moments = Moments(2)
    for block in blocks:
        moments.add(block)
    rows = np.concatenate(blocks)
    size = np.abs(rows).max() + 1e-300
    assert np.array_equal(moments.low, rows.min(0))
    assert np.array_equal(moments.high, rows.max(0))
    assert np.allclose(moments.mean, rows.mean(0), rtol=0, atol=1e-13 * size)
    with np.errstate(under="ignore"):
        assert np.allclose(moments.std / size, (rows / size).std(0), rtol=0, atol=1e-13)


def test_a_sample_of_rows_is_uniform_and_the_same_however_the_stream_is_cut():
    stream = np.arange(1000.0)[:, None]
    one, two = RowSample(seed=1, limit=100), RowSample(seed=1, limit=100)
    one.add(stream)
    for block in cut(stream, [1, 150, 300, 7]):
        two.add(block)
    assert len(one.rows) == 100
    assert np.array_equal(np.sort(one.rows[:, 0]), np.sort(two.rows[:, 0]))
    assert abs(one.rows.mean() - 499.5) < 100
    other = RowSample(seed=2, limit=100)
    other.add(stream)
    assert not np.array_equal(np.sort(one.rows[:, 0]), np.sort(other.rows[:, 0]))


def test_quantiles_of_a_sample_still_reach_the_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scaling, "_SAMPLED_ROWS", 500)
    scaler = all_of("quantile")
    for column, curve in scaler.curves:
        assert curve.values[0] * scaler.scale[column] == RAW[:, column].min()
        assert curve.values[-1] * scaler.scale[column] == RAW[:, column].max()
    assert np.abs(scaler.transform(RAW)).max() < 3.2  # of 500 rows the lowest sits at the score of 0.001


def test_shared_values_sit_at_their_middle_score():
    column = np.repeat([0.0, 1.0, 5.0], [100, 300, 600])[:, None]
    scores = all_of("quantile", column).transform(np.array([[0.0], [1.0], [5.0]]))[:, 0]
    assert scores[0] < NormalDist().inv_cdf(0.1)
    assert NormalDist().inv_cdf(0.1) < scores[1] < NormalDist().inv_cdf(0.4)
    assert NormalDist().inv_cdf(0.4) < scores[2]


@pytest.mark.parametrize("kind", ["standard", "minmax", "quantile"])
@pytest.mark.parametrize("rows", [1, 7])
def test_a_constant_column_is_only_shifted(kind: str, rows: int):
    scaler = all_of(kind, np.full((rows, 1), 0.1))
    assert scaler.transform(np.array([[0.1], [1.1]]))[:, 0].tolist() == [0, 1]


@pytest.mark.parametrize("kind", ["standard", "minmax", "quantile", "blend"])
def test_a_constant_column_has_the_units_of_its_twin(kind: str):
    matrix = np.stack([np.full(100, 5.0), np.linspace(-3, 3, 100), np.full(100, 2.0), np.full(100, 2.5)], 1)
    scaler = Scaler.fit(matrix, [kind] * 4, twins=[1, 0, 3, 2])
    assert scaler.scale[0] == pytest.approx(matrix[:, 1].std())
    assert (scaler.shift[0], scaler.scale[2], scaler.scale[3]) == (5.0, 0.5, 0.5)
    assert (scaler.shift[1], scaler.scale[1]) == (lone := all_of(kind, matrix)).shift[1:2] + lone.scale[1:2]
    np.testing.assert_allclose(scaler.inverse(scaler.transform(matrix)), matrix, atol=1e-12)


@pytest.mark.parametrize("kind", SCALINGS)
def test_log_slope_against_finite_differences(kind: str):
    raw = np.random.default_rng(0).gamma(2.0, 3.0, (2000, 2))
    scaler = all_of(kind, raw)
    step = 1e-6
    # midway between the knots of the curve, and outside of them, where it has a derivative
    knots = np.array(scaler.curves[0][1].values) * scaler.scale[0] if scaler.curves else np.linspace(0, 20, 50)
    wide = np.flatnonzero(np.diff(knots) > 10 * step)
    at = np.concatenate([[-3.0], (knots[wide] + knots[wide + 1]) / 2, [90.0]])
    points = np.stack([at, np.full_like(at, -1.0)], 1)
    by_hand = np.zeros(len(points))
    for column in range(2):
        up, down = points.copy(), points.copy()
        up[:, column] += step
        down[:, column] -= step
        slope = (scaler.transform(up) - scaler.transform(down))[:, column] / (2 * step)
        by_hand += np.log(slope)
    assert np.allclose(scaler.log_slope(points), by_hand, atol=1e-5)


def test_log_slope_at_the_ends_is_that_of_the_segment_inside():
    column = np.random.default_rng(0).gamma(2.0, 3.0, (2000, 1))
    scaler = all_of("quantile", column)
    for end, inwards in ((column.min(), 1e-9), (column.max(), -1e-9)):
        at, inside, outside = scaler.log_slope(np.array([[end], [end + inwards], [end - inwards]]))
        assert at == inside
        assert at != outside


def test_kinds_may_differ_by_column_also_after_a_file():
    scaler = Scaler.fit(RAW, ["minmax", "none", "quantile"])
    scaled = scaler.transform(RAW)
    assert scaled[:, 0].max() == pytest.approx(1)
    assert np.array_equal(scaled[:, 1], RAW[:, 1])
    assert scaled[:, 2].std() == pytest.approx(1, abs=0.02)
    assert Scaler.from_json(json.loads(json.dumps(scaler.to_json(), allow_nan=False))) == scaler
    single = RAW.astype(np.float32)
    assert scaler.transform(single).dtype == scaler.inverse(single).dtype == np.float64


def test_no_columns_at_all():
    scaler = Scaler.fit(np.empty((5, 0)), [])
    assert scaler.transform(np.empty((2, 0))).shape == (2, 0)
    assert scaler.log_slope(np.empty((2, 0))).tolist() == [0, 0]


@pytest.mark.parametrize("kind", ["standard", "minmax", "quantile"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_named(kind: str, bad: float):
    matrix = RAW.copy()
    matrix[7, 1] = bad
    with pytest.raises(DataError, match="speed"):
        Scaler.fit(matrix, [kind] * 3, names=["height", "speed", "reward"])


def test_a_deviation_that_overflows_says_to_rescale():
    column = np.resize([1.7e308, 1.6e308, -1.7e308], 1000)[:, None]
    with pytest.raises(DataError, match=r"speed .*1.7e\+308"):
        Scaler.fit(column, ["standard"], names=["speed"])


@pytest.mark.parametrize("matrix", [np.zeros((4, 2)), np.zeros(4), np.zeros((0, 3)), []])
def test_other_shapes_are_refused(matrix: np.ndarray):
    with pytest.raises(DataError, match="expected"):
        Scaler.fit(matrix, ["standard"] * 3)


def test_transform_and_inverse_refuse_other_widths():
    scaler = all_of("standard")
    for call in (scaler.transform, scaler.inverse, scaler.log_slope):
        with pytest.raises(DataError, match=r"\(4, 2\): expected \(rows, 3\)"):
            call(np.zeros((4, 2)))


@settings(deadline=None, max_examples=200)
@given(
    column=hnp.arrays(np.float64, st.integers(1, 30), elements=st.floats(-1e150, 1e150)),
    kind=st.sampled_from(SCALINGS),
)
def test_any_column_scales_finitely_and_back(column: np.ndarray, kind: str):
    matrix = column[:, None]
    try:
        scaler = Scaler.fit(matrix, [kind])
    except DataError:  # a span of a few of the smallest floats there are
        assert 0 < np.ptp(column) < 1e-320
        return
    scaled = scaler.transform(matrix)
    assert np.isfinite(scaled).all()
    assert np.isfinite(scaler.log_slope(matrix)).all()
    assert kind == "none" or np.abs(scaled).max() <= max(1, np.sqrt(len(column))) * (1 + 1e-9)
    assert np.abs(scaler.inverse(scaled) - matrix).max() <= 1e-12 * np.abs(column).max()


def layout() -> Layout:
    steps = np.linspace(0, 1, 11)
    observation = np.stack([steps, np.full(11, 2.0), steps**2], 1)
    return Layout.infer(
        Transitions(observation, steps[:, None], steps, observation, terminal=np.arange(11) % 2, env_id=None)
    )


def test_one_scaling_for_all_scaled_columns():
    names = layout().names
    kinds = dict(zip(names, resolve_kinds(layout(), "quantile"), strict=True))
    assert kinds.pop("terminal") == "none"
    assert set(kinds.values()) == {"quantile"}


def test_a_mapping_goes_from_the_column_to_the_field_to_the_default():
    chosen = {"observation[2]": "quantile", "observation": "none", "default": "minmax", "terminal": "standard"}
    kinds = dict(zip(layout().names, resolve_kinds(layout(), chosen), strict=True))
    assert kinds == {
        "observation[0]": "none",
        "observation[2]": "quantile",
        "action[0]": "minmax",
        "reward": "minmax",
        "next_observation[0]": "minmax",
        "next_observation[2]": "minmax",
        "terminal": "none",
    }
    assert resolve_kinds(layout(), {"observation[1]": "minmax"}) == resolve_kinds(layout(), "standard")


@pytest.mark.parametrize(
    ("scaling", "name"),
    [("log", "log"), ({"reward": "log"}, "log"), ({"rewards": "none"}, "rewards"), ({"observation[3]": "none"}, "3")],
)
def test_unknown_scalings_and_names_are_refused(scaling: str | dict[str, str], name: str):
    with pytest.raises(ConfigError, match=name):
        resolve_kinds(layout(), scaling)
    with pytest.raises(ConfigError, match="log"):
        Scaler.fit(RAW, ["log"] * 3)


@pytest.mark.parametrize("kind", ["minmax", "quantile"])
def test_a_span_of_the_smallest_float_is_refused(kind):
    with pytest.raises(DataError, match=rf"reward .*{kind}"):
        Scaler.fit(np.array([[5e-324], [0.0]]), [kind], ["reward"])


def test_blend_lies_halfway_between_standard_and_quantile():
    column = RAW[:, :1]
    standard, quantile, blend = (all_of(kind, column).transform(column) for kind in ("standard", "quantile", "blend"))
    assert np.abs(blend - (standard + quantile) / 2).max() < 0.02


def test_blend_squeezes_nothing_by_more_than_half():
    column = np.concatenate([np.random.default_rng(0).normal(0, 0.01, 5000), [-3.0, 3.0]])[:, None]
    scaler, grid = all_of("blend", column), np.linspace(-4, 4, 2001)[:, None]
    slope = np.diff(scaler.transform(grid)[:, 0]) / np.diff(grid[:, 0]) * column.std()
    assert slope.min() >= 0.5 - 1e-9
    assert slope.max() > 2

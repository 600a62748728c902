"""Scalings of columns, there and back, and the curves between knots that two of them follow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from synther.data import scaling
from synther.data.layout import Layout
from synther.data.moments import Moments, RowSample
from synther.data.quantiles import Curve, Line, Lines
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


@pytest.mark.parametrize("kind", ["standard", "minmax", "quantile"])
@pytest.mark.parametrize("size", [1e-320, 1e-200, 1e200, 1e300])
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


@settings(deadline=None, max_examples=50)
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
    monkeypatch.setattr(scaling, "SAMPLED_ROWS", 500)
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


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        *((np.array([0.0, bad, 1.0]), kind) for kind in SCALINGS[1:] for bad in (np.nan, np.inf, -np.inf)),
        (np.resize([1.7e308, 1.6e308, -1.7e308], 1000), "standard"),  # its deviation overflows
        *((np.array([5e-324, 0.0]), kind) for kind in ("minmax", "quantile")),  # its span cannot be divided
    ],
)
def test_a_column_that_cannot_be_scaled_is_named(column: np.ndarray, kind: str):
    with pytest.raises(DataError, match="speed"):
        Scaler.fit(np.stack([np.arange(len(column)), column], 1), ["standard", kind], names=["height", "speed"])


@pytest.mark.parametrize("matrix", [np.zeros((4, 2)), np.zeros(4), np.zeros((0, 3)), []])
def test_other_shapes_are_refused(matrix: np.ndarray):
    with pytest.raises(DataError, match="expected"):
        Scaler.fit(matrix, ["standard"] * 3)
    scaler = all_of("standard")
    for call in (scaler.transform, scaler.inverse, scaler.log_slope):
        with pytest.raises(DataError, match=r"\(rows, 3\)"):
            call(np.zeros((4, 2)))
    nothing = Scaler.fit(np.empty((5, 0)), [])
    assert nothing.transform(np.empty((2, 0))).shape == (2, 0)
    assert nothing.log_slope(np.empty((2, 0))).tolist() == [0, 0]


@settings(deadline=None, max_examples=100)
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


def test_a_mapping_goes_from_the_column_to_the_field_to_the_default():
    kinds = dict(zip(layout().names, resolve_kinds(layout(), "quantile"), strict=True))
    assert kinds.pop("terminal") == "none"
    assert set(kinds.values()) == {"quantile"}
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


# Knots that are even enough for a table; more than a cell may hold, far from the rest; two that are neighbours among
# all floats.
EVEN = np.linspace(-4, 5, 300) ** 3 + np.arange(300)
FAR = np.array([-1e6, -1.0, -0.5, 0.0, 0.25, 0.5, 1.0, 2.1e6])
CLOSE = np.array([0.0, 1.0, np.nextafter(1.0, 2.0), 3.0])
TWO = np.array([-2.0, 0.5])


def expected(x: np.ndarray, at: np.ndarray, to: np.ndarray, below: float, above: float) -> np.ndarray:
    outside = np.where(x < at[0], to[0] + (x - at[0]) * below, to[-1] + (x - at[-1]) * above)
    return np.where((x < at[0]) | (x > at[-1]), outside, np.interp(x, at, to))


def around(at: np.ndarray) -> np.ndarray:
    """All knots, the floats next to them, and numbers between and beyond them."""
    span = at[-1] - at[0]
    spread = np.random.default_rng(0).uniform(at[0] - span, at[-1] + span, 2_000)
    return np.concatenate([at, np.nextafter(at, -np.inf), np.nextafter(at, np.inf), spread])


def rising(at: np.ndarray) -> np.ndarray:
    return np.cumsum(np.random.default_rng(1).exponential(size=len(at)))


@pytest.mark.parametrize(
    ("at", "table"), [(EVEN, True), (FAR, False), (CLOSE, True), (TWO, True)], ids=["even", "far", "close", "two"]
)
def test_a_line_is_straight_between_knots_and_beyond_them(at, table):
    line, x = Line(at, rising(at), 0.5, 3.0), around(at)
    assert bool(len(line.table())) == table
    lines = Lines([line], torch.device("cpu"))

    def follow(x: np.ndarray) -> np.ndarray:
        return lines.follow(torch.from_numpy(x)[None])[0].numpy()

    np.testing.assert_allclose(follow(x), expected(x, at, line.to, 0.5, 3.0), rtol=1e-14, atol=1e-14 * line.to[-1])
    np.testing.assert_array_equal(follow(at), line.to)
    np.testing.assert_array_equal(follow(np.array([np.inf, -np.inf, np.nan])), [np.inf, -np.inf, np.nan])


def test_lines_side_by_side_are_those_of_each_alone():
    lines = [Line(at, rising(at), 0.5, 3.0) for at in (EVEN, FAR, TWO, CLOSE)]
    x = np.random.default_rng(0).normal(scale=3, size=(4, 500))
    x[:, 0] = np.nan
    together = Lines(lines, torch.device("cpu")).follow(torch.from_numpy(x))
    for line, row, found in zip(lines, x, together, strict=True):
        alone = Lines([line], torch.device("cpu")).follow(torch.from_numpy(row)[None])
        np.testing.assert_array_equal(found.numpy(), alone[0].numpy())


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-50, 50), min_size=2, max_size=40, unique=True), st.floats(0.001, 1.0))
def test_a_table_finds_what_a_search_finds(knots, gap):
    at = np.cumsum(np.abs(knots) + gap) - 500
    line = Line(at, np.arange(len(at), dtype=float), 1.0, 1.0)
    assert len(line.table())
    searched = Line(line.at, line.to, 1.0, 1.0)
    searched.__dict__["cells_per_unit"] = 0.0
    x = torch.from_numpy(around(at))[None]
    found, expected = (Lines([each], torch.device("cpu")).follow(x) for each in (line, searched))
    assert torch.equal(found, expected)


def test_values_that_many_rows_share_have_the_mean_score_of_those_rows():
    """Of a normal column, what lies below -1.5 is moved there: its mean score is E[z | z < -1.5]."""
    scores = np.array([NormalDist().inv_cdf(rank) for rank in (np.arange(20_000) + 0.5) / 20_000])
    values = np.maximum(scores, -1.5)
    curve = Curve.fit(values, values.min(), values.max())
    assert curve.values[0] == -1.5
    assert curve.scores[0] == pytest.approx(scores[scores < -1.5].mean(), abs=0.02)
    assert np.interp(0.3, curve.values, curve.scores) == pytest.approx(0.3, abs=0.01)

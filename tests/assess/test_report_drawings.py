"""Pictures, histograms and axes against what they were drawn from, and numbers as text."""

from __future__ import annotations

import math
import re
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synther.assess.assessment import Measure
from synther.assess.fidelity import column_names, compare
from synther.assess.picture import MAX_PANELS, _panels, draw
from synther.assess.report.axes import Axis, linear, logarithmic
from synther.assess.report.correlations import MOST_CELLS, png, pooled
from synther.assess.report.histogram import histogram
from synther.assess.report.markup import Markup, number, power, share, tag
from synther.assess.report.measures import distance
from synther.data.transitions import Transitions

from .example import example


def decoded(data: bytes) -> np.ndarray:
    """The picture's (rows, columns, RGBA), read by the letter of the format."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + body)
        chunks[kind], at = body, at + 12 + length
    assert list(chunks) == [b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"]
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert not lines[:, 0].any()
    palette = np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)
    opacity = np.frombuffer(chunks[b"tRNS"], np.uint8)
    return np.dstack([palette[lines[:, 1:]], opacity[lines[:, 1:]]])


def test_a_picture_of_correlations_says_them_back() -> None:
    levels = np.array([[-127, -1, 0], [1, 64, 127]])
    picture = decoded(png(levels)).astype(int)
    sign = np.where(picture[..., 0] > picture[..., 1], 1, -1)
    assert (sign * picture[..., 3] // 2).tolist() == levels.tolist()


def test_pooling_keeps_means_and_needs_no_even_blocks() -> None:
    matrix = np.arange(25.0).reshape(5, 5)
    assert pooled(matrix, 5) is matrix
    assert pooled(matrix, 1).tolist() == [[12.0]]
    assert pooled(matrix, 2).tolist() == [[3.0, 5.5], [15.5, 18.0]]
    assert np.allclose(pooled(np.ones((MOST_CELLS + 1,) * 2), MOST_CELLS), np.ones((MOST_CELLS,) * 2))


def test_a_histogram_tells_of_what_it_cuts_and_of_whole_numbers() -> None:
    some = example().columns[0]
    shares = (*[0.5 / 19] * 19, 0.5)
    column = replace(some, edges=tuple(np.linspace(0, 1, 21)), real_shares=shares, synthetic_shares=shares)
    drawn = histogram(column)
    assert 'class="cut"' in drawn
    assert re.findall(r"<text[^>]*>([^<]*%)", drawn) == ["50\u2009% / 50\u2009%"]
    neighbours = (*[0.4 / 18] * 18, 0.35, 0.25)
    drawn = histogram(replace(column, real_shares=neighbours, synthetic_shares=neighbours))
    assert drawn.count('class="cut"') == 2
    assert re.findall(r"<text[^>]*>([^<]*%)", drawn) == ["60\u2009% / 60\u2009%"]
    ends = (0.35, *[0.4 / 18] * 18, 0.25)
    drawn = histogram(replace(column, real_shares=ends, synthetic_shares=shares))
    told = re.findall(r'<text x="([^"]*)" y="12" class="(.)">([^<]*)', drawn)
    assert [told[0][1:], told[1][1:]] == [("b", "35\u2009% / 2.6\u2009%"), ("e", "25\u2009% / 50\u2009%")]
    assert float(told[0][0]) < float(told[1][0])
    flag = histogram(replace(some, edges=(-0.5, 0.5, 1.5), real_shares=(0.99, 0.01), synthetic_shares=(0.98, 0.02)))
    assert re.findall(r"<text[^>]*>([^<]*)", flag) == ["0", "1"]
    assert 'class="cut"' not in flag


def test_bars_are_as_tall_as_dense_whatever_their_width() -> None:
    some = replace(example().columns[0], edges=(0.0, 1.0, 3.0), real_shares=(0.5, 0.5), synthetic_shares=(1 / 3, 2 / 3))
    real, synthetic = re.findall(r'<path d="([^"]*)" class="[rs]"', histogram(some))
    assert real == "M2 52H2V4H100.7V28H298V52"
    assert synthetic == "M2 52H2V20H298V52"


@pytest.mark.parametrize("edges", [(), (1.0,), (1.0, 1.0), (0.0, float("nan"))])
def test_a_histogram_without_bins_is_left_out(edges: tuple[float, ...]) -> None:
    assert histogram(replace(example().columns[0], edges=edges, real_shares=(), synthetic_shares=())) == ""


@pytest.mark.parametrize(
    ("better", "value", "real", "expected"),
    [
        ("higher", 0.7, 0.9, 0.2),
        ("higher", 0.95, 0.9, 0.0),
        ("lower", 0.7, 0.5, 0.2),
        ("lower", 0.4, 0.5, 0.0),
        ("nearer", 0.4, 0.5, 0.1),
        ("nearer", 0.6, 0.5, 0.1),
        ("nearer", None, 0.5, None),
        ("nearer", 0.5, float("inf"), None),
    ],
)
def test_distance_is_on_the_wrong_side_only(better, value, real, expected) -> None:
    measure = Measure("m", "M", "g", value, real, better, 0.0, 1.0, "")
    assert distance(measure) == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "\u2013"),
        (math.inf, "\u221e"),
        (-math.inf, "\u2212\u221e"),
        (0.0, "0"),
        (-0.0, "0"),
        (-1.5, "\u22121.5"),
        (0.00079, "0.00079"),
        (0.98765, "0.9877"),
        (100_000.0, "10\u2075"),
        (2.5e-6, "2.5\u00d710\u207b\u2076"),
        (-3e12, "\u22123\u00d710\u00b9\u00b2"),
    ],
)
def test_numbers_for_people(value: float | None, text: str) -> None:
    assert number(value) == text


def test_powers_of_ten_and_decimals() -> None:
    assert [power(value) for value in (1e-4, 1.0, 2.0, 30.0)] == ["10\u207b\u2074", "1", "2", "3\u00d710\u00b9"]
    assert number(0.99, decimals=4) == "0.9900"
    assert number(0.00004, decimals=4) == "4\u00d710\u207b\u2075"
    assert number(17.53, digits=2) == "18"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1.0, "100"), (0.5, "50"), (0.0035, "0.35"), (0.128, "12.8"), (1e-6, "< 0.01"), (0.99999, "> 99.9")],
)
def test_shares(value: float, text: str) -> None:
    assert share(value) == f"{text}\u2009%"


def test_tags() -> None:
    assert tag("p", "a < b", tag("br_", "x")) == "<p>a &lt; b<br_>x</br_></p>"
    assert tag("td", class_="a", data_key="<", hidden=True, title=None, width=1.5) == (
        '<td class="a" data-key="&lt;" hidden width="1.5"></td>'
    )
    assert tag("img", src='"') == '<img src="&quot;">'
    assert isinstance(tag("p"), Markup)


def test_an_axis_puts_values_between_its_ends() -> None:
    assert Axis(0, 10, 100, 200)([0, 5, 10, 20, -1]).tolist() == [100, 150, 200, 200, 100]
    assert Axis(0, 10, 200, 100)(2.5) == 175
    assert Axis(0.01, 100, 0, 4, log=True)([0.01, 1, 100, 0, -3]) == pytest.approx([0, 2, 4, 0, 0])


@pytest.mark.parametrize(
    ("low", "high", "log", "most", "ticks"),
    [
        (0, 1, False, 5, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (-0.13, 0.27, False, 4, [-0.1, 0.0, 0.1, 0.2]),
        (1e-4, 1, True, 5, [1e-4, 1e-3, 1e-2, 1e-1, 1]),
        (1e-8, 1, True, 4, [1e-8, 1e-6, 1e-4, 1e-2, 1]),
        (16, 320, True, 5, [20, 50, 100, 200]),
    ],
)
def test_ticks_are_round(low: float, high: float, log: bool, most: int, ticks: list[float]) -> None:
    assert Axis(low, high, 0, 1, log=log).ticks(most) == pytest.approx(ticks)


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.integers(1, 8))
def test_ticks_are_within_and_few(low: float, width: float, most: int) -> None:
    high = low + width
    if not high - low > 1e-9 * max(abs(low), abs(high)):
        return
    ticks = Axis(low, high, 0, 1).ticks(most)
    assert len(ticks) <= most + 1
    assert all(low - 1e-6 * width <= tick <= high + 1e-6 * width for tick in ticks)


@pytest.mark.parametrize("values", [[], [math.nan], [3.0], [0.0], [-1.0, -1.0]])
def test_axes_of_too_little_still_have_a_length(values: list[float]) -> None:
    assert linear(values, 0, 1).high > linear(values, 0, 1).low
    axis = logarithmic(values, 0, 1)
    assert axis.high > axis.low > 0


def test_a_logarithmic_axis_takes_whole_decades_but_not_too_many() -> None:
    axis = logarithmic([0.0, 0.02, 5.0, math.inf], 0, 1)
    assert (axis.low, axis.high) == (0.01, 10.0)
    deep = logarithmic([1e-30, 1.0], 0, 1)
    assert (deep.low, deep.high) == (1e-8, 1.0)


def rows(count: int, width: int, seed: int, discrete: bool = False) -> Transitions:
    rng = np.random.default_rng(seed)
    return Transitions(
        observation=rng.normal(size=(count, width)),
        action=rng.integers(0, 3, count) if discrete else rng.uniform(-1, 1, (count, 2)),
        reward=np.ones(count),
        next_observation=rng.normal(size=(count, width)),
        env_id="Hopper-v5",
    )


@pytest.mark.parametrize(("width", "discrete", "count"), [(6, True, 200), (1, True, 1)])
def test_a_picture_is_written_whole(tmp_path: Path, width: int, discrete: bool, count: int) -> None:
    target = tmp_path / "new" / "likeness.png"
    draw(rows(count, width, 0, discrete), rows(count, width, 1, discrete), target)
    data = target.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert data.rstrip().endswith(b"IEND\xaeB`\x82")
    assert [path.name for path in target.parent.iterdir()] == ["likeness.png"]


def test_the_least_alike_columns_come_first_when_there_are_many() -> None:
    real, synthetic = rows(100, 40, 0), rows(100, 40, 1)
    found, names = compare(real, synthetic), column_names(real)
    chosen = _panels(names, found)
    likeness = [found.columns[names[at]] for at in chosen]
    assert len(chosen) == MAX_PANELS
    assert likeness == sorted(likeness)
    assert not any(names[at].startswith(("next", "terminal")) for at in chosen)
    few = rows(100, 3, 0)
    assert [column_names(few)[at] for at in _panels(column_names(few), compare(few, few))][-1] == "reward"

"""Pictures and histograms against what they were drawn from."""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest

from synther.assess.assessment import Cloud, Measure
from synther.assess.report.chart import points
from synther.assess.report.correlations import MOST_CELLS, png, pooled
from synther.assess.report.diversity import _axis, section
from synther.assess.report.histogram import histogram, limit
from synther.assess.report.measures import distance

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


def heights(*values: float) -> tuple[np.ndarray, np.ndarray]:
    shares = np.tile(np.array(values) / sum(values), (2, 1))
    return shares * len(values), shares


def test_a_spike_is_cut_off_only_where_there_is_something_beside_it() -> None:
    flat = [1.0] * 18
    assert limit(*heights(*flat, 1.0, 1.0)) == pytest.approx(1.0)
    spiked, shares = heights(*flat, 1.0, 20.0)
    assert limit(spiked, shares) == pytest.approx(1.4 * spiked[0, 0])
    nearly_constant, shares = heights(*flat, 1.0, 200.0)
    assert limit(nearly_constant, shares) == pytest.approx(nearly_constant.max())
    two, shares = heights(0.99, 0.01)
    assert limit(two, shares) == pytest.approx(two.max())
    assert limit(np.zeros((2, 3)), np.zeros((2, 3))) == 1.0


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
    assert [(side, text) for _, side, text in told] == [
        ("b", "35\u2009% / 2.6\u2009%"),
        ("e", "25\u2009% / 50\u2009%"),
    ]
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


def test_a_cloud_is_logarithmic_where_its_values_are_far_apart() -> None:
    assert not _axis(np.linspace(0.5, 3, 50), 0, 1).log
    assert _axis(np.geomspace(1e-6, 1, 50), 0, 1).log
    assert not _axis(np.zeros(3), 0, 1).log
    mostly_exact = _axis(np.append(np.zeros(50), np.geomspace(1e-4, 1, 50)), 0, 1)
    assert mostly_exact.log
    assert mostly_exact(0.0) == 0


def test_points_that_would_cover_each_other_are_drawn_once() -> None:
    drawn = points(np.array([1.0, 1.01, 2.55]), np.array([3.0, 3.01, 4.0]), "real")
    assert drawn == '<path d="M1 3h0M2.5 4h0" class="dots real"></path>'


@pytest.mark.parametrize(("error", "told"), [(6.4e-15, "dynamics error 0;"), (3e-4, "dynamics error 0.0003;")])
def test_errors_below_the_axis_are_told_as_the_measures_tell_them(error: float, told: str) -> None:
    real = tuple((1.0 + number / 9, error) for number in range(9))
    synthetic = tuple((1.5 + number / 9, 10.0 ** -(number % 3)) for number in range(9))
    text = section(replace(example(), cloud=Cloud("a judge", synthetic, real)))
    assert told in text
    assert ("is drawn on its edge" in text) == (error < 1e-8)
    assert "in stds" in text

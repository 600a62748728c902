"""Numbers as text and as places."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synther.assess.report.axes import Axis, linear, logarithmic, spread
from synther.assess.report.markup import Markup, number, power, share, tag


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "\u2013"),
        (math.nan, "\u2013"),
        (math.inf, "\u221e"),
        (-math.inf, "\u2212\u221e"),
        (0.0, "0"),
        (-0.0, "0"),
        (1.0, "1"),
        (-1.5, "\u22121.5"),
        (0.00079, "0.00079"),
        (0.98765, "0.9877"),
        (99_999.0, "99999"),
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


@given(st.floats())
def test_every_number_is_short(value: float) -> None:
    assert 0 < len(number(value)) <= 11


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
        (-1200, 900, False, 5, [-1000, -500, 0, 500]),
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


def test_labels_are_moved_apart_only_as_far_as_they_must() -> None:
    assert spread([10, 50, 90], 11, 0, 100) == [10, 50, 90]
    assert spread([10, 12, 50], 11, 0, 100) == [10, 21, 50]
    assert spread([50, 98, 99], 11, 0, 100) == [50, 89, 100]
    assert spread([], 11, 0, 100) == []

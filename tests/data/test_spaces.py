from __future__ import annotations

import json

import numpy as np
import pytest

from synther.data import spaces
from synther.data.spaces import Binary, Box, Discrete, OneHot, Part, Space
from synther.errors import DataError

MIXED: Space = (Box((-1.0, -np.inf), (1.0, 5.0)), Discrete(3, start=-1), Binary(2), OneHot(3))
GOOD = [0.5, -1e9, -1, 0, 1, 0, 1, 0]


def test_width_counts_columns():
    assert spaces.width(MIXED) == 8
    assert Box.uniform(-2, 2, 3) == Box((-2.0,) * 3, (2.0,) * 3)


def test_strict_json_round_trip_keeps_infinities():
    text = json.dumps(spaces.to_json(MIXED), allow_nan=False)
    assert spaces.from_json(json.loads(text)) == MIXED
    assert spaces.to_json(None) is None
    assert spaces.from_json(None) is None


def test_numpy_bounds_are_written_as_plain_numbers():
    box = Box(tuple(np.float32([-1])), tuple(np.float32([1])))
    assert json.loads(json.dumps(spaces.to_json((box,)))) == [{"part": "box", "low": [-1.0], "high": [1.0]}]


def test_an_unknown_part_is_named():
    with pytest.raises(DataError, match=r"'sphere'.*box"):
        spaces.from_json([{"part": "sphere"}])


@pytest.mark.parametrize(
    ("part", "arguments", "text"),
    [
        (Box, ((0.0,), (1.0, 2.0)), "1 and 2"),
        (Box, ((), ()), "0 and 0"),
        (Box, ((1.0,), (0.0,)), "column 0"),
        (Box, ((float("nan"),), (0.0,)), "column 0"),
        (Discrete, (0,), "size 0"),
        (Binary, (0,), "width 0"),
        (OneHot, (0,), "size 0"),
    ],
)
def test_parts_refuse_what_holds_no_value(part: type[Part], arguments: tuple[object, ...], text: str):
    with pytest.raises(DataError, match=text):
        part(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        (0, 1.1, r"in \[-1, 1\]"),
        (1, 5.1, r"in \[-inf, 5\]"),
        (2, 2, "integer from -1 to 1"),
        (2, 0.5, "integer from -1 to 1"),
        (4, 0.5, "0 or 1"),
        (7, 1, "one 1"),
        (6, 0, "one 1"),
    ],
)
def test_check_names_row_column_and_what_was_allowed(column: int, value: float, text: str):
    values = np.array([GOOD, GOOD])
    spaces.check(MIXED, values, "action")
    values[1, column] = value
    with pytest.raises(DataError, match=text) as caught:
        spaces.check(MIXED, values, "action")
    assert "action[1, " in str(caught.value)
    assert "1 of 2 rows" in str(caught.value)


def test_check_refuses_another_width():
    with pytest.raises(DataError, match="8 columns, the array 2"):
        spaces.check(MIXED, np.zeros((1, 2)), "action")


def test_the_rounding_of_float32_is_forgiven():
    box = (Box.uniform(-0.1, 0.1, 1),)
    spaces.check(box, np.float32([[0.1], [-0.1]]), "action")
    with pytest.raises(DataError, match="outside"):
        spaces.check(box, np.float32([[0.10001]]), "action")


def test_absurd_bounds_are_no_arithmetic_error():
    spaces.check((Box((-1.7e308, -np.inf), (1.7e308, np.inf)),), np.zeros((2, 2)), "action")


def test_bounds_may_come_as_lists_and_are_kept_as_they_should_be():
    assert Box([-1, 0], np.array([1.0, 2.0])) == Box((-1.0, 0.0), (1.0, 2.0))
    assert hash(Box([-1], [1])) == hash(Box((-1.0,), (1.0,)))

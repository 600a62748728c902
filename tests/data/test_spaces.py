from __future__ import annotations

import json

import numpy as np
import pytest

from synther.data import spaces
from synther.data.spaces import Binary, Box, Discrete, OneHot, Part, Space
from synther.errors import DataError

MIXED: Space = (Box((-1.0, -np.inf), (1.0, 5.0)), Discrete(3, start=-1), Binary(2), OneHot(3))
GOOD = [0.5, -1e9, -1, 0, 1, 0, 1, 0]


def test_strict_json_round_trip_keeps_infinities():
    text = json.dumps(spaces.to_json(MIXED), allow_nan=False)
    assert spaces.from_json(json.loads(text)) == MIXED
    assert spaces.to_json(None) is None
    assert spaces.from_json(None) is None
    with pytest.raises(DataError, match="sphere"):
        spaces.from_json([{"part": "sphere"}])


def test_bounds_may_come_as_any_numbers_and_are_kept_as_plain_ones():
    assert spaces.width(MIXED) == 8
    for low, high in (([-1], np.array([1.0])), (tuple(np.float32([-1])), tuple(np.float32([1])))):
        box = Box(low, high)
        assert box == Box.uniform(-1, 1, 1) == Box((-1.0,), (1.0,))
        assert hash(box) == hash(Box((-1.0,), (1.0,)))
        assert json.loads(json.dumps(spaces.to_json((box,)))) == [{"part": "box", "low": [-1.0], "high": [1.0]}]


@pytest.mark.parametrize(
    ("part", "arguments"),
    [
        *((Box, bounds) for bounds in (((0.0,), (1.0, 2.0)), ((), ()), ((1.0,), (0.0,)), ((float("nan"),), (0.0,)))),
        *((part, (0,)) for part in (Discrete, Binary, OneHot)),
    ],
)
def test_parts_refuse_what_holds_no_value(part: type[Part], arguments: tuple[object, ...]):
    with pytest.raises(DataError):
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
    with pytest.raises(DataError, match="8 columns"):
        spaces.check(MIXED, np.zeros((1, 2)), "action")


def test_the_rounding_of_float32_is_forgiven():
    box = (Box.uniform(-0.1, 0.1, 1),)
    spaces.check(box, np.float32([[0.1], [-0.1]]), "action")
    with pytest.raises(DataError, match="outside"):
        spaces.check(box, np.float32([[0.10001]]), "action")
    spaces.check((Box((-1.7e308, -np.inf), (1.7e308, np.inf)),), np.zeros((2, 2)), "action")  # no overflow

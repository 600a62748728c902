"""Spaces that rows carry, and those that a registered environment declares for rows without them."""

from __future__ import annotations

import json

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

from synther import Transitions
from synther.data import declared, kinds, spaces
from synther.data.layout import Layout
from synther.data.spaces import Binary, Box, Discrete, OneHot, Part, Space
from synther.errors import DataError, FormatError

MIXED: Space = (Box((-1.0, -np.inf), (1.0, 5.0)), Discrete(3, start=-1), Binary(2), OneHot(3))
GOOD = [0.5, -1e9, -1, 0, 1, 0, 1, 0]


def test_strict_json_round_trip_keeps_infinities():
    text = json.dumps(spaces.to_json(MIXED), allow_nan=False)
    assert spaces.from_json(json.loads(text)) == MIXED
    assert spaces.to_json(None) is None
    assert spaces.from_json(None) is None
    with pytest.raises(FormatError, match="sphere"):
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


def rows(env_id: str | None, observation: np.ndarray, actions: int = 4, **about: object) -> Transitions:
    draw = np.random.default_rng(0)
    count = len(observation)
    return Transitions.of(
        observation=observation,
        action=draw.integers(actions, size=count),
        reward=draw.random(count).astype(np.float32),
        next_observation=observation,
        terminal=np.zeros(count, bool),
        env_id=env_id,
        **about,
    )


def places(below: int, count: int = 300) -> np.ndarray:
    return np.random.default_rng(1).integers(below, size=(count, 1)).astype(np.float32)


def test_states_that_were_never_visited_are_known_from_the_environment():
    layout = Layout.infer(rows("FrozenLake-v1", places(10), actions=3))
    assert layout.observation == (kinds.Categorical(16, 0, "onehot"),)
    assert layout.action == (kinds.Categorical(4, 0, "onehot"),)
    layout = Layout.infer(rows("FrozenLake-v1", np.eye(16, dtype=np.float32)[places(10).astype(int)[:, 0]]))
    assert [type(kind) for kind in layout.observation] == [kinds.OneHot]


@pytest.mark.parametrize("env_id", [None, "Nobody-v0", "os:FrozenLake-v1", "CartPole-v1", "NeverMade-v0"])
def test_without_a_discrete_declaration_the_rows_decide(env_id, monkeypatch):
    def broken(**_: object) -> None:
        raise OSError("no such device")

    monkeypatch.setitem(gymnasium.registry, "NeverMade-v0", EnvSpec("NeverMade-v0", entry_point=broken))
    layout = Layout.infer(rows(env_id, places(4_000)))
    assert [type(kind) for kind in layout.observation] == [kinds.Integer]


def test_options_that_could_name_a_file_are_not_passed_on():
    for options in ({"map_name": "8x8"}, {"desc": ["SF", "FG"]}):
        assert Layout.infer(rows("FrozenLake-v1", places(10), env_options=options)).observation_space is None
    assert declared._declared("FrozenLake-v1", (("is_slippery", False),))["observation"].n == 16


def test_a_late_row_can_contradict_a_declaration():
    values = places(16, 70_000)
    values[-1] = 16
    assert Layout.infer(rows("FrozenLake-v1", values)).observation_space is None


def test_limits_of_columns():
    low, high = spaces.limits(MIXED, 8)
    np.testing.assert_array_equal(low, [-1, -np.inf, -1, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(high, [1, 5, 1, 1, 1, 1, 1, 1])
    np.testing.assert_array_equal(spaces.limits(None, 2), [[-np.inf] * 2, [np.inf] * 2])

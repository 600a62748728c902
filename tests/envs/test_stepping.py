"""Environments of several seeds: true rows, time limits that are no terminals, episodes that depend on seeds alone."""

from __future__ import annotations

import numpy as np
import pytest

from synther.envs import stepping
from synther.envs.stepping import Worlds
from synther.errors import ConfigError, DataError, Failed

from .places import register


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch) -> None:
    """Where the environments of these tests are known, unless a test asks for others."""
    register()
    monkeypatch.setattr(stepping, "cores", lambda: 1)


def walked(worlds: Worlds, steps: int, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows (S, N, width) and timeouts (S, N) of actions that depend on the step alone."""
    found = []
    for number in range(first, first + steps):
        action = np.full((len(worlds.observations), 1), np.sin(number), np.float32)
        found.append(worlds.step(action * worlds.high, number))
    rows, timeouts, _ = zip(*found, strict=True)
    return np.stack(rows, 1), np.stack(timeouts, 1)


@pytest.mark.parametrize(
    ("options", "ends", "terminal", "timeout"),
    [({"cuts": 5}, 5, 0, 1), ({"ends": 4}, 4, 1, 0), ({"ends": 5, "cuts": 5}, 5, 1, 0)],
    ids=str,
)
def test_rows_follow_each_other_until_an_episode_ends(options, ends, terminal, timeout):
    with Worlds("Point-v0", [0, 1], options={"reach": 2.0, **options}) as worlds:
        worlds.begin(0)
        rows, timeouts = walked(worlds, 12)
    here, action, reward, over, there = np.moveaxis(rows, 2, 0)
    np.testing.assert_allclose(there, here + action / 4, rtol=1e-6)
    np.testing.assert_allclose(reward, -(there**2), rtol=1e-6)
    assert np.abs(action).max() > 1
    last = np.arange(1, 13) % ends == 0
    assert (over == (last & bool(terminal))).all()
    assert (timeouts == (last & bool(timeout))).all()
    np.testing.assert_array_equal(here[:, 1:][:, ~last[:-1]], there[:, :-1][:, ~last[:-1]])
    assert (here[:, 1:][:, last[:-1]] != there[:, :-1][:, last[:-1]]).all()


def test_an_episode_depends_on_its_seed_and_the_step_at_which_it_begins():
    with Worlds("Point-v0", [0, 1, 7]) as worlds, Worlds("Point-v0", [7]) as alone:
        worlds.begin(0)
        rows, _ = walked(worlds, 10)
        alone.begin(3)  # has lived another life before
        walked(alone, 3, first=3)
        alone.begin(0)
        np.testing.assert_array_equal(walked(alone, 5)[0][0], rows[2, :5])
        alone.begin(5)
        np.testing.assert_array_equal(walked(alone, 5, first=5)[0][0], rows[2, 5:])
    starts = rows[:, [0, 5], 0]
    assert len(np.unique(starts)) == 6


def test_the_highest_action_lies_within_bounds_of_more_digits():
    """The float32 next to 0.1 is above it, and the environment asserts that actions are in its box."""
    with Worlds("Point-v0", [0], options={"reach": 0.1, "fault": "float64"}) as worlds:
        assert float(worlds.high[0]) > 0.1
        worlds.begin(0)
        worlds.step(worlds.high[None], 0)


def test_whole_numbers_of_several_kinds_become_one_hot_columns():
    with Worlds("Kinds-v0", [0]) as worlds:
        worlds.begin(0)
        assert worlds.observations.tolist() == [[0, 0, 1, 0, 1, 0, 0]]


def test_parts_of_an_observation_are_put_side_by_side():
    with Worlds("Parts-v0", [0]) as worlds:
        worlds.begin(0)
        again, place = worlds.observations[0, :2], worlds.observations[0, 2:]
        np.testing.assert_allclose(again, np.repeat(place, 2) + 1)
        assert worlds.observation_size == 3
        rows, _ = walked(worlds, 2)
        assert rows.shape == (1, 2, 9)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("raises", "Point-v0 of seed 4 failed in step 8: RuntimeError: no such motor"),
        ("nan", "Point-v0 of seed 4 returned nan in observation column 0 in step 8"),
        ("reward", "Point-v0 of seed 4 returned the reward nan in step 8"),
        ("no reward", "Point-v0 of seed 4 failed in step 8: TypeError"),
        ("old", "Point-v0 of seed 4 failed in step 8: ValueError: not enough values"),
        ("grows", "Point-v0 of seed 4 returned 2 numbers in step 8: its space has 1"),
    ],
)
def test_what_goes_wrong_is_told(fault, says):
    with Worlds("Point-v0", [4, 5], options={"fault": fault}) as worlds:
        worlds.begin(0)
        walked(worlds, 8)
        with pytest.raises(DataError, match=says):
            walked(worlds, 1, first=8)


@pytest.mark.parametrize(
    ("env_id", "options", "says"),
    [
        ("Point-v0", {"fault": "discrete"}, "expected a Box"),
        ("Point-v0", {"fault": "unbounded"}, "expected finite bounds"),
        ("Point-v0", {"fault": "unmade"}, "Point-v0 cannot be made here: ValueError: no such part"),
        ("Nowhere-v0", {}, "not an environment of Gymnasium"),
    ],
)
def test_environments_that_will_not_do(env_id, options, says):
    with pytest.raises(DataError, match=says):
        Worlds(env_id, [0], options=options)


def test_several_processes_do_as_one():
    found = []
    for processes in (1, 2):
        with Worlds("Pendulum-v1", [3, 4, 8], processes=processes) as worlds:
            worlds.begin(7)
            begun = worlds.observations
            stepped = [worlds.step(np.full((3, 1), 0.3, np.float32), number) for number in range(7, 12)]
            worlds.begin(12)
            found.append([begun, *(part for step in stepped for part in step), worlds.observations])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_processes_tell_what_goes_wrong_and_what_has_died():
    with Worlds("Point-v0", [0, 1], processes=2) as worlds, pytest.raises(DataError, match="not an environment"):
        worlds.begin(0)  # which nobody has registered there
    with Worlds("Pendulum-v1", [0, 1], processes=2) as worlds:
        worlds.begin(0)
        with pytest.raises(DataError, match="Pendulum-v1 of seed 1 returned the reward nan in step 0"):
            worlds.step(np.array([[0.0], [np.nan]], np.float32), 0)
        worlds.begin(0)  # nobody's answer was left behind
        worlds._places[1]._process.kill()
        worlds._places[1]._process.join()
        with pytest.raises(Failed, match="died"):
            worlds.begin(1)


@pytest.mark.parametrize(("seeds", "processes"), [([], 1), ([0], 0)])
def test_nothing_to_do_and_nobody_to_do_it(seeds, processes):
    with pytest.raises(ConfigError, match="a seed and a process at least"):
        Worlds("Pendulum-v1", seeds, processes=processes)

"""Environments of several seeds: true rows, time limits that are no terminals, episodes that depend on seeds alone."""

from __future__ import annotations

import numpy as np
import pytest

from synther.envs import vector_env
from synther.envs.vector_env import VectorEnv
from synther.errors import ConfigError, DataError, Failed

from .places import register


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch) -> None:
    """Where the environments of these tests are known, unless a test asks for others."""
    register()
    monkeypatch.setattr(vector_env, "cores", lambda: 1)


def walked(envs: VectorEnv, steps: int, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows (S, N, width) and timeouts (S, N) of actions that depend on the step alone."""
    found = []
    for number in range(first, first + steps):
        action = np.full((len(envs.observations), 1), np.sin(number), np.float32)
        found.append(envs.step(action * envs.high, number))
    rows, timeouts, _ = zip(*found, strict=True)
    return np.stack(rows, 1), np.stack(timeouts, 1)


@pytest.mark.parametrize(
    ("options", "ends", "terminal", "timeout"),
    [({"cuts": 5}, 5, 0, 1), ({"ends": 4}, 4, 1, 0), ({"ends": 5, "cuts": 5}, 5, 1, 0)],
    ids=str,
)
def test_rows_follow_each_other_until_an_episode_ends(options, ends, terminal, timeout):
    with VectorEnv("Point-v0", [0, 1], options={"reach": 2.0, **options}) as envs:
        envs.reset(0)
        rows, timeouts = walked(envs, 12)
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
    with VectorEnv("Point-v0", [0, 1, 7]) as envs, VectorEnv("Point-v0", [7]) as alone:
        envs.reset(0)
        rows, _ = walked(envs, 10)
        alone.reset(3)  # has lived another life before
        walked(alone, 3, first=3)
        alone.reset(0)
        np.testing.assert_array_equal(walked(alone, 5)[0][0], rows[2, :5])
        alone.reset(5)
        np.testing.assert_array_equal(walked(alone, 5, first=5)[0][0], rows[2, 5:])
    starts = rows[:, [0, 5], 0]
    assert len(np.unique(starts)) == 6


def test_the_highest_action_lies_within_bounds_of_more_digits():
    """The float32 next to 0.1 is above it, and the environment asserts that actions are in its box."""
    with VectorEnv("Point-v0", [0], options={"reach": 0.1, "fault": "float64"}) as envs:
        assert float(envs.high[0]) > 0.1
        envs.reset(0)
        envs.step(envs.high[None], 0)


def test_structured_observations_become_columns():
    with VectorEnv("Kinds-v0", [0]) as envs:
        envs.reset(0)
        assert envs.observations.tolist() == [[0, 0, 1, 0, 1, 0, 0]]
    with VectorEnv("Parts-v0", [0]) as envs:
        envs.reset(0)
        again, place = envs.observations[0, :2], envs.observations[0, 2:]
        np.testing.assert_allclose(again, np.repeat(place, 2) + 1)
        assert envs.observation_size == 3
        rows, _ = walked(envs, 2)
        assert rows.shape == (1, 2, 9)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("raises", "RuntimeError: no such motor"),
        ("nan", "nan in observation column 0"),
        ("reward", "reward nan"),
        ("no reward", "TypeError"),
        ("old", "ValueError: not enough values"),
        ("grows", "2 numbers"),
    ],
)
def test_what_goes_wrong_is_told(fault, says):
    with VectorEnv("Point-v0", [4, 5], options={"fault": fault}) as envs:
        envs.reset(0)
        walked(envs, 8)
        with pytest.raises(DataError, match=r"Point-v0 of seed 4 .*step 8") as caught:
            walked(envs, 1, first=8)
        assert says in str(caught.value)


@pytest.mark.parametrize(
    ("env_id", "options", "says"),
    [
        ("Point-v0", {"fault": "several discrete"}, "expected a Box"),
        ("Point-v0", {"fault": "unbounded"}, "expected finite bounds"),
        ("Point-v0", {"fault": "unmade"}, "Point-v0 cannot be made here: ValueError: no such part"),
        ("Point-v0", {"fault": "spaceless"}, "Point-v0 has no observation_space: set it"),
        ("Nowhere-v0", {}, "not an environment of Gymnasium"),
    ],
)
def test_environments_that_will_not_do(env_id, options, says):
    with pytest.raises(DataError, match=says):
        VectorEnv(env_id, [0], options=options)
    for seeds, processes in (([], 1), ([0], 0)):
        with pytest.raises(ConfigError, match="at least one seed"):
            VectorEnv("Pendulum-v1", seeds, processes=processes)


def test_several_processes_do_as_one():
    found = []
    for processes in (1, 2):
        with VectorEnv("Pendulum-v1", [3, 4, 8], processes=processes) as envs:
            envs.reset(7)
            begun = envs.observations
            stepped = [envs.step(np.full((3, 1), 0.3, np.float32), number) for number in range(7, 12)]
            envs.reset(12)
            found.append([begun, *(part for step in stepped for part in step), envs.observations])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_processes_tell_what_goes_wrong_and_what_has_died():
    with VectorEnv("Pendulum-v1", [0, 1], processes=2) as envs:
        envs.reset(0)
        with pytest.raises(DataError, match=r"seed 1 .*reward nan"):
            envs.step(np.array([[0.0], [np.nan]], np.float32), 0)
        envs.reset(0)  # nobody's answer was left behind
        envs._groups[1]._process.kill()
        envs._groups[1]._process.join()
        with pytest.raises(Failed, match="died"):
            envs.reset(1)


@pytest.mark.parametrize(("size", "warned"), [(32, True), (7, False)])
def test_images_are_warned_of_and_small_pictures_of_symbols_are_not(size, warned, caplog):
    with VectorEnv("Pictures-v0", [0], options={"size": size}) as envs:
        envs.reset(0)
        assert envs.observations.shape == (1, 3 * size**2)
    assert ("observes images of 32 x 32 x 3, which become 3,072 columns" in caplog.text) == warned

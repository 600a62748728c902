"""Tasks of the suite as they are seen. What takes graphics is skipped where there are none."""

from __future__ import annotations

from collections.abc import Iterator

import gymnasium
import numpy as np
import pytest

from synther.envs import camera
from synther.envs.camera import graphics
from synther.envs.making import opened
from synther.envs.pixels import PixelEnv, check_drawable
from synther.envs.redrawing import check_redrawable, redraw
from synther.envs.rendering import render_states
from synther.errors import ConfigError, DataError

WALKER = "dm_control/walker-walk-v0"
SIZE = 24


@pytest.fixture(scope="module")
def backend() -> str:
    try:
        return graphics()
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def env(backend: str) -> Iterator[PixelEnv]:
    with PixelEnv(WALKER, size=SIZE, backend=backend) as one:
        yield one


def actions(env: PixelEnv, count: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(env.low, env.high, (count, len(env.low))).astype(np.float32)


def test_it_is_the_environment_that_others_step(env):
    """State, reward and repetition against shimmy's environment, which knows no frames."""
    assert (env.decisions, env.low.tolist(), env.high.tolist()) == (500, [-1] * 6, [1] * 6)
    with opened(WALKER) as other_env:
        raw, _ = other_env.reset(seed=5)
        env.reset(5)
        for action in actions(env, 2):
            np.testing.assert_allclose(env.state, gymnasium.spaces.flatten(other_env.observation_space, raw), rtol=1e-6)
            _, one, *_ = other_env.step(action.astype(np.float64))
            raw, other, *_ = other_env.step(action.astype(np.float64))
            assert env.step(action)[1:] == (pytest.approx(one + other), False, False)


def test_an_observation_is_the_last_three_frames(env):
    other = env.reset(8)
    seen = [env.reset(1)]
    frames = [env.frame]
    for action in actions(env, 3):
        seen.append(env.step(action)[0])
        frames.append(env.frame)
    assert all((one.shape, one.dtype) == ((9, SIZE, SIZE), np.uint8) for one in seen)
    for number, stacked in enumerate(seen):
        expected = [frames[max(0, number - back)] for back in (2, 1, 0)]
        np.testing.assert_array_equal(stacked, np.concatenate(expected))
    assert (frames[3] != frames[2]).mean() > 0.01
    assert (seen[0] != other).any()
    np.testing.assert_array_equal(env.reset(1), seen[0])
    np.testing.assert_array_equal(env.step(actions(env, 1)[0])[0], seen[1])


def test_the_picture_is_the_suites_own(env):
    """Bit for bit as dm_control draws it, with its own choice of a graphics library, in another process."""
    env.reset(2)
    drawn = render_states(WALKER, [env.state], width=SIZE, height=SIZE)[0]
    np.testing.assert_array_equal(env.frame, drawn.transpose(2, 0, 1))
    assert env.frame.std() > 10


def test_an_episode_ends(env, monkeypatch):
    """A thousand steps, repeated four hundred times: the last decision is cut short."""
    monkeypatch.setattr(env, "repeat", 400)
    env.reset(0)
    rewards, terminals, timeouts = zip(*(env.step(np.zeros(6))[1:] for _ in range(3)), strict=True)
    assert 0 < rewards[2] <= 200
    assert (terminals, timeouts) == ((False,) * 3, (False, False, True))
    with pytest.raises(DataError, match="over"):
        env.step(np.zeros(6))


def test_recorded_states_are_drawn_as_they_were_seen(env, backend, monkeypatch):
    """The floor too, though nobody has recorded where the walker was."""
    monkeypatch.setattr(env, "repeat", 1)
    env.reset(3)
    states, frames, taken = [env.state], [env.frame], actions(env, 4)
    for action in taken:
        env.step(action)
        states.append(env.state)
        frames.append(env.frame)
    drawn = redraw(WALKER, np.array(states), taken, SIZE, backend)
    difference = np.abs(drawn.astype(int) - np.array(frames))
    assert (difference > 2).mean() < 0.002
    assert (frames[-1] != frames[0]).mean() > 0.05
    with pytest.raises(DataError, match="24 observation columns"):
        redraw(WALKER, np.zeros((2, 3)), taken[:1], SIZE, backend)
    with pytest.raises(DataError, match="record 1"):
        redraw(WALKER, np.array([states[0], np.full(24, 1e12)]), taken[:1], SIZE, backend)


def test_what_is_no_task_is_refused():
    assert check_drawable("dm_control/ball_in_cup-catch-v0") == ("ball_in_cup", "catch")
    tasks = ("dm_control/walker-fly-v0", "dm_control/dragon-fly-v0")
    for name in ("Hopper-v4", "walker-walk", "dm_control/walker-walk", *tasks):
        with pytest.raises(ConfigError, match="dragon" if "dragon" in name else name):
            check_drawable(name)
    with pytest.raises(ConfigError, match="unbounded actions"):
        PixelEnv("dm_control/lqr-lqr_2_1-v0", backend="chalk")
    with pytest.raises(ConfigError, match="84, 0 and 3"):
        PixelEnv(WALKER, repeat=0)
    with pytest.raises(ConfigError, match="shadow size"):
        PixelEnv(WALKER, backend="chalk", shadow_size=0)
    for name in ("dm_control/swimmer-swimmer6-v0", "dm_control/quadruped-walk-v0", "Hopper-v5", None):
        with pytest.raises(DataError, match="cannot be rendered"):
            check_redrawable(name)
    check_redrawable("dm_control/cheetah-run-v0")


def test_graphics_are_chosen_and_without_any_the_packages_are_named(monkeypatch):
    assert "chalk" in camera.failure_of("chalk")
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(camera, "BACKENDS", ("chalk", "crayon"))
    monkeypatch.setattr(camera, "failure_of", lambda name: f"no {name} here")
    says = r"EGL or OSMesa.*libegl1 libgl1-mesa-dri.*libosmesa6.*chalk: no chalk here; crayon: no crayon here"
    with pytest.raises(ConfigError, match=says):
        graphics()
    with pytest.raises(ConfigError, match=says):
        PixelEnv(WALKER)
    with pytest.raises(ConfigError, match="chalk"):
        PixelEnv(WALKER, backend="chalk")
    monkeypatch.setattr(camera, "failure_of", lambda name: "broken" if name == "chalk" else "")
    assert graphics() == "crayon"
    for chosen in ("chalk", "disabled"):
        monkeypatch.setenv("MUJOCO_GL", chosen)
        with pytest.raises(ConfigError, match=chosen):
            graphics()

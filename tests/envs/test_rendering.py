from __future__ import annotations

import io
import os
from importlib.util import find_spec

import numpy as np
import pytest

from synther.envs import camera, rendering
from synther.envs.rendering import BACKENDS, GREY, png, render_states
from synther.envs.rollout import rollout
from synther.errors import ConfigError, DataError


@pytest.fixture(scope="session")
def graphics() -> None:
    """Skips where MuJoCo itself cannot draw."""
    try:
        camera.graphics()
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 7, 3), (5, 1, 3), (40, 30, 3)])
def test_a_png_reads_back(shape: tuple[int, int, int]) -> None:
    from matplotlib.image import imread

    frame = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    read = imread(io.BytesIO(png(frame)), format="png")
    np.testing.assert_array_equal(np.round(read * 255), frame)
    assert len(png(np.full((480, 480, 3), 200, np.uint8))) < 2_000
    for wrong in (frame[..., 0], frame.astype(float), frame[:0]):
        with pytest.raises(DataError, match="uint8"):
            png(wrong)


@pytest.mark.usefixtures("graphics")
def test_states_are_drawn_and_noise_is_grey() -> None:
    state = rollout("Hopper-v5", 1, seed=0).observation[0]
    before = dict(os.environ)
    other = state.copy()
    other[1:4] += 0.7
    wrong = (np.full_like(state, np.nan), np.full_like(state, 1e12), np.full_like(state, -np.inf))
    frames = render_states("Hopper-v5", [state, other, *wrong, state], width=64, height=48)
    assert [(frame.shape, frame.dtype) for frame in frames] == [((48, 64, 3), np.uint8)] * 6
    assert frames[0].std() > 10
    assert (frames[0] != frames[1]).mean() > 0.02
    for frame in frames[2:5]:
        assert (frame == GREY).all()
    np.testing.assert_array_equal(frames[0], frames[5])
    assert dict(os.environ) == before


@pytest.mark.usefixtures("graphics")
def test_a_target_of_the_suite_is_drawn_where_the_observation_says() -> None:
    straight = [0.0, 0.0]  # the finger points 0.24 to the right
    rows = [[*straight, to_target, 0.0, 0.0, 0.0] for to_target in (-0.34, -0.24, -0.14, np.nan, 1e12)]
    *frames, nothing, far = render_states("dm_control/reacher-easy-v0", rows, width=60, height=60)
    assert (nothing == GREY).all()
    assert (far == GREY).all()
    middles = []
    for frame in frames:
        red, green, blue = frame.astype(int).transpose(2, 0, 1)
        middles.append(np.nonzero((red > green + 30) & (red > blue + 30))[1].mean())
    assert middles[0] < middles[1] - 5
    assert middles[1] < middles[2] - 5


@pytest.mark.skipif(find_spec("pygame") is None, reason="classic control is drawn by pygame, which is not installed")
def test_classic_control_is_drawn_at_the_size_asked() -> None:
    frames = render_states("CartPole-v1", [[0.0, 0.0, 0.0, 0.0], [1.2, 0.0, 0.0, 0.0]], width=48, height=32)
    middles = [np.nonzero(frame.sum(2) < 60)[1].mean() for frame in frames]  # the cart is black
    assert middles[0] == pytest.approx(23.5, abs=1.5)
    assert middles[1] == pytest.approx(23.5 + 12, abs=1.5)  # the picture is 4.8 wide


def test_what_keeps_from_drawing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(rendering, "find_spec", lambda name: None)
        with pytest.raises(ConfigError, match=r"pygame.*synther\[gym\]"):
            render_states("CartPole-v1", np.zeros((1, 4)))
    with monkeypatch.context() as patch:
        patch.setattr(rendering, "BACKENDS", ("chalk",))
        with pytest.raises(ConfigError, match=r"libegl1.*libosmesa6.*chalk: .*MUJOCO_GL"):
            render_states("InvertedPendulum-v5", np.zeros((1, 4)))
    monkeypatch.setattr(rendering, "START_SECONDS", 0.01)
    monkeypatch.setattr(rendering, "FRAME_SECONDS", 0.0)
    with pytest.raises(ConfigError, match=f"{BACKENDS[0]}: it was not done"):
        render_states("InvertedPendulum-v5", np.zeros((1, 4)))


def test_wrong_arguments_are_named() -> None:
    assert render_states("Hopper-v5", np.zeros((0, 11))) == []
    for env_id, shape, width, named in (
        ("Hopper-v5", (2, 3), 160, r"\(rows, 11\), got \(2, 3\)"),
        ("Hopper-v5", (11,), 160, r"\(rows, columns\), got \(11,\)"),
        ("Hopper-v5", (1, 11), 0, "at least 1"),
        ("Pusher-v5", (1, 23), 160, "recorded state"),
    ):
        with pytest.raises(DataError, match=named):
            render_states(env_id, np.zeros(shape), width=width)


def test_a_frame_is_fitted_by_its_nearest_pixels() -> None:
    frame = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    doubled = rendering._fitted(frame, 4, 4)
    np.testing.assert_array_equal(doubled, frame.repeat(2, 0).repeat(2, 1))
    np.testing.assert_array_equal(rendering._fitted(doubled, 2, 2), frame)
    np.testing.assert_array_equal(rendering._fitted(frame, 2, 2), frame)

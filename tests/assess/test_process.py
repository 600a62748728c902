from __future__ import annotations

import base64

import numpy as np
import pytest

from synther.assess.process import MAX_LEVELS, MAX_REAL, MAX_ROWS, plane, project
from synther.errors import DataError

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def the_same_numbers_in_any_order_of_tests() -> None:
    global RNG
    RNG = np.random.default_rng(0)


def rotated(stds: list[float], rows: int = 4_000) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian rows with these stds along the columns of a random rotation, and the rotation."""
    rotation, _ = np.linalg.qr(RNG.normal(size=(len(stds),) * 2))
    return RNG.normal(size=(rows, len(stds))) * stds @ rotation.T + 7.0, rotation


def test_the_plane_is_that_of_the_two_largest_deviations() -> None:
    rows, rotation = rotated([0.5, 5.0, 0.1, 3.0])
    axes, explained = plane(rows)
    assert axes.T @ axes == pytest.approx(np.eye(2), abs=1e-12)
    assert np.abs(np.diag(axes.T @ rotation[:, [1, 3]])) == pytest.approx(1, abs=2e-3)
    assert explained == pytest.approx((25 + 9) / (25 + 9 + 0.25 + 0.01), abs=2e-3)


def test_places_are_distances_from_the_mean_along_the_directions() -> None:
    real = np.array([[-3.0, 0.0, 5.0], [3.0, 0.0, 5.0], [0.0, 1.0, 5.0], [0.0, -1.0, 5.0]])
    paths = np.array([[[10.0, 20.0, 99.0]], [[1.5, -0.5, 5.0]]])
    found = project(real, paths, [80.0, 0.0])
    assert found.sigmas == (80.0, 0.0)
    assert found.real == ((-3.0, 0.0), (3.0, 0.0), (0.0, 1.0), (0.0, -1.0))
    assert found.steps == (((10.0, 20.0),), ((1.5, -0.5),))
    assert found.explained == 1.0
    assert found.frames == ()


def test_what_is_shown_is_limited_and_keeps_both_ends() -> None:
    levels, rows = 3 * MAX_LEVELS + 1, MAX_ROWS + 50
    sigmas = np.linspace(80, 0, levels)
    frames = [f"frame {level}".encode() for level in range(levels)]
    paths = np.ones((levels, rows, 2)) * sigmas[:, None, None]
    found = project(RNG.normal(size=(MAX_REAL + 9, 2)), paths, sigmas, frames=frames)
    assert len(found.sigmas) == len(found.steps) == len(found.frames) == MAX_LEVELS
    assert (found.sigmas[0], found.sigmas[-1]) == (80.0, 0.0)
    assert len(found.real) == MAX_REAL
    assert {len(step) for step in found.steps} == {MAX_ROWS}
    shown = [int(base64.b64decode(frame).split()[1]) for frame in found.frames]
    assert sigmas[shown] == pytest.approx(found.sigmas)


@pytest.mark.parametrize(
    ("real", "paths", "sigmas", "frames", "about"),
    [
        (np.zeros((0, 2)), np.zeros((1, 1, 2)), [1.0], (), "at least one entry"),
        (np.zeros(3), np.zeros((1, 1, 3)), [1.0], (), "matrix"),
        (np.zeros((4, 2)), np.zeros((1, 1, 3)), [1.0], (), r"\(levels, rows, 2\)"),
        (np.zeros((4, 2)), np.zeros((2, 1, 2)), [1.0], (), "each of the 2 steps"),
        (np.zeros((4, 2)), np.zeros((2, 1, 2)), [1.0, 0.0], (b"",), "one frame for each of the 2 steps"),
        (np.full((4, 2), np.nan), np.zeros((1, 1, 2)), [1.0], (), "real rows contain"),
        (np.zeros((4, 2)), np.full((1, 1, 2), np.inf), [1.0], (), "paths contain"),
    ],
)
def test_refusals(real, paths, sigmas, frames, about: str) -> None:
    with pytest.raises(DataError, match=about):
        project(real, paths, sigmas, frames=frames)

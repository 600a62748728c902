"""Sine and cosine of one angle, and other columns of one length, come back with that length."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from synther.data.decoding import Decoder
from synther.data.layout import Layout
from synther.data.preparing import prepare
from synther.data.spheres import Sphere
from synther.data.transitions import Transitions
from synther.errors import SyntherError

from ..support.layouts import through_json

ROWS = 3_000
FOUND = (Sphere((0, 2), 1.0), Sphere((1, 3), 1.0), Sphere((5, 6, 7, 8), 1.0), Sphere((9, 10), 2.0))


def moment(seed: int) -> np.ndarray:
    """Two cosines, two sines, a plain column, a quaternion, a place on a circle of radius 2, a circle with noise."""
    draw = np.random.default_rng(seed)
    first, second, third, fourth = draw.uniform(-np.pi, np.pi, (4, ROWS))
    first[:300] = 0  # where episodes begin
    quaternion = draw.normal(size=(ROWS, 4))
    quaternion /= np.linalg.norm(quaternion, axis=1, keepdims=True)
    noisy = np.stack([np.cos(fourth), np.sin(fourth)], 1) + 0.01 * draw.normal(size=(ROWS, 2))
    angles = np.stack([np.cos(first), np.cos(second), np.sin(first), np.sin(second), first], 1)
    ring = 2 * np.stack([np.cos(third), np.sin(third)], 1)
    return np.concatenate([angles, quaternion, ring, noisy], 1).astype(np.float32)


def rows() -> Transitions:
    draw = np.random.default_rng(9)
    return Transitions(
        moment(1), draw.uniform(-1, 1, (ROWS, 2)), draw.normal(size=ROWS), moment(2), np.zeros(ROWS, bool)
    )


def lengths(observation: np.ndarray) -> list[np.ndarray]:
    return [np.linalg.norm(observation[:, sphere.columns].astype(np.float64), axis=1) for sphere in FOUND]


def test_columns_of_one_length_are_found_wherever_they_are():
    layout = Layout.infer(rows(), spikes=True)
    assert layout.spheres == FOUND
    assert Layout.infer(rows()).spheres == ()
    assert through_json(layout) == layout


def test_generated_rows_have_that_length_and_their_own_direction():
    found = prepare(rows(), "standard", "onehot", True)
    noise = np.random.default_rng(3).normal(size=found.matrix.shape)
    matrix = torch.from_numpy((found.matrix + 0.3 * noise).astype(np.float32))
    plain = Decoder(replace(found.layout, spheres=()), found.scaler)(matrix).rows
    made = Decoder(found.layout, found.scaler)(matrix).rows
    for before, after in zip(
        (plain.observation, plain.next_observation), (made.observation, made.next_observation), strict=True
    ):
        for sphere, was, is_now in zip(FOUND, lengths(before), lengths(after), strict=True):
            assert was.std() > 0.05
            np.testing.assert_allclose(is_now, sphere.radius, rtol=1e-6)
            columns = list(sphere.columns)
            expected = before[:, columns] / was[:, None] * sphere.radius
            np.testing.assert_allclose(after[:, columns], expected, rtol=1e-5, atol=1e-6)
        assert np.array_equal(before[:, [4, 11, 12]], after[:, [4, 11, 12]])
    assert made.reward.tolist() == plain.reward.tolist()


def test_real_rows_come_back():
    layout = Layout.infer(rows(), spikes=True)
    back = layout.unpack(layout.pack(rows()))
    np.testing.assert_allclose(back.observation, rows().observation, atol=2e-7)
    assert np.array_equal(back.observation[:300, [0, 2]], rows().observation[:300, [0, 2]])


def test_a_row_without_a_direction_stays():
    layout = Layout.infer(rows(), spikes=True)
    assert not layout.unpack(np.zeros((2, layout.width))).observation[:, 5:11].any()


@pytest.mark.parametrize("damage", [{"columns": [0, 99]}, {"columns": [1]}, {"radius": 0.0}, {"radius": None}])
def test_a_sphere_that_cannot_be(damage):
    with pytest.raises(SyntherError):
        Sphere.from_json(FOUND[0].to_json() | damage, 13)


@pytest.mark.cuda
def test_a_gpu_projects_as_a_cpu():
    found = prepare(rows(), "standard", "onehot", True)
    matrix = torch.from_numpy(found.matrix) + 0.1
    cpu, gpu = (Decoder(found.layout, found.scaler, device=torch.device(name))(matrix).rows for name in ("cpu", "cuda"))
    np.testing.assert_allclose(gpu.observation, cpu.observation, rtol=1e-6, atol=1e-6)


def episodes(share: float, *, clipped: bool = False) -> Transitions:
    """A quaternion that has another length in a `share` of the observations, where episodes begin. With `clipped`, a
    direction that is shorter in some rows instead, in observations and next observations alike."""
    draw = np.random.default_rng(0)
    before, after = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in draw.normal(size=(2, ROWS, 4)))
    begins = draw.random(ROWS) < share
    before[begins] *= draw.uniform(0.9, 1.1, (begins.sum(), 1))
    if clipped:
        after[draw.random(ROWS) < share] *= 0.5
    return Transitions(before, draw.normal(size=(ROWS, 1)), draw.normal(size=ROWS), after)


def test_episodes_may_begin_with_another_length():
    assert Layout.infer(episodes(0.05), spikes=True).spheres == (Sphere((0, 1, 2, 3), 1.0),)
    assert Layout.infer(episodes(0.3), spikes=True).spheres == ()
    assert Layout.infer(episodes(0.05, clipped=True), spikes=True).spheres == (), "for example, a limited speed"


def clock(steps: int, digits: int | None = None) -> Transitions:
    """Cosine and sine of the time of a day of so many steps, rounded to `digits`, beside a plain number."""
    draw = np.random.default_rng(0)
    moments = draw.integers(0, steps, 8 * ROWS)[:, None] + np.array([0, 1])
    before, after = (np.stack([np.cos(turn), np.sin(turn)], 1) for turn in (2 * np.pi * moments / steps).T)
    if digits is not None:
        before, after = np.round(before, digits), np.round(after, digits)
    number = draw.normal(size=(2, len(before), 1))
    sides = (np.concatenate(side, 1).astype(np.float32) for side in ((before, number[0]), (after, number[1])))
    here, there = sides
    return Transitions(here, draw.uniform(-1, 1, (len(here), 1)), draw.normal(size=len(here)), there)


@pytest.mark.parametrize(("steps", "digits"), [(288, None), (288, 3), (1_440, 2), (96, None)])
def test_only_times_that_occur_are_generated(steps: int, digits: int | None):
    real = clock(steps, digits)
    found = prepare(real, "quantile", "onehot", True, residuals="bent")
    (circle,) = found.layout.spheres
    assert circle.columns == (0, 1)
    assert through_json(found.layout) == found.layout
    noise = np.random.default_rng(3).normal(size=found.matrix.shape)
    made = Decoder(found.layout, found.scaler)(torch.from_numpy((found.matrix + 0.02 * noise).astype(np.float32))).rows
    known = {tuple(pair) for side in (real.observation, real.next_observation) for pair in side[:, :2].tolist()}
    for side in (made.observation, made.next_observation):
        assert {*map(tuple, side[:, :2].tolist())} <= known
    turned = np.arctan2(*made.next_observation[:, 1::-1].T) - np.arctan2(*made.observation[:, 1::-1].T)
    off = np.abs((turned * steps / (2 * np.pi) - 1 + steps / 2) % steps - steps / 2)
    assert np.quantile(off, 0.99) < (0.01 if digits is None else 5)
    back = found.layout.unpack(found.layout.pack(real))
    np.testing.assert_allclose(back.next_observation[:, :2], real.next_observation[:, :2], atol=1e-6)


def test_times_of_few_values_stay_levels():
    assert Layout.infer(clock(24), spikes=True).spheres == ()


def users(count: int = 100) -> Transitions:
    """The features of one of so many users, in three columns that are on no circle, and how often one has clicked."""
    draw = np.random.default_rng(0)
    known = draw.normal(size=(count, 3)).astype(np.float32)
    here = np.c_[known[draw.integers(0, count, 4 * ROWS)], draw.normal(size=4 * ROWS)].astype(np.float32)
    there = np.c_[here[:, :3], here[:, 3] + here[:, 0]].astype(np.float32)
    return Transitions(here, draw.uniform(-1, 1, (len(here), 1)), draw.normal(size=len(here)), there)


def test_only_combinations_that_occur_are_generated():
    real = users()
    found = prepare(real, "quantile", "onehot", True, residuals="bent")
    assert [(one.columns, len(one.points), one.is_round) for one in found.layout.spheres] == [((0, 1, 2), 100, False)]
    assert not found.layout.turns
    assert through_json(found.layout) == found.layout
    noise = np.random.default_rng(3).normal(size=found.matrix.shape)
    made = Decoder(found.layout, found.scaler)(torch.from_numpy((found.matrix + 0.1 * noise).astype(np.float32))).rows
    known = {*map(tuple, real.observation[:, :3].tolist())}
    assert {*map(tuple, made.observation[:, :3].tolist())} == known
    np.testing.assert_array_equal(made.next_observation[:, :3], made.observation[:, :3])
    assert (made.observation[:, :3] == real.observation[:, :3]).all(1).mean() > 0.8
    moved = replace(real, next_observation=np.roll(real.next_observation, 1, axis=0))
    assert Layout.infer(moved, spikes=True).spheres == (), "they may stay in other rows"
    order = np.argsort(real.observation[:, 0], kind="stable")
    assert Layout.infer(real[order], spikes=True).spheres == (), "a goal of one episode does not return"
    many = replace(real, observation=real.observation[:, [0, 3, 1, 3]], next_observation=real.next_observation[:, :4])
    assert Layout.infer(many, spikes=True).spheres == ()


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_combinations_of_any_size_come_back(scale: float):
    small = users()
    here, there = (
        np.c_[scale * side[:, :3].astype(np.float64), side[:, 3:]]
        for side in (small.observation, small.next_observation)
    )
    real = replace(small, observation=here, next_observation=there)
    layout = Layout.infer(real, spikes=True)
    assert len(layout.spheres) == 1
    np.testing.assert_array_equal(layout.unpack(layout.pack(real)).observation, real.observation)


def test_points_that_cannot_be():
    circle = Sphere((0, 1), 1.0, ((0.0, -1.0), (1.0, 0.0), (0.0, 1.0)))
    assert Sphere.from_json(circle.to_json(), 2) == circle
    for damage in ({"points": [[0.0, 1.0], [1.0]]}, {"columns": [0, 1, 2]}):
        with pytest.raises(SyntherError):
            Sphere.from_json(circle.to_json() | damage, 3)

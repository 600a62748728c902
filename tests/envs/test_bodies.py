"""D4RL's bodies, whose capsules weigh as in MuJoCo before 2.1."""

from __future__ import annotations

import numpy as np
import pytest

from synther.envs.making import opened
from synther.envs.scores import reference
from synther.errors import ConfigError

OLD = {"capsules": "old"}


def test_a_capsule_weighs_as_a_cylinder_of_height_2h_plus_r():
    with opened("Hopper-v4", **OLD) as env:
        model = env.unwrapped.model
        radius, half = model.geom_size[1:, 0], model.geom_size[1:, 1]  # the floor is the first geom
        height = 2 * half + radius
        mass = 1000 * np.pi * radius**2 * height
        np.testing.assert_allclose(model.body_mass[1:], mass)
        np.testing.assert_allclose(model.body_mass[1:], [3.53429174, 3.92699082, 2.71433605, 5.0893801])  # D4RL's
        across, along = mass * (3 * radius**2 + height**2) / 12, mass * radius**2 / 2
        np.testing.assert_allclose(model.body_inertia[1:].min(1), along)
        np.testing.assert_allclose(np.sort(model.body_inertia[1:], 1)[:, 1:], np.column_stack([across, across]))


def test_a_body_of_several_geoms_and_a_set_total_mass():
    with opened("HalfCheetah-v4") as env:
        before = {name: getattr(env.unwrapped.model, name).copy() for name in ("body_mass", "body_ipos")}
    with opened("HalfCheetah-v4", **OLD) as env:
        model = env.unwrapped.model
        assert model.body_mass.sum() == pytest.approx(14)  # which its XML sets
        np.testing.assert_allclose(model.body_mass[1:4], [6.36031332, 1.53524804, 1.58093995], rtol=1e-6)  # D4RL's
        torso, head = model.geom_pos[1], model.geom_pos[2]
        volume = [r**2 * (2 * h + r) for r, h in model.geom_size[1:3, :2]]
        np.testing.assert_allclose(model.body_ipos[1], np.average([torso, head], axis=0, weights=volume), atol=1e-12)
        assert not np.allclose(model.body_ipos[1], before["body_ipos"][1])
        assert before["body_mass"].sum() == pytest.approx(14)


def test_scores_are_published_for_these_bodies_and_others_are_refused():
    assert reference("Hopper-v4", OLD) == reference("Hopper-v4")
    assert reference("Hopper-v4", {**OLD, "healthy_reward": 3.0}) is None
    with pytest.raises(ConfigError, match="capsules"), opened("Hopper-v4", capsules="new"):
        pass
    with pytest.raises(ConfigError, match="capsules"), opened("Pendulum-v1", **OLD):
        pass
    with pytest.raises(ConfigError, match="capsules"), opened("InvertedDoublePendulum-v4", capsules=3):
        pass

"""The heads of pixel agents. `test_updates.py` has their losses, `test_contract.py` what holds for every algorithm."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from synther.agents.agent import Agent
from synther.agents.drq_bc import DrQBCConfig, disturbed, stddev
from synther.agents.drq_v2 import DrQv2Config
from synther.agents.noisy_bc import NoisyBCConfig
from synther.agents.rows import Arm, Member
from synther.errors import ConfigError, DataError

from .plain import networks
from .tables import HEAD_CONFIGS as CONFIGS
from .tables import rows, table

TABLES = (table(40, observations=4), table(25, 1, observations=4))
MEMBERS = [Member(3), Member(4, Arm((0, 1), (0.5, 0.5)))]


def test_noise_falls_and_is_held_and_gradients_are_not():
    for updates, expected in ((0, 1.0), (62_500, 0.55), (125_000, 0.1), (1_000_000, 0.1)):
        assert stddev(DrQBCConfig(), torch.tensor(float(updates))).item() == pytest.approx(expected)
    action = torch.tensor([0.0, 0.0, 0.9, -0.9], requires_grad=True)
    moved = disturbed(action, torch.tensor([0.5, 9.0, 9.0, -9.0]), torch.tensor(0.2), clip=0.3)
    torch.testing.assert_close(moved, torch.tensor([0.1, 0.3, 1.0, -1.0]))
    assert torch.equal(torch.autograd.grad(moved.sum(), action)[0], torch.ones(4))


def test_an_actor_sees_its_own_features():
    agent = Agent(CONFIGS["both"], rows(*TABLES), MEMBERS)
    agent.train(22)
    seen = TABLES[0].observation[:, :2]
    expected = networks(agent.algorithm.actor, 1)(torch.from_numpy(seen).float()).tanh().detach()
    np.testing.assert_allclose(agent.act(seen)[1], expected, atol=1e-5)
    with pytest.raises(DataError, match="observations of shape"):
        agent.act(TABLES[0].observation)


def test_reference_settings():
    config = DrQBCConfig()
    assert (config.width, config.depth, config.batch_size, config.learning_rate) == (1024, 2, 256, 3e-4)
    assert (config.discount, config.nstep, config.tau, config.alpha, config.noise_clip) == (0.99, 3, 0.01, 2.5, 0.3)
    assert not config.normalize
    assert math.isclose(config.row_discount, 0.99**3)
    assert NoisyBCConfig().nstep == 1
    assert DrQv2Config() == DrQv2Config(1024, 2, 256, 1e-4, 0.99, 3, 1.0, 0.1, 250_000, 0.3, 0.01)
    assert DrQv2Config().alpha == 0


def test_refusals():
    with pytest.raises(DataError, match=r"agent\.features"):
        Agent(CONFIGS["both"], rows(), MEMBERS[:1])
    for options in ({"features": "none"}, {"nstep": 0}, {"discount": 0.0}, {"tau": 2.0}, {"noise_clip": -1.0}):
        (name,) = options
        with pytest.raises(ConfigError, match=rf"agent\.{name} must"):
            DrQBCConfig(**options)

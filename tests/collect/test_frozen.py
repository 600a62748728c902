"""A policy frozen into arrays acts as the agent does."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from synther.agents.agent import Agent
from synther.agents.bc import BCConfig
from synther.agents.cql import CQLConfig
from synther.agents.edac import EDACConfig
from synther.agents.iql import IQLConfig
from synther.agents.rows import Arm, Member, Rows
from synther.agents.td3_bc import TD3BCConfig
from synther.collect.rows import frozen

from ..experiments.pendulum import swings

SMALL = {"width": 8, "batch_size": 6, "learning_rate": 1e-2}
CONFIGS = {
    "bc": BCConfig(**SMALL, depth=1),
    "td3_bc": TD3BCConfig(**SMALL, depth=3),
    "iql": IQLConfig(**SMALL),
    "edac": EDACConfig(**SMALL, num_critics=2),
    "cql": CQLConfig(**SMALL, actions=2),
}


@pytest.fixture(params=CONFIGS)
def agent(request) -> Agent:
    """Two members that scale by different rows."""
    rows = Rows([swings(), swings(seed=1, shift=3.0)], device=torch.device("cpu"), low=[-3.0], high=[2.5])
    agent = Agent(CONFIGS[request.param], rows, [Member(0), Member(1, Arm((1,), (1.0,), real=1))])
    agent.train(25)
    return agent


def test_it_acts_as_the_agent_does(agent):
    seen = np.random.default_rng(2).normal(0, 3, (50, 3)).astype(np.float32)
    expected = agent.act(seen)
    policies = frozen(agent.policy())
    assert len(policies) == 2
    assert not np.allclose(expected[0], expected[1])
    for policy, actions in zip(policies, expected, strict=True):
        np.testing.assert_allclose(policy.act(seen), actions, rtol=0, atol=1e-5)
        np.testing.assert_allclose(policy.act(seen[0]), actions[0], rtol=0, atol=1e-5)
        assert policy.act(1e6 * seen).min() >= -3
        assert policy.act(1e6 * seen).max() <= 2.5


def test_training_goes_on_without_it(agent):
    seen = np.random.default_rng(2).normal(size=(5, 3)).astype(np.float32)
    policies = frozen(agent.policy())
    before = [policy.act(seen) for policy in policies]
    agent.train(25)
    assert not np.allclose(agent.act(seen), before)
    for policy, actions in zip(policies, before, strict=True):
        assert np.array_equal(policy.act(seen), actions)
        assert np.array_equal(pickle.loads(pickle.dumps(policy)).act(seen), actions)

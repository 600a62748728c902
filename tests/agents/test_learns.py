"""A point in the plane that is to be brought to the origin: each agent learns to from random experience, in seconds.

x' = x + a / 2, r = -|x'|^2. Going straight there, a = clip(-2 x), is optimal; doing nothing is what the data's
actions, uniform and of mean 0, come to on average, and so what an imitator learns.
"""

from __future__ import annotations

import numpy as np
import pytest

from synther.agents.agent import Agent
from synther.agents.bc import BCConfig
from synther.agents.cql import CQLConfig
from synther.agents.edac import EDACConfig
from synther.agents.iql import IQLConfig
from synther.agents.rebrac import ReBRACConfig
from synther.agents.rows import Arm, Member
from synther.agents.td3_bc import TD3BCConfig

from .tables import Table, rows

STEPS = 6
SMALL = {"width": 32, "depth": 2, "batch_size": 64, "learning_rate": 3e-3}
QUICK = {**SMALL, "discount": 0.5, "tau": 0.02}
FAST = {**QUICK, "learning_rate": 2e-2}
LEARNERS = {
    "td3_bc": (TD3BCConfig(**{**QUICK, "learning_rate": 1e-2}, alpha=10.0), 80),
    "rebrac": (ReBRACConfig(**{**QUICK, "learning_rate": 1e-2, "critic_penalty": 0.1}), 80),
    "iql": (IQLConfig(**QUICK, beta=10.0, decay_updates=140), 140),
    "edac": (EDACConfig(**FAST, num_critics=4, eta=0.1), 120),
    "cql": (CQLConfig(**FAST, actions=3, weight=0.5, policy_rate=2e-2), 100),
}


def experience(count: int, seed: int, noise: float = 0.0) -> Table:
    """Random states and actions; with `noise` in what follows, as in generated rows."""
    draw = np.random.default_rng(seed)
    here, action = draw.uniform(-1, 1, (2, count, 2))
    there = here + action / 2 + noise * draw.normal(size=(count, 2))
    return Table(here, action, -(there**2).sum(1), there, np.zeros(count, bool))


REAL, SYNTHETIC = experience(2_000, 0), experience(3_000, 1, noise=0.05)
ARMS = {"real": Arm((0,)), "synthetic": Arm((1,)), "mixed": Arm((0, 1), (0.5, 0.5))}
MEMBERS = [Member(0, arm) for arm in ARMS.values()]
STARTS = experience(200, 2).observation


def returns(act) -> np.ndarray:
    """Mean over the starts of the sum of rewards, for each member."""
    x, total = np.stack([STARTS] * len(MEMBERS)), 0.0
    for _ in range(STEPS):
        x = x + act(x) / 2
        total = total - (x**2).sum(-1).mean(1)
    return total


BEST = returns(lambda x: np.clip(-2 * x, -1, 1))
NOTHING = returns(np.zeros_like)


@pytest.mark.parametrize(("config", "updates"), LEARNERS.values(), ids=LEARNERS)
def test_learns_from_real_synthetic_and_mixed_rows(config, updates):
    agent = Agent(config, rows(REAL, SYNTHETIC, next_actions=True), MEMBERS)
    agent.train(updates)
    regret = (BEST - returns(agent.act)) / (BEST - NOTHING)
    assert (regret < 0.15).all(), dict(zip(ARMS, regret, strict=True))


def test_an_imitator_does_what_the_data_does():
    config = BCConfig(**{**SMALL, "learning_rate": 1e-2})
    agent = Agent(config, rows(REAL, SYNTHETIC), MEMBERS)
    agent.train(100)
    assert np.abs(agent.act(STARTS)).mean() < 0.2
    told = [data._replace(action=np.clip(-2 * data.observation, -1, 1)) for data in (REAL, SYNTHETIC)]
    agent = Agent(config, rows(*told), MEMBERS)
    agent.train(100)
    error = ((agent.act(STARTS) - np.clip(-2 * STARTS, -1, 1)) ** 2).mean((1, 2))
    assert (error < 0.01).all()

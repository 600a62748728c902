"""What only a GPU can show: captured rounds and steps do the work of plain ones, also as rows come in."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from synther import compute
from synther.agents.agent import Agent
from synther.agents.learner import Learner
from synther.agents.rows import Rows
from synther.agents.sac import SACConfig

from ..support.states import assert_close, assert_member
from . import test_learner
from .steps import WIDE, experience
from .tables import CONFIGS
from .test_contract import MEMBERS, TABLES

pytestmark = pytest.mark.cuda

CUDA = torch.device("cuda")
LEARNERS = {
    "sac": test_learner.FORMS["sac"],
    "redq": test_learner.FORMS["redq"],
    "wide": SACConfig(width=256, batch_size=256, num_critics=10, utd=2),
    "layer norm": SACConfig(width=256, batch_size=256, num_critics=10, utd=2, critic_network="layer_norm"),
}
every_agent = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
every_learner = pytest.mark.parametrize("config", LEARNERS.values(), ids=LEARNERS)


def fresh(config, members=MEMBERS, updates: int = 0) -> Agent:
    agent = Agent(config, Rows(TABLES, device=CUDA, next_actions=True), members, precision="float32")
    agent.train(updates)
    return agent


@every_agent
def test_a_captured_round_is_its_updates_one_by_one(config):
    captured, single = fresh(config, updates=63), fresh(config)
    for _ in range(63):
        single.train(1)
    assert_close(captured, single)


@every_agent
def test_members_together_equal_each_alone(config):
    together = fresh(config, updates=42)
    for index, member in enumerate(MEMBERS):
        assert_member(together, index, fresh(config, [member], updates=42))


@every_agent
def test_resumed_equals_uninterrupted(config, tmp_path):
    whole, first = fresh(config, updates=84), fresh(config, updates=42)
    first.save(tmp_path / "agent.safetensors")
    second = fresh(config, updates=21)  # captured before the state is loaded
    second.load(tmp_path / "agent.safetensors")
    second.train(42)
    assert_close(whole, second)
    seen = TABLES[1].observation
    np.testing.assert_allclose(whole.policy().act(seen), whole.act(seen), atol=1e-5)


def learner(config, seeds=(3, 4, 8), device=CUDA) -> Learner:
    return test_learner.learner(config, seeds, capacity=10, device=device, precision="float32")


def lived(config, seeds=(3, 4, 8), steps: int = 14) -> Learner:
    """From an almost empty buffer past its first wrap, with synthetic rows from the sixth step on."""
    return test_learner.lived(config, seeds, steps, learner(config, seeds))


@every_learner
def test_a_captured_step_is_a_plain_one_while_rows_come_in(config, monkeypatch):
    captured = lived(config)
    monkeypatch.setattr(compute, "capture", lambda update, device, state: update)
    assert_close(captured, lived(config))


@every_learner
def test_learners_together_equal_each_alone(config):
    together, seen = lived(config), experience(3, 7)[:, :WIDE]
    for index, seed in enumerate(together.seeds):
        alone = lived(config, (seed,))
        assert_member(together, index, alone)
        both = together.act(seen)[index], alone.act(seen[index : index + 1])[0]
        np.testing.assert_allclose(*both, rtol=1e-3, atol=1e-3)


@every_learner
def test_a_resumed_learner_equals_an_uninterrupted_one(config, tmp_path):
    lived(config, steps=5).save(tmp_path / "agent.safetensors")
    second = learner(config)
    second.add(np.stack([np.concatenate([experience(1, 1_000 * seed + t) for t in range(5)]) for seed in (3, 4, 8)]))
    second.train()  # captured before the state is loaded
    second.load(tmp_path / "agent.safetensors")
    assert_close(lived(config), test_learner.lived(config, steps=9, own=second))


@every_learner
def test_acts_as_it_would_on_a_cpu(config):
    """The same noise everywhere: only what is learned from is drawn on the device."""
    there, here = learner(config), learner(config, device=torch.device("cpu"))
    for step in range(3):
        seen = experience(3, step)[:, :WIDE]
        for stochastic in (True, False):
            both = (agent.act(seen, stochastic=stochastic) for agent in (there, here))
            np.testing.assert_allclose(*both, atol=1e-4)
        np.testing.assert_array_equal(there.random_action(), here.random_action())
        for agent in (there, here):
            agent.add(experience(1, step, 3))
    np.testing.assert_allclose(there.policy().act(seen[:, None])[:, 0], there.act(seen, stochastic=False), atol=1e-4)


@every_learner
def test_the_policy_that_acts_is_the_one_that_learns(config):
    """The captured forward pass reads the weights where they are trained."""
    agent = learner(config)
    seen = experience(3, 7)[:, :WIDE]
    before = agent.act(seen, stochastic=False)
    test_learner.lived(config, steps=8, own=agent)
    after = agent.act(seen, stochastic=False)
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(agent.policy().act(seen[:, None])[:, 0], after, atol=1e-4)

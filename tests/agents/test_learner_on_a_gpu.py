"""What only a GPU can show of a learner: captured steps do the work of plain ones, and stay valid as rows come in."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from synther import compute
from synther.agents.learner import Learner
from synther.agents.sac import SACConfig

from ..support.states import assert_close, assert_member
from .steps import HIGH, LOW, WIDE, experience

pytestmark = pytest.mark.cuda

SMALL = {"width": 8, "batch_size": 6, "learning_rate": 1e-2}
FORMS = {
    "sac": SACConfig(**SMALL),
    "redq": SACConfig(**SMALL, num_critics=4, utd=3),
    "wide": SACConfig(width=256, batch_size=256, num_critics=10, utd=2),
}
SEEDS = (3, 4, 8)
every = pytest.mark.parametrize("config", FORMS.values(), ids=FORMS)


def learner(config, seeds=SEEDS, device: str = "cuda") -> Learner:
    return Learner(
        config, seeds, WIDE, LOW, HIGH, capacity=10, samples=20, device=torch.device(device), precision="float32"
    )


def lived(agent: Learner, steps: int = 14) -> Learner:
    """From an almost empty buffer past its first wrap, with synthetic rows from the sixth step on."""
    for step in range(agent.rows.added, agent.rows.added + steps):
        if step == 6:
            for member, seed in enumerate(agent.seeds):
                if seed != 4:
                    agent.generate(member, experience(20, 100 + seed))
        agent.add(np.concatenate([experience(1, 1_000 * seed + step, 1) for seed in agent.seeds]))
        agent.train()
    return agent


@every
def test_a_captured_step_is_a_plain_one_while_rows_come_in(config, monkeypatch):
    captured = lived(learner(config))
    monkeypatch.setattr(compute, "capture", lambda update, device, state: update)
    assert_close(captured, lived(learner(config)))


@every
def test_members_together_equal_each_alone(config):
    together = lived(learner(config))
    seen = experience(3, 7)[:, :WIDE]
    for index, seed in enumerate(SEEDS):
        alone = lived(learner(config, (seed,)))
        assert_member(together, index, alone)
        both = together.act(seen)[index], alone.act(seen[index : index + 1])[0]
        np.testing.assert_allclose(*both, rtol=1e-3, atol=1e-3)


@every
def test_resumed_equals_uninterrupted(config, tmp_path):
    whole, first, second = lived(learner(config), 14), lived(learner(config), 5), learner(config)
    first.save(tmp_path / "agent.safetensors")
    second.add(np.stack([np.concatenate([experience(1, 1_000 * seed + t) for t in range(5)]) for seed in SEEDS]))
    second.train()  # captured before the state is loaded
    second.load(tmp_path / "agent.safetensors")
    assert_close(whole, lived(second, 9))


@every
def test_acts_as_it_would_on_a_cpu(config):
    """The same noise everywhere: only what is learned from is drawn on the device."""
    there, here = learner(config), learner(config, device="cpu")
    for step in range(3):
        seen = experience(3, step)[:, :WIDE]
        for stochastic in (True, False):
            np.testing.assert_allclose(
                there.act(seen, stochastic=stochastic), here.act(seen, stochastic=stochastic), atol=1e-4
            )
        np.testing.assert_array_equal(there.random_action(), here.random_action())
        for agent in (there, here):
            agent.add(experience(1, step, 3))
    np.testing.assert_allclose(there.policy().act(seen[:, None])[:, 0], there.act(seen, stochastic=False), atol=1e-4)


@every
def test_the_policy_that_acts_is_the_one_that_learns(config):
    """The captured forward pass reads the weights where they are trained."""
    agent = learner(config)
    seen = experience(3, 7)[:, :WIDE]
    before = agent.act(seen, stochastic=False)
    lived(agent, 8)
    after = agent.act(seen, stochastic=False)
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(agent.policy().act(seen[:, None])[:, 0], after, atol=1e-4)

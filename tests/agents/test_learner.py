"""Rounds of updates on rows that grow."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from synther.agents import policy
from synther.agents.agent import Agent
from synther.agents.learner import Learner
from synther.agents.rows import Member
from synther.agents.sac import SACConfig
from synther.errors import ConfigError, DataError, FormatError

from ..support.states import assert_member, assert_sound
from .steps import HIGH, LOW, WIDE, A, experience
from .tables import CONFIGS, CPU, table
from .tables import rows as some_rows

SMALL = {"width": 8, "batch_size": 6, "learning_rate": 1e-2}
FORMS = {
    "sac": SACConfig(**SMALL),
    "sac, five updates": SACConfig(**SMALL, utd=5),
    "redq": SACConfig(**SMALL, num_critics=4, utd=3),
}


def learner(config=FORMS["sac"], seeds=(3, 4, 8), **options) -> Learner:
    options = {"capacity": 40, "samples": 20, "device": CPU, **options}
    return Learner(config, seeds, WIDE, LOW, HIGH, **options)


def lived(config, seeds=(3, 4, 8), steps: int = 12, own: Learner | None = None) -> Learner:
    """Some steps, the last of them with synthetic rows for all but the second of (3, 4, 8)."""
    agent = own or learner(config, seeds)
    for step in range(agent.steps, agent.steps + steps):
        if step == 6:
            for member, seed in enumerate(seeds):
                if seed != 4:
                    agent.generate(member, experience(20, 100 + seed))
        agent.add(np.concatenate([experience(1, 1_000 * seed + step, 1) for seed in seeds]))
        agent.train()
    return agent


def test_members_together_equal_each_alone():
    config = FORMS["redq"]
    together = lived(config)
    seen = experience(3, 7)[:, :WIDE]
    for index, seed in enumerate(together.seeds):
        alone = lived(config, (seed,))
        assert_member(together, index, alone)
        both = together.act(seen)[index], alone.act(seen[index : index + 1])[0]
        np.testing.assert_allclose(*both, rtol=1e-3, atol=1e-3)
        np.testing.assert_array_equal(together.random_action()[index], alone.random_action()[0])


def test_a_round_has_utd_updates_of_the_critics_and_one_of_the_policy():
    agent = lived(FORMS["sac, five updates"], steps=4)
    counts = {
        name: getattr(agent.algorithm, f"{name}_adam").count.item() for name in ("critics", "actor", "temperature")
    }
    assert counts == {"critics": 20, "actor": 4, "temperature": 4}
    assert (agent.rounds, agent.updates) == (4, 20)
    assert set(agent.losses()) == {"critic", "actor", "temperature", "entropy"}
    assert_sound(agent, 3)


def test_td_errors_are_how_far_critics_are_from_their_targets():
    agent = lived(FORMS["redq"])
    rows = [experience(count, count) for count in (5, 9, 7)]
    policy, algorithm = agent.policy(), agent.algorithm
    for member, (own, found) in enumerate(zip(rows, agent.td_errors(rows), strict=True)):
        assert found.shape == (len(own),)
        state, action, then = own[:, :WIDE], own[:, WIDE : WIDE + A], own[:, -WIDE:]
        reward, terminal = own[:, WIDE + A], own[:, WIDE + A + 1]

        def lowest(networks, state, action, member=member):
            pair = np.hstack([state, 2 * (action - LOW) / (np.array(HIGH) - LOW) - 1]).astype(np.float32)
            whole = torch.from_numpy(np.broadcast_to(pair, (3, *pair.shape)).copy())
            return networks(whole)[member, :, :, 0].amin(0).detach().numpy()

        expected = reward + 0.99 * (1 - terminal) * lowest(algorithm.target_critics, then, policy.act(then)[member])
        np.testing.assert_allclose(
            found, np.abs(expected - lowest(algorithm.critics, state, action)), rtol=1e-4, atol=1e-5
        )


def test_every_step_learns_with_random_numbers_of_its_own():
    agent = learner(FORMS["redq"], capacity=400)
    agent.add(experience(400, 0, 3))
    updates, seen = agent.algorithm.updates, []

    def watched(batches, noise, step):
        seen.append([part.flatten().clone() for part in (batches.reward, noise.normal, noise.uniform)])
        return updates(batches, noise, step)

    agent.algorithm.updates = watched
    for _ in range(6):
        agent.train()
    for drawn in zip(*seen, strict=True):
        alike = torch.corrcoef(torch.stack(drawn)).fill_diagonal_(0).abs().max()
        assert alike < 5 / drawn[0].numel() ** 0.5


def test_actions_stay_in_their_bounds_and_have_the_policys_distribution():
    agent, count = learner(seeds=(1,)), 400
    seen = np.ones((1, WIDE), np.float32)
    drawn, step = [], experience(1, 0, 1)
    for _ in range(count):
        drawn.append(agent.act(seen)[0])
        agent.add(step)
    assert (drawn >= LOW).all()
    assert (drawn <= HIGH).all()
    inner = np.arctanh(np.clip((drawn - LOW) / (HIGH - LOW) * 2 - 1, -1 + 1e-6, 1 - 1e-6))
    mean, log_std = agent.algorithm.actor(torch.ones(1, 1, WIDE)).detach().numpy()[0, 0].reshape(2, A)
    standard = (inner - mean) / np.exp(log_std)
    assert np.abs(standard.mean(0)).max() < 5 / count**0.5
    assert np.abs(standard.std(0) - 1).max() < 5 / (2 * count) ** 0.5
    still = agent.act(seen, stochastic=False)[0]
    np.testing.assert_allclose(still, LOW + (HIGH - LOW) * (np.tanh(mean) + 1) / 2, rtol=1e-5)
    np.testing.assert_allclose(agent.policy().act(seen)[0, 0], still, rtol=1e-5)


def test_guesses_are_uniform_and_every_members_own():
    agent, count = learner(seeds=(1, 2)), 1_500  # more than are drawn together
    drawn, step = [], experience(1, 0, 2)
    for _ in range(count):
        drawn.append(agent.random_action())
        agent.add(step)
    share = (np.array(drawn) - LOW) / (HIGH - LOW)
    assert share.min() >= 0
    assert share.max() <= 1
    assert np.abs(share.mean(0) - 0.5).max() < 5 / np.sqrt(12 * count)
    assert np.abs(share.std(0) - 12**-0.5).max() < 0.02
    for one, other in ((share[:, 0], share[:, 1]), (share[:500], share[1_000:])):
        assert np.abs(np.corrcoef(one.reshape(len(one), -1)[:, 0], other.reshape(len(one), -1)[:, 0])[0, 1]) < 0.2


def test_a_file_with_tensors_of_other_shapes_is_refused(tmp_path):
    file = tmp_path / "agent.safetensors"
    learner().save(file)
    described, tensors = policy.read(file)
    for actor in (torch.ones(1, 1), torch.ones(3, 5)):  # the first could be broadcast to any shape
        policy.write(file, described, tensors | {"actor": actor})
        with pytest.raises(ConfigError, match=r"agent\.safetensors .*other options"):
            learner().load(file)


def test_refusals(tmp_path):
    file = tmp_path / "agent.safetensors"
    lived(FORMS["sac"], steps=2).save(file)
    wider = Learner(FORMS["sac"], (3, 4, 8), WIDE + 1, LOW, HIGH, capacity=4, device=CPU)
    for other, named in ((learner(FORMS["redq"]), "config"), (learner(seeds=(3, 4)), "seeds"), (wider, "environment")):
        with pytest.raises(ConfigError, match=f"another {named}"):
            other.load(file)
    with pytest.raises(FormatError, match="no such file"):
        learner().load(tmp_path / "none")
    Agent(CONFIGS["td3_bc"], some_rows(table()), [Member(3)]).save(file)
    with pytest.raises(ConfigError, match="another algorithm, config, seeds"):
        learner().load(file)
    for options in ({"seeds": ()}, {"precision": "bf16"}, {"ratio": 1.5}, {"capacity": 0}):
        (name,) = options
        with pytest.raises(ConfigError, match=name.removesuffix("s")):
            learner(**options)
    with pytest.raises(DataError, match="no rows"):
        learner().train()
    with pytest.raises(DataError, match="observations of shape"):
        learner().act(np.zeros((2, WIDE)))

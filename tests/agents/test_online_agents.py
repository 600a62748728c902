"""Every online agent: it learns, resumes, and updates its policy when it should."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from synther.agents.algorithm import Shape
from synther.agents.dqn import DQN, DQNConfig
from synther.agents.learner import ONLINE_AGENTS, Learner, OnlineAgent, RunningNorm
from synther.agents.policy import load_policy
from synther.agents.replay_buffer import BatchSampler, SeedReplayBuffer
from synther.agents.td3 import TD3, TD3Config
from synther.agents.td3_bc import TD3BC
from synther.errors import ConfigError, DataError

from .steps import HIGH, LOW, WIDE, A, experience
from .tables import CPU

SMALL = {"width": 8, "critic_width": 8, "batch_size": 16}
every = pytest.mark.parametrize("name", ONLINE_AGENTS.names())


def learner(name: str, seeds: tuple[int, ...] = (0, 1), **change: object) -> Learner:
    config = ONLINE_AGENTS.get(name).config
    config = replace(config, **{**SMALL, "utd": min(config.utd, 2), **change})
    if name == "dqn":
        return Learner(config, seeds, WIDE, [2.0], [5.0], capacity=200, device=CPU, choices=4)
    return Learner(config, seeds, WIDE, LOW, HIGH, capacity=200, device=CPU)


def rows_for(name: str, count: int, seed: int) -> np.ndarray:
    """Experience of two members; with a discrete action, the integers from 2 to 5."""
    rows = experience(count, seed, 2)
    if name != "dqn":
        return rows
    action = np.random.default_rng(seed).integers(2, 6, (2, count, 1)).astype(np.float32)
    return np.concatenate([rows[..., :WIDE], action, rows[..., WIDE + A :]], -1)


@every
def test_it_acts_learns_and_resumes(name, tmp_path):
    whole, first = learner(name), learner(name)
    rows = rows_for(name, 40, 0)
    for agent in (whole, first):
        agent.add(rows[:, :30])
        for _ in range(3):
            agent.train()
    first.save(tmp_path / "agent.safetensors")
    resumed = learner(name)
    assert resumed.load(tmp_path / "agent.safetensors") == 30
    resumed.add(rows[:, :30])
    for agent in (whole, resumed):
        agent.add(rows[:, 30:])
        for _ in range(3):
            agent.train()
    for key, tensor in whole.state().items():
        assert torch.equal(tensor, resumed.state()[key]), key
        assert tensor.isfinite().all()
    seen = experience(2, 1, 2)[:, 0, :WIDE]
    np.testing.assert_array_equal(whole.act(seen), resumed.act(seen))
    assert (whole.act(seen) >= whole.rows.low).all()
    assert (whole.act(seen) <= whole.rows.high).all()
    resumed.save(tmp_path / "agent.safetensors")
    kept = load_policy(tmp_path / "agent.safetensors")
    np.testing.assert_allclose(kept.act(seen[:, None])[:, 0], whole.act(seen, stochastic=False), atol=1e-5)


@every
def test_a_member_learns_alone_as_together(name):
    together, alone = learner(name), learner(name, seeds=(1,))
    rows = rows_for(name, 30, 0)
    together.add(rows)
    alone.add(rows[1:])
    for _ in range(2):
        together.train()
        alone.train()
    for key, tensor in alone.state().items():
        own = together.state()[key]
        if own.dim() and len(own) == 2:
            torch.testing.assert_close(tensor[0], own[1], rtol=1e-3, atol=1e-5, msg=key)


@pytest.mark.parametrize(
    ("name", "utd", "delay", "moved"),
    [("td3", 1, 2, [False, True]), ("td3", 3, 2, [True, True]), ("crossq", 1, 3, [False, False, True]),
     ("sac", 1, 2, [False, True]), ("sac", 4, 2, [True, True]), ("redq", 2, None, [True, True])],
)  # fmt: skip
def test_the_policy_is_updated_with_its_delay(name, utd, delay, moved):
    agent = learner(name, utd=utd, policy_delay=delay)
    agent.add(experience(40, 0, 2))
    for expected in (*moved, *moved):
        before, critics = (agent.state()[key].clone() for key in ("actor", "critics"))
        agent.train()
        assert bool((agent.state()["actor"] != before).any()) == expected
        assert (agent.state()["critics"] != critics).any()


@torch.no_grad()
def test_noise_explores_around_the_policy(generator):
    config = TD3Config(width=8, exploration_noise=0.3)
    algorithm = TD3(config, Shape(WIDE, A, (0,), CPU))
    seen = torch.randn(1, 4000, WIDE, generator=generator)
    own = algorithm.explore(seen, torch.zeros(1, 4000, A))
    torch.testing.assert_close(own, algorithm.actor(seen).tanh())
    moved = algorithm.explore(seen, torch.randn(1, 4000, A, generator=generator)) - own
    inside = (own.abs() < 0.1) & (moved.abs() < 0.9)
    assert abs(float(moved[inside].std()) - 0.3) < 0.02
    assert float(algorithm.explore(seen, torch.full((1, 4000, A), 9.0)).max()) == 1


@torch.no_grad()
def test_discrete_actions_are_greedy_or_random():
    algorithm = DQN(DQNConfig(width=8, epsilon=0.3), Shape(WIDE, 1, (0,), CPU, choices=4))
    seen = torch.zeros(1, 20_000, WIDE)
    greedy = algorithm.explore(seen, torch.zeros(1, 20_000, 1))
    best = algorithm.actor(seen)[0, 0].argmax()
    torch.testing.assert_close(greedy, torch.full_like(greedy, 2 * float(best) / 3 - 1))
    drawn = algorithm.explore(seen, torch.randn(1, 20_000, 1, generator=torch.Generator().manual_seed(0)))
    counts = torch.bincount(((drawn + 1) * 1.5).round().long().flatten(), minlength=4) / 20_000
    expected = torch.full((4,), 0.3 / 4) + 0.7 * (torch.arange(4) == best)
    assert (counts - expected).abs().max() < 4 * (0.25 / 20_000) ** 0.5
    agent = learner("dqn")
    taken = []
    for _ in range(300):
        taken.append(agent.random_action())
        agent.add(rows_for("dqn", 1, 0))
    values, times = np.unique(np.stack(taken), return_counts=True)
    assert values.tolist() == [2, 3, 4, 5]
    assert times.min() > 100
    for name, choices in (("dqn", None), ("sac", 4)):
        with pytest.raises(ConfigError, match="actions are"):
            Learner(ONLINE_AGENTS.get(name).config, [0], WIDE, [0.0], [3.0], capacity=9, device=CPU, choices=choices)


def test_the_running_mean_is_that_of_all_rows(generator):
    store = SeedReplayBuffer(2, WIDE, LOW, HIGH, capacity=10, samples=0, device=CPU)
    norm, rows = RunningNorm(store), experience(50, 3, 2)
    for start, stop in ((0, 1), (1, 2), (2, 30), (30, 50)):
        norm.add(rows[:, start:stop, :WIDE], stop)
    seen = rows[..., :WIDE].astype(np.float64)
    np.testing.assert_allclose(norm.mean.numpy(), seen.mean(1), rtol=1e-5)
    np.testing.assert_allclose(norm.std.numpy(), seen.std(1), rtol=1e-5)
    before = norm.sums.clone()
    norm.add(rows[:, :50, :WIDE], 50)  # given again after a resumption
    assert torch.equal(norm.sums, before)
    whole = torch.from_numpy(rows).unsqueeze(1)
    found = norm.applied(whole)
    for place in (slice(0, WIDE), slice(found.shape[-1] - WIDE, None)):
        expected = (rows[..., place] - seen.mean(1)[:, None]) / seen.std(1)[:, None]
        np.testing.assert_allclose(found[:, 0, :, place].numpy(), expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(found[..., WIDE : WIDE + A + 2], whole[..., WIDE : WIDE + A + 2])


def test_what_cannot_learn_online_is_refused():
    with pytest.raises(ConfigError, match="OnlineConfig"):
        OnlineAgent.of(TD3BC)
    with pytest.raises(ConfigError, match="TD3BCConfig"):
        Learner(TD3BC.config_class(), [0], WIDE, LOW, HIGH, capacity=10, device=CPU)
    assert OnlineAgent.of(TD3).config == TD3Config()


def test_half_of_the_real_rows_are_prior(generator):
    prior, own = experience(500, 5), experience(40, 6, 2)
    for samples, parts in ((0, (8, 8, 0)), (30, (4, 4, 8))):
        how = {"capacity": 50, "samples": samples, "device": CPU, "prior": prior}
        config = replace(ONLINE_AGENTS.get("rlpd").config, width=8, batch_size=16)
        store = SeedReplayBuffer(2, WIDE, LOW, HIGH, **how)
        store.add(own)
        sampler = BatchSampler(store, config.batch_size, 0.5)
        if samples:
            for member in range(2):
                store.generate(member, experience(samples, 7))
            sampler.settle()
        rewards = sampler.fill(torch.randint(1 << 40, (2, 300, 16), generator=generator))[..., WIDE + A]
        sources = [prior[:, WIDE + A], *own[..., WIDE + A], experience(30, 7)[:, WIDE + A]]
        for member in range(2):
            drawn = rewards[member].numpy()
            for place, (source, count) in enumerate(
                zip((sources[0], sources[1 + member], sources[3]), parts, strict=True)
            ):
                start = sum(parts[:place])
                part = drawn[:, start : start + count]
                assert np.isin(part, source).all()
                assert not count or len(np.unique(part)) > 0.9 * min(len(source), 500)
    with pytest.raises(DataError, match="prior"):
        SeedReplayBuffer(2, WIDE + 1, LOW, HIGH, capacity=50, samples=0, device=CPU, prior=prior)


POINT = {"width": 16, "critic_width": 16, "batch_size": 32, "learning_rate": 3e-2, "discount": 0.5}


@pytest.mark.parametrize(
    ("name", "change", "steps"),
    [
        ("td3", {"tau": 0.1, "exploration_noise": 0.3}, 200),
        ("sac", {"tau": 0.1}, 150),
        ("redq", {"tau": 0.1, "utd": 2, "num_critics": 3}, 150),
        pytest.param("droq", {"tau": 0.1, "utd": 2}, 150, marks=pytest.mark.slow),
        pytest.param(
            "simba",
            {"tau": 0.1, "utd": 1, "critic_depth": 1, "learning_rate": 1e-2, "first_temperature": 0.1},
            150,
            marks=pytest.mark.slow,
        ),
        pytest.param("crossq", {"utd": 4, "policy_delay": 1}, 150, marks=pytest.mark.slow),
    ],
)
def test_learns_to_bring_a_point_to_the_origin(name, change, steps):
    """x' = x + a / 2, r = -x'^2: the best action is clip(-2 x), and random actions are far from it. One agent learns
    from synthetic rows, too."""
    config = replace(ONLINE_AGENTS.get(name).config, **{**POINT, **change})
    agent = Learner(config, (0, 1), 1, [-1.0], [1.0], capacity=200, samples=300, device=CPU)
    draw, here = np.random.default_rng(0), np.zeros((2, 1))

    def happened(here, action):
        there = here + action / 2
        return np.hstack([here, action, -(there**2), np.zeros_like(here), there]).astype(np.float32), there

    for step in range(steps):
        if step % 5 == 0:
            here = draw.uniform(-1, 1, (2, 1))
        rows, here = happened(here, agent.random_action() if step < 50 else agent.act(here))
        agent.add(rows)
        if step == 70 and name == "redq":
            for member in range(2):
                agent.generate(member, happened(*draw.uniform(-1, 1, (2, 300, 1)))[0])
        if step >= 50:
            agent.train()
    starts = np.linspace(-1, 1, 21, dtype=np.float32)[:, None]
    best = np.clip(-2 * starts[:, 0], -1, 1)
    errors = ((agent.policy().act(starts)[..., 0] - best) ** 2).mean(1)
    limit = 0.1 if name in ("sac", "redq") else 0.15
    assert (errors < limit * (best**2).mean()).all()

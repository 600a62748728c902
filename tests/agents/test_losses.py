"""What each update says it minimised, against the formula worked out in NumPy for every member by itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from synther.agents import critics as action_values
from synther.agents.algorithm import Noise, Shape
from synther.agents.cql import CQL, CQLConfig, value_gap
from synther.agents.edac import EDAC, EDACConfig, similarity
from synther.agents.gaussian import log_probability, squashed
from synther.agents.iql import IQL, IQLConfig, advantage_weights, expectile_loss
from synther.agents.rows import Batch
from synther.agents.td3_bc import TD3BC, TD3BCConfig, policy_loss

from . import plain
from .tables import CPU

S, B, WIDE, A = 2, 5, 3, 2
SHAPE = Shape(WIDE, A, (0, 1), CPU)
SMALL = {"width": 6, "depth": 2}


@pytest.fixture
def batch(generator) -> Batch:
    here, there = torch.randn(2, S, B, WIDE, generator=generator)
    action = torch.rand(S, B, A, generator=generator) * 2 - 1
    terminal = torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0]).expand(S, B)
    return Batch(here, action, torch.randn(S, B, generator=generator), there, terminal, torch.cat([here, action], -1))


def noise_for(algorithm, generator) -> Noise:
    normal = torch.randn(S, B, algorithm.normals, generator=generator)
    return Noise(normal, torch.rand(S, B, algorithm.uniforms, generator=generator) * 2 - 1)


def rows_of(member: int, *tensors: torch.Tensor) -> list[np.ndarray]:
    return [tensor[member].double().numpy() for tensor in tensors]


def agrees(losses: torch.Tensor, expected: list[float]) -> None:
    np.testing.assert_allclose(losses.numpy(), expected, rtol=2e-4, atol=1e-5)


def test_td3_bc(batch, generator):
    algorithm = TD3BC(TD3BCConfig(**SMALL, discount=0.9), SHAPE)
    algorithm.target_actor.weights.mul_(1.1)  # so that targets and networks differ
    algorithm.target_critics.weights.mul_(1.2)
    actor, target_actor, target = map(
        plain.kept, (algorithm.actor, algorithm.target_actor, algorithm.target_critics)
    )  # fmt: skip
    before, noise = plain.kept(algorithm.critics), noise_for(algorithm, generator)
    noise.normal[0, 0] = torch.tensor([9.0, -9.0])  # clipped
    losses = algorithm.update(batch, noise, 1)
    expected_critic, expected_actor = [], []
    for s in range(S):
        here, action, reward, there, terminal = rows_of(s, *batch[:5])
        disturbance = np.clip(0.2 * noise.normal[s].double().numpy(), -0.5, 0.5)
        next_action = np.clip(np.tanh(plain.network(target_actor, s, there)) + disturbance, -1, 1)
        y = reward + 0.9 * (1 - terminal) * plain.critics(target, s, there, next_action).min(0)
        expected_critic.append(((plain.critics(before, s, here, action) - y) ** 2).mean(1).sum())
        pi = np.tanh(plain.network(actor, s, here))
        q = plain.critics(algorithm.critics, s, here, pi)[0]  # the critics are updated first
        expected_actor.append(-2.5 / np.abs(q).mean() * q.mean() + ((pi - action) ** 2).mean())
    agrees(losses["critic"], expected_critic)
    agrees(losses["actor"], expected_actor)
    torch.testing.assert_close(
        algorithm.target_critics.weights, 0.995 * target.weights + 0.005 * algorithm.critics.weights.detach()
    )
    torch.testing.assert_close(
        algorithm.target_actor.weights, 0.995 * target_actor.weights + 0.005 * algorithm.actor.weights.detach()
    )


def test_td3_bc_moves_policy_and_targets_every_second_update(batch, generator):
    algorithm = TD3BC(TD3BCConfig(**SMALL), SHAPE)
    before = {name: tensor.clone() for name, tensor in algorithm.state().items()}
    assert set(algorithm.update(batch, noise_for(algorithm, generator), 0)) == {"critic"}
    moved = {name for name, tensor in algorithm.state().items() if not torch.equal(tensor, before[name])}
    assert moved == {"critics", "critics_adam.mean", "critics_adam.square", "critics_adam.count"}
    assert set(algorithm.update(batch, noise_for(algorithm, generator), 1)) == {"critic", "actor"}
    moved = {name for name, tensor in algorithm.state().items() if not torch.equal(tensor, before[name])}
    assert moved == set(before)


def test_td3_bc_weighs_values_by_their_size():
    value = torch.tensor([[1.0, -3.0], [10.0, -30.0]], requires_grad=True)
    action = torch.zeros(2, 2, 1)
    losses = policy_loss(value, action, action + 0.5, alpha=2.5)
    # lambda = 2.5 / 2 and 2.5 / 20; mean Q = -1 and -10; (0.5)^2
    agrees(losses.detach(), [1.25 + 0.25, 1.25 + 0.25])
    # lambda is a constant: dLoss/dQ = -lambda / B
    gradient = torch.autograd.grad(losses.sum(), value)[0]
    torch.testing.assert_close(gradient, torch.tensor([[-0.625, -0.625], [-0.0625, -0.0625]]))


@pytest.mark.parametrize("deterministic", [False, True])
def test_iql(batch, generator, deterministic):
    config = IQLConfig(**SMALL, discount=0.9, expectile=0.8, beta=40.0, deterministic=deterministic, decay_updates=4)
    algorithm = IQL(config, SHAPE)
    algorithm.target_critics.weights.mul_(1.5)
    actor, value, before, target = map(
        plain.kept, (algorithm.actor, algorithm.value, algorithm.critics, algorithm.target_critics)
    )  # fmt: skip
    if not deterministic:
        with torch.no_grad():
            algorithm.actor.free[:] = torch.tensor([[0.3, 5.0], [-9.0, 0.0]])  # 5 counts as 2, -9 as -5
        actor = plain.kept(algorithm.actor)
    losses = algorithm.update(batch, noise_for(algorithm, generator), 0)
    expected: dict[str, list[float]] = {"value": [], "critic": [], "actor": []}
    weights = []
    for s in range(S):
        here, action, reward, there, terminal = rows_of(s, *batch[:5])
        advantage = plain.critics(target, s, here, action).min(0) - plain.network(value, s, here)[:, 0]
        expected["value"].append((np.where(advantage < 0, 0.2, 0.8) * advantage**2).mean())
        y = reward + 0.9 * (1 - terminal) * plain.network(value, s, there)[:, 0]
        expected["critic"].append(((plain.critics(before, s, here, action) - y) ** 2).mean())
        weight = np.minimum(np.exp(40 * advantage), 100)
        weights.append(weight)
        output = plain.network(actor, s, here)
        if deterministic:
            imitation = ((np.tanh(output) - action) ** 2).sum(1)
        else:
            log_deviation = np.array([[0.3, 2.0], [-5.0, 0.0]])[s]
            z = (action - output) / np.exp(log_deviation)
            imitation = (z**2 / 2 + log_deviation + np.log(2 * np.pi) / 2).sum(1)
        expected["actor"].append((weight * imitation).mean())
    assert np.max(weights) == 100 > np.min(weights)  # both sides of the clip are seen
    for name in expected:
        np.testing.assert_allclose(losses[name].numpy(), expected[name], rtol=2e-3, atol=1e-5)
    moved = 0.995 * target.weights + 0.005 * algorithm.critics.weights.detach()
    torch.testing.assert_close(algorithm.target_critics.weights, moved)


def test_iql_policy_rate_falls_as_a_cosine(batch, generator):
    algorithm = IQL(IQLConfig(**SMALL, learning_rate=1e-2, decay_updates=4), SHAPE)
    rates = []
    for _ in range(6):
        rates.append(algorithm._actor_rate().item())
        before = plain.kept(algorithm.actor)
        algorithm.update(batch, noise_for(algorithm, generator), 0)
    assert rates == pytest.approx([1e-2 * (1 + math.cos(math.pi * i / 4)) / 2 for i in (0, 1, 2, 3, 4, 4)], abs=1e-9)
    assert torch.equal(algorithm.actor.weights, before.weights)  # at rate 0


def test_the_expectile_is_the_losss_minimum():
    """Of {0, 1} with equal weight the tau-expectile is tau."""
    v = torch.linspace(0, 1, 1001)
    for tau in (0.5, 0.7, 0.9):
        losses = expectile_loss(torch.tensor([0.0, 1.0]) - v.unsqueeze(1), tau)
        assert v[losses.argmin()].item() == pytest.approx(tau, abs=1e-3)


def test_advantage_weights_are_clipped():
    weights = advantage_weights(torch.tensor([-1.0, 0.0, 1.0, 2.0]), 3.0)
    assert weights.tolist() == pytest.approx([math.exp(-3), 1, math.exp(3), 100])


def test_edac(batch, generator):
    algorithm = EDAC(EDACConfig(**SMALL, discount=0.9, critics=4, eta=0.7), SHAPE)
    with torch.no_grad():  # first weights are tiny in the last layer
        for stack in (algorithm.actor, algorithm.critics, algorithm.target_critics):
            stack.weights.copy_(torch.randn(stack.weights.shape, generator=generator) * 0.5)
        algorithm.log_temperature.copy_(torch.tensor([-1.0, 0.5]))
    actor, before, target = map(plain.kept, (algorithm.actor, algorithm.critics, algorithm.target_critics))
    noise = noise_for(algorithm, generator)
    losses = algorithm.update(batch, noise, 0)
    expected: dict[str, list[float]] = {"temperature": [], "actor": [], "critic": [], "similarity": []}
    entropies = []
    for s in range(S):
        here, action, reward, there, terminal = rows_of(s, *batch[:5])
        here_noise, there_noise = np.split(noise.normal[s].double().numpy(), 2, axis=1)

        def act(stack, x, e, s=s):
            mean, log_deviation = np.split(plain.network(stack, s, x), 2, axis=1)
            return plain.squashed(mean, np.clip(log_deviation, -5, 2), e)

        pi, log_pi = act(actor, here, here_noise)
        # Adam's first step is the rate in the direction against the gradient -(log pi - |A|).
        entropies.append((log_pi - A).mean())
        temperature = math.exp([-1.0, 0.5][s] + 3e-4 * np.sign((log_pi - A).mean()))
        expected["temperature"].append(temperature)
        expected["actor"].append((temperature * log_pi - plain.critics(before, s, here, pi).min(0)).mean())
        next_action, next_log_pi = act(algorithm.actor, there, there_noise)  # the actor is updated first
        lowest = plain.critics(target, s, there, next_action).min(0)
        y = reward + 0.9 * (1 - terminal) * (lowest - temperature * next_log_pi)
        expected["critic"].append(((plain.critics(before, s, here, action) - y) ** 2).mean(1).sum())
        expected["similarity"].append(slow_similarity(action_gradients(before, s, here, action)))
    for name in expected:
        np.testing.assert_allclose(losses[name].numpy(), expected[name], rtol=2e-3, atol=1e-4)
    agrees(algorithm.temperature_adam.mean, [-0.1 * entropy for entropy in entropies])  # a tenth of the gradient


def action_gradients(stack, member, here, action, h=1e-6) -> np.ndarray:
    """By finite differences. (E, B, A)"""
    columns = []
    for a in range(action.shape[1]):
        step = np.zeros_like(action)
        step[:, a] = h
        ahead, behind = (plain.critics(stack, member, here, action + sign * step) for sign in (1, -1))
        columns.append((ahead - behind) / (2 * h))
    return np.stack(columns, -1)


def slow_similarity(gradients: np.ndarray) -> float:
    """The cosine of every pair of critics in every row, one by one."""
    critics, rows, _ = gradients.shape
    total = 0.0
    for b in range(rows):
        for i in range(critics):
            for j in range(critics):
                if i != j:
                    one, other = gradients[i, b], gradients[j, b]
                    total += one @ other / (np.linalg.norm(one) + 1e-10) / (np.linalg.norm(other) + 1e-10)
    return total / rows / (critics - 1)


def test_similarity_at_its_ends(generator):
    direction = torch.randn(1, 1, 7, 3, generator=generator)
    same = direction * torch.tensor([0.1, 1.0, 5.0, 20.0]).view(1, 4, 1, 1)
    torch.testing.assert_close(similarity(same), torch.tensor([4.0]))  # E (E - 1) / (E - 1)
    opposite = direction * torch.tensor([1.0, -1.0]).view(1, 2, 1, 1)
    torch.testing.assert_close(similarity(opposite), torch.tensor([-2.0]))
    assert similarity(torch.zeros(1, 4, 7, 3)).tolist() == [0.0]


def test_similarity_pushes_the_critics_apart(batch, generator):
    apart, alike = (EDAC(EDACConfig(**SMALL, critics=4, eta=eta, learning_rate=1e-2), SHAPE) for eta in (30.0, 0.0))
    for _ in range(30):
        noise = noise_for(apart, generator)
        ends = [algorithm.update(batch, noise, 0)["similarity"] for algorithm in (apart, alike)]
    assert (ends[0] < ends[1] - 0.5).all()


@pytest.mark.parametrize("gap", [None, 0.5])
def test_cql(batch, generator, gap):
    count = 3
    algorithm = CQL(CQLConfig(**SMALL, discount=0.9, actions=count, weight=2.0, gap=gap), SHAPE)
    algorithm.target_critics.weights.mul_(1.3)
    algorithm.log_temperature.copy_(torch.tensor([-1.0, 0.5]))
    algorithm.log_multiplier.copy_(torch.tensor([0.2, -0.3]))
    with torch.no_grad():
        algorithm.actor.free[:] = torch.tensor([[1.0, -1.0], [0.5, 0.2]])
    actor, before, target = map(plain.kept, (algorithm.actor, algorithm.critics, algorithm.target_critics))
    noise = noise_for(algorithm, generator)
    penalties = []
    penalty = algorithm._penalty
    algorithm._penalty = lambda gaps: penalties.append(penalty(gaps)) or penalties[0]
    losses = algorithm.update(batch, noise, 0)
    names = ("actor", "critic", "gap", "penalty", "multiplier", "entropy")
    expected: dict[str, list[float]] = {name: [] for name in names}
    for s in range(S):
        here, action, reward, there, terminal = rows_of(s, *batch[:5])
        normal, uniform = rows_of(s, *noise)
        slope, offset = actor.free[s].double().numpy()
        temperature = math.exp([-1.0, 0.5][s])

        def act(x, e, s=s, slope=slope, offset=offset):
            mean, output = np.split(plain.network(actor, s, x), 2, axis=1)
            return plain.squashed(mean, np.clip(slope * output + offset, -20, 2), e)

        pi, log_pi = act(here, normal[:, :A])
        expected["actor"].append((temperature * log_pi - plain.critics(before, s, here, pi).min(0)).mean())
        expected["entropy"].append((log_pi - A).mean())
        next_action, _ = act(there, normal[:, A : 2 * A])
        y = reward + 0.9 * (1 - terminal) * plain.critics(target, s, there, next_action).min(0)
        of_data = plain.critics(before, s, here, action)
        expected["critic"].append(((of_data - y) ** 2).mean(1).sum())
        weighted = np.zeros(of_data.shape)  # sum of exp(Q) / density
        for n in range(count):
            at = 2 * A + n * A
            one, log_one = act(here, normal[:, at : at + A])
            two, log_two = act(there, normal[:, at + count * A : at + count * A + A])
            weighted += np.exp(plain.critics(before, s, here, one) - log_one)
            weighted += np.exp(plain.critics(before, s, here, two) - log_two)
            weighted += np.exp(plain.critics(before, s, here, uniform[:, n * A : n * A + A])) / 0.5**A
        gaps = (np.log(weighted) - of_data).mean(1)
        expected["gap"].append(gaps.mean())
        multiplier = 1 if gap is None else math.exp([0.2, -0.3][s])
        expected["penalty"].append(multiplier * 2.0 * (gaps - (gap or 0)).sum())
        expected["multiplier"].append(0.0 if gap is None else -0.5 * expected["penalty"][-1])
    for name in ("actor", "critic", "gap"):
        agrees(losses[name], expected[name])
    agrees(penalties[0][0].detach(), expected["penalty"])
    agrees(penalties[0][1], expected["multiplier"])
    assert losses["temperature"].tolist() == pytest.approx([math.exp(-1), math.exp(0.5)])
    # Adam's first mean is a tenth of the gradient, and its first step is the rate, against the gradient.
    agrees(algorithm.temperature_adam.mean, [-0.1 * entropy for entropy in expected["entropy"]])
    hotter = 3e-5 * np.sign(expected["entropy"])
    np.testing.assert_allclose(algorithm.log_temperature, np.add([-1.0, 0.5], hotter), atol=1e-7)
    heavier = np.zeros(S) if gap is None else 3e-4 * np.sign(expected["penalty"])
    np.testing.assert_allclose(algorithm.log_multiplier, np.add([0.2, -0.3], heavier), atol=1e-7)


def test_cql_closes_the_gap(batch, generator):
    heavy, light = (CQL(CQLConfig(**SMALL, actions=3, weight=w, learning_rate=1e-2), SHAPE) for w in (10.0, 0.0))
    for _ in range(30):
        noise = noise_for(heavy, generator)
        ends = [algorithm.update(batch, noise, 0)["gap"] for algorithm in (heavy, light)]
    assert (ends[0] < ends[1] - 0.2).all()


def test_cql_multiplier_grows_while_the_gap_is_too_wide():
    algorithm = CQL(CQLConfig(**SMALL, gap=1.0), SHAPE)
    _, gradient = algorithm._penalty(torch.tensor([[3.0, 2.0], [0.0, 0.5]]))
    assert gradient[0] < 0 < gradient[1]  # steps go against the gradient
    algorithm.log_multiplier.fill_(20.0)
    penalty, gradient = algorithm._penalty(torch.tensor([[3.0, 2.0], [0.0, 0.5]]))
    torch.testing.assert_close(penalty, torch.tensor([3e7, -1.5e7]))
    assert gradient.abs().tolist() == [0.0, 0.0]


def test_the_value_gap_of_a_known_integral():
    """Importance weights make sum exp(Q - log p) an estimate of N times the integral of exp(Q), whatever p is."""
    u = torch.linspace(-1, 1, 20_001)[:-1] + 5e-5
    draws = (1 + u) / 2  # of [0, 1]; squared: density 1 / (2 sqrt x)
    x = draws**2
    log_density = -(2 * x.sqrt()).log().view(1, 1, -1)
    gap = value_gap(x.view(1, 1, 1, -1), log_density, torch.zeros(1, 1, 1))
    assert gap.item() == pytest.approx(math.log(20_000 * (math.e - 1)), abs=1e-4)


def test_squashed_density_integrates_to_one_and_survives_the_edge():
    noise = torch.linspace(-8, 8, 100_001, dtype=torch.float64).unsqueeze(-1)
    action, log_density = squashed(torch.tensor([0.4]).double(), torch.tensor([0.3]).double(), noise)
    assert torch.trapezoid(log_density.exp(), action.squeeze(-1)).item() == pytest.approx(1, abs=1e-6)
    far = squashed(torch.tensor([30.0]), torch.tensor([0.0]), torch.tensor([0.5]))
    assert far[0].item() == 1
    # log N(0.5) - log(1 - tanh(30.5)^2), where 1 - tanh(x)^2 = 4 exp(-2 x)
    assert far[1].item() == pytest.approx(-0.125 - math.log(2 * math.pi) / 2 + 61 - math.log(4), rel=1e-6)


def test_log_probability_is_that_of_pytorch(generator):
    x, mean, log_deviation = torch.randn(3, 4, 2, generator=generator)
    expected = torch.distributions.Normal(mean, log_deviation.exp()).log_prob(x).sum(-1)
    torch.testing.assert_close(log_probability(x, mean, log_deviation), expected)


def test_columns_never_meet_vectors(batch):
    with pytest.raises(ValueError, match=r"expected values of shape \(2, 5\), got \(2, 5, 1\)"):
        action_values.backup(batch, batch.reward.unsqueeze(-1), 0.9)
    for predicted, target in [((S, 3, B), (S, B, 1)), ((S, B), (S, B)), ((S, 3, B), (S, 3, B)), ((S, 3, B), (B,))]:
        with pytest.raises(ValueError, match=r"expected \(S, E, B\) against \(S, B\)"):
            action_values.squared_errors(torch.zeros(predicted), torch.zeros(target))

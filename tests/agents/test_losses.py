"""Terms of the losses at values that are known beforehand; `test_updates.py` has the whole of them."""

from __future__ import annotations

import math

import pytest
import torch

from synther.agents import critics as action_values
from synther.agents.algorithm import Shape
from synther.agents.cql import CQL, CQLConfig, value_gap
from synther.agents.edac import similarity
from synther.agents.gaussian import log_probability, squashed
from synther.agents.iql import advantage_weights, expectile_loss
from synther.agents.rows import Batch
from synther.agents.td3_bc import policy_loss

from .tables import CPU

S, B = 2, 5


def test_td3_bc_weighs_values_by_their_size():
    value = torch.tensor([[1.0, -3.0], [10.0, -30.0]], requires_grad=True)
    action = torch.zeros(2, 2, 1)
    losses = policy_loss(value, action, action + 0.5, alpha=2.5)
    # lambda = 2.5 / 2 and 2.5 / 20; mean Q = -1 and -10; (0.5)^2
    assert losses.tolist() == pytest.approx([1.25 + 0.25, 1.25 + 0.25])
    # lambda is a constant: dLoss/dQ = -lambda / B
    gradient = torch.autograd.grad(losses.sum(), value)[0]
    torch.testing.assert_close(gradient, torch.tensor([[-0.625, -0.625], [-0.0625, -0.0625]]))


def test_the_expectile_is_the_losss_minimum():
    """Of {0, 1} with equal weight the tau-expectile is tau."""
    v = torch.linspace(0, 1, 1001)
    for tau in (0.5, 0.7, 0.9):
        losses = expectile_loss(torch.tensor([0.0, 1.0]) - v.unsqueeze(1), tau)
        assert v[losses.argmin()].item() == pytest.approx(tau, abs=1e-3)


def test_advantage_weights_are_clipped():
    weights = advantage_weights(torch.tensor([-1.0, 0.0, 1.0, 2.0]), 3.0)
    assert weights.tolist() == pytest.approx([math.exp(-3), 1, math.exp(3), 100])


def test_similarity_at_its_ends(generator):
    direction = torch.randn(1, 1, 7, 3, generator=generator)
    same = direction * torch.tensor([0.1, 1.0, 5.0, 20.0]).view(1, 4, 1, 1)
    torch.testing.assert_close(similarity(same), torch.tensor([4.0]))  # E (E - 1) / (E - 1)
    opposite = direction * torch.tensor([1.0, -1.0]).view(1, 2, 1, 1)
    torch.testing.assert_close(similarity(opposite), torch.tensor([-2.0]))
    assert similarity(torch.zeros(1, 4, 7, 3)).tolist() == [0.0]


def test_cql_multiplier_grows_while_the_gap_is_too_wide():
    algorithm = CQL(CQLConfig(width=6, target_action_gap=1.0), Shape(3, 2, (0, 1), CPU))
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
    x, mean, log_std = torch.randn(3, 4, 2, generator=generator)
    expected = torch.distributions.Normal(mean, log_std.exp()).log_prob(x).sum(-1)
    torch.testing.assert_close(log_probability(x, mean, log_std), expected)


def test_columns_never_meet_vectors():
    batch = Batch.of(torch.zeros(S, B, 10), 3, 2)
    with pytest.raises(ValueError, match=r"expected values of shape \(2, 5\), got \(2, 5, 1\)"):
        action_values.backup(batch, batch.reward.unsqueeze(-1), 0.9)
    for predicted, target in [((S, 3, B), (S, B, 1)), ((S, B), (S, B)), ((S, 3, B), (S, 3, B)), ((S, 3, B), (B,))]:
        with pytest.raises(ValueError, match=r"expected \(S, E, B\) against \(S, B\)"):
            action_values.squared_errors(torch.zeros(predicted), torch.zeros(target))

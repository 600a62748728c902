"""SAC and REDQ against the same updates written for one member with PyTorch's own layers and optimiser, in float64."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest
import torch
from torch import nn

from synther.agents.adam import Adam
from synther.agents.algorithm import Noise, Shape
from synther.agents.rows import Batch
from synther.agents.sac import REDQ_CONFIG, SAC, SAC_CONFIG, SACConfig, chosen
from synther.agents.stacked import Stack
from synther.errors import ConfigError

from .tables import CPU

S, B, WIDE, A = 2, 7, 3, 2
SHAPE = Shape(WIDE, A, (0, 1), CPU)
RATE = 2.0**-7
SMALL = {"width": 6, "batch": B, "learning_rate": RATE, "discount": 0.9, "tau": 0.1}


def in_float64(algorithm: SAC) -> SAC:
    """The same algorithm, and optimisers that count and step in float64 too."""
    for name in ("actor", "critics"):
        stack = getattr(algorithm, name)
        setattr(algorithm, name, Stack(stack.weights.detach().double().requires_grad_(), stack.sizes))
    # Targets that differ from the critics they follow.
    algorithm.target_critics = Stack(1.25 * algorithm.critics.weights.detach(), algorithm.critics.sizes)
    algorithm.log_temperature = torch.tensor([-1.0, 0.5], dtype=torch.float64)
    for name, weights in (
        ("actor", algorithm.actor.weights),
        ("critics", algorithm.critics.weights),
        ("temperature", algorithm.log_temperature),
    ):
        adam = Adam(weights, RATE)
        adam.rate, adam.count = adam.rate.double(), adam.count.double()
        setattr(algorithm, f"{name}_adam", adam)
    return algorithm


def drawn(generator: torch.Generator, algorithm: SAC) -> tuple[Batch, Noise]:
    def normal(*size: int) -> torch.Tensor:
        return torch.randn(S, B, *size, generator=generator, dtype=torch.float64)

    here, there, action = normal(WIDE), normal(WIDE), normal(A).tanh()
    terminal = (torch.rand(S, B, generator=generator) < 0.3).double()
    batch = Batch(here, action, normal(), there, terminal, torch.cat([here, action], -1))
    uniform = torch.rand(S, B, algorithm.uniforms, generator=generator, dtype=torch.float64) * 2 - 1
    return batch, Noise(normal(algorithm.normals), uniform)


class Plain:
    """One member, written as a textbook would."""

    def __init__(self, algorithm: SAC, member: int) -> None:
        self.config = algorithm.config
        self.actor = layers(algorithm.actor, algorithm.actor.weights[member])
        self.critics = [layers(algorithm.critics, row) for row in algorithm.critics.weights[member]]
        self.targets = [layers(algorithm.critics, row) for row in algorithm.target_critics.weights[member]]
        self.log_alpha = algorithm.log_temperature[member].clone().requires_grad_()
        q = [parameter for critic in self.critics for parameter in critic.parameters()]
        self.q_optimiser = torch.optim.Adam(q, RATE)
        self.pi_optimiser = torch.optim.Adam(self.actor.parameters(), RATE)
        self.alpha_optimiser = torch.optim.Adam([self.log_alpha], RATE)

    def act(self, seen, noise):
        mean, log_deviation = self.actor(seen).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_deviation.clamp(-20, 2).exp())
        x = normal.mean + normal.stddev * noise
        return x.tanh(), (normal.log_prob(x) - torch.log(1 - x.tanh() ** 2)).sum(-1)

    def update(self, batch: Batch, noise: torch.Tensor, subset: list[int], last: bool) -> None:
        here, action, reward, there, terminal = batch[:5]
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            next_action, log_pi = self.act(there, noise[:, A:])
            pair = torch.cat([there, next_action], 1)
            lowest = torch.stack([self.targets[index](pair)[:, 0] for index in subset]).min(0).values
            y = reward + 0.9 * (1 - terminal) * (lowest - alpha * log_pi)
        pair = torch.cat([here, action], 1)
        loss = sum(nn.functional.mse_loss(critic(pair)[:, 0], y) for critic in self.critics)
        step(self.q_optimiser, loss)
        for target, critic in zip(self.targets, self.critics, strict=True):
            for behind, ahead in zip(target.parameters(), critic.parameters(), strict=True):
                behind.data = 0.9 * behind.data + 0.1 * ahead.data
        if last:
            action, log_pi = self.act(here, noise[:, :A])
            q = torch.stack([critic(torch.cat([here, action], 1))[:, 0] for critic in self.critics]).mean(0)
            step(self.pi_optimiser, (alpha * log_pi - q).mean())
            step(self.alpha_optimiser, -(self.log_alpha * (log_pi.detach() - A)).mean())


def layers(stack: Stack, row: torch.Tensor) -> nn.Sequential:
    shapes = list(pairwise(stack.sizes))
    at, bias_at = 0, sum(inputs * outputs for inputs, outputs in shapes)
    parts: list[nn.Module] = []
    for inputs, outputs in shapes:
        linear = nn.Linear(inputs, outputs, dtype=torch.float64)
        linear.weight.data = row[at : at + inputs * outputs].detach().view(inputs, outputs).T.clone()
        linear.bias.data = row[bias_at : bias_at + outputs].detach().clone()
        parts += [linear, nn.ReLU()]
        at, bias_at = at + inputs * outputs, bias_at + outputs
    return nn.Sequential(*parts[:-1])


def row_of(network: nn.Sequential) -> torch.Tensor:
    linears = [layer for layer in network if isinstance(layer, nn.Linear)]
    return torch.cat([layer.weight.T.flatten() for layer in linears] + [layer.bias for layer in linears]).detach()


def step(optimiser: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


@pytest.mark.parametrize(("critics", "smallest"), [(2, 2), (5, 2), (3, 1)])
def test_as_written_for_one_member_in_plain_pytorch(critics, smallest, generator):
    config = SACConfig(**SMALL, critics=critics, smallest=smallest, utd=3)
    algorithm = in_float64(SAC(config, SHAPE))
    members = [Plain(algorithm, s) for s in range(S)]
    for number in range(9):  # three steps of the environment
        batch, noise = drawn(generator, algorithm)
        losses = algorithm.update(batch, noise, number % 3)
        assert set(losses) == ({"critic"} if number % 3 < 2 else set(SAC.losses))
        for s, plain in enumerate(members):
            keys = noise.uniform[s, :critics, 0].tolist()
            subset = sorted(range(critics), key=lambda index: -keys[index])[:smallest]
            own = Batch(*(tensor[s] for tensor in batch))
            plain.update(own, noise.normal[s], subset, last=number % 3 == 2)
    for s, plain in enumerate(members):
        found = {
            "actor": (algorithm.actor.weights[s], row_of(plain.actor)),
            "temperature": (algorithm.log_temperature[s : s + 1], plain.log_alpha.detach()[None]),
        }
        for e in range(critics):
            found[f"critic {e}"] = (algorithm.critics.weights[s, e], row_of(plain.critics[e]))
            found[f"target {e}"] = (algorithm.target_critics.weights[s, e], row_of(plain.targets[e]))
        for name, (ours, theirs) in found.items():
            torch.testing.assert_close(ours.detach()[: len(theirs)], theirs, rtol=1e-10, atol=1e-11, msg=name)


def test_updates_in_a_row_are_the_same_one_by_one(generator):
    config = SACConfig(**SMALL, critics=4, utd=5)
    together, single = (in_float64(SAC(config, SHAPE)) for _ in range(2))
    drawn_ones = [drawn(generator, single) for _ in range(5)]
    for step, (batch, noise) in enumerate(drawn_ones):
        last = single.update(batch, noise, step)
    batches, noises = zip(*drawn_ones, strict=True)
    stacked = Batch(*(torch.stack(parts, 1) for parts in zip(*batches, strict=True)))
    losses = together.updates(stacked, Noise(*(torch.stack(parts, 1) for parts in zip(*noises, strict=True))))
    for name, tensor in single.state().items():
        torch.testing.assert_close(together.state()[name], tensor, rtol=1e-12, atol=1e-13, msg=name)
    for name, loss in last.items():
        torch.testing.assert_close(losses[name], loss, rtol=1e-12, atol=1e-13, msg=name)


def test_the_chosen_critics_are_each_members_own():
    weights = torch.arange(2.0 * 4 * 3).view(2, 4, 3)
    some = chosen(Stack(weights, (1, 1)), torch.tensor([[3, 1], [0, 3]]))
    assert torch.equal(some.weights, torch.stack([weights[0, [3, 1]], weights[1, [0, 3]]]))
    assert some.sizes == (1, 1)


def test_every_pair_of_critics_is_as_likely(generator, monkeypatch):
    algorithm = in_float64(SAC(SACConfig(**SMALL, critics=4), SHAPE))
    picked: list[frozenset[int]] = []
    whole = SAC._update_critics

    def noted(own, batch, next_action, cost, subset):
        picked.extend(map(frozenset, subset.tolist()))
        return whole(own, batch, next_action, cost, subset)

    monkeypatch.setattr(SAC, "_update_critics", noted)
    batch, noise = drawn(generator, algorithm)
    many = [part[:, None].expand(-1, 300, *part.shape[1:]) for part in batch]
    uniform = torch.rand(S, 300, B, 1, generator=generator, dtype=torch.float64) * 2 - 1
    algorithm.updates(Batch(*many), Noise(noise.normal[:, None].expand(-1, 300, -1, -1), uniform))
    counts = Counter(picked)
    assert sorted(map(len, counts)) == [2] * 6
    assert max(abs(count - 100) for count in counts.values()) < 5 * math.sqrt(100)


@pytest.mark.parametrize(("deviation", "rises"), [(-8.0, True), (0.0, False)])
def test_temperature_rises_where_the_entropy_is_too_low(deviation, rises, generator):
    algorithm = SAC(SACConfig(**SMALL), SHAPE)
    sizes = algorithm.actor.sizes
    used = sum(i * o for i, o in pairwise(sizes)) + sum(sizes[1:])
    with torch.no_grad():  # mean 0, and one deviation wherever it looks
        algorithm.actor.weights.zero_()
        algorithm.actor.weights[:, used - A : used] = deviation
    batch, noise = drawn(generator, algorithm)
    batch, noise = (kind(*(part.float() for part in given)) for kind, given in ((Batch, batch), (Noise, noise)))
    losses = algorithm.update(batch, noise, 0)
    assert ((losses["entropy"] < -A) == rises).all()
    assert ((algorithm.log_temperature > 0) == rises).all()
    assert losses["temperature"].tolist() == [1.0, 1.0]  # as it was before


def test_the_named_configs_are_the_papers():
    assert (SAC_CONFIG.critics, SAC_CONFIG.smallest, SAC_CONFIG.utd) == (2, 2, 1)
    assert (REDQ_CONFIG.critics, REDQ_CONFIG.smallest, REDQ_CONFIG.utd) == (10, 2, 20)
    for config in (SAC_CONFIG, REDQ_CONFIG):
        assert (config.width, config.depth, config.batch, config.learning_rate) == (256, 2, 256, 3e-4)
        assert (config.discount, config.tau, config.normalize) == (0.99, 0.005, False)


def test_first_weights_have_glorots_bounds_and_no_biases():
    algorithm = SAC(SACConfig(width=64), SHAPE)
    for row, sizes in ((algorithm.actor.weights[0], (3, 64, 64, 4)), (algorithm.critics.weights[1, 1], (5, 64, 64, 1))):
        network = layers(Stack(row, sizes), row.double())
        for linear in (layer for layer in network if isinstance(layer, nn.Linear)):
            bound = math.sqrt(6 / sum(linear.weight.shape))
            assert 0.8 * bound < linear.weight.abs().max() <= bound
            assert not linear.bias.any()
    assert torch.equal(algorithm.critics.weights, algorithm.target_critics.weights)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"smallest": 3}, "smallest must be at most agent.critics, 2, got 3"),
        ({"utd": 0}, "utd must be at least 1"),
        ({"critics": 0}, "critics must be at least 1"),
        ({"critics": 10, "batch": 9}, "batch must be at least agent.critics, 10, got 9"),
        ({"tau": 1.5}, r"tau must lie in \[0, 1\]"),
    ],
    ids=str,
)
def test_what_cannot_be(change, says):
    with pytest.raises(ConfigError, match=says):
        SACConfig(**change)


def test_the_state_is_all_that_an_update_changes(generator):
    """Otherwise a file would not carry it, and a captured update would not be rehearsed without traces."""
    algorithm = in_float64(SAC(SACConfig(**SMALL), SHAPE))
    before = {name: tensor.clone() for name, tensor in algorithm.state().items()}
    batch, noise = drawn(generator, algorithm)
    first = algorithm.update(batch, noise, 0)
    for name, tensor in algorithm.state().items():
        assert not torch.equal(tensor, before[name]), name
        tensor.copy_(before[name])
    again = algorithm.update(batch, noise, 0)
    for name, loss in first.items():
        assert torch.equal(loss, again[name]), name

"""Networks in plain PyTorch, alone and stacked."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from synther.agents.adam import Adam
from synther.agents.agent import Agent
from synther.agents.algorithm import Shape
from synther.agents.bc import BCConfig
from synther.agents.cql import CQLConfig
from synther.agents.edac import EDACConfig
from synther.agents.iql import IQLConfig
from synther.agents.learner import Learner
from synther.agents.networks import (
    NETWORKS,
    BatchNorm,
    Dropout,
    NetworkFactory,
    NetworkOptions,
    build_network,
)
from synther.agents.own_code import import_named
from synther.agents.policy import load_policy
from synther.agents.rows import Member, Rows
from synther.agents.sac import SACConfig
from synther.agents.stacked import (
    LayerNormStack,
    ModuleStack,
    NetworkSpec,
    described_networks,
    draw_modules,
    draw_stack,
)
from synther.agents.td3_bc import TD3BCConfig
from synther.errors import ConfigError

from ..support.states import assert_close, assert_same
from .tables import CPU, table

KINDS = ["mlp", "layer_norm", "layer_norm_last", "batch_norm", "simba"]
OPTIONS = NetworkOptions(width=16, depth=2)
EXACT, SINGLE = {"rtol": 1e-10, "atol": 1e-10}, {"rtol": 1e-3, "atol": 1e-4}
NORMS = pytest.mark.parametrize(
    ("kind", "dtype", "near"),
    [
        (kind, dtype, near)
        for kind in ("layer_norm", "layer_norm_last")
        for dtype, near in ((torch.float64, EXACT), (torch.float32, SINGLE))
    ],
)


def sources(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def drawn(kind: str, ensemble: int | None = 3, seeds: tuple[int, ...] = (1, 2), **change: float) -> ModuleStack:
    options = NetworkOptions(16, 2, **change)  # type: ignore[arg-type]
    return draw_modules(sources(*seeds), NetworkSpec(kind, 5, 2, options), CPU, ensemble=ensemble)


def slow(stack: ModuleStack) -> ModuleStack:
    """The same networks, run by `torch.func`."""
    return ModuleStack(stack.weights, stack.buffers, stack.spec, stack.free_size)


def alone(stack: ModuleStack, member: int, network: int, x: Tensor) -> Tensor:
    """The same network as a module of its own."""
    module = stack.spec.build().train()
    parameters = {name: view[member, network] for name, view in stack._parameters.views(stack.weights).items()}
    buffers = {}
    if stack.buffers is not None:
        buffers = {n: v[member, network].clone() for n, v in stack._buffers.views(stack.buffers).items()}
    return functional_call(module, (parameters, buffers), (x,))


def in_dtype(stack: ModuleStack, dtype: torch.dtype) -> ModuleStack:
    """A stack whose norms scale and shift, too."""
    own = stack.weights.detach().to(dtype, copy=True)
    for name, view in stack._parameters.views(own).items():
        if stack._parameters.shapes[name].numel() > 1:
            view += 0.3 * torch.randn_like(view)
    return stack._with(own.requires_grad_(), None)


@pytest.mark.parametrize("kind", KINDS)
def test_each_network_of_a_stack_is_the_module_itself(kind):
    stack, x = drawn(kind), torch.randn(2, 7, 5)
    own = torch.randn(2, 3, 7, 5)
    for given, row in ((x, lambda s, e: x[s]), (own, lambda s, e: own[s, e])):
        expected = torch.stack([torch.stack([alone(stack, s, e, row(s, e)) for e in range(3)]) for s in range(2)])
        (wanted,) = torch.autograd.grad(expected.square().sum(), stack.weights)
        found = stack(given)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        (gradient,) = torch.autograd.grad(found.square().sum(), stack.weights)
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-4)
        assert gradient.abs().amax((0, 1)).count_nonzero() > 0.5 * gradient.shape[-1]


def test_the_fast_path_of_perceptrons_is_the_plain_network():
    plain = drawn("mlp")
    fast = draw_stack(sources(1, 2), (5, 16, 16, 2), CPU, ensemble=3)
    with torch.no_grad():  # the same numbers, in the order of the fast path
        views = list(plain._parameters.views(plain.weights).values())
        parts = [*(view.mT.flatten(2) for view in views[::2]), *views[1::2]]
        whole = torch.cat(parts, -1)
        fast.weights[..., : whole.shape[-1]] = whole
    x = torch.randn(2, 7, 5, requires_grad=True)
    one, other = plain(x), fast(x)
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    for loss in (lambda y: y.square().sum(), lambda y: y.exp().mean()):
        gradients = [torch.autograd.grad(loss(y), x, retain_graph=True)[0] for y in (one, other)]
        torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


@NORMS
@pytest.mark.parametrize("ensemble", [None, 3])
@pytest.mark.parametrize("depth", [1, 3])
def test_the_fast_path_of_layer_norm_is_the_plain_network(kind, ensemble, depth, dtype, near):
    spec = NetworkSpec(kind, 5, 2, NetworkOptions(15, depth))
    drawn = draw_modules(sources(1, 2), spec, CPU, ensemble=ensemble, free=(1.0, -1.0))
    fast = in_dtype(drawn, dtype)
    assert type(fast) is LayerNormStack
    assert (fast.free == torch.tensor([1.0, -1.0])).all()
    plain = slow(fast)
    shapes = [(2, 7, 5)] if ensemble is None else [(2, 7, 5), (2, ensemble, 7, 5)]
    for shape in shapes:
        x = torch.randn(shape, dtype=dtype, requires_grad=True)
        results = [stack(x) for stack in (fast, plain)]
        torch.testing.assert_close(*results, **near)
        torch.testing.assert_close(fast(x.detach()), results[1], **near)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), results[1], **near)
        towards = torch.randn_like(results[1])
        wanted, found = (torch.autograd.grad(y, (fast.weights, x), towards, retain_graph=True) for y in results)
        for one, other in zip(wanted, found, strict=True):
            torch.testing.assert_close(one, other, **near)
        (in_x,) = torch.autograd.grad(fast.fixed()(x), x, towards)
        torch.testing.assert_close(in_x, wanted[1], **near)


@NORMS
def test_slopes_are_the_gradients_in_the_inputs(kind, dtype, near):
    drawn = draw_modules(sources(1, 2), NetworkSpec(kind, 5, 1, OPTIONS), CPU, ensemble=3)
    stack = in_dtype(drawn, dtype)
    x = torch.randn(2, 4, 5, dtype=dtype)
    value, slope = stack.with_slopes(x)
    assert slope.shape == (2, 3, 4, 5)
    for s in range(2):
        for e in range(3):
            row = x[s].clone().requires_grad_()
            out = alone(stack, s, e, row)
            torch.testing.assert_close(value[s, e], out[:, 0], **near)
            torch.testing.assert_close(slope[s, e], torch.autograd.grad(out.sum(), row)[0], **near)
    towards, along = torch.randn_like(value), torch.randn_like(slope)
    second = [
        torch.autograd.grad((value * towards).sum() + (slope.tanh() * along).sum(), stack.weights)[0]
        for value, slope in ((value, slope), slow(stack).with_slopes(x))
    ]
    torch.testing.assert_close(*second, **near)
    assert second[0].abs().sum() > 0


def test_which_networks_take_the_fast_path():
    for kind in KINDS:
        stack = drawn(kind)
        assert type(stack) is (LayerNormStack if kind.startswith("layer_norm") else ModuleStack)
        # Files do not depend on the path: both describe the same rows of numbers.
        assert stack.described() == slow(stack).described()
        again = described_networks(stack.weights, stack.buffers, stack.described())
        assert type(again) is type(stack)
    assert type(drawn("layer_norm", dropout=0.1)) is ModuleStack


def test_networks_can_be_sent_to_other_processes():
    x = torch.randn(2, 7, 5)
    for kind in KINDS:
        stack = drawn(kind)
        sent = pickle.loads(pickle.dumps(stack.fixed()))
        assert torch.equal(sent(x, training=False), stack(x, training=False))


def test_a_member_is_the_same_alone_and_copies_stand_for_themselves():
    together, single = drawn("layer_norm", dropout=0.3), drawn("layer_norm", seeds=(2,), dropout=0.3)
    x = torch.randn(1, 7, 5)
    for _ in range(3):  # each pass has another mask
        torch.testing.assert_close(together(x.expand(2, -1, -1))[1:], single(x))
    kept = single.clone()
    assert torch.equal(kept(x, training=False), single(x, training=False))
    assert not torch.equal(kept(x), single(x))  # other masks
    with torch.no_grad():
        single.weights.add_(1)
    assert not torch.equal(kept(x, training=False), single(x, training=False))
    assert torch.equal(together.member(1)(x, training=False), kept(x, training=False))
    assert torch.equal(together.one(2)(x.expand(2, -1, -1), training=False)[1:], kept.one(2)(x, training=False))


def test_batch_norm_is_pytorchs_until_the_running_statistics_are_trusted(generator):
    own, theirs = BatchNorm(4, warmup=2), nn.BatchNorm1d(4, eps=1e-3, momentum=0.01)
    for _ in range(2):
        x = 3 * torch.randn(64, 4, generator=generator) + 1
        torch.testing.assert_close(own(x), theirs(x))
    torch.testing.assert_close(own.mean, theirs.running_mean)
    torch.testing.assert_close(own.eval()(x), (x - own.mean) / (own.variance + 1e-3).sqrt())
    # From then on values are normalised by the running statistics, as far as r and d may correct.
    own.train()
    own.mean.copy_(x.mean(0) - 0.5)
    own.variance.copy_(x.var(0, unbiased=False) * 1.2)
    expected = (x - own.mean) / (own.variance + 1e-3).sqrt()
    torch.testing.assert_close(own(x), expected, rtol=1e-4, atol=1e-4)
    own.mean.copy_(x.mean(0) - 1000)
    own.variance.fill_(1e-6)
    assert own(x).abs().max() < 5 + 3 * 6  # d at most 5, r at most 3


def test_dropout_keeps_the_mean_and_drops_its_share(generator):
    layer, ones = Dropout(0.2), torch.ones(400, 250)
    layer.seed.fill_(1)  # torch's own generator chooses it, which depends on the tests that ran before
    first, second = layer(ones), layer(ones)
    for found in (first, second):
        assert found.unique().tolist() == [0.0, pytest.approx(1.25)]
        assert abs(float(found.mean()) - 1) < 4 * math.sqrt(0.2 / 0.8 / ones.numel())
        assert abs((found == 0).float().mean(0) - 0.2).max() < 5 * math.sqrt(0.16 / 400)
        assert abs((found == 0).float().mean(1) - 0.2).max() < 5 * math.sqrt(0.16 / 250)
    both = ((first == 0) & (second == 0)).float().mean()  # independent masks
    assert abs(float(both) - 0.04) < 4 * math.sqrt(0.04 / ones.numel())
    neighbours = ((first[:, 1:] == 0) & (first[:, :-1] == 0)).float().mean()
    assert abs(float(neighbours) - 0.04) < 4 * math.sqrt(0.0512 / ones.numel())  # pairs that share a place correlate
    assert torch.equal(layer.eval()(ones), ones)
    with pytest.raises(ConfigError, match="dropout"):
        Dropout(1.0)


def test_simba_as_its_paper_writes_it():
    module = build_network("simba", 5, 2, OPTIONS)
    x = torch.randn(7, 5)
    weights = dict(module.named_parameters())

    def linear(name: str, rows: Tensor) -> Tensor:
        return rows @ weights[f"{name}.weight"].t() + weights[f"{name}.bias"]

    def norm(rows: Tensor) -> Tensor:
        centred = rows - rows.mean(1, keepdim=True)
        return centred / (centred.square().mean(1, keepdim=True) + 1e-6).sqrt()

    h = linear("embed", x)
    for block in ("blocks.0", "blocks.1"):
        h = h + linear(f"{block}.3", linear(f"{block}.1", norm(h)).relu())
    torch.testing.assert_close(module(x), linear("head", norm(h)), rtol=1e-4, atol=1e-5)
    assert weights["blocks.0.1.weight"].shape == (64, 16)


def test_where_layer_norm_sits():
    first, last = (build_network(kind, 5, 1, OPTIONS) for kind in ("layer_norm", "layer_norm_last"))
    order = ["Linear", "LayerNorm", "ReLU"]
    assert [type(layer).__name__ for layer in first] == [*order, *order, "Linear"]
    order = ["Linear", "ReLU", "LayerNorm"]
    assert [type(layer).__name__ for layer in last] == [*order, *order, "Linear"]
    droq = build_network("layer_norm", 5, 1, NetworkOptions(16, 1, dropout=0.1))
    assert [type(layer).__name__ for layer in droq] == ["Linear", "Dropout", "LayerNorm", "ReLU", "Linear"]


def test_a_network_from_outside():
    def bilinear(inputs: int, outputs: int, options: NetworkOptions) -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, options.width), nn.GLU(), nn.Linear(options.width // 2, outputs))

    NETWORKS.register("glu", NetworkFactory(bilinear))
    try:
        config = TD3BCConfig(critic_network="glu", width=8)
        critics = Shape(3, 2, (0, 1), CPU).critics(config, 2)
        assert critics(torch.randn(2, 6, 5)).shape == (2, 2, 6, 1)
    finally:
        NETWORKS.remove("glu")
    with pytest.raises(ConfigError, match="critic_network"):
        TD3BCConfig(critic_network="glu")


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda i, o, options: nn.Linear(i, o + 1), r"\(2, 3\)"),
        (lambda i, o, options: nn.Linear(i + 1, o), "5 inputs and 2 outputs"),
        (lambda i, o, options: 1 / 0, "ZeroDivisionError"),
        (lambda i, o, options: "a string", "nn.Module"),
        (lambda i, o, options: nn.Linear(i, o).double(), "5 inputs and 2 outputs"),
        (lambda i, o, options: nn.Sequential(nn.Identity(), nn.AdaptiveAvgPool1d(o)), "no parameters"),
        (lambda i, o, options: nn.Sequential(nn.Linear(i, o), nn.BatchNorm1d(o)), "synther.agents.networks.BatchNorm"),
    ],
)
def test_networks_that_do_not_fit_are_refused(build, named):
    NETWORKS.register("wrong", NetworkFactory(build))
    try:
        with pytest.raises(ConfigError, match=named):
            build_network("wrong", 5, 2, OPTIONS)
    finally:
        NETWORKS.remove("wrong")


class Branching(nn.Linear):
    """What it does depends on a value, and only in training."""

    def forward(self, x):
        return -super().forward(x) if self.training and x.sum() > 0 else super().forward(x)


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda i, o, options: Branching(i, o), "several members at once .*data-dependent control flow"),
        (lambda i, o, options: nn.Sequential(nn.Linear(i, o), nn.Dropout(0.1)), "synther.agents.networks.Dropout"),
    ],
)
def test_networks_that_cannot_be_trained_together_are_refused_before_training(build, named):
    NETWORKS.register("wrong", NetworkFactory(build))
    try:
        with pytest.raises(ConfigError, match=named):
            Shape(3, 2, (0, 1), CPU).critics(TD3BCConfig(critic_network="wrong"), 2)
    finally:
        NETWORKS.remove("wrong")


def test_what_a_user_types_is_imported_and_nothing_else():
    assert import_named("torch.nn:Linear", "--agent.critic-network") is nn.Linear
    for place in ("no_such_module:x", "torch.nn:NoSuch", "torch.nn"):
        with pytest.raises(ConfigError, match="critic-network"):
            import_named(place, "--agent.critic-network")


CHOICES = {
    "layer norm": {"critic_network": "layer_norm"},
    "dropout": {"critic_network": "layer_norm", "dropout": 0.1, "critic_width": 12, "critic_depth": 1},
    "batch norm": {"critic_network": "batch_norm", "actor_network": "batch_norm"},
    "simba": {"critic_network": "simba", "actor_network": "simba", "weight_decay": 0.01},
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("simba", BCConfig),
        ("dropout", TD3BCConfig),
        ("simba", TD3BCConfig),
        ("batch norm", IQLConfig),
        ("layer norm", EDACConfig),
        ("layer norm", CQLConfig),
    ],
)
def test_agents_train_alone_as_together_and_resume(name, kind, tmp_path):
    config = kind(width=8, depth=2, batch_size=16, **CHOICES[name])
    rows = Rows([table(60, seed=0)], device=CPU)
    whole = Agent(config, rows, [Member(0), Member(1)])
    whole.train(8)
    assert all(np.isfinite(loss).all() for loss in whole.losses().values())
    single = Agent(config, rows, [Member(1)])
    single.train(5)
    single.save(tmp_path / "agent.safetensors")
    resumed = Agent(config, rows, [Member(1)])
    resumed.load(tmp_path / "agent.safetensors")
    resumed.train(3)
    observations = np.random.default_rng(0).normal(size=(5, rows.observation_size))
    np.testing.assert_allclose(resumed.act(observations)[0], whole.act(observations)[1], atol=1e-4)
    for key, tensor in resumed.state().items():
        part = whole.state()[key]
        if part.dim() == tensor.dim() and tensor.dim():
            torch.testing.assert_close(tensor[0], part[1], rtol=1e-3, atol=1e-4)
    resumed.save(tmp_path / "agent.safetensors")
    policy = load_policy(tmp_path / "agent.safetensors")
    np.testing.assert_allclose(policy.act(observations), resumed.act(observations), atol=1e-6)
    (member,) = policy.members()
    np.testing.assert_allclose(member.act(observations), resumed.act(observations)[0], atol=1e-6)
    assert member.act(observations[0]).shape == (rows.action_size,)


@pytest.mark.parametrize("kind", ["layer_norm", "layer_norm_last"])
def test_an_agent_learns_the_same_on_the_fast_path_and_as_a_module(kind):
    NETWORKS.register("as a module", NETWORKS.get(kind))
    try:
        agents = []
        for network in (kind, "as a module"):
            config = TD3BCConfig(width=8, batch_size=16, critic_network=network, actor_network=network)
            agents.append(Agent(config, Rows([table(60, seed=0)], device=CPU), [Member(0), Member(1)]))
    finally:
        NETWORKS.remove("as a module")
    assert [type(agent.algorithm.critics) for agent in agents] == [LayerNormStack, ModuleStack]
    assert_same(*agents)
    for agent in agents:
        agent.train(6)
    assert_close(*agents)


@pytest.mark.parametrize("name", CHOICES)
def test_online_agents_learn_with_these_networks(name):
    config = SACConfig(width=8, batch_size=16, num_critics=3, utd=2, **CHOICES[name])
    learner = Learner(config, [0, 1], 3, [-1.0, -1.0], [1.0, 1.0], capacity=100, device=CPU)
    learner.add(np.random.default_rng(0).uniform(-1, 1, (2, 40, 10)).astype(np.float32).round(2))
    before = learner.state()["critics"].clone()
    for _ in range(2):
        learner.train()
    assert (learner.state()["critics"] != before).any(-1).all()
    assert all(np.isfinite(loss).all() for loss in learner.losses().values())
    assert learner.act(np.zeros((2, 3))).shape == (2, 2)


def test_weight_decay_is_adamws(generator):
    start = torch.randn(2, 6, generator=generator)
    own, theirs = start.clone(), start.clone().requires_grad_()
    adam = Adam(own, 0.01, decay=0.3, betas=(0.5, 0.99))
    reference = torch.optim.AdamW([theirs], 0.01, weight_decay=0.3, betas=(0.5, 0.99))
    for _ in range(4):
        gradient = torch.randn(2, 6, generator=generator)
        adam.step(gradient)
        theirs.grad = gradient
        reference.step()
    torch.testing.assert_close(own, theirs.detach())
    assert not torch.allclose(own, start)


def test_files_of_earlier_versions_have_none_of_these_options():
    assert TD3BCConfig().described().keys().isdisjoint({"actor_network", "critic_network", "dropout", "weight_decay"})
    assert TD3BCConfig(dropout=0.1).described()["dropout"] == 0.1
    for wrong in ({"dropout": 1.0}, {"weight_decay": -1}, {"critic_width": 0}, {"actor_network": "os:system"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            TD3BCConfig(**wrong)
    for without in ("simba", "batch_norm"):
        with pytest.raises(ConfigError, match=f"{without} has no dropout"):
            TD3BCConfig(dropout=0.1, critic_network=without)

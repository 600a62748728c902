"""Every algorithm against the same updates written for one member in plain PyTorch, in float64: losses and weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from synther.agents.agent import ALGORITHMS, HEADS
from synther.agents.algorithm import Algorithm, Noise, Shape
from synther.agents.bc import BC, BCConfig
from synther.agents.cql import CQL, CQLConfig
from synther.agents.crossq import CrossQ, CrossQConfig
from synther.agents.dqn import DQN, DQNConfig
from synther.agents.drq_bc import DrQBC, DrQBCConfig
from synther.agents.drq_v2 import DrQv2, DrQv2Config
from synther.agents.edac import EDAC, EDACConfig
from synther.agents.iql import IQL, IQLConfig
from synther.agents.learner import ONLINE_AGENTS
from synther.agents.noisy_bc import NoisyBC, NoisyBCConfig
from synther.agents.rebrac import ReBRAC, ReBRACConfig
from synther.agents.sac import SAC, SACConfig
from synther.agents.stacked import ModuleStack, Networks, Stack
from synther.agents.td3 import TD3, TD3Config
from synther.agents.td3_bc import TD3BC, TD3BCConfig

from . import plain, textbook
from .tables import CPU

S, B, WIDE, A = 2, 7, 4, 2
SHAPE = Shape(WIDE, A, (0, 1), CPU)
UPDATES = 6
NEAR = {"rtol": 1e-6, "atol": 1e-7}  # Adam makes steps of 1e-9 of gradients that are 0 but for rounding
# Numbers that float32 has too, and no two alike, so that none stands in for another.
SMALL = {"width": 6, "depth": 2, "batch_size": B, "learning_rate": 2.0**-7}
VALUES = {**SMALL, "discount": 0.875, "tau": 0.125}
SIMBA: dict[str, Any] = {
    "actor_network": "simba", "critic_network": "simba", "critic_width": 4, "critic_depth": 1, "weight_decay": 0.25,
    "policy_delay": 1, "policy_value": "min", "target_entropy": -0.5, "first_temperature": 0.25, "log_std": "tanh",
    "utd": 2,
}  # fmt: skip
GAUSSIAN = {"expectile": 0.75, "beta": 96.0, "decay_updates": 4}
FORMS = {
    "bc": (BC, BCConfig(**SMALL), textbook.bc),
    "td3_bc": (TD3BC, TD3BCConfig(**VALUES, target_noise=0.375, policy_delay=3), textbook.td3_bc),
    "iql": (IQL, IQLConfig(**VALUES, **GAUSSIAN), textbook.iql),
    "iql deterministic": (IQL, IQLConfig(**VALUES, **GAUSSIAN, deterministic=True), textbook.iql),
    "edac": (EDAC, EDACConfig(**VALUES, num_critics=4, eta=0.75), textbook.edac),
    "edac, two critics": (EDAC, EDACConfig(**VALUES, num_critics=2, eta=3.0), textbook.edac),
    "cql": (CQL, CQLConfig(**VALUES, policy_rate=2.0**-8, actions=2, weight=2.0), textbook.cql),
    "cql lagrange": (CQL, CQLConfig(**VALUES, policy_rate=2.0**-8, actions=2, target_action_gap=1.5), textbook.cql),
    "sac": (SAC, SACConfig(**VALUES), textbook.sac),
    "redq": (SAC, SACConfig(**VALUES, num_critics=5, utd=3), textbook.sac),
    "one of three critics": (SAC, SACConfig(**VALUES, num_critics=3, num_min_critics=1, utd=2), textbook.sac),
    "simba": (SAC, SACConfig(**VALUES, **SIMBA), textbook.sac),
    "rlpd": (
        SAC,
        SACConfig(**VALUES, num_critics=4, utd=2, critic_network="layer_norm"),
        textbook.sac,
    ),
    "crossq": (CrossQ, CrossQConfig(**SMALL, discount=0.875, critic_width=5), textbook.crossq),
    "dqn": (DQN, DQNConfig(**VALUES), textbook.dqn),
    "td3": (TD3, TD3Config(**VALUES, target_noise=0.375, policy_delay=3), textbook.td3),
    "rebrac": (ReBRAC, ReBRACConfig(**VALUES, actor_penalty=0.75, critic_penalty=1.25), textbook.rebrac),
    "drq_bc": (DrQBC, DrQBCConfig(**VALUES, nstep=2, stddev_updates=4), textbook.drq_bc),
    "drq_bc shared": (DrQBC, DrQBCConfig(**VALUES, stddev_updates=8, features="shared"), textbook.drq_bc),
    "drq_v2": (DrQv2, DrQv2Config(**VALUES, stddev_updates=4), textbook.drq_bc),
    "noisy_bc": (NoisyBC, NoisyBCConfig(**SMALL, stddev_updates=4), textbook.noisy_bc),
}


def test_every_algorithm_is_here():
    known = {algorithm for _, algorithm in (*ALGORITHMS.items(), *HEADS.items())}
    assert {kind for kind, _, _ in FORMS.values()} == known | {agent.algorithm for _, agent in ONLINE_AGENTS.items()}


def prepared(algorithm: Algorithm, generator: torch.Generator) -> Algorithm:
    """In float64, its weights large enough that bounds are met: those of log-deviations, on both sides."""
    algorithm = plain.in_float64(algorithm)
    with torch.no_grad():
        for part in vars(algorithm).values():
            if isinstance(part, Networks):
                part.weights += 0.3 * torch.randn(part.weights.shape, generator=generator, dtype=torch.float64)
            if isinstance(part, ModuleStack):
                part.weights *= plain.used(part)
        if isinstance(algorithm, IQL) and algorithm.actor.free_size:
            algorithm.actor.free[:] = torch.tensor([[0.3, 5.0], [-9.0, 0.0]])
        elif isinstance(algorithm.actor, Stack) and algorithm.actor.sizes[-1] == 2 * A:
            used = len(plain.networks(algorithm.actor, 0).row()) - algorithm.actor.free_size
            algorithm.actor.weights[:, used - 2 : used] += torch.tensor([[3.0, 0.0], [-7.0, 0.0]])
            algorithm.log_temperature.copy_(torch.tensor([-1.0, 0.5]))
    return algorithm


@pytest.mark.parametrize("form", FORMS)
def test_as_written_for_one_member_in_plain_pytorch(form, generator):
    kind, config, update = FORMS[form]
    shape = Shape(WIDE, 1, (0, 1), CPU, choices=3) if kind.discrete else SHAPE
    algorithm = prepared(kind(config, shape), generator)
    members = [plain.Plain(algorithm, config, member) for member in range(S)]
    names = set()
    for number in range(UPDATES):
        batch, noise = plain.drawn(algorithm, shape, B, generator)
        losses = algorithm.update(batch, noise, number % algorithm.period)
        names |= losses.keys()
        for s, member in enumerate(members):
            own = batch.apply(lambda part, s=s: part[s]), Noise(*(part[s] for part in noise))
            expected = update(member, *own, number)
            assert expected.keys() == losses.keys()
            for name, loss in expected.items():
                torch.testing.assert_close(losses[name][s], loss.detach(), **NEAR, msg=name)
    assert names == set(kind.losses)
    for name, part in vars(algorithm).items():
        for s, member in enumerate(members):
            if isinstance(part, Networks):
                rows = part.weights.detach()[s]
                theirs = getattr(member, name)
                pairs = [(rows, theirs)] if rows.dim() == 1 else list(zip(rows, theirs, strict=True))
                for ours, network in pairs:
                    row = network.row()
                    torch.testing.assert_close(ours[: len(row)], row, **NEAR, msg=name)
            elif isinstance(part, torch.Tensor):
                torch.testing.assert_close(part[s], getattr(member, name).detach(), **NEAR, msg=name)


def first(algorithm: Algorithm, name: str) -> list[plain.Network]:
    """All networks of a new stack, which its target begins as."""
    stack = getattr(algorithm, name)
    target = getattr(algorithm, f"target_{name}", stack)
    assert torch.equal(target.weights, stack.weights)
    rows = stack.weights.detach().view(-1, stack.weights.shape[-1])
    assert len(rows.unique(dim=0)) == len(rows)
    return [plain.Network(row, stack.sizes, stack.free_size) for row in rows]


def test_edac_begins_with_the_references_weights():
    algorithm = EDAC(EDACConfig(width=64, num_critics=3), SHAPE)
    for name, bound in (("actor", 1e-3), ("critics", 3e-3)):
        for network in first(algorithm, name):
            *hidden, last = network.layers
            assert len(hidden) == 3
            assert all((layer.bias == 0.1).all() for layer in hidden)
            assert 0.9 * bound < last.weight.abs().max() <= bound
            size = hidden[0].in_features if name == "actor" else hidden[0].out_features
            assert 0.9 * size**-0.5 < hidden[0].weight.abs().max() <= size**-0.5
            assert last.bias.abs().max() <= bound
    assert algorithm.log_temperature.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("algorithm", "gain"),
    [(CQL(CQLConfig(width=16), SHAPE), 2.0), (DrQBC(DrQBCConfig(width=16), SHAPE), 1.0)],
    ids=["cql", "drq_bc"],
)
def test_orthogonal_first_weights(algorithm, gain):
    for network in (*first(algorithm, "actor"), *first(algorithm, "critics")):
        for layer in network.layers:
            matrix = layer.weight if layer.in_features >= layer.out_features else layer.weight.T
            torch.testing.assert_close(matrix @ matrix.T, gain * torch.eye(len(matrix)), rtol=0, atol=1e-5)
            assert not layer.bias.any()
    if isinstance(algorithm, CQL):
        assert algorithm.actor.free.tolist() == [[1, -1]] * S
        assert (algorithm.log_temperature.tolist(), algorithm.log_multiplier.tolist()) == ([0, 0], [1, 1])


@pytest.mark.parametrize(
    "algorithm", [TD3BC(TD3BCConfig(width=64), SHAPE), IQL(IQLConfig(width=64), SHAPE)], ids=["td3_bc", "iql"]
)
def test_other_first_weights_are_pytorchs(algorithm):
    for network in (*first(algorithm, "actor"), *first(algorithm, "critics")):
        for layer in network.layers:
            bound = layer.in_features**-0.5
            assert 0.8 * bound < layer.weight.abs().max() <= bound
            assert 0 < layer.bias.abs().max() <= bound
        assert not network.free.any()

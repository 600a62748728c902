"""Agents that learn from frames: their losses, and what each loss trains, for one member at a time."""

from __future__ import annotations

import torch

from synther.agents.algorithm import Noise
from synther.agents.drq_bc import DrQBCConfig
from synther.agents.noisy_bc import NoisyBCConfig
from synther.pixels.agent import PixelAgent

from .pictures import SMALL, agent
from .plain import encoded, head, trunk


def drawn(made: PixelAgent, generator: torch.Generator):
    """A batch of the agent's frames, and noise for one update."""
    picked = torch.randint(0, len(made.store), (2, 5), generator=generator)
    cuts = torch.randint(0, 9, (2, 5, made.algorithm.uniforms), generator=generator)
    normal = torch.randn(2, 5, made.algorithm.normals, generator=generator)
    return made.store.batch(picked, cuts, torch.float32), Noise(normal, torch.zeros(2, 5, 0))


def updated(made: PixelAgent, generator: torch.Generator):
    """The sixth update, half way to a deviation of 0.1: its batch and noise, the state before, losses and gradients."""
    batch, noise_ = drawn(made, generator)
    own = made.algorithm
    before = {name: tensor.clone() for name, tensor in own.state().items()}
    losses, ending = own.update(batch, noise_, 0), "_adam.mean"
    gradients = {  # of which Adam's mean takes in a tenth
        name.removesuffix(ending): 10 * (tensor - 0.9 * before[name])
        for name, tensor in own.state().items()
        if name.endswith(ending)
    }
    return batch, (0.55 * noise_.normal).clamp(-0.3, 0.3), before, losses, gradients


def agrees(loss: torch.Tensor, member: int, said: torch.Tensor, rows: dict[str, torch.Tensor], gradients) -> None:
    torch.testing.assert_close(said[member], loss.detach(), rtol=1e-4, atol=1e-6)
    for name, gradient in zip(rows, torch.autograd.grad(loss, list(rows.values())), strict=True):
        torch.testing.assert_close(gradients[name][member], gradient, rtol=1e-3, atol=1e-5, msg=name)


def leaves(state: dict[str, torch.Tensor], member: int, *names: str) -> dict[str, torch.Tensor]:
    return {name: state[name][member].clone().requires_grad_() for name in names}


def held(action: torch.Tensor) -> torch.Tensor:
    """Within the box; gradients pass as if it were not."""
    return action - action.detach() + action.detach().clamp(-1, 1)


def test_drq_bc_by_hand(generator):
    made = agent(DrQBCConfig(**{**SMALL, "stddev_updates": 10}, discount=0.9, nstep=2), updates=5)
    own = made.algorithm
    batch, noises, before, losses, gradients = updated(made, generator)
    assert gradients.keys() == {"encoder", "actor_trunk", "critic_trunk", "actor", "critics"}
    for s in range(2):
        for_target, for_policy = noises[s].chunk(2, -1)
        learned = leaves(before, s, "encoder", "critic_trunk", "critics")
        with torch.no_grad():
            following = encoded(before["encoder"][s], batch.next_observation[s])
            next_mean = head(before["actor"][s], own.actor.sizes, trunk(before["actor_trunk"][s], following)).tanh()
            seen = torch.cat([trunk(before["target_critic_trunk"][s], following), held(next_mean + for_target)], -1)
            worth = head(before["target_critics"][s], own.critics.sizes, seen).squeeze(-1).amin(0)
            aim = batch.reward[s] + 0.81 * (1 - batch.terminal[s]) * worth
        pictures = encoded(learned["encoder"], batch.observation[s])
        pair = torch.cat([trunk(learned["critic_trunk"], pictures), batch.action[s]], -1)
        values = head(learned["critics"], own.critics.sizes, pair).squeeze(-1)
        agrees((values - aim).square().mean(1).sum(), s, losses["critic"], learned, gradients)
        # The critics are updated first, and see what was encoded before.
        learned = leaves(before, s, "actor_trunk", "actor")
        pictures = pictures.detach()
        action = held(
            head(learned["actor"], own.actor.sizes, trunk(learned["actor_trunk"], pictures)).tanh() + for_policy
        )
        seen = torch.cat([trunk(own.critic_trunk.weights[s].detach(), pictures), action], -1)
        value = head(own.critics.weights[s].detach(), own.critics.sizes, seen).squeeze(-1).amin(0)
        loss = -2.5 / value.detach().abs().mean() * value.mean() + (action - batch.action[s]).square().mean()
        agrees(loss, s, losses["actor"], learned, gradients)


def test_bc_by_hand(generator):
    made = agent(NoisyBCConfig(**{**SMALL, "stddev_updates": 10}), updates=5)
    batch, noises, before, losses, gradients = updated(made, generator)
    for s in range(2):
        learned = leaves(before, s, "encoder", "actor_trunk", "actor")
        seen = trunk(learned["actor_trunk"], encoded(learned["encoder"], batch.observation[s]))
        action = held(head(learned["actor"], made.algorithm.actor.sizes, seen).tanh() + noises[s])
        agrees((action - batch.action[s]).square().mean(), s, losses["actor"], learned, gradients)

"""Networks and losses of pixel agents against plain PyTorch, and what each loss trains, one member at a time."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch.nn import functional

from synther.agents.algorithm import Noise, Shape
from synther.agents.drq_bc import DrQBCConfig
from synther.agents.noisy_bc import NoisyBCConfig
from synther.errors import DataError
from synther.pixels.agent import PixelAgent
from synther.pixels.encoder import FEATURES, draw_encoder, draw_trunk, encoded_size

from .pictures import CPU, SMALL, agent


def head(rows: torch.Tensor, sizes: tuple[int, ...], x: torch.Tensor) -> torch.Tensor:
    """Each network of `rows` (E, P), or the one of (P,), on x (B, in): (E, B, out), (B, out)."""
    if rows.dim() == 2:
        return torch.stack([head(row, sizes, x) for row in rows])
    shapes = list(pairwise(sizes))
    at, bias_at = 0, sum(inputs * outputs for inputs, outputs in shapes)
    for layer, (inputs, outputs) in enumerate(shapes):
        x = x @ rows[at : at + inputs * outputs].view(inputs, outputs) + rows[bias_at : bias_at + outputs]
        x = x.relu() if layer < len(shapes) - 1 else x
        at, bias_at = at + inputs * outputs, bias_at + outputs
    return x


def trunk(row: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    matrix, bias, gain, shift, _ = row.split([x.shape[1] * 50, 50, 50, 50, len(row) - 50 * (x.shape[1] + 3)])
    return functional.layer_norm(x @ matrix.view(-1, 50) + bias, (50,), gain, shift).tanh()


def encoded(row: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    for stride in (2, 1, 1, 1):
        count = 32 * 9 * x.shape[1]
        kernel, bias, row = row.split([count, 32, len(row) - count - 32])
        x = functional.conv2d(x, kernel.view(32, 3, 3, -1).permute(0, 3, 1, 2), bias, stride).relu()
    return x.permute(0, 2, 3, 1).flatten(1)


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


FRAME = (6, 19, 22)


def test_an_encoder_is_four_convolutions_and_begins_orthogonal(generator):
    encoder = draw_encoder([0, 1], 7, FRAME, CPU)
    row = encoder.weights[1].detach()
    for inputs in (6, 32, 32, 32):
        kernel, bias, row = row.split([32 * 9 * inputs, 32, len(row) - 32 * 9 * inputs - 32])
        matrix = kernel.view(32, -1)
        torch.testing.assert_close(matrix @ matrix.t(), 2 * torch.eye(32), atol=1e-5, rtol=0)
        assert torch.equal(bias, torch.zeros(32))
    encoder.weights.data += 0.05 * torch.randn(encoder.weights.shape, generator=generator)  # biases are not 0 then
    x = torch.rand(2, 3, *FRAME, generator=generator) - 0.5
    got = encoder(x)
    for member in range(2):
        torch.testing.assert_close(got[member], encoded(encoder.weights[member], x[member]))
    assert got.shape == (2, 3, encoder.features)


def test_shapes_at_84_pixels():
    assert encoded_size((9, 84, 84)) == (32, 35, 35)
    encoder = draw_encoder([0], 7, (9, 84, 84), CPU)
    assert encoder.weights.shape == (1, 9 * 9 * 32 + 32 + 3 * (32 * 9 * 32 + 32))
    assert encoder(torch.zeros(1, 1, 9, 84, 84)).shape == (1, 1, 39_200)
    assert encoded_size((3, 15, 15)) == (32, 1, 1)
    for frame in ((9, 14, 84), (9, 84, 14)):
        with pytest.raises(DataError, match="15 x 15"):
            draw_encoder([0], 7, frame, CPU)


def test_members_follow_from_their_seeds_alone(generator):
    together, alone = draw_encoder([5, 6], 7, FRAME, CPU), draw_encoder([6], 7, FRAME, CPU)
    assert torch.equal(together.weights[1:], alone.weights)
    assert not torch.equal(together.weights[0], together.weights[1])
    x = torch.rand(2, 4, *FRAME, generator=generator)
    assert torch.equal(together(x)[1:], alone(x[1:]))


def test_a_trunk_is_linear_then_norm_then_tanh_and_begins_orthogonal(generator):
    made = draw_trunk(Shape(FEATURES, 2, (0, 1), CPU), 7, 96)
    matrix = made.weights[1, : 96 * FEATURES].detach().view(96, FEATURES)
    torch.testing.assert_close(matrix.t() @ matrix, torch.eye(FEATURES), atol=1e-5, rtol=0)
    rest = made.weights[1, 96 * FEATURES :].detach()
    assert torch.equal(rest[: 3 * FEATURES], torch.tensor([0.0, 1.0, 0.0]).repeat_interleave(FEATURES))
    made.weights.data += 0.1 * torch.randn(made.weights.shape, generator=generator)
    x = torch.randn(2, 5, 96, generator=generator)
    for member in range(2):
        expected = trunk(made.weights[member].double(), x[member].double()).float()
        torch.testing.assert_close(made(x)[member], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("inputs", [32, 39_200])
def test_a_product_in_parts_is_the_product(inputs, generator):
    made = draw_trunk(Shape(FEATURES, 2, (0,), CPU), 7, inputs)
    assert made._parts > 1
    assert inputs % (8 * made._parts) == 0
    x, matrix = torch.randn(1, 2, inputs, generator=generator), made.weights[0, : inputs * FEATURES].detach()
    y = functional.layer_norm(x[0] @ matrix.view(inputs, FEATURES), (FEATURES,))
    torch.testing.assert_close(made(x)[0].detach(), y.tanh(), atol=1e-5, rtol=1e-4)

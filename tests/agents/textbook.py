"""Each algorithm's update once more: one member, in the order its paper has it.

An update is a function of a member, a batch and noise of its own, and the number of the update. It answers what it has
minimised.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributions import Normal, TanhTransform
from torch.nn.functional import mse_loss

from synther.agents.algorithm import Noise
from synther.agents.drq_bc import HeadsConfig
from synther.agents.rows import Batch

from .plain import Plain


def step(optimiser: torch.optim.Optimizer, loss: Tensor) -> Tensor:
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    return loss.detach()


def follow(targets: nn.Module, ahead: nn.Module, tau: float) -> None:
    for old, new in zip(targets.parameters(), ahead.parameters(), strict=True):
        old.data = (1 - tau) * old.data + tau * new.data


def every(critics: Iterable[nn.Module], *pair: Tensor) -> Tensor:
    """(E, B)"""
    return torch.stack([critic(*pair)[:, 0] for critic in critics])


def lowest(critics: Iterable[nn.Module], *pair: Tensor) -> Tensor:
    return every(critics, *pair).min(0).values


def errors(critics: Iterable[nn.Module], y: Tensor, *pair: Tensor) -> Tensor:
    """Of each critic. (E,)"""
    return torch.stack([mse_loss(value, y) for value in every(critics, *pair)])


def squashed(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions, and their density by the change of variables."""
    normal = Normal(mean, log_std.exp())
    x = normal.mean + normal.stddev * noise
    return x.tanh(), (normal.log_prob(x) - TanhTransform().log_abs_det_jacobian(x, x.tanh())).sum(-1)


def gaussian(actor: nn.Module, seen: Tensor, noise: Tensor, least: float) -> tuple[Tensor, Tensor]:
    mean, log_std = actor(seen).chunk(2, -1)
    return squashed(mean, log_std.clamp(least, 2), noise)


def noisy(actor: nn.Module, seen: Tensor, normal: Tensor, spread: float) -> Tensor:
    """DrQ-v2's: what is held within a bound passes its gradient on."""
    moved = actor(seen).tanh() + (spread * normal).clamp(-0.3, 0.3)
    return moved - moved.detach() + moved.detach().clamp(-1, 1)


def smoothed(own: Plain, there: Tensor, noise: Noise) -> Tensor:
    """TD3's next actions: the target policy's, with clipped noise."""
    c = own.config
    disturbance = (c.target_noise * noise.normal).clamp(-c.noise_clip, c.noise_clip)
    return (own.target_actor(there).tanh() + disturbance).clamp(-1, 1)


def bc(own: Plain, batch: Batch, noise: Noise, number: int) -> dict[str, Tensor]:
    return {"actor": step(own.actor_adam, mse_loss(own.actor(batch.observation).tanh(), batch.action))}


def td3_bc(own: Plain, batch: Batch, noise: Noise, number: int) -> dict[str, Tensor]:
    here, action, reward, there, terminal = batch[:5]
    c = own.config
    with torch.no_grad():
        next_action = smoothed(own, there, noise)
        y = reward + c.discount * (1 - terminal) * lowest(own.target_critics, there, next_action)
    losses = {"critic": step(own.critics_adam, errors(own.critics, y, here, action).sum())}
    if (number + 1) % c.policy_delay == 0:
        pi = own.actor(here).tanh()
        q = own.critics[0](here, pi)[:, 0]
        loss = -c.alpha / q.abs().mean().detach() * q.mean() + mse_loss(pi, action)
        losses["actor"] = step(own.actor_adam, loss)
        follow(own.target_critics, own.critics, c.tau)
        follow(own.target_actor, own.actor, c.tau)
    return losses


def td3(own: Plain, batch: Batch, noise: Noise, number: int) -> dict[str, Tensor]:
    here, action, reward, there, terminal = batch[:5]
    c = own.config
    with torch.no_grad():
        next_action = smoothed(own, there, noise)
        y = reward + c.discount * (1 - terminal) * lowest(own.target_critics, there, next_action)
    losses = {"critic": step(own.critics_adam, errors(own.critics, y, here, action).sum())}
    if (number + 1) % c.policy_delay == 0:
        losses["actor"] = step(own.actor_adam, -own.critics[0](here, own.actor(here).tanh()).mean())
        follow(own.target_critics, own.critics, c.tau)
        follow(own.target_actor, own.actor, c.tau)
    return losses


def dqn(own: Plain, batch: Batch, noise: Noise, number: int) -> dict[str, Tensor]:
    here, action, reward, there, terminal = batch[:5]
    taken = torch.tensor([{-1.0: 0, 0.0: 1, 1.0: 2}[round(float(one), 3)] for one in action[:, 0]])
    with torch.no_grad():
        best = own.actor(there).max(1).indices
        y = reward + own.config.discount * (1 - terminal) * own.target(there)[range(len(best)), best]
    q = own.actor(here)[range(len(taken)), taken]
    loss = torch.where((q - y).abs() < 1, 0.5 * (q - y) ** 2, (q - y).abs() - 0.5).mean()
    losses = {"critic": step(own.adam, loss)}
    follow(own.target, own.actor, own.config.tau)
    return losses


def rebrac(own: Plain, batch: Batch, noise: Noise, number: int) -> dict[str, Tensor]:
    here, action, reward, there, terminal = batch[:5]
    c = own.config
    with torch.no_grad():
        next_action = smoothed(own, there, noise)
        penalty = c.critic_penalty * ((next_action - batch.next_action) ** 2).sum(-1)
        worth = lowest(own.target_critics, there, next_action) - torch.where(batch.next_known == 1, penalty, 0.0)
        y = reward + c.discount * (1 - terminal) * worth
    losses = {"critic": step(own.critics_adam, errors(own.critics, y, here, action).sum())}
    if (number + 1) % c.policy_delay == 0:
        pi = own.actor(here).tanh()
        q = lowest(own.critics, here, pi)
        loss = (c.actor_penalty * ((pi - action) ** 2).sum(-1) - q / q.abs().mean().detach()).mean()
        losses["actor"] = step(own.actor_adam, loss)
        follow(own.target_critics, own.critics, c.tau)
        follow(own.target_actor, own.actor, c.tau)
    return losses


def crossq(own: Plain, batch: Batch, noise: Noise, number: int) -> dict[str, Tensor]:
    here, action, reward, there, terminal = batch[:5]
    c, (here_noise, there_noise) = own.config, noise.normal.chunk(2, -1)
    alpha = own.log_temperature.exp().detach()
    with torch.no_grad():
        next_action, next_log_pi = gaussian(own.actor.eval(), there, there_noise, -20)
    seen, done = torch.cat([here, there]), torch.cat([action, next_action])
    both = every(own.critics.train(), seen, done)
    q, next_q = both.chunk(2, 1)
    y = reward + c.discount * (1 - terminal) * (next_q.min(0).values.detach() - alpha * next_log_pi)
    losses = {"critic": step(own.critics_adam, 0.5 * sum(mse_loss(each, y) for each in q))}
    if (number + 1) % c.policy_delay == 0:
        pi, log_pi = gaussian(own.actor.train(), here, here_noise, -20)
        losses["actor"] = step(own.actor_adam, (alpha * log_pi - lowest(own.critics.eval(), here, pi)).mean())
        step(own.temperature_adam, -(own.log_temperature * (log_pi.detach() - action.shape[1])).mean())
        losses |= {"temperature": alpha, "entropy": -log_pi.mean()}
    return losses


def iql(own: Plain, batch: Batch, noise: Noise, number: int) -> dict[str, Tensor]:
    here, action, reward, there, terminal = batch[:5]
    c = own.config
    with torch.no_grad():
        next_value = own.value(there)[:, 0]
        q = lowest(own.target_critics, here, action)
    advantage = q - own.value(here)[:, 0]
    weight = torch.where(advantage < 0, 1 - c.expectile, c.expectile)
    losses = {"value": step(own.value_adam, (weight * advantage**2).mean())}
    y = reward + c.discount * (1 - terminal) * next_value
    losses["critic"] = step(own.critics_adam, errors(own.critics, y, here, action).mean())
    follow(own.target_critics, own.critics, c.tau)
    output = own.actor(here)
    if c.deterministic:
        imitation = ((output.tanh() - action) ** 2).sum(-1)
    else:
        policy = Normal(output, own.actor.free.clamp(-5, 2).exp())
        imitation = -policy.log_prob(action).sum(-1)
    preferred = (c.beta * advantage.detach()).exp().clamp(max=100)
    rate = c.learning_rate * (1 + math.cos(math.pi * min(number / c.decay_updates, 1))) / 2
    own.actor_adam.param_groups[0]["lr"] = rate
    return losses | {"actor": step(own.actor_adam, (preferred * imitation).mean())}


def edac(own: Plain, batch: Batch, noise: Noise, number: int) -> dict[str, Tensor]:
    here, action, reward, there, terminal = batch[:5]
    c, (here_noise, there_noise) = own.config, noise.normal.chunk(2, -1)
    pi, log_pi = gaussian(own.actor, here, here_noise, -5)
    step(own.temperature_adam, -(own.log_temperature * (log_pi.detach() - action.shape[1])).mean())
    alpha = own.log_temperature.exp().detach()
    losses = {"actor": step(own.actor_adam, (alpha * log_pi - lowest(own.critics, here, pi)).mean())}
    with torch.no_grad():
        next_action, next_log_pi = gaussian(own.actor, there, there_noise, -5)
        worth = lowest(own.target_critics, there, next_action) - alpha * next_log_pi
        y = reward + c.discount * (1 - terminal) * worth
    own_action = action.clone().requires_grad_()
    of_data = every(own.critics, here, own_action)
    slopes = [torch.autograd.grad(value.sum(), own_action, create_graph=True)[0] for value in of_data]
    units = [slope / (slope.norm(dim=-1, keepdim=True) + 1e-10) for slope in slopes]
    pairs = [(one * other).sum(-1).mean() for one in units for other in units if one is not other]
    losses |= {"critic": errors(own.critics, y, here, action).sum(), "similarity": sum(pairs) / (len(units) - 1)}
    step(own.critics_adam, losses["critic"] + c.eta * losses["similarity"])
    follow(own.target_critics, own.critics, c.tau)
    return losses | {"temperature": alpha}


def cql(own: Plain, batch: Batch, noise: Noise, number: int) -> dict[str, Tensor]:
    """All gradients are taken before the first weight moves."""
    here, action, reward, there, terminal = batch[:5]
    c, size = own.config, action.shape[1]
    one_here, one_there, *others = noise.normal.split(size, -1)

    def act(seen: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
        mean, output = own.actor(seen).chunk(2, -1)
        slope, offset = own.actor.free
        return squashed(mean, (slope * output + offset).clamp(-20, 2), normal)

    pi, log_pi = act(here, one_here)
    alpha = own.log_temperature.exp()
    actor = (alpha.detach() * log_pi - lowest(own.critics, here, pi)).mean()
    temperature = -(own.log_temperature * (log_pi.detach() - size)).mean()
    with torch.no_grad():
        y = reward + c.discount * (1 - terminal) * lowest(own.target_critics, there, act(there, one_there)[0])
        drawn = [act(here, normal) for normal in others[: c.actions]]
        drawn += [act(there, normal) for normal in others[c.actions :]]
        drawn += [(uniform, -size * math.log(2)) for uniform in noise.uniform.split(size, -1)]
    weighted = sum((every(own.critics, here, each) - log_density).exp() for each, log_density in drawn)
    gaps = (weighted.log() - every(own.critics, here, action)).mean(1)
    critic = errors(own.critics, y, here, action).sum()
    if c.target_action_gap is None:
        penalty = c.weight * gaps.sum()
    else:
        penalty = own.log_multiplier.exp().clamp(max=1e6) * c.weight * (gaps - c.target_action_gap).sum()
    optimisers = [own.actor_adam, own.temperature_adam, own.critics_adam, own.multiplier_adam]
    found = [actor, temperature, critic + penalty, None if c.target_action_gap is None else -0.5 * penalty]
    pairs = [(optimiser, loss) for optimiser, loss in zip(optimisers, found, strict=True) if loss is not None]
    for optimiser, loss in pairs:
        weights = optimiser.param_groups[0]["params"]
        gradients = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
    for optimiser, _ in pairs:
        optimiser.step()
    follow(own.target_critics, own.critics, c.tau)
    return {"critic": critic, "gap": gaps.mean(), "actor": actor, "temperature": alpha}


def sac(own: Plain, batch: Batch, noise: Noise, number: int) -> dict[str, Tensor]:
    here, action, reward, there, terminal = batch[:5]
    c, (here_noise, there_noise) = own.config, noise.normal.chunk(2, -1)
    alpha = own.log_temperature.exp().detach()

    def act(seen: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
        if c.log_std == "clamp":
            return gaussian(own.actor, seen, normal, -20)
        mean, output = own.actor(seen).chunk(2, -1)
        return squashed(mean, -10 + 6 * (1 + output.tanh()), normal)

    keys = noise.uniform[: c.num_critics, 0].tolist()
    subset = sorted(range(c.num_critics), key=lambda index: -keys[index])[: c.num_min_critics]
    with torch.no_grad():
        next_action, log_pi = act(there, there_noise)
        worth = lowest([own.target_critics[index] for index in subset], there, next_action) - alpha * log_pi
        y = reward + c.discount * (1 - terminal) * worth
    losses = {}
    if (number + 1) % (c.policy_delay or c.utd) == 0:
        pi, log_pi = act(here, here_noise)
        q = every(own.critics, here, pi)
        worth = q.mean(0) if c.policy_value == "mean" else q.min(0).values
        losses["actor"] = step(own.actor_adam, (alpha * log_pi - worth).mean())
        wanted = c.target_entropy * action.shape[1]
        step(own.temperature_adam, -(own.log_temperature * (log_pi.detach() + wanted)).mean())
        losses |= {"temperature": alpha, "entropy": -log_pi.mean()}
    losses["critic"] = step(own.critics_adam, errors(own.critics, y, here, action).sum())
    follow(own.target_critics, own.critics, c.tau)
    return losses


def drq_bc(own: Plain, batch: Batch, noise: Noise, number: int) -> dict[str, Tensor]:
    c, (for_target, for_policy) = own.config, noise.normal.chunk(2, -1)
    both = c.features == "both"
    here, there = (seen.chunk(2, -1) if both else (seen, seen) for seen in (batch.observation, batch.next_observation))
    spread = falling(number, c)
    with torch.no_grad():
        next_action = noisy(own.actor, there[0], for_target, spread)
        worth = lowest(own.target_critics, there[1], next_action)
        y = batch.reward + c.discount**c.nstep * (1 - batch.terminal) * worth
    losses = {"critic": step(own.critics_adam, errors(own.critics, y, here[1], batch.action).sum())}
    pi = noisy(own.actor, here[0], for_policy, spread)
    q = lowest(own.critics, here[1], pi)
    loss = -q.mean()  # DrQ-v2's, which has no weight
    if c.alpha:
        loss = c.alpha / q.abs().mean().detach() * loss + mse_loss(pi, batch.action)
    losses["actor"] = step(own.actor_adam, loss)
    follow(own.target_critics, own.critics, c.tau)
    return losses


def noisy_bc(own: Plain, batch: Batch, noise: Noise, number: int) -> dict[str, Tensor]:
    pi = noisy(own.actor, batch.observation, noise.normal, falling(number, own.config))
    return {"actor": step(own.actor_adam, mse_loss(pi, batch.action))}


def falling(number: int, config: HeadsConfig) -> float:
    """The deviation, from 1 to 0.1."""
    return 1 - 0.9 * min(number / config.stddev_updates, 1)

"""ReBRAC (Tarasov et al. 2023): TD3+BC with a penalty in the critics too, layer norm in the critics, large batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from synther.agents.adam import Adam
from synther.agents.algorithm import Algorithm, Noise, Shape, StateAgentConfig
from synther.agents.critics import backup, min_over_critics, squared_errors, values
from synther.agents.networks import Initial
from synther.agents.rows import Batch


@dataclass(frozen=True)
class ReBRACConfig(StateAgentConfig):
    depth: int = 3
    batch_size: int = 1024
    learning_rate: float = 1e-3
    normalize: bool = False
    critic_network: str = field(default="layer_norm_last", kw_only=True)
    discount: float = 0.99
    tau: float = 0.005
    """Fraction by which the target networks move per policy update."""
    actor_penalty: float = 0.01
    """Weight of the squared distance between the policy's and the data's actions, in the policy's loss."""
    critic_penalty: float = 0.01
    """The same at the next state, in the critics' target. Rows whose next action is not known, such as generated
    ones, have none."""
    target_noise: float = 0.2
    noise_clip: float = 0.5
    policy_delay: int = 2
    """Critic updates per update of the policy and the target networks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._share("discount", "tau")
        self._at_least(0, "actor_penalty", "critic_penalty", "target_noise", "noise_clip")
        self._at_least(1, "policy_delay")


class ReBRAC(Algorithm):
    config_class = ReBRACConfig
    losses: ClassVar[tuple[str, ...]] = ("critic", "actor")
    needs_next_action = True

    def __init__(self, config: ReBRACConfig, shape: Shape) -> None:
        self.config = config
        self.normals, self.period = shape.action, config.policy_delay
        self.actor = shape.actor(config, shape.action, initial=Initial(hidden_bias=0.1, last=1e-3))
        self.critics = shape.critics(config, 2, initial=Initial(hidden_bias=0.1, last=3e-3))
        self.target_actor, self.target_critics = self.actor.clone(), self.critics.clone()
        self.actor_adam = Adam(self.actor.weights, config.learning_rate, decay=config.weight_decay)
        self.critics_adam = Adam(self.critics.weights, config.learning_rate, decay=config.weight_decay)

    def update(self, batch: Batch, noise: Noise, step: int) -> dict[str, Tensor]:
        c = self.config
        delayed = (step + 1) % c.policy_delay == 0
        critic_loss = squared_errors(self.critics(batch.pair).squeeze(-1), self._target(batch, noise)).sum(1)
        self.critics_adam.minimise(critic_loss, follower=self.target_critics if delayed else None, tau=c.tau)
        if not delayed:
            return {"critic": critic_loss.detach()}
        action = self.actor(batch.observation).tanh()
        value = min_over_critics(values(self.critics.fixed(), batch.observation, action))
        distance = (action - batch.action).square().sum(-1)
        scale = 1 / value.detach().abs().mean(1)
        actor_loss = c.actor_penalty * distance.mean(1) - scale * value.mean(1)
        self.actor_adam.minimise(actor_loss, follower=self.target_actor, tau=c.tau)
        return {"critic": critic_loss.detach(), "actor": actor_loss.detach()}

    @torch.no_grad()
    def _target(self, batch: Batch, noise: Noise) -> Tensor:
        c = self.config
        assert batch.next_action is not None
        assert batch.next_known is not None
        disturbance = (c.target_noise * noise.normal).clamp(-c.noise_clip, c.noise_clip)
        next_action = (self.target_actor(batch.next_observation).tanh() + disturbance).clamp(-1, 1)
        next_value = min_over_critics(values(self.target_critics, batch.next_observation, next_action))
        distance = (next_action - batch.next_action).square().sum(-1) * batch.next_known
        return backup(batch, next_value - c.critic_penalty * distance, c.discount)

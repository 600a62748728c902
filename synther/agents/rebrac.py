"""ReBRAC (Tarasov et al. 2023): TD3+BC with a penalty also in the critics, layer norm in the critics, large batches."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from synther.agents.algorithm import TargetConfig
from synther.agents.critics import backup, min_over_critics, values
from synther.agents.networks import Initial
from synther.agents.rows import Batch
from synther.agents.td3_bc import TD3BC


@dataclass(frozen=True)
class ReBRACConfig(TargetConfig):
    """Options of ReBRAC."""

    depth: int = 3
    """Number of hidden layers."""
    batch_size: int = 1024
    """Rows per update."""
    learning_rate: float = 1e-3
    """Learning rate of Adam."""
    normalize: bool = False
    """Normalize observations by the mean and standard deviation of the real data."""
    critic_network: str = field(default="layer_norm_last", kw_only=True)
    """Network of the critics, with the same choices as actor_network."""
    actor_penalty: float = 0.01
    """Weight of the squared distance between the policy's and the data's actions, in the policy's loss."""
    critic_penalty: float = 0.01
    """Weight of the same distance at the next state, in the critics' target. Rows without a known next action have no
    penalty: the last rows of episodes, and synthetic rows without an extra column `next_action`."""
    target_noise: float = 0.2
    """Standard deviation of the noise on the next action in the critics' target."""
    noise_clip: float = 0.5
    """Bound of this noise."""
    policy_delay: int = 2
    """Critic updates per update of the policy and the target networks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(0, "actor_penalty", "critic_penalty", "target_noise", "noise_clip")
        self._at_least(1, "policy_delay")


class ReBRAC(TD3BC):
    """TD3+BC with the penalties and initial weights of ReBRAC."""

    config: ReBRACConfig
    config_class = ReBRACConfig
    needs_next_action = True
    first_actor = Initial(hidden_bias=0.1, last=1e-3)
    first_critics = Initial(hidden_bias=0.1, last=3e-3)

    def _reward(self, batch: Batch, next_action: Tensor) -> Tensor:
        assert batch.next_action is not None
        assert batch.next_known is not None
        distance = (next_action - batch.next_action).square().sum(-1) * batch.next_known
        return backup(batch, -self.config.critic_penalty * distance, self.config.discount)

    def _policy_loss(self, batch: Batch, action: Tensor) -> Tensor:
        value = min_over_critics(values(self.critics.fixed(), batch.observation, action))
        distance = (action - batch.action).square().sum(-1)
        scale = 1 / value.detach().abs().mean(1)
        return self.config.actor_penalty * distance.mean(1) - scale * value.mean(1)

"""TD3 (Fujimoto et al. 2018), online: two critics, a delayed deterministic policy, and noise on its actions."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from synther.agents.algorithm import OnlineConfig, Shape
from synther.agents.critics import values
from synther.agents.rows import Batch
from synther.agents.td3_bc import TD3BC


@dataclass(frozen=True)
class TD3Config(OnlineConfig):
    """Options of TD3."""

    exploration_noise: float = 0.1
    """Standard deviation of the exploration noise, for actions in [-1, 1]."""
    target_noise: float = 0.2
    """Standard deviation of the noise on the next action in the critics' target."""
    noise_clip: float = 0.5
    """Bound of the noise in the target."""
    policy_delay: int = 2
    """Critic updates per update of the policy and the target networks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(0, "exploration_noise", "target_noise", "noise_clip")
        self._at_least(1, "policy_delay")


class TD3(TD3BC):
    """TD3: TD3+BC without imitation, with exploration noise."""

    config_class = TD3Config

    def __init__(self, config: TD3Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.exploration_noise = config.exploration_noise

    def _policy_loss(self, batch: Batch, action: Tensor) -> Tensor:
        return -values(self.critics.one(0), batch.observation, action).mean(1)

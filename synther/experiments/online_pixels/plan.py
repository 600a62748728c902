"""What an online run of agents that see is: beside that of states, how frames are drawn and heads are trained."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from synther import compute
from synther.agents.drq_v2 import DrQv2Config
from synther.envs.pixels import REPEAT, SIZE
from synther.errors import ConfigError
from synther.experiments.online.plan import Plan, Upsampling
from synther.plain import check_least


@dataclass(frozen=True)
class LatentUpsampling(Upsampling):
    """A generator of each seed's own latents, fitted anew as its frames come in and as it learns to see them.

    After every refresh the heads alone learn from real and synthetic latents, and are given back. Then all latents are
    dropped, so that none is older than the eyes that it is learned with.
    """

    samples: int = 250_000
    updates: int = 5_000
    """Of the heads, after every refresh."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.updates < 1:
            raise ConfigError(f"updates, of the heads after a refresh, must be at least 1, got {self.updates}")


@dataclass(frozen=True)
class PixelPlan(Plan):
    """How a run acts, learns and evaluates. The numbers are DrQ-v2's.

    A step is one decision in the world of every seed, whose action is taken `repeat` times.
    """

    agent: DrQv2Config = field(default_factory=DrQv2Config)  # type: ignore[assignment]  # another agent than of states
    upsampling: LatentUpsampling | None = None
    random_steps: int = 2_000
    update_every: int = 2
    """Steps for one update."""
    capacity: int = 1_000_000
    """Frames of each seed that are kept."""
    evaluate_every: int = 10_000
    repeat: int = REPEAT
    size: int = SIZE
    """Pixels of a side of the frames."""
    precision: compute.Precision = "auto"  # type: ignore[assignment]  # convolutions have a use for bf16

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, update_every=1, repeat=1, size=1)
        if min(self.random_steps, self.leg_after(0)) < self.agent.nstep < self.steps:
            raise ConfigError(
                f"agents learn from agent.nstep, {self.agent.nstep}, steps at a time: random_steps, checkpoint_every "
                "and refresh_every must be at least that"
            )
        if self.env_options:
            raise ConfigError(f"tasks of the dm_control suite take no env_options, got {self.env_options}")

    @property
    def name(self) -> str:
        return "drq_v2" if self.upsampling is None else "drq_v2_synther"

    def is_refreshed(self, step: int) -> bool:
        """Nor are generators fitted before anybody has begun to learn to see."""
        return step > self.random_steps and super().is_refreshed(step)

    @property
    def frames(self) -> int:
        """For which there is room, resets included: for all of them where episodes have twenty decisions or more.

        Only there is a run that was extended the same as one that was as long from the start.
        """
        return min(self.capacity, self.steps + self.steps // 20 + len(self.legs_until(self.steps)))

    def description(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("update_every", "repeat", "size")}
        return {"kind": "online_pixels", **super().description(), **own}

"""What an online run is: an environment, an agent, how long, and how its experience is upsampled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from synther.agents.sac import SAC_CONFIG, SACConfig
from synther.envs.making import Trusted
from synther.errors import ConfigError
from synther.experiments import tracking
from synther.experiments.schedule import Schedule
from synther.folder import Growth
from synther.plain import check_env_options, check_least
from synther.presets import Settings
from synther.replay.refit import Refit


@dataclass(frozen=True)
class Upsampling:
    """A generator of each seed's own rows, fitted anew as they come in."""

    settings: Settings
    refresh_every: int = 10_000
    """Steps after which it is fitted again and all synthetic rows are replaced."""
    samples: int = 1_000_000
    """Synthetic rows of each seed."""
    ratio: float = 0.5
    """Their share in every batch, once there are some."""
    refit: Refit = "warm"
    """From the weights of the fit before, stopped early, or from scratch as in the paper."""

    def __post_init__(self) -> None:
        check_least(self, refresh_every=1, samples=1)
        if not 0 < self.ratio <= 1:
            raise ConfigError(f"ratio, the synthetic share of a batch, must lie in (0, 1], got {self.ratio}")
        if self.refit not in get_args(Refit):
            raise ConfigError(f"refit must be one of {', '.join(get_args(Refit))}, got {self.refit!r}")
        if self.settings.fit.minutes is not None:
            raise ConfigError("fit.minutes ends a fit by the clock, and no run comes out like another: set fit.steps")


@dataclass(frozen=True)
class Plan:
    """How a run acts, learns and evaluates.

    A step is one decision in the environment of every seed. Where a leg ends, every `checkpoint_every` steps and at
    every refresh, all environments start over, whether the run is stopped there or not: no state of a simulator has to
    be kept for a run to be taken up again.
    """

    env_id: str
    agent: SACConfig = SAC_CONFIG
    steps: int = 100_000
    seeds: int = 6
    seed: int = 0
    """The first of them; the others follow it."""
    upsampling: Upsampling | None = None
    random_steps: int = 5_000
    """Steps at the beginning with uniform actions, from which nothing is learned yet."""
    capacity: int = 1_000_000
    """Real rows of each seed that are kept."""
    checkpoint_every: int = 10_000
    evaluate_every: int = 5_000
    """Steps between two measurements; the last step is always measured."""
    episodes: int = 10
    """Of each seed and evaluation."""
    env_options: dict[str, Any] = field(default_factory=dict)
    """That go to `gymnasium.make`."""
    workers: int | None = None
    """Processes that evaluate; None leaves one core to the agents."""
    device: str = "auto"
    precision: Literal["auto", "float32", "tf32"] = "auto"
    tensorboard: tracking.Asked = "auto"
    """Write events for TensorBoard; auto does where it is installed."""
    wandb: str | None = None
    """The project of Weights & Biases that follows the run."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "env_id", Trusted(self.env_id))
        check_least(self, seed=0, random_steps=0, steps=1, seeds=1, capacity=1, checkpoint_every=1)
        check_least(self, evaluate_every=1, episodes=1, workers=1)
        check_env_options(self.env_options)

    @property
    def name(self) -> str:
        """What the run is called in logs and tables."""
        agent = "redq" if self.agent.smallest < self.agent.critics else "sac"
        return agent if self.upsampling is None else f"{agent}_synther"

    @property
    def all_seeds(self) -> range:
        return range(self.seed, self.seed + self.seeds)

    def is_refreshed(self, step: int) -> bool:
        """Whether generators are fitted after so many steps. At the very end nobody would learn from their rows."""
        return self.upsampling is not None and 0 < step < self.steps and step % self.upsampling.refresh_every == 0

    def doubts(self) -> Iterator[str]:
        """What nobody means who plans so, but for a trial."""
        if self.random_steps >= self.steps:
            yield f"nothing is learned: {self.random_steps:,} steps (--random-steps) go before that, of {self.steps:,}"
        if self.upsampling is not None:
            every = self.upsampling.refresh_every
            if not self.is_refreshed((self.steps - 1) // every * every):
                yield f"no generator is fitted: that is done every {every:,} steps (--refresh-every), of {self.steps:,}"

    def leg_after(self, step: int) -> int:
        """Where the leg ends that begins after so many steps."""
        every = [self.checkpoint_every, *([] if self.upsampling is None else [self.upsampling.refresh_every])]
        return min(self.steps, *((step // length + 1) * length for length in every))

    @property
    def growth(self) -> Growth:
        """A run can go on with more steps if a leg ends where it ended: there the environments start over."""
        why = f"one can go on from a multiple of {self.checkpoint_every:,} steps (--checkpoint-every)"
        return Growth("steps", lambda step: "" if self.legs_until(step)[-1] == step else why)

    def legs_until(self, step: int) -> list[int]:
        """Ends of the legs up to a step that is one of them."""
        ends, end = [], 0
        while end < step:
            end = self.leg_after(end)
            ends.append(end)
        return ends

    @property
    def measured(self) -> Schedule:
        return Schedule(self.evaluate_every, self.steps)

    def description(self) -> dict[str, Any]:
        """The options that the result depends on."""
        names = ("env_id", "env_options", "steps", "seeds", "seed", "random_steps", "capacity", "checkpoint_every")
        own = {name: getattr(self, name) for name in (*names, "evaluate_every", "episodes", "precision")}
        upsampling = None if self.upsampling is None else asdict(self.upsampling)
        return {**own, "agent": asdict(self.agent), "upsampling": upsampling}


def for_environment(settings: Settings, env_id: str) -> Settings:
    """What the paper changes for the dm_control suite, whose rewards lie in [0, 1]: they are not scaled.

    Its episodes never end in a terminal state; a column that never changes is not modelled anyway.
    """
    if not env_id.startswith("dm_control/"):
        return settings
    scaling = settings.data.scaling
    named = {"default": scaling} if isinstance(scaling, str) else dict(scaling)
    return replace(settings, data=replace(settings.data, scaling={"reward": "none", **named}))

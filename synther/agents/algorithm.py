"""The interface of an algorithm: its options, its networks for all members, and an update as a function of tensors.

Several *members* (for example seeds) train at the same time. So all tensors have an axis of members, S, in front. Read
`Algorithm` first, then bc.py as a small example.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from synther import compute
from synther.agents.adam import Adam
from synther.agents.networks import NETWORKS, WITHOUT_DROPOUT, Initial, NetworkOptions
from synther.agents.rows import Batch
from synther.agents.stacked import Networks, NetworkSpec, Stack, draw_modules, draw_stack
from synther.errors import ConfigError
from synther.n_step import check_n_step
from synther.plain import make_plain

Squash = Literal["tanh", "clamp", "argmax"]

WEIGHTS, ROUNDS = range(2)
"""Numbers of a member's random streams: initial weights, and the random numbers of rounds of updates."""


@dataclass(frozen=True)
class AgentConfig:
    """Options that all algorithms share."""

    width: int = 256
    """Width of the hidden layers."""
    depth: int = 2
    """Number of hidden layers."""
    batch_size: int = 256
    """Rows per update."""
    learning_rate: float = 3e-4
    """Learning rate of Adam."""
    normalize: bool = True
    """Normalize observations by the mean and standard deviation of the real data."""

    def __post_init__(self) -> None:
        make_plain(self, "agent")
        self._at_least(1, "width", "depth", "batch_size")
        self._positive("learning_rate")

    @property
    def hidden(self) -> tuple[int, ...]:
        """Widths of all hidden layers."""
        return (self.width,) * self.depth

    def described(self) -> dict[str, Any]:
        """Return the options as JSON values, for run folders and agent files."""
        return asdict(self)

    def over(self, updates: int) -> Self:
        """Return the config for a training run of `updates` updates. Most configs do not depend on that number."""
        return self

    def _at_least(self, least: int, *names: str) -> None:
        for name in names:
            if getattr(self, name) < least:
                raise ConfigError(f"agent.{name} must be at least {least}, got {getattr(self, name)}")

    def _positive(self, *names: str) -> None:
        for name in names:
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"agent.{name} must be positive and finite, got {getattr(self, name)}")

    def _share(self, *names: str) -> None:
        for name in names:
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"agent.{name} must lie in [0, 1], got {getattr(self, name)}")


@dataclass(frozen=True)
class StateAgentConfig(AgentConfig):
    """Options of agents on rows: their networks. Pixel agents have other options."""

    actor_network: str = field(default="mlp", kw_only=True)
    """Network of the policy: mlp, layer_norm, layer_norm_last, batch_norm, simba, or your own as module:function."""
    critic_network: str = field(default="mlp", kw_only=True)
    """Network of the critics, with the same choices as actor_network."""
    critic_width: int | None = field(default=None, kw_only=True)
    """Width of the critics' hidden layers. Default: the same as in the policy."""
    critic_depth: int | None = field(default=None, kw_only=True)
    """Number of the critics' hidden layers. Default: the same as in the policy."""
    dropout: float = field(default=0.0, kw_only=True)
    """Dropout rate in the critics' hidden layers, if their network is mlp, layer_norm or layer_norm_last."""
    weight_decay: float = field(default=0.0, kw_only=True)
    """Decoupled weight decay of all networks, as in AdamW."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(0, "weight_decay")
        for name in ("critic_width", "critic_depth"):
            if getattr(self, name) is not None:
                self._at_least(1, name)
        for name in ("actor_network", "critic_network"):
            NETWORKS.check(getattr(self, name), f"agent.{name}")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"agent.dropout must lie in [0, 1), got {self.dropout}")
        if self.dropout and self.critic_network in WITHOUT_DROPOUT:
            raise ConfigError(
                f"agent.dropout is {self.dropout}, but the network {self.critic_network} has no dropout: set it to 0, "
                "or choose another agent.critic_network"
            )

    def critic_options(self, initial: Initial | None = None) -> NetworkOptions:
        """Return the network options of the critics."""
        width, depth = self.critic_width or self.width, self.critic_depth or self.depth
        return NetworkOptions(width, depth, self.dropout, initial)

    def described(self) -> dict[str, Any]:
        """Return the options as JSON values. Keyword-only options with their default value are left out, because
        earlier versions did not have them."""
        newer = {option.name: option.default for option in fields(self) if option.kw_only}
        return {name: value for name, value in asdict(self).items() if name not in newer or value != newer[name]}


@dataclass(frozen=True)
class TargetConfig(StateAgentConfig):
    """Options of agents with critics that learn from target networks."""

    discount: float = 0.99
    """Discount factor of one step."""
    tau: float = 0.005
    """Fraction by which the target networks move, each time they are updated."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._share("discount", "tau")


@dataclass(frozen=True)
class OnlineConfig(TargetConfig):
    """Options that all online agents share."""

    normalize: bool = field(default=False, init=False)  # at the start there is no data to compute a mean from
    utd: int = 1
    """Critic updates per environment step."""
    running_norm: bool = field(default=False, kw_only=True)
    """Normalize observations by the running mean and standard deviation of real observations, as in SimBa."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(1, "utd")


@dataclass(frozen=True)
class Shape:
    """Sizes, seeds and device of an algorithm's networks."""

    observation: int
    """Number of observation columns."""
    action: int
    """Number of action columns."""
    seeds: tuple[int, ...]
    """One seed per member."""
    device: torch.device
    choices: int | None = None
    """Number of discrete actions. None: actions are real numbers."""

    def stack(
        self,
        key: int,
        sizes: Sequence[int],
        *,
        ensemble: int | None = None,
        initial: Initial | None = None,
        free: Sequence[float] = (),
    ) -> Stack:
        """Return one network (or one ensemble) per member. The initial weights are a function of (seed, key)."""
        return draw_stack(self._sources(key), sizes, self.device, ensemble=ensemble, initial=initial, free=free)

    def _sources(self, key: int) -> list[torch.Generator]:
        """Return one random generator per member, for the initial weights of network `key`."""
        return [compute.generator(torch.device("cpu"), seed, WEIGHTS, key) for seed in self.seeds]

    def actor(
        self, config: StateAgentConfig, outputs: int, *, initial: Initial | None = None, free: Sequence[float] = ()
    ) -> Networks:
        """Return every member's policy network."""
        options = NetworkOptions(config.width, config.depth, 0.0, initial)
        return self._networks(0, config.actor_network, self.observation, outputs, options, free=free)

    def critics(self, config: StateAgentConfig, ensemble: int, *, initial: Initial | None = None) -> Networks:
        """Return every member's ensemble of critics, which map an observation and an action to a value."""
        pair, options = self.observation + self.action, config.critic_options(initial)
        return self._networks(1, config.critic_network, pair, 1, options, ensemble=ensemble)

    def value(self, config: StateAgentConfig) -> Networks:
        """Return every member's value network, which maps an observation to a value."""
        return self._networks(2, config.critic_network, self.observation, 1, config.critic_options())

    def _networks(
        self,
        key: int,
        kind: str,
        inputs: int,
        outputs: int,
        options: NetworkOptions,
        *,
        ensemble: int | None = None,
        free: Sequence[float] = (),
    ) -> Networks:
        if kind == "mlp" and not options.dropout:  # the fast path
            sizes = (inputs, *(options.width,) * options.depth, outputs)
            return self.stack(key, sizes, ensemble=ensemble, initial=options.initial, free=free)
        spec = NetworkSpec(kind, inputs, outputs, options)
        return draw_modules(self._sources(key), spec, self.device, ensemble=ensemble, free=free)


class Noise(NamedTuple):
    """Random numbers of an update, except those that select its rows."""

    normal: Tensor
    """Standard normal numbers (S, B, normals)."""
    uniform: Tensor
    """Uniform numbers (S, B, uniforms) within [-1, 1)."""


class Algorithm(ABC):
    """Base class of algorithms. A subclass is built from a config and a `Shape`, and defines `update`.

    All attributes of type Tensor, `Networks` and `Adam` are its state, which is saved in files.
    """

    config_class: ClassVar[type[AgentConfig]]
    """The dataclass of its options."""
    losses: ClassVar[tuple[str, ...]]
    """Names of the losses that `update` returns."""
    squash: Squash = "tanh"
    """How the first outputs of the actor become an action: by tanh, by clamping, or as the index of the largest."""
    log_std: tuple[float, float] | None = None
    """Bounds of the log std, if the policy is a squashed normal distribution. The other outputs of the actor are then
    its log std."""
    discrete: ClassVar[bool] = False
    """Whether the actions are discrete."""
    needs_next_action: ClassVar[bool] = False
    """Whether batches must contain the data's next actions."""
    normals: int = 0
    """Number of standard normal random numbers that an update needs per row."""
    uniforms: int = 0
    """Number of uniform random numbers that an update needs per row."""
    exploration_noise: float = 0.0
    """Standard deviation of the noise that online agents add to their actions."""
    period: int = 1
    """Number of updates after which the pattern of updates repeats, for example 2 with a policy delay of 2."""
    actor: Networks
    """The policy networks of all members."""

    def __init__(self, config: Any, shape: Shape) -> None:
        raise NotImplementedError

    @abstractmethod
    def update(self, batch: Batch, noise: Noise, step: int) -> dict[str, Tensor]:
        """Do one update of all members and return each member's losses (S,).

        `step` is the number of the update within a period, from 0.
        """

    def updates(self, batches: Batch, noise: Noise, step: int = 0) -> dict[str, Tensor]:
        """Do all updates of one environment step and return each member's last losses (S,).

        The batches are (S, updates, B, ...). `step` is the number of the first update within a period.
        """
        losses: dict[str, Tensor] = {}
        for number in range(batches.reward.shape[1]):
            noise_of_update = Noise(*(part[:, number] for part in noise))
            losses |= self.update(batches.at(number), noise_of_update, (step + number) % self.period)
        return losses

    def explore(self, observation: Tensor, noise: Tensor) -> Tensor:
        """Return actions (S, B, A) within [-1, 1] for exploration. With zero noise, they are the policy's actions.

        `noise` (S, B, A) is standard normal. This default multiplies it by `exploration_noise` and adds it.
        """
        output = self.actor(observation, training=False)[..., : noise.shape[-1]]
        action = output.tanh() if self.squash == "tanh" else output.clamp(-1, 1)
        return (action + self.exploration_noise * noise).clamp(-1, 1)

    def state(self) -> dict[str, Tensor]:
        """Return all tensors that change during training (not copies), by their names in files."""
        state: dict[str, Tensor] = {}
        for name, part in vars(self).items():
            if isinstance(part, Tensor):
                state[name] = part
            elif isinstance(part, Networks):
                state[name] = part.weights.detach()
                if part.buffers is not None:
                    state[f"{name}.buffers"] = part.buffers
            elif isinstance(part, Adam):
                state |= {f"{name}.{key}": tensor for key, tensor in part.state().items()}
        return state


def n_step_config(kind: type[Algorithm], config: Any, n: int) -> Any:
    """Return the options of an algorithm for n-step rows. Their discount is `discount ** n`, for the targets."""
    check_n_step(n)
    if n == 1:
        return config
    if kind.needs_next_action:
        raise ConfigError(
            f"n_step {n}: {kind.__name__} needs the data's next actions, which n-step rows do not have. Use n_step 1"
        )
    if not hasattr(config, "discount"):
        raise ConfigError(
            f"n_step {n}: {kind.__name__} has no agent.discount, so it has no n-step targets. Use n_step 1"
        )
    return replace(config, discount=config.discount**n)

"""The online learner. After every environment step, it runs one round of updates for all members.

On a GPU, a round is captured as a CUDA graph. All random numbers of a step depend only on (member's seed, step number).
So a member learns the same alone as together with others, and a resumed training run gives the same result as an
uninterrupted one. Read `Learner` first: `act`, `add` and `train`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from synther import compute
from synther.agents import policy
from synther.agents.algorithm import Algorithm, Noise, OnlineConfig, Shape, n_step_config
from synther.agents.critics import td_errors
from synther.agents.crossq import CrossQ, CrossQConfig
from synther.agents.dqn import DQN, DQNConfig
from synther.agents.policy import Policy, Scales
from synther.agents.replay_buffer import BatchSampler, NStepRows, SeedReplayBuffer
from synther.agents.rounds import RandomNumbers, check_described, copy_state, precision_for
from synther.agents.rows import Batch
from synther.agents.sac import DROQ_CONFIG, REDQ_CONFIG, RLPD_CONFIG, SAC, SAC_CONFIG, SIMBA_CONFIG
from synther.agents.td3 import TD3, TD3Config
from synther.errors import ConfigError, DataError
from synther.registry import Registry

_ACTING = 2  # number of the random stream of actions; algorithm.py uses streams 0 and 1
_ACTING_STEPS = 1_000  # number of steps for which the random numbers of actions are drawn at once
_TD_ROWS = 1 << 14  # number of rows of each member for which TD errors are computed at once


@dataclass(frozen=True)
class OnlineAgent:
    """An online algorithm and its default options: an entry of `ONLINE_AGENTS`."""

    algorithm: type[Algorithm]
    config: OnlineConfig

    @classmethod
    def of(cls, algorithm: type[Algorithm]) -> OnlineAgent:
        """Return the entry of an algorithm with the defaults of its config class."""
        config = algorithm.config_class()
        if not isinstance(config, OnlineConfig):
            raise ConfigError(f"{algorithm.__name__}.config_class must be an OnlineConfig to learn online")
        return cls(algorithm, config)


ONLINE_AGENTS: Registry[OnlineAgent] = Registry(
    "online agent",
    "synther.online_agents",
    OnlineAgent,
    {
        "sac": OnlineAgent(SAC, SAC_CONFIG),
        "redq": OnlineAgent(SAC, REDQ_CONFIG),
        "droq": OnlineAgent(SAC, DROQ_CONFIG),
        "rlpd": OnlineAgent(SAC, RLPD_CONFIG),
        "simba": OnlineAgent(SAC, SIMBA_CONFIG),
        "crossq": OnlineAgent(CrossQ, CrossQConfig()),
        "td3": OnlineAgent(TD3, TD3Config()),
        "dqn": OnlineAgent(DQN, DQNConfig()),
    },
)
"""Agents of `synther online`. Register another one with `ONLINE_AGENTS.register("mine", OnlineAgent.of(Mine))`."""


def _algorithm_of(config: OnlineConfig) -> tuple[str, type[Algorithm]]:
    """Return the algorithm that `config` belongs to, and its first name in `ONLINE_AGENTS`."""
    for name, agent in ONLINE_AGENTS.items():
        if type(agent.config) is type(config):
            return name, agent.algorithm
    raise ConfigError(f"expected the config of one of {', '.join(ONLINE_AGENTS.names())}, got {type(config).__name__}")


class Learner:
    """Trains the agents of S seeds in S environments. At each step, call `act(observations)`, `add(rows)`, `train()`.

    - `low`, `high` (A,): the action bounds.
    - `choices`: the number of discrete actions. An action is then an integer from `low` to `high`.
    - `ratio`: the fraction of synthetic rows in each batch, once a member has its `samples` synthetic rows.
    - `prior` (P, width): rows of earlier data. Half of the real rows of each batch are drawn from them.
    - `n_step`: targets bootstrap after this many steps. Added rows are joined to n-step rows. Prior and synthetic rows
      must already be n-step rows.
    - `precision`: `auto` is tf32 on a GPU and float32 on a CPU.
    """

    def __init__(
        self,
        config: OnlineConfig,
        seeds: Sequence[int],
        observation: int,
        low: ArrayLike,
        high: ArrayLike,
        *,
        capacity: int,
        samples: int = 0,
        ratio: float = 0.5,
        device: torch.device,
        precision: Literal["auto", "float32", "tf32"] = "auto",
        prior: NDArray[np.float32] | None = None,
        choices: int | None = None,
        n_step: int = 1,
    ) -> None:
        if not seeds:
            raise ConfigError("a learner needs at least one seed, got none")
        self.name, kind = _algorithm_of(config)
        if kind.discrete != (choices is not None):
            wanted = [name for name, agent in ONLINE_AGENTS.items() if agent.algorithm.discrete != kind.discrete]
            actions = "real-valued" if choices is None else "discrete"
            raise ConfigError(
                f"{self.name} cannot learn in this environment, because its actions are {actions}: use "
                f"{' or '.join(wanted)}"
            )
        self.config, self.seeds, self.device, self.choices = config, tuple(seeds), device, choices
        self.precision, self.n_step = precision_for(precision, device), n_step
        self.steps = 0
        """Number of steps that were added."""
        self.rounds = 0
        """Number of finished `train` calls."""
        with self._working():
            self.rows = SeedReplayBuffer(
                len(self.seeds), observation, low, high, capacity=capacity, samples=samples, device=device, prior=prior
            )
            shape = Shape(observation, self.rows.action_size, self.seeds, device, choices)
            self.algorithm = kind(n_step_config(kind, config, n_step), shape)
            places = BatchSampler(self.rows, config.batch_size, ratio)
            self._norm = RunningNorm(self.rows) if config.running_norm else None
            self._round = _Round(self.algorithm, self.rows, places, self.seeds, config, self._norm)
            self._actor = _Actor(self.algorithm, shape, self._norm)
        low_high = (torch.from_numpy(bound).to(device) for bound in (self.rows.low, self.rows.high))
        norm = self._norm or RunningNorm(self.rows)  # before its first update, it changes nothing
        scales = Scales(norm.mean, norm.std, *low_high)
        self._policy = Policy(self.algorithm.actor, scales, self.algorithm.squash, self.algorithm.log_std)
        self._joining = NStepRows(self.rows, n_step, config.discount)
        self._draws = _Draws(self.seeds, self.rows.action_size)
        self._trainings: dict[int, Callable[[], None]] = {}

    @property
    def updates(self) -> int:
        """Number of critic updates so far."""
        return self.rounds * self.config.utd

    def act(self, observations: ArrayLike, *, stochastic: bool = True) -> NDArray[np.float32]:
        """Return actions (S, A) within their bounds, for one observation (S, O) per member.

        If called again in the same step, it returns the same actions.
        """
        return self.choose(observations, stochastic=stochastic)()

    def choose(self, observations: ArrayLike, *, stochastic: bool = True) -> Callable[[], NDArray[np.float32]]:
        """Start to compute what `act` returns. Return a function that waits for it.

        Updates that are started in between do not change these actions, and are not waited for.
        """
        observation = np.asarray(observations, np.float32)
        expected = (len(self.seeds), self.rows.observation_size)
        if observation.shape != expected:
            raise DataError(f"expected observations of shape {expected}, got {observation.shape}")
        normal = self._draws.normal(self.steps)
        with self._working():
            chosen = self._actor(observation, normal if stochastic else np.zeros_like(normal))
        return lambda: self._scaled(chosen())

    def random_action(self) -> NDArray[np.float32]:
        """Return uniformly random actions (S, A), one per member."""
        drawn = self._draws.uniform(self.steps)
        if self.choices is not None:  # all integers are equally likely
            drawn = (np.floor((drawn + 1) / 2 * self.choices) * (2 / (self.choices - 1)) - 1).astype(np.float32)
        return self._scaled(drawn)

    def add(self, rows: NDArray[np.float32], ends: NDArray[np.bool_] | None = None) -> None:
        """Add the rows of one step (S, width), or of several (S, N, width). See `SeedReplayBuffer`.

        `ends`, (S,) or (S, N), marks rows that are not terminal, but after which the environment was reset. It is
        needed only with n-step targets.
        """
        several = rows[:, None] if rows.ndim == 2 else rows
        if self.n_step == 1:
            self.rows.add(several)
        else:
            self.rows.add_each(self._joining.add(several, None if ends is None else ends.reshape(several.shape[:2])))
        self.steps += several.shape[1]
        if self._norm is not None:
            self._norm.add(several[..., : self.rows.observation_size], self.steps)

    def joined(self, rows: NDArray[np.float32], ends: NDArray[np.bool_]) -> list[NDArray[np.float32]]:
        """Return each member's rows in the form in which a new learner would store the steps `rows` (S, N, width): as
        n-step rows."""
        if self.n_step == 1:
            return list(rows)
        return NStepRows(self.rows, self.n_step, self.config.discount).add(rows, ends)

    def generate(self, member: int, rows: NDArray[np.float32]) -> None:
        """Replace a member's synthetic rows by new ones (samples, width)."""
        self.rows.generate(member, rows)
        self._round.places.settle()

    def train(self) -> None:
        """Run the updates of one step. On a GPU, they may still be running when this method returns."""
        if not len(self.rows):
            more = f", and episodes need {self.n_step} steps (n_step)" if self.n_step > 1 else ""
            raise DataError(f"there are no rows to learn from: add some first{more}")
        with self._working():
            self._round.draw(self.rounds)
            phase = self.updates % self.algorithm.period  # not always 0, because the policy may be updated less often
            if phase not in self._trainings:
                run = partial(self._round.run, phase)
                self._trainings[phase] = compute.capture(run, self.device, list(self.state().values()))
            self._trainings[phase]()
            self.rounds += 1
            self._round.draw(self.rounds)  # for the next step, while the GPU is busy

    @torch.no_grad()
    def td_errors(self, rows: Sequence[NDArray[np.float32]]) -> list[NDArray[np.float64]]:
        """Return the TD errors (N,) of each member's critics in its rows (N, width). N may differ between members."""
        discount = self.config.discount**self.n_step
        most = max(map(len, rows))
        found = np.zeros((len(rows), most))
        for start in range(0, most, _TD_ROWS):
            places = np.arange(start, min(start + _TD_ROWS, most))
            # Members with fewer rows repeat their last row. Its additional errors are cut off below.
            taken = [member_rows[places.clip(max=len(member_rows) - 1)] for member_rows in rows]
            error = None if self.choices else td_errors(self.algorithm, self._batch(np.stack(taken)), discount)
            if error is None:
                raise ConfigError(
                    f"relevance td_error needs critics of observation and action, which {self.name} does not have: use "
                    "another relevance"
                )
            found[:, start : start + error.shape[1]] = error.double().cpu().numpy()
        return [errors[: len(member_rows)] for errors, member_rows in zip(found, rows, strict=True)]

    def _batch(self, rows: NDArray[np.float32]) -> Batch:
        """Return rows (S, B, width), given in the units of the environment, as a batch for the networks."""
        scaled = torch.from_numpy(self.rows.scaled(rows)).to(self.device).unsqueeze(1)
        if self._norm is not None:
            scaled = self._norm.applied(scaled)
        return self.rows.batch(scaled).at(0)

    def losses(self) -> dict[str, NDArray[np.float32]]:
        """Return each member's losses (S,) in the latest round. This waits for the device."""
        return {name: tensor.cpu().numpy().copy() for name, tensor in self._round.losses.items()}

    def policy(self, device: torch.device | None = None) -> Policy:
        """Return a copy of the current policies, which act without noise. Default device: CPU."""
        return self._policy.copy(device or torch.device("cpu"))

    def state(self) -> dict[str, Tensor]:
        """Return all tensors that change during training, except the rows."""
        norm = {} if self._norm is None else {"norm.sums": self._norm.sums}
        return self.algorithm.state() | norm | {f"losses.{name}": loss for name, loss in self._round.losses.items()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file for `load` and `load_policy`. It does not contain the rows."""
        counts = {"rounds": self.rounds, "added": self.steps}
        described = self._described() | counts | {"policy": self._policy.described()}
        policy.write(path, described, self.state() | self._policy.scales.tensors())

    def load(self, path: str | os.PathLike[str]) -> int:
        """Resume from the file of a learner with the same config and seeds.

        Return the number of steps that were added to that learner. The caller must add their rows again, and the
        synthetic rows.
        """
        described, tensors = policy.read(path)
        check_described(path, described, self._described(), "rounds", "added")
        state = self.state()
        copy_state(state, {name: tensors[name] for name in state.keys() & tensors.keys()}, path)
        self.rounds = described["rounds"]
        if self._norm is not None:
            self._norm.settle()
        return int(described["added"])

    def _described(self) -> dict[str, Any]:
        """Return the properties that must match when training resumes from a file."""
        environment = {"observation": self.rows.observation_size, "low": self.rows.low, "high": self.rows.high}
        plain = {name: np.asarray(value).tolist() for name, value in environment.items()}
        agent = {"algorithm": self.name, "config": self.config.described(), "seeds": self.seeds}
        return {**agent, "environment": plain, "n_step": self.n_step}

    def _scaled(self, action: NDArray[np.float32]) -> NDArray[np.float32]:
        """Scale actions from [-1, 1] to their bounds."""
        low, high = self.rows.low, self.rows.high
        scaled: NDArray[np.float32] = np.clip(low + (high - low) * (0.5 * (action + 1)), low, high)
        return scaled if self.choices is None else np.rint(scaled)

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Set device and precision inside the block."""
        advice = "train fewer seeds together, or lower agent.batch_size, agent.width, the capacity or the samples"
        with compute.matmul_precision(self.precision), compute.working_on(self.device, advice):
            yield


class RunningNorm:
    """Mean and standard deviation of each member's real observations so far, as in SimBa (Lee et al. 2025).

    Rows are stored without normalization. They are normalized when they are drawn, with the statistics of that moment.
    """

    def __init__(self, rows: SeedReplayBuffer) -> None:
        members, size = len(rows.matrix), rows.observation_size
        self.mean = torch.zeros(members, size, device=rows.device)
        self.std = torch.ones(members, size, device=rows.device)
        self._shift = torch.zeros(members, 1, 1, rows.width, device=rows.device)
        self._scale = torch.ones(members, 1, 1, rows.width, device=rows.device)
        self._places = slice(0, size), slice(rows.width - size, rows.width)
        self.sums = torch.zeros(3, members, size, dtype=torch.float64)
        """Number of observations, their mean, and the sum of squared distances from the mean: (3, S, O)."""

    def add(self, observations: NDArray[np.float32], added: int) -> None:
        """Update the statistics with the observations (S, N, O) of new rows.

        `added` is the number of all observations so far, these included. Observations that the statistics already
        contain (after `Learner.load`) are ignored.
        """
        new = min(observations.shape[1], added - int(self.sums[0, 0, 0]))
        if new <= 0:
            return
        newest = torch.from_numpy(observations[:, -new:].astype(np.float64))
        count, mean, squares = self.sums
        new_mean = newest.mean(1)
        difference, total = new_mean - mean, count + new
        squares += (newest - new_mean.unsqueeze(1)).square().sum(1) + difference.square() * count * new / total
        mean += difference * new / total
        count += new
        self.settle()

    def settle(self) -> None:
        """Use the current statistics in `applied` from now on."""
        count, mean, squares = self.sums
        if not bool(count.any()):
            return
        compute.put(mean.float().numpy(), self.mean)
        compute.put((squares / count + 1e-8).sqrt().float().numpy(), self.std)
        for place in self._places:
            self._shift[:, 0, 0, place], self._scale[:, 0, 0, place] = self.mean, self.std

    def applied(self, rows: Tensor) -> Tensor:
        """Return rows (S, updates, B, width) with normalized observations."""
        return (rows - self._shift) / self._scale


class _Round:
    """The updates of one step. Their random numbers are in tensors with fixed addresses, as a captured graph needs."""

    def __init__(
        self,
        algorithm: Algorithm,
        rows: SeedReplayBuffer,
        places: BatchSampler,
        seeds: Sequence[int],
        config: OnlineConfig,
        norm: RunningNorm | None,
    ) -> None:
        self.algorithm, self.rows, self.places, self.norm = algorithm, rows, places, norm
        self.losses = {name: torch.zeros(len(seeds), device=rows.device) for name in algorithm.losses}
        self._numbers = RandomNumbers(seeds, config.utd, config.batch_size, algorithm, rows.device)
        self._drawn: int | None = None

    def draw(self, number: int) -> None:
        """Draw the random numbers of round `number`, if they are not drawn yet."""
        if number != self._drawn:
            self._numbers.draw(number)
            self._drawn = number

    def run(self, step: int) -> None:
        """Run the updates. The first of them is number `step` of a period."""
        numbers = self._numbers
        rows = self.places.fill(numbers.random)
        if self.norm is not None:
            rows = self.norm.applied(rows)
        batches = self.rows.batch(rows)
        for name, loss in self.algorithm.updates(batches, Noise(numbers.normal, numbers.uniform), step).items():
            self.losses[name].copy_(loss)


class _Actor:
    """Computes the actions of all members in one captured forward pass."""

    def __init__(self, algorithm: Algorithm, shape: Shape, norm: RunningNorm | None) -> None:
        self.algorithm, self.shape, self.norm = algorithm, shape, norm
        self._given = torch.zeros(len(shape.seeds), shape.observation + shape.action, device=shape.device)
        self._action = torch.zeros(len(shape.seeds), shape.action, device=shape.device)
        self._run: Callable[[], None] | None = None

    def __call__(
        self, observation: NDArray[np.float32], noise: NDArray[np.float32]
    ) -> Callable[[], NDArray[np.float32]]:
        """Start to compute actions (S, A) within [-1, 1]. Return a function that waits for them."""
        compute.put(np.hstack([observation, noise]), self._given)
        if self._run is None:
            self._run = compute.capture(self._forward, self.shape.device, [])
        self._run()
        return compute.fetch(self._action)

    @torch.no_grad()
    def _forward(self) -> None:
        given, size = self._given.unsqueeze(1), self.shape.observation
        observation, noise = given[..., :size], given[..., size:]
        if self.norm is not None:
            observation = (observation - self.norm.mean.unsqueeze(1)) / self.norm.std.unsqueeze(1)
        self._action.copy_(self.algorithm.explore(observation, noise).squeeze(1))


class _Draws:
    """Random numbers for the members' actions. They are drawn for many steps at once."""

    def __init__(self, seeds: Sequence[int], size: int) -> None:
        self.seeds, self.size = seeds, size
        self._block: int | None = None
        self._normal, self._uniform = np.zeros((2, 0, 0, 0), np.float32)

    def normal(self, step: int) -> NDArray[np.float32]:
        """Return standard normal numbers (S, A) for this step."""
        self._draw(step // _ACTING_STEPS)
        return self._normal[:, step % _ACTING_STEPS]

    def uniform(self, step: int) -> NDArray[np.float32]:
        """Return uniform numbers (S, A) within [-1, 1) for this step."""
        self._draw(step // _ACTING_STEPS)
        return self._uniform[:, step % _ACTING_STEPS]

    def _draw(self, block: int) -> None:
        if block == self._block:
            return
        sources = [np.random.default_rng((_ACTING, seed, block)) for seed in self.seeds]
        size = _ACTING_STEPS, self.size
        self._normal = np.stack([source.standard_normal(size, np.float32) for source in sources])
        self._uniform = np.stack([2 * source.random(size, np.float32) - 1 for source in sources])
        self._block = block

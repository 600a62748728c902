"""The offline agent, which learns from rows. All members are trained at once, in rounds of updates.

The rows of all updates of a round are gathered at once. Read `Agent` first, then `_Round`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from synther import compute
from synther.agents import policy
from synther.agents.algorithm import AgentConfig, Algorithm, Noise, Shape, n_step_config
from synther.agents.bc import BC
from synther.agents.cql import CQL
from synther.agents.critics import td_errors
from synther.agents.drq_bc import DrQBC
from synther.agents.drq_v2 import DrQv2
from synther.agents.edac import EDAC
from synther.agents.iql import IQL
from synther.agents.noisy_bc import NoisyBC
from synther.agents.policy import Policy, Scales
from synther.agents.rebrac import ReBRAC
from synther.agents.rounds import RandomNumbers, Rounds, precision_for
from synther.agents.rows import Member, Rows
from synther.agents.stacked import Networks
from synther.agents.td3_bc import TD3BC
from synther.errors import ConfigError
from synther.registry import Registry

ALGORITHMS: Registry[type[Algorithm]] = Registry(
    "algorithm",
    "synther.algorithms",
    type,
    {"bc": BC, "td3_bc": TD3BC, "iql": IQL, "edac": EDAC, "cql": CQL, "rebrac": ReBRAC},
)
"""Offline algorithms, by name. Register another one with `ALGORITHMS.register("mine", Mine)`."""

HEADS: dict[str, type[Algorithm]] = {"drq_bc": DrQBC, "drq_v2": DrQv2, "noisy_bc": NoisyBC}
"""Heads of pixel agents, by name. They are trained on features (latents), not on other observations."""

_MOST_HELD_OUT = 1 << 14  # maximum number of held-out rows in which the TD error is measured
_ROUND_UPDATES = 20  # minimum number of updates in a round: enough to hide the cost of drawing random numbers


class Agent(Rounds):
    """Trains all members of an offline algorithm, on the device of the rows.

        agent = Agent(TD3BCConfig(), rows, [Member(0), Member(1)])
        agent.train(1_000_000)
        agent.act(observations)

    - `precision`: `auto` is tf32 on a GPU and float32 on a CPU.
    - `n_step`: the number of steps in each row (see `synther.data.episodes.n_step_rows`). Targets bootstrap with
      `discount ** n_step`. Rows with an extra column `discount` bootstrap with this column, and need no `n_step`.
    - `held_out`: the number of a table of rows that no member learns from. `losses` then also returns the critics' TD
      error in these rows.
    """

    def __init__(
        self,
        config: AgentConfig,
        rows: Rows,
        members: Sequence[Member],
        *,
        precision: Literal["auto", "float32", "tf32"] = "auto",
        n_step: int = 1,
        held_out: int | None = None,
    ) -> None:
        self.name, kind = _algorithm_of(config)
        if not members:
            raise ConfigError("an agent needs at least one member, got none")
        if kind.needs_next_action and not rows.next_actions:
            raise ConfigError(f"{self.name} needs the data's next actions: build the rows with next_actions=True")
        if rows.discount is not None and n_step > 1:
            raise ConfigError(f"n_step {n_step}: these rows have an extra column discount, so leave n_step out")
        self.config, self.rows, self.members, self.n_step = config, rows, tuple(members), n_step
        self.precision = precision_for(precision, rows.device)
        shape = Shape(rows.observation_size, rows.action_size, tuple(m.seed for m in members), rows.device)
        algorithm = kind(n_step_config(kind, config, n_step), shape)
        scales = _scales(config, rows, self.members)
        self._policy = Policy(algorithm.actor, _first(scales, algorithm.actor), algorithm.squash, algorithm.log_std)
        self._batches = _Round(algorithm, rows, self.members, config.batch_size, scales)
        super().__init__(algorithm, self._batches, rows.device)
        if held_out is not None:
            check_critics(self.name, algorithm)
        self._held_out = held_out

    def losses(self) -> dict[str, NDArray[np.float32]]:
        """Return each member's losses (S,) in the latest update that computed them. This waits for the device."""
        losses = super().losses()
        if self._held_out is None:
            return losses
        return losses | {"held_out_td_error": self._held_out_errors(self._held_out)}

    @torch.no_grad()
    def _held_out_errors(self, table: int) -> NDArray[np.float32]:
        """Return each member's mean TD error in the rows of a table (S,)."""
        first, count = self.rows.starts[table], min(self.rows.lengths[table], _MOST_HELD_OUT)
        rows = self._batches.scaled(self.rows.matrix[first : first + count].repeat(len(self.members), 1, 1))
        discount = getattr(self.config, "discount", 1.0) ** self.n_step
        with self._working():
            errors = td_errors(self.algorithm, self.rows.batch(rows), discount)
        assert errors is not None  # `check_critics` has found critics
        mean: NDArray[np.float32] = errors.mean(1).cpu().numpy()
        return mean

    def act(self, observations: ArrayLike) -> NDArray[np.float32]:
        """Return actions (S, n, A) within their bounds, for observations (S, n, O), or (n, O) shared by all members.

        A single observation (O,) gives actions (S, A). If the actor uses only the first columns of an observation
        (`HEADS`), pass only these columns.
        """
        return self._policy.act(observations)

    def policy(self, device: torch.device | None = None) -> Policy:
        """Return a copy of the current policies, to evaluate it while training continues. Default device: CPU."""
        return self._policy.copy(device or torch.device("cpu"))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the whole agent to a file, for `load` and `load_policy`."""
        described = self._described() | {"updates": self.updates, "policy": self._policy.described()}
        policy.write(path, described, self.state() | self._policy.scales.tensors())

    def load(self, path: str | os.PathLike[str]) -> None:
        """Resume from the file of an agent with the same config, members and data."""
        described, tensors = policy.read(path)
        self._go_on(path, described, tensors, {"data": self._policy.scales.tensors()})

    def _described(self) -> dict[str, Any]:
        """Return the properties that must match when training resumes from a file."""
        return {
            "algorithm": self.name,
            "config": self.config.described(),
            "members": [asdict(member) for member in self.members],
            "tables": self.rows.lengths,
            "n_step": self.n_step,
        }

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Set device and precision inside the block."""
        advice = "train fewer members together, or lower agent.batch_size, agent.width or the number of rows"
        with compute.matmul_precision(self.precision), compute.working_on(self.device, advice):
            yield


def check_critics(name: str, algorithm: Algorithm) -> None:
    """Raise an error if the algorithm has no critics, because then it has no TD errors."""
    if getattr(algorithm, "critics", None) is None:
        raise ConfigError(
            f"the loss on held-out rows is the TD error of critics, and {name} has no critics: leave --holdout out"
        )


def _algorithm_of(config: AgentConfig) -> tuple[str, type[Algorithm]]:
    """Return the name and the class of the algorithm that `config` belongs to."""
    for name, kind in (*HEADS.items(), *ALGORITHMS.items()):
        if kind.config_class is type(config):
            return name, kind
    known = f"{', '.join(HEADS)}, or one of {', '.join(ALGORITHMS.names())}"
    raise ConfigError(f"expected the config of {known}, got {type(config).__name__}")


class _Round:
    """Consecutive updates. Their batches and random numbers are in tensors with fixed addresses, for a CUDA graph."""

    def __init__(self, algorithm: Algorithm, rows: Rows, members: Sequence[Member], batch: int, scales: Scales) -> None:
        self.algorithm, self.rows = algorithm, rows
        self.updates = -(-_ROUND_UPDATES // algorithm.period) * algorithm.period
        device = rows.device
        self.losses = {name: torch.zeros(len(members), device=device) for name in algorithm.losses}
        spans = [rows.spans(member.arm, batch) for member in members]
        self._starts, self._lengths = (torch.stack(part).unsqueeze(1) for part in zip(*spans, strict=True))  # (S, 1, B)
        self._drawn = RandomNumbers([member.seed for member in members], self.updates, batch, algorithm, device)
        self._rows = torch.zeros(self.updates, len(members), batch, rows.width, device=device)
        self._shift, self._scale = rows.placed(scales.mean, 0.0), rows.placed(scales.std, 1.0)

    def fill(self, number: int) -> None:
        """Draw the random numbers of round `number`, and gather its rows."""
        self._drawn.draw(number)
        picked = (self._starts + self._drawn.random % self._lengths).transpose(0, 1)  # (updates, S, B)
        torch.index_select(self.rows.matrix, 0, picked.flatten(), out=self._rows.view(-1, self.rows.width))
        self._rows.sub_(self._shift).div_(self._scale)

    def scaled(self, rows: Tensor) -> Tensor:
        """Return rows (S, B, width) with normalized observations, as the networks get them."""
        return (rows - self._shift) / self._scale

    def run(self, first: int, last: int) -> None:
        """Run the updates from `first` up to, but not including, `last`."""
        for step in range(first, last):
            noise = Noise(self._drawn.normal[:, step], self._drawn.uniform[:, step])
            losses = self.algorithm.update(self.rows.batch(self._rows[step]), noise, step)
            if step + self.algorithm.period >= last:  # later updates would overwrite earlier losses
                for name, loss in losses.items():
                    self.losses[name].copy_(loss)


def _scales(config: AgentConfig, rows: Rows, members: Sequence[Member]) -> Scales:
    """Return the scales of each member, from the real data of its arm if the config normalizes observations."""
    size = len(members), rows.observation_size
    mean, std = torch.zeros(size, device=rows.device), torch.ones(size, device=rows.device)
    if config.normalize:
        standards = {table: rows.standard(table) for table in {member.arm.real for member in members}}
        for index, member in enumerate(members):
            mean[index], std[index] = standards[member.arm.real]
    return Scales(mean, std, rows.low, rows.high)


def _first(scales: Scales, actor: Networks) -> Scales:
    """Return the scales of the first observation columns, which the actor uses."""
    mean, std = (each[:, : actor.inputs].contiguous() for each in (scales.mean, scales.std))
    return replace(scales, mean=mean, std=std)

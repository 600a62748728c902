"""Training all members at once: rounds of captured updates, each member's numbers drawn from its own streams.

Everything random in a round is a function of (a member's seed, round number). So members train together as they would
alone, and a training that was stopped anywhere and taken up again ends with the weights of one that was not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from safetensors.torch import save
from torch import Tensor

from synther import compute
from synther.agents import policy
from synther.agents.algorithm import AgentConfig, Algorithm, Noise, Shape
from synther.agents.bc import BC, BCConfig
from synther.agents.cql import CQL, CQLConfig
from synther.agents.drawing import Drawn, precision_for
from synther.agents.edac import EDAC, EDACConfig
from synther.agents.iql import IQL, IQLConfig
from synther.agents.policy import Policy, Scales
from synther.agents.rows import Member, Rows
from synther.agents.td3_bc import TD3BC, TD3BCConfig
from synther.durable import replacing
from synther.errors import ConfigError, FormatError

ALGORITHMS: dict[str, tuple[type[AgentConfig], Callable[[Any, Shape], Algorithm]]] = {
    "bc": (BCConfig, BC),
    "td3_bc": (TD3BCConfig, TD3BC),
    "iql": (IQLConfig, IQL),
    "edac": (EDACConfig, EDAC),
    "cql": (CQLConfig, CQL),
}

_ROUND_UPDATES = 20  # enough that drawing numbers for each member in turn does not show


class Agent:
    """`agent = Agent(TD3BCConfig(), rows, [Member(0), Member(1)]); agent.train(1_000_000); agent.act(observations)`

    Training is done on the device of the rows. `auto` lets a GPU multiply in tf32.
    """

    def __init__(
        self,
        config: AgentConfig,
        rows: Rows,
        members: Sequence[Member],
        *,
        precision: Literal["auto", "float32", "tf32"] = "auto",
    ) -> None:
        names = [name for name, (kind, _) in ALGORITHMS.items() if kind is type(config)]
        if not names:
            raise ConfigError(f"expected the config of one of {', '.join(ALGORITHMS)}, got {type(config).__name__}")
        if not members:
            raise ConfigError("an agent needs at least one member, got none")
        self.config, self.rows, self.members, self.device = config, rows, tuple(members), rows.device
        self.precision = precision_for(precision, self.device)
        self.updates = 0
        shape = Shape(rows.observation_size, rows.action_size, tuple(m.seed for m in members), self.device)
        self.name = names[0]
        self.algorithm = ALGORITHMS[self.name][1](config, shape)
        scales = _scales(config, rows, self.members)
        self._policy = Policy(self.algorithm.actor, scales, self.algorithm.squash)
        self._round = _Round(self.algorithm, rows, self.members, config.batch, scales)
        self._captured: Callable[[], None] | None = None

    def train(self, updates: int) -> None:
        """So many updates of every member. On a GPU they may still be running when this returns."""
        if updates < 0:
            raise ConfigError(f"the number of updates must be at least 0, got {updates}")
        advice = "train fewer members together, or lower agent.batch, agent.width or the number of rows"
        with compute.matmul_precision(self.precision), compute.working_on(self.device, advice):
            end = self.updates + updates
            while self.updates < end:
                number, first = divmod(self.updates, self._round.updates)
                last = min(self._round.updates, first + end - self.updates)
                self._round.fill(number)
                if last - first == self._round.updates:
                    self._whole_round()
                else:
                    self._round.run(first, last)
                self.updates += last - first

    def losses(self) -> dict[str, NDArray[np.float32]]:
        """Each member's losses (S,) in the latest update that had them. Waits for the device."""
        return {name: tensor.cpu().numpy().copy() for name, tensor in self._round.losses.items()}

    def act(self, observations: ArrayLike) -> NDArray[np.float32]:
        """Actions (S, n, A), within their bounds, for observations (S, n, O) or the same (n, O) for every member."""
        return self._policy.act(observations)

    def policy(self, device: torch.device | None = None) -> Policy:
        """The policies as they are now, to be evaluated while training goes on; on the CPU unless said otherwise."""
        return self._policy.copy(device or torch.device("cpu"))

    def state(self) -> dict[str, Tensor]:
        """What changes from update to update, beside their number. The tensors are those that are trained."""
        return self.algorithm.state() | {f"losses.{name}": tensor for name, tensor in self._round.losses.items()}

    @torch.no_grad()
    def load_state(self, state: dict[str, Tensor], updates: int) -> None:
        """Go on from a `state` after so many `updates`."""
        own = self.state()
        if {name: tensor.shape for name, tensor in own.items()} != {name: state[name].shape for name in state}:
            raise ConfigError("this state belongs to an agent with other options, members or data")
        for name, tensor in own.items():
            tensor.copy_(state[name])
        self.updates = updates

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything: what `load` needs to go on training, and `load_policy` to act."""
        tensors = {name: tensor.detach().contiguous() for name, tensor in self.state().items()}
        tensors |= self._policy.scales.tensors()
        described = self._described() | {"updates": self.updates, "policy": self._policy.described()}
        with replacing(path) as beside:
            beside.write_bytes(save(tensors, {"format": policy.FORMAT, "agent": json.dumps(described)}))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a file that an agent with the same config, members and data has written."""
        described, tensors = policy.read(path)
        scales = {name: tensors.pop(name, None) for name in self._policy.scales.tensors()}
        same = all(
            kept is not None and torch.equal(kept, own.cpu())
            for kept, own in zip(scales.values(), self._policy.scales.tensors().values(), strict=True)
        )
        own = json.loads(json.dumps(self._described()))
        other = [name for name in own if own[name] != described.get(name)] + ([] if same else ["data"])
        if other:
            raise ConfigError(f"{path} belongs to an agent with another {', '.join(other)}: choose another place")
        if not isinstance(described.get("updates"), int):
            raise FormatError(f"{path} is a damaged agent: it does not say how many updates it has seen")
        self.load_state(tensors, described["updates"])

    def _described(self) -> dict[str, Any]:
        """What an agent must have in common with one that goes on from its file."""
        return {
            "algorithm": self.name,
            "config": asdict(self.config),
            "members": [asdict(member) for member in self.members],
            "tables": self.rows.lengths,
        }

    def _whole_round(self) -> None:
        if self._captured is None:
            whole = partial(self._round.run, 0, self._round.updates)
            self._captured = compute.capture(whole, self.device, list(self.state().values()))
        self._captured()


class _Round:
    """Consecutive updates, their batches and random numbers in tensors that stay where they are."""

    def __init__(self, algorithm: Algorithm, rows: Rows, members: Sequence[Member], batch: int, scales: Scales) -> None:
        self.algorithm, self.rows = algorithm, rows
        self.updates = -(-_ROUND_UPDATES // algorithm.period) * algorithm.period
        device = rows.device
        self.losses = {name: torch.zeros(len(members), device=device) for name in algorithm.losses}
        spans = [rows.spans(member.arm, batch) for member in members]
        self._starts, self._lengths = (torch.stack(part).unsqueeze(1) for part in zip(*spans, strict=True))  # (S, 1, B)
        self._drawn = Drawn([member.seed for member in members], self.updates, batch, algorithm, device)
        self._rows = torch.zeros(self.updates, len(members), batch, rows.width, device=device)
        self._shift, self._scale = rows.placed(scales.mean, 0.0), rows.placed(scales.deviation, 1.0)

    def fill(self, number: int) -> None:
        """Draw round `number` and gather its rows."""
        self._drawn.draw(number)
        picked = (self._starts + self._drawn.random % self._lengths).transpose(0, 1)  # (updates, S, B)
        torch.index_select(self.rows.matrix, 0, picked.flatten(), out=self._rows.view(-1, self.rows.width))
        self._rows.sub_(self._shift).div_(self._scale)

    def run(self, first: int, last: int) -> None:
        """The updates from `first` up to `last`, without it."""
        for step in range(first, last):
            noise = Noise(self._drawn.normal[:, step], self._drawn.uniform[:, step])
            losses = self.algorithm.update(self.rows.batch(self._rows[step]), noise, step)
            if step + self.algorithm.period >= last:  # the others would be overwritten
                for name, loss in losses.items():
                    self.losses[name].copy_(loss)


def _scales(config: AgentConfig, rows: Rows, members: Sequence[Member]) -> Scales:
    """Each member's observations are scaled by its own real data, or not at all."""
    size = len(members), rows.observation_size
    mean, deviation = torch.zeros(size, device=rows.device), torch.ones(size, device=rows.device)
    if config.normalize:
        standards = {table: rows.standard(table) for table in {member.arm.real for member in members}}
        for index, member in enumerate(members):
            mean[index], deviation[index] = standards[member.arm.real]
    return Scales(mean, deviation, rows.low, rows.high)

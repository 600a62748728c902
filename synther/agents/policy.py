"""The policy of an agent, and the files of agents.

A `Policy` consists of the actors of all members and the scaling of observations and actions. `write` and `read` handle
agent files; `load_policy` reads only the policy from them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from synther.agents.algorithm import Squash
from synther.agents.stacked import Networks, described_networks
from synther.compute import read_tensors
from synther.durable import replacing
from synther.errors import ConfigError, DataError, FormatError
from synther.schema import checked, parse

FORMAT = "synther-agent-1"
"""Name of the format in the metadata of agent files."""


class Member(TypedDict):
    """The entry of a member in an agent file."""

    seed: int


class Described(TypedDict, total=False):
    """The description in an agent file. Only pixel agents have `frame`."""

    algorithm: str
    config: dict[str, Any]
    environment: dict[str, Any]
    seeds: list[int]
    members: list[Member]
    updates: int
    rounds: int
    added: int
    n_step: int
    policy: dict[str, Any]
    frame: tuple[int, int, int]
    actor: tuple[int, ...]
    trunks: list[str]


@dataclass(frozen=True)
class Scales:
    """The scaling between the units of the environment and those of the networks."""

    mean: Tensor
    """Means of the observations (S, O), from each member's real data."""
    std: Tensor
    """Standard deviations of the observations (S, O), from each member's real data."""
    low: Tensor
    """Lower bounds of the actions (A,)."""
    high: Tensor
    """Upper bounds of the actions (A,)."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by their names in files."""
        return {f"scales.{name}": tensor for name, tensor in vars(self).items()}

    def to(self, device: torch.device) -> Scales:
        """Return a copy on `device`."""
        return Scales(**{name: tensor.to(device) for name, tensor in vars(self).items()})


@dataclass(frozen=True)
class Policy:
    """The policies of all members. `policy.act(observations)` returns every member's deterministic actions."""

    actor: Networks
    scales: Scales
    squash: Squash
    log_std: tuple[float, float] | None = None
    """Bounds of the log std, if the actor has outputs for it; see `Algorithm`."""

    @torch.no_grad()
    def act(self, observations: ArrayLike) -> NDArray[np.float32]:
        """Return actions (S, n, A) within their bounds, for observations (S, n, O), or (n, O) shared by all members.

        A single observation (O,) gives actions (S, A).
        """
        members, size = self.scales.mean.shape
        x = torch.from_numpy(np.require(observations, np.float32, "W"))
        if x.dim() == 1:
            return self.act(x.unsqueeze(0).numpy())[:, 0]
        if x.dim() not in (2, 3) or x.shape[-1] != size or (x.dim() == 3 and len(x) != members):
            wanted = f"({members}, n, {size}), (n, {size}) or ({size},)"
            raise DataError(f"expected observations of shape {wanted}, got {tuple(x.shape)}")
        return self._actions(x.to(self.scales.mean.device).expand(members, -1, -1))[0].cpu().numpy()

    @torch.no_grad()
    def __call__(self, observations: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return actions (N, A) for observations (N, O), or mean and std of the actions if the policy is stochastic.

        The members take turns: member k acts in rows k, S + k, 2 S + k and so on.
        """
        members, size = self.scales.mean.shape
        if observations.dim() != 2:
            raise DataError(f"expected observations of shape (n, {size}), got {tuple(observations.shape)}")
        self.check_sizes(observations.shape[1], len(self.scales.low))
        count = len(observations)
        padded = torch.cat([observations, observations[:1].expand(-count % members, -1)])
        turns = padded.to(self.scales.mean).view(-1, members, size).transpose(0, 1)
        parts = [each.transpose(0, 1).flatten(0, 1)[:count].to(observations) for each in self._actions(turns)]
        return parts[0] if len(parts) == 1 else (parts[0], parts[1])

    def digest(self) -> str:
        """Return a hash of the policy, to recognise it."""
        digest = hashlib.sha256(json.dumps(self.described(), sort_keys=True).encode())
        buffers = () if self.actor.buffers is None else (self.actor.buffers,)
        for tensor in (self.actor.weights, *buffers, *vars(self.scales).values()):
            digest.update(tensor.detach().cpu().numpy().tobytes())
        return digest.hexdigest()

    def check_sizes(self, observation: int, action: int) -> None:
        """Raise an error if rows with these numbers of columns cannot be guided by this policy."""
        own = self.scales.mean.shape[1], len(self.scales.low)
        if self.squash == "argmax":
            raise DataError(
                "the agent has discrete actions, and rows can be guided only to continuous ones: choose another agent"
            )
        if own != (observation, action):
            raise DataError(
                f"the agent has {own[0]} observation and {own[1]} action columns, the rows {observation} and {action}: "
                "choose an agent of the same environment"
            )

    def _actions(self, x: Tensor) -> list[Tensor]:
        """Return actions (S, n, A) for observations (S, n, O), and their std if the policy is stochastic."""
        s = self.scales
        output = self.actor((x - s.mean.unsqueeze(1)) / s.std.unsqueeze(1), training=False)
        if self.squash == "argmax":
            return [s.low + output.argmax(-1, keepdim=True)]
        output, log_std = output[..., : len(s.low)], output[..., len(s.low) :]
        action = output.tanh() if self.squash == "tanh" else output.clamp(-1, 1)
        scaled = torch.lerp(s.low, s.high, 0.5 * (action + 1)).clamp(s.low, s.high)
        if self.log_std is None:
            return [scaled]
        # Noise is added before tanh. So the std of the action is multiplied by the slope of tanh, 1 - action^2.
        return [scaled, 0.5 * (s.high - s.low) * (1 - action.square()) * log_std.clamp(*self.log_std).exp()]

    def copy(self, device: torch.device) -> Policy:
        """Return a copy of the current policy on `device`."""
        return replace(self, actor=self.actor.copy(device), scales=self.scales.to(device))

    def members(self) -> list[MemberPolicy]:
        """Return the policy of each member, on the CPU."""
        on_cpu = self.copy(torch.device("cpu"))
        s = on_cpu.scales
        return [
            MemberPolicy(Policy(on_cpu.actor.member(index), replace(s, mean=mean[None], std=std[None]), self.squash))
            for index, (mean, std) in enumerate(zip(s.mean, s.std, strict=True))
        ]

    def described(self) -> dict[str, Any]:
        """Return the description of the policy, without its tensors, as JSON values."""
        drawn = {} if self.log_std is None else {"log_std": self.log_std}
        return {**self.actor.described(), "squash": self.squash, **drawn}


@dataclass(frozen=True)
class MemberPolicy:
    """The policy of one member, for processes that play episodes. They must import PyTorch."""

    policy: Policy

    @property
    def inputs(self) -> int:
        """Number of observation columns."""
        return self.policy.scales.mean.shape[1]

    @property
    def low(self) -> NDArray[np.float32]:
        """Lower bounds of the actions (A,)."""
        return self.policy.scales.low.numpy()

    @property
    def high(self) -> NDArray[np.float32]:
        """Upper bounds of the actions (A,)."""
        return self.policy.scales.high.numpy()

    def act(self, observation: ArrayLike, rng: np.random.Generator | None = None) -> NDArray[np.float32]:
        """Return deterministic actions (n, A) for observations (n, O), or (A,) for (O,). `rng` is not used."""
        actions: NDArray[np.float32] = self.policy.act(observation)[0]
        return actions


def is_agent(path: str | os.PathLike[str]) -> bool:
    """Return whether a file holds an agent or a policy."""
    try:
        with safe_open(path, "pt") as file:
            return bool((file.metadata() or {}).get("format") == FORMAT)
    except (SafetensorError, OSError):
        return False


def write(path: str | os.PathLike[str], described: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write an agent file: the description of the agent and its tensors by name."""
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        temporary.write_bytes(save(contiguous, {"format": FORMAT, "agent": json.dumps(described)}))


def read(
    path: str | os.PathLike[str], *names: str, optional: tuple[str, ...] = (), pixels: bool | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the description and the tensors of an agent file, on the CPU.

    Without `names`, all tensors are read. Otherwise, only the tensors `names` are read, and the tensors `optional` that
    the file has. If `pixels` is True, the file must hold a pixel agent; if it is False, it must not; None accepts both.
    """
    if not Path(path).is_file():
        raise FormatError(f"{path}: no such file; expected an agent written by Agent.save")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                found = metadata.get("format", "no format")
                raise FormatError(f"it is not a SynthER agent: expected format {FORMAT!r}, got {found!r}")
            described: dict[str, Any] = parse(metadata["agent"], Described, "agent")
            if pixels is not None and pixels != ("frame" in described):
                trained, expected = ("rows", "pixels") if pixels else ("pixels", "rows")
                raise FormatError(f"it holds an agent trained on {trained}: expected one trained on {expected}")
            stored = file.keys()
            wanted = [*names, *(name for name in optional if name in stored)] if names else stored
            return described, read_tensors(file, wanted)
    except (SafetensorError, OSError, KeyError) as error:
        raise FormatError(f"{path} cannot be read as an agent ({error}): train the agent again") from None
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None


class _About(TypedDict):
    """The parts of a policy's description that do not belong to its actor."""

    squash: Squash
    log_std: NotRequired[tuple[float, float]]


def load_policy(path: str | os.PathLike[str], device: torch.device | None = None) -> Policy:
    """Read the policy from an agent file. Default device: CPU."""
    names = ("mean", "std", "low", "high")
    wanted = ("actor", *(f"scales.{name}" for name in names))
    described, tensors = read(path, *wanted, optional=("actor.buffers",), pixels=False)
    try:
        about = checked(described.get("policy"), _About, "policy")
        actor = described_networks(tensors["actor"], tensors.get("actor.buffers"), about)
        if {tensor.dtype for tensor in tensors.values()} != {torch.float32}:
            raise FormatError("its tensors are not float32")
        scales = Scales(**{name: tensors[f"scales.{name}"] for name in names})
        policy = Policy(actor, scales, about["squash"], about.get("log_std"))
        policy.act(np.zeros((1, policy.scales.mean.shape[1]), np.float32))
    except (FormatError, RuntimeError, IndexError) as error:  # PyTorch's errors, if weights have other shapes
        raise FormatError(f"{path} is a damaged agent file ({error}): train the agent again") from None
    except ConfigError as error:
        advice = "register it first, or install the package that has it as an entry point of synther.networks"
        raise ConfigError(f"{path} has a network that cannot be built here ({error}): {advice}") from None
    return policy.copy(device or torch.device("cpu"))

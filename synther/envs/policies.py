"""Policies that are computed with NumPy, read from a file or copied from an agent.

Worker processes use these policies. They start much faster because they do not import PyTorch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from synther.errors import ConfigError, DataError, FormatError
from synther.formats.npz import Archive
from synther.formats.reading import reading

Array = NDArray[Any]
Layers = tuple[tuple[Array, Array], ...]
"""Weight (inputs, outputs) and bias (outputs,) of each layer, in order, with ReLU between them."""

LOG_STD = (-20.0, 2.0)
"""Bounds of the log std in SAC's policies."""
_KEY = re.compile(r"(?P<name>[^/]+/[^/]+)/(?P<part>weight|bias)(?P<layer>\d+)")


class Policy(Protocol):
    def act(self, observation: Array, rng: np.random.Generator) -> Array:
        """Return actions (n, A) for observations (n, O), or (A,) for (O,). Stochastic policies draw from `rng`."""


@dataclass(frozen=True, eq=False)
class MlpPolicy:
    """A multilayer perceptron. Its outputs are squashed to [-1, 1] and scaled to the action bounds `low` and `high`.

    Observations are normalized by `mean` and `std`, if given. If `low` and `high` are None, they are -1 and 1. With
    `log_std`, actions are drawn as in SAC: the first half of the outputs is the mean of a normal distribution, and the
    second half is the log of its standard deviation, clipped to the bounds `log_std`. The drawn number is squashed.
    """

    layers: Layers
    squash: Literal["tanh", "clamp"] = "tanh"
    mean: Array | None = None
    std: Array | None = None
    low: Array | None = None
    high: Array | None = None
    log_std: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", checked(self.layers))
        if self.squash not in ("tanh", "clamp"):
            raise DataError(f"squash must be 'tanh' or 'clamp', got {self.squash!r}")
        inputs, outputs = len(self.layers[0][0]), len(self.layers[-1][1])
        if self.log_std is not None:
            if outputs % 2:
                raise DataError(f"expected an even number of outputs (mean and log std), got {outputs}")
            outputs //= 2
        for one, other, size in (("mean", "std", inputs), ("low", "high", outputs)):
            given = [getattr(self, name) for name in (one, other)]
            if (given[0] is None) != (given[1] is None):
                raise DataError(f"{one} and {other} come together: got only one of them")
            for name, value in zip((one, other), given, strict=True):
                if value is None:
                    continue
                array = np.array(value, np.float32)
                if array.shape != (size,):
                    raise DataError(f"{name} has shape {array.shape}: this network needs ({size},)")
                object.__setattr__(self, name, array)

    @property
    def inputs(self) -> int:
        """Number of observation columns."""
        return len(self.layers[0][0])

    def act(self, observation: Array, rng: np.random.Generator | None = None) -> Array:
        hidden: Array = np.asarray(observation, np.float32)
        if self.mean is not None and self.std is not None:
            hidden = (hidden - self.mean) / self.std
        out = forward(self.layers, hidden)
        if self.log_std is not None:
            assert rng is not None  # a stochastic policy needs random numbers
            mean, log_std = np.split(out, 2, axis=-1)
            out = mean + np.exp(np.clip(log_std, *self.log_std)) * rng.standard_normal(mean.shape, np.float32)
        action: Array = np.tanh(out) if self.squash == "tanh" else np.clip(out, -1, 1)
        if self.low is not None and self.high is not None:
            action = (self.high + self.low) / 2 + (self.high - self.low) / 2 * action
            action = np.clip(action, self.low, self.high)  # rounding may exceed the bounds
        return action


@dataclass(frozen=True, eq=False)
class UniformPolicy:
    """Returns uniformly random actions from `low` to `high`, (A,) each. Integer bounds give integer actions."""

    low: Array
    high: Array

    def __post_init__(self) -> None:
        if not (np.isfinite(self.low).all() and np.isfinite(self.high).all()):
            raise DataError("uniform actions need finite bounds")

    def act(self, observation: Array, rng: np.random.Generator) -> Array:
        shape = (*np.shape(observation)[:-1], len(self.low))
        if self.low.dtype.kind in "iu":
            return rng.integers(self.low, self.high, shape, endpoint=True)
        return rng.uniform(self.low, self.high, shape).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Explorer:
    """Adds Gaussian noise to the actions of a policy, and clips them to their bounds.

    `noise` is the std of the noise for actions in [-1, 1]. It is scaled for other bounds.
    """

    policy: Any
    """An `MlpPolicy`, or a member of another agent's policy."""
    low: Array
    high: Array
    noise: float

    def act(self, observation: Array, rng: np.random.Generator) -> Array:
        action = self.policy.act(observation, rng)
        moved = self.noise * (self.high - self.low) / 2 * rng.standard_normal(action.shape, np.float32)
        kept: Array = np.clip(action + moved, self.low, self.high)
        return kept


def frozen(policy: Any, *, stochastic: bool = False) -> Sequence[Any]:
    """Split an agent's policy (`agents.policy.Policy`) into one policy per member.

    Perceptrons become `MlpPolicy` objects. Others, and policies with discrete actions, stay policies in PyTorch. They
    act deterministically, or draw their actions as in training if `stochastic`.
    """
    if stochastic and (policy.log_std is None or not hasattr(policy.actor, "sizes")):
        raise ConfigError(
            "this agent has no distribution to draw actions from: expected an agent of SAC, REDQ, DroQ, RLPD or EDAC"
        )
    if policy.squash == "argmax" or not hasattr(policy.actor, "sizes"):
        return list(policy.members())
    s = policy.scales
    mean, std, low, high = (tensor.cpu().numpy() for tensor in (s.mean, s.std, s.low, s.high))
    networks = policy.actor.weights.detach().cpu().numpy()  # one copy from the device for all members
    outputs, log_std = (2 * len(low), policy.log_std) if stochastic else (len(low), None)
    return [
        MlpPolicy(_layers(row, policy.actor.sizes, outputs), policy.squash, own_mean, own_std, low, high, log_std)
        for row, own_mean, own_std in zip(networks, mean, std, strict=True)
    ]


def _layers(row: Array, sizes: tuple[int, ...], outputs: int) -> Layers:
    """Return the layers of one network from a row of a `Stack`, which holds first all matrices, then all biases.

    Only the first `outputs` outputs are kept.
    """
    shapes = [*pairwise(sizes), *((size,) for size in sizes[1:])]
    ends = list(accumulate(int(np.prod(shape)) for shape in shapes))
    parts = [part.reshape(shape) for part, shape in zip(np.split(row[: ends[-1]], ends[:-1]), shapes, strict=True)]
    depth = len(sizes) - 1
    layers = list(zip(parts[:depth], parts[depth:], strict=True))
    weight, bias = layers.pop()
    return (*layers, (weight[:, :outputs], bias[:outputs]))


def forward(layers: Layers, hidden: Array) -> Array:
    """Return the output of the last layer, before squashing."""
    for weight, bias in layers[:-1]:
        hidden = np.maximum(hidden @ weight + bias, 0)
    weight, bias = layers[-1]
    out: Array = hidden @ weight + bias
    return out


def checked(layers: Layers) -> Layers:
    """Return copies of the layers as float32. Raises an error if their shapes do not fit each other."""
    if not layers:
        raise DataError("a policy needs at least one layer, got none")
    if any(array.dtype.kind not in "biuf" for layer in layers for array in map(np.asarray, layer)):
        raise DataError("the layers of a policy contain values that are not numbers: expected arrays of numbers")
    copies = tuple((np.array(weight, np.float32, order="C"), np.array(bias, np.float32)) for weight, bias in layers)
    width: Any = None
    for number, (weight, bias) in enumerate(copies):
        if weight.ndim != 2 or width not in (None, len(weight)) or bias.shape != weight.shape[1:]:
            raise DataError(
                f"layer {number} has a weight of shape {weight.shape} and a bias of shape {bias.shape}: "
                f"expected ({width or 'inputs'}, outputs) and (outputs,)"
            )
        width = weight.shape[1]
    return copies


def read_policy(path: str | os.PathLike[str], env: str, level: str) -> MlpPolicy:
    """Read the stochastic policy `env`/`level` from an archive of policies (.npz).

    The archive has the keys `ENV/LEVEL/weightK` and `ENV/LEVEL/biasK` for each layer K of each policy.
    """
    name = f"{env}/{level}"
    with _archive(path) as archive:
        known = _names(archive)
        if name not in known:
            raise FormatError(f"it has no policy {name!r}: it holds {', '.join(known) or 'none'}")
        arrays = archive.arrays(key for key in archive.names if key.startswith(f"{name}/"))
    parts = {key.removeprefix(f"{name}/"): array for key, array in arrays.items()}
    count = len(parts) // 2
    wanted = {f"{part}{layer}" for part in ("weight", "bias") for layer in range(count)}
    if parts.keys() != wanted:
        raise FormatError(f"{path}: {name} holds {', '.join(sorted(parts))}; expected weightK and biasK, K from 0 on")
    try:
        layers = tuple((parts[f"weight{layer}"], parts[f"bias{layer}"]) for layer in range(count))
        return MlpPolicy(layers, log_std=LOG_STD)
    except DataError as error:
        raise FormatError(f"{path}: {name}: {error}") from None


def policies_of(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the names of all policies in an archive, as `ENV/LEVEL`."""
    with _archive(path) as archive:
        return _names(archive)


def _names(archive: Archive) -> tuple[str, ...]:
    found = (_KEY.fullmatch(key) for key in archive.names)
    return tuple(dict.fromkeys(match["name"] for match in found if match))


@contextmanager
def _archive(path: str | os.PathLike[str]) -> Iterator[Archive]:
    """Open an archive of policies. Errors inside the block name the file."""
    if not Path(path).is_file():
        raise FormatError(f"{path}: no such file; expected an archive of policies (.npz)")
    with reading(path, "an archive of policies (.npz)"), Archive.opened(path) as archive:
        yield archive

"""An agent's policy as plain arrays, one a member, for processes without PyTorch."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.agents.policy import Policy
from synther.envs.policies import Layers, MlpPolicy


def frozen(policy: Policy) -> list[MlpPolicy]:
    """One copy on its way from the device, whatever the number of members."""
    s = policy.scales
    mean, std, low, high = (tensor.cpu().numpy() for tensor in (s.mean, s.std, s.low, s.high))
    networks = policy.actor.weights.detach().cpu().numpy()
    return [
        MlpPolicy(_layers(row, policy.actor.sizes, len(low)), policy.squash, mean[member], std[member], low, high)
        for member, row in enumerate(networks)
    ]


def _layers(row: NDArray[Any], sizes: tuple[int, ...], actions: int) -> Layers:
    """Of one network, a row of a `Stack`: its matrices, then its biases. Outputs beyond the mean are left out."""
    shapes = [*pairwise(sizes), *((size,) for size in sizes[1:])]
    ends = list(accumulate(int(np.prod(shape)) for shape in shapes))
    parts = [part.reshape(shape) for part, shape in zip(np.split(row[: ends[-1]], ends[:-1]), shapes, strict=True)]
    depth = len(sizes) - 1
    layers = list(zip(parts[:depth], parts[depth:], strict=True))
    weight, bias = layers.pop()
    return (*layers, (weight[:, :actions], bias[:actions]))

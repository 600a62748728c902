"""Fit several small networks at the same time, to find out what an agent could learn from rows.

`fit` trains one network per entry of `draws`, such as one on real rows, one on synthetic rows and one half and half. A
fit takes seconds on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from synther.compute import one_thread
from synther.descent import Descent

Array = NDArray[Any]
Loss = Callable[[Tensor, Tensor], Tensor]
"""A function from outputs and targets, both (members, batch, columns), to the mean loss."""

WIDTH = 128
BATCH = 256
LEARNING_RATE = 3e-3
MOST_STEPS, FEWEST_STEPS, EPOCHS = 600, 300, 40
"""A fit takes `EPOCHS` passes through its rows, but at least `FEWEST_STEPS` and at most `MOST_STEPS` steps. So few rows
get enough steps, and many rows do not take minutes."""

FIRST_ANSWERS = 0.1
"""Factor on the initial output weights of He et al. (2015). First answers are then near 0, the mean of the targets.
Networks would have to unlearn larger random answers first, which leaves an error of several times the final one."""

_PREDICT_ROWS = 4_096
_WIDEST_LOG = 6.0


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared error."""
    return (outputs - targets).square().mean()


def flags(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the binary cross-entropy. Outputs are logits, targets are 0 or 1."""
    return functional.binary_cross_entropy_with_logits(outputs, targets)


def scales(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the negative log-likelihood of targets from normal distributions with mean 0, up to a constant.

    Outputs are the logarithms of the standard deviations.
    """
    logs = outputs.clamp(-_WIDEST_LOG, _WIDEST_LOG)
    return (targets.square() * torch.exp(-2 * logs) / 2 + logs).mean()


def classes(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy. Outputs are logits, targets are one-hot. Targets of zeros contribute nothing."""
    return -(targets * functional.log_softmax(outputs, dim=-1)).sum(dim=-1).mean()


class Networks:
    """M perceptrons with two hidden layers. Their weights are stacked, so that one matrix product computes all."""

    def __init__(self, members: int, inputs: int, outputs: int, generator: torch.Generator, device: torch.device):
        self.weights: list[Tensor] = []
        for fan_in, fan_out in ((inputs, WIDTH), (WIDTH, WIDTH), (WIDTH, outputs)):
            spread = math.sqrt(2.0 / fan_in)  # He et al. 2015
            weight = spread * torch.randn(fan_in, fan_out, generator=generator, dtype=torch.float32)
            # All members start from the same weights, so that they only differ by the rows they learn from.
            stacked = weight.repeat(members, 1, 1).to(device)
            self.weights += [stacked, stacked.new_zeros(members, 1, fan_out)]
        self.weights[4].mul_(FIRST_ANSWERS)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Map inputs (members, batch, inputs) to outputs (members, batch, outputs)."""
        hidden = inputs
        for layer in (0, 2):
            hidden = torch.relu(torch.baddbmm(self.weights[layer + 1], hidden, self.weights[layer]))
        return torch.baddbmm(self.weights[5], hidden, self.weights[4])

    def members(self, start: int, stop: int) -> Networks:
        """Return the members from `start` to `stop`, like a slice."""
        part = object.__new__(Networks)
        part.weights = [tensor[start:stop] for tensor in self.weights]
        return part

    def predict(self, inputs: Array) -> Array:
        """Return the answers of all members to the same inputs. (n, inputs) to (members, n, outputs)"""
        members, device = len(self.weights[0]), self.weights[0].device
        parts = []
        with torch.no_grad(), one_thread():
            for start in range(0, len(inputs), _PREDICT_ROWS):
                part = torch.from_numpy(inputs[start : start + _PREDICT_ROWS]).to(device)
                parts.append(self(part.expand(members, -1, -1)).cpu().numpy())
        return np.concatenate(parts, axis=1)


@torch.inference_mode(mode=False)
@torch.enable_grad()
def fit(
    inputs: Array,
    targets: Array,
    draws: Sequence[Sequence[Array]],
    loss: Loss,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    effort: float = 1.0,
) -> Networks:
    """Fit networks from `inputs` (n, I) to `targets` (n, O), both float32, and return them.

    `draws` has one entry for each network. An entry lists the pools of row numbers from which batches are drawn, with
    equally many rows from each pool. For example, `[[real], [real, synthetic]]` fits one network on real rows and one
    on half of each. `effort` multiplies the default number of steps. The same seed gives the same weights.
    """
    device = torch.device(device)
    generator = torch.Generator().manual_seed(seed)
    networks = Networks(len(draws), inputs.shape[1], targets.shape[1], generator, device)
    known, wanted = torch.from_numpy(inputs).to(device), torch.from_numpy(targets).to(device)
    pools = [[torch.from_numpy(pool) for pool in member] for member in draws]
    steps = max(1, round(effort * steps_for(max(len(pool) for member in draws for pool in member))))
    descent = Descent(networks.weights, steps, LEARNING_RATE)
    networks.weights = descent.weights
    with one_thread():
        for _ in range(steps):
            rows = torch.stack([_batch(member, generator) for member in pools]).to(device)
            # Members share no weights. The gradient of the sum of their losses is the gradient of each one.
            descent.step(len(draws) * loss(networks(known[rows]), wanted[rows]))
    for tensor in networks.weights:
        tensor.requires_grad_(False)
    return networks


def steps_for(rows: int) -> int:
    """Return the default number of steps for this number of rows."""
    return min(MOST_STEPS, max(FEWEST_STEPS, EPOCHS * rows // BATCH))


def _batch(pools: Sequence[Tensor], generator: torch.Generator) -> Tensor:
    """Draw the row numbers of a batch, equally many from each pool."""
    share = BATCH // len(pools)
    return torch.cat([pool[torch.randint(len(pool), (share,), generator=generator)] for pool in pools])

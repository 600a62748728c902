"""Small networks that learn the conditional distribution of some columns (targets) given others (inputs).

Example: the inputs are observation and action, and the targets are the next observation. For each row, a network
predicts a mean and a variance for each column of real numbers, a probability of 1 for each flag, and a probability for
each value of a category. Several networks (members) are fitted at the same time, with different batches.

Read `Outputs` (kinds of targets), then `Networks` (prediction and loss), `Law` (the predicted distributions), and
`fit`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from synther import compute
from synther.descent import Descent
from synther.progress import Phase

BATCH = 256
LEARNING_RATE = 4e-3
EPOCHS, FEWEST_STEPS, MOST_STEPS = 40, 300, 800
"""Default length of a fit in epochs, and the bounds of its number of steps."""

_EVERY, _PATIENCE = 100, 4
"""Number of steps between two measurements on held-out rows, and number of measurements without an improvement after
which a fit stops."""

_MEASURED_ROWS = 4_096  # maximum number of held-out rows on which the loss is measured
_BETAS = 0.9, 0.99  # of Adam
_MOST_GRADIENT = 20.0  # gradients with a larger norm are clipped
_LOWEST, _HIGHEST = -10.0, 4.0  # bounds of log-variances, for targets of variance 1
_FIRST_OUTPUTS = 0.1  # factor of the initial output weights: predictions then start near the mean of the targets
_PREDICTED_ROWS = 8_192  # number of rows that are predicted together
_LEAST_CHANCE = 1e-6  # lower bound of predicted probabilities
_STREAM = 11  # stream of random numbers that no other module uses


@dataclass(frozen=True)
class Outputs:
    """The number of target columns of each kind, in this order: real numbers, flags (0 or 1), and one-hot groups."""

    real: int = 0
    flags: int = 0
    choices: tuple[int, ...] = ()
    """Number of columns of each one-hot group."""

    @property
    def columns(self) -> int:
        return self.real + self.flags + sum(self.choices)

    @property
    def width(self) -> int:
        """The number of outputs of the network. A real number needs two: a mean and a log-variance."""
        return 2 * self.real + self.flags + sum(self.choices)


@dataclass(frozen=True)
class Law:
    """The distribution of the targets of N rows, as predicted by each of M members."""

    mean: Tensor
    """Mean of each real number. (M, N, R)"""
    variance: Tensor
    """Variance of each real number. (M, N, R)"""
    flags: Tensor
    """Probability that each flag is 1. (M, N, B)"""
    choices: tuple[Tensor, ...]
    """Probability of each value, for each one-hot group. (M, N, K)"""

    def mixture(self) -> Law:
        """Return the mixture of all members as one member (M = 1). The variance includes the disagreement between
        members."""
        mean, *chances = (each.mean(0, keepdim=True) for each in (self.mean, self.flags, *self.choices))
        variance = (self.variance + (self.mean - mean).square()).mean(0, keepdim=True)
        return Law(mean, variance, chances[0], tuple(chances[1:]))

    def average(self) -> Law:
        """Return the average of all members as one member (M = 1). The variance is the mean of their variances, without
        the disagreement between members."""
        mixed = self.mixture()
        return Law(mixed.mean, self.variance.mean(0, keepdim=True), mixed.flags, mixed.choices)

    def of(self, member: Tensor) -> Law:
        """Return, for each row, the prediction of the member with this number (N,). The result has M = 1."""
        row = torch.arange(len(member), device=member.device)
        picked = [each[member, row][None] for each in (self.mean, self.variance, self.flags, *self.choices)]
        return Law(picked[0], picked[1], picked[2], tuple(picked[3:]))

    def draw(self, source: torch.Generator) -> Tensor:
        """Draw targets from the distribution of the first member. (N, columns)"""
        noise = torch.randn(self.mean[0].shape, generator=source, device=self.mean.device)
        chance = torch.rand(self.flags[0].shape, generator=source, device=self.mean.device)
        parts = [self.mean[0] + self.variance[0].sqrt() * noise, (chance < self.flags[0]).float()]
        for each in self.choices:
            chosen = torch.multinomial(each[0], 1, generator=source)[:, 0]
            parts.append(functional.one_hot(chosen, each.shape[2]).float())
        return torch.cat(parts, 1)

    def surprises(self, targets: Tensor) -> Tensor:
        """Return how unusual each target of N rows is under the first member. (N, groups)

        For a real number, this is its distance from the mean in standard deviations. For a flag or a one-hot group, it
        is the log of the ratio between the probability of the most likely value and the probability of this value.
        """
        real = self.mean.shape[2]
        parts = [(targets[:, :real] - self.mean[0]).abs() / self.variance[0].sqrt()]
        flag, *chances = self._chances(targets)
        parts.append(_nats(torch.maximum(flag, 1 - flag), flag))
        pairs = zip(self.choices, chances, strict=True)
        parts += [_nats(each[0].amax(1, keepdim=True), chance) for each, chance in pairs]
        return torch.cat(parts, 1)

    def log_likelihood(self, targets: Tensor) -> Tensor:
        """Return the log-probability of each flag and each one-hot group of N rows under the first member.
        (N, groups)"""
        return torch.cat(self._chances(targets), 1).clamp_min(_LEAST_CHANCE).log()

    def _chances(self, targets: Tensor) -> list[Tensor]:
        """Return the probabilities of the values of N rows under the first member: a tensor for all flags (N, B), and
        one for each one-hot group (N, 1)."""
        real, flags = self.mean.shape[2], self.flags.shape[2]
        marked = targets[:, real : real + flags]
        chances, start = [torch.where(marked > 0.5, self.flags[0], 1 - self.flags[0])], real + flags
        for each in self.choices:
            end = start + each.shape[2]
            chances.append((each[0] * targets[:, start:end]).sum(1, keepdim=True))
            start = end
        return chances


class Networks:
    """M multilayer perceptrons (members) of the same shape. Their weights are stacked, so one batched product computes
    a layer of all members."""

    def __init__(self, inputs: int, outputs: Outputs, weights: list[Tensor]) -> None:
        self.inputs, self.outputs, self.weights = inputs, outputs, weights

    @classmethod
    def fresh(
        cls, inputs: int, outputs: Outputs, members: int, width: int, depth: int, source: torch.Generator
    ) -> Networks:
        """Return untrained networks with the initialisation of He et al. (2015), on the CPU."""
        weights: list[Tensor] = []
        sizes = [inputs, *[width] * depth, outputs.width]
        for fan_in, fan_out in itertools.pairwise(sizes):
            spread = math.sqrt(2.0 / max(fan_in, 1))
            drawn = spread * torch.randn(members, fan_in, fan_out, generator=source, dtype=torch.float32)
            weights += [drawn, torch.zeros(members, 1, fan_out, dtype=torch.float32)]
        weights[-2] *= _FIRST_OUTPUTS
        return cls(inputs, outputs, weights)

    @property
    def members(self) -> int:
        return len(self.weights[0])

    @property
    def device(self) -> torch.device:
        return self.weights[0].device

    @property
    def parameters(self) -> int:
        return sum(weight.numel() for weight in self.weights)

    def copy(self) -> Networks:
        return Networks(self.inputs, self.outputs, [weight.clone() for weight in self.weights])

    def to(self, device: torch.device) -> Self:
        self.weights = [weight.to(device) for weight in self.weights]
        return self

    def __call__(self, inputs: Tensor) -> Tensor:
        """Compute the outputs (M, N, width) for the inputs (M, N, inputs)."""
        hidden = inputs
        for layer in range(0, len(self.weights) - 2, 2):
            hidden = functional.silu(torch.baddbmm(self.weights[layer + 1], hidden, self.weights[layer]))
        return torch.baddbmm(self.weights[-1], hidden, self.weights[-2])

    def law(self, inputs: Tensor) -> Law:
        """Predict the distribution of the targets for inputs (N, inputs), with each member."""
        with torch.no_grad():
            parts = [self._law(part) for part in torch.split(inputs, _PREDICTED_ROWS)]
        joined = [torch.cat(each, 1) for each in zip(*parts, strict=True)]
        return Law(joined[0], joined[1], joined[2], tuple(joined[3:]))

    def _law(self, inputs: Tensor) -> tuple[Tensor, ...]:
        mean, logs, flags, *choices = self._split(self(inputs.expand(self.members, -1, -1)))
        return mean, logs.exp(), flags.sigmoid(), *(each.softmax(2) for each in choices)

    def _split(self, predicted: Tensor) -> tuple[Tensor, ...]:
        """Split the outputs (M, N, width) into means, log-variances, logits of flags, and logits of each one-hot
        group."""
        outputs = self.outputs
        mean, logs, *rest = torch.split(predicted, [outputs.real, outputs.real, outputs.flags, *outputs.choices], 2)
        if outputs.real:  # soft bounds: beyond them, gradients become small, but not 0
            logs = _HIGHEST - functional.softplus(_HIGHEST - logs)
            logs = _LOWEST + functional.softplus(logs - _LOWEST)
        return mean, logs, *rest

    def loss(self, inputs: Tensor, targets: Tensor, *, weighted: bool = False) -> Tensor:
        """Return the mean negative log-likelihood of the targets (M, N, columns) under each member, up to a constant.
        (M,)

        If `weighted`, the loss of real numbers is multiplied by their predicted standard deviation (Seitzer et al.
        2022). Otherwise the gradients of precisely predicted columns would dominate those of the other columns.
        """
        mean, logs, flags, *choices = self._split(self(inputs))
        outputs = self.outputs
        real, marks, *chosen = torch.split(targets, [outputs.real, outputs.flags, *outputs.choices], 2)
        nats = [
            -(one_hot * functional.log_softmax(logits, 2)).sum(2)
            for logits, one_hot in zip(choices, chosen, strict=True)
        ]
        if outputs.real:
            each = 0.5 * ((real - mean).square() * (-logs).exp() + logs)
            nats.append((each * (0.5 * logs.detach()).exp() if weighted else each).sum(2))
        if outputs.flags:
            nats.append(functional.binary_cross_entropy_with_logits(flags, marks, reduction="none").sum(2))
        return torch.stack(nats).sum(0).mean(1)

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights for a file. `restored` is the inverse."""
        return {str(number): weight.cpu().contiguous() for number, weight in enumerate(self.weights)}

    @classmethod
    def restored(cls, outputs: Outputs, tensors: Mapping[str, Tensor]) -> Networks:
        """Return networks with the weights of a file."""
        weights = [tensors[str(number)] for number in range(len(tensors))]
        sizes = [weights[0].shape[1], *(weight.shape[2] for weight in weights[::2])]
        shapes = [(len(weights[0]), *pair) for pair in itertools.pairwise(sizes)]
        if [tuple(weight.shape) for weight in weights[::2]] != shapes or sizes[-1] != outputs.width:
            raise ValueError("the networks of its ensemble do not match its columns")
        return cls(sizes[0], outputs, weights)


@torch.inference_mode(mode=False)
@torch.enable_grad()
def fit(
    networks: Networks,
    inputs: Tensor,
    targets: Tensor,
    held_out: Tensor,
    *,
    steps: int,
    seed: int,
    phase: Phase,
    fresh: bool = True,
) -> tuple[Networks, float]:
    """Fit networks to the inputs (N, inputs) and targets (N, columns) of the rows that `held_out` (N,) does not mark.

    Return networks with the weights that had the lowest held-out loss, for each member by itself, and the mean of these
    losses. If no row is held out, the loss is measured on all rows. Networks that are not `fresh` were fitted to
    similar rows before.
    """
    device, members = inputs.device, networks.members
    learned = torch.nonzero(~held_out)[:, 0]
    measured = torch.nonzero(held_out if held_out.any() else ~held_out)[:_MEASURED_ROWS, 0]
    if fresh:
        _start_at_rates(networks, targets[learned])
    source = compute.generator(device, _STREAM, seed)
    descent = Descent(networks.to(device).weights, steps, LEARNING_RATE, betas=_BETAS, max_grad_norm=_MOST_GRADIENT)
    networks.weights, best, waited = descent.weights, _Best(), 0
    with compute.one_thread():
        for step in range(1, steps + 1):
            picked = learned[torch.randint(len(learned), (members * BATCH,), generator=source, device=device)]
            batch = [table.index_select(0, picked).view(members, BATCH, -1) for table in (inputs, targets)]
            descent.step(networks.loss(*batch, weighted=True).sum())
            if step % _EVERY and step < steps:
                continue
            waited = 0 if best.improve(networks, inputs[measured], targets[measured]) else waited + 1
            phase.advance((step - 1) % _EVERY + 1, f"held-out loss {best.loss:.3f}")
            if waited == _PATIENCE:
                break
    return Networks(networks.inputs, networks.outputs, best.weights), best.loss


class _Best:
    """Keeps the weights with the lowest loss so far, for each member."""

    def __init__(self) -> None:
        self.losses: Tensor | None = None
        self.weights: list[Tensor] = []

    @property
    def loss(self) -> float:
        return math.inf if self.losses is None else float(self.losses.mean())

    @torch.no_grad()
    def improve(self, networks: Networks, inputs: Tensor, targets: Tensor) -> bool:
        """Measure the present networks, and keep the weights of members that are better than before. Return whether any
        member is better."""
        shape = networks.members, -1, -1
        losses, weights = networks.loss(inputs.expand(shape), targets.expand(shape)), networks.weights
        if self.losses is None:
            self.losses, self.weights = losses, [weight.detach().clone() for weight in weights]
            return True
        better = losses < self.losses
        self.losses = torch.where(better, losses, self.losses)
        pairs = zip(weights, self.weights, strict=True)
        self.weights = [torch.where(better[:, None, None], new.detach(), old) for new, old in pairs]
        return bool(better.any())


def steps_for(rows: int) -> int:
    """Return the default number of steps for this number of rows."""
    return min(MOST_STEPS, max(FEWEST_STEPS, EPOCHS * rows // BATCH))


def _start_at_rates(networks: Networks, targets: Tensor) -> None:
    """Initialise the output biases so that predicted probabilities start at the rates in the targets. Otherwise the
    networks would first have to learn that a rare flag, such as one terminal in 1,000 rows, is rare."""
    outputs = networks.outputs
    rates = targets[:, outputs.real :].mean(0).clamp(1e-4, 1 - 1e-4).cpu()
    first = 2 * outputs.real
    networks.weights[-1][:, 0, first : first + outputs.flags] = torch.logit(rates[: outputs.flags])
    networks.weights[-1][:, 0, first + outputs.flags :] = rates[outputs.flags :].log()


def _nats(most: Tensor, chance: Tensor) -> Tensor:
    """Return the log of the ratio between the highest probability and that of the value."""
    return (most.clamp_min(_LEAST_CHANCE) / chance.clamp_min(_LEAST_CHANCE)).log()

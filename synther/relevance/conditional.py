"""Small networks that learn the distribution of some columns given others: several members, fitted side by side.

Each member gives real columns a mean and a variance, columns of 0 and 1 a probability, and one-hot columns the
probability of each of their values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional

from synther import compute
from synther.progress import Phase

BATCH = 256
LEARNING_RATE = 4e-3
EPOCHS, FEWEST_STEPS, MOST_STEPS = 40, 300, 800
"""A fit goes so often through its rows, within these numbers of steps."""

_EVERY, _PATIENCE = 100, 4
"""Steps between two measurements on held-out rows, and measurements without a better one after which a fit ends."""

_MEASURED_ROWS = 4_096
_BETAS = 0.9, 0.99
_MOST_GRADIENT = 20.0
_LOWEST, _HIGHEST = -10.0, 4.0  # log-variances, where targets have variance 1
_FIRST_ANSWERS = 0.1  # output weights start small, so that answers start at the mean of the targets
_PREDICTED_ROWS = 8_192
_LEAST_CHANCE = 1e-6  # that a network is believed
_STREAM = 11  # of random numbers, which no other work shares


@dataclass(frozen=True)
class Outputs:
    """What the target columns are, in this order: real numbers, flags of 0 and 1, one-hot groups by their sizes."""

    real: int = 0
    flags: int = 0
    choices: tuple[int, ...] = ()

    @property
    def columns(self) -> int:
        return self.real + self.flags + sum(self.choices)

    @property
    def width(self) -> int:
        """Outputs of the network: real numbers have a mean and a log-variance."""
        return 2 * self.real + self.flags + sum(self.choices)


@dataclass(frozen=True)
class Law:
    """The distribution of the targets of N rows, for each of M members."""

    mean: Tensor
    """(M, N, R)"""
    variance: Tensor
    """(M, N, R)"""
    flags: Tensor
    """Probability of 1: (M, N, B)"""
    choices: tuple[Tensor, ...]
    """Probabilities of the values of each group: (M, N, K)"""

    def mixture(self) -> Law:
        """All members as one (M = 1), with their disagreement as part of the variance."""
        mean, *chances = (each.mean(0, keepdim=True) for each in (self.mean, self.flags, *self.choices))
        variance = (self.variance + (self.mean - mean).square()).mean(0, keepdim=True)
        return Law(mean, variance, chances[0], tuple(chances[1:]))

    def average(self) -> Law:
        """The mean of all members, with the noise that they see and without their disagreement."""
        mixed = self.mixture()
        return Law(mixed.mean, self.variance.mean(0, keepdim=True), mixed.flags, mixed.choices)

    def of(self, member: Tensor) -> Law:
        """For each row one of the members (N,), as M = 1."""
        row = torch.arange(len(member), device=member.device)
        picked = [each[member, row][None] for each in (self.mean, self.variance, self.flags, *self.choices)]
        return Law(picked[0], picked[1], picked[2], tuple(picked[3:]))

    def draw(self, source: torch.Generator) -> Tensor:
        """Targets of the first member. (N, columns)"""
        noise = torch.randn(self.mean[0].shape, generator=source, device=self.mean.device)
        chance = torch.rand(self.flags[0].shape, generator=source, device=self.mean.device)
        parts = [self.mean[0] + self.variance[0].sqrt() * noise, (chance < self.flags[0]).float()]
        for each in self.choices:
            chosen = torch.multinomial(each[0], 1, generator=source)[:, 0]
            parts.append(functional.one_hot(chosen, each.shape[2]).float())
        return torch.cat(parts, 1)

    def surprises(self, targets: Tensor) -> Tensor:
        """How unusual each target of N rows is (N, groups): distances from the mean in standard deviations, and for
        other columns how much less likely the value is than the most likely one, in nats."""
        real = self.mean.shape[2]
        parts = [(targets[:, :real] - self.mean[0]).abs() / self.variance[0].sqrt()]
        flag, *chances = self._chances(targets)
        parts.append(_nats(torch.maximum(flag, 1 - flag), flag))
        parts += [_nats(each[0].amax(1, keepdim=True), own) for each, own in zip(self.choices, chances, strict=True)]
        return torch.cat(parts, 1)

    def log_likelihood(self, targets: Tensor) -> Tensor:
        """Of each flag and each choice of N rows, by the first member. (N, groups)"""
        return torch.cat(self._chances(targets), 1).clamp_min(_LEAST_CHANCE).log()

    def _chances(self, targets: Tensor) -> list[Tensor]:
        """How likely the flags (N, B) are that N rows have, and each of their choices (N, 1)."""
        real, flags = self.mean.shape[2], self.flags.shape[2]
        marked = targets[:, real : real + flags]
        found, start = [torch.where(marked > 0.5, self.flags[0], 1 - self.flags[0])], real + flags
        for each in self.choices:
            end = start + each.shape[2]
            found.append((each[0] * targets[:, start:end]).sum(1, keepdim=True))
            start = end
        return found


class Networks:
    """M perceptrons, their weights stacked so that one product serves them all."""

    def __init__(self, inputs: int, outputs: Outputs, weights: list[Tensor]) -> None:
        self.inputs, self.outputs, self.weights = inputs, outputs, weights

    @classmethod
    def fresh(
        cls, inputs: int, outputs: Outputs, members: int, width: int, depth: int, source: torch.Generator
    ) -> Networks:
        """Untrained networks (He et al. 2015), on the CPU."""
        weights: list[Tensor] = []
        sizes = [inputs, *[width] * depth, outputs.width]
        for fan_in, fan_out in itertools.pairwise(sizes):
            spread = math.sqrt(2.0 / max(fan_in, 1))
            drawn = spread * torch.randn(members, fan_in, fan_out, generator=source, dtype=torch.float32)
            weights += [drawn, torch.zeros(members, 1, fan_out, dtype=torch.float32)]
        weights[-2] *= _FIRST_ANSWERS
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
        """(M, N, inputs) to (M, N, outputs)"""
        hidden = inputs
        for layer in range(0, len(self.weights) - 2, 2):
            hidden = functional.silu(torch.baddbmm(self.weights[layer + 1], hidden, self.weights[layer]))
        return torch.baddbmm(self.weights[-1], hidden, self.weights[-2])

    def law(self, inputs: Tensor) -> Law:
        """The distribution that each member gives to the targets of the rows (N, inputs)."""
        with torch.no_grad():
            found = [self._law(part) for part in torch.split(inputs, _PREDICTED_ROWS)]
        joined = [torch.cat(each, 1) for each in zip(*found, strict=True)]
        return Law(joined[0], joined[1], joined[2], tuple(joined[3:]))

    def _law(self, inputs: Tensor) -> tuple[Tensor, ...]:
        mean, logs, flags, *choices = self._split(self(inputs.expand(self.members, -1, -1)))
        return mean, logs.exp(), flags.sigmoid(), *(each.softmax(2) for each in choices)

    def _split(self, answers: Tensor) -> tuple[Tensor, ...]:
        outputs = self.outputs
        mean, logs, *rest = torch.split(answers, [outputs.real, outputs.real, outputs.flags, *outputs.choices], 2)
        # Soft limits, beyond which gradients fade instead of ending.
        logs = _HIGHEST - functional.softplus(_HIGHEST - logs)
        return mean, _LOWEST + functional.softplus(logs - _LOWEST), *rest

    def loss(self, inputs: Tensor, targets: Tensor, *, weighted: bool = False) -> Tensor:
        """Nats of each member on its rows (M, N, columns), less a constant: the negative log-likelihood. (M,)

        `weighted` by the standard deviation (Seitzer et al. 2022), columns that are predicted precisely do not drown
        the gradients of the others.
        """
        mean, logs, flags, *choices = self._split(self(inputs))
        outputs = self.outputs
        real, marks, *chosen = torch.split(targets, [outputs.real, outputs.flags, *outputs.choices], 2)
        each = 0.5 * ((real - mean).square() * (-logs).exp() + logs)
        nats: Tensor = (each * (0.5 * logs.detach()).exp() if weighted else each).sum(2)
        nats = nats + functional.binary_cross_entropy_with_logits(flags, marks, reduction="none").sum(2)
        for logits, wanted in zip(choices, chosen, strict=True):
            nats = nats - (wanted * functional.log_softmax(logits, 2)).sum(2)
        return nats.mean(1)

    def tensors(self) -> dict[str, Tensor]:
        """For a file, from which `restored` makes the same networks."""
        return {str(number): weight.cpu().contiguous() for number, weight in enumerate(self.weights)}

    @classmethod
    def restored(cls, outputs: Outputs, tensors: Mapping[str, Tensor]) -> Networks:
        weights = [tensors[str(number)] for number in range(len(tensors))]
        sizes = [weights[0].shape[1], *(weight.shape[2] for weight in weights[::2])]
        shapes = [(len(weights[0]), *pair) for pair in itertools.pairwise(sizes)]
        if [tuple(weight.shape) for weight in weights[::2]] != shapes or sizes[-1] != outputs.width:
            raise ValueError("the networks of its ensemble do not fit its columns")
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
    """Fit on the rows (N, inputs) and (N, columns) that `held_out` (N,) does not mark; the networks with the smallest
    loss on those that it marks, member by member, and their mean loss there.

    Where no row is held out, the loss is measured on all rows. Networks that are not `fresh` have learned something
    like it before.
    """
    device, members = inputs.device, networks.members
    learned = torch.nonzero(~held_out)[:, 0]
    unseen = torch.nonzero(held_out if held_out.any() else ~held_out)[:_MEASURED_ROWS, 0]
    if fresh:
        _begin_at_rates(networks, targets[learned])
    source = compute.generator(device, _STREAM, seed)
    descent, best, waited = _Descent(networks.to(device), steps), _Best(), 0
    with compute.one_thread():
        for step in range(1, steps + 1):
            picked = learned[torch.randint(len(learned), (members * BATCH,), generator=source, device=device)]
            batch = [table.index_select(0, picked).view(members, BATCH, -1) for table in (inputs, targets)]
            descent.step(networks.loss(*batch, weighted=True).sum())
            if step % _EVERY and step < steps:
                continue
            waited = 0 if best.improve(networks, inputs[unseen], targets[unseen]) else waited + 1
            phase.advance((step - 1) % _EVERY + 1, f"held-out loss {best.loss:.3f}")
            if waited == _PATIENCE:
                break
    return Networks(networks.inputs, networks.outputs, best.weights), best.loss


class _Best:
    """The weights with the smallest loss so far, of each member."""

    def __init__(self) -> None:
        self.losses: Tensor | None = None
        self.weights: list[Tensor] = []

    @property
    def loss(self) -> float:
        return math.inf if self.losses is None else float(self.losses.mean())

    @torch.no_grad()
    def improve(self, networks: Networks, inputs: Tensor, targets: Tensor) -> bool:
        """Look at the networks of now; whether a member is better than ever."""
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
    return min(MOST_STEPS, max(FEWEST_STEPS, EPOCHS * rows // BATCH))


def _begin_at_rates(networks: Networks, targets: Tensor) -> None:
    """Let probabilities start where the targets have them: a terminal in 1,000 rows need not be unlearned first."""
    outputs = networks.outputs
    rates = targets[:, outputs.real :].mean(0).clamp(1e-4, 1 - 1e-4).cpu()
    first = 2 * outputs.real
    networks.weights[-1][:, 0, first : first + outputs.flags] = torch.logit(rates[: outputs.flags])
    networks.weights[-1][:, 0, first + outputs.flags :] = rates[outputs.flags :].log()


def _nats(most: Tensor, chance: Tensor) -> Tensor:
    return (most.clamp_min(_LEAST_CHANCE) / chance.clamp_min(_LEAST_CHANCE)).log()


class _Descent:
    """Adam (Kingma and Ba 2015) with a cosine schedule. Written out, because the first use of torch.optim imports
    PyTorch's compiler, which takes seconds."""

    def __init__(self, networks: Networks, steps: int) -> None:
        self.networks, self.steps, self.taken = networks, steps, 0
        self.weights = [weight.requires_grad_(True) for weight in networks.weights]
        self.state: Any = [(torch.zeros_like(weight), torch.zeros_like(weight)) for weight in self.weights]

    def step(self, loss: Tensor) -> None:
        gradients = torch.autograd.grad(loss, self.weights)
        self.taken += 1
        rate = LEARNING_RATE * (1 + math.cos(math.pi * (self.taken - 1) / self.steps)) / 2
        unbiased, unbiased_square = (1 - beta**self.taken for beta in _BETAS)
        with torch.no_grad():
            # Each member has a norm of its own: a wild batch of one does not slow the others down.
            norm = torch.stack([each.flatten(1).norm(dim=1) for each in gradients]).norm(dim=0)
            cut = (_MOST_GRADIENT / norm.clamp_min(_MOST_GRADIENT))[:, None, None]
            for weight, gradient, (mean, square) in zip(self.weights, gradients, self.state, strict=True):
                clipped = gradient * cut
                mean.lerp_(clipped, 1 - _BETAS[0])
                square.mul_(_BETAS[1]).addcmul_(clipped, clipped, value=1 - _BETAS[1])
                spread = (square.sqrt() / unbiased_square**0.5).add_(1e-8)
                weight.addcdiv_(mean, spread, value=-rate / unbiased)

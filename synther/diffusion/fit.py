"""Fitting the denoiser: rounds of captured steps, a held-out loss, checkpoints.

Everything random in a round is a function of (seed, round number), and a checkpoint falls between two rounds: so a fit
that was killed and taken up again ends with the weights of one that was not.
"""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from synther import compute
from synther.diffusion import edm
from synther.diffusion.checkpoint import Checkpoint
from synther.diffusion.config import FitConfig, NetworkConfig, NoiseConfig
from synther.diffusion.flat import FlatWeights
from synther.diffusion.gradient import loss_and_gradient
from synther.diffusion.held_out import held_out_loss, split, split_as
from synther.diffusion.networks import Network
from synther.errors import ConfigError, SyntherError
from synther.kernels.adam import adam_step
from synther.progress import Progress, Silent

log = logging.getLogger(__name__)

# Streams of random numbers, so that no two purposes share one; held_out.py and blocks.py have those after them.
_WEIGHTS, _ROUNDS = range(2)
SAVE_SECONDS = 60  # a slow machine does not wait for `checkpoint_every` steps


@dataclass
class FitResult:
    """The averaged network and how it came about."""

    network: Network
    steps: int
    seconds: float
    history: list[dict[str, float]] = field(default_factory=list)
    """For each measurement: step, loss (mean since the last one), held_out (where rows were held out), seconds."""

    def course(self) -> dict[str, Any]:
        """All but the network, for JSON."""
        return {"steps": self.steps, "seconds": self.seconds, "history": self.history}


class Diverged(SyntherError):
    """The loss is no longer a number."""


class _Trainer:
    """The state of a fit, all of it in tensors that stay where they are, and one round of steps as a function of it."""

    def __init__(
        self,
        network: Network,
        rows: Tensor,
        fitted: Tensor,
        config: FitConfig,
        noise: NoiseConfig,
        seed: int,
        dtype: torch.dtype,
    ) -> None:
        self.rows, self.fitted, self.config, self.noise, self.seed = rows, fitted, config, noise, seed
        self.device = device = rows.device
        self.batch = config.batch_for(len(rows))
        self.round_steps = config.ema_every
        self.network = network.to(device).requires_grad_(False)
        self.flat = FlatWeights(network)
        self.weights = self.flat.gather(network)
        self.working = self.weights if dtype == torch.float32 else self.weights.to(dtype)
        self.flat.bind(network, self.working)
        self.gradient = torch.zeros_like(self.working)
        self.gradients = dict(zip(self.flat.names, self.flat.views(self.gradient), strict=True))
        self.average = self.weights.clone()
        self.adam_mean = torch.zeros_like(self.weights)
        self.adam_square = torch.zeros_like(self.weights)
        self.adam_step = self.weights.new_zeros(())
        self.loss_sum = self.weights.new_zeros(())
        # What a round is given: its noisy rows, its learning rates, how far the average moves at its end.
        size, columns, features = (self.round_steps, self.batch), rows.shape[1], network.level_in.in_features
        self.inputs = torch.zeros(*size, columns, device=device, dtype=dtype)
        self.features = torch.zeros(*size, features, device=device, dtype=dtype)
        self.target = self.weights.new_zeros(*size, columns)
        self.rates = self.weights.new_zeros(self.round_steps)
        self.average_rate = self.weights.new_zeros(())
        self.generator = torch.Generator(device)
        self._captured = compute.capture(self._whole_round, device, list(self.state().values()))

    def state(self) -> dict[str, Tensor]:
        """What changes from round to round, by the names that a checkpoint gives it."""
        names = ("weights", "working", "average", "adam_mean", "adam_square", "adam_step", "loss_sum")
        state = {name: getattr(self, name) for name in names}
        if self.working is self.weights:
            del state["working"]
        return state

    def run_round(self, number: int, steps: int, rates: Tensor) -> None:
        """Steps `number * round_steps` onwards, `steps` of them (fewer than a whole round only at the very end)."""
        count = self.round_steps * self.batch
        problem = draw_round(self.rows, self.fitted, self.noise, self.generator, self.seed, number, count)
        self.inputs.copy_(problem.inputs.view_as(self.inputs))
        self.features.copy_(self.network.features(problem.level).view_as(self.features))
        self.target.copy_(problem.target.view_as(self.target))
        self.rates[:steps] = rates
        self.average_rate.fill_(average_rate(self.config, number))
        if steps == self.round_steps:
            self._captured()
        else:
            self._steps(steps)

    def _whole_round(self) -> None:
        self._steps(self.round_steps)

    def _steps(self, count: int) -> None:
        for step in range(count):
            self._step(step)
        self.average.lerp_(self.weights, self.average_rate)

    def _step(self, step: int) -> None:
        c = self.config
        loss = loss_and_gradient(
            self.network, self.features[step], self.inputs[step], self.target[step], self.gradients
        )
        self.loss_sum.add_(loss)
        self.adam_step.add_(1)
        # The reference's AdamW has no decay: it is Adam.
        adam_step(
            self.weights, self.working, self.gradient, self.adam_mean, self.adam_square, self.adam_step,
            self.rates[step], clip=c.clip, beta1=c.beta1, beta2=c.beta2,
        )  # fmt: skip

    def averaged_network(self) -> Network:
        """A float32 copy that runs on the averaged weights, now and later."""
        network = copy.deepcopy(self.network)
        self.flat.bind(network, self.average)
        return network


def fit(
    rows: Tensor,
    network: NetworkConfig,
    config: FitConfig,
    noise: NoiseConfig,
    *,
    seed: int = 0,
    precision: compute.Precision = "auto",
    start: Network | None = None,
    held_out: Tensor | None = None,
    checkpoint: Path | None = None,
    progress: Progress | None = None,
) -> FitResult:
    """Fit a denoiser on `rows` (N, D), scaled, on the device where the rows are.

    It begins from the weights of `start`, a network of the same shape, where one is given. `held_out` (N,) says which
    rows to hold out; without it a random share is. With a `checkpoint` path the fit's state is kept there, and a fit
    with the same arguments goes on from it.
    """
    precision = compute.pick_precision(precision, rows.device)
    advice = "lower fit.batch or network.width, or fit on a share of the rows"
    # Weights made in a caller's inference mode could never be differentiated through, as a likelihood has to be.
    with compute.matmul_precision(precision), compute.working_on(rows.device, advice), torch.inference_mode(False):
        given = (seed, precision, start, held_out)
        return _fit(rows, network, config, noise, *given, checkpoint, progress or Silent())


def _fit(
    rows: Tensor,
    network_config: NetworkConfig,
    config: FitConfig,
    noise: NoiseConfig,
    seed: int,
    precision: compute.Precision,
    start: Network | None,
    chosen: Tensor | None,
    checkpoint: Path | None,
    progress: Progress,
) -> FitResult:
    device = rows.device
    network, fitted, held_out = begin(rows, network_config, config, seed, start, chosen)
    trainer = _Trainer(network, rows, fitted, config, noise, seed, compute.working_dtype(precision))
    result = FitResult(trainer.averaged_network(), 0, 0.0)
    best = trainer.average.clone()
    state, kept = {**trainer.state(), "best": best}, None
    if checkpoint is not None:
        kept = Checkpoint(checkpoint, rows, network_config, config, noise, seed, precision, start, chosen)
        if kept.exists():
            tensors, course = kept.load()
            for name, tensor in state.items():
                tensor.copy_(tensors[name])
            result = replace(result, **course)
            log.info("going on from step %d of %s", result.steps, checkpoint)
    began = time.monotonic() - result.seconds
    saved_at, saved_when = result.steps, result.seconds

    with progress.phase("fit", config.steps, result.steps) as phase:
        while not is_over(result, config):
            rates = next_rates(config, result).to(device)
            steps = len(rates)
            trainer.loss_sum.zero_()
            for first in range(0, steps, trainer.round_steps):
                some = min(trainer.round_steps, steps - first)
                trainer.run_round((result.steps + first) // trainer.round_steps, some, rates[first : first + some])
            loss = float(trainer.loss_sum) / steps  # waits for the device
            if measure(result, steps, loss, time.monotonic() - began, held_out, noise, seed):
                best.copy_(trainer.average)
            phase.advance(steps, noted(result.history[-1]) + _spent(config, result))
            due = result.steps - saved_at >= config.checkpoint_every or result.seconds - saved_when >= SAVE_SECONDS
            if kept is not None and due:
                kept.save(state, result.course())
                saved_at, saved_when = result.steps, result.seconds
    del trainer._captured  # on a CPU it refers back to the trainer, which would keep the rows alive
    if keeps_best(config, result.history):
        trainer.average.copy_(best)
    if kept is not None:
        kept.save(state, result.course())
    return result


def begin(
    rows: Tensor,
    network_config: NetworkConfig,
    config: FitConfig,
    seed: int,
    start: Network | None,
    chosen: Tensor | None,
) -> tuple[Network, Tensor, Tensor | None]:
    """The network that a fit begins with, which rows are fitted, as indices (M,), and the held-out rows themselves."""
    fitted, held_out = split(rows, config.holdout, seed) if chosen is None else split_as(rows, chosen)
    if config.patience is not None and held_out is None:
        raise ConfigError(f"fit.patience needs held-out rows: fit.holdout {config.holdout} of {len(rows)} rows is none")
    if config.overfit is not None and held_out is None:
        log.info("no rows are held out: nobody can tell when rows are learned by heart, and the fit goes on to its end")
    with torch.random.fork_rng(devices=[]):
        compute.reseed(torch.default_generator, seed, _WEIGHTS)
        network = Network(rows.shape[1], network_config)
    if start is not None:
        network.load_state_dict(start.state_dict())
    return network, fitted, held_out


def draw_round(
    rows: Tensor, fitted: Tensor, noise: NoiseConfig, source: torch.Generator, seed: int, number: int, count: int
) -> edm.Problem:
    """What the `count` rows of a whole round ask of the network: a function of (seed, round number)."""
    compute.reseed(source, seed, _ROUNDS, number)
    picked = torch.randint(len(fitted), (count,), generator=source, device=rows.device)
    return edm.draw_problem(rows[fitted[picked]], noise, source)


def average_rate(config: FitConfig, number: int) -> float:
    """How far the average moves towards the weights at the end of round `number`."""
    # NOTE[paper]: the reference's average warms up in the same way, counted in steps. Here it is counted in rounds,
    # which is slower by `ema_every`: a short fit then averages over its last weights alone.
    warming: float = (1 + number) ** (-2 / 3)
    return max(1 - config.ema_decay, warming)


def measure(
    result: FitResult,
    steps: int,
    loss: float,
    seconds: float,
    held_out: Tensor | None,
    noise: NoiseConfig,
    seed: int,
) -> bool:
    """Record that `steps` more were taken, and what came of them; whether no held-out loss was lower so far."""
    result.steps += steps
    result.seconds = seconds
    entry = {"step": result.steps, "loss": loss, "seconds": seconds}
    if held_out is not None:
        entry["held_out"] = held_out_loss(result.network, held_out, noise, seed)
    if not all(map(math.isfinite, entry.values())):
        raise Diverged(f"the loss is {loss} at step {result.steps}: lower fit.learning_rate, or scale the data")
    result.history.append(entry)
    return held_out is not None and entry["held_out"] <= min(e["held_out"] for e in result.history)


def noted(entry: dict[str, float]) -> str:
    """A measurement in words, for progress."""
    return f"loss {entry['loss']:.4f}" + (f", held out {entry['held_out']:.4f}" if "held_out" in entry else "")


def _spent(config: FitConfig, result: FitResult) -> str:
    """Of a budget of minutes, which runs out before the steps do."""
    return "" if config.minutes is None else f", {result.seconds / 60:.1f} of {config.minutes:g} min"


def next_rates(config: FitConfig, result: FitResult) -> Tensor:
    """The learning rates of the steps until the next measurement."""
    steps = min(_stretch(config, result), config.steps - result.steps)
    return _learning_rates(config, result.steps, steps, result.seconds)


def _stretch(config: FitConfig, result: FitResult) -> int:
    """Steps to the next measurement: a whole number of rounds.

    With a budget of minutes no stretch takes more than a fiftieth of it, as far as the speed so far can tell.
    """
    wanted = config.evaluate_every
    if config.minutes is not None:
        affordable = config.minutes * 60 / 50 * result.steps / result.seconds if result.steps else 1
        wanted = min(wanted, max(1, int(affordable)))
    return -(-wanted // config.ema_every) * config.ema_every


def is_over(result: FitResult, config: FitConfig) -> bool:
    """Whether steps, time or patience have run out, or the rows are being learned by heart."""
    if result.steps >= config.steps:
        return True
    if config.minutes is not None and result.seconds >= 60 * config.minutes:
        return True
    if has_overfit(result.history, config.overfit):
        return True
    if config.patience is None or not result.history:
        return False
    losses = [entry["held_out"] for entry in result.history]
    return len(losses) - 1 - losses.index(min(losses)) >= config.patience


def has_overfit(history: Sequence[Mapping[str, float]], limit: float | None) -> bool:
    """Whether the held-out loss is more than `limit` of its lowest above it."""
    if limit is None or not history or "held_out" not in history[-1]:
        return False
    return history[-1]["held_out"] > (1 + limit) * min(entry["held_out"] for entry in history)


def keeps_best(config: FitConfig, history: Sequence[Mapping[str, float]]) -> bool:
    """Whether a fit ends with the weights that had the lowest held-out loss, instead of its last ones."""
    return config.patience is not None or has_overfit(history, config.overfit)


def _learning_rates(config: FitConfig, first: int, steps: int, seconds: float) -> Tensor:
    """Cosine to 0 over the steps, or over the minutes where those run out first. (steps,)"""
    done = (torch.arange(first, first + steps, dtype=torch.float64)) / config.steps
    if config.minutes is not None:
        done = done.clamp(min=min(seconds / (60 * config.minutes), 1.0))
    return (config.learning_rate * 0.5 * (1 + torch.cos(math.pi * done))).float()

"""When the learning rate falls, how weights are averaged, and when a fit ends.

A fit ends after its steps, after its time limit, if its held-out loss no longer falls (`patience`), or if it memorises
its rows (`overfit`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from synther.diffusion.config import FitConfig

if TYPE_CHECKING:
    from synther.diffusion.fit import FitResult


def average_rate(config: FitConfig, number: int) -> float:
    """Return the share by which the averaged weights move towards the weights at the end of round `number`."""
    # NOTE[paper]: the average of the reference warms up in the same way, but over steps. Here it warms up over rounds,
    # which is slower by a factor of `ema_every`. So a short fit averages only over its last weights.
    warming: float = (1 + number) ** (-2 / 3)
    return max(1 - config.ema_decay, warming)


def next_rates(config: FitConfig, result: FitResult[Any]) -> Tensor:
    """Return the learning rates of the steps until the next measurement.

    They cover a whole number of rounds, except at the end of the fit. With a time limit, the number of steps is chosen
    so that they take at most a fiftieth of the limit at the speed measured so far, but at least one round.
    """
    wanted = config.evaluate_every
    if config.minutes is not None:
        affordable = config.minutes * 60 / 50 * result.steps / result.seconds if result.steps else 1
        wanted = min(wanted, max(1, int(affordable)))
    whole = -(-wanted // config.ema_every) * config.ema_every
    return learning_rates(config, result.steps, min(whole, config.steps - result.steps), result.seconds)


def learning_rates(config: FitConfig, first: int, steps: int, seconds: float) -> Tensor:
    """Return the learning rates (steps,) of `steps` steps from step `first` on.

    They fall to 0 along a cosine over the steps of the fit, or over its time limit if that ends first.
    """
    done = (torch.arange(first, first + steps, dtype=torch.float64)) / config.steps
    if config.minutes is not None:
        done = done.clamp(min=min(seconds / (60 * config.minutes), 1.0))
    return (config.learning_rate * 0.5 * (1 + torch.cos(math.pi * done))).float()


def is_over(result: FitResult[Any], config: FitConfig) -> bool:
    """Return whether the steps, the time or the patience have run out, or the held-out loss shows overfitting."""
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
    """Return whether the latest held-out loss is more than (1 + limit) times the lowest one."""
    if limit is None or not history or "held_out" not in history[-1]:
        return False
    return history[-1]["held_out"] > (1 + limit) * min(entry["held_out"] for entry in history)


def keeps_best(config: FitConfig, history: Sequence[Mapping[str, float]]) -> bool:
    """Return whether a fit ends with the weights of the lowest held-out loss, instead of its last weights."""
    return config.patience is not None or has_overfit(history, config.overfit)

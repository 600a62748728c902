"""Log-probabilities of Gaussian policies, without and with tanh."""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn import functional

_LOG_ROOT_TWO_PI = 0.5 * math.log(2 * math.pi)


def log_probability(x: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Return the log-probability (...) of x (..., A) under independent normal distributions."""
    standard = (x - mean) * (-log_std).exp()
    return (-0.5 * standard.square() - log_std - _LOG_ROOT_TWO_PI).sum(-1)


def squashed(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions tanh(mean + std * noise) (..., A) and their log-probability (...).

    log(1 - tanh(x)^2) is computed as 2 (log 2 - x - softplus(-2x)), which is exact even if tanh rounds to 1.
    """
    x = mean + log_std.exp() * noise
    shrinking = 2 * (math.log(2) - x - functional.softplus(-2 * x))
    return x.tanh(), (-0.5 * noise.square() - log_std - _LOG_ROOT_TWO_PI - shrinking).sum(-1)

"""Compute the log-likelihood of rows under a fitted model, in the rows' original units."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther import compute
from synther.conditions import Conditions
from synther.data.transitions import Transitions
from synther.diffusion.config import NoiseConfig
from synther.diffusion.edm import Denoiser
from synther.diffusion.likelihood import log_likelihood
from synther.model_file import Fitted

_TOGETHER = 4096
"""Number of rows that are computed together."""


def nats(model: Fitted, noise: NoiseConfig, rows: Transitions, steps: int) -> NDArray[np.float64]:
    """Return the log-likelihood of each row in nats, computed with `steps` steps of the probability flow ODE. (N,)"""
    denoise, parts = Denoiser(model.network, noise), []
    with compute.matmul_precision("float32"), torch.inference_mode(False):
        for chunk in rows.chunks(_TOGETHER):
            matrix = model.layout.pack(chunk)
            scaled = torch.from_numpy(model.scaler.transform(matrix).astype(np.float32))
            scaled = scaled.to(model.network.frequencies.device)
            likelihood = _scaled_likelihood(denoise, scaled, noise, model.conditions, steps)
            correction = model.scaler.log_slope(matrix) - matrix[:, model.layout.logarithmic].sum(1)
            if model.rare is not None:  # the network generates more rare rows than `sample` returns
                correction += np.log(model.rare.weights(chunk))
            parts.append(likelihood.double().cpu().numpy() + correction)
    return np.concatenate(parts)


def _scaled_likelihood(
    denoise: Denoiser, scaled: Tensor, noise: NoiseConfig, conditions: Conditions, steps: int
) -> Tensor:
    """Return the log-likelihood of scaled rows (N, D), with all named conditions hidden. (N,)

    If episode starts are a condition, the likelihood is summed over both cases, weighted by their shares.
    """
    if not conditions.count:
        return log_likelihood(denoise, scaled, noise, steps)
    given = scaled.new_full((len(scaled), conditions.count), math.nan)
    if conditions.starts is None:
        return log_likelihood(partial(denoise, given=given), scaled, noise, steps)
    cases = []
    for first, share in ((0.0, 1 - conditions.starts), (1.0, conditions.starts)):
        given[:, 0] = first
        cases.append(log_likelihood(partial(denoise, given=given), scaled, noise, steps) + math.log(share))
    return torch.logaddexp(*cases)

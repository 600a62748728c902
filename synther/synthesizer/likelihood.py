"""How likely rows are under a fitted model, in their own units."""

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
"""Rows at a time."""


def nats(model: Fitted, noise: NoiseConfig, rows: Transitions, steps: int) -> NDArray[np.float64]:
    """The log-likelihood of each row. (N,)"""
    denoise, parts = Denoiser(model.network, noise), []
    with compute.matmul_precision("float32"), torch.inference_mode(False):
        for chunk in rows.chunks(_TOGETHER):
            matrix = model.layout.pack(chunk)
            scaled = torch.from_numpy(model.scaler.transform(matrix).astype(np.float32))
            found = _of_scaled(denoise, scaled.to(model.network.frequencies.device), noise, model.conditions, steps)
            slope = model.scaler.log_slope(matrix) - matrix[:, model.layout.logarithmic].sum(1)
            if model.payouts is not None:  # it makes more payouts than are drawn
                slope += np.log(model.payouts.weights(chunk.reward))
            parts.append(found.double().cpu().numpy() + slope)
    return np.concatenate(parts)


def _of_scaled(denoise: Denoiser, scaled: Tensor, noise: NoiseConfig, conditions: Conditions, steps: int) -> Tensor:
    """Of rows as the network sees them (N, D). One that may begin an episode or not may have come about in two ways."""
    if not conditions.count:
        return log_likelihood(denoise, scaled, noise, steps)
    told = scaled.new_full((len(scaled), conditions.count), math.nan)
    if conditions.starts is None:
        return log_likelihood(partial(denoise, given=told), scaled, noise, steps)
    ways = []
    for first, share in ((0.0, 1 - conditions.starts), (1.0, conditions.starts)):
        told[:, 0] = first
        ways.append(log_likelihood(partial(denoise, given=told), scaled, noise, steps) + math.log(share))
    return torch.logaddexp(*ways)

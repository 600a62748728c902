"""The preconditioned denoiser D(x; sigma), ready for samplers."""

from __future__ import annotations

import torch
from torch import Tensor

from synther.diffusion import edm
from synther.diffusion.config import NoiseConfig
from synther.diffusion.networks import InferenceNetwork, Network


class Denoiser:
    """D(x; sigma) = c_skip x + c_out F(c_in x; c_noise) at one noise level for all rows (Karras et al. 2022, Eq. 7).

    With a `dtype`, F runs in that type, without gradients; without one it is the network as it is, through
    which gradients flow.
    """

    def __init__(self, network: Network, noise: NoiseConfig, dtype: torch.dtype | None = None) -> None:
        self.noise = noise
        self.raw = network if dtype is None else InferenceNetwork(network, dtype)

    def __call__(self, x: Tensor, sigma: float) -> Tensor:
        level = torch.full((1, 1), sigma, device=x.device, dtype=x.dtype)
        data = self.noise.sigma_data
        scaled = edm.c_in(level, data) * x
        out = self.raw(scaled, edm.c_noise(level))
        return edm.c_skip(level, data) * x + edm.c_out(level, data) * out

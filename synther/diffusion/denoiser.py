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
        self.sigma_data = noise.sigma_data
        self.raw = network.at_level if dtype is None else InferenceNetwork(network, dtype).at_level

    def __call__(self, x: Tensor, sigma: float) -> Tensor:
        data = self.sigma_data
        out = self.raw(edm.c_in(sigma, data) * x, edm.c_noise(sigma))
        return torch.add(edm.c_skip(sigma, data) * x, out, alpha=edm.c_out(sigma, data))

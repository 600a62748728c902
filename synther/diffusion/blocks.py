"""Rows drawn in fixed blocks, each a function of (seed, block number).

So the same rows come whichever process draws a block, in whatever order, and however often the work was interrupted.
"""

from __future__ import annotations

import torch
from torch import Tensor

from synther import compute
from synther.diffusion import edm, samplers
from synther.diffusion.config import NoiseConfig, SamplerConfig
from synther.diffusion.denoiser import Denoiser
from synther.diffusion.networks import Network
from synther.diffusion.start import Start

_STREAM = 4  # of random numbers; fit.py and held_out.py have those before it


class BlockSampler:
    """Draws blocks of scaled rows (block_rows, D) from a fitted network, on the device where the network is."""

    def __init__(
        self,
        network: Network,
        noise: NoiseConfig,
        config: SamplerConfig,
        precision: compute.Precision = "auto",
        start: Start | None = None,
    ) -> None:
        self.device = network.frequencies.device
        self.precision = compute.pick_precision(precision, self.device)
        self.columns, self.config, self.start = network.columns, config, start
        self.sigmas = edm.karras_sigmas(config.steps, noise)
        self.denoiser = Denoiser(network, noise, compute.working_dtype(self.precision))
        self.block_rows = compute.block_rows(self.device)

    def draw(self, seed: int, block: int) -> Tensor:
        return self._draw(seed, block, self.denoiser)

    def trace(self, seed: int, rows: int) -> list[tuple[float, Tensor]]:
        """The first `rows` of block 0 on their way to data: falling noise levels, and the rows there (rows, D).

        They are scaled by sigma_data c_in, so that they have the data's deviation all the way. The last level is 0.
        Levels that a sampler returns to are left out.
        """
        seen: list[tuple[float, Tensor]] = []
        data = self.denoiser.sigma_data

        def watching(x: Tensor, sigma: float) -> Tensor:
            if not seen or sigma < seen[-1][0]:
                seen.append((sigma, data * edm.c_in(sigma, data) * x[:rows]))
            return self.denoiser(x, sigma)

        final = self._draw(seed, 0, watching)
        return [*seen, (0.0, final[:rows])]

    @torch.no_grad()
    def _draw(self, seed: int, block: int, denoise: samplers.Denoise) -> Tensor:
        rows, columns = self.block_rows, self.columns
        advice = "choose a smaller network, or sample on a CPU"
        with compute.working_on(self.device, advice), compute.matmul_precision(self.precision):
            generator = compute.generator(self.device, seed, _STREAM, block)
            x = torch.randn(rows, columns, generator=generator, device=self.device, dtype=torch.float32)
            if self.start is not None:
                x = self.start.draw(x)
            return samplers.sample(self.config, denoise, x * self.sigmas[0], self.sigmas, generator)

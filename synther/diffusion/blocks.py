"""Rows drawn in fixed blocks, each a function of (seed, block number).

The rows are therefore the same whichever process draws a block, in whatever order, and however often it is interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from synther import compute
from synther.diffusion import edm, samplers
from synther.diffusion.config import NoiseConfig, SamplerConfig
from synther.diffusion.networks import DenoisingNetwork
from synther.diffusion.start import Start

_STREAM = 4  # of random numbers; fit.py has those before it


class BlockSampler:
    """Draws blocks of scaled rows (block_rows, D) from a fitted network, on the device where the network is."""

    def __init__(
        self,
        network: DenoisingNetwork,
        noise: NoiseConfig,
        config: SamplerConfig,
        precision: compute.Precision = "auto",
        start: Start | None = None,
    ) -> None:
        self.device = next(network.parameters()).device
        self.precision = compute.pick_precision(precision, self.device)
        self.columns, self.config, self.start = network.columns, config, start
        self.sigmas = samplers.sigmas_of(config, noise)
        self.denoiser = edm.Denoiser(network, noise, compute.working_dtype(self.precision))
        self.block_rows = compute.block_rows(self.device)
        self._source = torch.Generator(self.device)

    def draw(self, seed: int, block: int) -> Tensor:
        return self._draw(seed, block, partial(self._solved, self.denoiser))

    def captured(self) -> Callable[[int, int], Tensor]:
        """`draw` with the thousand operations of a block captured as one. Capturing takes the time of a few blocks.

        A GPU then need not wait for Python, which other threads keep busy.
        """
        start = torch.zeros(self.block_rows, self.columns, device=self.device, dtype=torch.float32)
        rows = torch.zeros_like(start)

        def solve() -> None:
            rows.copy_(self._solved(self.denoiser, start))

        with self._working():
            run = compute.capture(solve, self.device, [rows], [self._source])

        def solved(x: Tensor) -> Tensor:
            start.copy_(x)
            run()
            return rows.clone()  # the next block overwrites them

        return partial(self._draw, solved=solved)

    def trace(self, seed: int, rows: int) -> list[tuple[float, Tensor]]:
        """The first `rows` of block 0 on their way to data: noise levels sigma, falling to 0, and x (rows, D) at each.

        x is scaled by sigma_data c_in, so that it has the data's std at every level. Levels to which a sampler
        returns are left out.
        """
        seen: list[tuple[float, Tensor]] = []
        sigma_data = self.denoiser.sigma_data

        def denoise(x: Tensor, sigma: float) -> Tensor:
            if not seen or sigma < seen[-1][0]:
                seen.append((sigma, sigma_data * edm.c_in(sigma, sigma_data) * x[:rows]))
            return self.denoiser(x, sigma)

        final = self._draw(seed, 0, partial(self._solved, denoise))
        return [*seen, (0.0, final[:rows])]

    def _draw(self, seed: int, block: int, solved: Callable[[Tensor], Tensor]) -> Tensor:
        with self._working():
            compute.reseed(self._source, seed, _STREAM, block)
            size = self.block_rows, self.columns
            eps = torch.randn(size, generator=self._source, device=self.device, dtype=torch.float32)
            if self.start is not None:
                eps = self.start.draw(eps)
            return solved(eps * self.sigmas[0])

    def _solved(self, denoise: samplers.Denoise, x: Tensor) -> Tensor:
        """The sampler's rows from x at sigmas[0]; stochastic samplers draw from the block's own generator."""
        return samplers.sample(self.config, denoise, x, self.sigmas, self._source)

    @contextmanager
    def _working(self) -> Iterator[None]:
        advice = "choose a smaller network, or sample on a CPU"
        with compute.working_on(self.device, advice), compute.matmul_precision(self.precision), torch.no_grad():
            yield

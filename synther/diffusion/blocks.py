"""Rows drawn in fixed blocks, each a function of (seed, block number).

The rows are therefore the same whichever process draws a block, in whatever order, and however often it is interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther import compute
from synther.diffusion import edm, samplers
from synther.diffusion.config import NoiseConfig, SamplerConfig
from synther.diffusion.networks import DenoisingNetwork
from synther.diffusion.start import Start

_STREAM = 4  # of random numbers; fit.py has those before it
_CONDITIONS = 6  # likewise, beside that of synthesizer/drawing.py


class Asked(Protocol):
    """What the rows of a network with conditions are asked to be."""

    @property
    def guidance(self) -> edm.Guidance: ...

    def draw(self, count: int, random: np.random.Generator) -> NDArray[np.float32]:
        """The conditions of so many rows: quantiles (count, K), of which NaN is unknown."""
        ...

    def finished(self, rows: Tensor, given: Tensor) -> Tensor:
        """Rows (N, D) as the network makes them for conditions (N, K), in the units of all rows."""
        ...


@dataclass(frozen=True)
class Like:
    """Rows to begin from instead of noise: each drawn row is one of them, noised and denoised again."""

    rows: Tensor
    """Scaled, as the network sees them. (M, D)"""
    strength: float
    """From 0, the rows themselves, to 1, where nothing is left of them: the share of the sampler's steps."""
    first: Tensor | None = None
    """The first condition of each row, where the network takes conditions. (M,)"""

    def step(self, steps: int) -> int:
        """The step of the sampler to begin with."""
        return min(round((1 - self.strength) * steps), steps - 1)


class BlockSampler:
    """Draws blocks of scaled rows (block_rows, D) from a fitted network, on the device where the network is.

    Where the network takes conditions, `asked` draws them for each block.
    """

    def __init__(
        self,
        network: DenoisingNetwork,
        noise: NoiseConfig,
        config: SamplerConfig,
        precision: compute.Precision = "auto",
        start: Start | None = None,
        asked: Asked | None = None,
        like: Like | None = None,
    ) -> None:
        self.device = next(network.parameters()).device
        self.precision = compute.pick_precision(precision, self.device)
        self.columns, self.config, self.start, self.asked = network.columns, config, start, asked
        sigmas = samplers.sigmas_of(config, noise)
        self.like, self.sigmas = like, sigmas if like is None else sigmas[like.step(config.steps) :]
        self.denoiser = edm.Denoiser(network, noise, compute.working_dtype(self.precision))
        self.block_rows = compute.block_rows(self.device)
        self._source = torch.Generator(self.device)

    def draw(self, seed: int, block: int) -> Tensor:
        return self._draw(seed, block, self._solved)

    def captured(self) -> Callable[[int, int], Tensor]:
        """`draw` with the thousand operations of a block captured as one. Capturing takes the time of a few blocks.

        A GPU then need not wait for Python, which other threads keep busy.
        """
        start = torch.zeros(self.block_rows, self.columns, device=self.device, dtype=torch.float32)
        rows, given = torch.zeros_like(start), self._given(0, 0)

        def solve() -> None:
            rows.copy_(self._solved(start, given))

        with self._working():
            run = compute.capture(solve, self.device, [rows], [self._source])

        def solved(x: Tensor, asked: Tensor | None) -> Tensor:
            start.copy_(x)
            if given is not None and asked is not None:
                given.copy_(asked)
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

        def look(x: Tensor, sigma: float) -> None:
            if not seen or sigma < seen[-1][0]:
                seen.append((sigma, sigma_data * edm.c_in(sigma, sigma_data) * x[:rows]))

        final = self._draw(seed, 0, partial(self._solved, look=look))
        return [*seen, (0.0, final[:rows])]

    def _draw(self, seed: int, block: int, solved: Callable[[Tensor, Tensor | None], Tensor]) -> Tensor:
        with self._working():
            compute.reseed(self._source, seed, _STREAM, block)
            size = self.block_rows, self.columns
            eps = torch.randn(size, generator=self._source, device=self.device, dtype=torch.float32)
            given = self._given(seed, block)
            if self.like is not None:
                picked = torch.randint(len(self.like.rows), size[:1], generator=self._source, device=self.device)
                x = torch.add(self.like.rows[picked], eps, alpha=self.sigmas[0])
                if given is not None and self.like.first is not None:
                    given[:, 0] = self.like.first[picked]
            else:
                x = (eps if self.start is None else self.start.draw(eps)) * self.sigmas[0]
            rows = solved(x, given)
            return rows if self.asked is None or given is None else self.asked.finished(rows, given)

    def _given(self, seed: int, block: int) -> Tensor | None:
        """The conditions of a block's rows (block_rows, K)."""
        if self.asked is None:
            return None
        drawn = self.asked.draw(self.block_rows, np.random.default_rng([_CONDITIONS, seed, block]))
        return torch.from_numpy(drawn).to(self.device)

    def _solved(self, x: Tensor, given: Tensor | None, look: Callable[[Tensor, float], None] | None = None) -> Tensor:
        """The sampler's rows from x at sigmas[0]; stochastic samplers draw from the block's own generator."""

        def denoise(x: Tensor, sigma: float) -> Tensor:
            if look is not None:
                look(x, sigma)
            if given is None or self.asked is None:
                return self.denoiser(x, sigma)
            return edm.guided(self.denoiser, x, sigma, given, self.asked.guidance)

        return samplers.sample(self.config, denoise, x, self.sigmas, self._source)

    @contextmanager
    def _working(self) -> Iterator[None]:
        advice = "choose a smaller network, or sample on a CPU"
        with compute.working_on(self.device, advice), compute.matmul_precision(self.precision), torch.no_grad():
            yield

"""Rows drawn in fixed blocks, each a function of (seed, block number).

The rows are therefore the same whichever process draws a block, in whatever order, and however often it is interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther import compute
from synther.diffusion import edm, samplers
from synther.diffusion.config import NoiseConfig, SamplerConfig
from synther.diffusion.networks import DenoisingNetwork
from synther.diffusion.start import Start

T = TypeVar("T")
_STREAM = 4  # of random numbers; fit.py has those before it
_CONDITIONS = 6  # likewise, beside that of synthesizer/drawing.py


Guided = Callable[[Tensor, Tensor, float], Tensor]
"""Takes rows x, what the network expects of them, both (N, D), and sigma to what is expected instead."""


Corrected = Callable[[Tensor, Tensor | None], Tensor]
"""Takes finished rows (N, D), and their conditions (N, K) where the network has some, to better ones."""


class Asked(Protocol):
    """What the rows of a network with conditions are asked to be."""

    @property
    def guidance(self) -> edm.Guidance: ...

    def draw(self, count: int, random: np.random.Generator) -> NDArray[np.float32]:
        """The conditions of so many rows: quantiles (count, K), of which NaN is unknown."""
        ...


@dataclass(frozen=True)
class Like:
    """Rows to begin from instead of noise: each drawn row is one of them, noised and denoised again."""

    rows: Tensor
    """Scaled. (M, D)"""
    strength: float
    """From 0, the rows themselves, to 1, where nothing is left of them: the share of the sampler's steps."""
    first: Tensor | None = None
    """The first condition of each row, where the network takes conditions. (M,)"""

    def step(self, steps: int) -> int:
        """The step of the sampler to begin with."""
        return min(round((1 - self.strength) * steps), steps - 1)


@dataclass(frozen=True, eq=False)
class Known:
    """Columns of which every row's value is known. The network fills in the others.

    The network expects both known and unknown columns, E[y | x]. What is known tells more: of normal rows, the unknown
    ones are expected at E[y_u | x] + V_uk V_kk^-1 (y_k - E[y_k | x]), where V is the covariance of y given x. Real rows
    are not normal. So rows are noised and denoised again from lower and lower levels, where the network itself sees
    how unknown columns follow from known ones.
    """

    columns: list[int]
    values: Tensor
    """Scaled, one row for each that is drawn. (M, K)"""
    covariance: Tensor
    """Of the scaled data. (D, D)"""

    levels: ClassVar[tuple[float, ...]] = (1.0, 0.3, 0.1)
    """From each, `times` over, `steps` steps lead down to a 16th of it: of normal outcomes of a std between 0.03 and 1,
    this leaves 0.99 to 1.01 of the std."""
    steps: ClassVar[int] = 5
    times: ClassVar[int] = 2

    def of(self, block: int, block_rows: int) -> Tensor:
        """Those of a block's rows (block_rows, K); the last one again and again where there are too few."""
        wanted = torch.arange(block * block_rows, (block + 1) * block_rows, device=self.values.device)
        return self.values[wanted.clamp(max=len(self.values) - 1)]

    def completed(self, expected: Tensor, values: Tensor, sigma: float) -> Tensor:
        """What the network expects (N, D), where the known columns have these values (N, K)."""
        found = expected + (values - expected[:, self.columns]) @ self._gain(sigma)
        found[:, self.columns] = values
        return found

    def _gain(self, sigma: float) -> Tensor:
        """V_kk^-1 V_k. (K, D)"""
        left = edm.posterior_covariance(self.covariance, sigma)[self.columns]
        across = left[:, self.columns]
        ridge = 1e-6 * across.diagonal().mean() * torch.eye(len(across), dtype=across.dtype, device=across.device)
        gain: Tensor = torch.linalg.solve(across + ridge, left)
        return gain.to(self.values)


def given_of(asked: Asked | None, count: int, seed: int, block: int, device: torch.device) -> Tensor | None:
    """The conditions of a block's rows (count, K): a function of (seed, block). None where there are none."""
    if asked is None:
        return None
    drawn = asked.draw(count, np.random.default_rng([_CONDITIONS, seed, block]))
    return torch.from_numpy(drawn).to(device)


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
        known: Known | None = None,
        guide: Guided | None = None,
    ) -> None:
        self.device = next(network.parameters()).device
        self.precision = compute.pick_precision(precision, self.device)
        self.columns, self.config, self.start, self.asked = network.columns, config, start, asked
        self.known, self.guide = known, guide
        self.corrected: Corrected | None = None
        sigmas = samplers.sigmas_of(config, noise)
        self.like, self.sigmas = like, sigmas if like is None else sigmas[like.step(config.steps) :]
        self.denoiser = edm.Denoiser(network, noise, compute.working_dtype(self.precision))
        self.block_rows = compute.block_rows(self.device)
        self._source = torch.Generator(self.device)

    def draw(self, seed: int, block: int) -> Tensor:
        return self._draw(seed, block, self._solved)

    def drawn(self, seed: int, blocks: range, finish: Callable[[int, Tensor], T], together: int = 1) -> Iterator[T]:
        """What `finish` makes of the number and the rows of each block, in order, or of so many blocks `together`, of
        which it gets the first number. Cores of a CPU share the work."""

        def finished(first: int) -> T:
            alone = copy(self)
            alone._source = torch.Generator(self.device)
            some = [alone.draw(seed, block) for block in range(first, min(first + together, blocks.stop))]
            return finish(first, some[0] if len(some) == 1 else torch.cat(some))

        firsts = range(blocks.start, blocks.stop, together)
        # A guide is a user's function, which need not bear threads.
        return map(finished, firsts) if self.guide is not None else compute.spread(finished, firsts, self.device)

    @property
    def may_be_captured(self) -> bool:
        """Whether blocks are drawn by work of our own that is the same for each."""
        return self.known is None and self.guide is None

    def captured(self, finish: Callable[[Tensor], Tensor] = torch.clone) -> Callable[[int, int], Tensor]:
        """What `finish` makes of `draw`, with the thousand operations of a block captured as one. Capturing takes the
        time of a few blocks.

        A GPU then need not wait for Python, which other threads keep busy.
        """
        start = torch.zeros(self.block_rows, self.columns, device=self.device, dtype=torch.float32)
        given = self.given(0, 0)
        with self._working():
            made = finish(start)

        def solve() -> None:
            made.copy_(finish(self._solved(start, given)))

        with self._working():
            run = compute.capture(solve, self.device, [made], [self._source])

        def solved(x: Tensor, asked: Tensor | None) -> Tensor:
            start.copy_(x)
            if given is not None and asked is not None:
                given.copy_(asked)
            run()
            return made.clone()  # the next block overwrites it

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
            given = self.given(seed, block)
            if self.like is not None:
                picked = torch.randint(len(self.like.rows), size[:1], generator=self._source, device=self.device)
                x = torch.add(self.like.rows[picked], eps, alpha=self.sigmas[0])
                if given is not None and self.like.first is not None:
                    given[:, 0] = self.like.first[picked]
            else:
                x = (eps if self.start is None else self.start.draw(eps)) * self.sigmas[0]
            if self.known is not None:
                values = self.known.of(block, self.block_rows)
                x[:, self.known.columns] = torch.add(values, eps[:, self.known.columns], alpha=self.sigmas[0])
                solved = partial(self._solved, values=values)
            return solved(x, given)

    def given(self, seed: int, block: int) -> Tensor | None:
        """The conditions of a block's rows (block_rows, K), where there are any."""
        return given_of(self.asked, self.block_rows, seed, block, self.device)

    def _solved(
        self,
        x: Tensor,
        given: Tensor | None,
        look: Callable[[Tensor, float], None] | None = None,
        values: Tensor | None = None,
    ) -> Tensor:
        """The sampler's rows from x at sigmas[0]; stochastic samplers draw from the block's own generator.

        `values` are those of known columns.
        """

        def denoise(x: Tensor, sigma: float) -> Tensor:
            if look is not None:
                look(x, sigma)
            if given is None or self.asked is None:
                found = self.denoiser(x, sigma)
            else:
                found = edm.guided(self.denoiser, x, sigma, given, self.asked.guidance)
            if self.guide is not None:
                found = self.guide(x, found, sigma)
            if self.known is not None and values is not None:
                found = self.known.completed(found, values, sigma)
            return found

        rows = samplers.sample(self.config, denoise, x, self.sigmas, self._source)
        if self.corrected is not None:
            rows = self.corrected(rows, given)
        if self.known is None:
            return rows
        for level in self.known.levels:
            low = edm.geometric_sigmas(self.known.steps, level, level / 16)
            rows = samplers.restart(denoise, rows, low, self._source, times=self.known.times)
        return rows

    @contextmanager
    def _working(self) -> Iterator[None]:
        advice = "choose a smaller network, or sample on a CPU"
        with compute.working_on(self.device, advice), compute.matmul_precision(self.precision), torch.no_grad():
            yield

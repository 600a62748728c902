"""Sample rows in blocks of a fixed size. Each block is a function of (seed, block number).

Therefore the rows do not depend on which process draws a block, on the order of the blocks, or on interruptions.

Read `BlockSampler` first. `ConditionSampler`, `Like`, `Known` and `Guided` are ways to change which rows are sampled:
by conditions, near given rows, with given columns, or with a guide (see docs/asking-for-rows.md).
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
_STREAM = 4  # number of the random stream of rows; fit.py uses streams 0 to 3
_CONDITIONS = 6  # number of the random stream of conditions; synthesizer/drawing.py uses stream 5


Guided = Callable[[Tensor, Tensor, float], Tensor]
"""A guide: a function (x, denoised, sigma) that returns other denoised rows. x and denoised are (N, D)."""


Corrected = Callable[[Tensor, Tensor | None], Tensor]
"""A function that corrects finished rows (N, D). It also gets their conditions (N, K), or None without conditions."""


class ConditionSampler(Protocol):
    """Draws the conditions of rows, for a network that takes conditions."""

    @property
    def guidance(self) -> edm.Guidance: ...

    def draw(self, count: int, random: np.random.Generator) -> NDArray[np.float32]:
        """Return the conditions of `count` rows: quantiles (count, K), where NaN means unknown."""
        ...


@dataclass(frozen=True)
class Like:
    """Sample near given rows: each new row starts from one of them, to which noise is added, instead of pure noise."""

    rows: Tensor
    """Scaled rows (M, D)."""
    strength: float
    """The share of the sampler's steps that are done. 0: only the last step, which hardly changes the rows. 1: all
    steps, so that nothing remains of the rows."""
    first: Tensor | None = None
    """The first condition of each row (M,), if the network takes conditions."""

    def step(self, steps: int) -> int:
        """Return the number of the sampler's step, of `steps`, at which sampling starts."""
        return min(round((1 - self.strength) * steps), steps - 1)


@dataclass(frozen=True, eq=False)
class Known:
    """Columns with a known value in every row. The model generates the other columns given these values.

    Example: which next observations follow given observations and actions? The network predicts known and unknown
    columns together, E[y | x]. The known values y_k improve the prediction of the unknown columns y_u. For normal rows
    it is E[y_u | x] + V_uk V_kk^-1 (y_k - E[y_k | x]), where V is the covariance of y given x. Real rows are not
    normal. Therefore noise is added to the finished rows and they are denoised again, from lower and lower noise
    levels. At low levels the network itself sees how unknown columns depend on the known ones.
    """

    columns: list[int]
    values: Tensor
    """Scaled values of these columns (M, K), one row for each row to sample."""
    covariance: Tensor
    """Covariance of the scaled data (D, D)."""

    levels: ClassVar[tuple[float, ...]] = (1.0, 0.3, 0.1)
    """Noise levels to which finished rows are raised, each `times` times. From each level, `steps` steps lead down to
    a 16th of it. For normal outcomes of a std s between 0.03 and 1, the result has a std of 0.99 s to 1.01 s."""
    steps: ClassVar[int] = 5
    times: ClassVar[int] = 2

    def of(self, block: int, block_rows: int) -> Tensor:
        """Return the known values of a block's rows (block_rows, K). After the last row, its values are repeated."""
        numbers = torch.arange(block * block_rows, (block + 1) * block_rows, device=self.values.device)
        return self.values[numbers.clamp(max=len(self.values) - 1)]

    def completed(self, expected: Tensor, values: Tensor, sigma: float) -> Tensor:
        """Return the clean rows (N, D) that are expected given the known `values` (N, K).

        `expected` (N, D) are the network's predictions, which do not use these values.
        """
        updated = expected + (values - expected[:, self.columns]) @ self._gain(sigma)
        updated[:, self.columns] = values
        return updated

    def _gain(self, sigma: float) -> Tensor:
        """Return the regression coefficients of all columns on the known columns, V_kk^-1 V_k (K, D)."""
        posterior = edm.posterior_covariance(self.covariance, sigma)[self.columns]
        within = posterior[:, self.columns]
        ridge = 1e-6 * within.diagonal().mean() * torch.eye(len(within), dtype=within.dtype, device=within.device)
        gain: Tensor = torch.linalg.solve(within + ridge, posterior)
        return gain.to(self.values)


def draw_conditions(
    asked: ConditionSampler | None, count: int, seed: int, block: int, device: torch.device
) -> Tensor | None:
    """Draw the conditions of a block's rows (count, K), as a function of (seed, block). Return None without `asked`."""
    if asked is None:
        return None
    drawn = asked.draw(count, np.random.default_rng([_CONDITIONS, seed, block]))
    return torch.from_numpy(drawn).to(device)


class BlockSampler:
    """Samples blocks of scaled rows (block_rows, D) from a fitted network, on the device of the network.

    If the network takes conditions, `asked` draws them for each block.
    """

    def __init__(
        self,
        network: DenoisingNetwork,
        noise: NoiseConfig,
        config: SamplerConfig,
        precision: compute.Precision = "auto",
        start: Start | None = None,
        asked: ConditionSampler | None = None,
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
        """Return the rows of one block (block_rows, D)."""
        return self._draw(seed, block, self._solved)

    def drawn(self, seed: int, blocks: range, finish: Callable[[int, Tensor], T], together: int = 1) -> Iterator[T]:
        """Yield `finish(number, rows)` for each block, in order. On a CPU, its cores share the work.

        If `together` is above 1, `finish` gets the rows of that many consecutive blocks at once, and the number of the
        first of them.
        """

        def finished(first: int) -> T:
            separate = copy(self)  # threads must not share a random generator
            separate._source = torch.Generator(self.device)
            some = [separate.draw(seed, block) for block in range(first, min(first + together, blocks.stop))]
            return finish(first, some[0] if len(some) == 1 else torch.cat(some))

        firsts = range(blocks.start, blocks.stop, together)
        # A guide is a function of the user, which may not be thread-safe.
        return map(finished, firsts) if self.guide is not None else compute.spread(finished, firsts, self.device)

    @property
    def may_be_captured(self) -> bool:
        """Whether `captured` can be used. It cannot with known values, which differ between blocks, or with a guide,
        which is a function of the user."""
        return self.known is None and self.guide is None

    def captured(self, finish: Callable[[Tensor], Tensor] = torch.clone) -> Callable[[int, int], Tensor]:
        """Return a function (seed, block) that computes `finish(self.draw(seed, block))` faster on a GPU.

        The thousand operations of a block are captured as one CUDA graph. So the GPU does not wait for Python, which
        other threads keep busy. Capturing takes as long as drawing a few blocks.
        """
        start = torch.zeros(self.block_rows, self.columns, device=self.device, dtype=torch.float32)
        given = self.given(0, 0)
        with self._working():
            made = finish(start)

        def solve() -> None:
            made.copy_(finish(self._solved(start, given)))

        with self._working():
            run = compute.capture(solve, self.device, [made], [self._source])

        def solved(x: Tensor, conditions: Tensor | None) -> Tensor:
            start.copy_(x)
            if given is not None and conditions is not None:
                given.copy_(conditions)
            run()
            return made.clone()  # the next block overwrites it

        return partial(self._draw, solved=solved)

    def trace(self, seed: int, rows: int) -> list[tuple[float, Tensor]]:
        """Return the path of the first `rows` rows of block 0 from noise to data, as pairs of a noise level and x.

        The noise levels sigma fall to 0. x (rows, D) is scaled by sigma_data c_in, so that it has the std of the data
        at every level. If a sampler goes back to a higher level, that part of the path is left out.
        """
        seen: list[tuple[float, Tensor]] = []
        sigma_data = self.denoiser.sigma_data

        def look(x: Tensor, sigma: float) -> None:
            if not seen or sigma < seen[-1][0]:
                seen.append((sigma, sigma_data * edm.c_in(sigma, sigma_data) * x[:rows]))

        final = self._draw(seed, 0, partial(self._solved, look=look))
        return [*seen, (0.0, final[:rows])]

    def _draw(self, seed: int, block: int, solved: Callable[[Tensor, Tensor | None], Tensor]) -> Tensor:
        """Draw the initial noise and the conditions of a block, and return `solved(x, conditions)`."""
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
        """Return the conditions of a block's rows (block_rows, K), or None without conditions."""
        return draw_conditions(self.asked, self.block_rows, seed, block, self.device)

    def _solved(
        self,
        x: Tensor,
        given: Tensor | None,
        look: Callable[[Tensor, float], None] | None = None,
        values: Tensor | None = None,
    ) -> Tensor:
        """Take rows x from noise sigmas[0] to 0 with the sampler, and correct them.

        Stochastic samplers draw from the generator of the block. `values` are the values of known columns.
        """

        def denoise(x: Tensor, sigma: float) -> Tensor:
            if look is not None:
                look(x, sigma)
            if given is None or self.asked is None:
                denoised = self.denoiser(x, sigma)
            else:
                denoised = edm.guided(self.denoiser, x, sigma, given, self.asked.guidance)
            if self.guide is not None:
                denoised = self.guide(x, denoised, sigma)
            if self.known is not None and values is not None:
                denoised = self.known.completed(denoised, values, sigma)
            return denoised

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
        """Set the device, the precision of products and no-gradient mode inside the block."""
        advice = "choose a smaller network, or sample on a CPU"
        with compute.working_on(self.device, advice), compute.matmul_precision(self.precision), torch.no_grad():
            yield

"""`Drawing`: generates blocks of rows from a fitted model with one sampler.

The rows of a network differ from the real rows in small ways, and these differences depend on the sampler. So a few
rows are generated first, and corrections are measured on them: the starting noise (so that means and covariances are
right), corrections of single columns, thresholds of flags, and weights of rows (so that terminals, rare rows and
discrete values are as frequent as in the real rows). The corrections are kept with the model. Then any number of rows
is generated block by block.

Read `Drawing.blocks` first (how rows are generated and weighted), then `_calibrated` (how corrections are measured).
"""

from __future__ import annotations

import math
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther import compute
from synther.calibration.marginals import Corrections, Corrector, corrections
from synther.calibration.rare_rows import RareRows
from synther.calibration.rates import Calibration, class_weights, resampled
from synther.conditions import ConditionSampler
from synther.cores import cores
from synther.data.decoding import Decoded, Decoder
from synther.data.layout import Layout
from synther.data.transitions import Transitions
from synther.diffusion.blocks import BlockSampler, Guided, Known, Like
from synther.diffusion.config import DISTILLED, SamplerConfig
from synther.diffusion.fit import STEP_CALLS
from synther.diffusion.start import ROUNDS, Moments, Start, match
from synther.guides import Guide, View
from synther.model_file import Fitted
from synther.presets import Settings
from synther.progress import Progress
from synther.relevance.discrete import Reweighting

Array = NDArray[Any]
T = TypeVar("T")

_CALIBRATION, _MATCHING = 0, 1  # streams of random numbers that are different for each fit, see `_stream`
_REBALANCING, _REDRAWING = 5, 20  # streams of random numbers beside those of diffusion/
_MOST_TRIES = 64  # how many times a row is generated at most, until it is accepted
_MATCHING_ROWS = 100_000  # number of rows for matching moments: a std is then known to a quarter of a per cent
_MATCHING_BLOCKS = 32  # maximum number of blocks for matching moments: more would take minutes on a CPU
_CALIBRATION_ROWS, _CALIBRATION_BLOCKS = 65_536, 16  # maximum size of a calibration: the larger of the two
_THREADS = 4  # threads that decode generated blocks: a GPU generates a block faster than one thread decodes it
_MANY_BLOCKS = 10  # minimum number of blocks for which capturing a CUDA graph pays off
_DECODED_TOGETHER = 8  # number of blocks that a CPU decodes together, to reduce the overhead of Python
_WEIGHTED = 3  # how many times weights are measured, because each weight changes the shares that others correct
_LEAST_STD = 0.05  # lower bound of the std of columns that decide about outcomes from tables: such a column of a
# generator that has learned anything has a larger std


@dataclass(frozen=True)
class Constraints:
    """What the caller of `sample` requires of the rows. None of these are needed for rows like all real rows."""

    conditions: ConditionSampler | None = None
    like: Like | None = None
    guide: Guide | None = None
    known: Known | None = None

    @property
    def none(self) -> bool:
        return all(getattr(self, each.name) is None for each in fields(self))


ANY_ROWS = Constraints()
"""No constraints: rows are distributed like the real rows."""


class Drawing:
    """Generates rows from a fitted model with one sampler. Measured corrections of the sampler are stored in the
    model."""

    def __init__(
        self,
        model: Fitted,
        settings: Settings,
        config: SamplerConfig,
        precision: compute.Precision,
        progress: Progress,
        constraints: Constraints = ANY_ROWS,
    ) -> None:
        self.model, self.settings, self.config = model, settings, config
        self.precision, self.progress, self.constraints = precision, progress, constraints
        self._unconstrained = self if constraints.none else Drawing(model, settings, config, precision, progress)

    def ready(self) -> Self:
        """Measure all corrections that this sampler needs, and return self."""
        _ = self.sampler, self.calibration
        return self

    @cached_property
    def sampler(self) -> BlockSampler:
        """The sampler of blocks of scaled rows, with the corrections of single columns."""
        # With `given` or `like`, columns need no correction, because they come from real rows.
        from_network = self.constraints.like is None and self.constraints.known is None
        calibration = self.calibration if from_network else None
        if calibration is None or not calibration.every_correction:
            return self._uncorrected
        correct = Corrector(calibration.corrections, calibration.start_corrections, self._uncorrected.device)
        corrected = copy(self._uncorrected)
        corrected.corrected = lambda rows, conditions: correct(rows, self._begins(conditions))
        return corrected

    @cached_property
    def _uncorrected(self) -> BlockSampler:
        starts = self.model.starts
        if self.config.matched and self.config not in starts:
            starts[self.config] = self._unconstrained._matched_start()
        return self._sampler_from(starts.get(self.config))

    def _begins(self, conditions: Tensor | None) -> Tensor | None:
        """Return which rows are episode starts (N,), from the conditions of the rows (N, K). None if episode starts are
        not a condition."""
        return None if conditions is None or self.model.conditions.starts is None else conditions[:, 0] > 0.5

    @cached_property
    def calibration(self) -> Calibration:
        """The corrections that make flags (above all terminals) and other values as frequent as in the real rows. Each
        sampler has its own calibration.

        It is always measured without constraints. The thresholds and the odds of a terminal correct errors of the
        generator. They do not pull rows with a condition towards the average of all rows.
        """
        model = self.model
        targets = model.rates, model.shares, model.regions, model.discrete, model.rare, model.layout.following
        corrected = any(targets) or self._corrects_quantiles
        if self.settings.data.threshold == "half" or not corrected or model.table is not None:
            return Calibration(model.layout.thresholds)
        if self.config not in model.calibrations:
            model.calibrations[self.config] = self._unconstrained._calibrated()
        return model.calibrations[self.config]

    @cached_property
    def layout(self) -> Layout:
        """The model's layout, with the thresholds of this sampler."""
        return self.model.layout.with_thresholds(self.calibration.thresholds)

    @property
    def _corrects_quantiles(self) -> bool:
        """Whether columns are corrected to have the quantiles of the real rows."""
        return self.config.matched and any((*self.model.quantiles, *self.model.start_quantiles))

    @cached_property
    def decoder(self) -> Decoder:
        return self._decoder(self.calibration)

    def _decoder(self, calibration: Calibration) -> Decoder:
        model, usual = self.model, self.model.usual_reward
        layout, unusual = model.layout.with_thresholds(calibration.thresholds), None if usual is None else usual.tree
        return Decoder(layout, model.scaler, model.ending, unusual, self._uncorrected.device, calibration.drawn)

    def decoded(self, matrix: Array) -> Transitions:
        """Convert an output of the network (N, D) to rows. Trees decide about terminals and rewards, if the model has
        trees."""
        return self.decoder(torch.from_numpy(np.ascontiguousarray(matrix))).rows

    def _consistent(self, decoded: Decoded, draw: np.random.Generator) -> NDArray[np.int64]:
        """Return the numbers of the rows to take, so that no reward contradicts the rest of its row. (N,)"""
        rows, unusual = decoded.rows, decoded.unusual
        if unusual is None or self.model.usual_reward is None:
            return np.arange(len(rows))
        return self.model.usual_reward.consistent(rows, unusual, draw)

    def blocks(self, count: int, seed: int, first: int = 0) -> Iterator[Transitions]:
        """Return an iterator over the blocks that make up `count` rows, starting with block number `first`. The last
        block is cut to the remaining rows."""
        # With `like`, terminals and other values must occur as often as in the rows that the user passed.
        is_weighted = self.constraints.like is None
        block_rows, in_order = self.sampler.block_rows, self.constraints.known is not None
        numbers = range(first, -(-count // block_rows))

        def generator(block: int) -> np.random.Generator:
            return np.random.default_rng([_REBALANCING, seed, block])

        def finish(block: int, decoded: Decoded) -> Transitions:
            draw, rows = generator(block), decoded.rows
            taken = np.arange(len(rows))
            if not in_order:  # with given columns, each row must stay in its place
                taken = self._consistent(decoded, draw)
                weight = self._weight(self.calibration, rows, self._learned_weight(rows)) if is_weighted else None
                if weight is not None:
                    taken = taken[resampled(weight[taken], draw)]
            return rows[
                taken[: count - block * block_rows]
            ]  # a copy, because the next block reuses the memory of `rows`

        if in_order and self.model.rare is not None:
            rare = self.model.rare
            return (self._in_order(rare, seed, b, generator(b))[: count - b * block_rows] for b in numbers)
        table, layout = self.model.table, self.layout
        if table is not None:
            return (table.draw(min(block_rows, count - b * block_rows), layout, generator(b)) for b in numbers)
        return self._finished(seed, numbers, finish)

    def _in_order(self, rare: RareRows, seed: int, block: int, draw: np.random.Generator) -> Transitions:
        """Generate a block of rows with given columns, in which each row must stay in its place.

        The network generates too many rare rows. So each row is accepted with the probability of its weight, and
        generated again otherwise (rejection sampling).
        """
        tries, size = list[Transitions](), self.sampler.block_rows
        accepted, last = np.zeros(size, bool), np.zeros(size, np.int64)
        while not accepted.all() and len(tries) < _MOST_TRIES:
            try_seed = np.random.default_rng([_REDRAWING, seed, len(tries)]).integers(2**31) if tries else seed
            rows = self.decoder(self.sampler.draw(int(try_seed), block)).rows
            last[~accepted] = len(tries)
            accepted |= draw.random(size) < rare.weights(rows, self.calibration.given_rare_odds)
            tries.append(rows[np.arange(size)])  # a copy, because the next block reuses the memory of `rows`
        return Transitions.concatenate(tries)[last * size + np.arange(size)]

    def _learned_weight(self, rows: Transitions) -> NDArray[np.float64] | None:
        """Return the weight that corrects the probabilities of discrete values, for each row (N,). None if they are
        right."""
        reweighting = self.model.reweightings.get(self.config if self._is_own else self.settings.sampler)
        return None if reweighting is None else reweighting.weights(rows)

    def _weight(
        self, calibration: Calibration, rows: Transitions, learned: NDArray[np.float64] | None
    ) -> NDArray[np.float64] | None:
        """Return the weight with which each row is resampled (N,). None if all weights are equal. `learned` is their
        `_learned_weight`."""
        model, weights = self.model, [] if learned is None else [learned]
        if model.rare is not None:
            weights.append(model.rare.weights(rows, calibration.rare_odds))
        if calibration.weights:
            weights.append(calibration.row_weights(model.layout.classes(rows)))
        if calibration.regions and model.regions is not None:
            weights.append(np.array(calibration.regions)[model.regions.places(rows)])
        if calibration.terminal_odds != 1:
            weights.append(np.where(rows.terminal, calibration.terminal_odds, 1.0))
        return np.prod(weights, axis=0) if weights else None

    def _finished(self, seed: int, blocks: range, finish: Callable[[int, Decoded], T]) -> Iterator[T]:
        """Yield `finish(number, rows)` of each block, in order. The next blocks are generated at the same time."""
        sampler, decoder = self.sampler, self.decoder
        size, many = sampler.block_rows, blocks.stop - blocks.start  # the range may be too long for len()
        if sampler.device.type == "cpu":

            def finished_some(first: int, matrix: Tensor) -> list[T]:
                decoded, places = decoder(matrix), range(0, len(matrix), size)
                return [finish(first + place // size, decoded.part(place, place + size)) for place in places]

            together = _DECODED_TOGETHER if many >= _MANY_BLOCKS * _DECODED_TOGETHER else 1
            for some in sampler.drawn(seed, blocks, finished_some, together):
                yield from some
            return
        pack = decoder.packed if decoder.device == sampler.device else torch.clone

        def finished(block: int, fetched: Callable[[], Array]) -> T:
            arrived = fetched()
            if pack is torch.clone:
                return finish(block, decoder(torch.from_numpy(arrived)))
            return finish(block, decoder.rows(arrived, size))

        # Capture before threads start, because threads must not use the device during a capture.
        captured = many >= _MANY_BLOCKS and sampler.device.type == "cuda" and sampler.may_be_captured
        draw = sampler.captured(pack) if captured else lambda seed, block: pack(sampler.draw(seed, block))
        threads = min(cores(), _THREADS)
        with compute.side_by_side(threads) as pool:
            waiting: deque[Future[T]] = deque()
            for block in blocks:
                waiting.append(pool.submit(partial(finished, block, compute.fetch(draw(seed, block)))))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def _sampler_from(self, start: Start | None) -> BlockSampler:
        model, constraints, noise = self.model, self.constraints, self.settings.noise
        conditions = model.conditions.asking() if constraints.conditions is None else constraints.conditions
        parts: Any = {"like": constraints.like, "known": constraints.known, "guide": self._guided()}
        return BlockSampler(model.network, noise, self.config, self.precision, start, asked=conditions, **parts)

    def _guided(self) -> Guided | None:
        """Return the guide as a function of scaled rows. None without a guide."""
        guide, model = self.constraints.guide, self.model
        if guide is None or not guide.strength:
            return None
        device = next(model.network.parameters()).device
        view = View(model.layout, model.scaler, model.moments.covariance, device)
        return lambda x, denoised, sigma: guide.moved(x, denoised, sigma, view)

    def _stream(self, which: int) -> int:
        """Return a seed above 2**31, where users hardly choose one. It is different for each fit, so the sampling
        errors of calibrations are independent between fits."""
        record = self.model.record
        return 2**31 + 2 * zlib.crc32(f"{record.seed} {record.data}".encode()) + which

    def _matched_start(self) -> Start:
        """Return the starting noise with which generated rows have the mean and covariance of the real rows."""
        block_rows = compute.block_rows(self.model.network.frequencies.device)
        rows = min(_MATCHING_ROWS, self._affordable_rows() / ROUNDS)
        blocks = min(math.ceil(rows / block_rows), _MATCHING_BLOCKS)

        with self.progress.phase("match", ROUNDS * blocks * block_rows) as phase:

            def generated(start: Start, number: int) -> Moments:
                sampler = self._sampler_from(start)
                drawn = []
                numbers = range(number * blocks, (number + 1) * blocks)
                for rows in sampler.drawn(self._stream(_MATCHING), numbers, lambda _, rows: rows):
                    drawn.append(rows)
                    phase.advance(block_rows)
                return Moments.of(torch.cat(drawn)).cpu()

            residuals, layout = self.model.scaler.residuals, self.model.layout
            free = range(layout.width) if residuals is None else sorted({*residuals.free, *layout.drawn_columns})
            return match(self.model.moments, generated, free)

    def _calibrated(self) -> Calibration:
        """Generate enough rows to see the rarest flag, and measure all corrections on them, one after the other. Each
        correction is measured on rows to which the previous ones have been applied."""
        model, sampler, seed = self.model, self._uncorrected, self._stream(_CALIBRATION)
        blocks = range(max(1, round(self._calibration_rows() / sampler.block_rows)))
        drawn = []
        with self.progress.phase("calibrate", len(blocks) * sampler.block_rows) as phase:
            for matrix in sampler.drawn(seed, blocks, lambda _, matrix: matrix):
                drawn.append(matrix)
                phase.advance(sampler.block_rows)
        result = Calibration(model.layout.thresholds)
        if self._corrects_quantiles:
            begins = [self._begins(sampler.given(seed, block)) for block in blocks]
            result = replace(
                result, corrections=self._corrections(drawn, begins), start_corrections=self._start_corrections()
            )
            # Two-fold cross-fitting: each half of the blocks is corrected by what the other half shows. So the flags
            # below are counted in rows like all later ones, on which the corrections were not measured.
            others = [self._corrections(drawn[half::2], begins[half::2]) or result.corrections for half in (1, 0)]
            correct = [Corrector(lines, result.start_corrections, sampler.device) for lines in others]
            drawn = [correct[block % 2](drawn[block], begins[block]) for block in blocks]
        # With residuals, outcomes depend on flags of the given columns. So thresholds are measured twice: the second
        # time with the thresholds of these flags.
        for _ in range(1 if model.scaler.residuals is None else 2):
            decoder, flags, numbers = self._decoder(result), [], []
            for matrix in drawn:
                raw = decoder.raw(matrix)
                flags.append(decoder.flags(raw).t().cpu().numpy())
                numbers.append(raw[list(model.layout.drawn_columns)].t().cpu().numpy())
            rates = model.rates if model.rare is None else model.rare.rates
            result = result.cutting(rates, np.concatenate(flags), model.layout)
        if model.layout.following:
            every = np.concatenate(numbers)
            moments = zip(every.mean(0), np.maximum(every.std(0), _LEAST_STD), strict=True)
            result = replace(result, drawn=tuple((float(mean), float(std)) for mean, std in moments))
        names = model.layout.flag_names
        if "terminal" not in names and not any((model.shares, model.regions, model.discrete, model.rare)):
            return result
        decoder, draw = self._decoder(result), np.random.default_rng(seed)
        decoded = map(decoder, drawn)
        rows = Transitions.concatenate([one.rows[self._consistent(one, draw)] for one in decoded])
        if model.rare is not None:
            odds = model.rare.odds(rows)
            result = replace(result, rare_odds=odds, given_rare_odds=odds)
        if model.discrete is not None and self._is_own:
            weight = self._weight(result, rows, None)
            weighted = rows if weight is None else rows[resampled(weight, draw)]
            reweighting = Reweighting.learn(model.discrete, weighted, seed)
            if reweighting is not None:
                model.reweightings[self.config] = reweighting
        learned = self._learned_weight(rows)
        for _ in range(_WEIGHTED):
            result = self._weighted(result, rows, learned)
        return result

    def _weighted(self, result: Calibration, rows: Transitions, learned: NDArray[np.float64] | None) -> Calibration:
        """Measure the weights of values, events in regions, rare rows and terminals on generated rows, one after the
        other, each with all other weights applied."""
        model, names = self.model, self.model.layout.flag_names
        if model.shares:
            weight = self._weight(replace(result, weights=()), rows, learned)
            classes = model.layout.classes(rows)
            result = replace(result, weights=class_weights(model.shares, model.record.rows, classes, weight))
        if model.regions is not None:
            weight = self._weight(replace(result, regions=()), rows, learned)
            result = replace(result, regions=model.regions.weights(rows, weight))
        if model.rare is not None:
            weight = self._weight(replace(result, rare_odds=1.0), rows, learned)
            result = replace(result, rare_odds=model.rare.odds(rows, weight))
        if "terminal" in names:
            weight = self._weight(replace(result, terminal_odds=1.0), rows, learned)
            result = result.balancing(model.rates[names.index("terminal")], rows.terminal, weight)
        return result

    def _corrections(self, drawn: list[Tensor], begins: list[Tensor | None]) -> Corrections:
        """Return the corrections that give columns of the `drawn` rows the quantiles of the real rows. Episode starts
        (`begins`) are left out, because they have corrections of their own."""
        model = self.model
        usual = [rows if begin is None else rows[~begin] for rows, begin in zip(drawn, begins, strict=True)]
        rates = model.rates if model.rare is None else model.rare.rates
        return corrections(model.layout, model.scaler, model.quantiles, torch.cat(usual), rates) if usual else ()

    def _start_corrections(self) -> Corrections:
        """Return the corrections of episode starts. Empty if episode starts are not a condition."""
        model, conditions = self.model, self.model.conditions.asking()
        if conditions is None or model.conditions.starts is None:
            return ()
        sampler = copy(self._uncorrected)
        sampler.asked = replace(conditions, starts=1.0)
        starts = sampler.draw(self._stream(_CALIBRATION), 0)
        return corrections(model.layout, model.scaler, model.start_quantiles, starts)

    @property
    def _is_own(self) -> bool:
        """Whether this is the model's own sampler or the student's. Other samplers use the `Reweighting` of the model's
        own sampler, because they have the same errors in discrete values."""
        return self.config == self.settings.sampler or self.config.kind == DISTILLED

    def _calibration_rows(self) -> float:
        """Return the number of rows for a calibration."""
        # With 5,000 events, a rate is known to 1.4 %. Rates of 0 and 1 need no rows, for example those of a flag that
        # is set only in next observations.
        rates = [*self.model.rates, *(share for shares in self.model.shares for share in shares)]
        rates += [] if self.model.rare is None else [self.model.rare.seen]
        rarest = min((min(rate, 1 - rate) for rate in rates if 0 < rate < 1), default=1.0)
        most = max(_CALIBRATION_ROWS, _CALIBRATION_BLOCKS * self._uncorrected.block_rows)
        if not self._is_own:  # a sampler that is used once should not take as long as the calibration after a fit
            most //= 4
        return min(5_000 / rarest, most, self._affordable_rows())

    def _affordable_rows(self) -> float:
        """Return the number of rows that can be generated in half of the time of the fit."""
        record = self.model.record
        fitted_rows = record.steps * self.settings.fit.batch_for(record.rows)
        return STEP_CALLS * fitted_rows / self.config.network_calls / 2

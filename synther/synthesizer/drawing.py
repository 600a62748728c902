"""Blocks of rows from a fitted model: the noise that they begin from, and flags as frequent as in the real rows."""

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
from synther.conditions import Asking
from synther.cores import cores
from synther.data.calibration import Calibration, class_weights, rebalanced, resampled
from synther.data.decoding import Decoded, Decoder
from synther.data.layout import Layout
from synther.data.marginals import Corrections, Corrector, corrections
from synther.data.payouts import Payouts
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

_CALIBRATION, _MATCHING = 0, 1  # streams of random numbers, of which each fit has its own
_REBALANCING, _REDRAWING = 5, 20  # others, beside those of diffusion/
_MOST_TRIES = 64  # to draw a row again
_MATCHING_ROWS = 100_000  # a std to a quarter of a per cent,
_MATCHING_BLOCKS = 32  # but no more than a CPU can make in minutes
_CALIBRATION_ROWS, _CALIBRATION_BLOCKS = 65_536, 16  # at most, whichever are more
_THREADS = 4  # that finish drawn rows: a GPU draws a block sooner than one of them finishes it
_MANY_BLOCKS = 10  # for which it pays to capture what draws them
_DECODED_TOGETHER = 8  # blocks of a CPU: less Python for each
_LEAST_STD = 0.05  # of numbers that decide about values: a generator that makes less has not learned anything


@dataclass(frozen=True)
class Wishes:
    """What rows are to be, beyond what the model makes by itself."""

    asking: Asking | None = None
    like: Like | None = None
    guide: Guide | None = None
    known: Known | None = None

    @property
    def none(self) -> bool:
        return all(getattr(self, each.name) is None for each in fields(self))


class Drawing:
    """A fitted model and one sampler. What has to be found out before it draws is kept with the model."""

    def __init__(
        self,
        model: Fitted,
        settings: Settings,
        config: SamplerConfig,
        precision: compute.Precision,
        progress: Progress,
        wishes: Wishes = Wishes(),  # noqa: B008, which is frozen
    ) -> None:
        self.model, self.settings, self.config = model, settings, config
        self.precision, self.progress, self.wishes = precision, progress, wishes
        self._plain = self if wishes.none else Drawing(model, settings, config, precision, progress)

    def ready(self) -> Self:
        """The same, with everything found out."""
        _ = self.sampler, self.calibration
        return self

    @cached_property
    def sampler(self) -> BlockSampler:
        # Given values, and those of rows that are like given ones, are right already.
        found = self.calibration if self.wishes.like is None and self.wishes.known is None else None
        if found is None or not found.every_correction:
            return self._uncorrected
        correct = Corrector(found.corrections, found.start_corrections, self._uncorrected.device)
        better = copy(self._uncorrected)
        better.corrected = lambda rows, given: correct(rows, self._begins(given))
        return better

    @cached_property
    def _uncorrected(self) -> BlockSampler:
        starts = self.model.starts
        if self.config.matched and self.config not in starts:
            starts[self.config] = self._plain._matched_start()
        return self._sampler_from(starts.get(self.config))

    def _begins(self, given: Tensor | None) -> Tensor | None:
        """Which rows begin an episode (N,), of their conditions (N, K); None where the network is not told."""
        return None if given is None or self.model.conditions.starts is None else given[:, 0] > 0.5

    @cached_property
    def calibration(self) -> Calibration:
        """How two-valued columns, terminals above all, come as often as in the real rows. Each sampler has its own.

        It is found on rows that nothing is asked of. Cuts, and by how much the odds of a terminal are raised, correct
        the generator; they draw rows that were asked for towards no average.
        """
        model = self.model
        known = model.rates, model.shares, model.regions, model.discrete, model.payouts, model.layout.following
        corrected = any(known) or self._has_quantiles
        if self.settings.data.threshold == "half" or not corrected or model.table is not None:
            return Calibration(model.layout.thresholds)
        if self.config not in model.calibrations:
            model.calibrations[self.config] = self._plain._calibrated()
        return model.calibrations[self.config]

    @cached_property
    def layout(self) -> Layout:
        """The model's, with the thresholds of this sampler."""
        return self.model.layout.with_thresholds(self.calibration.thresholds)

    @property
    def _has_quantiles(self) -> bool:
        """Whether columns are to have those of real rows."""
        return self.config.matched and any((*self.model.quantiles, *self.model.start_quantiles))

    @cached_property
    def decoder(self) -> Decoder:
        return self._decoder(self.calibration)

    def _decoder(self, calibration: Calibration) -> Decoder:
        model, usual = self.model, self.model.usual_reward
        layout, unusual = model.layout.with_thresholds(calibration.thresholds), None if usual is None else usual.tree
        return Decoder(layout, model.scaler, model.ending, unusual, self._uncorrected.device, calibration.drawn)

    def decoded(self, matrix: Array) -> Transitions:
        """What the network makes (N, D) as rows, their ends decided by whoever decides about ends."""
        return self.decoder(torch.from_numpy(np.ascontiguousarray(matrix))).rows

    def _consistent(self, decoded: Decoded, draw: np.random.Generator) -> NDArray[np.int64]:
        """Which rows to take so that rewards do not contradict the rest of them."""
        rows, unusual = decoded.rows, decoded.unusual
        if unusual is None or self.model.usual_reward is None:
            return np.arange(len(rows))
        return self.model.usual_reward.consistent(rows, unusual, draw)

    def blocks(self, count: int, seed: int, first: int = 0) -> Iterator[Transitions]:
        """The blocks from number `first` on that make up `count` rows, the last one cut."""
        # Rows that are like given ones have as many terminals, and as many of each value, as those.
        odds = self.calibration.terminal_odds if self.wishes.like is None else 1.0
        weighed = self.wishes.like is None
        block_rows, in_order = self.sampler.block_rows, self.wishes.known is not None
        wanted = range(first, -(-count // block_rows))

        def drawn(block: int) -> np.random.Generator:
            return np.random.default_rng([_REBALANCING, seed, block])

        def finish(block: int, decoded: Decoded) -> Transitions:
            draw, rows = drawn(block), decoded.rows
            taken = np.arange(len(rows))
            if not in_order:  # where none takes another's place
                taken = self._consistent(decoded, draw)
                weight = self._weight(self.calibration, rows) if weighed else None
                if weight is not None:
                    taken = taken[resampled(weight[taken], draw)]
                taken = taken[rebalanced(rows.terminal[taken], odds, draw)]
            return rows[taken[: count - block * block_rows]]  # a copy: theirs is the memory of the next block

        if in_order and self.model.payouts is not None:
            return (self._in_order(self.model.payouts, seed, b, drawn(b))[: count - b * block_rows] for b in wanted)
        table, layout = self.model.table, self.layout
        if table is not None:
            return (table.draw(min(block_rows, count - b * block_rows), layout, drawn(b)) for b in wanted)
        return self._finished(seed, wanted, finish)

    def _in_order(self, payouts: Payouts, seed: int, block: int, draw: np.random.Generator) -> Transitions:
        """A block of rows of which some columns are given, so that none takes another's place. Rows with a payout, of
        which the network makes too many, are accepted as often as their weight says, and drawn again otherwise."""
        tries, size = list[Transitions](), self.sampler.block_rows
        accepted, last = np.zeros(size, bool), np.zeros(size, np.int64)
        while not accepted.all() and len(tries) < _MOST_TRIES:
            own = np.random.default_rng([_REDRAWING, seed, len(tries)]).integers(2**31) if tries else seed
            rows = self.decoder(self.sampler.draw(int(own), block)).rows
            last[~accepted] = len(tries)
            accepted |= draw.random(size) < payouts.weights(rows.reward, self.calibration.payout_odds)
            tries.append(rows[np.arange(size)])  # a copy: theirs is the memory of the next block
        return Transitions.concatenate(tries)[last * size + np.arange(size)]

    def _weight(self, found: Calibration, rows: Transitions) -> NDArray[np.float64] | None:
        """How likely each of the rows is to be taken (N,); None where all are alike."""
        model, weights = self.model, list[NDArray[np.float64]]()
        if model.payouts is not None:
            weights.append(model.payouts.weights(rows.reward, found.payout_odds))
        learned = model.reweightings.get(self.config if self._is_own else self.settings.sampler)
        if learned is not None:
            weights.append(learned.weights(rows))
        if found.weights:
            weights.append(found.row_weights(model.layout.classes(rows)))
        if found.regions and model.regions is not None:
            weights.append(np.array(found.regions)[model.regions.places(rows)])
        return np.prod(weights, axis=0) if weights else None

    def _finished(self, seed: int, blocks: range, finish: Callable[[int, Decoded], T]) -> Iterator[T]:
        """What `finish` makes of each block's number and rows, in order; meanwhile the next ones are drawn."""
        sampler, decoder = self.sampler, self.decoder
        size, many = sampler.block_rows, blocks.stop - blocks.start  # for which len() may have no number
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

        # Before there are threads, which must leave the device alone while work is captured.
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
        model, wishes, noise = self.model, self.wishes, self.settings.noise
        asking = model.conditions.asking() if wishes.asking is None else wishes.asking
        asked: Any = {"asked": asking, "like": wishes.like, "known": wishes.known, "guide": self._guided()}
        return BlockSampler(model.network, noise, self.config, self.precision, start, **asked)

    def _guided(self) -> Guided | None:
        guide, model = self.wishes.guide, self.model
        if guide is None or not guide.strength:
            return None
        device = next(model.network.parameters()).device
        view = View(model.layout, model.scaler, model.moments.covariance, device)
        return lambda x, denoised, sigma: guide.moved(x, denoised, sigma, view)

    def _stream(self, which: int) -> int:
        """A seed that no ordinary one equals. Each fit has its own: what few rows show by chance then differs from fit
        to fit, and is not wrong in the same way in all of them."""
        record = self.model.record
        return 2**31 + 2 * zlib.crc32(f"{record.seed} {record.data}".encode()) + which

    def _matched_start(self) -> Start:
        """The noise to begin from, so that rows have the real moments."""
        block_rows = compute.block_rows(self.model.network.frequencies.device)
        rows = min(_MATCHING_ROWS, self._affordable_rows() / ROUNDS)
        blocks = min(math.ceil(rows / block_rows), _MATCHING_BLOCKS)

        with self.progress.phase("match", ROUNDS * blocks * block_rows) as phase:

            def generated(start: Start, number: int) -> Moments:
                sampler = self._sampler_from(start)
                drawn = []
                wanted = range(number * blocks, (number + 1) * blocks)
                for rows in sampler.drawn(self._stream(_MATCHING), wanted, lambda _, rows: rows):
                    drawn.append(rows)
                    phase.advance(block_rows)
                return Moments.of(torch.cat(drawn)).cpu()

            residuals, layout = self.model.scaler.residuals, self.model.layout
            free = range(layout.width) if residuals is None else sorted({*residuals.free, *layout.drawn_columns})
            return match(self.model.moments, generated, free)

    def _calibrated(self) -> Calibration:
        """From enough generated rows to see the rarest flag. Terminals are counted in rows as they will be drawn."""
        model, sampler, seed = self.model, self._uncorrected, self._stream(_CALIBRATION)
        blocks = range(max(1, round(self._calibration_rows() / sampler.block_rows)))
        drawn = []
        with self.progress.phase("calibrate", len(blocks) * sampler.block_rows) as phase:
            for matrix in sampler.drawn(seed, blocks, lambda _, matrix: matrix):
                drawn.append(matrix)
                phase.advance(sampler.block_rows)
        found = Calibration(model.layout.thresholds)
        if self._has_quantiles:
            begins = [self._begins(sampler.given(seed, block)) for block in blocks]
            found = replace(
                found, corrections=self._corrections(drawn, begins), start_corrections=self._start_corrections()
            )
            # Flags are counted in rows that lines were not found in, as all later rows are: half of them in turn.
            others = [self._corrections(drawn[side::2], begins[side::2]) or found.corrections for side in (1, 0)]
            correct = [Corrector(lines, found.start_corrections, sampler.device) for lines in others]
            drawn = [correct[block % 2](drawn[block], begins[block]) for block in blocks]
        for _ in range(1 if model.scaler.residuals is None else 2):  # outcomes follow from what was cut already
            decoder, flags, numbers = self._decoder(found), [], []
            for matrix in drawn:
                raw = decoder.raw(matrix)
                flags.append(decoder.flags(raw).t().cpu().numpy())
                numbers.append(raw[list(model.layout.drawn_columns)].t().cpu().numpy())
            rates = model.rates if model.payouts is None else model.payouts.rates
            found = found.cutting(rates, np.concatenate(flags), model.layout)
        if model.layout.following:
            every = np.concatenate(numbers)
            moments = zip(every.mean(0), np.maximum(every.std(0), _LEAST_STD), strict=True)
            found = replace(found, drawn=tuple((float(mean), float(std)) for mean, std in moments))
        names = model.layout.flag_names
        if "terminal" not in names and not any((model.shares, model.regions, model.discrete, model.payouts)):
            return found
        decoder, draw = self._decoder(found), np.random.default_rng(seed)
        made = map(decoder, drawn)
        rows = Transitions.concatenate([one.rows[self._consistent(one, draw)] for one in made])
        if model.payouts is not None:
            found = replace(found, payout_odds=model.payouts.odds(rows.reward))
        if model.discrete is not None and self._is_own:
            weight = self._weight(found, rows)
            some = rows if weight is None else rows[resampled(weight, draw)]
            learned = Reweighting.learn(model.discrete, some, seed)
            if learned is not None:
                model.reweightings[self.config] = learned
        if model.shares:
            classes = decoder.layout.classes(rows)
            weights = class_weights(model.shares, model.record.rows, classes, self._weight(found, rows))
            found = replace(found, weights=weights)
        if model.regions is not None:
            found = replace(found, regions=model.regions.weights(rows, self._weight(found, rows)))
        if "terminal" not in names:
            return found
        return found.balancing(model.rates[names.index("terminal")], rows.terminal, self._weight(found, rows))

    def _corrections(self, drawn: list[Tensor], begins: list[Tensor | None]) -> Corrections:
        """What takes columns of `drawn` rows to the quantiles of the real ones."""
        model = self.model
        usual = [rows if begin is None else rows[~begin] for rows, begin in zip(drawn, begins, strict=True)]
        return corrections(model.layout, model.scaler, model.quantiles, torch.cat(usual)) if usual else ()

    def _start_corrections(self) -> Corrections:
        """The same for starts of episodes; none if the network is not told which rows are starts."""
        model, asked = self.model, self.model.conditions.asking()
        if asked is None or model.conditions.starts is None:
            return ()
        sampler = copy(self._uncorrected)
        sampler.asked = replace(asked, starts=1.0)
        starts = sampler.draw(self._stream(_CALIBRATION), 0)
        return corrections(model.layout, model.scaler, model.start_quantiles, starts, every=True)

    @property
    def _is_own(self) -> bool:
        """Whether the network's own sampler draws. Others blur discrete values as that one does."""
        return self.config == self.settings.sampler or self.config.kind == DISTILLED

    def _calibration_rows(self) -> float:
        """How many to draw before the rates of flags are believed."""
        # 5,000 events tell a rate to 1.4 %. A flag that is set in next observations alone has none to find.
        rates = [*self.model.rates, *(share for shares in self.model.shares for share in shares)]
        rates += [] if self.model.payouts is None else [self.model.payouts.seen]
        rarest = min((min(rate, 1 - rate) for rate in rates if 0 < rate < 1), default=1.0)
        most = max(_CALIBRATION_ROWS, _CALIBRATION_BLOCKS * self._uncorrected.block_rows)
        if not self._is_own:  # another sampler for once: do not wait as long as after a fit
            most //= 4
        return min(5_000 / rarest, most, self._affordable_rows())

    def _affordable_rows(self) -> float:
        """How many take no longer to draw than half of the fit took."""
        record = self.model.record
        fitted_rows = record.steps * self.settings.fit.batch_for(record.rows)
        return STEP_CALLS * fitted_rows / self.config.network_calls / 2

"""`Synthesizer`: fit on experience, sample more of it, save and load. The one joint of data and diffusion."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from synther import compute
from synther.data import endings, formats, spaces
from synther.data.calibration import Calibration, rebalanced
from synther.data.layout import Layout
from synther.data.scaling import Scaler, resolve_kinds
from synther.data.spool import Spool, Unspooled
from synther.data.transitions import Transitions
from synther.diffusion.blocks import BlockSampler
from synther.diffusion.config import SamplerConfig
from synther.diffusion.denoiser import Denoiser
from synther.diffusion.fit import fit
from synther.diffusion.likelihood import log_likelihood
from synther.diffusion.networks import Network
from synther.diffusion.start import ROUNDS, Moments, Start, match
from synther.diffusion.warm import rearranged
from synther.errors import ConfigError, DataError
from synther.model_file import FitRecord, Fitted
from synther.presets import Settings, preset
from synther.progress import Progress, Silent, resolve

log = logging.getLogger(__name__)

_CHUNK_ROWS = 1 << 16
_SHARD_BLOCKS = 16
PREVIEW_ROWS = 100_000
_CALIBRATION_SEED, _MATCHING_SEED = 2**31, 2**31 + 1  # streams that no ordinary seed shares
_MATCHING_ROWS = 100_000  # a deviation to a quarter of a per cent,
_MATCHING_BLOCKS = 32  # but no more than a CPU can make in minutes
_REBALANCING = 5  # likewise, beside those of diffusion/


class Synthesizer:
    """A generator of transitions.

        model = Synthesizer("paper").fit(real)
        fake = model.sample(5_000_000)

    `settings` is a preset's name or a `Settings`; further keywords change single options:
    `Synthesizer("laptop", fit={"steps": 5000}, sampler={"steps": 32})`.
    """

    def __init__(
        self,
        settings: str | Settings = "auto",
        *,
        device: str = "auto",
        precision: compute.Precision = "auto",
        seed: int = 0,
        **changes: Mapping[str, Any],
    ) -> None:
        self.device = compute.pick_device(device)
        self.precision = compute.pick_precision(precision, self.device)
        self.seed = seed
        if isinstance(settings, str):
            self.settings = preset(settings, gpu=self.device.type == "cuda", **changes)
        else:
            self.settings = settings.changed(**changes)
        self._fitted: Fitted | None = None

    @property
    def layout(self) -> Layout:
        """How rows and the matrix of the network belong together, with the thresholds of the model's own sampler."""
        thresholds = self._calibration(self.settings.sampler, Silent()).thresholds
        return self._model.layout.with_thresholds(thresholds)

    @property
    def scaler(self) -> Scaler:
        return self._model.scaler

    @property
    def network(self) -> Network:
        return self._model.network

    @property
    def record(self) -> FitRecord:
        return self._model.record

    @property
    def measured(self) -> dict[str, float]:
        """The measurement of the weights that were kept: the last one, or with early stopping the best."""
        history = self.record.history
        if self.settings.fit.patience is None:
            return history[-1]
        return min(history, key=lambda entry: entry["held_out"])

    @property
    def _model(self) -> Fitted:
        if self._fitted is None:
            raise ConfigError("this Synthesizer has not been fitted: call fit(transitions), or Synthesizer.load(path)")
        return self._fitted

    def fit(
        self,
        rows: Transitions,
        *,
        start: Synthesizer | None = None,
        held_out: np.ndarray[Any, np.dtype[np.bool_]] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        progress: Progress | bool = True,
    ) -> Self:
        """Learn the distribution of `rows`.

        With `start`, a fitted model of the same network, the weights begin as its. `held_out` (N,) says which rows to
        measure the loss on, without it a random share of them; rows that `start` has learned tell little.
        With a `checkpoint` path the work survives being killed: the same call goes on from it. The file is left there;
        remove it once the model is saved.
        """
        check_rows(rows)
        progress = resolve(progress)
        settings = self.settings
        layout = Layout.infer(rows, settings.data.coding, settings.data.spikes)
        packed = (layout.pack(chunk) for chunk in rows.chunks(_CHUNK_ROWS))
        scaler = Scaler.fit(packed, resolve_kinds(layout, settings.data.scaling), layout.names)
        scaled, rates = _scaled(rows, layout, scaler)
        with compute.working_on(self.device, "fit on a share of the rows, or on a CPU"):
            matrix = torch.from_numpy(scaled).to(self.device)
        result = fit(
            matrix,
            settings.network,
            settings.fit,
            settings.noise,
            seed=self.seed,
            precision=self.precision,
            start=None if start is None else self._weights_of(start, layout),
            held_out=None if held_out is None else torch.from_numpy(held_out),
            checkpoint=None if checkpoint is None else Path(checkpoint),
            progress=progress,
        )
        where, data = compute.describe(self.device), fingerprint(rows)
        record = FitRecord(len(rows), result.steps, result.seconds, where, self.seed, data, result.history)
        ending = endings.learn(rows) if settings.data.terminals == "decided" else None
        if ending is None and settings.data.terminals == "decided" and rows.terminal.any():
            log.info("no thresholds explain the terminals of these rows: they are generated")
        self._fitted = Fitted(layout, scaler, result.network, record, rates, Moments.of(matrix).cpu(), ending)
        self._sampler(settings.sampler, progress)
        self._calibration(settings.sampler, progress)
        return self

    def _weights_of(self, start: Synthesizer, layout: Layout) -> Network:
        """Another model's network for the columns of `layout`, which may have come or gone since."""
        if start.settings.network != self.settings.network:
            mine, other = self.settings.network, start.settings.network
            raise ConfigError(f"a fit of {mine} cannot start from one of {other}: expected the same network")
        before = {name: column for column, name in enumerate(start._model.layout.names)}
        return rearranged(start.network, [before.get(name) for name in layout.names]).to(self.device)

    def _calibration(self, config: SamplerConfig, progress: Progress) -> Calibration:
        """How two-valued columns, terminals above all, come as often as in the real rows. Each sampler has its own."""
        model = self._model
        if self.settings.data.threshold == "half" or not model.rates:
            return Calibration(model.layout.thresholds)
        if config not in model.calibrations:
            generated = self._raw_binaries(config, progress)
            terminal = next((column for column in model.rates if model.layout.names[column] == "terminal"), None)
            model.calibrations[config] = Calibration.fit(model.rates, generated, terminal)
        return model.calibrations[config]

    def _raw_binaries(self, config: SamplerConfig, progress: Progress) -> dict[int, np.ndarray[Any, Any]]:
        """Generated values of the two-valued columns before any threshold, enough of them to see the rarest.

        Where a tree decides about terminals, its decisions stand for their values.
        """
        model, sampler = self._model, self._sampler(config, progress)
        # 1,000 events tell a rate to 3 %. A flag that is set in next observations alone has none to find.
        rarest = min((min(rate, 1 - rate) for rate in model.rates.values() if 0 < rate < 1), default=1.0)
        most = max(65_536, 8 * sampler.block_rows)
        if config != self.settings.sampler:  # nobody who tries another sampler should wait as long as after a fit
            most //= 4
        wanted = min(1_000 / rarest, most)
        blocks = max(1, round(wanted / sampler.block_rows))
        columns = list(model.rates)
        generated = []
        with progress.phase("calibrate", blocks * sampler.block_rows) as phase:
            for block in range(blocks):
                raw = model.scaler.inverse(sampler.draw(_CALIBRATION_SEED, block).cpu().numpy())
                if model.ending is not None:
                    raw[:, model.layout.names.index("terminal")] = model.ending.decide(model.layout.unpack(raw))
                generated.append(raw[:, columns])
                phase.advance(sampler.block_rows)
        return dict(zip(columns, np.concatenate(generated).T, strict=True))

    def _sampler(self, config: SamplerConfig, progress: Progress) -> BlockSampler:
        model = self._model
        if config.matched and config not in model.starts:
            model.starts[config] = self._matched_start(config, progress)
        return self._block_sampler(config, model.starts.get(config))

    def _block_sampler(self, config: SamplerConfig, start: Start | None) -> BlockSampler:
        return BlockSampler(self._model.network, self.settings.noise, config, self.precision, start)

    def _matched_start(self, config: SamplerConfig, progress: Progress) -> Start:
        """The noise to begin from, so that rows have the real moments."""
        block_rows = compute.block_rows(self.device)
        blocks = min(-(-_MATCHING_ROWS // block_rows), _MATCHING_BLOCKS)

        with progress.phase("match", ROUNDS * blocks * block_rows) as phase:

            def generated(start: Start, number: int) -> Moments:
                sampler = self._block_sampler(config, start)
                drawn = []
                for block in range(number * blocks, (number + 1) * blocks):
                    drawn.append(sampler.draw(_MATCHING_SEED, block))
                    phase.advance(block_rows)
                return Moments.of(torch.cat(drawn)).cpu()

            return match(self._model.moments, generated)

    def _blocks(
        self, sampler: BlockSampler, calibration: Calibration, count: int, seed: int, first: int = 0
    ) -> Iterator[Transitions]:
        """The blocks from number `first` on that make up `count` rows, the last one cut."""
        scaler, layout = self._model.scaler, self._model.layout.with_thresholds(calibration.thresholds)
        for start in range(first * sampler.block_rows, count, sampler.block_rows):
            block = start // sampler.block_rows
            rows = layout.unpack(scaler.inverse(sampler.draw(seed, block).cpu().numpy()))
            if self._model.ending is not None:
                rows.terminal[:] = self._model.ending.decide(rows)
            draw = np.random.default_rng([_REBALANCING, seed, block])
            yield rows[rebalanced(rows.terminal, calibration.terminal_odds, draw)[: count - start]]

    def sample(
        self,
        count: int,
        *,
        seed: int = 0,
        sampler: SamplerConfig | None = None,
        progress: Progress | bool = True,
    ) -> Transitions:
        """`count` new rows in memory; the same rows for the same seed, and the first of them for a smaller count."""
        count = check_count(count)
        progress = resolve(progress)
        blocks = self._sampler(sampler or self.settings.sampler, progress)
        calibration = self._calibration(blocks.config, progress)
        arrays: dict[str, Any] = {}
        filled = 0
        with progress.phase("sample", count) as phase:
            for block in self._blocks(blocks, calibration, count, seed):
                for name, array in block.arrays().items():
                    if name not in arrays:
                        arrays[name] = np.empty((count, *array.shape[1:]), array.dtype)
                    arrays[name][filled : filled + len(block)] = array
                filled += len(block)
                phase.advance(len(block))
        return self._dressed(arrays)

    def _dressed(self, arrays: Mapping[str, Any]) -> Transitions:
        """Generated arrays as rows that know their spaces."""
        layout = self._model.layout
        known: Any = {"action_space": layout.action_space, "observation_space": layout.observation_space}
        return Transitions(**arrays, **known, env_id=layout.env_id)

    def sample_to(
        self,
        path: str | os.PathLike[str],
        count: int,
        *,
        seed: int = 0,
        sampler: SamplerConfig | None = None,
        progress: Progress | bool = True,
    ) -> Transitions:
        """Write `count` new rows to a file, of any size, in constant memory; return the first 100,000 to look at.

        Rows gather in a folder `PATH.partial`; an interrupted call goes on from what is there. They are the rows that
        `sample` gives.
        """
        count = check_count(count)
        formats.check_rows_target(path)
        progress = resolve(progress)
        final = Path(path).expanduser()
        blocks = self._sampler(sampler or self.settings.sampler, progress)
        calibration = self._calibration(blocks.config, progress)
        identity = {
            "model": self._model.digest(),
            "calibration": calibration.to_json(),
            "sampler": asdict(blocks.config),
            "precision": blocks.precision,
            "block_rows": blocks.block_rows,
            "seed": seed,
            "count": count,
        }
        spool = Spool(partial_folder(final), identity)
        if spool.count:
            log.info("going on after %d rows in %s", len(spool), spool.folder)
        gathered: list[Transitions] = []
        with progress.phase("sample", count, len(spool)) as phase:
            for block in self._blocks(blocks, calibration, count, seed, first=spool.count * _SHARD_BLOCKS):
                gathered.append(block)
                phase.advance(len(block))
                if len(gathered) == _SHARD_BLOCKS:
                    spool.append(Transitions.concatenate(gathered))
                    gathered = []
        if gathered:
            spool.append(Transitions.concatenate(gathered))
        with progress.phase("write", count) as phase:
            rows = Unspooled(spool, self._dressed, phase.advance, keep=PREVIEW_ROWS)
            formats.write(final, rows)
        spool.remove()
        return rows.first()

    def trace(self, count: int, *, seed: int = 0) -> Iterator[tuple[float, np.ndarray[Any, Any], Transitions]]:
        """Rows on their way from noise to data, for looking at: at each noise level of the model's sampler the rows as
        the network sees them, a matrix (count, D) of deviation 1, and what they would be as transitions."""
        sampler = self._sampler(self.settings.sampler, Silent())
        layout, scaler = self.layout, self.scaler
        for sigma, rows in sampler.trace(seed, min(check_count(count), sampler.block_rows)):
            matrix = rows.float().cpu().numpy()
            yield sigma, matrix, layout.unpack(scaler.inverse(matrix))

    def matrix(self, rows: Transitions) -> np.ndarray[Any, Any]:
        """`rows` as the network sees them, without noise. (N, D)"""
        return self.scaler.transform(self.layout.pack(rows))

    def log_likelihood(self, rows: Transitions, *, steps: int = 64) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Nats of each row under the model, in the rows' own units (discrete columns count as real ones). (N,)

        Scaling by quantiles or blend follows the rows it was fitted on closely: where these were few thousand, it makes
        them look more likely than fresh ones, by some hundredths of a nat a column.
        """
        model = self._model
        denoise = Denoiser(model.network, self.settings.noise)
        parts = []
        with compute.matmul_precision("float32"):
            for chunk in rows.chunks(4096):
                matrix = model.layout.pack(chunk)
                scaled = torch.from_numpy(model.scaler.transform(matrix).astype(np.float32)).to(self.device)
                nats = log_likelihood(denoise, scaled, self.settings.noise, steps)
                parts.append(nats.double().cpu().numpy() + model.scaler.log_slope(matrix))
        return np.concatenate(parts)

    def save(self, path: str | os.PathLike[str]) -> None:
        """One safetensors file with everything that `load` needs."""
        self._sampler(self.settings.sampler, Silent())
        calibration = self._calibration(self.settings.sampler, Silent())
        self._model.save(path, self.settings, calibration)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, device: str = "auto", precision: compute.Precision = "auto"
    ) -> Synthesizer:
        """A saved model, ready to sample, on any device."""
        settings, fitted = Fitted.load(path)
        model = cls(settings, device=device, precision=precision, seed=fitted.record.seed)
        fitted.network.to(model.device)
        model._fitted = fitted
        return model


def partial_folder(path: Path) -> Path:
    """Where `sample_to` gathers the rows of `path` until they are all there."""
    return path.with_name(path.name + ".partial")


def fingerprint(rows: Transitions) -> str:
    """A digest of the values and spaces of `rows`, to tell whether a model or a checkpoint belongs to them."""
    known = [spaces.to_json(rows.observation_space), spaces.to_json(rows.action_space), rows.env_id]
    digest = hashlib.sha256(json.dumps(known).encode())
    for name, array in rows.arrays().items():
        digest.update(f"{name}{array.shape}{array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _scaled(
    rows: Transitions, layout: Layout, scaler: Scaler
) -> tuple[np.ndarray[Any, np.dtype[np.float32]], dict[int, float]]:
    """The matrix that the network is fitted on (N, D), and how often each two-valued column is set."""
    matrix = np.empty((len(rows), layout.width), np.float32)
    binary = list(layout.binary_columns)
    ones = np.zeros(len(binary))
    for number, chunk in enumerate(rows.chunks(_CHUNK_ROWS)):
        packed = layout.pack(chunk)
        ones += packed[:, binary].sum(0)
        start = number * _CHUNK_ROWS
        with np.errstate(over="ignore"):
            matrix[start : start + len(chunk)] = scaler.transform(packed)
    finite = np.isfinite(matrix).all(0)
    if not finite.all():
        name = layout.names[int(np.argmin(finite))]
        raise DataError(f"{name} is too large for float32 once scaled: choose another scaling for it, or divide it")
    return matrix, dict(zip(binary, (ones / len(rows)).tolist(), strict=True))


def check_rows(rows: Transitions) -> None:
    """Refuse rows from which nothing can be learned."""
    if not isinstance(rows, Transitions):
        raise DataError(
            f"expected Transitions, got {type(rows).__name__}: read(path) and Transitions.of(arrays) make them"
        )
    if len(rows) < 2:
        raise DataError(f"a generator cannot be fitted on {len(rows)} row: expected at least 2, better thousands")
    if all((array == array[:1]).all() for name, array in rows.arrays().items() if name != "timeout"):
        raise DataError(f"all {len(rows):,} rows are equal: there is no distribution to learn")


def check_count(count: int) -> int:
    """A number of rows as an int, 5e6 included; refuse what cannot be drawn."""
    if not isinstance(count, (int, float, np.number)) or not count >= 1 or count % 1:
        raise ConfigError(f"the number of samples must be a whole number and at least 1, got {count!r}")
    return int(count)

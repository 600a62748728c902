"""`Synthesizer`: fit on experience, sample more of it, save and load. The one joint of data and diffusion."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from synther import compute
from synther.data import formats
from synther.data.calibration import calibrate, odds_ratio, rebalanced
from synther.data.layout import Layout
from synther.data.scaling import Scaler, resolve_kinds
from synther.data.spool import Spool
from synther.data.transitions import Transitions
from synther.diffusion.blocks import BlockSampler
from synther.diffusion.config import SamplerConfig
from synther.diffusion.denoiser import Denoiser
from synther.diffusion.fit import fit
from synther.diffusion.likelihood import log_likelihood
from synther.diffusion.networks import Network
from synther.durable import replacing
from synther.errors import ConfigError, DataError, FormatError
from synther.presets import Settings, preset
from synther.progress import Phase, Progress, resolve

log = logging.getLogger(__name__)

FORMAT = "synther-model-1"
_CHUNK_ROWS = 1 << 16
_SHARD_BLOCKS = 16
PREVIEW_ROWS = 100_000
_CALIBRATION_SEED = 2**31  # a stream that no ordinary seed shares
_REBALANCING = 5  # likewise, beside those of diffusion/


@dataclass
class FitRecord:
    """What is worth knowing about a fit afterwards."""

    rows: int
    steps: int
    seconds: float
    device: str
    seed: int
    data: str
    """Fingerprint of the rows."""
    history: list[dict[str, float]] = field(default_factory=list)


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
        self._fitted: _Fitted | None = None

    @property
    def layout(self) -> Layout:
        return self._model.layout

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
    def _model(self) -> _Fitted:
        if self._fitted is None:
            raise ConfigError("this Synthesizer has not been fitted: call fit(transitions), or Synthesizer.load(path)")
        return self._fitted

    def fit(
        self,
        rows: Transitions,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        progress: Progress | bool = True,
    ) -> Self:
        """Learn the distribution of `rows`.

        With a `checkpoint` path the work survives being killed: the same call goes on from it. The file is left there;
        remove it once the model is saved.
        """
        if len(rows) < 2:
            raise DataError(f"a generator cannot be fitted on {len(rows)} row: expected at least 2, better thousands")
        progress = resolve(progress)
        settings = self.settings
        layout = Layout.infer(rows, settings.data.coding)
        if layout.width == 0:
            raise DataError(f"all {len(rows):,} rows are equal: there is no distribution to learn")
        packed = (layout.pack(chunk) for chunk in rows.chunks(_CHUNK_ROWS))
        scaler = Scaler.fit(packed, resolve_kinds(layout, settings.data.scaling), layout.names)
        matrix = torch.from_numpy(_scaled(rows, layout, scaler)).to(self.device)
        result = fit(
            matrix,
            settings.network,
            settings.fit,
            settings.noise,
            seed=self.seed,
            precision=self.precision,
            checkpoint=None if checkpoint is None else Path(checkpoint),
            progress=progress,
        )
        record = FitRecord(
            len(rows),
            result.steps,
            result.seconds,
            _describe(self.device),
            self.seed,
            fingerprint(rows),
            result.history,
        )
        self._fitted = _Fitted(layout, scaler, result.network, record)
        if settings.data.threshold == "calibrated" and layout.binary_columns:
            self._calibrate(rows, progress)
        return self

    def _calibrate(self, rows: Transitions, progress: Progress) -> None:
        """See to it that two-valued columns, terminals above all, are set as often as in the real rows."""
        model = self._model
        columns = list(model.layout.binary_columns)
        real = np.concatenate([model.layout.pack(chunk)[:, columns] for chunk in rows.chunks(_CHUNK_ROWS)])
        rates = real.mean(0)
        # A flag that only next observations carry is never set in observations: that column has nothing to calibrate.
        rarest = float(np.minimum(rates, 1 - rates).min(where=(rates > 0) & (rates < 1), initial=1.0))
        sampler = self._sampler()
        wanted = min(400 / rarest, max(32_768, 8 * sampler.block_rows))  # 400 events: the rate is known to 5 %
        blocks = max(1, round(wanted / sampler.block_rows))
        generated = []
        with progress.phase("calibrate", blocks * sampler.block_rows) as phase:
            for block in range(blocks):
                raw = model.scaler.inverse(sampler.draw(_CALIBRATION_SEED, block).cpu().numpy())
                generated.append(raw[:, columns])
                phase.advance(sampler.block_rows)
        drawn = np.concatenate(generated)
        thresholds = {column: calibrate(real[:, i], drawn[:, i]) for i, column in enumerate(columns)}
        model.layout = model.layout.with_thresholds(thresholds)
        for i, column in enumerate(columns):
            if model.layout.names[column] == "terminal":
                model.terminal_odds = odds_ratio(real[:, i], drawn[:, i] > thresholds[column])

    def _sampler(self, config: SamplerConfig | None = None) -> BlockSampler:
        return BlockSampler(self._model.network, self.settings.noise, config or self.settings.sampler, self.precision)

    def _blocks(self, sampler: BlockSampler, count: int, seed: int, first: int = 0) -> Iterator[Transitions]:
        """The blocks from number `first` on that make up `count` rows, the last one cut."""
        model = self._model
        for start in range(first * sampler.block_rows, count, sampler.block_rows):
            block = start // sampler.block_rows
            rows = model.layout.unpack(model.scaler.inverse(sampler.draw(seed, block).cpu().numpy()))
            draw = np.random.default_rng([_REBALANCING, seed, block])
            yield rows[rebalanced(rows.terminal, model.terminal_odds, draw)[: count - start]]

    def sample(
        self,
        count: int,
        *,
        seed: int = 0,
        sampler: SamplerConfig | None = None,
        progress: Progress | bool = True,
    ) -> Transitions:
        """`count` new rows in memory; the same rows for the same seed, and the first of them for a smaller count."""
        check_count(count)
        arrays: dict[str, Any] = {}
        filled = 0
        with resolve(progress).phase("sample", count) as phase:
            for block in self._blocks(self._sampler(sampler), count, seed):
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
        spaces: Any = {"action_space": layout.action_space, "observation_space": layout.observation_space}
        return Transitions(**arrays, **spaces, env_id=layout.env_id)

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
        check_count(count)
        formats.check_rows_target(path)
        progress = resolve(progress)
        final = Path(path).expanduser()
        blocks = self._sampler(sampler)
        identity = {
            "model": self._digest(),
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
            for block in self._blocks(blocks, count, seed, first=spool.count * _SHARD_BLOCKS):
                gathered.append(block)
                phase.advance(len(block))
                if len(gathered) == _SHARD_BLOCKS:
                    spool.append(Transitions.concatenate(gathered))
                    gathered = []
        if gathered:
            spool.append(Transitions.concatenate(gathered))
        with progress.phase("write", count) as phase:
            taken = _Taken(spool, phase, self._dressed)
            formats.write(final, taken)
        spool.remove()
        return taken.first()

    def log_likelihood(self, rows: Transitions, *, steps: int = 64) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Nats of each row under the model, in the rows' own units (discrete columns count as real ones). (N,)"""
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
        model = self._model
        metadata = {
            "format": FORMAT,
            "settings": json.dumps(self.settings.to_json()),
            "layout": json.dumps(model.layout.to_json()),
            "scaler": json.dumps(model.scaler.to_json()),
            "record": json.dumps(asdict(model.record)),
            "terminal_odds": json.dumps(model.terminal_odds),
        }
        with replacing(path) as beside:
            save_file(self._tensors(), beside, metadata)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, device: str = "auto", precision: compute.Precision = "auto"
    ) -> Synthesizer:
        """A saved model, ready to sample, on any device."""
        if not Path(path).is_file():
            raise FormatError(f"{path}: no such file; expected a model written by Synthesizer.save or `synther fit`")
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
        except (SafetensorError, OSError) as error:
            raise FormatError(
                f"{path} is no safetensors file, or a truncated one ({error}): fit the model again"
            ) from None
        if metadata.get("format") != FORMAT:
            found = metadata.get("format", "no format")
            raise FormatError(f"{path} is no SynthER model: expected format {FORMAT!r} in its metadata, got {found!r}")
        try:
            settings = Settings.from_json(json.loads(metadata["settings"]))
            layout = Layout.from_json(json.loads(metadata["layout"]))
            scaler = Scaler.from_json(json.loads(metadata["scaler"]))
            record = FitRecord(**json.loads(metadata["record"]))
            terminal_odds = float(json.loads(metadata["terminal_odds"]))
            network = Network(layout.width, settings.network)
            network.load_state_dict(tensors)
            if len(scaler.kinds) != layout.width or not 0 < terminal_odds < np.inf:
                raise ValueError("its parts do not fit each other")
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise FormatError(f"{path} is a damaged SynthER model ({error}): fit it again") from error
        model = cls(settings, device=device, precision=precision, seed=record.seed)
        network = network.to(model.device).requires_grad_(False)
        model._fitted = _Fitted(layout, scaler, network, record, terminal_odds)
        return model

    def _tensors(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self._model.network.state_dict().items()}

    def _digest(self) -> str:
        model = self._model
        described = [model.layout.to_json(), model.scaler.to_json(), model.terminal_odds]
        digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
        for name, tensor in sorted(self._tensors().items()):
            digest.update(name.encode())
            digest.update(tensor.cpu().numpy().tobytes())
        return digest.hexdigest()


@dataclass
class _Fitted:
    layout: Layout
    scaler: Scaler
    network: Network
    record: FitRecord
    terminal_odds: float = 1.0
    """By how much terminal rows are to be taken more often than the network makes them."""


class _Taken:
    """A spool on its way into a file: its rows with their spaces, progress reported, the first rows remembered."""

    def __init__(self, spool: Spool, phase: Phase, dress: Callable[[Mapping[str, Any]], Transitions]) -> None:
        self.spool, self.phase, self.dress = spool, phase, dress
        self.done = 0
        self.kept: list[Transitions] = []

    def __len__(self) -> int:
        return len(self.spool)

    def chunks(self, rows: int) -> Iterator[Transitions]:
        start = 0
        for arrays in self.spool.shards():
            chunk = self.dress(arrays)
            if start == sum(map(len, self.kept)) < PREVIEW_ROWS:
                self.kept.append(chunk[: PREVIEW_ROWS - start])
            yield chunk
            start += len(chunk)
            if start > self.done:  # some formats go through the rows once for each field
                self.phase.advance(start - self.done)
                self.done = start

    def first(self) -> Transitions:
        return Transitions.concatenate(self.kept)


def partial_folder(path: Path) -> Path:
    """Where `sample_to` gathers the rows of `path` until they are all there."""
    return path.with_name(path.name + ".partial")


def fingerprint(rows: Transitions) -> str:
    """A digest of the values of `rows`, to tell whether a model or a checkpoint belongs to them."""
    digest = hashlib.sha256()
    for name, array in rows.arrays().items():
        digest.update(f"{name}{array.shape}{array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _scaled(rows: Transitions, layout: Layout, scaler: Scaler) -> np.ndarray[Any, np.dtype[np.float32]]:
    matrix = np.empty((len(rows), layout.width), np.float32)
    for number, chunk in enumerate(rows.chunks(_CHUNK_ROWS)):
        start = number * _CHUNK_ROWS
        matrix[start : start + len(chunk)] = scaler.transform(layout.pack(chunk))
    return matrix


def check_count(count: int) -> None:
    """Refuse a number of rows that cannot be drawn."""
    if count < 1:
        raise ConfigError(f"the number of samples must be at least 1, got {count}")


def _describe(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"

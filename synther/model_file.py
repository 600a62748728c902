"""`Fitted`: all parts of a fitted model, and its file. The file is safetensors: arrays are its tensors, and everything
else is JSON in its metadata."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from synther.calibration.marginals import RANKS, Quantiles, corrected_count
from synther.calibration.rare_rows import RareRows
from synther.calibration.rates import Calibration, Weights
from synther.compute import by_part, named, read_tensors
from synther.conditions import Conditions
from synther.data import layout_json
from synther.data.layout import Layout
from synther.data.scaling import Scaler
from synther.data.termination import Regions, TerminationTree, UsualReward
from synther.data.transitions import Transitions
from synther.diffusion.config import DISTILLED, NetworkConfig, SamplerConfig
from synther.diffusion.networks import Network
from synther.diffusion.start import Moments, Start
from synther.durable import replacing
from synther.errors import FormatError
from synther.presets import Settings
from synther.relevance.discrete import DiscreteLaw, Reweighting
from synther.relevance.dynamics import Ensemble
from synther.row_table import RowTable
from synther.schema import checked, parse

FORMAT = "synther-model-3"
_OPTIONAL = {"table", "ensemble", "discrete", "reweighting", "student", "student_start", "student_reweighting"}
"""Groups of tensors of parts that a model may lack."""
_MOST_CALLS = 100_000
"""Maximum number of network calls per row of a sampler in a file. With more, sampling would never end."""


@dataclass
class FitRecord:
    """Information about a fit that is saved with the model."""

    rows: int
    steps: int
    seconds: float
    device: str
    seed: int
    data: str
    """Fingerprint of the real rows."""
    history: list[dict[str, float]] = field(default_factory=list)


@dataclass
class Student:
    """A distilled network that generates a row in a few calls, and what was measured for its sampler."""

    network: Network
    sampler: SamplerConfig
    seed: int
    steps: int
    seconds: float
    history: list[dict[str, float]] = field(default_factory=list)
    starts: dict[SamplerConfig, Start] = field(default_factory=dict)
    calibrations: dict[SamplerConfig, Calibration] = field(default_factory=dict)
    reweightings: dict[SamplerConfig, Reweighting] = field(default_factory=dict)
    pilots: dict[SamplerConfig, Transitions] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return everything but the tensors as JSON."""
        plain = {name: getattr(self, name) for name in ("seed", "steps", "seconds", "history")}
        calibration = self.calibrations.get(self.sampler)
        described = {
            "sampler": asdict(self.sampler),
            "calibration": None if calibration is None else calibration.to_json(),
        }
        return described | plain

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the student by their names in the file."""
        tensors = named("student", _weights(self.network))
        if self.sampler in self.reweightings:
            tensors |= named("student_reweighting", self.reweightings[self.sampler].tensors())
        if self.sampler in self.starts:
            tensors |= named("student_start", vars(self.starts[self.sampler]))
        return tensors

    @classmethod
    def restored(cls, network: Network, entry: Mapping[str, Any], start: Mapping[str, Tensor] | None) -> Student:
        """Return the student from its network, its JSON `entry`, and the tensors of its `Start`, if it has one."""
        stored = checked(entry, _StudentEntry, "student")
        sampler = SamplerConfig(**stored["sampler"])
        if sampler.kind != DISTILLED or sampler.matched != (start is not None):
            raise ValueError("the sampler of its student does not match the other parts of the student")
        student = cls(network, sampler, *(stored[name] for name in ("seed", "steps", "seconds", "history")))
        if stored["calibration"] is not None:
            student.calibrations[sampler] = Calibration.from_json(stored["calibration"])
        if start is not None:
            student.starts[sampler] = Start(**start)
        return student


@dataclass
class Fitted:
    """All parts of a fitted model."""

    layout: Layout
    scaler: Scaler
    network: Network
    record: FitRecord
    rates: tuple[float, ...]
    """Share of the real rows in which each flag of the layout is set."""
    moments: Moments
    """Mean and covariance of the scaled real rows."""
    ending: TerminationTree | None = None
    """Decides whether a row is terminal. None if the network generates terminals."""
    usual_reward: UsualReward | None = None
    """Decides which rows have the usual reward. None if the network generates this."""
    regions: Regions | None = None
    """How often terminals, and rewards of few values, occur in each region of the state space. None if a tree decides
    them."""
    discrete: DiscreteLaw | None = None
    """The probabilities of the discrete values in real rows, except for values that a tree decides or weights."""
    table: RowTable | None = None
    """The table from which rows are drawn, in a world of few states and actions. None if the network generates rows."""
    rare: RareRows | None = None
    """Rare rows. The network generates more of them than there are among the real rows."""
    conditions: Conditions = field(default_factory=Conditions)
    """The conditions that are inputs of the network."""
    shares: Weights = ()
    """The share of each value among the real rows, for each group of columns with few values."""
    quantiles: Quantiles = ()
    """Quantiles of columns of the scaled real rows. Empty if generated columns are not corrected to have them."""
    start_quantiles: Quantiles = ()
    """The same quantiles among episode starts. If they are not empty, `quantiles` are those of all other rows."""
    starts: dict[SamplerConfig, Start] = field(default_factory=dict)
    """The distribution of the starting noise, for samplers with `matched`."""
    calibrations: dict[SamplerConfig, Calibration] = field(default_factory=dict)
    reweightings: dict[SamplerConfig, Reweighting] = field(default_factory=dict)
    """How rows are weighted, for calibrated samplers with wrong probabilities of discrete values."""
    ensemble: Ensemble | None = None
    """Dynamics models that recognise inconsistent rows. None without `fit(..., ensemble=True)`."""
    pilots: dict[SamplerConfig, Transitions] = field(default_factory=dict)
    """Some generated rows of each sampler, with which the filter of `keep` is fitted."""
    student: Student | None = None
    """The distilled network. None if the model was not distilled."""

    def distilled(self) -> Fitted:
        """Return the same model with the student in place of the network."""
        student = self.student
        assert student is not None
        names = ("network", "starts", "calibrations", "reweightings", "pilots")
        replaced: Any = {name: getattr(student, name) for name in names}
        # If the network has the right probabilities of discrete values, those of its student are not checked.
        return replace(self, **replaced, discrete=self.discrete if self.reweightings else None, student=None)

    def save(self, path: str | os.PathLike[str], settings: Settings, calibration: Calibration) -> None:
        """Write the model to a file. `calibration` belongs to the sampler in `settings`."""
        entries: dict[str, Any] = {
            "settings": settings.to_json(),
            "layout": layout_json.to_json(self.layout),
            "scaler": self.scaler.to_json(),
            "record": asdict(self.record),
            "rates": self.rates,
            "shares": self.shares,
            "quantiles": self.quantiles,
            "start_quantiles": self.start_quantiles,
            "ending": self.ending and self.ending.to_json(),
            "usual_reward": self.usual_reward and self.usual_reward.to_json(),
            "regions": self.regions and self.regions.to_json(),
            "calibration": calibration.to_json(),
            "conditions": self.conditions.to_json(),
        }
        if self.rare is not None:
            entries["rare"] = self.rare.to_json()
        if self.discrete is not None:
            entries["discrete"] = self.discrete.skipped
        if self.ensemble is not None:
            entries["ensemble"] = self.ensemble.to_json()
        tensors = self._tensors()
        if self.student is not None:
            entries["student"] = self.student.to_json()
            tensors |= self.student.tensors()
        if settings.sampler in self.reweightings:
            tensors |= named("reweighting", self.reweightings[settings.sampler].tensors())
        if settings.sampler in self.starts:
            tensors |= named("start", vars(self.starts[settings.sampler]))
        metadata = {name: json.dumps(entry) for name, entry in entries.items()}
        with replacing(path) as temporary:
            temporary.write_bytes(save(tensors, {"format": FORMAT, **metadata}))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> tuple[Settings, Fitted]:
        """Read the settings and the model from a file, to the CPU. Raise a `FormatError` with the reason if the file is
        not a valid model."""
        if not Path(path).is_file():
            fault = " is a folder" if Path(path).is_dir() else ": no such file"
            raise FormatError(f"{path}{fault}; expected a model written by Synthesizer.save or `synther fit`")
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                tensors = read_tensors(file)
        except (SafetensorError, OSError) as error:
            raise FormatError(
                f"{path} is not a safetensors file, or it is truncated ({error}): pass a model, or fit it again"
            ) from None
        if metadata.get("format") != FORMAT:
            found = metadata.get("format", "no format")
            if found.startswith(FORMAT.rpartition("-")[0]):
                raise FormatError(
                    f"{path} is a model of another version of SynthER (format {found}, expected {FORMAT}): load it "
                    "with that version, or fit it again"
                )
            raise FormatError(
                f"{path} is not a SynthER model: expected format {FORMAT!r} in its metadata, got {found!r}"
            )
        try:
            return _assembled(metadata, tensors)
        except Exception as error:  # parts that do not match can raise nearly any exception
            raise FormatError(
                f"{path} is a damaged SynthER model, or was saved by a newer version ({error}): fit it again, or "
                "update SynthER"
            ) from error

    def digest(self) -> str:
        """Return a hash of everything that affects generated rows."""
        parts = (self.scaler, self.ending, self.usual_reward, self.regions, self.rare)
        described: list[Any] = [layout_json.to_json(self.layout), *(part and part.to_json() for part in parts)]
        if self.conditions.count:
            described.append(self.conditions.to_json())
        digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
        for name, tensor in sorted(self._tensors().items()):
            digest.update(name.encode())
            digest.update(tensor.cpu().numpy().tobytes())
        return digest.hexdigest()

    def _tensors(self) -> dict[str, Tensor]:
        """Return the tensors of everything but the student and the settings' sampler, by their names in the file."""
        tensors = named("network", _weights(self.network)) | named("moments", vars(self.moments))
        if self.discrete is not None:
            tensors |= named("discrete", self.discrete.tensors())
        if self.ensemble is not None:
            tensors |= named("ensemble", self.ensemble.tensors())
        if self.table is not None:
            tensors |= named("table", {name: torch.from_numpy(each) for name, each in self.table.arrays().items()})
        return tensors


class _StudentEntry(TypedDict):
    sampler: dict[str, Any]
    seed: int
    steps: int
    seconds: float
    history: list[dict[str, float]]
    calibration: Any


def _check_network(config: NetworkConfig, columns: int, weights: Mapping[str, Tensor]) -> None:
    """Refuse settings that do not match the stored network. This is checked before a network is built, because the
    settings of a damaged file could name any size."""
    rows = config.embedding if config.squeeze else max(config.embedding, columns)
    expected = {
        "block_weight": (config.depth, config.width, config.width),
        "row_in.weight": (rows, columns),
        "frequencies": (config.frequencies,),
    }
    for name, shape in expected.items():
        if tuple(weights[name].shape) != shape:
            raise ValueError(f"expected network.{name} of shape {shape}, got {tuple(weights[name].shape)}")


def _assembled(metadata: dict[str, str], tensors: dict[str, Tensor]) -> tuple[Settings, Fitted]:
    """Build the model from the metadata and tensors of a file, and check that all parts match."""

    def stored(name: str, kind: Any = Any, otherwise: str | None = None) -> Any:
        """Return an entry of the metadata. `otherwise` is its JSON in files of earlier versions, which do not have
        it."""
        text = metadata.get(name, otherwise)
        if text is None:
            raise FormatError(f"its metadata has no {name}")
        return parse(text, kind, name)

    def part(name: str, kind: Any, otherwise: str | None = None) -> Any:
        """Return a part of the model, or None if the model does not have it."""
        entry = stored(name, otherwise=otherwise)
        return None if entry is None else kind.from_json(entry)

    settings = Settings.from_json(stored("settings", dict[str, dict[str, Any]]))
    sampler = settings.sampler
    if sampler.network_calls > _MOST_CALLS:
        raise FormatError(f"expected a sampler of at most {_MOST_CALLS:,} network calls, got {sampler.network_calls:,}")
    groups = by_part(tensors)
    if groups.keys() - _OPTIONAL != {"network", "moments", *(["start"] if sampler.matched else [])}:
        raise ValueError(f"unexpected groups of tensors: {', '.join(groups)}")
    layout, scaler = layout_json.from_json(stored("layout")), Scaler.from_json(stored("scaler"))
    conditions = part("conditions", Conditions, "null") or Conditions()
    fitted = Fitted(
        layout,
        scaler,
        _network(layout, settings, conditions, groups["network"]),
        stored("record", FitRecord),
        stored("rates", tuple[float, ...]),
        Moments(**groups["moments"]),
        ending=part("ending", TerminationTree),
        usual_reward=part("usual_reward", UsualReward),
        regions=part("regions", Regions, "null"),
        rare=part("rare", RareRows, "null"),
        conditions=conditions,
        shares=stored("shares", Weights, "[]"),
        quantiles=stored("quantiles", Quantiles, "[]"),
        start_quantiles=stored("start_quantiles", Quantiles, "[]"),
        calibrations={sampler: Calibration.from_json(stored("calibration"))},
    )
    if "start" in groups:
        fitted.starts[sampler] = Start(**groups["start"])
    if "table" in groups:
        fitted.table = RowTable(**{name: tensor.numpy() for name, tensor in groups["table"].items()})
    if "ensemble" in groups:
        fitted.ensemble = Ensemble.restored(layout, stored("ensemble"), groups["ensemble"])
    if ("student" in groups) != ("student" in metadata):
        raise ValueError("a student needs both tensors and metadata, and it has only one of them")
    if "student" in groups:
        network = _network(layout, settings, conditions, groups["student"])
        fitted.student = Student.restored(network, stored("student"), groups.get("student_start"))
    if "discrete" in groups:
        fitted.discrete = DiscreteLaw.restored(layout, stored("discrete", tuple[str, ...]), groups["discrete"])
        if "reweighting" in groups:
            fitted.reweightings[sampler] = Reweighting.restored(fitted.discrete, groups["reweighting"])
        if "student_reweighting" in groups and fitted.student is not None:
            reweighting = Reweighting.restored(fitted.discrete, groups["student_reweighting"])
            fitted.student.reweightings[fitted.student.sampler] = reweighting
    _check(fitted)
    _try(fitted)
    return settings, fitted


def _weights(network: Network) -> dict[str, Tensor]:
    """Return copies of the weights of a network, by name."""
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


def _check(fitted: Fitted) -> None:
    """Raise an error if the parts of a model from a file have other columns than its layout."""
    layout, moments = fitted.layout, fitted.moments
    width, flags, classes = layout.width, len(layout.flag_names), layout.class_counts
    if {len(fitted.scaler.kinds), len(moments.mean), *moments.covariance.shape} != {width}:
        raise ValueError("its layout, scaler and moments have different numbers of columns")
    if len(fitted.rates) != flags:
        raise ValueError("its rates do not match its flags")
    if fitted.shares and tuple(map(len, fitted.shares)) != classes:
        raise ValueError("its shares of values do not match its columns")
    corrected = corrected_count(layout, fitted.scaler)
    for quantiles in (fitted.quantiles, fitted.start_quantiles):
        if len(quantiles) not in (0, corrected) or {*map(len, quantiles)} - {0, len(RANKS)}:
            raise ValueError("its quantiles do not match its columns")
    observed, rare = layout.field_widths["observation"], fitted.rare
    if rare is not None and (len(rare.rates) != flags or max(rare.moves, default=-1) >= observed):
        raise ValueError("its rare rows do not match its columns")
    for start in fitted.starts.values():
        if start.matrix.shape != (width, width) or start.shift.shape != (width,):
            raise ValueError("its starting noise does not match its columns")
    regions = None if fitted.regions is None else [len(shares) for shares in fitted.regions.shares]
    of_student = {} if fitted.student is None else fitted.student.calibrations
    for calibration in (*fitted.calibrations.values(), *of_student.values()):
        if len(calibration.thresholds) != flags:
            raise ValueError("its thresholds do not match its flags")
        if calibration.weights and tuple(map(len, calibration.weights)) != classes:
            raise ValueError("its weights of values do not match its columns")
        if len(calibration.drawn) not in (0, len(layout.following)):
            raise ValueError("its calibration of outcomes from tables does not match its columns")
        if calibration.regions and [len(region) for region in calibration.regions] != regions:
            raise ValueError("its weights of regions do not match its regions")
        if any(not 0 <= one.column < width for one in calibration.every_correction):
            raise ValueError("its corrections do not match its columns")


def _network(layout: Layout, settings: Settings, conditions: Conditions, weights: Mapping[str, Tensor]) -> Network:
    """Return the network with these weights."""
    _check_network(settings.network, layout.width, weights)
    with torch.random.fork_rng(devices=[]):  # the initial weights are replaced, so they must not use up random numbers
        network = Network(layout.width, settings.network, conditions.count).requires_grad_(False)
    network.load_state_dict(weights)
    return network


def _try(fitted: Fitted) -> None:
    """Decode two rows of zeros with everything that comes after the network. This raises if parts do not match."""
    with np.errstate(all="ignore"):
        raw = fitted.scaler.inverse(np.zeros((2, fitted.layout.width)))
        rows = fitted.layout.unpack(np.nan_to_num(raw, posinf=0.0, neginf=0.0))
        if fitted.ending is not None:
            fitted.ending.decide(rows)
        if fitted.usual_reward is not None:
            fitted.usual_reward.tree.decide(rows)
        if fitted.regions is not None:
            fitted.regions.places(rows)
        if fitted.discrete is not None:
            fitted.discrete.log_likelihood(rows)
        if fitted.table is not None:
            fitted.table.draw(2, fitted.layout, np.random.default_rng(0))

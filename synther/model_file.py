"""A fitted model and the one file that carries it: safetensors weights, with everything else in the metadata."""

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

from synther.conditions import Conditions
from synther.data import layout_json
from synther.data.calibration import Calibration, Weights
from synther.data.layout import Layout
from synther.data.marginals import RANKS, Quantiles, corrected_count
from synther.data.payouts import Payouts
from synther.data.row_table import RowTable
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
from synther.schema import checked, parse

FORMAT = "synther-model-3"
_MOST_CALLS = 100_000
"""Of the network for a row: more would never end."""


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


@dataclass
class Student:
    """A network that takes a few calls for a row, and what its sampler needs to know."""

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
        """All but the tensors."""
        plain = {name: getattr(self, name) for name in ("seed", "steps", "seconds", "history")}
        calibration = self.calibrations.get(self.sampler)
        own = {"sampler": asdict(self.sampler), "calibration": None if calibration is None else calibration.to_json()}
        return own | plain

    def tensors(self) -> dict[str, Tensor]:
        start = self.starts.get(self.sampler)
        found = {f"student.{name}": tensor.clone() for name, tensor in self.network.state_dict().items()}
        if self.sampler in self.reweightings:
            own = self.reweightings[self.sampler].tensors()
            found |= {f"student_reweighting.{name}": tensor for name, tensor in own.items()}
        return found | ({} if start is None else {f"student_start.{name}": each for name, each in vars(start).items()})

    @classmethod
    def restored(cls, network: Network, entry: Mapping[str, Any], start: Mapping[str, Tensor] | None) -> Student:
        told = checked(entry, _StudentEntry, "student")
        sampler = SamplerConfig(**told["sampler"])
        if sampler.kind != DISTILLED or sampler.matched != (start is not None):
            raise ValueError("its student does not fit its sampler")
        found = cls(network, sampler, *(told[name] for name in ("seed", "steps", "seconds", "history")))
        if told["calibration"] is not None:
            found.calibrations[sampler] = Calibration.from_json(told["calibration"])
        if start is not None:
            found.starts[sampler] = Start(**start)
        return found


@dataclass
class Fitted:
    """What a fit leaves behind."""

    layout: Layout
    scaler: Scaler
    network: Network
    record: FitRecord
    rates: tuple[float, ...]
    """How often each flag of the layout is set in the real rows."""
    moments: Moments
    """Of the scaled real rows."""
    ending: TerminationTree | None = None
    """What decides about terminals, where that is not the network."""
    usual_reward: UsualReward | None = None
    """What decides which rows have the reward that comes again and again."""
    regions: Regions | None = None
    """How often terminals and rewards of a few values come in each part of the world, where nothing decides them."""
    discrete: DiscreteLaw | None = None
    """How likely the discrete values of real rows are that nothing decides."""
    table: RowTable | None = None
    """What rows are drawn from, where states and actions are few."""
    payouts: Payouts | None = None
    """Rare rewards, of which the network makes more than there are."""
    conditions: Conditions = field(default_factory=Conditions)
    """What the network is told about rows."""
    shares: Weights = ()
    """How often each value of each group of few values comes in the real rows."""
    quantiles: Quantiles = ()
    """Of columns of the scaled real rows. None: generated columns are not brought to them."""
    start_quantiles: Quantiles = ()
    """The same of rows that begin an episode; the others are then those of the rest."""
    starts: dict[SamplerConfig, Start] = field(default_factory=dict)
    """The noise that matched samplers begin from."""
    calibrations: dict[SamplerConfig, Calibration] = field(default_factory=dict)
    reweightings: dict[SamplerConfig, Reweighting] = field(default_factory=dict)
    """Of samplers that have calibrations, and blur discrete values."""
    ensemble: Ensemble | None = None
    """What finds rows inconsistent, where it was asked for."""
    pilots: dict[SamplerConfig, Transitions] = field(default_factory=dict)
    """Some rows of each sampler, which a filter goes by."""
    student: Student | None = None
    """What draws rows that nothing is asked of, where the model was distilled."""

    def distilled(self) -> Fitted:
        """The same model with the student in place of the network."""
        student = self.student
        assert student is not None
        names = ("network", "starts", "calibrations", "reweightings", "pilots")
        own: Any = {name: getattr(student, name) for name in names}
        # Where the network blurs no discrete values, its student is not looked at either.
        return replace(self, **own, discrete=self.discrete if self.reweightings else None, student=None)

    def save(self, path: str | os.PathLike[str], settings: Settings, calibration: Calibration) -> None:
        """Write the model; `calibration` is that of the settings' own sampler."""
        metadata = {
            "format": FORMAT,
            "settings": json.dumps(settings.to_json()),
            "layout": json.dumps(layout_json.to_json(self.layout)),
            "scaler": json.dumps(self.scaler.to_json()),
            "record": json.dumps(asdict(self.record)),
            "rates": json.dumps(list(self.rates)),
            "shares": json.dumps(self.shares),
            "quantiles": json.dumps(self.quantiles),
            "start_quantiles": json.dumps(self.start_quantiles),
            "ending": json.dumps(None if self.ending is None else self.ending.to_json()),
            "usual_reward": json.dumps(None if self.usual_reward is None else self.usual_reward.to_json()),
            "regions": json.dumps(None if self.regions is None else self.regions.to_json()),
            "calibration": json.dumps(calibration.to_json()),
            "conditions": json.dumps(self.conditions.to_json()),
        }
        if self.payouts is not None:
            metadata["payouts"] = json.dumps(self.payouts.to_json())
        if self.discrete is not None:
            metadata["discrete"] = json.dumps(self.discrete.skipped)
        if self.ensemble is not None:
            metadata["ensemble"] = json.dumps(self.ensemble.to_json())
        tensors = self._tensors()
        if self.student is not None:
            metadata["student"] = json.dumps(self.student.to_json())
            tensors |= self.student.tensors()
        if settings.sampler in self.reweightings:
            own = self.reweightings[settings.sampler].tensors()
            tensors |= {f"reweighting.{name}": tensor for name, tensor in own.items()}
        if settings.sampler in self.starts:
            start = self.starts[settings.sampler]
            tensors |= {"start.matrix": start.matrix, "start.shift": start.shift}
        with replacing(path) as beside:
            beside.write_bytes(save(tensors, metadata))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> tuple[Settings, Fitted]:
        """The settings and the model, on the CPU; every wrong file is refused with its reason."""
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
            if found.startswith(FORMAT.rpartition("-")[0]):
                raise FormatError(
                    f"{path} is a model of another version of SynthER ({found}, here {FORMAT}): read it with that one, "
                    "or fit it again"
                )
            raise FormatError(f"{path} is no SynthER model: expected format {FORMAT!r} in its metadata, got {found!r}")
        try:
            return _assembled(metadata, tensors)
        except Exception as error:  # nearly any, where parts do not fit each other
            raise FormatError(
                f"{path} is a damaged SynthER model, or one of a newer version ({error}): fit it again, or update"
            ) from error

    def digest(self) -> str:
        """What tells this model from any other that makes rows."""
        parts = (self.scaler, self.ending, self.usual_reward, self.regions, self.payouts)
        described: list[Any] = [layout_json.to_json(self.layout), *(part and part.to_json() for part in parts)]
        if self.conditions.count:
            described.append(self.conditions.to_json())
        digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
        for name, tensor in sorted(self._tensors().items()):
            digest.update(name.encode())
            digest.update(tensor.cpu().numpy().tobytes())
        return digest.hexdigest()

    def _tensors(self) -> dict[str, Tensor]:
        weights = {f"network.{name}": tensor.clone() for name, tensor in self.network.state_dict().items()}
        weights |= {"moments.mean": self.moments.mean, "moments.covariance": self.moments.covariance}
        arrays = {} if self.table is None else self.table.arrays()
        chances = {} if self.discrete is None else self.discrete.tensors()
        weights |= {f"discrete.{name}": tensor for name, tensor in chances.items()}
        judges = {} if self.ensemble is None else self.ensemble.tensors()
        weights |= {f"ensemble.{name}": tensor for name, tensor in judges.items()}
        return weights | {f"table.{name}": torch.from_numpy(array) for name, array in arrays.items()}


class _StudentEntry(TypedDict):
    sampler: dict[str, Any]
    seed: int
    steps: int
    seconds: float
    history: list[dict[str, float]]
    calibration: Any


def _check_network(config: NetworkConfig, columns: int, weights: Mapping[str, Tensor]) -> None:
    """Refuse settings of another network than the stored one, before it is built: they could name any size."""
    rows = config.embedding if config.squeeze else max(config.embedding, columns)
    expected = {
        "block_weight": (config.depth, config.width, config.width),
        "row_in.weight": (rows, columns),
        "frequencies": (config.frequencies,),
    }
    for name, shape in expected.items():
        if tuple(weights[name].shape) != shape:
            raise ValueError(f"network.{name} has the shape {tuple(weights[name].shape)}, its settings say {shape}")


def _assembled(metadata: dict[str, str], tensors: dict[str, Tensor]) -> tuple[Settings, Fitted]:
    def told(name: str, kind: Any = Any, otherwise: str | None = None) -> Any:
        text = metadata.get(name, otherwise)
        if text is None:
            raise FormatError(f"it says nothing of {name}")
        return parse(text, kind, name)

    settings = Settings.from_json(told("settings", dict[str, dict[str, Any]]))
    if settings.sampler.network_calls > _MOST_CALLS:
        raise FormatError(f"its sampler calls the network {settings.sampler.network_calls:,} times")
    layout = layout_json.from_json(told("layout"))
    scaler = Scaler.from_json(told("scaler"))
    record, rates = told("record", FitRecord), told("rates", tuple[float, ...])
    calibration = Calibration.from_json(told("calibration"))
    ending = told("ending")
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        group, _, rest = name.partition(".")
        groups.setdefault(group, {})[rest] = tensor
    table, judges = groups.pop("table", None), groups.pop("ensemble", None)
    student, student_start = groups.pop("student", None), groups.pop("student_start", None)
    chances, weighing = groups.pop("discrete", None), groups.pop("reweighting", None)
    student_weighing = groups.pop("student_reweighting", None)
    if set(groups) != {"network", "moments", *(["start"] if settings.sampler.matched else [])}:
        raise ValueError(f"it holds tensors of {', '.join(groups)}")
    moments = Moments(**groups["moments"])
    given = told("conditions", otherwise="null")  # which earlier files have not
    conditions = Conditions() if given is None else Conditions.from_json(given)
    network = _network(layout, settings, conditions, groups["network"])
    flags = {len(layout.flag_names)}
    widths = {len(scaler.kinds), len(moments.mean), *moments.covariance.shape}
    if widths != {layout.width} or {len(rates), len(calibration.thresholds)} != flags:
        raise ValueError("its parts do not fit each other")
    tree = None if ending is None else TerminationTree.from_json(ending)
    counted = None if table is None else RowTable(**{name: tensor.numpy() for name, tensor in table.items()})
    paying = told("usual_reward")
    usual = None if paying is None else UsualReward.from_json(paying)
    parts = told("regions", otherwise="null")  # which earlier files have not
    regions = None if parts is None else Regions.from_json(parts)
    shares = told("shares", Weights, "[]")  # likewise
    if shares and tuple(map(len, shares)) != layout.class_counts:
        raise ValueError("its shares of values do not fit its columns")
    if calibration.weights and tuple(map(len, calibration.weights)) != layout.class_counts:
        raise ValueError("its weights of values do not fit its columns")
    if len(calibration.drawn) not in (0, len(layout.following)):
        raise ValueError("its numbers for tables do not fit its columns")
    known = [told(name, Quantiles, "[]") for name in ("quantiles", "start_quantiles")]  # likewise
    lines = corrected_count(layout, scaler)
    if any(len(each) not in (0, lines) or {*map(len, each)} - {0, len(RANKS)} for each in known):
        raise ValueError("its quantiles do not fit its columns")
    law = None if chances is None else DiscreteLaw.restored(layout, told("discrete", tuple[str, ...]), chances)
    paid = told("payouts", otherwise="null")
    payouts = None if paid is None else Payouts.from_json(paid)
    if payouts is not None and len(payouts.rates) not in flags:
        raise ValueError("its payouts do not fit its columns")
    learned = tree, usual, regions, law, counted, payouts
    fitted = Fitted(layout, scaler, network, record, rates, moments, *learned, conditions, shares, *known)
    if judges is not None:
        fitted.ensemble = Ensemble.restored(layout, told("ensemble"), judges)
    if (student is None) != ("student" not in metadata):
        raise ValueError("it has half a student")
    if student is not None:
        pupil = _network(layout, settings, conditions, student)
        fitted.student = Student.restored(pupil, told("student"), student_start)
        if any(len(own.thresholds) not in flags for own in fitted.student.calibrations.values()):
            raise ValueError("the thresholds of its student do not fit its columns")
        if any(len(own.drawn) not in (0, len(layout.following)) for own in fitted.student.calibrations.values()):
            raise ValueError("the numbers of its student for tables do not fit its columns")
    if law is not None and weighing is not None:
        fitted.reweightings[settings.sampler] = Reweighting.restored(law, weighing)
    if law is not None and student_weighing is not None and fitted.student is not None:
        fitted.student.reweightings[fitted.student.sampler] = Reweighting.restored(law, student_weighing)
    fitted.calibrations[settings.sampler] = calibration
    every = [calibration, *(fitted.student.calibrations.values() if fitted.student else ())]
    of_parts = None if regions is None else [len(shares) for shares in regions.shares]
    if any(own.regions and [len(part) for part in own.regions] != of_parts for own in every):
        raise ValueError("its weights do not fit the parts of its world")
    if any(not 0 <= one.column < layout.width for own in every for one in own.every_correction):
        raise ValueError("its corrections do not fit its columns")
    if settings.sampler.matched:
        fitted.starts[settings.sampler] = start = Start(**groups["start"])
        if start.matrix.shape != (layout.width, layout.width) or start.shift.shape != (layout.width,):
            raise ValueError("its noise does not fit its columns")
    _try(fitted)
    return settings, fitted


def _network(layout: Layout, settings: Settings, conditions: Conditions, weights: Mapping[str, Tensor]) -> Network:
    _check_network(settings.network, layout.width, weights)
    with torch.random.fork_rng(devices=[]):  # the weights it starts from are of no interest
        network = Network(layout.width, settings.network, conditions.count).requires_grad_(False)
    network.load_state_dict(weights)
    return network


def _try(fitted: Fitted) -> None:
    """Take two rows of zeros through all that follows the network, which raises where parts do not fit each other."""
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

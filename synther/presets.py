"""`Settings`: all options of a generator. A preset is a named choice of all options, such as `best` or `laptop`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, get_args

from synther.diffusion.config import (
    DISTILLED,
    WINDOW_ROWS,
    DistillConfig,
    FitConfig,
    NetworkConfig,
    NoiseConfig,
    SamplerConfig,
)
from synther.errors import ConfigError
from synther.plain import make_plain, with_options

Scaling = Literal["standard", "minmax", "quantile", "blend", "none"]
Coding = Literal["onehot", "bits"]
Threshold = Literal["calibrated", "half"]
Terminals = Literal["generated", "decided"]
Integers = Literal["categorical", "ordered"]
Finite = Literal["generated", "counted"]
Residuals = Literal["none", "linear", "bent"]


@dataclass(frozen=True)
class DataConfig:
    """Options for the conversion of rows to the matrix that the network learns, and of generated matrices to rows."""

    scaling: Scaling | Mapping[str, str] = "standard"
    """One scaling for all columns of real numbers, or a dict: scalings of single fields or columns, and "default"."""
    coding: Coding = "onehot"
    """How categories are encoded: as one-hot columns or as bits."""
    integers: Integers = "categorical"
    """With "categorical", a column of at most 32 different integers is a category.
    So is an observation that is one of at most 1,024 different rows of integers.
    With "ordered", every integer is an ordered number."""
    threshold: Threshold = "calibrated"
    """Threshold above which a generated terminal (or another flag) is set.
    "calibrated" sets it as often as in the real rows, "half" above 0.5 (as in the paper)."""
    spikes: bool = False
    """Give a value that occurs again and again in a column of real numbers (a clipped velocity) a flag of its own.
    It is then generated exactly, and as often as in the real rows.
    A column that has only such values (steps of 0.1) is generated on exactly these values."""
    residuals: Residuals = "none"
    """Generate outcomes as residuals of a regression on the rest of the row: "linear", or "bent" with knots.
    See synther/data/residuals.py."""
    finite: Finite = "generated"
    """With "counted", rows of a world with few states and actions are drawn from a table of the real rows.
    In other worlds, discrete outcomes that follow from discrete columns alone are drawn from tables.
    Rows are then weighted so that all discrete values are as likely as in the real rows.
    With "generated", the network generates everything.
    See synther/row_table.py, synther/data/following.py and synther/relevance/discrete.py."""
    terminals: Terminals = "generated"
    """With "decided", thresholds on other columns decide about terminals and usual rewards, if they explain them well.
    With "generated", the network generates both."""
    starts: bool = False
    """Show rare rows to the network more often during the fit, and sample them at their real share.
    Rare rows are episode starts, rare rewards, and moves of what seldom moves (synther/calibration/rare_rows.py).
    Episode starts become a condition of the network. Without this option a fit may lose rare rows."""

    def __post_init__(self) -> None:
        make_plain(self, "data")
        scalings = self.scaling.values() if isinstance(self.scaling, Mapping) else [self.scaling]
        chosen = [("scaling", value, Scaling) for value in scalings]
        allowed = {"coding": Coding, "integers": Integers, "threshold": Threshold}
        allowed |= {"residuals": Residuals, "finite": Finite, "terminals": Terminals}
        chosen += [(name, getattr(self, name), kind) for name, kind in allowed.items()]
        for name, value, kind in chosen:
            if value not in get_args(kind):
                raise ConfigError(f"data.{name} must be one of {', '.join(get_args(kind))}, got {value!r}")


@dataclass(frozen=True)
class Settings:
    """All options of a generator: network, noise levels, fit, sampler, data conversion and student."""

    network: NetworkConfig = field(default_factory=NetworkConfig)
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    fit: FitConfig = field(default_factory=FitConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)

    def __post_init__(self) -> None:
        if self.sampler.kind == DISTILLED:
            raise ConfigError(
                f"sampler.kind {DISTILLED!r} is for students only. To make a student, set distill.calls instead"
            )

    def changed(self, **changes: Mapping[str, Any]) -> Settings:
        """Return a copy with some options replaced, for example `changed(fit={"steps": 5000}, network={"width":
        512})`."""
        parts = {part.name: getattr(self, part.name) for part in fields(self)}
        for name, options in changes.items():
            if name not in parts:
                raise ConfigError(f"unknown part {name!r} of the settings: expected one of {', '.join(parts)}")
            if not isinstance(options, Mapping):
                known = ", ".join(option.name for option in fields(parts[name]))
                raise ConfigError(f"{name} must be a dict of some of its options ({known}), got {options!r}")
            parts[name] = with_options(name, parts[name], options)
        return Settings(**parts)

    def to_json(self) -> dict[str, Any]:
        described = asdict(self)
        # Options that earlier versions did not have are left out at their defaults, so that runs of those versions
        # still have the same description.
        if self.distill == DistillConfig():
            del described["distill"]
        if self.fit.window_rows == WINDOW_ROWS:
            del described["fit"]["window_rows"]
        return described

    @classmethod
    def from_json(cls, described: Mapping[str, Mapping[str, Any]]) -> Settings:
        return cls().changed(**described)


OVERFIT = 0.1
"""A fit counts as overfitting if the held-out loss is this far above its lowest value. Chance does not raise it so
far."""
_OUTCOME_SCALING = {"reward": "standard", "next_observation": "standard"}
"""Scaling of the outcomes in `best`. They are residuals of a regression, and their tails differ from those of the
column itself. A nonlinear scaling would make them harder to learn."""
_FAITHFUL_DATA = DataConfig(
    scaling={"default": "blend", **_OUTCOME_SCALING},
    spikes=True,
    residuals="linear",
    finite="counted",
    terminals="decided",
    starts=True,
)

PRESETS: dict[str, Settings] = {
    "best": Settings(
        noise=NoiseConfig(p_mean=-1.6, sigma_min=0.008, sigma_max=10),
        fit=FitConfig(batch_size=1024, overfit=OVERFIT),
        sampler=SamplerConfig(kind="unipc", steps=16, matched=True, restarts=4),
        data=_FAITHFUL_DATA,
    ),
    "paper": Settings(),
    "fast": Settings(sampler=SamplerConfig(kind="unipc", steps=32)),
    "laptop": Settings(
        network=NetworkConfig(width=256, depth=4),
        noise=NoiseConfig(sigma_min=0.005, sigma_max=10),
        fit=FitConfig(steps=4_500, learning_rate=2e-3, evaluate_every=200, overfit=OVERFIT, checkpoint_every=1_000),
        sampler=SamplerConfig(kind="unipc", steps=16, matched=True),
        data=replace(_FAITHFUL_DATA, scaling="quantile", residuals="bent"),
    ),
}
PRESETS["instant"] = replace(PRESETS["best"], distill=DistillConfig(calls=4))
PRESETS["laptop-instant"] = replace(PRESETS["laptop"], distill=DistillConfig(calls=4))

ABOUT = {
    "best": "for noisy, discrete and quantised data, an eighth of the paper's network calls; the default on a GPU",
    "paper": "the paper's network, fit and sampler",
    "fast": "the paper's network and fit, an eighth of the paper's network calls per row",
    "laptop": "a small network that two CPU cores fit in about a minute; the default without a GPU",
    "instant": "best with a student: an eighth of the network calls per row, after a longer fit",
    "laptop-instant": "laptop with a student: a quarter of the network calls per row, after a longer fit",
}
"""One line about each preset, for `synther presets`."""


LATENTS: Mapping[str, Mapping[str, Any]] = {
    "noise": {"p_mean": -0.4},
    "data": {"scaling": "standard", "residuals": "none"},
}
"""Changes to `best` and `laptop` for the latents of pixel agents. `paper` and `fast` stay as in the paper."""


def preset(name: str | Settings, *, gpu: bool = False, latents: bool = False, **changes: Mapping[str, Any]) -> Settings:
    """Return the settings of the preset `name`, with `changes` as in `Settings.changed`.

    `name` may also be a `Settings`. "auto" is `best` with a GPU (`gpu`) and `laptop` without. With `latents`, `best`
    and `laptop` are adapted to the latents of pixel agents.
    """
    if isinstance(name, Settings):
        return name.changed(**changes)
    if name == "auto":
        name = "best" if gpu else "laptop"
    if not isinstance(name, str) or name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r}: expected auto, {', '.join(PRESETS)}, or Settings")
    chosen = PRESETS[name].changed(**LATENTS) if latents and name in ("best", "laptop") else PRESETS[name]
    return chosen.changed(**changes)


def name_of(settings: Settings) -> str:
    """Return the name of the preset with the fewest differences from `settings`, and the options that differ."""
    options = _flat(settings)
    changes = {
        name: [key for key, value in _flat(known).items() if options[key] != value] for name, known in PRESETS.items()
    }
    name = min(changes, key=lambda one: len(changes[one]))
    return f"{name} with other {', '.join(changes[name])}" if changes[name] else name


def _flat(settings: Settings) -> dict[str, Any]:
    """Return all options by names such as `fit.steps`."""
    return {f"{part}.{name}": value for part, own in asdict(settings).items() for name, value in own.items()}

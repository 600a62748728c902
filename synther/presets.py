"""Everything that can be chosen about a generator, and the choices that have a name."""

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
from synther.plain import make_plain

Scaling = Literal["standard", "minmax", "quantile", "blend", "none"]
Coding = Literal["onehot", "bits"]
Threshold = Literal["calibrated", "half"]
Terminals = Literal["generated", "decided"]
Integers = Literal["categorical", "ordered"]
Finite = Literal["generated", "counted"]
Residuals = Literal["none", "linear", "bent"]


@dataclass(frozen=True)
class DataConfig:
    """How rows become numbers for the network, and numbers rows."""

    scaling: Scaling | Mapping[str, str] = "standard"
    """One scaling for every real column, or a scaling for each of some fields or columns, and one for "default"."""
    coding: Coding = "onehot"
    """How discrete values are represented."""
    integers: Integers = "categorical"
    """Columns of at most 32 different integers, and observations that are one of at most 1,024 rows of integers, as
    values without an order; or every integer as an ordered number."""
    threshold: Threshold = "calibrated"
    """When a generated terminal (or other flag) is set: as often as in the real rows, or above one half (the paper)."""
    spikes: bool = False
    """Give numbers that come again and again (a clipped velocity) a flag of their own, so that they come back exact and
    as often; columns of which all numbers do (steps of 0.1) come back on their own values."""
    residuals: Residuals = "none"
    """Generate outcomes as what a regression on the rest of the row leaves of them, linear or bent at knots: see
    data/residuals.py."""
    finite: Finite = "generated"
    """Rows of a world of few states and actions, and discrete outcomes that follow from discrete columns alone, as the
    network generates them, or drawn from tables of the real ones: see data/row_table.py and data/following.py. With
    tables, rows are also taken such that all discrete values are as likely as in the real rows: see
    relevance/discrete.py."""
    terminals: Terminals = "generated"
    """Terminals, and whether a reward is the usual one, as the network generates them, or as thresholds on the rest of
    a row decide, if any explain them."""
    starts: bool = False
    """Show the network rare rows more often, and draw them at their real share. Without it a fit may lose them: the
    first rows of episodes, which the network is told, and rewards far from all usual ones (data/payouts.py)."""

    def __post_init__(self) -> None:
        make_plain(self, "data")
        scalings = self.scaling.values() if isinstance(self.scaling, Mapping) else [self.scaling]
        chosen = [("scaling", value, Scaling) for value in scalings]
        named = {"coding": Coding, "integers": Integers, "threshold": Threshold}
        named |= {"residuals": Residuals, "finite": Finite, "terminals": Terminals}
        chosen += [(name, getattr(self, name), known) for name, known in named.items()]
        for name, value, known in chosen:
            if value not in get_args(known):
                raise ConfigError(f"data.{name} must be one of {', '.join(get_args(known))}, got {value!r}")


@dataclass(frozen=True)
class Settings:
    """A generator before it has seen data."""

    network: NetworkConfig = field(default_factory=NetworkConfig)
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    fit: FitConfig = field(default_factory=FitConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)

    def __post_init__(self) -> None:
        if self.sampler.kind == DISTILLED:
            raise ConfigError(f"sampler.kind {DISTILLED!r} is that of a student: set distill.calls to make one")

    def changed(self, **changes: Mapping[str, Any]) -> Settings:
        """A copy with some options of some parts replaced: `changed(fit={"steps": 5000}, network={"width": 512})`."""
        parts = {part.name: getattr(self, part.name) for part in fields(self)}
        for name, options in changes.items():
            if name not in parts:
                raise ConfigError(f"unknown part {name!r} of the settings: expected one of {', '.join(parts)}")
            known = [option.name for option in fields(parts[name])]
            if not isinstance(options, Mapping):
                raise ConfigError(f"{name} must be a dict of some of its options ({', '.join(known)}), got {options!r}")
            for option in options:
                if option not in known:
                    raise ConfigError(f"unknown option {name}.{option}: expected one of {', '.join(known)}")
            parts[name] = replace(parts[name], **options)
        return Settings(**parts)

    def to_json(self) -> dict[str, Any]:
        described = asdict(self)
        # Runs of earlier versions are what they were without these.
        if self.distill == DistillConfig():
            del described["distill"]
        if self.fit.window_rows == WINDOW_ROWS:
            del described["fit"]["window_rows"]
        return described

    @classmethod
    def from_json(cls, described: Mapping[str, Mapping[str, Any]]) -> Settings:
        return cls().changed(**described)


OVERFIT = 0.1
"""So far above its lowest no held-out loss rises by chance."""
_OUTCOMES = {"reward": "standard", "next_observation": "standard"}
"""Outcomes are residuals, whose tails are not those of a column: to be warped like one makes them harder to learn."""
_NEAREST = DataConfig(
    scaling={"default": "blend", **_OUTCOMES},
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
        data=_NEAREST,
    ),
    "paper": Settings(),
    "fast": Settings(sampler=SamplerConfig(kind="unipc", steps=32)),
    "laptop": Settings(
        network=NetworkConfig(width=256, depth=4),
        noise=NoiseConfig(sigma_min=0.005, sigma_max=10),
        fit=FitConfig(steps=4_500, learning_rate=2e-3, evaluate_every=200, overfit=OVERFIT, checkpoint_every=1_000),
        sampler=SamplerConfig(kind="unipc", steps=16, matched=True),
        data=replace(_NEAREST, scaling="quantile", residuals="bent"),
    ),
}
PRESETS["instant"] = replace(PRESETS["best"], distill=DistillConfig(calls=4))
PRESETS["laptop-instant"] = replace(PRESETS["laptop"], distill=DistillConfig(calls=4))

ABOUT = {
    "best": "right on noisy, discrete and quantised data, an eighth of the paper's network calls; the default on a GPU",
    "paper": "the paper's network, fit and sampler",
    "fast": "the paper's network and fit, an eighth of its network calls for a row",
    "laptop": "a small network that two CPU cores fit in about a minute; the default without a GPU",
    "instant": "best with a student: an eighth of its network calls for a row, after a longer fit",
    "laptop-instant": "laptop with a student: a quarter of its network calls for a row, after a longer fit",
}


LATENTS: Mapping[str, Mapping[str, Any]] = {
    "noise": {"p_mean": -0.4},
    "data": {"scaling": "standard", "residuals": "none"},
}
"""Changes of `best` and `laptop` that suit the latents of pixel agents. `paper` and `fast` are as in the paper."""


def preset(name: str | Settings, *, gpu: bool = False, latents: bool = False, **changes: Mapping[str, Any]) -> Settings:
    """The settings called `name` (`auto`: those that suit the machine), with `changes` as in `Settings.changed`.

    With `latents`, `best` and `laptop` are changed as suits the latents of pixel agents.

    Settings stand for themselves.
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
    """The preset that the settings are, or are nearest to, and which of its options they change."""
    own = _flat(settings)
    changes = {
        name: [key for key, value in _flat(known).items() if own[key] != value] for name, known in PRESETS.items()
    }
    name = min(changes, key=lambda one: len(changes[one]))
    return f"{name} with other {', '.join(changes[name])}" if changes[name] else name


def _flat(settings: Settings) -> dict[str, Any]:
    return {f"{part}.{name}": value for part, own in asdict(settings).items() for name, value in own.items()}

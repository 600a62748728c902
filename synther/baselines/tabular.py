"""TVAE and CTGAN (Xu et al. 2019), which the paper compares with, from the `ctgan` package (extra `tabular`).

Behind the fit and sample of a `Synthesizer`, so that whatever takes one takes the other.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from importlib.util import find_spec
from typing import Any, ClassVar, Self

import numpy as np
import torch

from synther import compute
from synther.baselines.ctgan_models import fit_ctgan, fit_tvae
from synther.baselines.table import Table
from synther.data.checks import check_count, drawing_seed
from synther.data.transitions import Transitions
from synther.errors import ConfigError, MissingExtra
from synther.progress import Progress, resolve

BLOCK_ROWS = 50_000
_SEEDS = 2**32  # NumPy's global generator takes no larger ones
_PACKED = 10  # rows that CTGAN's discriminator looks at together


@dataclass(frozen=True)
class TvaeConfig:
    """Defaults are those of the package, which the paper starts from."""

    name: ClassVar[str] = "tvae"
    space: ClassVar[dict[str, tuple[float, ...]]] = {
        "layers": (1, 2, 3, 4),
        "width": (64, 128, 256, 512),
        "batch_size": (250, 500, 1000),
        "embedding": (32, 64, 128, 256),
        "loss_factor": (0.02, 0.2, 2.0, 20.0),
    }
    """What the paper searches."""

    layers: int = 2
    width: int = 128
    batch_size: int = 500
    embedding: int = 128
    loss_factor: float = 2.0
    """Weight of the reconstruction against the divergence."""
    epochs: int = 300

    def __post_init__(self) -> None:
        _check(self)

    def options(self) -> dict[str, Any]:
        """The arguments of `ctgan.TVAE`."""
        hidden = (self.width,) * self.layers
        return {
            "embedding_dim": self.embedding,
            "compress_dims": hidden,
            "decompress_dims": hidden,
            "batch_size": self.batch_size,
            "loss_factor": self.loss_factor,
            "epochs": self.epochs,
        }


@dataclass(frozen=True)
class CtganConfig:
    """Defaults are those of the package, which the paper starts from."""

    name: ClassVar[str] = "ctgan"
    space: ClassVar[dict[str, tuple[float, ...]]] = {
        "layers": (1, 2, 3, 4),
        "width": (64, 128, 256, 512),
        "batch_size": (250, 500, 1000),
        "embedding": (32, 64, 128, 256),
        "discriminator_steps": (1, 2),
    }
    """What the paper searches."""

    layers: int = 2
    width: int = 256
    batch_size: int = 500
    embedding: int = 128
    discriminator_steps: int = 1
    epochs: int = 300

    def __post_init__(self) -> None:
        _check(self)
        if self.batch_size % _PACKED:
            raise ConfigError(f"ctgan.batch_size must be a multiple of {_PACKED}, got {self.batch_size}")

    def options(self) -> dict[str, Any]:
        """The arguments of `ctgan.CTGAN`."""
        hidden = (self.width,) * self.layers
        return {
            "embedding_dim": self.embedding,
            "generator_dim": hidden,
            "discriminator_dim": hidden,
            "batch_size": self.batch_size,
            "discriminator_steps": self.discriminator_steps,
            "epochs": self.epochs,
            "pac": _PACKED,
        }


Config = TvaeConfig | CtganConfig

CONFIGS: dict[str, type[Config]] = {kind.name: kind for kind in (TvaeConfig, CtganConfig)}


def config_of(name: str, settings: Mapping[str, Any] | None = None) -> Config:
    """The configuration of `tvae` or `ctgan` from its JSON, or its defaults."""
    if name not in CONFIGS:
        raise ConfigError(f"unknown tabular model {name!r}: expected one of {', '.join(CONFIGS)}")
    known = [option.name for option in fields(CONFIGS[name])]
    for option in settings or {}:
        if option not in known:
            raise ConfigError(f"unknown option {name}.{option}: expected one of {', '.join(known)}")
    return CONFIGS[name](**(settings or {}))


def require(*, search: bool = False) -> None:
    """Refuse at once what would only be missed later: the package, and what a search needs beside it."""
    for library in ("ctgan", "optuna") if search else ("ctgan",):
        if find_spec(library) is None:
            raise MissingExtra(library, "tabular", "comparing with TVAE and CTGAN")


def to_json(config: Config) -> dict[str, Any]:
    return asdict(config)


class Tabular:
    """`Tabular("tvae").fit(real).sample(n)`, or with a `TvaeConfig` or `CtganConfig`."""

    def __init__(self, config: str | Config, *, device: str = "auto", seed: int = 0) -> None:
        self.config = config_of(config) if isinstance(config, str) else config
        self.device = compute.pick_device(device)
        self.seed = seed
        self._model: Any = None

    def fit(self, rows: Transitions | Table, *, progress: Progress | bool = True) -> Self:
        """Learn the distribution of `rows`; a `Table` of them saves the time of making it again."""
        table = rows if isinstance(rows, Table) else Table.of(rows, seed=self.seed)
        config = self.config
        train = fit_tvae if isinstance(config, TvaeConfig) else fit_ctgan
        options = {**config.options(), "enable_gpu": self.device.type == "cuda"}
        with resolve(progress).phase(f"fit {config.name}", config.epochs) as phase, self._alone(self.seed):
            self._model = train(table, options, lambda: phase.advance(1))
        return self

    def sample(self, count: int, *, seed: int | None = None) -> Transitions:
        """`count` rows. Every call draws other rows; the same seed gives the same rows."""
        if self._model is None:
            raise ConfigError("this Tabular has not been fitted: call fit(transitions) first")
        count = check_count(count)
        with self._alone(drawing_seed(seed) % _SEEDS):
            blocks = [self._model.sample(min(BLOCK_ROWS, count - start)) for start in range(0, count, BLOCK_ROWS)]
        return Transitions.concatenate(blocks)

    @property
    def parameters(self) -> int:
        """Weights that it takes to sample: TVAE's encoder and CTGAN's discriminator are not among them."""
        if self._model is None:
            raise ConfigError("this Tabular has not been fitted: call fit(transitions) first")
        network = self._model.decoder if isinstance(self.config, TvaeConfig) else self._model._generator
        return sum(weight.numel() for weight in network.parameters())

    @contextmanager
    def _alone(self, seed: int) -> Iterator[None]:
        """The package draws from the global generators: they start from `seed`, and afterwards are what they were."""
        numbers = np.random.get_state()  # noqa: NPY002
        devices = [self.device] if self.device.type == "cuda" else []
        advice = "fit on a share of the rows, or on a CPU"
        try:
            with compute.working_on(self.device, advice), torch.random.fork_rng(devices), warnings.catch_warnings():
                warnings.filterwarnings("ignore", module=r"(ctgan|rdt|pandas|sklearn)(\.|$)")
                np.random.seed(seed)  # noqa: NPY002
                torch.default_generator.manual_seed(seed)
                if devices:
                    torch.cuda.manual_seed(seed)
                yield
        finally:
            np.random.set_state(numbers)  # noqa: NPY002


def _check(config: Config) -> None:
    for option in fields(config):
        value = getattr(config, option.name)
        if not value > 0 or (option.name != "loss_factor" and value != int(value)):
            wanted = "above 0" if option.name == "loss_factor" else "a whole number and at least 1"
            raise ConfigError(f"{config.name}.{option.name} must be {wanted}, got {value!r}")

"""TVAE and CTGAN (Xu et al. 2019), with which the paper compares, from the `ctgan` package (extra `tabular`).

`Tabular` has the methods `fit` and `sample` of a `Synthesizer`, so it can be used in its place.
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
from synther.plain import check_one_of, with_options
from synther.progress import Progress, resolve

BLOCK_ROWS = 50_000
"""Number of rows that are sampled together."""
_SEEDS = 2**32  # seeds of NumPy's global generator must be smaller
_PACKED = 10  # number of rows that CTGAN's discriminator judges together

_SPACE: dict[str, tuple[float, ...]] = {
    "layers": (1, 2, 3, 4),
    "width": (64, 128, 256, 512),
    "batch_size": (250, 500, 1000),
    "embedding": (32, 64, 128, 256),
}
"""The values of the options of both models in the paper's search."""


@dataclass(frozen=True)
class TvaeConfig:
    """Options of TVAE. The defaults are those of the package, with which the paper's search starts."""

    name: ClassVar[str] = "tvae"
    space: ClassVar[dict[str, tuple[float, ...]]] = {**_SPACE, "loss_factor": (0.02, 0.2, 2.0, 20.0)}
    """The values of each option in the paper's search."""

    layers: int = 2
    width: int = 128
    batch_size: int = 500
    embedding: int = 128
    loss_factor: float = 2.0
    """Weight of the reconstruction loss relative to the KL divergence."""
    epochs: int = 300

    def __post_init__(self) -> None:
        _check(self)

    def options(self) -> dict[str, Any]:
        """Return the arguments of `ctgan.TVAE`."""
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
    """Options of CTGAN. The defaults are those of the package, with which the paper's search starts."""

    name: ClassVar[str] = "ctgan"
    space: ClassVar[dict[str, tuple[float, ...]]] = {**_SPACE, "discriminator_steps": (1, 2)}
    """The values of each option in the paper's search."""

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
        """Return the arguments of `ctgan.CTGAN`."""
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
    """Return the options of `tvae` or `ctgan`, with `settings` in place of some defaults."""
    check_one_of("tabular model", name, CONFIGS)
    config: Config = with_options(name, CONFIGS[name](), settings or {})
    return config


def require(*, search: bool = False) -> None:
    """Raise `MissingExtra` if the package `ctgan` is not installed, or Optuna for a `search`. Called before long work,
    so that the error comes at once."""
    for library in ("ctgan", "optuna") if search else ("ctgan",):
        if find_spec(library) is None:
            raise MissingExtra(library, "tabular", "comparing with TVAE and CTGAN")


def to_json(config: Config) -> dict[str, Any]:
    return asdict(config)


class Tabular:
    """TVAE or CTGAN: `Tabular("tvae").fit(real).sample(n)`. Instead of a name, pass a `TvaeConfig` or `CtganConfig` to
    change options."""

    def __init__(self, config: str | Config, *, device: str = "auto", seed: int = 0) -> None:
        self.config = config_of(config) if isinstance(config, str) else config
        self.device = compute.pick_device(device)
        self.seed = seed
        self._model: Any = None

    def fit(self, rows: Transitions | Table, *, progress: Progress | bool = True) -> Self:
        """Learn the distribution of `rows`. If you fit several models, pass the same `Table` of the rows to each of
        them to save time."""
        table = rows if isinstance(rows, Table) else Table.of(rows, seed=self.seed)
        config = self.config
        train = fit_tvae if isinstance(config, TvaeConfig) else fit_ctgan
        options = {**config.options(), "enable_gpu": self.device.type == "cuda"}
        with resolve(progress).phase(f"fit {config.name}", config.epochs) as phase, self._alone(self.seed):
            self._model = train(table, options, lambda: phase.advance(1))
        return self

    def sample(self, count: int, *, seed: int | None = None) -> Transitions:
        """Return `count` rows. Each call returns different rows. Pass a `seed` to get the same rows again."""
        if self._model is None:
            raise ConfigError("this Tabular has not been fitted: call fit(transitions) first")
        count = check_count(count)
        with self._alone(drawing_seed(seed) % _SEEDS):
            blocks = [self._model.sample(min(BLOCK_ROWS, count - start)) for start in range(0, count, BLOCK_ROWS)]
        return Transitions.concatenate(blocks)

    @property
    def parameters(self) -> int:
        """The number of weights that are needed to sample, without TVAE's encoder and CTGAN's discriminator."""
        if self._model is None:
            raise ConfigError("this Tabular has not been fitted: call fit(transitions) first")
        network = self._model.decoder if isinstance(self.config, TvaeConfig) else self._model._generator
        return sum(weight.numel() for weight in network.parameters())

    @contextmanager
    def _alone(self, seed: int) -> Iterator[None]:
        """Seed the global random generators, from which the package draws, and restore their states afterwards."""
        state = np.random.get_state()  # noqa: NPY002
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
            np.random.set_state(state)  # noqa: NPY002


def _check(config: Config) -> None:
    """Check that all options are positive, and all but `loss_factor` whole numbers."""
    for option in fields(config):
        value = getattr(config, option.name)
        if not value > 0 or (option.name != "loss_factor" and value != int(value)):
            wanted = "above 0" if option.name == "loss_factor" else "a whole number and at least 1"
            raise ConfigError(f"{config.name}.{option.name} must be {wanted}, got {value!r}")

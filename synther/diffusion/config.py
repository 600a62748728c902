"""The options of the network, its fit and its sampling. The module does not import PyTorch, so that `--help` is quick.

The defaults are those of the paper. `synther/presets.py` has other combinations that are useful.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from synther.errors import ConfigError
from synther.plain import make_plain
from synther.registry import Registry

if TYPE_CHECKING:
    from synther.diffusion.networks import Network

NetworkKind = Literal["residual", "mlp"]
WINDOW_ROWS = 4_000_000
"""Default of `FitConfig.window_rows`."""


@dataclass(frozen=True)
class NetworkConfig:
    """Options of the denoising network."""

    kind: NetworkKind = "residual"
    """residual: blocks with a skip connection. mlp: blocks without one (the paper's ablation)."""
    width: int = 1024
    """Number of units in each hidden layer."""
    depth: int = 6
    """Number of blocks."""
    embedding: int = 128
    """Number of units in the layer that adds the embeddings of the row and of the noise level."""
    frequencies: int = 8
    """Number of random Fourier frequencies that encode the noise level."""
    squeeze: bool = False
    """Keep the size of `embedding` even if a row has more columns. By default, the layer grows with the row."""

    def __post_init__(self) -> None:
        make_plain(self, "network")
        if self.kind not in get_args(NetworkKind):
            raise ConfigError(f"network.kind must be one of {', '.join(get_args(NetworkKind))}, got {self.kind!r}")
        for name in ("width", "depth", "embedding", "frequencies"):
            _at_least(f"network.{name}", getattr(self, name), 1)

    def build(self, columns: int, conditions: int = 0) -> Network:
        """Return a network with random weights, for rows of `columns` columns and `conditions` conditions."""
        from synther.diffusion.networks import Network

        return Network(columns, self, conditions)


@dataclass(frozen=True)
class NoiseConfig:
    """Noise levels in fitting and sampling, with the symbols of Karras et al. 2022, Table 1."""

    sigma_data: float = 1.0
    """Standard deviation of the scaled data, for which the network's inputs and outputs are scaled."""
    sigma_min: float = 0.002
    """Lowest noise level in sampling, before the last step to 0."""
    sigma_max: float = 80.0
    """Highest noise level in sampling, at which it starts."""
    rho: float = 7.0
    """Spacing of the noise levels in sampling (Eq. 5). A larger rho means more levels near sigma_min."""
    p_mean: float = -1.2
    """Mean of ln sigma in fitting, where the noise level sigma is drawn at random."""
    p_std: float = 1.2
    """Standard deviation of ln sigma in fitting."""

    def __post_init__(self) -> None:
        make_plain(self, "noise")
        if not 0 < self.sigma_min < self.sigma_max:
            raise ConfigError(f"expected 0 < noise.sigma_min < noise.sigma_max, got {self.sigma_min}, {self.sigma_max}")
        for name in ("sigma_data", "rho", "p_std"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"noise.{name} must be positive, got {getattr(self, name)}")


@dataclass(frozen=True)
class Sampler:
    """An entry of `SAMPLERS`: the function of a sampler and its properties."""

    solve: Callable[..., Any]
    """A function solve(denoise, x, sigmas) that takes rows x (N, D) from noise sigmas[0] to sigmas[-1] = 0. A
    stochastic sampler is called as solve(denoise, x, sigmas, generator, config), where config is the
    `SamplerConfig`."""
    calls_per_step: int = 1
    """Number of network calls in each step. If it is 2, the last step (to noise 0) still takes only one call."""
    stochastic: bool = False
    """Whether `solve` draws random numbers, and so also takes `generator` and `config`."""
    sigmas: Callable[[int, NoiseConfig], list[float]] | None = None
    """A function sigmas(steps, noise) that returns the noise levels. Default: those of Karras et al. 2022, Eq. 5."""


def _own(name: str) -> Callable[..., Any]:
    """Return a function that calls `samplers.name`. It imports samplers.py, and so PyTorch, only when it is called."""

    def call(*arguments: Any) -> Any:
        from synther.diffusion import samplers

        return getattr(samplers, name)(*arguments)

    return call


SAMPLERS: Registry[Sampler] = Registry(
    "sampler",
    "synther.samplers",
    Sampler,
    {
        "sde": Sampler(_own("churned"), calls_per_step=2, stochastic=True),
        "heun": Sampler(_own("heun"), calls_per_step=2),
        "euler": Sampler(_own("euler")),
        "unipc": Sampler(_own("unipc"), sigmas=_own("log_sigmas")),
        "distilled": Sampler(_own("euler"), sigmas=_own("angle_sigmas")),
    },
)
"""Samplers by their names, the values of `SamplerConfig.kind`. See `Registry` for how to add other samplers."""

DISTILLED = "distilled"
"""Name of the sampler for student networks (see distill.py). It works with no other network."""


@dataclass(frozen=True)
class SamplerConfig:
    """How rows are sampled. The s_ parameters belong to the stochastic sampler (sde)."""

    kind: str = "sde"
    """sde (the paper's sampler), heun, euler, unipc, or the name of a registered sampler."""
    steps: int = 128
    """Number of steps from noise to data."""
    s_churn: float = 80.0
    """Overall amount of noise that the sde sampler adds."""
    s_tmin: float = 0.05
    """Lowest noise level at which the sde sampler adds noise."""
    s_tmax: float = 50.0
    """Highest noise level at which the sde sampler adds noise."""
    s_noise: float = 1.003
    """Standard deviation of the added noise, relative to its exact value."""
    matched: bool = False
    """Stretch and shift the noise at the start, so that synthetic rows have the mean and the covariance of real rows.
    If outcomes are residuals, each column of observations and actions also gets the real quantiles."""
    restarts: int = 0
    """Number of restarts: a finished row gets a little noise and is denoised again, to bring it nearer to the data."""
    restart_steps: int = 4
    """Number of network calls in each restart."""
    restart_from: float = 0.08
    """Noise level at which a restart begins."""
    restart_to: float = 0.006
    """Noise level of the last network call of a restart."""

    def __post_init__(self) -> None:
        make_plain(self, "sampler")
        SAMPLERS.check(self.kind, "sampler.kind")
        _at_least("sampler.steps", self.steps, 1)
        _at_least("sampler.restarts", self.restarts, 0)
        _at_least("sampler.restart_steps", self.restart_steps, 1)
        for name in ("s_churn", "s_noise"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"sampler.{name} must be at least 0, got {getattr(self, name)}")
        if not 0 < self.restart_to <= self.restart_from:
            found = f"{self.restart_to}, {self.restart_from}"
            raise ConfigError(f"expected 0 < sampler.restart_to <= sampler.restart_from, got {found}")

    @property
    def network_calls(self) -> int:
        """Number of network calls that a row needs."""
        per_step = SAMPLERS.get(self.kind).calls_per_step
        return per_step * (self.steps - 1) + 1 + self.restarts * self.restart_steps


@dataclass(frozen=True)
class FitConfig:
    """How the network is fitted."""

    steps: int = 100_000
    """Number of optimiser steps. The learning rate falls to 0 over them along a cosine."""
    batch_size: int | None = None
    """Rows in each step. None is the rule of the reference implementation: 256 below 800K rows, else 1024."""
    learning_rate: float = 3e-4
    """Learning rate of Adam at the first step."""
    beta1: float = 0.9
    """Adam's decay of the mean of gradients."""
    beta2: float = 0.99
    """Adam's decay of the mean of squared gradients."""
    max_grad_norm: float = 1.0
    """Gradients with a larger norm are clipped to this norm."""
    ema_decay: float = 0.995
    """Decay of the averaged weights (EMA). Rows are sampled with these weights."""
    ema_every: int = 10
    """Number of steps between two updates of the averaged weights."""
    holdout: float = 0.05
    """Share of rows that are held out to measure the loss, at most 10,000 rows."""
    evaluate_every: int = 1_000
    """Number of steps between two measurements of the held-out loss, rounded up to a multiple of ema_every.
    Progress is reported at the same steps."""
    patience: int | None = None
    """Stop after this many measurements without a better held-out loss, and keep the best weights. None: never stop."""
    overfit: float | None = None
    """Stop when the held-out loss exceeds its lowest value by this share (0.1: by a tenth), and keep the best weights.
    None: never stop."""
    checkpoint_every: int = 10_000
    """Number of steps between two checkpoints, if the fit writes checkpoints.
    After a minute without a checkpoint, one is written anyway."""
    minutes: float | None = None
    """Time limit in minutes. The learning rate reaches 0 at this time, or after `steps` if that comes first."""
    window_rows: int = field(default=WINDOW_ROWS, repr=False)  # not in the identity of checkpoints of fits in memory
    """Maximum number of rows in memory at a time.
    Parquet files with more rows are streamed: the rows in memory are replaced little by little."""

    def __post_init__(self) -> None:
        make_plain(self, "fit")
        for name in ("steps", "ema_every", "evaluate_every", "checkpoint_every"):
            _at_least(f"fit.{name}", getattr(self, name), 1)
        _at_least("fit.window_rows", self.window_rows, 2)
        if self.batch_size is not None:
            _at_least("fit.batch_size", self.batch_size, 1)
        if self.patience is not None:
            _at_least("fit.patience", self.patience, 1)
            if self.holdout == 0:
                raise ConfigError("fit.patience needs a held-out loss: set fit.holdout above 0")
        for name in ("holdout", "ema_decay", "beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"fit.{name} must lie in [0, 1), got {getattr(self, name)}")
        for name in ("learning_rate", "max_grad_norm", "overfit", "minutes"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ConfigError(f"fit.{name} must be positive, got {getattr(self, name)}")

    def batch_for(self, rows: int) -> int:
        """Return the batch size of a fit on `rows` rows."""
        return self.batch_size if self.batch_size is not None else 256 if rows < 800_000 else 1024


@dataclass(frozen=True)
class DistillConfig:
    """Options of distillation: a fit can also make a student, a network that samples a row in a few network calls."""

    calls: int = 0
    """Number of network calls that the student needs for a row. 0: make no student."""
    steps: int | None = None
    """Number of optimiser steps of the student. None: half the steps of the fit."""
    rows: int | None = None
    """Number of rows that the fitted model samples for the student to learn from.
    None: as many as the model samples in a sixth of the time of the fit, at most 1M."""
    teacher_steps: int = 16
    """Number of network calls of the fitted model for each of these rows."""

    def __post_init__(self) -> None:
        make_plain(self, "distill")
        _at_least("distill.calls", self.calls, 0)
        for name in ("steps", "rows"):
            if getattr(self, name) is not None:
                _at_least(f"distill.{name}", getattr(self, name), 1)
        _at_least("distill.teacher_steps", self.teacher_steps, 1)


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"{name} must be at least {least}, got {value}")

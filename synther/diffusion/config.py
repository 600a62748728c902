"""What can be chosen about the model, its fit and its sampling. Free of PyTorch, so that `--help` is quick.

The defaults are the paper's; `synther/presets.py` names the useful departures.
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


@dataclass(frozen=True)
class NetworkConfig:
    """The denoising network."""

    kind: NetworkKind = "residual"
    """Blocks with a skip connection, or without (the paper's ablation)."""
    width: int = 1024
    """Columns of the hidden layers."""
    depth: int = 6
    """Number of blocks."""
    embedding: int = 128
    """Columns of the layer in which row and noise level meet."""
    frequencies: int = 8
    """Random Fourier frequencies that encode the noise level."""
    squeeze: bool = False
    """Keep `embedding` as it is even where a row has more columns."""

    def __post_init__(self) -> None:
        make_plain(self, "network")
        if self.kind not in get_args(NetworkKind):
            raise ConfigError(f"network.kind must be one of {', '.join(get_args(NetworkKind))}, got {self.kind!r}")
        for name in ("width", "depth", "embedding", "frequencies"):
            _at_least(f"network.{name}", getattr(self, name), 1)

    def build(self, columns: int, conditions: int = 0) -> Network:
        """A network for rows of so many columns and conditions, with random weights."""
        from synther.diffusion.networks import Network

        return Network(columns, self, conditions)


@dataclass(frozen=True)
class NoiseConfig:
    """Karras et al. 2022, Table 1: how noise is scaled, drawn while fitting, and stepped through while sampling."""

    sigma_data: float = 1.0
    sigma_min: float = 0.002
    sigma_max: float = 80.0
    rho: float = 7.0
    p_mean: float = -1.2
    p_std: float = 1.2

    def __post_init__(self) -> None:
        make_plain(self, "noise")
        if not 0 < self.sigma_min < self.sigma_max:
            raise ConfigError(f"expected 0 < noise.sigma_min < noise.sigma_max, got {self.sigma_min}, {self.sigma_max}")
        for name in ("sigma_data", "rho", "p_std"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"noise.{name} must be positive, got {getattr(self, name)}")


@dataclass(frozen=True)
class Sampler:
    """What is registered in `SAMPLERS`: a free function and what has to be known about it."""

    solve: Callable[..., Any]
    """solve(denoise, x, sigmas), which takes rows x (N, D) from noise sigmas[0] to sigmas[-1] = 0. A stochastic one is
    called as solve(denoise, x, sigmas, generator, config), with the `SamplerConfig`."""
    calls_per_step: int = 1
    """Network calls. With 2, the last step, to noise 0, has one."""
    stochastic: bool = False
    sigmas: Callable[[int, NoiseConfig], list[float]] | None = None
    """The noise levels of so many steps. By default those of Karras et al. 2022, Eq. 5."""


def _own(name: str) -> Callable[..., Any]:
    """A function of samplers.py, which imports PyTorch, imported when it is called."""

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
"""Samplers by the names of `SamplerConfig.kind`. Others can be registered here, or installed: see `Registry`."""

DISTILLED = "distilled"
"""The sampler of students, whose network it needs: see distill.py."""


@dataclass(frozen=True)
class SamplerConfig:
    """How rows are drawn. The s_ parameters belong to the stochastic sampler (`sde`)."""

    kind: str = "sde"
    """sde (the paper's), heun, euler, unipc, or the name of a registered sampler."""
    steps: int = 128
    s_churn: float = 80.0
    s_tmin: float = 0.05
    s_tmax: float = 50.0
    s_noise: float = 1.003
    matched: bool = False
    """Begin from noise stretched a little, so that rows have the mean and the covariance of the real ones. Where
    outcomes are residuals, observations and actions also get the real quantiles, column by column."""
    restarts: int = 0
    """Times that a finished row is noised a little and denoised once more, which brings it nearer to the data."""
    restart_steps: int = 4
    """Network calls of each of them."""
    restart_from: float = 0.08
    """Noise level that rows are raised to."""
    restart_to: float = 0.006
    """Noise level of the last call."""

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
        """Evaluations of the network that one row costs."""
        per_step = SAMPLERS.get(self.kind).calls_per_step
        return per_step * (self.steps - 1) + 1 + self.restarts * self.restart_steps


@dataclass(frozen=True)
class FitConfig:
    """How the network is fitted."""

    steps: int = 100_000
    """Optimiser steps; the learning rate falls along a cosine to 0 over them."""
    batch_size: int | None = None
    """Rows a step. None is the reference's rule: 256 under 800K rows, else 1024."""
    learning_rate: float = 3e-4
    beta1: float = 0.9
    beta2: float = 0.99
    max_grad_norm: float = 1.0
    """Largest norm of the gradient."""
    ema_decay: float = 0.995
    """Decay of the averaged weights, from which rows are sampled."""
    ema_every: int = 10
    """Steps between two updates of the average."""
    holdout: float = 0.05
    """Share of rows kept aside to measure the loss on, at most 10,000 of them."""
    evaluate_every: int = 1_000
    """Steps between two measurements of the held-out loss, and of progress; a multiple of ema_every, or rounded up."""
    patience: int | None = None
    """Stop after so many measurements without a better held-out loss, and keep the best weights. None never stops."""
    overfit: float | None = None
    """Stop once the held-out loss is this far above its lowest (0.1: by a tenth), and keep the best weights. None never
    stops."""
    checkpoint_every: int = 10_000
    """Steps between two checkpoints, where a checkpoint file was asked for; after a minute one is written anyway."""
    minutes: float | None = None
    """Wall-clock budget: the learning rate reaches 0 with it, if the steps do not run out before."""
    window_rows: int = field(default=WINDOW_ROWS, repr=False)  # checkpoints of fits in memory do not depend on it
    """Parquet files with more rows are streamed: so many are in memory at a time, and are replaced little by little."""

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
        return self.batch_size if self.batch_size is not None else 256 if rows < 800_000 else 1024


@dataclass(frozen=True)
class DistillConfig:
    """Whether a fit also makes a student, which takes a few network calls for a row, and how."""

    calls: int = 0
    """Network calls for a row of the student. 0 makes no student."""
    steps: int | None = None
    """Optimiser steps of the student. None is half of those of the fit."""
    rows: int | None = None
    """Rows that the fitted model draws for the student to learn from. None is as many as take it a sixth of the time of
    the fit, at most 1M."""
    teacher_steps: int = 16
    """Network calls of the fitted model for each of these rows."""

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

"""Every sampler on Gaussian data, whose denoiser and whose flow are known exactly."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise

import pytest
import torch
from numpy.polynomial import Polynomial

from synther.diffusion.config import SAMPLERS, NoiseConfig, Sampler, SamplerConfig
from synther.diffusion.edm import geometric_sigmas, karras_sigmas
from synther.diffusion.samplers import euler, heun, restart, sample, sigmas_of, stochastic_heun, unipc
from synther.errors import ConfigError
from synther.presets import PRESETS, Settings

DETERMINISTIC = {"euler": euler, "heun": heun, "unipc": unipc}
KINDS = [*DETERMINISTIC, "sde"]


class Recorder:
    """A denoiser that leaves rows as they are and remembers the levels at which it was asked."""

    def __init__(self) -> None:
        self.levels: list[float] = []

    def __call__(self, x: torch.Tensor, sigma: float) -> torch.Tensor:
        self.levels.append(sigma)
        return x


@pytest.mark.parametrize(("kind", "order"), [("euler", 1), ("heun", 2), ("unipc", 3)])
def test_order_of_convergence(kind, order, gaussian, generator):
    # The last jump, to noise 0, is one Euler step whatever the number of steps: as its error does not shrink,
    # it is left out. The nodes before it are even in sigma^(1/7), a smooth change of variable: the error
    # has an expansion in 1/n.
    noise = NoiseConfig(sigma_min=0.1, sigma_max=20)
    x = gaussian.draw(64, noise.sigma_max, generator)
    exact = gaussian.flow(x, noise.sigma_max, noise.sigma_min)
    counts = [1024, 2048, 4096] if kind == "unipc" else [128, 256, 512]
    errors = []
    for count in counts:
        sigmas = karras_sigmas(count + 1, noise)[:-1]
        errors.append(float((DETERMINISTIC[kind](gaussian.denoise, x, sigmas) - exact).norm() / exact.norm()))
    orders = [math.log2(coarse / fine) for coarse, fine in pairwise(errors)]
    # An error c n^-p (1 + a / n) is seen with order p + a / (2 n ln 2), twice as close to p at each doubling.
    assert orders[-1] == pytest.approx(order, abs=0.1 if kind == "unipc" else 0.01)
    assert abs(orders[1] - order) < 0.75 * abs(orders[0] - order)
    assert errors[-1] < {1: 1e-2, 2: 1e-4, 3: 1e-9}[order]


@pytest.mark.parametrize("order", [1, 2, 3])
def test_unipc_is_exact_for_polynomials_of_lower_degree(order):
    """If the denoised rows are a polynomial D of l = -ln sigma, the flow is x = D - D' + D'' + c e^-l."""
    # No two steps are alike. The first ones, which know too little of D, are so small that they do not matter.
    sigmas = [9.0, 9.0 * (1 - 1e-4), 9.0 * (1 - 2e-4), 4.0, 3.0, 0.5, 0.4, 0.1]
    polynomial = Polynomial([2.0, -0.7, 0.3][:order])
    particular = polynomial - polynomial.deriv() + polynomial.deriv(2)

    def denoise(x: torch.Tensor, sigma: float) -> torch.Tensor:
        return torch.full_like(x, polynomial(-math.log(sigma)))

    x = torch.tensor([[3.0, -5.0]], dtype=torch.float64)
    start, end = particular(-math.log(9.0)), particular(-math.log(0.1))
    torch.testing.assert_close(unipc(denoise, x, sigmas, order), end + (x - start) * 0.1 / 9, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_have_the_mean_and_the_covariance(kind, gaussian, generator):
    noise, count = NoiseConfig(), 5_000
    # Enough steps that the method's own error is small beside 10 %, five standard errors of a variance here.
    config = SamplerConfig(kind, {"euler": 600, "heun": 128, "unipc": 128, "sde": 128}[kind], s_noise=1.0)
    start = gaussian.draw(count, noise.sigma_max, generator)
    x = sample(config, gaussian.denoise, start, karras_sigmas(config.steps, noise), generator)
    variances = gaussian.covariance.diag()
    five = 5 / math.sqrt(count)
    assert ((x.mean(0) - gaussian.mean).abs() < five * variances.sqrt()).all()
    # Var of a sample covariance: (C_ii C_jj + C_ij^2) / n.
    spread = (torch.outer(variances, variances) + gaussian.covariance**2).sqrt()
    assert ((torch.cov(x.t()) - gaussian.covariance).abs() < five * spread).all()


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_without_churn_the_stochastic_sampler_is_heuns(steps, gaussian, generator):
    sigmas = karras_sigmas(steps, NoiseConfig())
    x = gaussian.draw(10, sigmas[0], generator)
    assert torch.equal(
        stochastic_heun(gaussian.denoise, x, sigmas, generator, s_churn=0), heun(gaussian.denoise, x, sigmas)
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [1, 2, 5, 18])
def test_network_calls_are_counted(kind, steps, generator):
    config, denoise = SamplerConfig(kind, steps), Recorder()
    sample(config, denoise, torch.ones(2, 3), karras_sigmas(steps, NoiseConfig()), generator)
    assert len(denoise.levels) == config.network_calls
    assert SamplerConfig().network_calls == 255  # the paper's


@pytest.mark.parametrize("churn", [1.0, 80.0], ids=["below the bound", "at the bound"])
def test_churn_raises_the_level_only_inside_its_range(churn, generator):
    steps, denoise = 40, Recorder()
    sigmas = karras_sigmas(steps, NoiseConfig())
    limits = {"s_tmin": sigmas[25], "s_tmax": sigmas[5]}  # both ends belong to the range
    stochastic_heun(denoise, torch.zeros(1, 1), sigmas, generator, s_churn=churn, **limits)
    gamma = min(churn / steps, math.sqrt(2) - 1)
    assert denoise.levels[::2] == [s * (1 + gamma) if 5 <= i <= 25 else s for i, s in enumerate(sigmas[:-1])]
    assert denoise.levels[1::2] == sigmas[1:-1]


@pytest.mark.parametrize("s_noise", [0.0, 1.0, 1.5])
def test_churn_adds_the_variance_that_the_raised_level_has_times_s_noise(s_noise, generator):
    steps, count = 20, 50_000
    sigmas, churn = karras_sigmas(steps, NoiseConfig()), {"s_churn": 4, "s_tmin": 0, "s_tmax": 80}
    x = stochastic_heun(Recorder(), torch.zeros(count, 1), sigmas, generator, **churn, s_noise=s_noise)
    # Under a denoiser that finds no noise rows only gather what churn adds: (1.2^2 - 1) sigma^2 at each step.
    expected = sum(0.44 * sigma**2 for sigma in sigmas)
    assert float(x.var()) / expected == pytest.approx(s_noise**2, rel=5 * math.sqrt(2 / count))


@pytest.mark.parametrize("kind", KINDS)
def test_sample_runs_the_sampler_of_that_name_and_leaves_its_start_alone(kind, gaussian, generator):
    settings = {"s_churn": 3.0, "s_tmin": 0.1, "s_tmax": 9.0, "s_noise": 1.1}
    sampler = {**DETERMINISTIC, "sde": partial(stochastic_heun, generator=generator, **settings)}[kind]
    sigmas = karras_sigmas(8, NoiseConfig())
    x = gaussian.draw(10, sigmas[0], generator)
    before = x.clone()
    generator.manual_seed(5)
    expected = sampler(gaussian.denoise, x, sigmas)
    generator.manual_seed(5)
    assert torch.equal(sample(SamplerConfig(kind, 8, **settings), gaussian.denoise, x, sigmas, generator), expected)
    assert torch.equal(x, before)


def test_restarts_have_their_calls_levels_and_noise(generator):
    config = SamplerConfig("unipc", 5, restarts=2, restart_steps=4, restart_from=0.08, restart_to=0.01)
    denoise = Recorder()
    sample(config, denoise, torch.ones(2, 3), karras_sigmas(5, NoiseConfig()), generator)
    assert denoise.levels[5:] == pytest.approx([0.08, 0.04, 0.02, 0.01] * 2)
    assert len(denoise.levels) == config.network_calls == 13
    # A denoiser that finds no noise leaves rows with all that they were given.
    x = restart(Recorder(), torch.zeros(50_000, 1), [0.5, 0.1, 0.0], generator, times=3)
    assert float(x.var()) / (3 * 0.25) == pytest.approx(1, abs=5 * math.sqrt(2 / 50_000))


def test_restarts_bring_rows_onto_the_surface_of_the_data(generator):
    """Data on the line y = 2 x: what lies beside it is drawn onto it, and stays where it is along it."""
    along = torch.tensor([1.0, 2.0], dtype=torch.float64) / math.sqrt(5)
    across = torch.tensor([-2.0, 1.0], dtype=torch.float64) / math.sqrt(5)
    x = torch.randn(2_000, 2, generator=generator, dtype=torch.float64)

    def denoise(x: torch.Tensor, sigma: float) -> torch.Tensor:
        return torch.outer(x @ along / (1 + sigma**2), along)

    pulled = restart(denoise, x, geometric_sigmas(6, 0.1, 0.003), generator, times=1)
    assert (x @ across).abs().mean() > 0.5
    assert (pulled @ across).abs().max() < 1e-12
    assert torch.corrcoef(torch.stack([x @ along, pulled @ along]))[0, 1] > 0.99
    assert float((pulled @ along).std() / (x @ along).std()) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    "wrong", [{"restarts": -1}, {"restart_steps": 0}, {"restart_from": 0.001}, {"restart_to": 0.0}, {"restart_to": 0.2}]
)
def test_restarts_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ConfigError, match="restart"):
        SamplerConfig(**wrong)


def test_unipc_steps_evenly_in_the_logarithm_and_the_others_as_the_paper_does():
    noise = NoiseConfig()
    levels = sigmas_of(SamplerConfig("unipc", 16), noise)
    ratios = [after / before for before, after in pairwise(levels[:-1])]
    assert (levels[0], levels[-1], len(levels)) == (noise.sigma_max, 0.0, 17)
    assert levels[-2] == pytest.approx(noise.sigma_min)
    assert ratios == pytest.approx([ratios[0]] * 15)
    for kind in ("sde", "heun", "euler"):
        assert sigmas_of(SamplerConfig(kind, 16), noise) == karras_sigmas(16, noise)


def deviation(settings: Settings, scale: float, monkeypatch: pytest.MonkeyPatch) -> float:
    """Of what comes out where data are Gaussian of deviation `scale`, whose denoiser multiplies: without chance.

    The sampler is then linear in all its random numbers. Rows stand for those, with the factor of each.
    """
    config, sigmas = settings.sampler, sigmas_of(settings.sampler, settings.noise)
    factors = torch.zeros(1 + config.restarts, 1, dtype=torch.float64)
    factors[0] = sigmas[0]
    drawn = iter(torch.eye(1 + config.restarts, dtype=torch.float64)[1:, :, None])
    with monkeypatch.context() as patch:
        patch.setattr(torch, "randn", lambda shape, **_: next(drawn))
        generator = torch.Generator()
        came = sample(config, lambda x, sigma: scale**2 / (scale**2 + sigma**2) * x, factors, sigmas, generator)
    assert next(drawn, None) is None
    return float(came.norm())


def test_a_stochastic_sampler_from_outside_gets_random_numbers_and_its_options(gaussian, generator):
    def ancestral(denoise, x, sigmas, generator, config):
        """Denoise, and noise again to the next level."""
        for sigma, sigma_next in pairwise(sigmas):
            eps = torch.randn(x.shape, generator=generator, dtype=x.dtype)
            x = denoise(x, sigma) + config.s_noise * sigma_next * eps
        return x

    def few_levels(steps: int, noise: NoiseConfig) -> list[float]:
        return [noise.sigma_max / 2**i for i in range(steps)] + [0.0]

    SAMPLERS.register("ancestral", Sampler(ancestral, stochastic=True, sigmas=few_levels, calls_per_step=2))
    config = SamplerConfig("ancestral", steps=6, s_noise=0.5)
    try:
        sigmas = sigmas_of(config, NoiseConfig())
        assert (sigmas, config.network_calls) == (few_levels(6, NoiseConfig()), 11)
        x = gaussian.draw(10, sigmas[0], generator)
        drawn = sample(config, gaussian.denoise, x, sigmas, generator.manual_seed(1))
        assert torch.equal(drawn, ancestral(gaussian.denoise, x, sigmas, generator.manual_seed(1), config))
    finally:
        SAMPLERS.remove("ancestral")


SCALES = [1.0, 0.5, 0.2, 0.1, 0.05, 0.02]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ["best", "fast", "laptop"])
def test_few_steps_make_no_direction_narrower_or_wider_by_three_per_cent(name, scale, monkeypatch):
    assert deviation(PRESETS[name], scale, monkeypatch) == pytest.approx(scale, rel=0.03)


@pytest.mark.parametrize("name", ["best", "laptop"])
def test_few_steps_fill_the_edge_beside_a_spike(name):
    """A clipped normal column: values at a limit are moved out by half a std, and the density ends beside the gap."""
    limit, gap = 1.645, 0.5
    normal = torch.distributions.Normal(torch.tensor(0.0).double(), 1.0)
    values = normal.icdf((torch.arange(1_000).double() + 0.5) / 1_000).clamp(-limit, limit)
    moved = values + gap * (values.abs() == limit) * values.sign()
    unit = moved.std()
    rows, shares = (moved / unit).unique(return_counts=True)

    def expected(grid: torch.Tensor, sigma: float) -> torch.Tensor:
        chance = shares.log() - (grid[:, None] - rows).square() / (2 * sigma**2)
        return chance.softmax(1) @ rows

    def denoise(x: torch.Tensor, sigma: float) -> torch.Tensor:  # from a table: it has one column
        end = float(x.abs().max()) + 1e-6
        step = 2 * end / 2_000
        table = expected(torch.linspace(-end, end, 2_001).double(), sigma)
        place = (x + end) / step
        low = place.long().clamp(max=1_999)
        return table[low].lerp(table[low + 1], place - low)

    settings = PRESETS[name]
    generator = torch.Generator().manual_seed(0)
    sigmas = sigmas_of(settings.sampler, settings.noise)
    even = normal.icdf((torch.arange(20_000).double() + 0.5) / 20_000)
    begin = math.hypot(sigmas[0], 1) * even[torch.randperm(len(even), generator=generator)]
    drawn = sample(settings.sampler, denoise, begin, sigmas, generator) * unit
    beside = float(((drawn.abs() < limit) & (drawn.abs() > limit - 0.25)).double().mean())
    real = float(((values.abs() < limit) & (values.abs() > limit - 0.25)).double().mean())
    assert beside == pytest.approx(real, rel=0.05)

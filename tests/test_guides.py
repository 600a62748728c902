"""Guides: closed forms on normal rows, and rows of a fitted model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from synther import Synthesizer, Transitions, compute, read
from synther.data.preparing import prepare
from synther.diffusion import samplers
from synther.diffusion.config import NoiseConfig
from synther.errors import ConfigError, DataError
from synther.guides import Guide, View, gradient_guide, policy_guide, value_guide
from synther.synthesizer import single_file

from .support.watch import Stopped, Watch

NOISE = 0.1


def world(count: int, seed: int = 0) -> Transitions:
    """Normal observations, actions that follow them, and outcomes with noise of 0.1."""
    draw = np.random.default_rng(seed)
    s = draw.normal(size=(count, 2)) * (1.0, 3.0) + (0.0, 5.0)
    a = 0.5 * s[:, :1] + 0.5 * draw.normal(size=(count, 1))
    return Transitions(
        s, a, s[:, 0] + a[:, 0], expected(s, a) + NOISE * draw.normal(size=(count, 2)), np.zeros(count, bool)
    )


def expected(s: np.ndarray, a: np.ndarray) -> np.ndarray:
    return 0.9 * s + np.concatenate([0.3 * a, 0.2 * np.sin(2 * a)], axis=1)


class Exact:
    """Observations and actions of normal rows drawn with their exact denoiser and a guide."""

    def __init__(self, scaling: str = "standard") -> None:
        rows = world(50_000)
        self.prepared = prepare(rows, scaling, "onehot", spikes=False)
        matrix = torch.from_numpy(self.prepared.matrix).double()
        self.covariance = torch.cov(matrix.T)
        self.view = View(self.prepared.layout, self.prepared.scaler, self.covariance, torch.device("cpu"))

    def draw(self, guide: Guide, count: int = 20_000) -> Transitions:
        generator = torch.Generator().manual_seed(0)
        sigmas = samplers.log_sigmas(40, NoiseConfig(sigma_max=20))
        columns = len(self.covariance)

        def denoise(x: torch.Tensor, sigma: float) -> torch.Tensor:
            gain = self.covariance @ torch.linalg.inv(self.covariance + sigma**2 * torch.eye(columns).double())
            return guide.moved(x, (x.double() @ gain.T).float(), sigma, self.view)

        x = samplers.unipc(denoise, sigmas[0] * torch.randn(count, columns, generator=generator), sigmas)
        return self.prepared.layout.unpack(self.prepared.scaler.inverse(x.numpy()))


@pytest.fixture(scope="module")
def exact() -> Exact:
    return Exact()


@pytest.fixture(scope="module")
def model() -> Synthesizer:
    network = {"width": 64, "depth": 2, "embedding": 32}
    short = {"network": network, "fit": {"steps": 400, "batch_size": 128, "learning_rate": 3e-3}}
    return Synthesizer("laptop", **short).fit(world(6_000), progress=False)


def test_a_constant_gradient_shifts_normal_rows_by_their_covariance(exact):
    rows, real = exact.draw(gradient_guide(lambda s, a: torch.full_like(a, 0.5))), world(50_000)
    covariance = np.cov(np.column_stack([real.observation, real.action]).T)
    shift = np.column_stack([rows.observation, rows.action]).mean(0) - np.column_stack(
        [real.observation, real.action]
    ).mean(0)
    # 20,000 rows: means to 0.007 of a std.
    assert shift == pytest.approx(0.5 * covariance[:, 2], abs=0.06)
    assert rows.action.std() == pytest.approx(real.action.std(), rel=0.03)


@pytest.mark.parametrize("std", [0.0, 0.2])
@pytest.mark.parametrize("scaling", ["standard", "quantile"])
def test_at_full_strength_actions_are_those_of_the_policy_and_as_random(scaling, std):
    rows = Exact(scaling).draw(policy_guide(lambda s: 0.9 * s[:, :1], std=std))
    about = rows.action[:, 0] - 0.9 * rows.observation[:, 0]
    assert np.abs(about.mean()) < 0.03
    # The network takes noisy actions for those of the data, and errs about the observations to which they belong.
    assert std - 0.02 < about.std() < std + 0.08


def test_strength_lies_between_the_data_and_the_policy(exact):
    def distance(strength: float) -> float:
        rows = exact.draw(policy_guide(lambda s: -s[:, :1], strength, std=0.2))
        return float(np.abs(rows.action[:, 0] + rows.observation[:, 0]).mean())

    none, half, full = map(distance, (0.0, 0.5, 1.0))
    assert none > half + 0.3 > full + 0.6


def test_a_value_guide_follows_the_lowest_critic(exact):
    def critics(s: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return torch.stack([-((a[:, 0] - 2) ** 2), 50 + 100 * a[:, 0]])

    real, rows = world(20_000), exact.draw(value_guide(critics, 2.0))
    assert real.action.mean() + 0.5 < rows.action.mean() < 2


def test_outcomes_stay_as_noisy_as_they_are(model):
    plain = model.sample(6_000, seed=0, progress=False)
    rows = model.sample(6_000, seed=0, guide=policy_guide(lambda s: -s[:, :1], std=0.2), progress=False)
    spreads = [(r.next_observation - expected(r.observation, r.action)).std(0) for r in (plain, rows)]
    assert spreads[1] == pytest.approx(spreads[0], rel=0.15)
    assert np.abs(rows.action[:, 0] + rows.observation[:, 0]).mean() < 0.4


@pytest.mark.parametrize("guide", [policy_guide(lambda s: -s[:, :1], 0.0), gradient_guide(lambda s, a: a, 0.0)])
def test_without_strength_rows_are_the_same(model, guide):
    plain, rows = model.sample(500, seed=3, progress=False), model.sample(500, seed=3, guide=guide, progress=False)
    for name, values in plain.arrays().items():
        assert np.array_equal(values, getattr(rows, name))


class Acting:
    def act(self, observations: np.ndarray) -> np.ndarray:
        return -observations[None, :, :1]  # of one member


class Predicting:
    def predict(self, observation: np.ndarray) -> tuple[np.ndarray, None]:
        return -observation[:, :1], None


@pytest.mark.parametrize("agent", [Acting(), Predicting(), lambda s: (-s[:, :1], torch.zeros_like(s[:, :1]))])
def test_agents_are_policies(model, agent):
    as_function, rows = (
        model.sample(300, seed=0, guide=policy_guide(policy), progress=False) for policy in (lambda s: -s[:, :1], agent)
    )
    assert np.allclose(as_function.action, rows.action, atol=1e-5)


def test_what_follows_given_observations_and_actions(model):
    draw = np.random.default_rng(5)
    s, a = world(4_000, 7).observation, draw.uniform(-1, 1, (4_000, 1))
    rows = model.sample(given={"observation": s, "action": a}, seed=0, progress=False)
    assert np.array_equal(rows.observation, s.astype(rows.observation.dtype))
    assert np.array_equal(rows.action, a.astype(rows.action.dtype))
    error = rows.next_observation - expected(s, a)
    # A short fit; what it adds to the noise is the same for rows that it chose itself.
    own = model.sample(4_000, seed=0, progress=False)
    usual = (own.next_observation - expected(own.observation, own.action)).std(0)
    assert error.std(0) == pytest.approx(usual, rel=0.2)
    assert np.abs(np.corrcoef(np.column_stack([s, a, error]).T)[:3, 3:]).max() < 0.3
    assert np.array_equal(
        rows.reward, model.sample(given={"observation": s, "action": a}, seed=0, progress=False).reward
    )


def test_actions_may_be_left_to_the_model(model):
    s = np.tile([2.0, 5.0], (2_000, 1))
    rows = model.sample(given={"observation": s}, seed=0, progress=False)
    assert rows.action.mean() == pytest.approx(1.0, abs=0.2)
    assert rows.action.std() == pytest.approx(0.5, rel=0.25)


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"given": {"reward": np.zeros(3)}}, ConfigError),
        ({"given": {}}, ConfigError),
        ({"given": {"observation": np.zeros((3, 2)), "action": np.zeros((2, 1))}}, DataError),
        ({"given": {"observation": np.full((3, 2), np.nan)}}, DataError),
        ({"given": {"observation": np.zeros((3, 5))}}, DataError),
        ({"given": {"observation": np.zeros((3, 2))}, "count": 7}, ConfigError),
        ({"given": {"observation": np.zeros((3, 2))}, "like": world(10)}, ConfigError),
        ({}, ConfigError),
        ({"count": 10, "guide": 3}, ConfigError),
        ({"count": 10, "guide": lambda s, a: a[:, 0]}, DataError),
        ({"count": 10, "guide": lambda s, a: a * torch.nan}, DataError),
        ({"count": 10, "guide": policy_guide(lambda s: s)}, DataError),
    ],
)
def test_bad_requests_are_refused(model, asked, error):
    with pytest.raises(error):
        model.sample(**asked, progress=False)


@pytest.mark.parametrize("make", [lambda: policy_guide(3), lambda: policy_guide(lambda s: s, 1.5)])
def test_bad_guides_are_refused(make):
    with pytest.raises(ConfigError):
        make()


def test_actions_without_an_order_cannot_be_guided():
    rows = world(300)
    discrete = Transitions(rows.observation, np.arange(300) % 3, rows.reward, rows.next_observation, rows.terminal)
    small = {"network": {"width": 8, "depth": 1}, "fit": {"steps": 5}, "data": {"finite": "generated"}}
    fitted = Synthesizer("laptop", **small).fit(discrete, progress=False)
    with pytest.raises(ConfigError, match="action"):
        fitted.sample(10, guide=lambda s, a: a, progress=False)


def test_observations_without_an_order_can_be_seen_by_guides():
    draw, count = np.random.default_rng(0), 2_000
    task = np.eye(3)[draw.integers(0, 3, count)]
    speed, action = draw.normal(size=(2, count))
    s, later = np.column_stack([task, speed]), np.column_stack([task, speed + 0.1 * action])
    real = Transitions(s, action[:, None], action, later, np.zeros(count, bool))
    small = {"network": {"width": 48, "depth": 2}, "fit": {"steps": 300, "batch_size": 128, "learning_rate": 4e-3}}
    fitted = Synthesizer("laptop", **small).fit(real, progress=False)
    assert fitted.layout.following  # the next task is drawn from a table

    wanted = torch.tensor([-2.0, 0.0, 2.0])
    guide = policy_guide(lambda s: (s[:, :3] @ wanted)[:, None])
    rows = fitted.sample(1_000, seed=0, guide=guide, progress=False)
    assert np.array_equal(rows.observation[:, :3], rows.next_observation[:, :3])
    assert rows.observation[:, :3].mean(0) == pytest.approx(1 / 3, abs=0.08)
    assert np.abs(rows.action[:, 0] - rows.observation[:, :3] @ wanted.numpy()).mean() < 0.2

    pushed = fitted.sample(1_000, seed=0, guide=lambda s, a: (s, torch.ones_like(a)), progress=False)
    assert pushed.action.mean() > 0.5


class Saved:
    """A policy that can be told from others."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, observations: torch.Tensor) -> torch.Tensor:
        return self.factor * observations[:, :1]

    def digest(self) -> str:
        return str(self.factor)


@pytest.mark.parametrize(
    ("first", "later", "goes_on"),
    [(Saved(-1), Saved(-1), True), (Saved(-1), Saved(1), False), (lambda s: -s[:, :1], lambda s: s[:, :1], False)],
)
def test_a_file_of_guided_rows_goes_on_if_the_guide_is_surely_the_same(
    model, first, later, goes_on, tmp_path, monkeypatch
):
    monkeypatch.setattr(compute, "block_rows", lambda device: 64)
    monkeypatch.setattr(single_file, "SPOOLED_BLOCKS", 1)
    path, watch = tmp_path / "rows.npz", Watch()
    with pytest.raises(Stopped):
        model.sample_to(path, 300, guide=policy_guide(first), progress=Watch(("sample", 200)))
    model.sample_to(path, 300, guide=policy_guide(later), progress=watch)
    assert watch.phases[0][2] == (192 if goes_on else 0)
    assert read(path).equals(model.sample(300, seed=0, guide=policy_guide(later), progress=False))


def test_a_guide_stays_in_its_process(model, tmp_path):
    with pytest.raises(ConfigError, match="guide"):
        model.sample_to(tmp_path / "folder", 300, guide=lambda s, a: a, parallel=2, progress=False)


def test_without_strength_a_student_draws_as_it_would(tmp_path, model):
    path = tmp_path / "m.safetensors"
    model.save(path)
    taught = Synthesizer.load(path).distill(1, steps=10, rows=500, progress=False)
    plain, rows = (
        taught.sample(100, seed=0, guide=guide, progress=False) for guide in (None, policy_guide(lambda s: s, 0.0))
    )
    assert rows.equals(plain)

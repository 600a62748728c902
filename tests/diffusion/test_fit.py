from __future__ import annotations

import math
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from synther import compute
from synther.diffusion import fit as fit_module
from synther.diffusion import schedule
from synther.diffusion.blocks import BlockSampler
from synther.diffusion.config import FitConfig, NetworkConfig, NoiseConfig, SamplerConfig
from synther.diffusion.fit import Diverged, FitResult, Member, State, Trainer, fit, held_out_loss, split
from synther.diffusion.gradient import FlatWeights
from synther.errors import ConfigError
from synther.progress import Lines

from ..support.watch import Stopped, Watch

TINY = NetworkConfig(width=16, depth=2, embedding=8, frequencies=4)
NOISE = NoiseConfig()


def rows(count: int = 200, columns: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(count, columns, generator=torch.Generator().manual_seed(seed))


def tiny_fit(data: Tensor | None = None, seed: int = 0, network: NetworkConfig = TINY, **options) -> FitResult:
    options = {"steps": 40, "batch_size": 16, "evaluate_every": 10, **options}
    return fit(rows() if data is None else data, network, FitConfig(**options), NOISE, seed=seed)


def weights(result: FitResult) -> Tensor:
    return torch.cat([parameter.flatten() for parameter in result.network.parameters()])


def test_learns_a_correlated_gaussian():
    covariance = torch.tensor([[1.0, 0.8], [0.8, 1.0]])
    data = rows(4000, 2) @ torch.linalg.cholesky(covariance).t()
    config = FitConfig(steps=400, batch_size=128, learning_rate=4e-3, evaluate_every=200)
    result = fit(data, NetworkConfig(width=64, depth=2, embedding=32), config, NOISE)
    sampler = BlockSampler(result.network, NOISE, SamplerConfig("unipc", 20))
    drawn = torch.cat([sampler.draw(0, block) for block in range(16)])
    # Five standard errors of 4,000 rows and of 8,192 drawn: 0.11 + 0.08 for a variance, 0.10 + 0.07 for the covariance.
    # An unfitted network (F about 0) gives covariance 0.
    margin = torch.tensor([[0.19, 0.17], [0.17, 0.19]])
    assert ((torch.cov(drawn.t()) - covariance).abs() < margin).all()
    # Means: 5 / sqrt(4000) + 5 / sqrt(8192).
    assert drawn.mean(0).abs().max() < 0.14


def test_the_seed_decides_and_measurements_do_not():
    one, same, other = tiny_fit(seed=1), tiny_fit(seed=1), tiny_fit(seed=2)
    assert torch.equal(weights(one), weights(same))
    assert [entry["loss"] for entry in one.history] == [entry["loss"] for entry in same.history]
    assert not torch.isclose(weights(one), weights(other)).any(dim=0).all()
    often, never = tiny_fit(evaluate_every=10), tiny_fit(evaluate_every=1000)
    assert torch.equal(weights(often), weights(never))


def test_history_records_every_measurement_as_a_mean_since_the_last():
    result = tiny_fit(steps=45)
    assert [entry["step"] for entry in result.history] == [10, 20, 30, 40, 45]
    assert result.steps == 45
    assert all(math.isfinite(entry["loss"]) and math.isfinite(entry["held_out"]) for entry in result.history)
    seconds = [entry["seconds"] for entry in result.history]
    assert seconds == sorted(seconds)
    assert result.seconds == seconds[-1] > 0
    options = {"steps": 15, "ema_every": 5}
    often, seldom = ([e["loss"] for e in tiny_fit(evaluate_every=n, **options).history] for n in (5, 10))
    assert seldom == pytest.approx([(often[0] + often[1]) / 2, often[2]], rel=1e-6)


@pytest.mark.parametrize("steps", [1, 5, 10, 37])
def test_any_number_of_steps_moves_the_averaged_weights(steps):
    # The average follows at the end of each ten steps, and of the rest.
    start = tiny_fit(steps=1, learning_rate=1e-30)
    moved = (weights(tiny_fit(steps=steps, evaluate_every=1000)) - weights(start)).abs().max()
    # Adam's steps are of the learning rate's size, 3e-4, and at most ten times that (Kingma and Ba 2015, section 2.1).
    assert 1e-5 < moved < steps * 3e-3


def trainer(**options) -> Trainer:
    config = FitConfig(**options)
    member = Member.begin(rows(), TINY, config, seed=0)
    weights = FlatWeights(member.result.network).gather(member.result.network)
    return Trainer([member], State.initial(weights[None]), config, NOISE)


def test_average_is_exponential_once_warm():
    made = trainer(batch_size=4, ema_every=2, ema_decay=0.9)
    expected = made.state.weights.clone()
    for number in range(60):
        made.run(2 * number, torch.full((2,), 1e-3))
        share = max(0.1, (1 + number) ** (-2 / 3))  # the warm-up ends after round 31, where that is 0.1
        expected = (1 - share) * expected + share * made.state.weights
        # Weights of order 0.1 in float32, whose errors fade as the average moves on.
        torch.testing.assert_close(made.state.average, expected, rtol=0, atol=1e-6)
    assert not torch.isclose(made.state.average, made.state.weights).all()


def test_some_rows_are_held_out_and_none_of_them_is_fitted():
    fitted, held_out = split(torch.zeros(300_000, 1), 0.05, seed=0)
    assert (len(fitted), len(held_out)) == (290_000, 10_000)  # and never more
    assert tiny_fit(rows(40), overfit=0.1, holdout=0).steps == 40  # nobody can tell what is learned by heart
    data = rows(100)
    fitted, held_out = split(data, 0.3, seed=4)
    assert held_out is not None
    assert (len(fitted), len(held_out)) == (70, 30)
    both = torch.cat([data[fitted], held_out])
    assert torch.equal(both.sort(0).values, data.sort(0).values)
    for count in (1, 2, 3):
        assert tiny_fit(rows(count), holdout=0.9).steps == 40
    with pytest.raises(ConfigError, match=r"fit\.patience .* fit\.holdout"):
        tiny_fit(rows(3), patience=2)
    # So that the loss on three rows is near its expectation: by other noise it is about the same.
    network = tiny_fit().network
    one, other = (held_out_loss(network, rows(3), NOISE, seed) for seed in (0, 1))
    assert one != other
    assert one == pytest.approx(other, rel=0.1)


def test_no_two_draws_share_a_stream(monkeypatch):
    keys, reseed = [], compute.reseed

    def spy(source: torch.Generator, *key: int) -> torch.Generator:
        keys.append(key)
        return reseed(source, *key)

    monkeypatch.setattr(compute, "reseed", spy)
    sampler = BlockSampler(tiny_fit(evaluate_every=40).network, NOISE, SamplerConfig("euler", 1))
    for block in range(4):
        sampler.draw(0, block)
    # Weights, rows held out and their noise, four rounds, four blocks.
    assert len(keys) == len(set(keys)) == 11
    assert {key[0] for key in keys} == {0}  # the seed
    assert len({key[1] for key in keys}) == 5


# Twenty rows to learn by heart and twenty to notice by.
FEW = rows(40, 2)
BY_HEART = {"steps": 20_000, "learning_rate": 3e-3, "holdout": 0.5, "evaluate_every": 50, "ema_decay": 0.9}
WIDE = NetworkConfig(width=64, depth=2, embedding=16)


def loss_of_few(result: FitResult) -> float:
    _, held_out = split(FEW, 0.5, 0)
    assert held_out is not None
    return held_out_loss(result.network, held_out, NOISE, 0)


def test_early_stop_returns_the_best_weights():
    result = tiny_fit(FEW, network=WIDE, patience=3, **BY_HEART)
    losses = [entry["held_out"] for entry in result.history]
    assert result.steps == 50 * len(losses) < 20_000
    assert losses.index(min(losses)) == len(losses) - 1 - 3
    assert loss_of_few(result) == min(losses) < losses[-1]


def test_rows_learned_by_heart_end_a_fit_with_its_best_weights():
    result = tiny_fit(FEW, network=WIDE, overfit=0.1, **BY_HEART)
    losses = [entry["held_out"] for entry in result.history]
    assert result.steps == 50 * len(losses) < 20_000
    above = [losses[at] > 1.1 * min(losses[: at + 1]) for at in range(len(losses))]
    assert above == [False] * (len(losses) - 1) + [True]
    assert loss_of_few(result) == min(losses) < losses[-1]


def test_a_loss_that_has_risen_a_little_ends_no_fit():
    few_steps = {**BY_HEART, "steps": 450}
    plain, limited = (tiny_fit(FEW, network=WIDE, overfit=limit, **few_steps) for limit in (None, 100.0))
    losses = [entry["held_out"] for entry in limited.history]
    assert limited.steps == 450
    assert loss_of_few(limited) == losses[-1] > min(losses)
    assert torch.equal(weights(limited), weights(plain))


def test_learning_rate_falls_along_a_cosine():
    rates = schedule.learning_rates(FitConfig(steps=1000, learning_rate=2.0), 0, 1000, seconds=1e9)
    expected = [1 + math.cos(math.pi * step / 1000) for step in range(1000)]
    assert rates.tolist() == pytest.approx(expected, abs=1e-6)
    part = schedule.learning_rates(FitConfig(steps=1000, learning_rate=2.0), 300, 100, seconds=0)
    assert torch.equal(part, rates[300:400])


def test_a_budget_of_minutes_ends_the_fit_and_the_learning_rate(monkeypatch):
    clock = iter(range(10_000))
    monkeypatch.setattr(fit_module, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    asked, rates_of = [], schedule.learning_rates

    def spy(*arguments) -> Tensor:
        asked.append(rates_of(*arguments))
        return asked[-1]

    monkeypatch.setattr(schedule, "learning_rates", spy)
    lines = StringIO()
    config = FitConfig(steps=120, batch_size=16, ema_every=1, evaluate_every=1, minutes=1, learning_rate=1.0)
    result = fit(rows(), TINY, config, NOISE, progress=Lines(lines, least=0.0))
    assert result.steps == 60  # one second a step
    assert lines.getvalue().splitlines()[-1].endswith(", 1.0 of 1 min")
    # The last of 60 steps begins at 59/60 of the budget: (1 + cos) / 2 is (pi / 120)^2 there.
    rates = torch.cat(asked)
    assert float(rates[-1]) == pytest.approx((math.pi / 120) ** 2, rel=1e-3)
    assert (rates[1:] < rates[:-1]).all()


@pytest.mark.parametrize(
    ("data", "options"), [(rows(), {"learning_rate": 1e30}), (torch.full((50, 2), torch.nan), {})], ids=["rate", "data"]
)
def test_divergence_is_an_error_that_says_what_to_do(data, options):
    with pytest.raises(Diverged, match=r"fit\.learning_rate"):
        tiny_fit(data, **options)


def test_the_batch_follows_from_all_rows_not_from_the_fitted_ones(monkeypatch):
    asked = []
    monkeypatch.setattr(FitConfig, "batch_for", lambda self, count: asked.append(count) or 4)
    tiny_fit(steps=10, holdout=0.5)
    assert set(asked) == {len(rows())}


OPTIONS = {"steps": 205, "batch_size": 16, "evaluate_every": 10, "checkpoint_every": 30}
ROWS = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))


def run(checkpoint: Path | None = None, progress=None, rows: Tensor = ROWS, seed: int = 0, **options) -> FitResult:
    config = FitConfig(**{**OPTIONS, **options})
    return fit(rows, TINY, config, NoiseConfig(), seed=seed, checkpoint=checkpoint, progress=progress)


def assert_same(one: FitResult, other: FitResult) -> None:
    for (name, a), b in zip(one.network.named_parameters(), other.network.parameters(), strict=True):
        assert torch.equal(a, b), name
    assert torch.equal(one.network.frequencies, other.network.frequencies)
    assert one.steps == other.steps
    without_time = [[{k: v for k, v in e.items() if k != "seconds"} for e in r.history] for r in (one, other)]
    assert without_time[0] == without_time[1]


@pytest.fixture(scope="module")
def uninterrupted() -> FitResult:
    return run()


def test_a_checkpoint_changes_nothing_and_a_finished_fit_is_not_run_again(tmp_path, uninterrupted):
    assert_same(run(tmp_path / "fit"), uninterrupted)
    assert_same(run(tmp_path / "fit", Watch(0)), uninterrupted)


@pytest.mark.parametrize("killed_at", [[10], [100], [205], [60, 130, 140]])
def test_killed_between_rounds(killed_at, tmp_path, uninterrupted):
    for step in killed_at:
        with pytest.raises(Stopped):
            run(tmp_path / "fit", Watch(step))
    watch = Watch()
    result = run(tmp_path / "fit", watch)
    assert_same(result, uninterrupted)
    seconds = [entry["seconds"] for entry in result.history]
    assert seconds == sorted(seconds)
    # A checkpoint is written after the report of every third measurement, so the one under way is lost.
    assert watch.start == (killed_at[-1] - 1) // 30 * 30


def test_early_stop_is_remembered(tmp_path):
    options = {"patience": 1, "learning_rate": 0.05, "holdout": 0.5, "steps": 5000}
    stopped = run(**options)
    assert stopped.steps < 5000
    with pytest.raises(Stopped):
        run(tmp_path / "fit", Watch(stopped.steps), **options)
    assert_same(run(tmp_path / "fit", **options), stopped)
    assert_same(run(tmp_path / "fit", Watch(0), **options), stopped)


OTHER = {
    "rows": {"rows": ROWS + 1},
    "order of rows": {"rows": ROWS.flip(0)},
    "order of columns": {"rows": ROWS.flip(1)},
    "number of rows": {"rows": ROWS[:-1]},
    "seed": {"seed": 1},
    "steps": {"steps": 206},
    "learning rate": {"learning_rate": 1e-3},
}


@pytest.mark.parametrize("other", OTHER.values(), ids=OTHER)
def test_anothers_checkpoint_is_refused(other, tmp_path):
    run(tmp_path / "fit", steps=20)
    kept = (tmp_path / "fit").read_bytes()
    with pytest.raises(ConfigError, match="delete"):
        run(tmp_path / "fit", **{"steps": 20, **other})
    assert (tmp_path / "fit").read_bytes() == kept


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_a_truncated_checkpoint_is_refused(share, tmp_path):
    path = tmp_path / "fit"
    run(path, steps=20)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ConfigError, match="delete"):
        run(path, steps=20)

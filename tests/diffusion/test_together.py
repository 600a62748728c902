"""Denoisers that are fitted together are those that are fitted alone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from synther import compute
from synther.diffusion import fit as fit_module
from synther.diffusion.config import FitConfig, NetworkConfig, NoiseConfig
from synther.diffusion.fit import Diverged, FitResult, fit, fit_together
from synther.diffusion.networks import Network
from synther.errors import ConfigError

from ..support.watch import Stopped, Watch

TINY = NetworkConfig(width=16, depth=2, embedding=8, frequencies=4)
OPTIONS = {"steps": 45, "batch_size": 16, "evaluate_every": 10}
SEEDS = [5, 0, 7]


def rows(count: int, seed: int = 0, columns: int = 3) -> Tensor:
    return torch.randn(count, columns, generator=torch.Generator().manual_seed(seed))


# Of other sizes, and of scales that make the second's gradients far larger than the others'.
DATA = [rows(200), 30 * rows(150, 1), rows(333, 2)]


def run(data: list[Tensor] = DATA, network: NetworkConfig = TINY, how: dict | None = None, **options):
    config = FitConfig(**{**OPTIONS, **options})
    return fit_together(data, network, config, NoiseConfig(), seeds=SEEDS[: len(data)], **(how or {}))


def alone(member: int, data: Tensor | None = None, network: NetworkConfig = TINY, how: dict | None = None, **options):
    config, given = FitConfig(**{**OPTIONS, **options}), DATA[member] if data is None else data
    return fit(given, network, config, NoiseConfig(), seed=SEEDS[member], **(how or {}))


def assert_same(one: FitResult | Diverged, other: FitResult, margin: float = 1e-6) -> None:
    """Weights of order 0.1 to 1 in float32. Libraries may add up the products of one matrix and of many in other
    orders; where they do not, not a bit differs. An Adam step is of the order of the learning rate, 3e-4."""
    assert isinstance(one, FitResult)
    assert one.steps == other.steps
    for (name, a), b in zip(one.network.named_parameters(), other.network.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=margin, msg=lambda text, name=name: f"{name}: {text}")
    assert torch.equal(one.network.frequencies, other.network.frequencies)
    assert [set(entry) for entry in one.history] == [set(entry) for entry in other.history]
    for a, b in zip(one.history, other.history, strict=True):
        assert {**a, "seconds": 0} == pytest.approx({**b, "seconds": 0}, rel=max(1e-5, 10 * margin))


@pytest.mark.parametrize("kind", ["residual", "mlp"])
def test_together_is_each_alone(kind):
    network = NetworkConfig(kind, width=16, depth=2, embedding=8, frequencies=4)
    before = torch.get_rng_state()
    results = run(network=network)
    assert torch.equal(torch.get_rng_state(), before)
    for member, result in enumerate(results):
        assert_same(result, alone(member, network=network))
        assert result.network.skip == (kind == "residual")


def test_each_gradient_is_clipped_by_its_own_norm():
    results = run(max_grad_norm=0.5)
    for member, result in enumerate(results):
        assert_same(result, alone(member, max_grad_norm=0.5))
    # The limit matters: what the members share by mistake would show.
    with pytest.raises(AssertionError):
        assert_same(results[1], alone(1, max_grad_norm=1e9), margin=1e-4)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # of CPUs without bf16, where something else serves
def test_a_working_copy_is_rounded_the_weights_are_not():
    results = run(how={"precision": "bf16"}, steps=20)
    for member, result in enumerate(results):
        # Where a library adds up in another order, activations differ by bf16's 2^-8: the margin is of four steps.
        assert_same(result, alone(member, how={"precision": "bf16"}, steps=20), margin=1.2e-3)
        assert all(parameter.dtype == torch.float32 for parameter in result.network.parameters())
    weight = results[0].network.block_weight
    assert not torch.equal(weight, weight.bfloat16().float())


def test_members_begin_and_hold_out_as_they_are_told():
    torch.manual_seed(3)
    starts = [Network(3, TINY).requires_grad_(False), None, Network(3, TINY).requires_grad_(False)]
    marks = [torch.arange(200) % 4 == 0, None, torch.zeros(333, dtype=torch.bool)]
    kept = starts[0].block_weight.clone()
    results = run(how={"start": starts, "held_out": marks})
    for member, result in enumerate(results):
        assert_same(result, alone(member, how={"start": starts[member], "held_out": marks[member]}))
    assert torch.equal(starts[0].block_weight, kept)
    assert ["held_out" in result.history[0] for result in results] == [True, True, False]


LONG = {"steps": 4000, "learning_rate": 3e-3, "holdout": 0.5, "evaluate_every": 50, "ema_decay": 0.9}
PATIENT = {**LONG, "patience": 2}


ENDINGS = {"patience": {"patience": 2}, "rows known by heart": {"overfit": 0.02, "steps": 400}}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_each_ends_when_it_would_alone(ending):
    data, watch, options = [rows(40), rows(24, 1), rows(400, 2)], Watch(), {**LONG, **ending}
    results = run(data, how={"progress": watch}, **options)
    steps = [result.steps for result in results]
    assert min(steps) < max(steps), "all end at one time: this shows nothing"
    assert min(steps) < options["steps"], "none ends early: this shows nothing"
    for member, result in enumerate(results):
        # Hundreds of steps at ten times the usual rate: what is rounded apart has time to grow.
        assert_same(result, alone(member, data[member], **options), margin=1e-4)
    assert sum(watch.amounts) == max(steps)
    assert [note.split(", ")[-1] for note in watch.notes[:: len(watch.notes) - 1]] == ["3 going", "1 going"]


def test_stopped_and_taken_up_it_is_the_same(tmp_path, monkeypatch):
    """Of members of which the first runs out of patience and the second diverges, while the last goes on."""
    data = [rows(40), torch.full((60, 3), torch.nan), rows(400, 2)]
    watch, path, options = Watch(), tmp_path / "fits", {**PATIENT, "evaluate_every": 10, "patience": 6}
    whole = run(data, how={"progress": watch}, **options)
    assert watch.notes[-1].endswith("1 going")
    monkeypatch.setattr(fit_module, "SAVE_SECONDS", 0)
    stops, again = 0, None
    while again is None:  # after every third measurement
        try:
            again = run(data, how={"progress": Watch(reports=3), "checkpoint": path}, **options)
        except Stopped:
            stops += 1
    assert stops > 3
    assert str(again[1]) == str(whole[1])
    finished = run(data, how={"progress": Watch(0), "checkpoint": path}, **options)
    assert str(finished[1]) == str(whole[1])
    for place in (0, 2):
        assert_same(again[place], whole[place], margin=0)
        assert_same(finished[place], whole[place], margin=0)


def test_a_checkpoint_of_others_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(fit_module, "SAVE_SECONDS", 0)
    path = tmp_path / "fits"
    run(how={"checkpoint": path})
    for data, options in ((DATA, {"max_grad_norm": 0.5}), ([DATA[1], DATA[0], DATA[2]], {}), (DATA[:2], {})):
        with pytest.raises(ConfigError, match="fits"):
            run(data, how={"checkpoint": path}, **options)


def test_some_or_all_may_diverge():
    broken = DATA[1].clone()
    broken[::2] = torch.nan
    first, error, last = run([DATA[0], broken, DATA[2]])
    assert isinstance(error, Diverged)
    assert str(error) == "the loss is nan at step 10: lower fit.learning_rate, or scale the data"
    assert_same(first, alone(0))
    assert_same(last, alone(2))
    watch = Watch()
    results = run(learning_rate=1e30, how={"progress": watch})
    assert [type(result) for result in results] == [Diverged] * 3
    assert watch.notes[-1] == "diverged"


def test_a_budget_of_minutes_goes_on_where_it_was(monkeypatch, tmp_path):
    clock = iter(range(10_000))
    monkeypatch.setattr(fit_module, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    monkeypatch.setattr(fit_module, "SAVE_SECONDS", 0)
    options = {"steps": 5000, "ema_every": 1, "evaluate_every": 1, "minutes": 0.5}
    with pytest.raises(Stopped):
        run(how={"progress": Watch(reports=12), "checkpoint": tmp_path / "fits"}, **options)
    results = run(how={"checkpoint": tmp_path / "fits"}, **options)
    assert [(result.steps, result.seconds) for result in results] == [(30, 30.0)] * 3


WRONG = {
    "no members": ([], {}, {}, "rows: 0"),
    "seeds": (DATA[:2], {"seeds": [1]}, {}, "seeds: 1"),
    "starts": (DATA[:2], {"start": [None]}, {}, "start: 1"),
    "marks": (DATA[:2], {"held_out": [None] * 3}, {}, "held_out: 3"),
    "columns": ([rows(9), rows(9, columns=4)], {}, {}, r"\[3, 4\] columns"),
    "batches": ([rows(9), torch.zeros(800_000, 3)], {}, {"batch_size": None}, r"fit\.batch_size"),
    "patience": ([rows(200), rows(3)], {}, {"patience": 2}, r"fit\.patience"),
}


@pytest.mark.parametrize(("data", "how", "options", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_fitted_together_is_refused_at_once(data, how, options, message):
    watch, given = Watch(), {"seeds": SEEDS[: len(data)], **how}
    config = FitConfig(**{**OPTIONS, **options})
    with pytest.raises(ConfigError, match=message):
        fit_together(data, TINY, config, NoiseConfig(), progress=watch, **given)
    assert not watch.amounts


def on_gpu(member: int) -> Tensor:
    return rows(10_000 + 100 * member, member, columns=12).cuda()


WIDE = NetworkConfig(width=256, depth=3)
LONGER = {"steps": 105, "batch_size": 256, "evaluate_every": 50}


@pytest.mark.cuda
@pytest.mark.parametrize("precision", ["bf16", "tf32", "float32"])
@pytest.mark.parametrize("members", [1, 3])
def test_captured_is_uncaptured(monkeypatch, members, precision):
    data, how = [on_gpu(member) for member in range(members)], {"precision": precision}
    captured = run(data, WIDE, how, **LONGER)
    monkeypatch.setattr(compute, "capture", lambda update, device, state: update)
    for one, other in zip(captured, run(data, WIDE, how, **LONGER), strict=True):
        # The same kernels in the same order. A rehearsal that is not undone moves weights by 3e-4.
        assert_same(one, other, margin=1e-5)


@pytest.mark.cuda
@pytest.mark.parametrize(("precision", "margin"), [("bf16", 1e-2), ("float32", 1e-4)])
def test_together_is_each_alone_there_too(precision, margin):
    data, how = [on_gpu(member) for member in range(3)], {"precision": precision}
    for member, result in enumerate(run(data, WIDE, how, **LONGER)):
        expected = alone(member, data[member], WIDE, how, **LONGER)
        # Kernels for one and for many products add up in other orders: losses agree to a few roundings of the type.
        losses = [[entry["held_out"] for entry in each.history] for each in (result, expected)]
        assert losses[0] == pytest.approx(losses[1], rel=margin)


@pytest.mark.cuda
def test_one_that_leaves_is_captured_without():
    data = [on_gpu(0), torch.full((500, 12), torch.nan, device="cuda"), on_gpu(2)]
    first, error, last = run(data, WIDE, {"precision": "float32"}, **LONGER)
    assert isinstance(error, Diverged)
    for member, result in ((0, first), (2, last)):
        expected = alone(member, data[member], WIDE, {"precision": "float32"}, **LONGER)
        assert result.history[-1]["held_out"] == pytest.approx(expected.history[-1]["held_out"], rel=1e-4)

"""Models that are fitted together are those that are fitted alone."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch

from synther import Synthesizer, Transitions
from synther.diffusion.fit import Diverged
from synther.errors import ConfigError, DataError
from synther.synthesizer.together import TABLE_STEPS, fit_models, forget

from ..support.watch import Watch
from .rows import made, plain
from .settings import SHORT


def explained(count: int = 250) -> Transitions:
    """The columns of `made` with terminals that a tree explains: there, no network generates them."""
    rows = made(count)
    return made(count, terminal=rows.next_observation[:, 0] > 3)


def finite(count: int, seed: int = 0) -> Transitions:
    """A walk on a ring of five places, in steps of one or two."""
    draw = np.random.default_rng(seed)
    here, step = draw.integers(0, 5, count), draw.integers(0, 2, count)
    there = (here + step + 1) % 5
    return Transitions(here[:, None], step[:, None], (there == 0).astype(float), there[:, None], there == 0)


def models(*seeds: int, **changes) -> list[Synthesizer]:
    return [Synthesizer("laptop", **{**SHORT, **changes}, device="cpu", seed=seed) for seed in seeds]


def same(one: Synthesizer, other: Synthesizer) -> None:
    """Sums of products may be rounded in another order where there are many: weights of order 0.1 to 1 in float32, rows
    with columns of deviation 3 and less, but for a flag or a whole number that falls just on the other side."""
    assert isinstance(one, Synthesizer)
    for (name, a), b in zip(one.network.named_parameters(), other.network.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")
    records = [[{**entry, "seconds": 0} for entry in model.record.history] for model in (one, other)]
    assert records[0] == [pytest.approx(entry, rel=1e-5) for entry in records[1]]
    assert (one.record.data, one.record.seed, one.record.steps) == (
        other.record.data, other.record.seed, other.record.steps,
    )  # fmt: skip
    assert one.layout.thresholds == pytest.approx(other.layout.thresholds, abs=1e-4)
    assert one._model.ending == other._model.ending
    drawn, expected = (model.sample(600, seed=0, progress=False) for model in (one, other))
    for name, array in expected.arrays().items():
        apart = ~np.isclose(drawn.arrays()[name].astype(float), array.astype(float), rtol=1e-9, atol=1e-3)
        assert apart.mean() < 0.005, name


def test_together_is_each_alone():
    rows, watch = [made(300), explained(), made(200)], Watch()
    marks = [np.arange(300) % 4 == 0, None, np.arange(200) % 3 == 0]
    together = fit_models(models(5, 0, 7), rows, held_out=marks, progress=watch)
    assert [phase[0] for phase in watch.phases] == ["fit", *["match", "calibrate"] * 3]
    for one, model, given, held_out in zip(together, models(5, 0, 7), rows, marks, strict=True):
        same(one, model.fit(given, held_out=held_out, progress=False))
    thresholds = [model.layout.thresholds for model in together]
    assert thresholds[0] != thresholds[2], "all alike: this shows nothing"
    assert [model._model.ending is not None for model in together] == [False, True, False]
    assert len({model.record.seconds for model in together}) == 1


def test_warm_starts():
    before, rows = models(1, 2), [made(300), made(200)]
    for model, given in zip(before, rows, strict=True):
        model.fit(given[:150], progress=False)
    kept = before[0].network.block_weight.clone()
    together = fit_models(models(3, 4), rows, starts=[before[0], None], progress=False)
    for one, model, given, start in zip(together, models(3, 4), rows, [before[0], None], strict=True):
        same(one, model.fit(given, start=start, progress=False))
    assert torch.equal(before[0].network.block_weight, kept)


def test_others_are_fitted_in_turn():
    """Here two share their steps; another has other options, and another other columns."""
    given = [*models(0, 1), *models(2, fit={"steps": 10}), *models(3)]
    rows, watch = [made(300), made(200), made(100), plain()], Watch()
    together = fit_models(given, rows, progress=watch)
    assert [phase[1] for phase in watch.phases if phase[0] == "fit"] == [20, 10, 20]
    alone = [*models(0, 1), *models(2, fit={"steps": 10}), *models(3)]
    for one, model, its in zip(together, alone, rows, strict=True):
        same(one, model.fit(its, progress=False))


@pytest.mark.parametrize(
    "other", [{"noise": {"p_mean": -1.0}}, {"fit": {**SHORT["fit"], "batch_size": 8}}], ids=["noise", "batch"]
)
def test_only_those_of_the_same_options_share_their_steps(other, monkeypatch):
    monkeypatch.setattr(Synthesizer, "_complete", lambda self, task, result, progress: self)
    watch = Watch()
    fit_models([*models(0, 1), *models(2, **other)], [plain()] * 3, progress=watch)
    assert [phase[0] for phase in watch.phases] == ["fit", "fit"]
    alike = Watch()
    fit_models(models(0, 1, 2), [plain()] * 3, progress=alike)
    assert [phase[0] for phase in alike.phases] == ["fit"]


def test_one_that_fails_leaves_the_others_alone():
    broken, equal = models(1)[0].fit(made(100), progress=False), made(50)[np.zeros(50, int)]
    with torch.no_grad():
        broken.network.row_in.weight.fill_(torch.nan)
    rows, given = [made(300), made(200), equal, made(250)], models(5, 0, 3, 7)
    first, diverged, taught_nothing, last = fit_models(given, rows, starts=[None, broken, None, None], progress=False)
    assert isinstance(diverged, Diverged)
    assert str(diverged) == "the loss is nan at step 10: lower fit.learning_rate, or scale the data"
    assert isinstance(taught_nothing, DataError)
    assert "all 50 rows are equal" in str(taught_nothing)
    same(first, models(5)[0].fit(rows[0], progress=False))
    same(last, models(7)[0].fit(rows[3], progress=False))
    with pytest.raises(ConfigError, match="has not been fitted"):
        _ = given[1].record


def test_the_rows_are_let_go_whatever_comes_out():
    rows = [plain(60), plain(50), plain(50)[np.zeros(50, int)]]
    broken = models(1)[0].fit(plain(60), progress=False)
    with torch.no_grad():
        broken.network.row_in.weight.fill_(torch.nan)
    seen = [weakref.ref(each) for each in rows]
    gc.disable()
    try:
        outcomes = fit_models(models(0, 1, 2), rows, starts=[None, broken, None], progress=False)
        del rows
        assert [each() for each in seen] == [None] * 3
    finally:
        gc.enable()
    assert [type(outcome) for outcome in outcomes] == [Synthesizer, Diverged, DataError]


def test_what_is_forgotten_are_the_checkpoints_alone(tmp_path):
    others = {"fit", "fit-0.safetensors", "fit-best", "afit-0"}
    for name in {"fit-0", "fit-12"} | others:
        (tmp_path / name).touch()
    forget(tmp_path / "fit")
    assert {file.name for file in tmp_path.iterdir()} == others


def test_what_is_wrong_is_told_before_anything_is_fitted():
    watch, two = Watch(), [plain(), plain()]
    with pytest.raises(ConfigError, match="1 of rows"):
        fit_models(models(0, 1), two[:1], progress=watch)
    with pytest.raises(ConfigError, match="the same model is given twice"):
        fit_models(models(0) * 2, two, progress=watch)
    other = models(2, network={"width": 16, "depth": 1})[0].fit(plain(), progress=False)
    with pytest.raises(ConfigError, match="cannot start from"):
        fit_models(models(0, 1), two, starts=[None, other], progress=watch)
    assert not watch.phases
    assert fit_models([], [], progress=watch) == []


def test_worlds_of_few_rows_are_fitted_as_briefly_together_as_alone():
    """Their rows are drawn from a table: the network is fitted for a moment only."""
    worlds, watch = [finite(600), finite(500, 1), made(300)], Watch()
    given = {"fit": {**SHORT["fit"], "steps": 150}}
    together = fit_models(models(0, 1, 2, **given), worlds, progress=watch)
    assert [phase[1] for phase in watch.phases if phase[0] == "fit"] == [TABLE_STEPS, 150]
    assert [model._model.table is not None for model in together] == [True, True, False]
    for one, model, rows in zip(together[:2], models(0, 1, **given), worlds[:2], strict=True):
        alone = model.fit(rows, progress=False)
        assert one.record.steps == alone.record.steps == TABLE_STEPS
        same(one, alone)
    assert together[2].record.steps == 150

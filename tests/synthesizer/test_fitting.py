"""A fit: decided by its seed, taken up where it stopped, and as silent as it is asked to be."""

from __future__ import annotations

import gc
import logging
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

from synther import Synthesizer, Transitions, write
from synther.diffusion.fit import Diverged
from synther.errors import ConfigError, DataError
from synther.synthesizer.together import TABLE_STEPS, fit_models, forget

from ..support.watch import Stopped, Watch
from .rows import QUICK, SHORT, made, plain


def weights(model: Synthesizer) -> list[np.ndarray]:
    return [parameter.numpy() for parameter in model.network.parameters()]


def test_the_seed_decides_and_fitting_again_replaces_the_model():
    same, again, other = (Synthesizer("laptop", **SHORT, seed=seed).fit(plain(), progress=False) for seed in (1, 1, 2))
    assert all(map(np.array_equal, weights(same), weights(again)))
    assert not all(map(np.array_equal, weights(same), weights(other)))
    model = Synthesizer("laptop", **SHORT).fit(plain(), progress=False)
    model.fit(plain(columns=2), progress=False)
    assert model.sample(3, progress=False).observation.shape == (3, 2)


def test_a_file_a_dict_and_a_frame_are_rows_too(tmp_path):
    rows = plain(200)
    write(rows, tmp_path / "rows.npz")
    models = [
        Synthesizer("laptop", **SHORT).fit(given, progress=False)
        for given in (rows, tmp_path / "rows.npz", str(tmp_path / "rows.npz"), rows.arrays(), rows.to_pandas())
    ]
    for model in models[1:]:
        assert all(map(np.array_equal, weights(model), weights(models[0])))


@pytest.mark.parametrize(("stop", "kept"), [(("fit", 10), 0), (("fit", 20), 10), (("calibrate", 1000), 20)])
def test_interrupted_it_goes_on(quick, stop, kept, tmp_path):
    path = tmp_path / "fit.checkpoint"
    with pytest.raises(Stopped):
        Synthesizer("laptop", **QUICK).fit(made(300), checkpoint=path, progress=Watch(stop))
    watch = Watch()
    resumed = Synthesizer("laptop", **QUICK).fit(made(300), checkpoint=path, progress=watch)
    assert watch.phases[0] == ["fit", 20, kept, 20]
    assert all(map(np.array_equal, weights(resumed), weights(quick)))
    assert resumed.layout == quick.layout
    assert resumed.sample(600, seed=0, progress=False).equals(quick.sample(600, seed=0, progress=False))
    assert path.exists()


def test_what_is_said(tmp_path, capsys):
    model = Synthesizer("laptop", **SHORT).fit(made(100), progress=False)
    model.sample(10, progress=False)
    model.sample_to(tmp_path / "x.npz", 10, progress=False)
    model.save(tmp_path / "x.safetensors")
    assert capsys.readouterr() == ("", "")
    model = Synthesizer("laptop", **SHORT).fit(made(100))
    model.sample(10)
    model.sample_to(tmp_path / "x.npz", 10)
    out, err = capsys.readouterr()
    assert out == ""
    names = [line.split(":")[0] for line in err.splitlines() if "100 %" in line]
    assert names == ["fit", "match", "calibrate", "sample", "sample", "write"]
    assert "loss" in err


@pytest.mark.parametrize(
    ("fit", "expected"),
    [({"patience": 3}, 0.4), ({"overfit": 0.4}, 0.4), ({"overfit": 0.6}, 0.6), ({}, 0.6)],
    ids=[
        "the best of patience",
        "the best before its rows were known by heart",
        "the last below the limit",
        "the last",
    ],
)
def test_what_was_measured_of_the_weights_that_were_kept(fit, expected, quick):
    history = [{"step": step, "held_out": loss} for step, loss in ((10, 0.9), (20, 0.4), (30, 0.6))]
    kept = Synthesizer(quick.settings.changed(fit={"patience": None, "overfit": None, **fit}), device="cpu")
    kept._fitted = replace(quick._model, record=replace(quick.record, history=history))
    assert kept.measured["held_out"] == expected


def test_a_start_lends_each_column_the_weights_of_its_name():
    """Though a column has come before it, which never changed in the rows of the start."""
    rows = plain(60, columns=2)
    before = np.stack([np.ones(60), rows.observation[:, 1]], 1)
    still = {"observation": before, "next_observation": before[::-1]}
    start = Synthesizer("laptop", **QUICK).fit(plain(60, columns=2, **still), progress=False)
    settings = {**QUICK, "fit": {**QUICK["fit"], "steps": 1, "learning_rate": 1e-30}}
    model = Synthesizer("laptop", **settings).fit(rows, start=start, progress=False)
    assert set(model.layout.names) - set(start.layout.names) == {"observation[0]", "next_observation[0]"}
    for column, name in enumerate(start.layout.names):
        place = model.layout.names.index(name)
        assert torch.equal(model.network.row_in.weight[:, place], start.network.row_in.weight[:, column]), name
        assert torch.equal(model.network.row_out.weight[place], start.network.row_out.weight[column]), name


@pytest.mark.parametrize(
    ("ending", "level"),
    [({"overfit": None}, logging.WARNING), ({"patience": 2, "overfit": None}, logging.INFO), ({}, logging.INFO)],
    ids=["no end", "patience", "the preset's"],
)
def test_a_fit_that_learns_its_rows_by_heart_says_so(ending, level, caplog):
    few = plain(40, columns=2)
    fit = {"steps": 150, "evaluate_every": 50, "holdout": 0.25, "learning_rate": 3e-3, **ending}
    with caplog.at_level(logging.INFO, "synther"):
        model = Synthesizer("laptop", **{**QUICK, "network": {"width": 64, "depth": 2}, "fit": fit}, device="cpu")
        model.fit(few, progress=False)
    losses = [entry["held_out"] for entry in model.record.history]
    assert losses[-1] > 1.1 * losses[0]
    (told,) = (record for record in caplog.records if "memorised" in record.message)
    assert told.levelno == level
    assert f"was {losses[0]:.3g} after 50 steps and {losses[-1]:.3g} after {model.record.steps}" in told.message
    assert ("best weights are kept" in told.message) == (model.measured["held_out"] == losses[0])


def test_a_choice_of_scalings_reaches_its_columns():
    scaling = {"default": "minmax", "reward": "quantile", "observation[0]": "none"}
    model = Synthesizer("laptop", **SHORT, data={"scaling": scaling}).fit(plain(), progress=False)
    assert model.scaler.kinds == ("none", "minmax", "quantile", "minmax")
    assert np.isfinite(model.sample(100, seed=0, progress=False).reward).all()
    model = Synthesizer("laptop", **SHORT, data={"scaling": {"rewards": "quantile"}})
    with pytest.raises(ConfigError, match="rewards"):
        model.fit(plain(), progress=False)


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

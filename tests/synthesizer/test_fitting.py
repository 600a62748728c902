"""A fit: decided by its seed, taken up where it stopped, and as silent as it is asked to be."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch

from synther import Synthesizer, Transitions
from synther.data import time_limits
from synther.errors import ConfigError

from ..support.watch import Stopped, Watch
from .rows import made, plain
from .settings import QUICK, SHORT


def weights(model: Synthesizer) -> list[np.ndarray]:
    return [parameter.numpy() for parameter in model.network.parameters()]


def test_the_seed_decides():
    same, again, other = (Synthesizer("laptop", **SHORT, seed=seed).fit(plain(), progress=False) for seed in (1, 1, 2))
    assert all(map(np.array_equal, weights(same), weights(again)))
    assert not all(map(np.array_equal, weights(same), weights(other)))


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


def test_fitting_again_replaces_the_model():
    model = Synthesizer("laptop", **SHORT).fit(plain(), progress=False)
    model.fit(plain(columns=2), progress=False)
    assert model.sample(3, progress=False).observation.shape == (3, 2)


def test_silence(tmp_path, capfd):
    model = Synthesizer("laptop", **SHORT).fit(made(100), progress=False)
    model.sample(10, progress=False)
    model.sample_to(tmp_path / "x.npz", 10, progress=False)
    model.save(tmp_path / "x.safetensors")
    assert capfd.readouterr() == ("", "")


def test_lines_where_stderr_is_no_terminal(tmp_path, capsys):
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
    draw = np.random.default_rng(0)
    few = Transitions.of(
        observation=draw.normal(size=(40, 2)),
        action=draw.uniform(-1, 1, (40, 1)),
        reward=draw.normal(size=40),
        next_observation=draw.normal(size=(40, 2)),
    )
    fit = {"steps": 150, "evaluate_every": 50, "holdout": 0.25, "learning_rate": 3e-3, **ending}
    with caplog.at_level(logging.INFO, "synther"):
        model = Synthesizer("laptop", **{**QUICK, "network": {"width": 64, "depth": 2}, "fit": fit}, device="cpu")
        model.fit(few, progress=False)
    losses = [entry["held_out"] for entry in model.record.history]
    assert losses[-1] > 1.1 * losses[0]
    (told,) = (record for record in caplog.records if "by heart" in record.message)
    assert told.levelno == level
    assert f"was {losses[0]:.3g} after 50 steps and {losses[-1]:.3g} after {model.record.steps}" in told.message
    assert ("best weights are kept" in told.message) == (model.measured["held_out"] == losses[0])


def test_rows_to_hold_out_can_be_given():
    walk = np.random.default_rng(0).normal(size=(601, 3)).cumsum(0)
    rows = Transitions(walk[:-1], walk[:-1, :1], walk[:-1, 0], walk[1:], terminal=None)
    given = np.arange(600) == 5
    assert np.array_equal(Synthesizer("laptop", **QUICK)._begin(rows, None, given).held_out.numpy(), given)


def test_terminals_that_look_like_a_time_limit_are_told_once(caplog):
    time_limits._warn.cache_clear()
    rows = plain(terminal=np.arange(300) % 50 == 49)
    for seed in (0, 1):
        Synthesizer("laptop", **QUICK, seed=seed).fit(rows, progress=False)
    assert caplog.text.count("look like a time limit of 50 steps") == 1


MIXED = {"default": "minmax", "reward": "quantile", "observation[0]": "none"}


@pytest.mark.parametrize("scaling", ["standard", "minmax", "quantile", "none", MIXED], ids=str)
def test_every_choice_reaches_its_columns(scaling):
    model = Synthesizer("laptop", **SHORT, data={"scaling": scaling}).fit(plain(), progress=False)
    asked = scaling if isinstance(scaling, dict) else {"default": scaling}
    assert model.scaler.kinds == (
        asked.get("observation[0]", asked["default"]),
        asked["default"],
        asked.get("reward", asked["default"]),
        asked["default"],
    )
    assert np.isfinite(model.sample(100, seed=0, progress=False).reward).all()


def test_a_wrong_name_is_an_error():
    model = Synthesizer("laptop", **SHORT, data={"scaling": {"rewards": "quantile"}})
    with pytest.raises(ConfigError, match="rewards"):
        model.fit(plain(), progress=False)

"""Warm and cold fits, and which rows no fit learns from."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from synther import Synthesizer, Transitions
from synther.data.spaces import Box
from synther.errors import ConfigError
from synther.replay import refit as refitting
from synther.replay.refit import PATIENCE, WARM_SHARE, WARM_STEPS, Generation, Job, Refresh, held_out_rows, settings_for

from .rows import TINY, numbered, tiny

ROWS = Transitions(**numbered(0, 400))
STREAM = (7, 5)


def test_a_warm_fit_begins_where_a_cold_one_has_yet_to_come():
    held_out = np.arange(len(ROWS)) % 5 == 0
    network = {"width": 32, "depth": 2}
    # The rows follow from each other linearly: as residuals there would be nothing left to learn.
    fits = ({"steps": steps, "learning_rate": 3e-3} for steps in (600, 40))
    long, short = (TINY.changed(network=network, fit=fit, data={"residuals": "none"}) for fit in fits)
    before = Synthesizer(long, device="cpu").fit(ROWS[:300], held_out=held_out[:300], progress=False)
    warm, cold = (
        Synthesizer(short, device="cpu", seed=1).fit(ROWS, start=start, held_out=held_out, progress=False)
        for start in (before, None)
    )
    assert warm.measured["held_out"] < 0.8 * cold.measured["held_out"]


def test_another_network_is_no_start():
    small, large = (Synthesizer(TINY.changed(network={"width": width}), device="cpu") for width in (16, 32))
    small.fit(ROWS, progress=False)
    with pytest.raises(ConfigError, match=r"width=32.*width=16"):
        large.fit(ROWS, start=small, progress=False)


@pytest.mark.parametrize("refit", ["warm", "scratch"])
def test_what_a_refresh_starts_from(refit, monkeypatch):
    starts, fit = [], refitting.fit_models

    def spy(models, rows, **options):
        starts.extend(options["starts"])
        return fit(models, rows, **options)

    monkeypatch.setattr(refitting, "fit_models", spy)
    replay = tiny(refit=refit, preset=TINY.changed(fit={"steps": 100}, data={"residuals": "none"}))
    replay.add(**numbered(0, 100))
    first = replay.model
    replay.add(**numbered(100, 100))
    other = tiny(seed=1)
    other.add(**numbered(0, 100))
    assert len({first.seed, replay.model.seed, other.model.seed}) == 3
    assert starts == [None, first if refit == "warm" else None, None]
    assert [refresh.steps for refresh in replay.history] == ([100, 20] if refit == "warm" else [100, 100])


def test_another_process_is_given_the_same_job(tmp_path):
    replay = tiny(seed=3, action_space=(Box.uniform(-1, 1, 2),))
    replay.add(**numbered(0, 150))
    job = replay.job_on(replay.transitions())
    job.save(tmp_path)
    given = Job.load(tmp_path)
    for name in ("columns", "settings", "samples", "seed", "device", "precision"):
        assert getattr(given, name) == getattr(job, name), name
    assert np.array_equal(job.columns.pack(given.rows), job.columns.pack(job.rows))
    assert np.array_equal(given.held_out, job.held_out)
    assert job.held_out.any()
    for (name, one), other in zip(job.start.network.named_parameters(), given.start.network.parameters(), strict=True):
        assert torch.equal(one, other), name


def test_how_long_a_refresh_fits():
    settings = TINY.changed(fit={"steps": 1000})
    assert settings_for(settings, "scratch", first=False, measured=True) == settings
    first, later = (settings_for(settings, "warm", first=first, measured=True).fit for first in (True, False))
    assert (first.steps, first.patience) == (1000, PATIENCE)
    assert (later.steps, later.patience) == (WARM_SHARE * 1000, PATIENCE)
    long = settings.changed(fit={"steps": 100_000})
    assert settings_for(long, "warm", first=False, measured=True).fit.steps == WARM_STEPS < WARM_SHARE * 100_000
    assert settings_for(settings, "warm", first=True, measured=False).fit.patience is None
    own = settings.changed(fit={"patience": 2})
    assert settings_for(own, "warm", first=False, measured=True).fit.patience == 2
    assert [settings_for(own, how, first=True, measured=False).fit.patience for how in ("warm", "scratch")] == [
        None
    ] * 2


def test_what_is_recorded_is_the_loss_of_the_weights_that_were_kept():
    history = [{"step": step, "held_out": loss} for step, loss in ((10, 0.9), (20, 0.4), (30, 0.6))]
    model = Synthesizer(TINY.changed(fit={"patience": 5}), device="cpu").fit(ROWS, progress=False)
    model.record.history, model.record.steps = history, 30
    recorded = Generation(model, np.zeros((1, 1), np.float32), 2.0, 3.0).recorded(Refresh(4, 200, 150, 50))
    assert recorded == Refresh(4, 200, 150, 50, True, 30, 0.4, 2.0, 3.0)


def test_a_held_out_row_is_held_out_for_good():
    replay = tiny(capacity=150, ratio=0)
    replay.settings = TINY.changed(fit={"holdout": 0.3})
    replay.add(**numbered(0, 100))
    first = replay.job_on(replay.transitions()).held_out
    replay.add(**numbered(100, 150))
    second = replay.job_on(replay.transitions(), gone=100).held_out
    assert len(second) == 150
    # No row older than 100 is left of the first hundred: compare with one that forgets nothing.
    whole = tiny(capacity=1000, ratio=0)
    whole.settings = replay.settings
    whole.add(**numbered(0, 250))
    everything = whole.job_on(whole.transitions()).held_out
    assert np.array_equal(first, everything[:100])
    places = np.random.default_rng(0).permutation(250)
    assert np.array_equal(whole.job_on(whole.transitions()[places], places=places).held_out, everything[places])
    assert np.array_equal(second, everything[100:])
    # Five standard deviations of 250 draws at 0.3.
    assert abs(everything.mean() - 0.3) < 5 * np.sqrt(0.3 * 0.7 / 250)


def test_a_column_that_begins_to_vary_joins_a_warm_fit():
    replay = tiny()
    rows = numbered(0, 100)
    rows["terminal"][:] = False
    replay.add(**rows)
    assert "terminal" not in replay.model.layout.names
    replay.add(**numbered(100, 100))
    assert replay.history[-1].kept
    assert "terminal" in replay.model.layout.names


def test_of_few_rows_some_are_held_out_and_some_are_not():
    few = held_out_rows(STREAM, np.arange(40), 0.2)
    assert 0 < few.sum() < 20
    assert not held_out_rows(STREAM, np.arange(1), 1.0).any()
    assert held_out_rows(STREAM, np.arange(0), 0.1).shape == (0,)

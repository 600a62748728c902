"""Rows that are kept or discarded, and rewards that are replaced: in memory, in blocks, in files, and after a kill."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from synther import Synthesizer, compute, read
from synther.errors import ConfigError, DataError
from synther.synthesizer import picking, single_file

from ..support.short import short_ensembles
from ..support.watch import Stopped, Watch
from .rows import QUICK, made

BLOCK, SHARD = 64, 2


@pytest.fixture(scope="module", autouse=True)
def soon():
    with pytest.MonkeyPatch.context() as patch:
        short_ensembles(patch, 20)
        patch.setattr(compute, "block_rows", lambda device: BLOCK)
        patch.setattr(single_file, "SPOOLED_BLOCKS", SHARD)
        patch.setattr(picking, "PILOT_ROWS", 512)
        yield


@pytest.fixture(scope="module")
def judged() -> Synthesizer:
    return Synthesizer("laptop", **QUICK).fit(made(300), ensemble=True, progress=False)


def test_exactly_as_many_rows_as_asked_for_come_back(judged, caplog):
    plain = judged.sample(300, seed=1, progress=False)
    with caplog.at_level(logging.INFO, logger="synther"):
        kept = judged.sample(300, seed=1, keep=0.7, progress=False)
    assert len(kept) == 300
    assert not kept.equals(plain)
    assert "discarded" in caplog.text
    assert kept.equals(judged.sample(300, seed=1, keep=0.7, progress=False))
    assert judged.sample(70, seed=1, keep=0.7, progress=False).equals(kept[:70])
    assert plain.equals(judged.sample(300, seed=1, keep=1.0, progress=False))
    first = plain.observation[:64]  # of those that were drawn some are there, in order
    places = [np.flatnonzero((first == row).all(1)) for row in kept.observation[:20]]
    assert all(len(place) for place in places)
    once = [place for place in places if len(place) == 1]  # rare values come twice in a short fit
    assert len(once) > 5
    assert (np.diff(np.concatenate(once)) > 0).all()


@pytest.mark.parametrize("keep", [0.7, 1.0])
def test_a_file_that_was_interrupted_has_the_same_rows(judged, keep, tmp_path):
    how = {"seed": 3, "keep": keep, "relabel": "ensemble"}
    rows = judged.sample(400, **how, progress=False)
    with pytest.raises(Stopped):
        judged.sample_to(tmp_path / "x.npz", 400, **how, progress=Watch(("sample", 250)))
    assert list((tmp_path / "x.npz.partial").glob("0*.npz"))
    judged.sample_to(tmp_path / "x.npz", 400, **how, progress=False)
    assert read(tmp_path / "x.npz").equals(rows)
    blocks = list(judged.sample_blocks(400, **how, progress=False))
    assert np.array_equal(np.concatenate([block.reward for block in blocks]), rows.reward)


def test_a_saved_model_has_its_ensemble(judged, tmp_path):
    judged.save(tmp_path / "m.safetensors")
    loaded = Synthesizer.load(tmp_path / "m.safetensors", device="cpu")
    assert loaded.ensemble is not None
    rows = [model.sample(100, seed=2, keep=0.8, progress=False) for model in (judged, loaded)]
    assert rows[0].equals(rows[1])
    assert loaded._model.digest() == judged._model.digest()


def test_own_functions_replace_rewards_and_terminals(judged):
    asked = {"reward": lambda rows: rows.observation[:, 0], "terminal": lambda rows: rows.reward > 0}
    plain, rows = (judged.sample(100, seed=0, relabel=how, progress=False) for how in (None, asked))
    assert np.array_equal(rows.reward, plain.observation[:, 0].astype(rows.reward.dtype))
    assert np.array_equal(rows.terminal, plain.reward > 0)  # both see the rows as they were
    assert np.array_equal(rows.next_observation, plain.next_observation)


@pytest.mark.parametrize(
    ("relabel", "error", "named"),
    [
        ({"reward": lambda rows: rows.observation}, DataError, "reward"),
        ({"reward": lambda rows: np.full(len(rows), np.nan)}, DataError, "reward"),
        ({"terminal": lambda rows: rows.reward}, DataError, "terminal"),
        ({"action": lambda rows: rows.reward}, ConfigError, "action"),
        ({"reward": 3.0}, ConfigError, "reward"),
        ({}, ConfigError, "relabel"),
        ("simulator", ConfigError, "simulator"),
    ],
)
def test_wrong_labels_are_refused(judged, relabel, error, named):
    with pytest.raises(error, match=named):
        judged.sample(10, relabel=relabel, progress=False)


@pytest.mark.parametrize("how", [{"keep": 0.9}, {"relabel": "ensemble"}])
def test_without_an_ensemble_it_says_how_to_get_one(quick, how):
    with pytest.raises(ConfigError, match="ensemble=True"):
        quick.sample(10, **how, progress=False)


@pytest.mark.parametrize("keep", [0, 1.1, "most"])
def test_keep_is_a_share(judged, keep):
    with pytest.raises(ConfigError, match="keep"):
        judged.sample(10, keep=keep, progress=False)

"""Fits on Parquet files of more rows than a window holds."""

from __future__ import annotations

import logging

import numpy as np
import pyarrow.parquet as pq
import pytest

from synther import Synthesizer, Transitions, top, write
from synther.errors import ConfigError, DataError
from synther.formats import parquet
from synther.formats.stream import StoredRows, stored_rows
from synther.synthesizer import streamed

from ..support.files import write_folder
from ..support.short import short_ensembles
from ..support.watch import Stopped, Watch
from .rows import SHORT, TINY, made, plain

ROWS = 2000
GENERATED = {"data": {"terminals": "generated"}}
"""Terminals of `made` follow from nothing: to look for limits takes longer than all else."""


def short(window_rows: int = 400, **changes) -> Synthesizer:
    return Synthesizer("laptop", **{**SHORT, **changes, "fit": {**SHORT["fit"], "window_rows": window_rows}})


def weights(model: Synthesizer) -> list[np.ndarray]:
    return [parameter.numpy() for parameter in model.network.parameters()]


def episodes(rows: int, steps: int = 100) -> Transitions:
    """Random walks that begin at 5."""
    place, draw = np.arange(rows) % steps, np.random.default_rng(0)
    move = draw.normal(size=rows)
    walk = np.concatenate([5 + np.cumsum(np.append(0, part)) for part in move.reshape(-1, steps)]).reshape(
        -1, steps + 1
    )
    return Transitions(
        walk[:, :-1].reshape(-1, 1), draw.normal(size=(rows, 1)), move, walk[:, 1:].reshape(-1, 1), place == steps - 1
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("rows") / "rows", made(ROWS), 600, 150)


def test_a_window_learns_what_a_fit_in_memory_does(folder):
    stored, losses = StoredRows(parquet.look(folder)), []
    for rows, window_rows in ((made(ROWS), ROWS), (stored, ROWS), (stored, 1000)):
        options = {**TINY["fit"], "steps": 100, "batch_size": 64, "window_rows": window_rows}
        model = Synthesizer("laptop", **{**TINY, "fit": options}, **GENERATED).fit(rows, progress=False)
        losses.append(model.measured["held_out"])
        assert (model.record.rows, model.record.steps) == (ROWS, 100)
    # The same rows are held out and the same columns found; only the batches are others. Over five seeds these losses
    # differ by at most 0.3 %.
    assert losses[1] == pytest.approx(losses[0], rel=0.01)
    assert losses[2] == pytest.approx(losses[0], rel=0.02)


def test_many_rows_are_streamed_and_told_so(folder, caplog):
    caplog.set_level(logging.INFO, "synther")
    model = short(**GENERATED).fit(folder, progress=False)
    assert "streaming 2,000 rows of 4 files: 400 in memory" in caplog.text
    assert model.record.rows == ROWS
    stored = stored_rows(folder, 400)
    assert stored is not None
    assert model.record.data == stored.fingerprint
    rows = model.sample(50, seed=0, progress=False)
    assert (rows.env_id, rows.action_space) == ("Made-v0", made(2).action_space)
    assert set(rows.observation[:, 2]) == {0.1}  # all kinds of columns are known from the sample
    assert set(rows.observation[:, 3]) <= set(range(8))
    caplog.clear()
    short(ROWS, **GENERATED).fit(folder, progress=False)
    assert "streaming" not in caplog.text


def test_a_killed_fit_ends_as_one_that_was_not(tmp_path):
    rows = write_folder(tmp_path / "rows", episodes(ROWS), 600, 150)
    asked = {"condition": "reward", "progress": False}
    whole = short().fit(rows, **asked)
    with pytest.raises(Stopped):
        short().fit(rows, **{**asked, "progress": Watch(("fit", 20))}, checkpoint=tmp_path / "fit")
    resumed = short().fit(rows, **asked, checkpoint=tmp_path / "fit")
    assert all(map(np.array_equal, weights(resumed), weights(whole)))
    assert resumed.sample(100, seed=0, progress=False).equals(whole.sample(100, seed=0, progress=False))
    with pytest.raises(ConfigError, match="delete"):
        short(401).fit(rows, **asked, checkpoint=tmp_path / "fit")


def test_conditions_and_beginnings_are_told(tmp_path):
    rows = write_folder(tmp_path, episodes(ROWS * 2), 1000, 400)
    model = short(3000).fit(rows, condition={"reward": "reward", "twice": lambda some: 2 * some.reward}, progress=False)
    assert model.conditions.names == ("start", "reward", "twice")
    assert model.conditions.starts == pytest.approx(0.01, rel=0.3)
    assert len(model.sample(10, condition={"twice": top(0.1)}, seed=0, progress=False)) == 10


def test_an_ensemble_is_fitted_on_the_sample(folder, monkeypatch):
    short_ensembles(monkeypatch)
    model = short(60, **GENERATED).fit(folder, ensemble=True, progress=False)
    assert model.ensemble is not None
    assert len(model.sample(10, keep=0.5, seed=0, progress=False)) == 10


def test_a_table_is_counted_in_the_sample(tmp_path):
    draw = np.random.default_rng(0)
    state, following, action = (draw.integers(0, 4, ROWS) for _ in range(3))
    few = Transitions(state[:, None], action, (state == 3).astype(np.float32), following[:, None])
    model = short(1000).fit(write_folder(tmp_path, few, 600, 150), progress=False)
    drawn = model.sample(500, seed=0, progress=False)
    assert np.array_equal(drawn.reward == 1, drawn.observation[:, 0] == 3)


def test_rows_with_values_that_the_sample_has_not_are_left_out(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(streamed, "FEWEST_SAMPLED", 100)
    rows = plain(ROWS, terminal=np.arange(ROWS) == 1234)  # which a sample of 100 rows does not hold
    path = write_folder(tmp_path, rows, 600, 150)
    stored = stored_rows(path, 100)
    assert stored is not None
    assert not stored.sample(100, 0).rows.terminal.any()
    model = short(100).fit(path, progress=False)
    assert "left out" in caplog.text
    assert not model.sample(50, seed=0, progress=False).terminal.any()


@pytest.mark.parametrize(
    ("asked", "match"),
    [
        ({"held_out": np.zeros(ROWS, bool)}, "held_out"),
        ({"condition": "return"}, r"return.*window_rows"),
        ({"condition": {"own": np.zeros(ROWS)}}, r"own.*window_rows"),
    ],
)
def test_what_needs_all_rows_is_refused(folder, asked, match):
    with pytest.raises(ConfigError, match=match):
        short().fit(folder, **asked, progress=False)


def test_a_bad_row_is_refused_with_its_file(tmp_path):
    path = write_folder(tmp_path, plain(ROWS), 500, 100)
    bad = path / "part-2.parquet"
    table = pq.read_table(bad)
    pq.write_table(table.set_column(table.column_names.index("reward"), "reward", [np.full(500, np.nan)]), bad)
    with pytest.raises(DataError, match=r"part-2\.parquet.*reward"):
        short().fit(path, progress=False)


def test_a_single_file_is_streamed_too(tmp_path, caplog):
    caplog.set_level(logging.INFO, "synther")
    write(made(500), tmp_path / "rows.parquet")
    assert short(300).fit(tmp_path / "rows.parquet", progress=False).record.rows == 500
    assert "streaming 500 rows of 1 files" in caplog.text

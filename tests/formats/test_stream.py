"""Rows that stay on disk: what a sample holds, and an endless order in which every row comes as often as any other."""

from __future__ import annotations

import weakref
from dataclasses import replace
from itertools import count

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from synther import Transitions, write
from synther.data.fingerprint import fingerprint
from synther.errors import ConfigError, DataError, FormatError
from synther.formats import parquet
from synther.formats.stream import StoredRows, read_at_most, stored_rows
from synther.synthesizer.row_conditions import first_rows

from ..support.files import write_folder

ROWS = 1000
NONE = np.empty(0, np.int64)


def numbered(rows: int = ROWS, episode: int = 7) -> Transitions:
    """Rows that hold their own number, in episodes that end in a terminal."""
    number = np.arange(rows, dtype=np.float64)
    last = np.arange(rows) % episode == episode - 1
    return Transitions(
        number[:, None], -number[:, None], number / 2, number[:, None] + np.where(last, 0.5, 1)[:, None], last
    )


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> StoredRows:
    """Four files of 300, 300, 300 and 100 rows, in row groups of 77 at most."""
    return StoredRows(parquet.look(write_folder(tmp_path_factory.mktemp("rows") / "rows", numbered(), 300, 77)))


def places(rows: Transitions) -> np.ndarray:
    return rows.observation[:, 0].astype(np.int64)


def read_order(order, start: int, stop: int) -> np.ndarray:
    return np.concatenate([places(order.read(number)[0][part]) for number, part in order.parts(start, stop)])


@pytest.mark.parametrize("most", [1, 10, 77, 1000])
def test_pieces_are_all_rows(stored, most):
    pieces = stored.pieces(most)
    assert max(piece.stop - piece.start for piece in pieces) <= most
    for piece in pieces[:: len(pieces) // 7]:
        found = np.concatenate([places(rows) for rows, _ in stored.read(piece)])
        assert found.tolist() == list(range(piece.first, piece.first + piece.stop - piece.start))
    assert sum(piece.stop - piece.start for piece in pieces) == len(stored) == ROWS


@pytest.mark.parametrize("without", [NONE, np.array([999, 3, 4, 500, 0])], ids=["all", "but some"])
def test_every_row_comes_once_an_epoch_and_in_another_order_each_time(stored, without):
    order, kept = stored.order(10, 0, without), sorted(set(range(ROWS)) - set(without.tolist()))
    assert len(order) == len(kept)
    epochs = [read_order(order, number * len(order), (number + 1) * len(order)) for number in range(2)]
    for found in epochs:
        assert sorted(found.tolist()) == kept
    assert not np.array_equal(epochs[0], epochs[1])
    assert np.histogram(epochs[0][:400], 5, (0, ROWS))[0].min() > 0  # rows of the whole folder are near each other


def test_the_order_follows_from_the_seed_wherever_a_read_begins(stored):
    order, again, other = stored.order(20, 0, NONE), stored.order(20, 0, NONE), stored.order(20, 1, NONE)
    whole = read_order(order, 900, 1200)
    for start, stop in ((990, 1013), (917, 918), (1150, 1200)):
        assert np.array_equal(read_order(again, start, stop), whole[start - 900 : stop - 900])
    assert not np.array_equal(read_order(other, 900, 1000), whole[:100])


def test_a_sample_is_even_and_knows_its_places(stored):
    sample, again, other = stored.sample(400, 0), stored.sample(400, 0), stored.sample(400, 1)
    assert len(np.unique(sample.places)) == 400
    assert np.array_equal(places(sample.rows), sample.places)
    assert np.array_equal(again.places, sample.places)
    assert not np.array_equal(other.places, sample.places)
    # Of 250 rows each about 100, give or take 5 standard deviations of a hypergeometric draw: 5 sqrt(100 0.6 0.75).
    assert np.abs(np.histogram(sample.places, 4, (0, ROWS))[0] - 100).max() < 34
    assert np.array_equal(stored.sample(5000, 0).places, np.arange(ROWS))
    few = stored.sample(30, 3)  # from two of the fourteen row groups
    assert np.array_equal(places(few.rows), few.places)
    assert len(few.places) == 30


def test_beginnings_of_episodes_are_known_but_for_the_first_rows_of_row_groups(stored):
    firsts = first_rows(numbered())
    firsts[[piece.first for piece in stored.pieces(ROWS)]] = False
    firsts[::300] = True  # but those of files
    assert np.array_equal(stored.sample(ROWS, 0).begins, firsts)
    order = stored.order(8, 0, np.array([14, 15]))
    for number, _ in order.parts(0, len(order)):
        rows, begins = order.read(number)
        assert np.array_equal(begins, firsts[places(rows)])
    for piece in stored.pieces(1)[68:72]:
        assert [begins.tolist() for _, begins in stored.read(piece)] == [[bool(firsts[piece.first])]]


def test_beginnings_of_shuffled_rows_are_not_known(tmp_path):
    shuffled = numbered()[np.random.default_rng(0).permutation(ROWS)]
    stored = stored_rows(write_folder(tmp_path, shuffled, 300, 77), 10)
    assert stored is not None
    assert stored.sample(100, 0).begins is None
    order = stored.order(50, 0, NONE)
    assert {order.read(number)[1] for number, _ in order.parts(0, 100)} == {None}


def test_few_rows_are_in_memory_at_a_time(stored, monkeypatch):
    """Counted where they come into memory: each chunk until it is forgotten."""
    monkeypatch.setattr(parquet, "BATCH_ROWS", 16)
    alive, most, chunks = {}, [0], parquet.Files.chunks
    numbers = count()

    def counted(self, *where):
        for rows in chunks(self, *where):
            number = next(numbers)
            alive[number] = len(rows)
            weakref.finalize(rows, alive.pop, number)
            most[0] = max(most[0], sum(alive.values()))
            yield rows

    monkeypatch.setattr(parquet.Files, "chunks", counted)
    order = stored.order(40, 0, NONE)
    for start in range(0, ROWS, 25):
        assert len(read_order(order, start, start + 25)) == 25
    assert 16 < most[0] <= 2 * 40 + 16


def test_the_same_files_are_known_again_wherever_they_are(stored, tmp_path):
    rows = numbered()
    same = StoredRows(parquet.look(write_folder(tmp_path / "same", rows, 300, 77)))
    changed = replace(rows, reward=rows.reward + (np.arange(ROWS) == 999))
    other = StoredRows(parquet.look(write_folder(tmp_path / "other", changed, 300, 77)))
    assert fingerprint(same) == fingerprint(stored)
    assert fingerprint(other) != fingerprint(stored)


def test_only_many_rows_stay_on_disk(tmp_path):
    folder, rows = write_folder(tmp_path / "folder", numbered(20), 5, 5), numbered(20)
    write(rows, tmp_path / "rows.npz")
    write(rows, tmp_path / "one.parquet")
    for source in (folder, str(folder), tmp_path / "one.parquet"):
        found = stored_rows(source, 19)
        assert found is not None
        assert len(found) == 20
        assert stored_rows(source, 20) is None
        assert len(read_at_most(source, most=6)) == 6
        assert read_at_most(source, most=20).equals(rows)
    for other in (tmp_path / "rows.npz", rows, rows.arrays(), tmp_path / "absent.parquet", "hopper-sac"):
        assert stored_rows(other, 1) is None
    assert read_at_most(tmp_path / "rows.npz", most=3).equals(rows)


def test_a_file_without_rows_does_not_matter(tmp_path):
    folder = write_folder(tmp_path, numbered(20), 10, 5)
    pq.write_table(pq.read_table(folder / "part-0.parquet").slice(0, 0), folder / "part-00.parquet")
    stored = stored_rows(folder, 10)
    assert stored is not None
    assert sorted(read_order(stored.order(3, 0, NONE), 0, 20).tolist()) == list(range(20))


def test_other_columns_and_damaged_files_are_refused_before_rows_are_read(tmp_path):
    folder = write_folder(tmp_path, numbered(20), 10, 5)
    write(replace(numbered(10), extra={"more": np.arange(10)}), folder / "part-2.parquet")
    with pytest.raises(DataError, match=r"part-2\.parquet.*more"):
        stored_rows(folder, 10)
    (folder / "part-2.parquet").write_bytes(b"")
    with pytest.raises(FormatError, match=r"part-2\.parquet"):
        stored_rows(folder, 10)


def test_a_bad_number_is_refused_with_its_file_and_rows(tmp_path):
    folder = write_folder(tmp_path, numbered(40), 20, 5)
    table = pq.read_table(folder / "part-1.parquet")
    bad = table.column("reward").to_numpy().copy()
    bad[12] = np.nan
    table = table.set_column(table.column_names.index("reward"), "reward", [bad])
    pq.write_table(table, folder / "part-1.parquet", row_group_size=5)
    stored = stored_rows(folder, 10)
    assert stored is not None
    with pytest.raises(DataError, match=r"part-1\.parquet.*rows 10 to 14.*reward"):
        stored.sample(40, 0)
    with pytest.raises(DataError, match=r"part-1\.parquet.*rows 10 to 14.*reward"):
        read_order(stored.order(5, 0, NONE), 0, 40)


def test_rows_without_next_observations_are_refused(tmp_path):
    rows = numbered(20)
    columns = {"observation": rows.observation[:, 0], "action": rows.action[:, 0], "reward": rows.reward}
    table = pa.table({**columns, "terminal": rows.terminal, "timeout": np.zeros(20, bool)})
    pq.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(ConfigError, match=r"next_observation.*window_rows"):
        stored_rows(tmp_path, 10)


def test_a_file_that_has_shrunk_is_refused(tmp_path):
    folder = write_folder(tmp_path, numbered(40), 20, 10)
    stored = stored_rows(folder, 10)
    assert stored is not None
    write(numbered(3), folder / "part-1.parquet")
    with pytest.raises(FormatError, match=r"part-1\.parquet"):
        read_order(stored.order(5, 0, NONE), 0, 40)

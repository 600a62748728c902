"""Shards on their way to a file: whole or absent, and only those of the same work."""

from __future__ import annotations

import errno

import numpy as np
import pytest

from synther.data.transitions import Transitions
from synther.errors import FormatError, Unwritable
from synther.synthesizer.spool import Spool, Unspooled

IDENTITY = {"seed": 0, "model": "abc", "count": 100}


def rows(count: int, first: int = 0) -> Transitions:
    values = np.arange(first, first + count, dtype=np.float64)
    return Transitions(values[:, None], values[:, None] / 10, values, values[:, None] + 1, values % 2 == 0)


def held(spool: Spool) -> list[list[float]]:
    return [arrays["reward"].tolist() for arrays in spool.shards()]


def test_the_same_work_finds_its_shards_in_order(tmp_path):
    spool = Spool(tmp_path / "deep" / "x.partial", IDENTITY)
    assert (spool.count, len(spool), held(spool)) == (0, 0, [])
    assert [file.name for file in spool.folder.iterdir()] == ["manifest.json"]
    parts = [rows(3), rows(2, 3), rows(4, 5)]
    for part in parts[:2]:
        spool.append(part)
    (spool.folder / ".000002.123.writing.npz").write_bytes(b"PK\x03\x04")  # of a killed writer: no shard
    again = Spool(spool.folder, dict(reversed(IDENTITY.items())))  # the order of the keys says nothing
    assert (again.count, len(again)) == (2, 5)
    again.append(parts[2])
    for arrays, part in zip(Spool(spool.folder, IDENTITY).shards(), parts, strict=True):
        assert Transitions(**arrays).equals(part)
        assert {name: arrays[name].dtype for name in arrays} == {n: a.dtype for n, a in part.arrays().items()}
    again.remove()
    assert list((tmp_path / "deep").iterdir()) == []


def test_other_work_starts_afresh(tmp_path):
    Spool(tmp_path / "x", IDENTITY).append(rows(3))
    spool = Spool(tmp_path / "x", {**IDENTITY, "seed": 1})
    assert (spool.count, held(spool)) == (0, [])
    assert [file.name for file in spool.folder.iterdir()] == ["manifest.json"]


def test_a_folder_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "thesis.tex").write_text("years of work")
    with pytest.raises(FormatError, match="x"):
        Spool(tmp_path / "x", IDENTITY)
    assert (tmp_path / "x" / "thesis.tex").read_text() == "years of work"


def test_a_shard_that_was_never_finished_does_not_count(tmp_path, monkeypatch):
    spool = Spool(tmp_path / "x", IDENTITY)
    spool.append(rows(3))

    def half_written(file, **arrays):
        file.write_bytes(b"PK\x03\x04")
        raise OSError(errno.ENOSPC, "disk full")

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", half_written)
        with pytest.raises(Unwritable, match=r"000001\.npz.*disk full"):
            spool.append(rows(2, 3))
    assert (spool.count, len(spool)) == (1, 3)
    assert sorted(file.name for file in spool.folder.iterdir()) == ["000000.npz", "manifest.json"]
    spool.append(rows(2, 3))
    assert held(Spool(tmp_path / "x", IDENTITY)) == [[0, 1, 2], [3, 4]]


def test_shards_after_a_gap_do_not_count(tmp_path):
    """Removing a spool may be interrupted too."""
    spool = Spool(tmp_path / "x", IDENTITY)
    for number in range(3):
        spool.append(rows(2, 2 * number))
    (spool.folder / "000000.npz").unlink()
    again = Spool(tmp_path / "x", IDENTITY)
    assert again.count == 0
    for number in range(3):
        again.append(rows(2, 2 * number))
    assert held(again) == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("keep", [1, 4, 5, 100])
def test_the_first_rows_are_kept_however_often_they_are_gone_through(keep, tmp_path):
    spool, taken = Spool(tmp_path / "x", IDENTITY), []
    for first, count in ((0, 4), (4, 4), (8, 2)):
        spool.append(rows(count, first))
    given = Unspooled(spool, lambda arrays: Transitions(**arrays), taken.append, keep)
    for _ in range(2):
        assert [chunk.reward.tolist() for chunk in given.chunks(3)] == held(spool)
    assert given.first().reward.tolist() == list(range(min(keep, 10)))
    assert taken == [4, 4, 2]


@pytest.mark.parametrize("left", [".manifest.host-1.writing.json", "000000.npz"])
def test_what_a_killed_process_left_without_a_manifest_is_no_hindrance(left, tmp_path):
    """Killed while it began a spool, or while it removed one."""
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / left).write_text("{")
    spool = Spool(tmp_path / "x", IDENTITY)
    assert spool.count == 0
    assert [file.name for file in (tmp_path / "x").iterdir()] == ["manifest.json"]

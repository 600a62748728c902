"""A folder as bytes, taken at one moment and put in the place of another."""

from __future__ import annotations

import os
from pathlib import Path

from synther.experiments.engines import parcel


def filled(folder: Path) -> Path:
    (folder / "deep" / "empty").mkdir(parents=True)
    (folder / "log.jsonl").write_text("{}\n")
    (folder / "deep" / "weights").write_bytes(os.urandom(100_000))
    return folder


def content(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def test_round_trip(tmp_path):
    source, target = filled(tmp_path / "source"), tmp_path / "new" / "target"
    parcel.unpack(parcel.pack(source), target)
    assert content(target) == content(source)


def test_takes_the_place_of_what_was_there(tmp_path):
    source, target = filled(tmp_path / "source"), tmp_path / "target"
    (target / "old").mkdir(parents=True)
    _, packed = parcel.snapshot(source)
    parcel.unpack(packed, target)
    assert content(target) == content(source)
    assert {path.name for path in tmp_path.iterdir()} == {"source", "target"}


def test_what_repeats_itself_gets_smaller(tmp_path):
    (tmp_path / "log").write_text("the same line\n" * 10_000)
    assert len(parcel.pack(tmp_path)) < 10_000


def test_what_is_known_is_not_taken_again(tmp_path):
    folder = filled(tmp_path / "folder")
    known, _ = parcel.snapshot(folder)
    assert parcel.snapshot(folder, known) is None
    (folder / "new").touch()
    assert parcel.snapshot(folder, known) is not None


def test_a_mixture_of_two_moments_is_no_snapshot(tmp_path, monkeypatch):
    """The log grows, a file is replaced by one of the same size, one goes, one comes: each while they are read."""
    folder = filled(tmp_path / "folder")
    gather = parcel._gather

    def replaced() -> None:
        (tmp_path / "other").write_text("[]\n")
        os.replace(tmp_path / "other", folder / "log.jsonl")

    def grown() -> None:
        with (folder / "log.jsonl").open("a") as file:
            file.write("{}\n")

    changes = [replaced, grown, (folder / "log.jsonl").unlink, (folder / "new").touch]
    for change in changes:
        with monkeypatch.context() as patched:
            patched.setattr(parcel, "_gather", lambda *given, change=change: (gather(*given), change()))
            assert parcel.snapshot(folder) is None
        assert parcel.snapshot(folder) is not None


def test_a_file_that_goes_before_it_is_read_is_no_defect(tmp_path, monkeypatch):
    folder = filled(tmp_path / "folder")
    state = parcel.state

    def state_and_gone(of: Path) -> parcel.State:
        found = state(of)
        if (folder / "log.jsonl").exists():
            (folder / "log.jsonl").unlink()
        return found

    monkeypatch.setattr(parcel, "state", state_and_gone)
    assert parcel.snapshot(folder) is None
    assert parcel.snapshot(tmp_path / "nowhere") is None

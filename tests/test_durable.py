from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from synther.durable import _HOST, replacing
from synther.errors import FormatError


def only(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def write_folder(path: Path, text: str) -> None:
    (path / "inner").mkdir(parents=True)
    (path / "one").write_text(text)
    (path / "inner" / "two").write_text(text)


@pytest.mark.parametrize("old", [None, "old"])
def test_a_file_stands_until_the_new_one_is_whole(old, tmp_path):
    final = tmp_path / "deep" / "er" / "file.npz"
    if old:
        final.parent.mkdir(parents=True)
        final.write_text(old)
    with replacing(str(final)) as beside:
        beside.write_text("new")
        assert (final.read_text() if final.exists() else None) == old
        assert beside.parent == final.parent, "renaming is atomic on one file system only"
        assert beside.suffix == ".npz"
    assert final.read_text() == "new"
    assert only(final.parent) == ["file.npz"]


@pytest.mark.parametrize(
    ("write", "files"), [(lambda path: path.write_text("new"), 1), (lambda path: write_folder(path, "new"), 2)]
)
def test_it_is_on_the_disk_before_it_has_its_name_and_the_name_too(write, files, tmp_path, monkeypatch):
    done = []
    replace = os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: done.append(os.fstat(handle).st_ino))
    monkeypatch.setattr(os, "replace", lambda old, new: (done.append("renamed"), replace(old, new)))
    with replacing(tmp_path / "final") as beside:
        write(beside)
        written = {file.stat().st_ino for file in (beside, *beside.rglob("*")) if file.is_file()}
    assert len(written) == files
    assert set(done[:files]) == written
    assert done[files:] == ["renamed", tmp_path.stat().st_ino]


def test_a_file_does_not_replace_a_folder(tmp_path):
    (tmp_path / "folder").mkdir()
    with (
        pytest.raises(FormatError, match="folder is a folder: expected the name of a file"),
        replacing(tmp_path / "folder") as beside,
    ):
        beside.write_text("new")
    assert only(tmp_path) == ["folder"]


def test_a_private_file_becomes_as_readable_as_any_other(tmp_path):
    with replacing(tmp_path / "file") as beside:
        beside.touch(mode=0o600)
    (tmp_path / "usual").touch()
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("failure", ["half-way", "at once", "forgotten"])
def test_failure_leaves_what_was_there_and_no_litter(kind, failure, tmp_path):
    final = tmp_path / "data"
    put = write_folder if kind == "folder" else Path.write_text

    def fail() -> None:
        with replacing(final) as beside:
            if failure == "half-way":
                put(beside, "new")
            if failure != "forgotten":
                raise KeyError

    put(final, "old")
    with pytest.raises(FileNotFoundError if failure == "forgotten" else KeyError):
        fail()
    assert (final / "inner" / "two" if kind == "folder" else final).read_text() == "old"
    assert only(tmp_path) == ["data"]


@pytest.mark.parametrize("before", ["nothing", "file", "folder"])
def test_a_folder(before, tmp_path):
    final = tmp_path / "data"
    if before == "file":
        final.write_text("old")
    elif before == "folder":
        write_folder(final, "old")
        (final / "stale").write_text("old")
    with replacing(final) as beside:
        write_folder(beside, "new")
        assert final.exists() == (before != "nothing")
    assert only(final) == ["inner", "one"]
    assert (final / "one").read_text() == (final / "inner" / "two").read_text() == "new"
    assert only(tmp_path) == ["data"]


def test_an_old_folder_comes_back_where_the_new_cannot_take_its_place(tmp_path, monkeypatch):
    final = tmp_path / "data"
    write_folder(final, "old")
    rename = os.replace

    def failing(source, target) -> None:
        if Path(target) == final and (Path(source) / "one").read_text() == "new":
            raise OSError("no space left")
        rename(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match="no space left"), replacing(final) as beside:
        write_folder(beside, "new")
    assert (final / "inner" / "two").read_text() == "old"
    assert only(tmp_path) == ["data"]


WRITER = """
import itertools, sys
from pathlib import Path
from synther.durable import _HOST, replacing

final = Path(sys.argv[1])
for number in itertools.count():
    text = f"{number:08}"
    with replacing(final) as beside:
        if final.name == "folder":
            beside.mkdir()
        for file in [beside / f"{i}" for i in range(20)] if final.name == "folder" else [beside]:
            with open(file, "w") as out:
                for _ in range(50):
                    out.write(text * 100)
                    out.flush()
    print(number, flush=True)
"""


@pytest.mark.parametrize("name", ["file", "folder"])
def test_a_killed_writer_leaves_nothing_half_written(name, tmp_path):
    final = tmp_path / name
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(final)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"0\n"
        time.sleep(random.uniform(0, 0.05))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        if name == "file":
            assert len(final.read_text()) == 8 * 100 * 50
            assert len({final.read_text()[i : i + 8] for i in range(0, 40_000, 8)}) == 1
        elif final.exists():  # between the two renames there is no folder of that name
            texts = [file.read_text() for file in final.iterdir()]
            assert len(texts) == 20
            assert len(set(texts)) == 1
            assert len(texts[0]) == 8 * 100 * 50


def test_what_a_killed_writer_left_is_tidied_up(tmp_path):
    final = tmp_path / "rows.npz"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead, living = (tmp_path / f".rows.{_HOST}-{pid}.writing.npz" for pid in (ended.pid, os.getppid()))
    elsewhere = tmp_path / f".rows.another_{_HOST}-{ended.pid}.writing.npz"
    dead.write_text("half")
    living.write_text("somebody else's")
    elsewhere.write_text("of another machine")
    with replacing(final) as beside:
        beside.write_text("whole")
    assert not dead.exists()
    assert living.exists()
    assert elsewhere.exists()
    assert final.read_text() == "whole"


def test_a_folder_whose_writer_was_killed_between_the_two_renames_comes_back(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for kind, text in (("replaced", "old"), ("writing", "new")):
        (tmp_path / f".set.{_HOST}-{ended.pid}.{kind}").mkdir()
        (tmp_path / f".set.{_HOST}-{ended.pid}.{kind}" / "rows").write_text(text)
    with pytest.raises(ZeroDivisionError), replacing(tmp_path / "set"):
        raise ZeroDivisionError
    assert only(tmp_path) == ["set"]
    assert (tmp_path / "set" / "rows").read_text() == "old"

"""Frames on their way to a file: stopped anywhere, the same call goes on and ends with the same file."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synther.collect import frames as collect_pixels
from synther.collect.frames import frames_target, record_frames, save_frames
from synther.collect.rows import Summary
from synther.errors import ConfigError
from synther.pixels import recording
from synther.pixels.files import read
from synther.pixels.formats import hdf5
from synther.pixels.frames import Frames

from ..support.processes import killed
from ..support.watch import Stopped, Watch
from .counter import TASK, Counter, same, stand_in

OUT, PARTIAL = Path("frames.hdf5"), Path("frames.hdf5.partial")


@pytest.fixture(autouse=True)
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Counter]]:
    """In an own folder."""
    monkeypatch.chdir(tmp_path)
    yield stand_in(monkeypatch)
    recording._env.cache_clear()


def kept(out: Path = OUT, decisions: int = 43, **how: Any) -> Summary:
    return save_frames(record_frames(TASK, "random", decisions, size=6, **how), out)


@pytest.fixture
def whole(counted) -> bytes:
    """The file of a call that nothing has stopped."""
    kept(Path("whole.hdf5"))
    counted.starts = 0
    return Path("whole.hdf5").read_bytes()


def test_what_is_kept(caplog):
    caplog.set_level("INFO", "synther")
    found = kept(Path("new/frames.hdf5"), 23, processes=2)
    (start,) = caplog.messages
    for part in ("23 decisions", TASK, "random", "6 x 6 pixels", "2 processes", "to new/frames.hdf5"):
        assert part in start
    stored = read("new/frames.hdf5")
    assert (found.env_id, found.rows, found.episodes, found.whole, len(stored)) == (TASK, 23, 3, 2, 26)
    assert found.mean_return == pytest.approx(stored.returns()[:2].mean(), rel=1e-6)
    assert found.std == pytest.approx(stored.returns()[:2].std(), rel=1e-6)
    direct = Frames.concatenate(list(record_frames(TASK, "random", 23, size=6).after([])))
    assert same(stored, direct)
    assert (stored.env_id, stored.action_repeat, stored.shadow_size) == (TASK, 2, None)
    about = hdf5.Shard(Path("new/frames.hdf5")).about
    assert (about["mean_return"], about["std_return"], about["whole_episodes"]) == (found.mean_return, found.std, 2)
    assert json.loads(about["recorded"]) == record_frames(TASK, "random", 23, size=6).identity
    assert [file.name for file in Path("new").iterdir()] == ["frames.hdf5"]
    cut = kept(decisions=4, shadow_size=64)
    assert read(OUT).shadow_size == 64
    assert set(hdf5.Shard(OUT).about) == {"recorded", "whole_episodes"}
    assert (cut.episodes, cut.whole, cut.mean_return, cut.std) == (1, 0, None, None)


def test_where_it_may_go():
    assert frames_target("new/frames.HDF5") == Path("new/frames.HDF5")
    Path("old.hdf5").touch()
    with pytest.raises(ConfigError, match=r"old\.hdf5"):
        frames_target("old.hdf5")
    for name in ("frames.npz", "frames", "minari:mine/frames-v0"):
        with pytest.raises(ConfigError, match=r"\.hdf5"):
            frames_target(name)


@pytest.mark.parametrize("places", [[1], [10], [20, 20, 40], [43]], ids=str)
def test_stopped_while_it_records(counted, whole, places):
    for processes, place in enumerate(places, start=1):
        with pytest.raises(Stopped):
            kept(processes=processes, progress=Watch(place))
        assert not OUT.exists()
        assert PARTIAL.exists() == (place > 10)  # nothing is left of what failed before its first episode
    rest = Watch()
    kept(processes=1, progress=rest)
    assert (rest.start, rest.done) == (10 * ((places[-1] - 1) // 10), 43)
    assert OUT.read_bytes() == whole
    assert not PARTIAL.exists()


def stopped(patch: pytest.MonkeyPatch, owner: Any, name: str, call: int) -> None:
    """Before so many calls of a function."""
    real, calls = getattr(owner, name), 0

    def stopping(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise KeyboardInterrupt
        return real(*given, **named)

    with patch.context() as patched:
        patched.setattr(owner, name, stopping)
        with pytest.raises(KeyboardInterrupt):
            kept()


@pytest.mark.parametrize(
    ("owner", "name", "call", "drawn"),
    [
        (collect_pixels, "write", 1, 5),
        (collect_pixels, "write", 4, 2),
        (collect_pixels, "write", 6, 0),
        (collect_pixels, "read", 3, 0),
        (hdf5, "_append", 3, 3),
        (hdf5, "_append", 8, 0),
    ],
)
def test_stopped_while_it_writes(counted, whole, owner, name, call, drawn, monkeypatch):
    """A part, or the whole."""
    stopped(monkeypatch, owner, name, call)
    assert not OUT.exists()
    counted.starts = 0
    kept()
    assert counted.starts == drawn
    assert OUT.read_bytes() == whole
    assert sorted(file.name for file in Path().iterdir()) == ["frames.hdf5", "whole.hdf5"]


def test_parts_that_were_being_removed_are_drawn_again(counted, whole, monkeypatch):
    stopped(monkeypatch, collect_pixels, "read", 3)
    for number in (0, 1):
        (PARTIAL / f"00000{number}.hdf5").unlink()
    kept()
    assert OUT.read_bytes() == whole
    OUT.unlink()
    stopped(monkeypatch, shutil, "rmtree", 1)
    assert OUT.read_bytes() == whole
    assert [file.name for file in PARTIAL.iterdir()] == ["run.json"]
    OUT.unlink()
    kept()
    assert OUT.read_bytes() == whole


@pytest.mark.parametrize(
    ("changed", "says"),
    [({"seed": 1}, "seed"), ({"decisions": 44}, "steps"), ({"repeat": 3, "seed": 1}, "repeat .*, seed")],
    ids=str,
)
def test_parts_of_something_else_are_refused(counted, changed, says):
    with pytest.raises(Stopped):
        kept(progress=Watch(30))
    before = {file.name: file.read_bytes() for file in PARTIAL.iterdir()}
    assert sorted(before) == ["000000.hdf5", "000001.hdf5", "run.json"]
    counted.starts = 0
    with pytest.raises(ConfigError, match=rf"frames\.hdf5\.partial .*other options: {says}"):
        kept(**changed)
    assert counted.starts == 0
    assert {file.name: file.read_bytes() for file in PARTIAL.iterdir()} == before


def test_a_folder_of_somebody_else_is_left_alone(counted):
    PARTIAL.mkdir()
    (PARTIAL / "000000.hdf5").write_text("years of work")
    with pytest.raises(ConfigError, match=r"frames\.hdf5\.partial"):
        kept()
    assert (counted.starts, (PARTIAL / "000000.hdf5").read_text()) == (0, "years of work")


def test_killed_by_the_system(counted, monkeypatch):
    def step(self: Counter, action: np.ndarray) -> tuple[None, float, bool, bool]:
        time.sleep(0.01)
        return Counter.step(self, action)

    with monkeypatch.context() as patch:
        patch.setattr(counted, "step", step)
        killed(lambda: kept(decisions=103, processes=1), once=(PARTIAL / "000002.hdf5").exists)
    assert not OUT.exists()
    there = len(list(PARTIAL.glob("0*.hdf5")))
    found = kept(decisions=103)
    assert (found.episodes, counted.starts) == (11, 11 - there)
    kept(Path("whole.hdf5"), 103)
    assert OUT.read_bytes() == Path("whole.hdf5").read_bytes()
    assert sorted(file.name for file in Path().iterdir()) == ["frames.hdf5", "whole.hdf5"]

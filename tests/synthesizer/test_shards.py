"""Rows drawn into a folder of files: those of `sample`, whoever writes which file, and however often it was stopped."""

from __future__ import annotations

import pyarrow.dataset
import pytest

from synther import Synthesizer, read
from synther.errors import ConfigError, FormatError
from synther.synthesizer import shards
from synther.synthesizer.requests import Requests

from ..support.processes import killed
from ..support.watch import Slow, Stopped, Watch

BLOCK = 512
COUNT = 4 * BLOCK + 10


@pytest.fixture(autouse=True)
def small_files(monkeypatch, drawn_blocks) -> list[int]:
    """Files of one block; the numbers of the blocks that this process draws."""
    monkeypatch.setattr(shards, "SHARD_BYTES", 1)
    monkeypatch.setattr(shards, "SHARES", 2)
    return drawn_blocks


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


FILES = [f"part-{number:06d}.parquet" for number in range(5)]


@pytest.mark.parametrize("name", ["fake", "fake.parquet/"])
def test_a_folder_holds_the_rows_of_sample_and_of_a_single_file(quick, tmp_path, name):
    first = quick.sample_to(f"{tmp_path}/{name}", COUNT, seed=3, progress=False)
    folder, rows = tmp_path / name, quick.sample(COUNT, seed=3, progress=False)
    quick.sample_to(tmp_path / "single.parquet", COUNT, seed=3, progress=False)
    held = read(folder)
    assert held.equals(rows)
    assert held.equals(read(tmp_path / "single.parquet"))
    assert first.equals(rows[:BLOCK])
    assert (held.env_id, held.action_space, held.observation_space) == (
        rows.env_id,
        rows.action_space,
        rows.observation_space,
    )
    assert names(folder) == [".synther", *FILES]
    assert names(folder / ".synther") == ["result.json", "run.json"]
    assert pyarrow.dataset.dataset(folder).count_rows() == COUNT  # other tools see our files, and no others


def test_interrupted_work_goes_on_with_the_files_that_are_missing(quick, small_files, tmp_path):
    folder = tmp_path / "fake"
    with pytest.raises(Stopped):
        quick.sample_to(folder, COUNT, progress=Watch(("sample", 3 * BLOCK)))
    assert names(folder) == [".synther", *FILES[:2]]
    with pytest.raises(FormatError, match="finished"):
        read(folder)
    (folder / FILES[0]).unlink()  # any may be missing
    (folder / ".part-000003.elsewhere-1.writing.parquet").touch()
    small_files.clear()
    watch = Watch()
    quick.sample_to(folder, COUNT, progress=watch)
    assert small_files == [0, 2, 3, 4]
    assert watch.phases == [["sample", COUNT, BLOCK, COUNT]]
    assert names(folder) == [".synther", *FILES]
    assert read(folder).equals(quick.sample(COUNT, seed=0, progress=False))
    small_files.clear()
    quick.sample_to(folder, COUNT, progress=False)
    assert small_files == []


def test_relabelled_rows(quick, tmp_path):
    how = {"relabel": {"reward": lambda rows: rows.observation[:, 0]}, "seed": 0, "progress": False}
    quick.sample_to(tmp_path / "fake", COUNT, **how)
    assert read(tmp_path / "fake").equals(quick.sample(COUNT, **how))


def test_other_processes_go_on_after_a_kill(quick, small_files, tmp_path):
    quick.save(tmp_path / "quick.safetensors")
    folder = tmp_path / "fake"
    killed(lambda: quick.sample_to(folder, COUNT, progress=Slow(0.3)), once=(folder / FILES[1]).exists)
    assert FILES[4] not in names(folder)
    before = (folder / FILES[0]).stat().st_mtime_ns
    model = Synthesizer.load(tmp_path / "quick.safetensors")
    rows = model.sample(COUNT, seed=0, progress=False)
    small_files.clear()
    model.sample_to(folder, COUNT, parallel=2, progress=False)
    assert small_files == []  # all were drawn elsewhere
    assert (folder / FILES[0]).stat().st_mtime_ns == before
    assert read(folder).equals(rows)
    assert names(folder / ".synther") == ["result.json", "run.json"]


@pytest.mark.parametrize(
    ("target", "options", "match"),
    [
        ("rows.npz", {"parallel": 2}, "folder"),
        ("rows", {"parallel": 0}, "parallel"),
        ("rows", {"gpus": 1}, "--engine ray"),
        ("rows", {"engine": "spark"}, "spark"),
        ("rows", {"parallel": 2, "relabel": {"reward": len}}, "relabel"),
        ("taken", {}, "something else"),
        ("made", {"seed": 1}, "seed"),
    ],
)
def test_refusals(quick, tmp_path, target, options, match):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").touch()
    quick.sample_to(tmp_path / "made", 10, progress=False)
    with pytest.raises(ConfigError, match=match):
        quick.sample_to(tmp_path / target, 10, **options, progress=False)
    assert names(tmp_path) == ["made", "taken"]
    assert names(tmp_path / "taken") == ["notes.txt"]


def test_a_device_with_other_blocks_is_refused(quick, tmp_path):
    picking = quick._picking(None, Requests(), Watch())
    others = shards.Shards(tmp_path, COUNT, 0, 2 * BLOCK, 1)
    with pytest.raises(ConfigError, match="--device"):
        others.write(range(2), picking, quick._dressed, Watch())
    assert names(tmp_path) == []

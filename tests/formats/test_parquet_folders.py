"""Folders of Parquet files, ours and those of other tools."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from synther import Synthesizer, Transitions, datasets, formats, read, write
from synther.errors import DataError, FormatError
from synther.formats import parquet

COLUMNS = ("observations", "actions", "rewards", "next_observations", "terminals")


def some(count: int, start: int = 0) -> Transitions:
    numbers = np.arange(start, start + count, dtype=np.float32)
    return Transitions(numbers[:, None], -numbers[:, None], numbers / 2, numbers[:, None] + 1, numbers % 5 == 4)


def foreign(path: Path, rows: Transitions, **changes) -> None:
    """As pandas would write it: lists of any length, and names of D4RL's."""
    columns = dict(zip(COLUMNS, (list(array) for array in rows.arrays().values()), strict=True)) | changes
    pq.write_table(pa.table({key: pa.array(values) for key, values in columns.items() if values is not None}), path)


def test_rows_come_in_the_order_of_the_numbers_in_the_names(tmp_path):
    for number in range(11):
        foreign(tmp_path / f"part.{number}.parquet", some(3, 3 * number))
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".part.0.parquet.crc").touch()
    (tmp_path / "README.md").touch()
    assert read(tmp_path).equals(some(33))
    assert read(tmp_path, format="parquet").equals(some(33))
    assert datasets.read(tmp_path.name, data=tmp_path.parent).rows.equals(some(33))


def test_names_can_be_changed_and_empty_files_do_not_matter(tmp_path):
    for number, rows in ((0, some(2)), (2, some(3, 2))):
        foreign(tmp_path / f"{number}.pq", rows, rewards=None, gain=rows.reward)
    pq.write_table(pq.read_table(tmp_path / "0.pq").slice(0, 0), tmp_path / "1.pq")
    assert read(tmp_path, rename={"gain": "reward"}).equals(some(5))


def test_columns_of_single_numbers_are_joined(tmp_path):
    numbers = np.arange(20.0).reshape(10, 2)
    rows = Transitions(numbers[:, :1], numbers, numbers[:, 0], numbers[:, 1:], extra={"goal": -numbers})
    frame = rows.to_pandas()
    assert list(frame)[:3] == ["observation[0]", "action[0]", "action[1]"]
    frame.to_parquet(tmp_path / "0.parquet")
    assert read(tmp_path).equals(rows)
    (chunk,) = parquet.look(tmp_path).chunks(0, 0, 2, 5)
    assert chunk.equals(rows[2:5])

    named = frame.rename(columns={"action[0]": "torque", "action[1]": "brake", "observation[0]": "obs_0"})
    named.to_parquet(tmp_path / "0.parquet")
    assert read(tmp_path, rename={"torque": "action_0", "brake": "action_1"}).equals(rows)
    with pytest.raises(DataError, match=r"0\.parquet: action has the columns \[0, 2\]: expected 0 to 1"):
        read(tmp_path, rename={"torque": "action_0", "brake": "action_2"})
    with pytest.raises(DataError, match="unknown key 'torque', 'brake'"):
        read(tmp_path)


def test_a_model_is_fitted_on_a_folder(tmp_path):
    write(some(40), tmp_path / "a.parquet")
    write(some(40, 40), tmp_path / "b.parquet")
    settings = {"network": {"width": 8, "depth": 1, "embedding": 8}, "fit": {"steps": 1}, "sampler": {"steps": 1}}
    assert Synthesizer("laptop", **settings).fit(tmp_path, progress=False).record.rows == 80


@pytest.mark.parametrize(
    ("other", "match"),
    [
        ({"actions": None, "action": [[0.0], [1.0]]}, "action"),
        ({"terminals": [0, 1]}, "terminals"),
        ({"rewards": pa.array([0.0, 1.0], pa.float64())}, "rewards"),
        ({"timeouts": [False, True]}, "timeouts"),
        ({"observations": [[1.0, 2.0], [3.0, 4.0]], "next_observations": [[1.0, 2.0], [3.0, 4.0]]}, "observations"),
    ],
)
def test_mixed_columns_are_refused(tmp_path, other, match):
    foreign(tmp_path / "a.parquet", some(2))
    foreign(tmp_path / "b.parquet", some(2), **other)
    with pytest.raises(DataError, match=rf"b\.parquet.*{match}"):
        read(tmp_path)


def test_mixed_environments_are_refused(tmp_path):
    write(replace(some(2), env_id="One-v0"), tmp_path / "a.parquet")
    write(replace(some(2), env_id="Two-v0"), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b\.parquet.*environment"):
        read(tmp_path)


@pytest.mark.parametrize("unfinished", [".synther", "_temporary"])
def test_unfinished_folders_are_refused(tmp_path, unfinished):
    write(some(2), tmp_path / "a.parquet")
    (tmp_path / unfinished).mkdir()
    (tmp_path / unfinished / "run.json").write_text(json.dumps({}))
    with pytest.raises(FormatError, match="finished"):
        read(tmp_path)


def test_folders_without_parquet_files_are_refused(tmp_path):
    (tmp_path / "notes.txt").touch()
    for format in (None, "parquet"):
        with pytest.raises(FormatError, match="Parquet"):
            read(tmp_path, format=format)
    with pytest.raises(FormatError, match="folder"):
        read(tmp_path, format="npz")

    (tmp_path / "episode=1").mkdir()
    write(some(4), tmp_path / "episode=1" / "0.parquet")
    with pytest.raises(FormatError, match="subfolders are not read"):
        read(tmp_path)


def test_a_damaged_file_is_named(tmp_path):
    write(some(2), tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-9])
    with pytest.raises(FormatError, match=r"b\.parquet"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("target", "is_folder"),
    [("rows", True), ("rows.parquet/", True), ("there.is", True), ("rows.npz", False), ("minari:a/b-v0", False)],
)
def test_which_targets_are_folders(tmp_path, monkeypatch, target, is_folder):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.is").mkdir()
    assert formats.names_folder(target) is is_folder

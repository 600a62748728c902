from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from synther.data.formats import parquet, read, writing
from synther.data.transitions import Transitions
from synther.errors import DataError


def rows(count: int = 20) -> Transitions:
    states = np.arange(2 * count, dtype=np.float32).reshape(count, 2)
    return Transitions(states, states[:, :1], states[:, 0], states + 1, timeout=np.zeros(count, bool))


def test_columns_are_fixed_size_lists(tmp_path: Path) -> None:
    parquet.write(rows(), tmp_path / "rows.parquet")
    schema = pq.read_schema(tmp_path / "rows.parquet")
    assert schema.names == ["observation", "action", "reward", "next_observation", "terminal", "timeout"]
    assert pa.types.is_fixed_size_list(schema.field("observation").type)
    assert schema.field("observation").type.list_size == 2
    assert schema.field("reward").type == pa.float32()
    assert schema.field("terminal").type == pa.bool_()


def test_a_row_group_for_each_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "CHUNK_BYTES", 260)
    monkeypatch.setattr(parquet, "_BATCH_ROWS", 7)
    parquet.write(rows(), tmp_path / "rows.parquet")
    assert pq.ParquetFile(tmp_path / "rows.parquet").num_row_groups == 2
    assert read(tmp_path / "rows.parquet").equals(rows())


def test_a_part_of_a_column_is_that_part() -> None:
    """Arrow cuts columns without moving them, also in the midst of a byte of flags."""
    flags, numbers = [True, False, False, True, True, False, True, True, False, True], np.arange(20.0)
    assert parquet._to_numpy("flags", pa.array(flags).slice(3, 6)).tolist() == flags[3:9]
    assert parquet._to_numpy("numbers", pa.array(numbers).slice(3, 6)).tolist() == numbers[3:9].tolist()
    pairs = pa.FixedSizeListArray.from_arrays(pa.array(numbers), 2)
    assert parquet._to_numpy("pairs", pairs.slice(3, 2)).tolist() == [[6, 7], [8, 9]]


def store(path: Path, **columns: object) -> Path:
    some = rows(3)
    usual = {
        "obs": list(some.observation),
        "actions": [1, 2, 3],
        "reward": [1.0, 2.0, 3.0],
        "next_obs": list(some.observation),
    }
    pq.write_table(pa.table({**usual, **columns}), path)
    return path


def test_lists_of_any_kind_are_vectors(tmp_path: Path) -> None:
    large = pa.array([[1.0, 2.0]] * 3, pa.large_list(pa.float64()))
    back = read(store(tmp_path / "rows.pq", obs=large))
    assert back.observation.shape == (3, 2)
    assert back.action.tolist() == [1, 2, 3]
    assert back.action.dtype == np.int64


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ({"reward": [1.0, None, 3.0]}, "'reward' holds 1 nulls"),
        ({"obs": [[1.0, 2.0], None, [1.0, 2.0]]}, "'obs' holds 1 nulls"),
        ({"obs": [[1.0, 2.0], [1.0, None], [1.0, 2.0]]}, "'obs' holds 1 nulls"),
        ({"obs": [[1.0, 2.0], [1.0], [1.0, 2.0, 3.0]]}, "'obs' holds lists of different lengths"),
        ({"obs": ["a", "b", "c"]}, "'obs' has type string"),
        ({"obs": [["a"], ["b"], ["c"]]}, "'obs' has type string"),
        ({"obs": [{"x": 1.0}] * 3}, "'obs' has type struct"),
    ],
)
def test_columns_that_are_no_numbers(tmp_path: Path, column: dict[str, object], reason: str) -> None:
    with pytest.raises(DataError, match=rf"rows\.pq: {reason}"):
        read(store(tmp_path / "rows.pq", **column))


def test_width_that_changes_between_batches_and_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_BATCH_ROWS", 1)
    with pytest.raises(DataError, match="row 1"):
        read(store(tmp_path / "rows.pq", obs=[[1.0, 2.0], [1.0], [1.0, 2.0, 3.0]]))
    pq.write_table(pq.read_table(store(tmp_path / "rows.pq")).slice(0, 0), tmp_path / "none.pq")
    with pytest.raises(DataError, match="no rows"):
        read(tmp_path / "none.pq")


def test_row_labels_of_pandas_are_left_out(tmp_path: Path) -> None:
    labels = {"__index_level_0__": [4, 7, 9]}
    assert read(store(tmp_path / "a.pq", **labels)).equals(read(store(tmp_path / "b.pq")))

"""What each file format has of its own: compact npz archives, HDF5 files like those of D4RL, Parquet columns.

An HDF5 file must hold its data itself: no reader follows one into other files.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from synther.data.transitions import Transitions
from synther.errors import DataError, FormatError, Unwritable
from synther.formats import d4rl, episodes, hdf5, parquet, read, write, writing
from synther.formats.hdf5 import check_self_contained
from synther.pixels import files as frames_files
from synther.pixels.frames import Frames

from ..support.files import store

NAMES = {"observations", "actions", "rewards", "next_observations", "terminals", "timeouts"}


def whole(count: int = 20) -> Transitions:
    states = np.arange(2 * count, dtype=np.float32).reshape(count, 2)
    return Transitions(states, states[:, :1], states[:, 0], states + 1, timeout=np.zeros(count, bool), env_id="Ant-v5")


def test_other_programs_read_what_is_written(tmp_path: Path) -> None:
    for suffix in ("npz", "hdf5", "parquet"):
        write(whole(), tmp_path / f"rows.{suffix}")
    with np.load(tmp_path / "rows.npz") as archive:
        assert set(archive.files) == NAMES | {"synther_metadata"}
        assert archive["next_observations"].shape == (20, 2)
    with h5py.File(tmp_path / "rows.hdf5") as file:
        assert set(file) == NAMES
        assert file["terminals"].dtype == bool
        assert file.attrs["env_id"] == "Ant-v5"
    schema = pq.read_schema(tmp_path / "rows.parquet")
    assert schema.names == ["observation", "action", "reward", "next_observation", "terminal", "timeout"]
    assert pa.types.is_fixed_size_list(schema.field("observation").type)
    assert schema.field("observation").type.list_size == 2
    assert schema.field("reward").type == pa.float32()
    assert schema.field("terminal").type == pa.bool_()


def compact(**changed: np.ndarray) -> dict[str, np.ndarray]:
    """Episodes of 3, 1 and 2 steps; observations count up over all of them."""
    return {
        "observations": np.arange(9, dtype=np.float32)[:, None] * np.ones(2, np.float32),
        "actions": np.arange(6, dtype=np.float32)[:, None] / 10,
        "rewards": np.arange(6, dtype=np.float32),
        "episode_lengths": np.array([3, 1, 2], np.int32),
        "terminated": np.array([True, False, False]),
        "env_id": np.array("Walker2d-v5"),
        **changed,
    }


def test_compact_npz_is_expanded(tmp_path: Path) -> None:
    rows = read(store(tmp_path / "rows.npz", compact()))
    assert rows.observation[:, 0].tolist() == [0, 1, 2, 4, 6, 7]
    assert rows.next_observation[:, 0].tolist() == [1, 2, 3, 5, 7, 8]
    assert np.flatnonzero(rows.terminal).tolist() == [2]
    assert np.flatnonzero(rows.timeout).tolist() == [3, 5]
    assert rows.env_id == "Walker2d-v5"
    assert rows.action_space is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("observations", np.zeros((8, 2))),
        ("actions", np.zeros((5, 1))),
        ("episode_lengths", np.array([3, 0, 3])),
        ("episode_lengths", np.array([3.0, 1.0, 2.0])),
        ("terminated", np.array([True, False])),
        ("terminated", np.array([0, 1, 2])),
        ("colour", np.zeros(3)),
    ],
)
def test_inconsistent_compact_npz(tmp_path: Path, name: str, value: np.ndarray) -> None:
    with pytest.raises(DataError, match=rf"rows\.npz: .*{name}"):
        read(store(tmp_path / "rows.npz", compact(**{name: value})))


def test_a_flipped_bit_in_npz_is_noticed(tmp_path: Path) -> None:
    write(whole(400), tmp_path / "rows.npz")
    content = bytearray((tmp_path / "rows.npz").read_bytes())
    content[len(content) // 2] ^= 4
    (tmp_path / "rows.npz").write_bytes(content)
    with pytest.raises(FormatError, match="CRC"):
        read(tmp_path / "rows.npz")


def flat(rows: int = 40, **changed: object) -> dict[str, object]:
    """D4RL's arrays, without next observations."""
    return {
        "observations": np.arange(rows, dtype=np.float32)[:, None] * np.ones(3, np.float32),
        "actions": np.zeros((rows, 2), np.float32),
        "rewards": np.arange(rows, dtype=np.float64),
        "terminals": np.isin(np.arange(rows), (9, 19)),
        "timeouts": np.isin(np.arange(rows), (14, 29)),
        **changed,
    }


def test_compressed_hdf5_with_infos_and_metadata(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        for key, array in flat(**{"infos/qpos": np.zeros((40, 2)), "metadata/policy/w": np.ones(2)}).items():
            file.create_dataset(key, data=array, compression="gzip")
        file["metadata/algorithm"] = b"SAC"
        file.attrs["env_id"] = "Hopper-v5"
    rows = read(tmp_path / "rows.h5")
    assert len(rows) == 37
    assert rows.env_id == "Hopper-v5"


@pytest.mark.parametrize("block_bytes", [12, 84, 1 << 20])
def test_hdf5_rows_are_paired_in_blocks(tmp_path, monkeypatch, caplog, block_bytes: int) -> None:
    """Rows 14 and 29 (timeouts) and 39 (the end of the file) go; terminals 9 and 19 stay with a stand-in."""
    monkeypatch.setattr(d4rl, "CHUNK_BYTES", block_bytes)
    with caplog.at_level(logging.INFO, logger=episodes.__name__):
        rows = read(store(tmp_path / "rows.hdf5", flat()))
    kept = [row for row in range(40) if row not in (14, 29, 39)]
    assert rows.observation[:, 0].tolist() == kept
    assert rows.reward.tolist() == kept
    assert rows.next_observation[:, 0].tolist() == [row if row in (9, 19) else row + 1 for row in kept]
    assert rows.observation[rows.timeout, 0].tolist() == [13, 28, 38]
    assert rows.observation[rows.terminal, 0].tolist() == [9, 19]
    assert "3 rows at the ends of truncated episodes are left out" in caplog.text
    assert "2 terminal rows are kept" in caplog.text


def test_a_terminal_last_row_stays_and_both_marks_on_a_row_mean_terminal(tmp_path: Path) -> None:
    assert read(store(tmp_path / "rows.hdf5", flat(terminals=np.arange(40) == 39))).observation[-1, 0] == 39
    both = np.arange(4) == 1
    rows = read(store(tmp_path / "rows.hdf5", flat(4, terminals=both, timeouts=both)))
    assert rows.next_observation[:, 0].tolist() == [1, 1, 3]
    assert rows.terminal.tolist() == [False, True, False]


def test_episodes_of_one_step(tmp_path: Path) -> None:
    found = episodes.pair(5, np.arange(5) == 1, np.arange(5) == 2)
    assert found.row.tolist() == [0, 1, 3]
    assert found.following.tolist() == [1, 1, 4]
    assert found.timeout.tolist() == [False, False, True]
    for arrays in (flat(4, timeouts=np.ones(4, bool)), flat(0)):
        with pytest.raises(DataError, match="rows"):
            read(store(tmp_path / "rows.hdf5", arrays))


@pytest.mark.parametrize("chunk_rows", [1, 3, 100])
def test_episodes_go_on_from_chunk_to_chunk(chunk_rows: int) -> None:
    states = np.arange(12.0)[:, None]
    ends, cuts = np.isin(np.arange(11), (4,)), np.isin(np.arange(11), (7,))
    stream = writing.Stream(Transitions(states[:-1], states[:-1], states[:-1, 0], states[1:], ends, cuts))
    stream.chunk_rows = chunk_rows
    found = list(episodes.episodes(stream))
    assert [one.reward.tolist() for one in found] == [[0, 1, 2, 3, 4], [5, 6, 7], [8, 9, 10]]
    assert [one.observation[-1, 0] for one in found] == [5, 8, 11]
    assert [(one.terminated, one.truncated) for one in found] == [(True, False), (False, True), (False, False)]


@pytest.mark.parametrize(
    ("changed", "error", "reason"),
    [
        ({"actions": np.zeros((39, 2))}, DataError, "39 rows"),
        ({"timeouts": np.full(40, 0.5)}, DataError, "timeout"),
        ({"timeouts": np.zeros((40, 2))}, DataError, r"\(40,\)"),
        ({"observations": np.array(1.0)}, DataError, "'observations'"),
        ({"observations": None, "observations/left": np.zeros(40)}, DataError, "'observations'"),
        ({**dict.fromkeys(flat()), "episode_0/observations": np.zeros(3)}, FormatError, "folder"),
    ],
    ids=["length", "flags", "shape", "scalar", "group", "a file of a Minari folder"],
)
def test_wrong_hdf5_files(changed: dict, error: type, reason: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=reason):
        read(store(tmp_path / "rows.hdf5", flat(**changed)))


def test_a_full_disk(tmp_path):
    resource = pytest.importorskip("resource")
    rows = whole(2_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, hard))
    try:
        with pytest.raises(Unwritable, match=r"x\.hdf5"):
            write(rows, tmp_path / "x.hdf5")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def test_an_interrupt_waits_for_the_write_that_it_meets(tmp_path, monkeypatch):
    """HDF5 would take it for a failure of that write, and the file with it."""
    monkeypatch.setattr(hdf5._Sink, "write", lambda sink, data: (signal.raise_signal(signal.SIGINT), len(data))[1])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a process in the background has not
    try:
        with pytest.raises(KeyboardInterrupt):
            write(whole(), tmp_path / "x.hdf5")
    finally:
        signal.signal(signal.SIGINT, before)
    assert not list(tmp_path.iterdir())


def test_a_parquet_row_group_for_each_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "CHUNK_BYTES", 260)
    monkeypatch.setattr(parquet, "BATCH_ROWS", 7)
    write(whole(), tmp_path / "rows.parquet")
    assert pq.ParquetFile(tmp_path / "rows.parquet").num_row_groups == 2
    assert read(tmp_path / "rows.parquet").equals(whole())


def test_a_part_of_an_arrow_column_is_that_part() -> None:
    """Arrow cuts columns without moving them, also in the midst of a byte of flags."""
    flags, numbers = [True, False, False, True, True, False, True, True, False, True], np.arange(20.0)
    assert parquet.to_numpy("flags", pa.array(flags).slice(3, 6)).tolist() == flags[3:9]
    assert parquet.to_numpy("numbers", pa.array(numbers).slice(3, 6)).tolist() == numbers[3:9].tolist()
    pairs = pa.FixedSizeListArray.from_arrays(pa.array(numbers), 2)
    assert parquet.to_numpy("pairs", pairs.slice(3, 2)).tolist() == [[6, 7], [8, 9]]


def table(path: Path, **columns: object) -> Path:
    states = list(whole(3).observation)
    usual = {"obs": states, "actions": [1, 2, 3], "reward": [1.0, 2.0, 3.0], "next_obs": states}
    pq.write_table(pa.table({**usual, **columns}), path)
    return path


def test_arrow_lists_of_any_kind_are_vectors_and_row_labels_of_pandas_are_left_out(tmp_path: Path) -> None:
    large = pa.array([[1.0, 2.0]] * 3, pa.large_list(pa.float64()))
    back = read(table(tmp_path / "rows.pq", obs=large, __index_level_0__=[4, 7, 9]))
    assert back.observation.shape == (3, 2)
    assert back.action.tolist() == [1, 2, 3]
    assert back.action.dtype == np.int64


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("reward", [1.0, None, 3.0]),
        ("obs", [[1.0, 2.0], None, [1.0, 2.0]]),
        ("obs", [[1.0, 2.0], [1.0, None], [1.0, 2.0]]),
        ("obs", [[1.0, 2.0], [1.0], [1.0, 2.0, 3.0]]),
        ("obs", ["a", "b", "c"]),
        ("obs", [["a"], ["b"], ["c"]]),
        ("obs", [{"x": 1.0}] * 3),
    ],
    ids=["null", "null list", "null in a list", "ragged", "strings", "lists of strings", "struct"],
)
def test_parquet_columns_that_are_no_numbers(tmp_path: Path, name: str, values: list) -> None:
    with pytest.raises(DataError, match=rf"rows\.pq: '{name}'"):
        read(table(tmp_path / "rows.pq", **{name: values}))


def test_width_that_changes_between_batches_and_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "BATCH_ROWS", 1)
    with pytest.raises(DataError, match="row 1"):
        read(table(tmp_path / "rows.pq", obs=[[1.0, 2.0], [1.0], [1.0, 2.0, 3.0]]))
    pq.write_table(pq.read_table(table(tmp_path / "rows.pq")).slice(0, 0), tmp_path / "none.pq")
    with pytest.raises(DataError, match="no rows"):
        read(tmp_path / "none.pq")


ROWS = 6
Change = Callable[[h5py.Group, str, Path], None]


def external_link(group: h5py.Group, key: str, folder: Path) -> None:
    path = store(folder / "other.hdf5", {"secret": group[key][()]})
    del group[key]
    group[key] = h5py.ExternalLink(path, "secret")


def external_storage(group: h5py.Group, key: str, folder: Path) -> None:
    array = group[key][()]
    (folder / "raw").write_bytes(array.tobytes())
    del group[key]
    group.create_dataset(key, array.shape, array.dtype, external=[(str(folder / "raw"), 0, array.nbytes)])


def virtual(group: h5py.Group, key: str, folder: Path) -> None:
    array = group[key][()]
    path = store(folder / "other.hdf5", {"secret": array})
    del group[key]
    layout = h5py.VirtualLayout(array.shape, array.dtype)
    layout[...] = h5py.VirtualSource(path, "secret", array.shape)
    group.create_virtual_dataset(key, layout)


def through_another_link(group: h5py.Group, key: str, folder: Path) -> None:
    """A soft link to something in a group that is an external link."""
    path = store(folder / "other.hdf5", {"secret": group[key][()]})
    del group[key]
    group.file["infos"] = h5py.ExternalLink(path, "/")
    group[key] = h5py.SoftLink("/infos/secret")


def nowhere(group: h5py.Group, key: str, folder: Path) -> None:
    del group[key]
    group[key] = h5py.SoftLink("/not/there")


CHANGES = [external_link, external_storage, virtual, through_another_link, nowhere]


@pytest.fixture(params=CHANGES, ids=lambda change: change.__name__)
def damage(request: pytest.FixtureRequest) -> Change:
    chosen: Change = request.param
    return chosen


def walked() -> Transitions:
    walk = np.random.default_rng(0).normal(size=(ROWS + 1, 3)).astype(np.float32)
    last = np.arange(ROWS) == ROWS - 1
    return Transitions(walk[:-1], walk[:-1, :2], walk[:-1, 0], walk[1:], np.zeros(ROWS, bool), last)


def test_rows_are_not_read_from_other_files(tmp_path: Path, damage: Change) -> None:
    path = tmp_path / "rows.hdf5"
    write(walked(), path)
    with h5py.File(path, "r+") as file:
        damage(file, "observations", tmp_path)
    with pytest.raises(FormatError, match=r"rows\.hdf5: .*(link|stored in another file|virtual)"):
        read(path)


def test_minari_sets_are_not_read_from_other_files(tmp_path: Path, damage: Change) -> None:
    write(walked(), tmp_path / "rows")
    with h5py.File(tmp_path / "rows" / "data" / "main_data.hdf5", "r+") as file:
        damage(file["episode_0"], "observations", tmp_path)
    for reader in (read, frames_files.read):
        with pytest.raises(FormatError, match=r"link|stored in another file|virtual"):
            reader(tmp_path / "rows")


def test_frames_are_not_read_from_other_files(tmp_path: Path, damage: Change) -> None:
    path, first = tmp_path / "frames.hdf5", np.arange(ROWS) == 0
    image = np.random.default_rng(0).integers(0, 256, (ROWS, 3, 5, 5), np.uint8)
    frames_files.write([Frames(image, np.zeros((ROWS, 2)), np.zeros(ROWS), np.ones(ROWS), first)], path)
    with h5py.File(path, "r+") as file:
        damage(file, "action", tmp_path)
    with pytest.raises(FormatError, match=r"frames\.hdf5: .*(link|stored in another file|virtual)"):
        frames_files.read(path)


def test_links_within_the_file_are_fine(tmp_path: Path) -> None:
    """Also links that form a circle, which would be followed without end."""
    path = tmp_path / "rows.hdf5"
    write(walked(), path)
    with h5py.File(path, "r+") as file:
        file.move("rewards", "infos/rewards")
        file["rewards"] = h5py.SoftLink("/infos/rewards")
        file["infos/again"] = file["infos"]
        check_self_contained(file)
    assert read(path).equals(walked())


def test_tables_of_single_numbers_are_sent_to_pandas(tmp_path: Path) -> None:
    """Which most people read them with."""
    (tmp_path / "rows.csv").write_text("obs_0,action,reward\n")
    with pytest.raises(FormatError, match=r"pandas.read_csv"):
        read(tmp_path / "rows.csv")
    with pytest.raises(FormatError, match=r"to_pandas\(\).to_csv"):
        write(whole(), tmp_path / "other.csv")
    with pytest.raises(FormatError, match=r"'\.json', expected one of .*Transitions.of\(arrays\)"):
        read(tmp_path / "rows.json")
    with pytest.raises(FormatError, match=r"'\.json', expected one of .* choose one of them"):
        write(whole(), tmp_path / "rows.json")
    with pytest.raises(DataError, match="rows first"):
        write(tmp_path / "rows.npz", whole())  # type: ignore[arg-type]
    columns = {"obs_0": [1.0], "obs_1": [2.0], "action": [1.0], "reward": [1.0]}
    np.savez(tmp_path / "rows.npz", **columns)
    with pytest.raises(DataError, match=r"'obs_0', 'obs_1'.* Transitions.of\(dict_of_arrays\)"):
        read(tmp_path / "rows.npz")

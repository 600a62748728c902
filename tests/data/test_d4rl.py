import logging
import signal
from pathlib import Path

import h5py
import numpy as np
import pytest

from synther.data.formats import d4rl, episodes, hdf5, read, write, writing
from synther.data.transitions import Transitions
from synther.errors import DataError, FormatError


def flat(rows: int = 40) -> dict[str, np.ndarray]:
    states = np.arange(rows, dtype=np.float32)[:, None] * np.ones(3, np.float32)
    return {
        "observations": states,
        "actions": np.zeros((rows, 2), np.float32),
        "rewards": np.arange(rows, dtype=np.float64),
        "terminals": np.isin(np.arange(rows), (9, 19)),
        "timeouts": np.isin(np.arange(rows), (14, 29)),
    }


def store(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            file[key] = array
    return path


def test_next_observations_are_taken_as_they_are(tmp_path: Path) -> None:
    arrays = {**flat(), "next_observations": -flat()["observations"]}
    rows = read(store(tmp_path / "rows.hdf5", arrays))
    assert len(rows) == 40
    assert np.array_equal(rows.next_observation, -rows.observation)
    assert rows.reward.dtype == np.float64


def test_compressed_files_with_an_env_id_infos_and_metadata(tmp_path: Path) -> None:
    extra = {"infos/qpos": np.zeros((40, 2)), "metadata/policy/w": np.ones(2)}
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        for key, array in {**flat(), **extra}.items():
            file.create_dataset(key, data=array, compression="gzip")
        file["metadata/algorithm"] = b"SAC"
        file.attrs["env_id"] = "Hopper-v5"
    rows = read(tmp_path / "rows.h5")
    assert len(rows) == 37
    assert rows.env_id == "Hopper-v5"


@pytest.mark.parametrize("block_bytes", [12, 84, 1 << 20])
def test_pairing_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    """Rows 14 and 29 (timeouts) and 39 (the end of the file) go; terminals 9 and 19 stay with a stand-in."""
    monkeypatch.setattr(d4rl, "CHUNK_BYTES", block_bytes)
    rows = read(store(tmp_path / "rows.hdf5", flat()))
    kept = [row for row in range(40) if row not in (14, 29, 39)]
    assert rows.observation[:, 0].tolist() == kept
    assert rows.reward.tolist() == kept
    assert rows.next_observation[:, 0].tolist() == [row if row in (9, 19) else row + 1 for row in kept]
    assert rows.timeout is not None
    assert rows.observation[rows.timeout, 0].tolist() == [13, 28, 38]
    assert rows.observation[rows.terminal, 0].tolist() == [9, 19]


def test_what_was_left_out_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger=episodes.__name__):
        read(store(tmp_path / "rows.hdf5", flat()))
    assert "left out 3 rows" in caplog.text
    assert "kept 2 terminal rows" in caplog.text


def test_a_terminal_last_row_stays_and_both_marks_on_a_row_mean_terminal(tmp_path: Path) -> None:
    arrays = {**flat(), "terminals": np.arange(40) == 39}
    assert read(store(tmp_path / "rows.hdf5", arrays)).observation[-1, 0] == 39
    arrays = {**flat(4), "terminals": np.arange(4) == 1, "timeouts": np.arange(4) == 1}
    rows = read(store(tmp_path / "rows.hdf5", arrays))
    assert rows.next_observation[:, 0].tolist() == [1, 1, 3]
    assert rows.terminal.tolist() == [False, True, False]


def test_a_terminal_before_an_episode_of_one_step_is_not_cut() -> None:
    found = episodes.pair(5, np.arange(5) == 1, np.arange(5) == 2)
    assert found.row.tolist() == [0, 1, 3]
    assert found.following.tolist() == [1, 1, 4]
    assert found.timeout.tolist() == [False, False, True]


@pytest.mark.parametrize("chunk_rows", [1, 3, 4, 100])
def test_episodes_go_on_from_chunk_to_chunk(chunk_rows: int) -> None:
    states = np.arange(12.0)[:, None]
    ends, cuts = np.isin(np.arange(11), (4,)), np.isin(np.arange(11), (7,))
    stream = writing.Stream(Transitions(states[:-1], states[:-1], states[:-1, 0], states[1:], ends, cuts))
    stream.chunk_rows = chunk_rows
    found = list(episodes.episodes(stream))
    assert [one.reward.tolist() for one in found] == [[0, 1, 2, 3, 4], [5, 6, 7], [8, 9, 10]]
    assert [one.observation[-1, 0] for one in found] == [5, 8, 11]
    assert [(one.terminated, one.truncated) for one in found] == [(True, False), (False, True), (False, False)]


def test_episodes_of_one_step(tmp_path: Path) -> None:
    arrays = flat(4)
    arrays["timeouts"] = np.array([True, True, False, True])
    rows = read(store(tmp_path / "rows.hdf5", arrays))
    assert rows.observation[:, 0].tolist() == [2]
    arrays["timeouts"][:] = True
    with pytest.raises(DataError, match="none of the 4 rows"):
        read(store(tmp_path / "rows.hdf5", arrays))
    with pytest.raises(DataError, match="no rows"):
        read(store(tmp_path / "rows.hdf5", {name: array[:0] for name, array in arrays.items()}))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"actions": np.zeros((39, 2))}, "39 rows"),
        ({"timeouts": np.full(40, 0.5)}, "timeout"),
        ({"timeouts": np.zeros((40, 2))}, r"\(40,\)"),
        ({"observations": np.array(1.0)}, "'observations'"),
        ({"observations": None, "observations/left": np.zeros(40)}, "'observations'"),
    ],
)
def test_wrong_lengths_flags_and_groups(changed: dict, reason: str, tmp_path: Path) -> None:
    arrays = {key: array for key, array in {**flat(), **changed}.items() if array is not None}
    with pytest.raises(DataError, match=reason):
        read(store(tmp_path / "rows.hdf5", arrays))


def test_a_file_of_a_minari_folder(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="folder"):
        read(store(tmp_path / "main_data.hdf5", {"episode_0/observations": np.zeros(3)}))


def test_other_programs_read_what_is_written(tmp_path: Path) -> None:
    states = np.ones((4, 2), np.float32)
    rows = Transitions(states, states, states[:, 0], states, timeout=np.zeros(4), env_id="Ant-v5")
    d4rl.write(rows, tmp_path / "rows.hdf5")
    with h5py.File(tmp_path / "rows.hdf5") as file:
        assert set(file) == {"observations", "actions", "rewards", "next_observations", "terminals", "timeouts"}
        assert file["terminals"].dtype == bool
        assert file.attrs["env_id"] == "Ant-v5"


def whole(rows: int = 40) -> Transitions:
    arrays = flat(rows)
    return Transitions.of({**arrays, "next_observations": arrays["observations"]})


def test_a_full_disk(tmp_path):
    resource = pytest.importorskip("resource")
    rows = whole(2_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, hard))
    try:
        with pytest.raises(FormatError, match=r"x\.hdf5"):
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

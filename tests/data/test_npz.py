from pathlib import Path

import numpy as np
import pytest

from synther.data.formats import npz, read
from synther.data.transitions import Transitions
from synther.errors import DataError


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


def test_compact_form_is_expanded(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", **compact())
    rows = read(tmp_path / "rows.npz")
    assert rows.observation[:, 0].tolist() == [0, 1, 2, 4, 6, 7]
    assert rows.next_observation[:, 0].tolist() == [1, 2, 3, 5, 7, 8]
    assert np.flatnonzero(rows.terminal).tolist() == [2]
    assert rows.timeout is not None
    assert np.flatnonzero(rows.timeout).tolist() == [3, 5]
    assert rows.env_id == "Walker2d-v5"
    assert rows.action_space is None


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"observations": np.zeros((8, 2))}, "need 9 rows"),
        ({"actions": np.zeros((5, 1))}, "need 6 rows"),
        ({"episode_lengths": np.array([3, 0, 3])}, "1 or more"),
        ({"episode_lengths": np.array([3.0, 1.0, 2.0])}, "whole numbers"),
        ({"terminated": np.array([True, False])}, "terminated has shape"),
        ({"terminated": np.array([0, 1, 2])}, "other values than 0 and 1"),
        ({"colour": np.zeros(3)}, "colour"),
    ],
)
def test_inconsistent_compact_files(tmp_path: Path, changed: dict[str, np.ndarray], reason: str) -> None:
    np.savez(tmp_path / "rows.npz", **compact(**changed))
    with pytest.raises(DataError, match=rf"rows\.npz: .*{reason}"):
        read(tmp_path / "rows.npz")


def test_other_programs_read_what_is_written(tmp_path: Path) -> None:
    states = np.ones((4, 2), np.float32)
    npz.write(Transitions(states, states, states[:, 0], states), tmp_path / "rows.npz")
    with np.load(tmp_path / "rows.npz") as archive:
        assert set(archive.files) == {
            *("observations", "actions", "rewards", "next_observations", "terminals"),
            "synther_metadata",
        }
        assert archive["next_observations"].shape == (4, 2)


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    states = np.ones((400, 2), np.float32)
    npz.write(Transitions(states, states, states[:, 0], states), tmp_path / "rows.npz")
    content = bytearray((tmp_path / "rows.npz").read_bytes())
    content[len(content) // 2] ^= 4
    (tmp_path / "rows.npz").write_bytes(content)
    with pytest.raises(ValueError, match="CRC"):
        read(tmp_path / "rows.npz")

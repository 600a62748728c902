"""An HDF5 file must hold its data itself: no reader follows one into other files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from synther import read, write
from synther.data.formats.hdf5 import check_self_contained
from synther.data.transitions import Transitions
from synther.errors import FormatError
from synther.pixels import files as frames_files
from synther.pixels.frames import Frames

ROWS = 6
Change = Callable[[h5py.Group, str, Path], None]


def other_file(folder: Path, array: np.ndarray) -> Path:
    path = folder / "other.hdf5"
    with h5py.File(path, "w") as file:
        file["secret"] = array
    return path


def external_link(group: h5py.Group, key: str, folder: Path) -> None:
    path = other_file(folder, group[key][()])
    del group[key]
    group[key] = h5py.ExternalLink(path, "secret")


def external_storage(group: h5py.Group, key: str, folder: Path) -> None:
    array = group[key][()]
    (folder / "raw").write_bytes(array.tobytes())
    del group[key]
    group.create_dataset(key, array.shape, array.dtype, external=[(str(folder / "raw"), 0, array.nbytes)])


def virtual(group: h5py.Group, key: str, folder: Path) -> None:
    array = group[key][()]
    path = other_file(folder, array)
    del group[key]
    layout = h5py.VirtualLayout(array.shape, array.dtype)
    layout[...] = h5py.VirtualSource(path, "secret", array.shape)
    group.create_virtual_dataset(key, layout)


def through_another_link(group: h5py.Group, key: str, folder: Path) -> None:
    """A soft link to something in a group that is an external link."""
    path = other_file(folder, group[key][()])
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


def episodes() -> Transitions:
    walk = np.random.default_rng(0).normal(size=(ROWS + 1, 3)).astype(np.float32)
    last = np.arange(ROWS) == ROWS - 1
    return Transitions(walk[:-1], walk[:-1, :2], walk[:-1, 0], walk[1:], np.zeros(ROWS, bool), last)


def test_rows(tmp_path: Path, damage: Change) -> None:
    path = tmp_path / "rows.hdf5"
    write(episodes(), path)
    with h5py.File(path, "r+") as file:
        damage(file, "observations", tmp_path)
    with pytest.raises(FormatError, match=r"rows\.hdf5: .*(link|stored in another file|virtual)"):
        read(path)


def test_minari(tmp_path: Path, damage: Change) -> None:
    write(episodes(), tmp_path / "rows")
    with h5py.File(tmp_path / "rows" / "data" / "main_data.hdf5", "r+") as file:
        damage(file["episode_0"], "observations", tmp_path)
    for reader in (read, frames_files.read):
        with pytest.raises(FormatError, match=r"link|stored in another file|virtual"):
            reader(tmp_path / "rows")


def test_frames(tmp_path: Path, damage: Change) -> None:
    path, first = tmp_path / "frames.hdf5", np.arange(ROWS) == 0
    image = np.random.default_rng(0).integers(0, 256, (ROWS, 3, 5, 5), np.uint8)
    frames_files.write([Frames(image, np.zeros((ROWS, 2)), np.zeros(ROWS), np.ones(ROWS), first)], path)
    with h5py.File(path, "r+") as file:
        damage(file, "action", tmp_path)
    with pytest.raises(FormatError, match=r"frames\.hdf5: .*(link|stored in another file|virtual)"):
        frames_files.read(path)


def test_links_within_the_file_are_fine(tmp_path: Path) -> None:
    """Also links in a circle, which nobody should follow for ever."""
    path = tmp_path / "rows.hdf5"
    write(episodes(), path)
    with h5py.File(path, "r+") as file:
        file.move("rewards", "infos/rewards")
        file["rewards"] = h5py.SoftLink("/infos/rewards")
        file["infos/again"] = file["infos"]
        check_self_contained(file)
    assert read(path).equals(episodes())

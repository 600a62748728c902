"""A small file that declares much is refused before memory is taken for it; unknown members stay unread."""

from __future__ import annotations

import io
import json
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gymnasium
import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from safetensors import safe_open
from safetensors.torch import save_file

from synther import Synthesizer, read, write
from synther.agents.policy import load_policy
from synther.agents.policy import write as write_agent
from synther.errors import DataError, FormatError
from synther.pixels import files as frames_files

from ..support.small_job import made, model

HUGE = 500_000_000
FEW = 1 << 26
"""Bytes that reading may take before it refuses: what any file is granted."""


@contextmanager
def refused(error: type[Exception] | tuple[type[Exception], ...], match: str) -> Iterator[None]:
    tracemalloc.start()
    try:
        with pytest.raises(error, match=match):
            yield
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < FEW


def empty_hdf5(path: Path, rows: int = HUGE, **how) -> Path:
    with h5py.File(path, "w") as file:
        for name, shape in {"observations": (rows, 2), "actions": (rows, 1), "rewards": (rows,)}.items():
            file.create_dataset(name, shape, "f4", chunks=(100, *shape[1:]))
        for name in ("terminals", "timeouts"):
            file.create_dataset(name, (rows,), bool, chunks=(100,))
        for name, options in how.items():
            del file[name]
            file.create_dataset(name, **options)
    return path


def test_fill_values_of_hdf5(tmp_path):
    with refused(FormatError, match="declares"):
        read(empty_hdf5(tmp_path / "rows.hdf5"))


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"shape": (1 << 33, 1 << 33), "dtype": "f4", "chunks": (1, 1)}, FormatError),  # NumPy's product of these is 0
        ({"shape": (100, 2), "dtype": "f4", "chunks": (1 << 24, 2), "maxshape": (None, 2)}, FormatError),
        ({"shape": (100, 2), "dtype": h5py.string_dtype()}, DataError),
    ],
    ids=["overflow", "chunk", "text"],
)
def test_odd_datasets(tmp_path, how, error):
    with refused(error, match=r"rows\.hdf5"):
        read(empty_hdf5(tmp_path / "rows.hdf5", 100, observations=how))


def test_frames(tmp_path):
    path = tmp_path / "frames.hdf5"
    with h5py.File(path, "w") as file:
        file.create_dataset("observation", (HUGE, 3, 8, 8), "u1", chunks=(100, 3, 8, 8))
        file.create_dataset("action", (HUGE, 2), "f4", chunks=(100, 2))
        for name in ("reward", "discount", "step_type"):
            file.create_dataset(name, (HUGE,), "f4", chunks=(100,))
    with refused(FormatError, match="declares"):
        frames_files.read(path)


def archive(path: Path, rows: int, real: bool = True, **more: bytes) -> Path:
    """Zeros that compress well; `real` or not, the headers declare them."""
    shapes = {"observations": (rows, 2), "actions": (rows, 1), "rewards": (rows,), "next_observations": (rows, 2)}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, shape in shapes.items():
            header = io.BytesIO()
            about = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(header, about)
            with file.open(f"{name}.npy", "w") as member:
                member.write(header.getvalue())
                if real:
                    for _ in range(rows // 1_000_000):
                        member.write(bytes(4_000_000 * int(np.prod(shape[1:]))))
        for name, content in more.items():
            file.writestr(name, content)
    return path


@pytest.mark.parametrize("real", [True, False])
def test_archives(tmp_path, real):
    with refused(FormatError, match="declares"):
        read(archive(tmp_path / "rows.npz", 4_000_000 if real else HUGE, real))


def test_unknown_members_are_not_read(tmp_path):
    path = tmp_path / "rows.npz"
    write(made(), path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as file, file.open("infos/more.npy", "w") as member:
        for _ in range(100):
            member.write(bytes(1_000_000))
    assert len(read(path)) == 300


def test_parquet_that_repeats_a_value(tmp_path):
    """Runs of the same value take a few bytes, however long they are."""
    path, rows = tmp_path / "rows.parquet", 2_000_000
    column = pyarrow.repeat(pyarrow.scalar(0.0, pyarrow.float32()), rows)
    names = ["reward", "action", "observation", "next_observation", "extra/a"]
    pyarrow.parquet.write_table(pyarrow.table([column] * len(names), names=names), path)
    assert path.stat().st_size < 100_000
    with refused(FormatError, match="declares"):
        read(path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "change",
    [
        {"total_steps": 10**9},
        {"total_episodes": 10**9},
        {"total_steps": "30"},
        {"observation_space": json.dumps({"type": "Discrete", "n": 10**9, "start": 0, "dtype": "int64"})},
        {"data_format": "arrow"},
        {"env_spec": "{}"},
        {"env_spec": json.dumps({"id": 3})},
    ],
    ids=str,
)
def test_minari(tmp_path, change):
    folder = tmp_path / "set"
    ended = made(30).terminal.copy()
    ended[:] = True
    rows = made(30)
    write(type(rows)(rows.observation, rows.action, rows.reward, rows.next_observation, ended), folder)
    place = folder / "data" / "metadata.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), **change}))
    with refused((DataError, FormatError), match="set: "):
        read(folder)


@pytest.mark.filterwarnings("ignore")
def test_a_minari_set_without_a_space_imports_no_code(tmp_path, monkeypatch):
    """Minari itself makes the environment that the file describes, entry point and all."""
    (tmp_path / "code_of_a_stranger.py").write_text("import pathlib; pathlib.Path(__file__ + '.ran').touch()")
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "set"
    rows = made(30)
    write(type(rows)(rows.observation, rows.action, rows.reward, rows.next_observation, np.ones(30, bool)), folder)
    place = folder / "data" / "metadata.json"
    told = json.loads(place.read_text())
    spec = json.loads(gymnasium.spec("Pendulum-v1").to_json())
    told["env_spec"] = json.dumps({**spec, "entry_point": "code_of_a_stranger:Env"})
    del told["action_space"]
    place.write_text(json.dumps(told))
    with refused(FormatError, match="action_space"):
        read(folder)
    assert not (tmp_path / "code_of_a_stranger.py.ran").exists()


def test_a_model_with_a_wide_network(tmp_path):
    path = tmp_path / "m.safetensors"
    model().fit(made(), progress=False).save(path)
    with safe_open(path, "pt") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    settings = json.loads(metadata["settings"])
    for name, value in {"width": 25_000, "depth": 10**9, "embedding": 10**7}.items():
        changed = {**settings, "network": {**settings["network"], name: value}}
        save_file(tensors, path, {**metadata, "settings": json.dumps(changed)})
        with refused(FormatError, match=r"m\.safetensors"):
            Synthesizer.load(path)


@pytest.mark.parametrize("size", [{"width": 50_000}, {"depth": 10**9}, {"inputs": "3"}, {"width": -1}, {"free": None}])
def test_an_agent_with_a_wide_network(tmp_path, size):
    import torch

    path = tmp_path / "agent.safetensors"
    about = {"network": "layer_norm", "inputs": 2, "outputs": 1, "width": 8, "depth": 2, "dropout": 0.0, "free": 0}
    scales = {f"scales.{name}": torch.ones(1, 2) for name in ("mean", "std", "low", "high")}
    write_agent(path, {"policy": {**about, **size, "squash": "tanh"}}, {"actor": torch.zeros(1, 200), **scales})
    with refused(FormatError, match=r"agent\.safetensors"):
        load_policy(path)

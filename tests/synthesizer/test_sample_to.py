"""Rows drawn into a file: those of `sample`, whole or not at all, and never drawn twice."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from synther import Synthesizer, compute, read
from synther.diffusion.blocks import BlockSampler
from synther.diffusion.config import SamplerConfig
from synther.synthesizer import single_file

from ..support.processes import killed
from ..support.watch import Slow, Stopped, Watch
from .rows import ACTIONS, OBSERVATIONS

BLOCK, SHARD = 64, 2  # rows of a block, blocks of a shard
COUNT = 5 * BLOCK * SHARD + 10


@pytest.fixture(scope="module")
def quick_saved(quick, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("models") / "quick.safetensors"
    quick.save(path)
    return path


@pytest.fixture
def small_blocks(monkeypatch, drawn_blocks) -> list[int]:
    """Blocks and shards of a few rows; the numbers of the blocks that are drawn."""
    monkeypatch.setattr(compute, "block_rows", lambda device: BLOCK)
    monkeypatch.setattr(single_file, "SPOOLED_BLOCKS", SHARD)
    return drawn_blocks


@pytest.mark.parametrize("suffix", [".npz", ".hdf5", ".parquet"])
@pytest.mark.parametrize("count", [10, 2 * BLOCK * SHARD, COUNT])
def test_the_file_holds_the_rows_of_sample(quick, small_blocks, suffix, count, tmp_path):
    path = tmp_path / "deep" / f"fake{suffix}"
    first = quick.sample_to(path, count, seed=3, progress=False)
    rows, held = quick.sample(count, seed=3, progress=False), read(path)
    assert held.equals(rows)
    assert first.equals(rows)
    assert {n: a.dtype for n, a in held.arrays().items()} == {n: a.dtype for n, a in rows.arrays().items()}
    for found in (first, held):
        assert (found.env_id, found.action_space, found.observation_space) == ("Made-v0", ACTIONS, OBSERVATIONS)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("suffix", "preview"), [(".npz", 1), (".npz", BLOCK * SHARD), (".npz", 300), (".hdf5", 300), (".parquet", 300)]
)
def test_the_first_rows_come_back(quick, small_blocks, suffix, preview, tmp_path, monkeypatch):
    monkeypatch.setattr(single_file, "PREVIEW_ROWS", preview)
    first = quick.sample_to(tmp_path / f"x{suffix}", COUNT, progress=False)
    assert first.equals(quick.sample(preview, seed=0, progress=False))


@pytest.mark.parametrize(
    ("stop", "finished", "suffix"),
    [
        (("sample", BLOCK), 0, ".npz"),
        (("sample", 2 * BLOCK), 0, ".npz"),
        (("sample", 3 * BLOCK), 1, ".npz"),
        (("sample", 9 * BLOCK), 4, ".hdf5"),
        (("sample", COUNT), 5, ".npz"),
        (("write", 1), 6, ".npz"),
        (("write", 1), 6, ".hdf5"),
        (("write", COUNT), 6, ".npz"),
        (("write", COUNT), 6, ".hdf5"),
    ],
)
def test_interrupted_work_goes_on(quick, small_blocks, stop, finished, suffix, tmp_path):
    path = tmp_path / f"fake{suffix}"
    with pytest.raises(Stopped):
        quick.sample_to(path, COUNT, progress=Watch(stop))
    assert not path.exists()
    small_blocks.clear()
    watch = Watch()
    quick.sample_to(path, COUNT, progress=watch)
    assert small_blocks == list(range(finished * SHARD, 11))
    assert watch.phases[0] == ["sample", COUNT, min(finished * SHARD * BLOCK, COUNT), COUNT]
    assert read(path).equals(quick.sample(COUNT, seed=0, progress=False))
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("change", ["seed", "count", "sampler", "sampler alone", "model", "thresholds"])
def test_what_other_work_left_is_discarded(quick, quick_saved, small_blocks, change, tmp_path):
    path = tmp_path / "fake.npz"
    with pytest.raises(Stopped):
        quick.sample_to(path, COUNT, progress=Watch(("sample", 9 * BLOCK)))
    small_blocks.clear()
    other, options = Synthesizer.load(quick_saved), {}
    if change == "seed":
        options = {"seed": 1}
    elif change == "sampler":
        options = {"sampler": SamplerConfig("euler", 8)}
    elif change == "sampler alone":  # one that needs no other thresholds
        options = {"sampler": SamplerConfig("euler", 8)}
        other._model.calibrations[options["sampler"]] = other._model.calibrations[other.settings.sampler]
    elif change == "model":
        next(other.network.parameters()).mul_(1.01)
    elif change == "thresholds":
        own = other.settings.sampler
        other._model.calibrations[own] = replace(other._model.calibrations[own], terminal_odds=1.5)
    count = COUNT - (change == "count")
    other.sample_to(path, count, progress=False, **options)
    assert small_blocks[-11:] == list(range(11))  # another sampler is calibrated first
    assert read(path).equals(other.sample(count, progress=False, **{"seed": 0, **options}))
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_the_same_model_from_a_file_goes_on(quick, quick_saved, small_blocks, tmp_path):
    with pytest.raises(Stopped):
        quick.sample_to(tmp_path / "x.npz", COUNT, progress=Watch(("sample", 9 * BLOCK)))
    small_blocks.clear()
    Synthesizer.load(quick_saved).sample_to(tmp_path / "x.npz", COUNT, progress=False)
    assert small_blocks == [8, 9, 10]


def test_memory_does_not_grow_with_the_rows(quick, tmp_path, monkeypatch):
    monkeypatch.setattr(compute, "block_rows", lambda device: 512)
    monkeypatch.setattr(single_file, "SPOOLED_BLOCKS", SHARD)
    monkeypatch.setattr(single_file, "PREVIEW_ROWS", 100)
    rows = torch.randn(512, quick.layout.width, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(BlockSampler, "draw", lambda self, seed, block: rows)

    def peak(count: int) -> int:
        gc.collect()
        tests = gc.get_threshold()
        gc.set_threshold(700, 10, 10)  # Python's own, with which garbage is collected sooner than elsewhere in tests
        tracemalloc.start()
        try:
            quick.sample_to(tmp_path / "x.npz", count, progress=False)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            gc.set_threshold(*tests)

    peak(2_048)  # imports and caches
    few, many = peak(2_048), peak(32_768)
    row_bytes = sum(array.nbytes for array in quick.sample(512, seed=0, progress=False).arrays().values()) / 512
    # A busy machine leaves more finished blocks waiting, which count here, too.
    assert many - few < 0.1 * (32_768 - 2_048) * row_bytes


def test_sampling_killed_by_the_system(quick, small_blocks, tmp_path):
    path = tmp_path / "fake.npz"
    once = (tmp_path / "fake.npz.partial" / "000003.npz").exists
    killed(lambda: quick.sample_to(path, 100_000, progress=Slow(0.02)), once=once)
    assert not path.exists()
    done = sum(file.name[:6].isdigit() for file in (tmp_path / "fake.npz.partial").iterdir())
    with pytest.raises(Stopped):  # a hundred thousand rows are for the victim; a few more blocks tell enough
        quick.sample_to(path, 100_000, progress=Watch(("sample", (done + 4) * SHARD * BLOCK)))
    first, ahead = done * SHARD, len(small_blocks) - 4 * SHARD
    assert small_blocks == list(range(first, first + len(small_blocks)))
    assert ahead == 0  # one thread draws no block before the last one is finished
    shards = sorted((tmp_path / "fake.npz.partial").glob("0*.npz"))
    held = np.concatenate([np.load(shard)["reward"] for shard in shards])
    assert len(shards) == done + 3
    np.testing.assert_array_equal(held, quick.sample(len(held), seed=0, progress=False).reward)

from __future__ import annotations

import pytest
import torch

from synther.replay.synthetic import SyntheticReplay

from .rows import numbered, tiny

pytestmark = pytest.mark.cuda


def used(replay: SyntheticReplay, first: int) -> torch.Tensor:
    seen = []
    for start in range(first, first + 120, 20):
        replay.add(**numbered(start, 20))
        seen.append(replay.sample(33).reward)
    return torch.cat(seen)


def test_batches_are_on_the_gpu_and_saving_changes_nothing(tmp_path):
    whole, cut = (tiny(device="cuda", capacity=150) for _ in range(2))
    assert torch.equal(used(whole, 0), used(cut, 0))
    cut.save(tmp_path / "replay")
    cut = SyntheticReplay.load(tmp_path / "replay", device="cuda", progress=False)
    assert torch.equal(used(whole, 120), used(cut, 120))
    assert [refresh.kept for refresh in cut.history] == [True, True]
    batch = cut.sample(64)
    assert {tensor.device.type for tensor in batch} == {"cuda"}
    assert int(batch.synthetic.sum()) == 32


def test_saved_on_a_gpu_and_loaded_on_a_cpu(tmp_path):
    replay = tiny(device="cuda")
    used(replay, 0)
    replay.save(tmp_path / "replay")
    loaded = SyntheticReplay.load(tmp_path / "replay", device="cpu", progress=False)
    assert torch.equal(loaded.synthetic.by_age(), replay.synthetic.by_age().cpu())
    used(loaded, 120)
    assert loaded.history[-1].kept


def test_in_the_background():
    replay = tiny(device="cuda", background=True)
    replay.add(**numbered(0, 100))
    replay._running[1]._process.wait(120)
    assert int(replay.sample(64).synthetic.sum()) == 32

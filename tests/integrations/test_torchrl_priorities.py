"""The buffer with TorchRL's own PrioritizedSampler."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from .test_torchrl import buffer, steps

SIZE = 100


class _Tree:
    """TorchRL's trees are compiled for one version of PyTorch. Where they do not load, these stand in for them."""

    def __init__(self, size: int) -> None:
        self.values = torch.full((size,), self.empty)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self.values[index].squeeze()  # a single value has no dimension there either

    def __setitem__(self, index: Any, values: torch.Tensor) -> None:
        self.values[index] = values


class _Sum(_Tree):
    empty = 0.0

    def query(self, start: int, stop: int) -> float:
        return float(self.values[start:stop].sum())

    def scan_lower_bound(self, mass: Any) -> torch.Tensor:
        return torch.searchsorted(self.values.cumsum(0), torch.as_tensor(mass, dtype=torch.float32))


class _Min(_Tree):
    empty = float("inf")

    def query(self, start: int, stop: int) -> float:
        return float(self.values[start:stop].min())


@pytest.fixture(autouse=True)
def _trees(monkeypatch):
    from torchrl.data.replay_buffers.samplers import prioritized

    if prioritized.SumSegmentTreeFp32 is None:
        for name, stand_in in (("Sum", _Sum), ("Min", _Min)):
            for size in (32, 64):
                monkeypatch.setattr(prioritized, f"{name}SegmentTreeFp{size}", stand_in)
        monkeypatch.setattr(prioritized, "rl_warnings", lambda: False)


def prioritized(**changes: Any) -> Any:
    from torchrl.data.replay_buffers import PrioritizedSampler

    np.random.seed(0)  # noqa: NPY002  # from which the sampler draws
    return buffer(SIZE, sampler=PrioritizedSampler(SIZE, alpha=1.0, beta=0.5), **changes)


def priorities(ours: Any) -> torch.Tensor:
    return torch.as_tensor(ours.sampler._sum_tree[torch.arange(SIZE)])


@pytest.mark.parametrize("way", ["indices", "tensordict"])
def test_priorities_of_real_rows_follow_and_those_of_synthetic_rows_go_nowhere(way):
    ours = prioritized()
    ours.extend(steps(80))
    batch, info = ours.sample(return_info=True)
    drawn = info["index"][~info["synthetic"]]
    assert torch.equal(info["index"] == -1, info["synthetic"])
    assert int(info["synthetic"].sum()) == 16
    batch["td_error"] = torch.where(batch["synthetic"], 1000.0, 5.0)
    if way == "indices":
        ours.update_priority(info["index"], batch["td_error"])
    else:
        ours.update_tensordict_priority(batch)
    expected = (torch.arange(SIZE) < 80).float()
    expected[drawn] = 5.0
    assert torch.allclose(priorities(ours), expected)
    assert ours.sampler.default_priority == 5  # what new rows get


def test_real_rows_are_drawn_by_priority_also_after_a_refresh():
    ours = prioritized()
    ours.extend(steps(80))
    ours.sample()
    ours.extend(steps(40))  # over the oldest, and the next refresh
    ours.update_priority(torch.arange(SIZE), torch.zeros(SIZE))
    ours.update_priority(torch.tensor([3, 50]), torch.tensor([1.0, 1.0]))
    batch = ours.sample()
    assert len(ours.synthetic.history) == 2
    assert set(batch["index"].tolist()) == {-1, 3, 50}


def test_synthetic_rows_have_the_mean_weight_of_the_real_ones():
    ours = prioritized()
    ours.extend(steps(80))
    ours.update_priority(torch.arange(80), 1.0 + torch.arange(80))
    batch = ours.sample()
    real = batch["priority_weight"][~batch["synthetic"]]
    assert real.min() < real.max() <= 1
    assert torch.allclose(batch["priority_weight"][batch["synthetic"]], real.mean())


@pytest.mark.parametrize(("batch_size", "ratio", "real"), [(2, 0.5, 1), (4, 1.0, 0)])
def test_batches_with_one_real_row_or_none(batch_size, ratio, real):
    ours = prioritized(batch_size=batch_size, ratio=ratio)
    ours.extend(steps(80))
    batch = ours.sample()
    assert int((batch["index"] >= 0).sum()) == real
    assert batch["priority_weight"].tolist() == [1.0] * batch_size
    batch["td_error"] = torch.ones(batch_size)
    ours.update_tensordict_priority(batch)


@pytest.mark.parametrize("way", ["state", "folder", "pickle"])
def test_priorities_are_saved_with_the_buffer(way, tmp_path):
    ours, other = prioritized(), prioritized(seed=3)
    ours.extend(steps(80))
    ours.sample()
    ours.update_priority(torch.arange(80), 1.0 + torch.arange(80))
    if way == "state":
        other.load_state_dict(copy.deepcopy(ours.state_dict()))
    elif way == "folder":
        ours.dumps(tmp_path / "replay")
        other.loads(tmp_path / "replay")
    else:
        other = pickle.loads(pickle.dumps(ours))
    assert torch.equal(priorities(other), priorities(ours))
    drawn = []
    for one in (ours, other):
        np.random.seed(1)  # noqa: NPY002
        drawn.append(one.sample())
    assert (drawn[0] == drawn[1]).all()
    assert drawn[0]["synthetic"].any()


def test_a_weighted_loss_learns_and_gives_new_priorities():
    from torch import nn
    from torchrl.data import Categorical
    from torchrl.modules import QValueActor
    from torchrl.objectives import DQNLoss

    ours = prioritized(action_spec=Categorical(2))
    ours.extend(steps(80, torch.arange(80) % 2))
    values = QValueActor(nn.Linear(3, 2), in_keys=["observation"], action_space="categorical")
    loss = DQNLoss(values, action_space="categorical", delay_value=False)
    batch = ours.sample()
    assert torch.isfinite(loss(batch)["loss"])
    ours.update_tensordict_priority(batch)
    real = ~batch["synthetic"]
    written = dict(zip(batch["index"][real].tolist(), batch["td_error"][real].ravel().tolist(), strict=True))
    assert {place: priorities(ours)[place].item() for place in written} == pytest.approx(written, rel=1e-5)

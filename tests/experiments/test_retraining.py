"""Stage two keeps the rows of one seed in memory at a time, and all of them where agents learn from them."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from synther.data.transitions import Transitions
from synther.experiments.pixels import heads as retraining
from synther.progress import Silent

from .seeing import PLAN_BC


@dataclass(frozen=True)
class Made:
    """Rows that are made anew when they are asked for, while none of another seed are left."""

    seed: int
    alive: list[weakref.ref]

    def rows(self, file: None, progress: object) -> Transitions:
        assert [one() for one in self.alive] == [None] * self.seed
        seen = np.full((4, 3), self.seed, np.float32)
        self.alive.append(weakref.ref(seen))
        return Transitions(seen, np.zeros((4, 2), np.float32), np.zeros(4, np.float32), seen.copy(), np.zeros(4, bool))


def test_rows_of_seeds_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    learned = []
    monkeypatch.setattr(retraining, "Agent", lambda config, rows, members, precision: rows)
    monkeypatch.setattr(retraining.loop, "train", lambda rows, *others, **options: learned.append(rows))
    monkeypatch.setattr(retraining, "finish", lambda folder, result: None)
    bound, alive = torch.ones(2), []
    policy = SimpleNamespace(low=-bound, high=bound, trunk=SimpleNamespace(features=3))
    heads = retraining._Retraining(PLAN_BC, PLAN_BC.config, policy, tmp_path)
    heads.train(retraining._Group([0, 1, 2], [Made(seed, alive) for seed in range(3)]), Silent(), False)
    assert learned[0].matrix[:, 0].tolist() == [0.0] * 4 + [1.0] * 4 + [2.0] * 4

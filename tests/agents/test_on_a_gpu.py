"""What only a GPU can show: captured rounds do the work of single updates."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from synther.agents.agent import Agent
from synther.agents.rows import Arm, Member, Rows

from ..support.states import assert_close, assert_member
from .tables import CONFIGS, table

pytestmark = pytest.mark.cuda

TABLES = (table(40), table(25, 1))
MEMBERS = [Member(3), Member(4, Arm((1,))), Member(3, Arm((0, 1), (0.5, 0.5)))]

every = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def fresh(config, members=MEMBERS) -> Agent:
    return Agent(config, Rows(TABLES, device=torch.device("cuda")), members, precision="float32")


@every
def test_a_captured_round_is_its_updates_one_by_one(config):
    captured, single = fresh(config), fresh(config)
    captured.train(63)
    for _ in range(63):
        single.train(1)
    assert_close(captured, single)


@every
def test_members_together_equal_each_alone(config):
    together = fresh(config)
    together.train(42)
    for index, member in enumerate(MEMBERS):
        alone = fresh(config, [member])
        alone.train(42)
        assert_member(together, index, alone)


@every
def test_resumed_equals_uninterrupted(config, tmp_path):
    whole, first, second = fresh(config), fresh(config), fresh(config)
    whole.train(84)
    first.train(42)
    first.save(tmp_path / "agent.safetensors")
    second.train(21)  # captured before the state is loaded
    second.load(tmp_path / "agent.safetensors")
    second.train(42)
    assert_close(whole, second)
    seen = table(6, 7).observation
    np.testing.assert_allclose(whole.policy().act(seen), whole.act(seen), atol=1e-5)

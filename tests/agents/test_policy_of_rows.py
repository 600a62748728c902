"""A policy as a function of rows: its members take turns, and it knows how random it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from synther.agents.agent import Agent
from synther.agents.edac import EDACConfig
from synther.agents.policy import Policy
from synther.agents.rows import Member, Rows
from synther.agents.td3_bc import TD3BCConfig
from synther.data.transitions import Transitions
from synther.errors import DataError

SMALL = {"width": 8, "depth": 1, "batch_size": 4}


def policy(config: TD3BCConfig | EDACConfig) -> Policy:
    draw = np.random.default_rng(0)
    s, a = draw.normal(size=(20, 3)), draw.uniform(-2, 2, (20, 2))
    table = Transitions(s, a, s[:, 0], s, np.zeros(20, bool))
    rows = Rows([table], device=torch.device("cpu"), low=np.full(2, -2.0), high=np.full(2, 2.0))
    return Agent(config, rows, [Member(0), Member(1), Member(2)]).policy()


def test_members_take_turns():
    acting, s = policy(TD3BCConfig(**SMALL)), torch.randn(7, 3)
    every = acting.act(s.numpy())
    wanted = np.stack([every[row % 3, row] for row in range(7)])
    assert np.allclose(acting(s), wanted, atol=1e-6)


def test_its_std_is_that_of_its_draws():
    acting, s = policy(EDACConfig(**SMALL)), torch.randn(1, 3).expand(3, 3)
    mean, std = acting(s)
    assert np.allclose(mean, acting.act(s.numpy())[range(3), 0], atol=1e-6)
    standard = (s[0] - acting.scales.mean) / acting.scales.std
    before, log_std = acting.actor(standard.unsqueeze(1)).detach()[:, 0].chunk(2, -1)
    quiet = (before + 1e-3 * log_std.exp() * torch.randn(50_000, 3, 2)).tanh() * 2
    assert torch.allclose(std, 1e3 * quiet.std(0), rtol=0.03)


def test_rows_of_other_sizes_are_refused():
    acting = policy(TD3BCConfig(**SMALL))
    acting.check_sizes(3, 2)
    for sizes in ((4, 2), (3, 1)):
        with pytest.raises(DataError, match="3 observation and 2 action columns, the rows"):
            acting.check_sizes(*sizes)
    with pytest.raises(DataError, match="3 observation and 2 action columns, the rows"):
        acting(torch.zeros(5, 4))
    with pytest.raises(DataError, match=r"\(n, 3\)"):
        acting(torch.zeros(3))

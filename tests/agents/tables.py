"""Tables of experience for tests, and members to train on them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from synther.agents.bc import BCConfig
from synther.agents.cql import CQLConfig
from synther.agents.drq_bc import DrQBCConfig
from synther.agents.drq_v2 import DrQv2Config
from synther.agents.edac import EDACConfig
from synther.agents.iql import IQLConfig
from synther.agents.noisy_bc import NoisyBCConfig
from synther.agents.rebrac import ReBRACConfig
from synther.agents.rows import Rows
from synther.agents.td3_bc import TD3BCConfig

CPU = torch.device("cpu")
SMALL = {"width": 8, "batch_size": 6, "learning_rate": 1e-2}
CONFIGS = {
    "bc": BCConfig(**SMALL),
    "td3_bc": TD3BCConfig(**SMALL, policy_delay=3),
    "rebrac": ReBRACConfig(**SMALL),
    "iql": IQLConfig(**SMALL, decay_updates=50),
    "iql deterministic": IQLConfig(**SMALL, deterministic=True),
    "edac": EDACConfig(**SMALL, num_critics=4),
    "cql": CQLConfig(**SMALL, actions=3, policy_rate=1e-2),
    "cql lagrange": CQLConfig(**SMALL, actions=3, policy_rate=1e-2, target_action_gap=0.5),
}
"""Every algorithm in each of its forms, small."""
HEAD_CONFIGS = {
    "both": DrQBCConfig(**SMALL),
    "shared": DrQBCConfig(**SMALL, features="shared"),
    "drq_v2": DrQv2Config(**SMALL),
    "noisy_bc": NoisyBCConfig(**SMALL),
}
"""Every algorithm of the heads of pixel agents, likewise."""


class Table(NamedTuple):
    observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_observation: np.ndarray
    terminal: np.ndarray


def table(rows: int = 40, seed: int = 0, observations: int = 3, actions: int = 2) -> Table:
    """Noise, a third of it terminal, with a mean and a spread worth scaling."""
    draw = np.random.default_rng(seed)
    here, there = draw.normal(2, 3, (2, rows, observations))
    return Table(here, draw.uniform(-1, 1, (rows, actions)), draw.normal(size=rows), there, draw.random(rows) < 0.3)


def rows(*tables: Table, **options: object) -> Rows:
    return Rows(tables or [table()], device=CPU, **options)

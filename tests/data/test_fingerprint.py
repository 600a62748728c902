"""Rows are known again, and others are not taken for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from synther.data.fingerprint import fingerprint
from synther.data.spaces import Box
from synther.data.transitions import Transitions


def rows(**changes: Any) -> Transitions:
    zeros = np.zeros((6, 2), np.float32)
    given = {"observation": zeros, "action": zeros[:, :1], "reward": zeros[:, 0], "next_observation": zeros}
    return Transitions(**{**given, **changes})


def test_the_same_rows_have_the_same():
    every_other = np.zeros((12, 2), np.float32)[::2]
    assert fingerprint(rows(observation=every_other)) == fingerprint(rows())


@pytest.mark.parametrize(
    "changes",
    [
        {"reward": np.array([0, 0, 0, 0, 0, 1], np.float32)},
        {"action": np.zeros(6, np.int32)},  # the same bytes, which mean another thing
        {"action": np.zeros((6, 2), np.float32), "reward": np.zeros(6, np.float16)},
        {"timeout": np.zeros(6, bool)},
        {"action_space": (Box.uniform(-1, 1, 1),)},
        {"observation_space": (Box.uniform(-1, 1, 2),)},
        {"env_id": "Hopper-v5"},
        {"env_options": {"healthy_reward": 0}},
    ],
    ids=lambda changes: " ".join(changes),
)
def test_other_rows_have_another(changes: dict[str, Any]):
    assert fingerprint(rows(**changes)) != fingerprint(rows())

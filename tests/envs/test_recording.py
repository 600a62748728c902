"""How the rows of a share are put together, whoever plays its episodes."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, cast

import numpy as np
import pytest

from synther.envs.policies import UniformPolicy
from synther.envs.recording import _Share
from synther.envs.workers import Workers
from synther.progress import Silent


class Players:
    """Every piece is two episodes of three rows: one that ends in a terminal state, and one that is cut."""

    count = 1

    def submit(self, *work: Any) -> Future[dict[str, np.ndarray]]:
        places = np.arange(6.0)
        columns = {name: places[:, None] for name in ("observation", "action", "next_observation")}
        played: Future[dict[str, np.ndarray]] = Future()
        played.set_result({**columns, "reward": places, "terminal": places == 2, "timeout": places == 5})
        return played


@pytest.mark.parametrize(
    ("wanted", "terminals", "timeouts"),
    [(3, [2], []), (2, [], [1]), (4, [2], [3]), (6, [2], [5]), (9, [2, 8], [5]), (10, [2, 8], [5, 9])],
)
def test_the_last_row_is_cut_unless_it_is_terminal(wanted: int, terminals: list[int], timeouts: list[int]) -> None:
    share = _Share("Made-v0", "{}", UniformPolicy(np.zeros(1), np.ones(1)), (2, 0, 0), limit=3)
    with Silent().phase("roll out", wanted) as phase:
        rows = share.rows(wanted, cast(Workers, Players()), phase)
    assert rows.timeout is not None
    assert np.flatnonzero(rows.terminal).tolist() == terminals
    assert np.flatnonzero(rows.timeout).tolist() == timeouts
    assert rows.reward.tolist() == (list(range(6)) * 2)[:wanted]

"""Figures that all fidelity tables share: synthetic rows compared with real rows and with MuJoCo."""

from __future__ import annotations

from typing import Any

import numpy as np

from synther import Transitions
from synther.assess.dynamics import dynamics_error
from synther.assess.fidelity import compare
from synther.assess.neighbours import novelty
from synther.envs.simulator import simulate

HEADER = [
    "marginal",
    "worst column",
    "correlation",
    "dynamics",
    "novelty",
    "terminals",
    "terminals right",
    "actions outside",
]


def judge(real: Transitions, rows: Transitions, *, processes: int | None = None) -> dict[str, Any]:
    """Return the figures of `compare`, dynamics error and correctness of terminals by the simulator, and novelty."""
    assert real.env_id is not None, "the data must say which environment it is from"
    few = rows[: min(len(rows), 100_000)]
    truth, _, ends = simulate(real.env_id, few.observation, few.action, processes=processes)
    return {
        **compare(real, rows).to_json(),
        "dynamics": dynamics_error(few, truth, real),
        "novelty": novelty(real, rows),
        "terminals_right": float(np.mean(ends.astype(bool) == few.terminal)),
    }


def cells(figures: dict[str, Any]) -> list[str]:
    """Format the figures as cells of a table with the columns `HEADER`."""
    return [
        f"{figures['marginal']:.4f}",
        f"{figures['worst_value']:.3f} {figures['worst_column']}",
        f"{figures['correlation']:.4f}",
        f"{figures['dynamics']:.5f}",
        f"{figures['novelty']:.2f}",
        f"{figures['terminal_rate_synthetic']:.2%} (real {figures['terminal_rate_real']:.2%})",
        f"{figures['terminals_right']:.4f}",
        f"{figures['actions_outside']:.1%}",
    ]

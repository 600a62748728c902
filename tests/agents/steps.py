"""Rows of an environment for tests of online learners."""

from __future__ import annotations

import numpy as np

WIDE, A = 3, 2
WIDTH = 2 * WIDE + A + 2
LOW, HIGH = np.array([-1.0, -2.0]), np.array([1.0, 4.0])


def experience(count: int, seed: int, members: int | None = None) -> np.ndarray:
    """Rows (members, count, width), or of one member (count, width), with actions all over their bounds."""
    draw = np.random.default_rng(seed)
    rows = draw.normal(2, 3, (members or 1, count, WIDTH)).astype(np.float32)
    rows[..., WIDE : WIDE + A] = draw.uniform(LOW, HIGH, (members or 1, count, A))
    rows[..., WIDE + A + 1] = draw.random((members or 1, count)) < 0.3
    return rows if members else rows[0]

"""Rows that carry a number, a generator that takes no time, and replays made of both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from synther import Settings, Transitions, preset
from synther.replay import adapting
from synther.replay.synthetic import SyntheticReplay

TINY: Settings = preset(
    "laptop",
    network={"width": 16, "depth": 1, "embedding": 8, "frequencies": 4},
    fit={"steps": 20, "evaluate_every": 10, "batch_size": 32},
    sampler={"steps": 2},
    data={"scaling": "standard", "spikes": False, "threshold": "half", "terminals": "generated"},
)

OPTIONS: dict[str, Any] = {
    "refresh_every": 60,
    "samples": 100,
    "preset": TINY.changed(fit={"steps": 10, "evaluate_every": 5}),
    "progress": False,
}
"""Of a replay in the buffer of another library."""


def numbered(first: int, count: int, discrete: bool = False) -> dict[str, np.ndarray]:
    """`count` rows whose reward counts from `first` + 1/4 on, which is no whole number; the rest follows from it.

    Each goes on from the one before, in this call and from one to the next.
    """
    number = np.arange(first, first + count)
    angle, following = (numbers[:, None] * np.array([0.1, 0.37, 0.05]) for numbers in (number, number + 1))
    return {
        "observation": np.sin(angle).astype(np.float32),
        "action": number % 4 if discrete else np.cos(angle[:, :2]).astype(np.float32),
        "reward": (number + 0.25).astype(np.float32),
        "next_observation": np.sin(following).astype(np.float32),
        "terminal": number % 7 == 0,
    }


def some(count: int, discrete: bool = False) -> Transitions:
    return Transitions(**numbered(0, count, discrete))


def tiny(capacity: int = 1000, **options) -> SyntheticReplay:
    options = {"refresh_every": 100, "samples": 300, "preset": TINY, "device": "cpu", "progress": False, **options}
    return SyntheticReplay(capacity, **options)


def drift_at(look: int, monkeypatch: pytest.MonkeyPatch) -> list[list[float]]:
    """Rows have changed at the look of this number. The answer gathers the newest rewards that each look is shown."""
    seen: list[list[float]] = []

    def drift(model: Any, unseen: Transitions, newest: Transitions) -> adapting.Drift:
        seen.append(newest.reward.tolist())
        return adapting.Drift(1.0, 2.0, len(seen) == look)

    monkeypatch.setattr(adapting, "drift", drift)
    return seen

"""A generator that takes no time, and how a replay is built with it."""

from __future__ import annotations

from typing import Any

from synther import Settings, preset

TINY: Settings = preset(
    "laptop",
    network={"width": 16, "depth": 1, "embedding": 8, "frequencies": 4},
    fit={"steps": 10, "evaluate_every": 5, "batch_size": 32},
    sampler={"steps": 2},
    data={"scaling": "standard", "spikes": False, "threshold": "half", "terminals": "generated"},
)
OPTIONS: dict[str, Any] = {"refresh_every": 60, "samples": 100, "preset": TINY, "progress": False}

"""What may be chosen about a replay wherever it is built by somebody else's code."""

from __future__ import annotations

from typing import TypedDict

from synther import compute
from synther.presets import Settings
from synther.progress import Progress
from synther.replay.refit import Refit


class ReplayOptions(TypedDict, total=False):
    """Those options of `SyntheticReplay` that do not follow from the environment."""

    ratio: float
    refresh_every: int
    samples: int | None
    preset: str | Settings
    refit: Refit
    replace: float
    background: bool
    shuffled: bool
    precision: compute.Precision
    progress: Progress | bool

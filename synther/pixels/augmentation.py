"""Random shifts (Yarats et al. 2022, DrQ-v2): an observation moved by a few whole pixels, its border repeated.

How far is drawn here; `kernels/frames.py` moves the frames while it gathers them.
"""

from __future__ import annotations

import torch
from torch import Tensor

PAD = 4
"""Pixels by which an observation moves at most, each way."""


def offsets(uniform: Tensor) -> Tensor:
    """Where to cut, 0 to 2 PAD with equal probability, from numbers within [-1, 1). int64, in the same shape"""
    places = 2 * PAD + 1
    drawn = ((uniform + 1) * (places / 2)).to(torch.int64)
    return drawn.clamp_(max=places - 1)  # the largest numbers below 1 round up

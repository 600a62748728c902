"""Random shifts (Yarats et al. 2022, DrQ-v2): an observation moved by a few whole pixels, its border repeated.

How far is drawn here; `kernels/frames.py` moves the frames while it gathers them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from synther import compute

PAD = 4
"""Pixels by which an observation moves at most, each way."""


def offsets(uniform: Tensor) -> Tensor:
    """Where to cut, 0 to 2 PAD with equal probability, from numbers within [-1, 1). int64, in the same shape"""
    places = 2 * PAD + 1
    drawn = ((uniform + 1) * (places / 2)).to(torch.int64)
    return drawn.clamp_(max=places - 1)  # the largest numbers below 1 round up


def drawn_offsets(count: int, *key: int) -> Tensor:
    """For so many decisions, of each observation and of the one that follows, from the stream of `key`. (count, 4)"""
    source = compute.generator(torch.device("cpu"), *key)
    return offsets(torch.empty(count, 4).uniform_(-1, 1, generator=source))

"""The frames of a data set on the device, each stored once as uint8, and batches of observations made from them.

Observations are augmented with random shifts (Yarats et al. 2022, DrQ-v2): moved by a few whole pixels, with the border
repeated. The offsets are drawn here; `kernels/frames.py` shifts the frames while it gathers them.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from synther import compute
from synther.agents.rows import Batch
from synther.kernels.frames import frame_stacks
from synther.pixels.encoder import Frame
from synther.pixels.frames import STACK, Frames

PAD = 4
"""Largest shift in pixels, in each direction."""


def shift_offsets(uniform: Tensor) -> Tensor:
    """Offsets from 0 to 2 PAD with equal probability, from uniform numbers within [-1, 1). int64, in the same shape"""
    places = 2 * PAD + 1
    drawn = ((uniform + 1) * (places / 2)).to(torch.int64)
    return drawn.clamp_(max=places - 1)  # the largest numbers below 1 round up


def drawn_offsets(count: int, *key: int) -> Tensor:
    """Offsets of `count` observations and their next observations, from the random stream `key`. (count, 4)"""
    source = compute.generator(torch.device("cpu"), *key)
    return shift_offsets(torch.empty(count, 4).uniform_(-1, 1, generator=source))


_CHUNK = 2048
"""Frames copied at once: 43 MB at 84 x 84 pixels."""


def stacked(frames: Frames) -> Frame:
    """Channels, height and width of an observation: a stack of `frames`."""
    channels, height, width = frames.image.shape[1:]
    return STACK * channels, height, width


class FrameStore:
    """The decisions of `frames` for n-step learning, with actions scaled to [-1, 1]."""

    def __init__(self, frames: Frames, nstep: int, discount: float, device: torch.device) -> None:
        self.frame = stacked(frames)
        self.low, self.high = (torch.from_numpy(bound.copy()).to(device) for bound in (frames.low, frames.high))
        decisions = frames.decisions(nstep, discount)
        self.stack, self.next_stack = (torch.from_numpy(part).to(device) for part in decisions[:2])
        action = torch.from_numpy(decisions.action).to(device)
        self.action = ((action - self.low) * (2 / (self.high - self.low)) - 1).clamp_(-1, 1)
        self.reward = torch.from_numpy(decisions.reward).to(device)
        self.earned = float(decisions.reward.sum(dtype=np.float64))
        # In a batch, `terminal` is the fraction of the future value that is lost.
        self.terminal = 1 - torch.from_numpy(decisions.discount).to(device) / discount**nstep
        channels, height, width = frames.image.shape[1:]
        self.images = torch.empty(len(frames), height, width, channels, dtype=torch.uint8, device=device)
        for start in range(0, len(frames), _CHUNK):
            some = np.require(frames.image[start : start + _CHUNK].transpose(0, 2, 3, 1), requirements=["C", "W"])
            self.images[start : start + _CHUNK] = torch.from_numpy(some).to(device)

    def __len__(self) -> int:
        """Number of decisions to draw from."""
        return len(self.reward)

    def observations(self, picked: Tensor, offsets: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Observations of decisions `picked` (...), shifted by `offsets` (..., 2). (..., 3 C, H, W) in [-1/2, 1/2]"""
        return frame_stacks(self.images, self.stack[picked], offsets, PAD, dtype)

    def next_observations(self, picked: Tensor, offsets: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Next observations of the decisions `picked`."""
        return frame_stacks(self.images, self.next_stack[picked], offsets, PAD, dtype)

    def batch(self, picked: Tensor, offsets: Tensor, dtype: torch.dtype) -> Batch:
        """A batch of the decisions `picked` (S, B), with `offsets` (S, B, 4) for observations and next observations.

        With two offsets per decision the batch has no next observations. `pair` is empty: it only applies to rows.
        """
        seen = self.observations(picked, offsets[..., :2], dtype)
        ahead = offsets.shape[-1] == 4
        return Batch(
            observation=seen,
            action=self.action[picked],
            reward=self.reward[picked],
            next_observation=self.next_observations(picked, offsets[..., 2:], dtype) if ahead else seen[:, :0],
            terminal=self.terminal[picked],
            pair=seen[:, :0],
        )

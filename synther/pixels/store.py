"""Keep the frames of a data set on the device, each stored once as uint8, and create batches of observations from them.

Observations are augmented with random shifts (Yarats et al. 2022, DrQ-v2): they are moved by a few whole pixels, and
the pixels of the border are repeated. The offsets are drawn here. `kernels/frames.py` shifts the frames while it
gathers them.
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
    """Convert uniform numbers in [-1, 1) to uniform integers from 0 to 2 PAD, as int64 of the same shape."""
    places = 2 * PAD + 1
    drawn = ((uniform + 1) * (places / 2)).to(torch.int64)
    return drawn.clamp_(max=places - 1)  # the largest numbers below 1 are rounded up to `places`


def drawn_offsets(count: int, *key: int) -> Tensor:
    """Draw offsets (count, 4) of observations and their next observations from the random stream `key`."""
    source = compute.generator(torch.device("cpu"), *key)
    return shift_offsets(torch.empty(count, 4).uniform_(-1, 1, generator=source))


_CHUNK = 2048
"""Number of frames that are copied to the device at once: 43 MB at 84 x 84 pixels."""


def stacked(frames: Frames) -> Frame:
    """Return channels, height and width of an observation, which is a stack of `frames`."""
    channels, height, width = frames.image.shape[1:]
    return STACK * channels, height, width


class FrameStore:
    """The decisions of `frames` on a device, for n-step learning, with actions scaled to [-1, 1]."""

    def __init__(self, frames: Frames, nstep: int, discount: float, device: torch.device) -> None:
        self.frame = stacked(frames)
        self.low, self.high = (torch.from_numpy(bound.copy()).to(device) for bound in (frames.low, frames.high))
        decisions = frames.decisions(nstep, discount)
        self.stack, self.next_stack = (torch.from_numpy(part).to(device) for part in decisions[:2])
        action = torch.from_numpy(decisions.action).to(device)
        self.action = ((action - self.low) * (2 / (self.high - self.low)) - 1).clamp_(-1, 1)
        self.reward = torch.from_numpy(decisions.reward).to(device)
        self.earned = float(decisions.reward.sum(dtype=np.float64))
        # In a batch, `terminal` is the fraction of the future value that is lost: 1 at a terminal.
        self.terminal = 1 - torch.from_numpy(decisions.discount).to(device) / discount**nstep
        channels, height, width = frames.image.shape[1:]
        self.images = torch.empty(len(frames), height, width, channels, dtype=torch.uint8, device=device)
        for start in range(0, len(frames), _CHUNK):
            some = np.require(frames.image[start : start + _CHUNK].transpose(0, 2, 3, 1), requirements=["C", "W"])
            self.images[start : start + _CHUNK] = torch.from_numpy(some).to(device)

    def __len__(self) -> int:
        """Number of decisions."""
        return len(self.reward)

    def pick(self, random: Tensor) -> Tensor:
        """Convert large random integers (S, ...) to indices of uniformly drawn decisions."""
        return random % len(self)

    def observations(self, picked: Tensor, offsets: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Return the observations (..., 3 C, H, W) in [-1/2, 1/2] of the decisions `picked` (...).

        They are shifted by `offsets` (..., 2). None: no shift.
        """
        return frame_stacks(self.images, self.stack[picked], offsets, PAD, dtype)

    def next_observations(self, picked: Tensor, offsets: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Return the next observations of the decisions `picked`, see `observations`."""
        return frame_stacks(self.images, self.next_stack[picked], offsets, PAD, dtype)

    def batch(self, picked: Tensor, offsets: Tensor, dtype: torch.dtype) -> Batch:
        """Return a batch of the decisions `picked` (S, B), shifted by `offsets` (S, B, 4).

        The first two offsets are for observations, the other two for next observations. With only two offsets per
        decision, the batch has no next observations. `pair` is empty because it only applies to rows.
        """
        observations = self.observations(picked, offsets[..., :2], dtype)
        has_next = offsets.shape[-1] == 4
        empty = observations[:, :0]
        return Batch(
            observation=observations,
            action=self.action[picked],
            reward=self.reward[picked],
            next_observation=self.next_observations(picked, offsets[..., 2:], dtype) if has_next else empty,
            terminal=self.terminal[picked],
            pair=empty,
        )

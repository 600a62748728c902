"""The frames of a data set on the device, each once and as uint8, and batches of observations made of them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from synther.agents.rows import Batch
from synther.kernels.frames import frame_stacks
from synther.pixels.augmentation import PAD
from synther.pixels.encoder import Frame
from synther.pixels.frames import STACK, Frames

_CHUNK = 2048
"""Frames that are read and moved at once: 43 MB of them at 84 x 84 pixels."""


def stacked(frames: Frames) -> Frame:
    """Channels, height and width of an observation made of `frames`."""
    channels, height, width = frames.image.shape[1:]
    return STACK * channels, height, width


class FrameStore:
    """Decisions of `frames` as an agent learns from them, `nstep` at a time; actions are seen within [-1, 1]."""

    def __init__(self, frames: Frames, nstep: int, discount: float, device: torch.device) -> None:
        self.frame = stacked(frames)
        self.low, self.high = (torch.from_numpy(bound.copy()).to(device) for bound in (frames.low, frames.high))
        decisions = frames.decisions(nstep, discount)
        self.stack, self.next_stack = (torch.from_numpy(part).to(device) for part in decisions[:2])
        action = torch.from_numpy(decisions.action).to(device)
        self.action = ((action - self.low) * (2 / (self.high - self.low)) - 1).clamp_(-1, 1)
        self.reward = torch.from_numpy(decisions.reward).to(device)
        self.earned = float(decisions.reward.sum(dtype=np.float64))
        # What a batch calls terminal is the share of the future that is lost.
        self.terminal = 1 - torch.from_numpy(decisions.discount).to(device) / discount**nstep
        channels, height, width = frames.image.shape[1:]
        self.images = torch.empty(len(frames), height, width, channels, dtype=torch.uint8, device=device)
        for start in range(0, len(frames), _CHUNK):
            some = np.require(frames.image[start : start + _CHUNK].transpose(0, 2, 3, 1), requirements=["C", "W"])
            self.images[start : start + _CHUNK] = torch.from_numpy(some).to(device)

    def __len__(self) -> int:
        """Decisions that a batch is drawn from."""
        return len(self.reward)

    def observations(self, picked: Tensor, offsets: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Of the decisions `picked` (...), shifted by `offsets` (..., 2). (..., 3 C, H, W), within [-1/2, 1/2]"""
        return frame_stacks(self.images, self.stack[picked], offsets, PAD, dtype)

    def next_observations(self, picked: Tensor, offsets: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Those that the decisions led to."""
        return frame_stacks(self.images, self.next_stack[picked], offsets, PAD, dtype)

    def batch(self, picked: Tensor, offsets: Tensor, dtype: torch.dtype) -> Batch:
        """The decisions `picked` (S, B), shifted by `offsets` (S, B, 4): observations, and those that follow.

        Two offsets do where nobody looks at what follows. A stack and an action have no common rows: `pair` is empty.
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

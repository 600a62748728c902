"""Compute many softmaxes, which lie side by side in one matrix, at once instead of one after the other.

For each real column of the table, TVAE and CTGAN output a position (through tanh) and a code (through softmax). For a
category they output only a code. `ctgan` loops over the columns in Python. With dozens of columns this takes most of
the time of a step, and nearly all of it on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from synther.baselines.table import Column, Real

_TEMPERATURE = 0.2  # temperature of CTGAN's Gumbel softmax


class Spans:
    """The matrix columns of the positions and codes of `columns`, in an output of a model (N, width)."""

    def __init__(self, columns: Sequence[Column], device: torch.device) -> None:
        self.placed = [isinstance(column, Real) for column in columns]
        self.lengths = [column.width - placed for column, placed in zip(columns, self.placed, strict=True)]
        self.longest = max(self.lengths)
        places, slots, back = [], [], []
        start = 0
        for row, (placed, length) in enumerate(zip(self.placed, self.lengths, strict=True)):
            if placed:
                places.append(start)
                back.append(0)  # any number, because the result is not used for a position
            start += placed
            slots += [*range(start, start + length), *[-1] * (self.longest - length)]
            back += range(row * self.longest, row * self.longest + length)
            start += length
        # Shorter softmaxes are padded to the longest one with an extra last column of minus infinity.
        self.slots = torch.tensor([start if slot < 0 else slot for slot in slots], device=device)
        self.back = torch.tensor(back, device=device)
        self.places = torch.tensor(places, dtype=torch.long, device=device)
        self.is_place = torch.zeros(start, dtype=torch.bool, device=device)
        self.is_place[self.places] = True

    def _codes(self, logits: Tensor) -> Tensor:
        """Rearrange logits (N, width) to (N, softmaxes, longest). Shorter softmaxes are padded with minus infinity."""
        padding = logits.new_full((len(logits), 1), -torch.inf)
        return torch.cat([logits, padding], 1).index_select(1, self.slots).view(len(logits), -1, self.longest)

    def activated(self, logits: Tensor) -> Tensor:
        """Apply CTGAN's output activations: tanh to positions and a Gumbel softmax to codes. (N, width)"""
        rows = len(logits)
        # Draw in the same order as ctgan, softmax by softmax, so that a seed gives the same result. A position gets 1,
        # because the logarithm of 1 adds nothing to it.
        one = logits.new_ones(rows, 1)
        noise: list[Tensor] = []
        for length, placed in zip(self.lengths, self.placed, strict=True):
            noise += [one] * placed + [logits.new_empty(rows, length).exponential_()]
        noisy = logits - torch.cat(noise, 1).clamp_min(torch.finfo(logits.dtype).tiny).log()
        soft = torch.softmax(self._codes(noisy) / _TEMPERATURE, dim=-1).view(rows, -1)
        return torch.where(self.is_place, torch.tanh(logits), soft.index_select(1, self.back))

    def reconstruction(self, logits: Tensor, target: Tensor, stds: Tensor) -> Tensor:
        """Return TVAE's reconstruction loss, summed over rows: the Gaussian negative log-likelihood of positions, with
        a std for each column, and the cross entropy of codes, which are one-hot in `target`."""
        error = target.index_select(1, self.places) - torch.tanh(logits.index_select(1, self.places))
        std = stds.index_select(0, self.places)
        squared = (error.square() / (2 * std.square())).sum() + len(target) * std.log().sum()
        chosen = (logits * target).masked_fill(self.is_place, 0.0).sum()
        return squared + torch.logsumexp(self._codes(logits), dim=-1).sum() - chosen

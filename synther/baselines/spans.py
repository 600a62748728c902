"""Many softmaxes side by side in one matrix: all of them at once instead of one after the other.

TVAE and CTGAN put out, for every column of the table, a place (through tanh) and a code (through softmax). `ctgan` goes
through the columns in Python; with dozens of them that is most of the time of a step, on a GPU nearly all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from synther.baselines.table import Column, Real

_TEMPERATURE = 0.2  # CTGAN's, of its Gumbel softmax


class Spans:
    """Where the places and codes of `columns` stand in a matrix (N, width)."""

    def __init__(self, columns: Sequence[Column], device: torch.device) -> None:
        self.placed = [isinstance(column, Real) for column in columns]
        self.lengths = [column.width - placed for column, placed in zip(columns, self.placed, strict=True)]
        self.longest = max(self.lengths)
        places, slots, back = [], [], []
        start = 0
        for row, (placed, length) in enumerate(zip(self.placed, self.lengths, strict=True)):
            if placed:
                places.append(start)
                back.append(0)  # not looked at
            start += placed
            slots += [*range(start, start + length), *[-1] * (self.longest - length)]
            back += range(row * self.longest, row * self.longest + length)
            start += length
        # A softmax that is shorter than the longest is filled up from a column beyond the last: minus infinity.
        self.slots = torch.tensor([start if slot < 0 else slot for slot in slots], device=device)
        self.back = torch.tensor(back, device=device)
        self.places = torch.tensor(places, dtype=torch.long, device=device)
        self.is_place = torch.zeros(start, dtype=torch.bool, device=device)
        self.is_place[self.places] = True

    def _codes(self, logits: Tensor) -> Tensor:
        """(N, width) to (N, softmaxes, longest), minus infinity where a softmax is shorter."""
        beyond = logits.new_full((len(logits), 1), -torch.inf)
        return torch.cat([logits, beyond], 1).index_select(1, self.slots).view(len(logits), -1, self.longest)

    def activated(self, logits: Tensor) -> Tensor:
        """CTGAN's output: tanh of the places and a Gumbel softmax of the codes (N, width)."""
        rows = len(logits)
        # Drawn as ctgan draws, softmax by softmax, so that a seed means the same; 1 for a place: its logarithm is 0.
        one = logits.new_ones(rows, 1)
        noise: list[Tensor] = []
        for length, placed in zip(self.lengths, self.placed, strict=True):
            noise += [one] * placed + [logits.new_empty(rows, length).exponential_()]
        noisy = logits - torch.cat(noise, 1).clamp_min(torch.finfo(logits.dtype).tiny).log()
        soft = torch.softmax(self._codes(noisy) / _TEMPERATURE, dim=-1).view(rows, -1)
        return torch.where(self.is_place, torch.tanh(logits), soft.index_select(1, self.back))

    def reconstruction(self, logits: Tensor, target: Tensor, stds: Tensor) -> Tensor:
        """TVAE's loss summed over rows: squared error of the places, each with its own std, and cross entropy of
        the codes, which are a 1 among 0 in `target`."""
        error = target.index_select(1, self.places) - torch.tanh(logits.index_select(1, self.places))
        std = stds.index_select(0, self.places)
        squared = (error.square() / (2 * std.square())).sum() + len(target) * std.log().sum()
        chosen = (logits * target).masked_fill(self.is_place, 0.0).sum()
        return squared + torch.logsumexp(self._codes(logits), dim=-1).sum() - chosen

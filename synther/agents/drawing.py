"""The random numbers of rounds of updates, each member's from its own stream, and the precision they are used in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from synther import compute
from synther.agents.algorithm import ROUNDS, Algorithm
from synther.errors import ConfigError

_RANDOM_BITS = 62  # of a number that picks a row by its remainder: the bias is one row in 2^62 / N


class Drawn:
    """In tensors that stay where they are: `random` (S, updates, B) picks rows, the others are an algorithm's noise."""

    def __init__(
        self, seeds: Sequence[int], updates: int, batch: int, algorithm: Algorithm, device: torch.device
    ) -> None:
        self.seeds, size = tuple(seeds), (len(seeds), updates, batch)
        self.random = torch.zeros(size, dtype=torch.int64, device=device)
        self.normal = torch.zeros(*size, algorithm.normals, device=device)
        self.uniform = torch.zeros(*size, algorithm.uniforms, device=device)
        self._source = torch.Generator(device)

    def draw(self, number: int) -> None:
        """Round `number`: for each member the same numbers as if it were the only one."""
        for index, seed in enumerate(self.seeds):
            compute.reseed(self._source, seed, ROUNDS, number)
            self.random[index].random_(0, 1 << _RANDOM_BITS, generator=self._source)
            self.normal[index].normal_(generator=self._source)
            self.uniform[index].uniform_(-1, 1, generator=self._source)


def precision_for(asked: Literal["auto", "float32", "tf32"], device: torch.device) -> compute.Precision:
    """`auto` is tf32 on a GPU and float32 on a CPU; agents have no use for bf16."""
    if asked not in ("auto", "float32", "tf32"):
        raise ConfigError(f"precision must be auto, float32 or tf32, got {asked!r}")
    if asked == "auto":
        return "tf32" if device.type == "cuda" else "float32"
    return asked

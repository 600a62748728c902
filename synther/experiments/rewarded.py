"""Synthetic rows whose rewards are changed as a data set demands it of the real ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synther.data.transitions import Transitions
from synther.datasets import Dataset
from synther.experiments.sources import Source
from synther.progress import Progress


@dataclass(frozen=True)
class Rewarded:
    """The rows of another source, which imitate those of `dataset`, with rewards as the algorithm wants them there."""

    source: Source
    dataset: Dataset
    algorithm: str

    def check(self, real: Transitions) -> None:
        self.source.check(real)

    def description(self) -> dict[str, Any]:
        factor, more = self.dataset.rewards[self.algorithm](self.dataset.rows)
        return {**self.source.description(), "rewards": [factor, more]}

    def rows(self, file: Path, progress: Progress) -> Transitions:
        return self.dataset.rows_for(self.algorithm, self.source.rows(file, progress))

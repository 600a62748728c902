"""How many numbers a data set has, and how many the network that can make it anew."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synther.experiments.spec import Place, Recipe, RunSpec, Training
from synther.folder import write_object
from synther.progress import Progress

NUMBERS, PARAMETERS, RATIO = "numbers", "parameters", "ratio"


@dataclass(frozen=True)
class Sizes(RunSpec):
    """Of a data set and the denoiser that the paper fits on it."""

    name: str
    data: str
    recipe: Recipe

    is_training = False

    def prepared(self, place: Place, progress: Progress) -> tuple[dict[str, Any], Training]:
        import torch

        from synther import datasets
        from synther.diffusion.networks import Network

        rows = datasets.read(self.data, data=place.data, policies=place.policies, progress=progress).rows
        columns = 2 * rows.observation.shape[1] + rows.action.shape[1] + 2
        with torch.device("meta"):
            network = Network(columns, self.recipe.settings().network)
        numbers, parameters = len(rows) * columns, sum(weight.numel() for weight in network.parameters())
        found = {NUMBERS: numbers / 1e6, PARAMETERS: parameters / 1e6, RATIO: numbers / parameters}
        return {}, lambda folder, progress: write_object(self.result(folder), found)

    def result(self, folder: Path) -> Path:
        return folder / "result.json"

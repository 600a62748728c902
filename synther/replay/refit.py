"""One refresh: fit a generator on the real rows and draw synthetic ones, as a function of what it is given."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from synther import compute
from synther.presets import Settings
from synther.progress import Progress
from synther.replay.columns import Columns, Matrix
from synther.synthesizer import Synthesizer

Refit = Literal["warm", "scratch"]

WARM_SHARE, WARM_STEPS = 0.2, 10_000
"""Of a fit's steps so much suffices where the weights begin as those of the fit before, and never more than so many."""
PATIENCE = 5
"""Measurements without a better held-out loss after which a fit of `warm` is over."""


def usual_samples(device: torch.device) -> int:
    """Synthetic rows where nobody says how many: the paper's million, or what a CPU draws in seconds."""
    return 1_000_000 if device.type == "cuda" else 100_000


@dataclass(frozen=True)
class Refresh:
    """What came of a refresh, for the record."""

    number: int
    """Counted from 0."""
    added: int
    """Real rows that had been added when it began,"""
    rows: int
    """and those that were still there."""
    samples: int
    """Synthetic rows it was to make."""
    kept: bool = False
    """Whether its generator and its rows took the place of old ones."""
    steps: int = 0
    held_out: float | None = None
    """The loss, at the end, on rows that no fit has learned from."""
    fit_seconds: float = 0.0
    sample_seconds: float = 0.0
    reason: str = ""
    """Why it was not kept."""


@dataclass(frozen=True)
class Generation:
    """A generator, its rows, and what they cost."""

    model: Synthesizer
    rows: Matrix
    fit_seconds: float
    sample_seconds: float

    def recorded(self, begun: Refresh) -> Refresh:
        """The record of a refresh that came to this."""
        return replace(
            begun,
            kept=True,
            steps=self.model.record.steps,
            held_out=self.model.measured.get("held_out"),
            fit_seconds=self.fit_seconds,
            sample_seconds=self.sample_seconds,
        )


@dataclass(frozen=True)
class Job:
    """All that a refresh depends on."""

    columns: Columns
    real: Matrix
    held_out: NDArray[np.bool_]
    """Which of the real rows no fit may learn from."""
    settings: Settings
    samples: int
    seed: int
    device: str = "auto"
    precision: compute.Precision = "auto"
    start: Synthesizer | None = None
    """Whose weights the fit begins from."""

    def run(self, progress: Progress) -> Generation:
        began = time.monotonic()
        model = Synthesizer(self.settings, device=self.device, precision=self.precision, seed=self.seed)
        real = self.columns.transitions(self.real)
        model.fit(real, start=self.start, held_out=self.held_out, progress=progress)
        fitted = time.monotonic()
        blocks = model.sample_blocks(self.samples, seed=self.seed, progress=progress)
        rows = self.columns.pack_parts(blocks, self.samples)
        return Generation(model, rows, fitted - began, time.monotonic() - fitted)

    def save(self, folder: Path) -> None:
        """Into a folder of its own, for another process."""
        names = ("samples", "seed", "device", "precision")
        described: dict[str, Any] = {name: getattr(self, name) for name in names}
        described |= {"columns": self.columns.to_json(), "settings": self.settings.to_json()}
        save_file({"real": self.real, "held_out": self.held_out}, folder / "real.safetensors")
        (folder / "job.json").write_text(json.dumps(described))
        if self.start is not None:
            self.start.save(folder / "start.safetensors")

    @classmethod
    def load(cls, folder: Path) -> Job:
        described = json.loads((folder / "job.json").read_text())
        columns, settings = Columns.from_json(described.pop("columns")), Settings.from_json(described.pop("settings"))
        start = folder / "start.safetensors"
        before = Synthesizer.load(start, device=described["device"]) if start.exists() else None
        tensors = load_file(folder / "real.safetensors")
        return cls(columns, tensors["real"], tensors["held_out"], settings, start=before, **described)


def settings_for(settings: Settings, refit: Refit, *, first: bool, measured: bool) -> Settings:
    """How a refresh fits: `scratch` as the settings say, `warm` until the held-out loss no longer falls.

    A warm fit that is not the `first` one has fewer steps, over which its learning rate falls to 0. Where no held-out
    loss is `measured`, for want of rows, no patience can run out.
    """
    changes: dict[str, Any] = {}
    if not measured:
        changes["patience"] = None
    elif refit == "warm" and settings.fit.patience is None:
        changes["patience"] = PATIENCE
    if refit == "warm" and not first:
        changes["steps"] = max(1, min(round(WARM_SHARE * settings.fit.steps), WARM_STEPS))
    return settings.changed(fit=changes)

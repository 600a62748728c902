"""Refresh: fit generators on real rows and sample synthetic rows, as a function of its inputs.

`SyntheticReplay` refreshes one generator. Online runs refresh those of all seeds together.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from synther import compute
from synther.conditions import Relevant
from synther.data.transitions import Transitions
from synther.errors import SyntherError
from synther.guides import Gradient, Guide
from synther.presets import Settings
from synther.progress import Progress
from synther.replay.columns import Columns, Matrix
from synther.synthesizer import Synthesizer
from synther.synthesizer.together import fit_models

Refit = Literal["warm", "scratch"]

WARM_SHARE, WARM_STEPS = 0.2, 10_000
"""A warm fit has this fraction of the usual steps, and at most this many steps."""
PATIENCE = 5
"""A warm fit stops after this many measurements without a better held-out loss."""


def usual_samples(device: torch.device) -> int:
    """Default number of synthetic rows: a million as in the paper, or 100,000 on a CPU."""
    return 1_000_000 if device.type == "cuda" else 100_000


@dataclass(frozen=True)
class Refresh:
    """Record of a refresh."""

    number: int
    """Counted from 0."""
    added: int
    """Real rows added before it started."""
    rows: int
    """Real rows in the buffer when it started."""
    samples: int
    """Synthetic rows to generate."""
    kept: bool = False
    """Whether its generator and rows are used."""
    steps: int = 0
    held_out: float | None = None
    """Final loss on held-out rows, on which no fit has trained."""
    fit_seconds: float = 0.0
    sample_seconds: float = 0.0
    reason: str = ""
    """Why it was not kept."""


@dataclass(frozen=True)
class Generation:
    """A generator, its rows, and the time they took."""

    model: Synthesizer
    rows: Matrix
    fit_seconds: float
    sample_seconds: float

    def recorded(self, begun: Refresh) -> Refresh:
        """The record of a finished refresh."""
        return recorded(begun, self.model, fit_seconds=self.fit_seconds, sample_seconds=self.sample_seconds)


@dataclass(frozen=True)
class Job:
    """All inputs of a refresh."""

    columns: Columns
    rows: Transitions
    """The real rows."""
    held_out: NDArray[np.bool_]
    """Which real rows are held out from every fit."""
    settings: Settings
    samples: int
    seed: int
    device: str = "auto"
    precision: compute.Precision = "auto"
    start: Synthesizer | None = None
    """The model whose weights the fit starts from."""
    relevant: Relevant | None = None
    """Which rows are asked for, where not all are alike."""
    condition: NDArray[np.float64] | None = None
    """Relevance of each row, where it was computed before."""
    guide: Guide | Gradient | None = None
    """What moves rows while they are drawn. Another process cannot be sent one."""

    @classmethod
    def of(
        cls,
        columns: Columns,
        rows: Transitions,
        settings: Settings,
        refit: Refit,
        *,
        stream: Sequence[int],
        gone: int,
        before: Synthesizer | None,
        places: NDArray[np.int64] | None = None,
        **how: Any,
    ) -> Job:
        """A refresh on `rows`. `gone` earlier rows are no longer in the buffer.

        `stream` is that of the random numbers which say what is held out, `before` the generator of the refresh before.
        Where rows are not in the order in which they were added, `places` names the place of each one in its ring.
        """
        if places is None:
            places = np.arange(gone, gone + len(rows))
        held_out = held_out_rows(stream, places, settings.fit.holdout)
        start = before if refit == "warm" else None
        fit = settings_for(settings, refit, first=start is None, measured=bool(held_out.any()))
        return cls(columns, rows, held_out, fit, start=start, **how)

    def run(self, progress: Progress) -> Generation:
        began = time.monotonic()
        (model,) = fit_all([self], progress)
        if isinstance(model, SyntherError):
            raise model
        fitted = time.monotonic()
        rows = drawn(model, self.columns, self.samples, self.seed, progress, self.relevant, self.guide)
        return Generation(model, rows, fitted - began, time.monotonic() - fitted)

    def save(self, folder: Path) -> None:
        """Save the job to a folder, for another process."""
        names = ("samples", "seed", "device", "precision")
        described: dict[str, Any] = {name: getattr(self, name) for name in names}
        described["relevant"] = None if self.relevant is None else asdict(self.relevant)
        described |= {"columns": self.columns.to_json(), "settings": self.settings.to_json()}
        arrays = {"real": self.columns.pack(self.rows), "held_out": self.held_out}
        if self.condition is not None:
            arrays["condition"] = self.condition
        save_file(arrays, folder / "real.safetensors")
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
        rows = columns.transitions(tensors["real"])
        relevant = described.pop("relevant")
        described |= {"relevant": relevant and Relevant(**relevant), "condition": tensors.get("condition")}
        return cls(columns, rows, tensors["held_out"], settings, start=before, **described)


def fit_all(jobs: Sequence[Job], progress: Progress) -> list[Synthesizer | SyntherError]:
    """Fit the generators of all jobs together. A failed fit gives its error instead."""
    models = [Synthesizer(job.settings, device=job.device, precision=job.precision, seed=job.seed) for job in jobs]
    how: Any = {"starts": [job.start for job in jobs], "held_out": [job.held_out for job in jobs]}
    conditions = [_condition(job) for job in jobs]
    return fit_models(models, [job.rows for job in jobs], **how, conditions=conditions, progress=progress)


def _condition(job: Job) -> Any:
    if job.relevant is None:
        return None
    name = job.relevant.relevance
    return {name: name if job.condition is None else job.condition}


def recorded(begun: Refresh, model: Synthesizer | SyntherError, **seconds: float) -> Refresh:
    """The record of a finished refresh."""
    if isinstance(model, SyntherError):
        return replace(begun, reason=str(model), **seconds)  # type: ignore[arg-type]
    held_out = model.measured.get("held_out")
    return replace(begun, kept=True, steps=model.record.steps, held_out=held_out, **seconds)  # type: ignore[arg-type]


def drawn(
    model: Synthesizer,
    columns: Columns,
    samples: int,
    seed: int,
    progress: Progress,
    relevant: Relevant | None = None,
    guide: Guide | Gradient | None = None,
) -> Matrix:
    """Sample synthetic rows, packed as a matrix."""
    asked = {"guide": guide, **({} if relevant is None else relevant.asked())}
    return columns.pack_parts(model.sample_blocks(samples, seed=seed, **asked, progress=progress), samples)


def held_out_rows(stream: Sequence[int], places: NDArray[np.int64], share: float) -> NDArray[np.bool_]:
    """Which rows no fit may learn from: once and for all, so that a warm start has not seen them either.

    A place is the number of a row, counted from the first ever added, or its place in a ring.
    """
    if not len(places):
        return np.zeros(0, bool)
    first = int(places.min())
    draws = np.random.PCG64(list(stream))
    draws.advance(first)
    numbers = np.random.Generator(draws).random(int(places.max()) - first + 1)
    chosen: NDArray[np.bool_] = numbers[places - first] < share
    return chosen & (not chosen.all())


def seed_of(*key: int) -> int:
    """Seed of a fit and its samples, below 2**31; larger seeds are reserved by `Synthesizer`."""
    return int(np.random.SeedSequence(key).generate_state(1)[0]) >> 1


def settings_for(settings: Settings, refit: Refit, *, first: bool, measured: bool) -> Settings:
    """Settings of a refresh's fit: unchanged for `scratch`; `warm` stops when the held-out loss no longer falls.

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

"""Refresh generators: fit them on real rows and sample synthetic rows.

The result of a refresh depends only on its inputs, which are collected in a `Job`. `SyntheticReplay` refreshes one
generator. Online runs refresh the generators of all seeds together, see `Generators`.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from synther import compute
from synther.conditions import Relevant
from synther.data.transitions import Transitions
from synther.errors import SyntherError
from synther.folder import read_object, write_object
from synther.guides import Gradient, Guide
from synther.presets import Settings
from synther.progress import Progress
from synther.replay.columns import Columns, Matrix
from synther.synthesizer import Synthesizer
from synther.synthesizer.together import fit_models

log = logging.getLogger(__name__)

Refit = Literal["warm", "scratch"]

WARM_SHARE, WARM_STEPS = 0.2, 10_000
"""A warm fit has this fraction of the preset's steps, and at most this many steps."""
FITS, HELD_OUT = 4, 5
"""Random streams of fits and of held-out rows in online runs. Agents and environments use other streams."""
PATIENCE = 5
"""A warm fit stops after this many measurements without a better held-out loss."""


def usual_samples(device: torch.device) -> int:
    """Return the default number of synthetic rows: a million on a GPU, as in the paper, or 100,000 on a CPU."""
    return 1_000_000 if device.type == "cuda" else 100_000


@dataclass(frozen=True)
class Refresh:
    """Record of a refresh."""

    number: int
    """Number of the refresh, counted from 0."""
    added: int
    """Number of real rows that were added before the refresh."""
    rows: int
    """Number of real rows in the buffer at the start of the refresh."""
    samples: int
    """Number of synthetic rows to generate."""
    kept: bool = False
    """Whether the refresh succeeded, so that its generator and rows are used."""
    steps: int = 0
    """Number of steps of the fit."""
    held_out: float | None = None
    """Final loss on held-out rows, which no fit has learned from."""
    fit_seconds: float = 0.0
    sample_seconds: float = 0.0
    reason: str = ""
    """Error message of a refresh that failed."""


@dataclass(frozen=True)
class Look:
    """Record of a check after `added` rows, whether a refresh is due: the measured numbers and the decision."""

    added: int
    refresh: bool
    ratio: float
    unseen: float | None = None
    """Mean loss of the generator on held-out rows that are older than its fit. None: not measured."""
    newest: float | None = None
    """Mean loss of the generator on the newest rows. None: not measured, or they have values that it cannot represent.
    """
    held_out_error: float | None = None
    """Mean absolute TD error of the critics in held-out rows, from which neither agent nor generator learns."""
    trained_error: float | None = None
    """Mean absolute TD error of the critics in all other real rows."""


@dataclass(frozen=True)
class Generation:
    """Result of a refresh: the generator, its rows, and the seconds for both."""

    model: Synthesizer
    rows: Matrix
    fit_seconds: float
    sample_seconds: float

    def recorded(self, begun: Refresh) -> Refresh:
        """Complete the record `begun` of this refresh."""
        return recorded(begun, self.model, fit_seconds=self.fit_seconds, sample_seconds=self.sample_seconds)


@dataclass(frozen=True)
class Job:
    """All inputs of a refresh."""

    columns: Columns
    rows: Transitions
    """The real rows."""
    held_out: NDArray[np.bool_]
    """(N,): which real rows are held out from every fit."""
    settings: Settings
    samples: int
    seed: int
    device: str = "auto"
    precision: compute.Precision = "auto"
    start: Synthesizer | None = None
    """A warm fit starts from the weights of this model."""
    relevant: Relevant | None = None
    """The condition on the synthetic rows. None: they are distributed like the real rows."""
    condition: NDArray[np.float64] | None = None
    """(N,): relevance of each real row, if it was computed before."""
    guide: Guide | Gradient | None = None
    """Guide for sampling. It cannot be sent to another process, so `save` leaves it out."""

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
        """Return the job of a refresh on `rows`. `gone` is the number of earlier rows that are no longer in the buffer.

        `stream` is the random stream that selects held-out rows. `before` is the generator of the previous refresh. If
        rows are not in the order in which they were added, `places` has the index of each row in its ring buffer.
        """
        if places is None:
            places = np.arange(gone, gone + len(rows))
        held_out = held_out_rows(stream, places, settings.fit.holdout)
        start = before if refit == "warm" else None
        fit = settings_for(settings, refit, first=start is None, measured=bool(held_out.any()))
        return cls(columns, rows, held_out, fit, start=start, **how)

    def run(self, progress: Progress) -> Generation:
        """Fit the generator and sample the synthetic rows."""
        began = time.monotonic()
        (model,) = fit_all([self], progress)
        if isinstance(model, SyntherError):
            raise model
        fitted = time.monotonic()
        rows = drawn(model, self.columns, self.samples, self.seed, progress, self.relevant, self.guide)
        return Generation(model, rows, fitted - began, time.monotonic() - fitted)

    def save(self, folder: Path) -> None:
        """Save the job, except its guide, to a folder. Another process can then `load` and run it."""
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
    """Fit the generators of all jobs together. Return one model per job, or the error if its fit failed."""
    models = [Synthesizer(job.settings, device=job.device, precision=job.precision, seed=job.seed) for job in jobs]
    how: Any = {"starts": [job.start for job in jobs], "held_out": [job.held_out for job in jobs]}
    conditions = [_condition(job) for job in jobs]
    return fit_models(models, [job.rows for job in jobs], **how, conditions=conditions, progress=progress)


def _condition(job: Job) -> Any:
    """Return the condition that the job's generator is fitted with, or None."""
    if job.relevant is None:
        return None
    name = job.relevant.relevance
    return {name: name if job.condition is None else job.condition}


def recorded(begun: Refresh, model: Synthesizer | SyntherError, **seconds: float) -> Refresh:
    """Complete the record `begun` of a refresh, from its model or the error of its fit."""
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
    """Sample synthetic rows and return them as a matrix (samples, width)."""
    options = {"guide": guide, **({} if relevant is None else relevant.asked())}
    return columns.pack_parts(model.sample_blocks(samples, seed=seed, **options, progress=progress), samples)


def held_out_rows(stream: Sequence[int], places: NDArray[np.int64], share: float) -> NDArray[np.bool_]:
    """Return a mask of the held-out rows (N,). Each row is held out with probability `share`, but never all rows.

    The choice depends only on `stream` and the row's place, so a row that is held out once is held out from all later
    fits. So a warm start has not learned from it either. A place is the number of a row, counted from the first row
    ever added, or its index in a ring buffer.
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
    """Return the seed of a fit and its samples, below 2**31. `Synthesizer` uses larger seeds for other purposes."""
    return int(np.random.SeedSequence(key).generate_state(1)[0]) >> 1


def settings_for(settings: Settings, refit: Refit, *, first: bool, measured: bool) -> Settings:
    """Return the settings of a refresh's fit.

    A `scratch` fit uses `settings` unchanged. A `warm` fit stops early when the held-out loss no longer falls. If it is
    not the `first` fit, it also has fewer steps, over which its learning rate falls to 0. If no held-out loss is
    `measured`, because there are too few rows, a fit never stops early.
    """
    changes: dict[str, Any] = {}
    if not measured:
        changes["patience"] = None
    elif refit == "warm" and settings.fit.patience is None:
        changes["patience"] = PATIENCE
    if refit == "warm" and not first:
        changes["steps"] = max(1, min(round(WARM_SHARE * settings.fit.steps), WARM_STEPS))
    return settings.changed(fit=changes)


class Real(NamedTuple):
    """The real rows of a member that a generator is fitted on."""

    rows: Transitions
    columns: Columns
    gone: int
    """Number of earlier rows that are no longer in the buffer."""
    relevance: NDArray[np.float64] | None = None
    """(N,): relevance of each row, if the agent computes it."""


class _Known(TypedDict):
    added: int
    seed: int


class _Refreshes(TypedDict):
    refreshes: list[_Known]


class _Looks(TypedDict):
    looks: list[_Known]


class Generators:
    """The generators of all seeds of an online run.

    Each generator is a file in `folder`. `refreshes.json` in the same folder has the record of every refresh.

    A refresh is settled when each of its fits has a file or is recorded as failed. A resumed run repeats all fits of a
    refresh that is not settled, because they run together and their rounding errors depend on which ones do.
    """

    def __init__(
        self,
        folder: Path,
        seeds: Sequence[int],
        settings: Settings,
        refit: Refit,
        samples: int,
        *,
        relevant: Relevant | None,
        device: str,
    ) -> None:
        self.folder, self.seeds, self.settings, self.refit = folder, seeds, settings, refit
        self.samples, self.relevant, self._device = samples, relevant, device
        self._record = folder / "refreshes.json"
        known = read_object(self._record, _Refreshes)["refreshes"] if self._record.exists() else []
        self._known: dict[tuple[int, int], dict[str, Any]] = {(entry["added"], entry["seed"]): entry for entry in known}

    def fit(self, step: int, real: Mapping[int, Real], progress: Progress) -> None:
        """Fit the generators of the members in `real` after `step`. Does nothing if this refresh is settled."""
        if all(self.is_settled(member, step) for member in real):
            return
        jobs = [self._job(member, step, own) for member, own in real.items()]
        began = time.monotonic()
        made = fit_all(jobs, progress)
        seconds = (time.monotonic() - began) / len(made)  # per generator, so that the sum is the total time
        for member, job, model in zip(real, jobs, made, strict=True):
            seed = self.seeds[member]
            number = sum(known_step < step and known_seed == seed for known_step, known_seed in self._known)
            begun = Refresh(number, step, len(job.rows), job.samples)
            self._known[step, seed] = {"seed": seed, **asdict(recorded(begun, model, fit_seconds=seconds))}
            self._write_record()
            if isinstance(model, SyntherError):
                parts = seed, f"{step:,}", model
                log.warning("the refresh of seed %d after %s steps failed, so it has no new synthetic rows: %s", *parts)
            else:
                model.save(self._file(member, step))  # this settles the fit

    def last(self, member: int, step: int) -> int:
        """Return the step of a member's last refresh before `step`, including failed ones, or 0 if there is none."""
        tried = [known_step for known_step, seed in self._known if seed == self.seeds[member]]
        return max((earlier for earlier in (*tried, *self._steps(member)) if earlier < step), default=0)

    def newest(self, member: int, step: int) -> int | None:
        """Return the step of a member's newest generator that was fitted at `step` or earlier, or None."""
        return max((fitted for fitted in self._steps(member) if fitted <= step), default=None)

    def load(self, member: int, step: int) -> Synthesizer:
        """Load the generator that was fitted for a member after `step`."""
        return Synthesizer.load(self._file(member, step), device=self._device)

    def seed(self, stream: int, member: int, step: int) -> int:
        """Return the seed of a member's random numbers after `step`, for the purpose `stream`."""
        return seed_of(stream, self.seeds[member], step)

    def took(self, member: int, step: int, seconds: float) -> None:
        """Record the seconds that it took to sample the rows."""
        if (step, self.seeds[member]) in self._known:  # False if the record was removed
            self._known[step, self.seeds[member]]["sample_seconds"] = seconds
            self._write_record()

    def looked(self, member: int, look: Look) -> None:
        """Record a check of a member's generator in `looks.json`: the measured numbers and the decision."""
        seed, file = self.seeds[member], self.folder / "looks.json"
        known = read_object(file, _Looks)["looks"] if file.exists() else []
        before = [entry for entry in known if (entry["added"], entry["seed"]) != (look.added, seed)]
        write_object(file, {"looks": [*before, {"seed": seed, **asdict(look)}]})
        log.info("checked the generator of seed %d after %s steps: %s", seed, f"{look.added:,}", look)

    def tidy(self) -> None:
        """Remove the files of all but the newest generator of each seed."""
        for member in range(len(self.seeds)):
            for step in sorted(self._steps(member))[:-1]:
                self._file(member, step).unlink()

    def _job(self, member: int, step: int, real: Real) -> Job:
        before = self.newest(member, step - 1)
        return Job.of(
            real.columns,
            real.rows,
            self.settings,
            self.refit,
            stream=(self.seeds[member], HELD_OUT),
            gone=real.gone,
            before=None if before is None else self.load(member, before),
            samples=self.samples,
            seed=self.seed(FITS, member, step),
            device=self._device,
            relevant=self.relevant,
            condition=real.relevance,
        )

    def is_settled(self, member: int, step: int) -> bool:
        """Return whether a member's refresh after `step` is finished: its generator has a file, or its fit failed."""
        failed = not self._known.get((step, self.seeds[member]), {"kept": True})["kept"]
        return failed or self._file(member, step).exists()

    def _write_record(self) -> None:
        write_object(self._record, {"refreshes": list(self._known.values())})

    def _steps(self, member: int) -> list[int]:
        """Return the steps after which the member's generators in the folder were fitted."""
        files = self.folder.glob(f"generator-{self.seeds[member]}-*.safetensors")
        return [int(file.stem.rpartition("-")[2]) for file in files]

    def _file(self, member: int, step: int) -> Path:
        return self.folder / f"generator-{self.seeds[member]}-{step:010}.safetensors"

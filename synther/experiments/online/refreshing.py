"""Generators of all seeds, fitted again on what has come in, and the synthetic rows that agents learn from.

A fitted model is a file of its own as soon as it is there. So a run that was stopped while it fitted goes on with the
next seed, and one that was stopped later draws the same rows from the same models again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.agents.learner import Learner
from synther.diffusion.fit import Diverged
from synther.errors import DataError, SyntherError
from synther.experiments.folder import read_object, write_object
from synther.experiments.online.experience import Array, Experience
from synther.experiments.online.plan import Upsampling, for_environment
from synther.progress import Progress
from synther.replay.refit import Generation, Job, Refresh, settings_for
from synther.synthesizer import Synthesizer

log = logging.getLogger(__name__)

Fit = Callable[[Sequence[Job], Progress], Iterable[Generation | SyntherError]]
"""How the jobs of several seeds become generators, in their order: a seed whose fit fails gives its error."""

_FITS, _HELD_OUT = 4, 5  # streams of random numbers, beside those of agents and worlds


def one_by_one(jobs: Sequence[Job], progress: Progress) -> Iterator[Generation | SyntherError]:
    """The jobs in turn, each handed over before the next begins."""
    for job in jobs:
        try:
            yield job.run(progress)
        except (Diverged, DataError) as error:
            yield error


class Refreshing:
    """The generators of a run, in `folder`, and the record of every refresh in `refreshes.json`."""

    def __init__(
        self,
        upsampling: Upsampling,
        env_id: str,
        experience: Experience,
        learner: Learner,
        folder: Path,
        *,
        fit: Fit = one_by_one,
    ) -> None:
        self.upsampling, self.experience, self.learner, self.folder = upsampling, experience, learner, folder
        self.settings = for_environment(upsampling.settings, env_id)
        self._fit, self._where = fit, str(learner.device)
        self._models: dict[int, tuple[int, Synthesizer]] = {}  # of a member: the step it was fitted at, and itself
        self._record = folder / "refreshes.json"
        known = read_object(self._record)["refreshes"] if self._record.exists() else []
        self._known: dict[tuple[int, int], dict[str, Any]] = {(entry["added"], entry["seed"]): entry for entry in known}

    def refresh(self, step: int, progress: Progress) -> None:
        """Fit all generators on the rows until `step` and replace the synthetic ones, or take up doing so."""
        waiting = []
        for member in range(len(self.learner.seeds)):
            if self._file(member, step).exists():
                self._take_up(member, step, progress)
            else:
                waiting.append(member)
        real = self.experience.rows(self.learner.rows.capacity)
        jobs = [self._job(member, step, real[member]) for member in waiting]
        for member, job, made in zip(waiting, jobs, self._fit(jobs, progress), strict=True):
            begun = Refresh(step // self.upsampling.refresh_every - 1, step, len(job.real), job.samples)
            if isinstance(made, SyntherError):
                self._failed(member, begun, made, progress)
            else:
                self._remember(member, made.recorded(begun))
                made.model.save(self._file(member, step))  # from here on nobody fits it again
                self._models[member] = step, made.model
                self.learner.generate(member, made.rows)
        self._tidy()

    def restore(self, step: int, progress: Progress, *, rows: bool) -> None:
        """Find the models that members had after `step`, for a run that is taken up there, and draw their `rows`."""
        for member in range(len(self.learner.seeds)):
            steps = [int(file.stem.rpartition("-")[2]) for file in self.folder.glob(f"{self._name(member)}-*")]
            newest = max((found for found in steps if found <= step), default=None)
            if newest is not None and rows:
                self._take_up(member, newest, progress)
            elif newest is not None:
                self._models[member] = newest, self._load(member, newest)

    def _job(self, member: int, step: int, real: Array) -> Job:
        how, seed = self.upsampling, self.learner.seeds[member]
        held_out = self._held_out(seed, step, len(real))
        start = self._models[member][1] if how.refit == "warm" and member in self._models else None
        settings = settings_for(self.settings, how.refit, first=start is None, measured=bool(held_out.any()))
        return Job(
            self.experience.columns,
            real,
            held_out,
            settings,
            samples=how.samples,
            seed=_seed_of(seed, step),
            device=self._where,
            start=start,
        )

    def _held_out(self, seed: int, step: int, rows: int) -> NDArray[np.bool_]:
        """Which rows no fit may learn from: once and for all, so that a warm start has not seen them either."""
        draws = np.random.PCG64([seed, _HELD_OUT])
        draws.advance(step - rows)
        chosen: NDArray[np.bool_] = np.random.Generator(draws).random(rows) < self.settings.fit.holdout
        return chosen & (not chosen.all())

    def _take_up(self, member: int, step: int, progress: Progress) -> None:
        """Draw once more the rows of a model that was fitted at `step`."""
        kept = self._models.get(member)
        model = kept[1] if kept is not None and kept[0] == step else self._load(member, step)
        self._models[member] = step, model
        seed = _seed_of(self.learner.seeds[member], step)
        rows = model.sample(self.upsampling.samples, seed=seed, progress=progress)
        self.learner.generate(member, self.experience.columns.pack(rows))

    def _failed(self, member: int, begun: Refresh, error: SyntherError, progress: Progress) -> None:
        """Keep the old generator, and its rows: a run that was taken up here has to draw them first."""
        kept = self._models.get(member)
        if kept is not None and not self.learner.rows.generated[member]:
            self._take_up(member, kept[0], progress)
        stays = "batches stay real" if kept is None else f"the rows of step {kept[0]:,} stay"
        seed = self.learner.seeds[member]
        log.warning("the refresh of seed %d after %s steps failed, %s: %s", seed, f"{begun.added:,}", stays, error)
        self._remember(member, replace(begun, reason=str(error)))

    def _remember(self, member: int, refresh: Refresh) -> None:
        seed = self.learner.seeds[member]
        self._known[refresh.added, seed] = {"seed": seed, **asdict(refresh)}
        write_object(self._record, {"refreshes": list(self._known.values())})

    def _tidy(self) -> None:
        """Remove the models that have been followed by others."""
        for member, (step, _) in self._models.items():
            for file in self.folder.glob(f"{self._name(member)}-*"):
                if int(file.stem.rpartition("-")[2]) < step:
                    file.unlink()

    def _load(self, member: int, step: int) -> Synthesizer:
        return Synthesizer.load(self._file(member, step), device=self._where)

    def _name(self, member: int) -> str:
        return f"generator-{self.learner.seeds[member]}"

    def _file(self, member: int, step: int) -> Path:
        return self.folder / f"{self._name(member)}-{step:010}.safetensors"


def _seed_of(seed: int, step: int) -> int:
    """Of a fit and its samples: below 2**31, where a `Synthesizer` keeps streams of its own."""
    return int(np.random.SeedSequence([_FITS, seed, step]).generate_state(1)[0]) >> 1

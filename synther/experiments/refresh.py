"""Generators that are fitted again as experience comes in, and the synthetic rows or latents agents learn from."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

from synther.agents.learner import Learner
from synther.errors import ConfigError, SyntherError
from synther.experiments.experience import Experience
from synther.folder import read_object, write_object
from synther.plain import check_least
from synther.presets import Settings
from synther.progress import Progress
from synther.replay.refit import Job, Refit, Refresh, drawn, fit_all, recorded, seed_of
from synther.synthesizer import Synthesizer

log = logging.getLogger(__name__)

FITS, HELD_OUT, HEADS = 4, 5, 6
"""Streams of random numbers, beside those of agents and worlds."""


@dataclass(frozen=True)
class Upsampling:
    """A generator of each seed's own rows, fitted anew as they come in."""

    settings: Settings
    refresh_every: int = 10_000
    """Steps after which it is fitted again and all synthetic rows are replaced."""
    samples: int = 1_000_000
    """Synthetic rows of each seed."""
    ratio: float = 0.5
    """Their share in every batch, once there are some."""
    refit: Refit = "warm"
    """From the weights of the fit before, stopped early, or from scratch as in the paper."""

    def __post_init__(self) -> None:
        check_least(self, refresh_every=1, samples=1)
        if not 0 < self.ratio <= 1:
            raise ConfigError(f"ratio, the synthetic share of a batch, must lie in (0, 1], got {self.ratio}")
        if self.refit not in get_args(Refit):
            raise ConfigError(f"refit must be one of {', '.join(get_args(Refit))}, got {self.refit!r}")
        if self.settings.fit.minutes is not None:
            raise ConfigError("fit.minutes ends a fit by the clock, and no run comes out like another: set fit.steps")


def for_environment(settings: Settings, env_id: str) -> Settings:
    """What the paper changes for the dm_control suite, whose rewards lie in [0, 1]: they are not scaled.

    Its episodes never end in a terminal state; a column that never changes is not modelled anyway. Rewards that are
    generated as residuals are scaled as everywhere: their size does not tell in which range rewards lie.
    """
    if not env_id.startswith("dm_control/") or settings.data.residuals != "none":
        return settings
    scaling = settings.data.scaling
    named = {"default": scaling} if isinstance(scaling, str) else dict(scaling)
    return replace(settings, data=replace(settings.data, scaling={"reward": "none", **named}))


def refresh_all(
    how: Upsampling, step: int, jobs: Sequence[Job], progress: Progress
) -> list[tuple[Refresh, Synthesizer | None]]:
    """Of each job the record of the refresh after so many steps, and its generator, unless the fit has failed."""
    began = time.monotonic()
    made = fit_all(jobs, progress)
    seconds = (time.monotonic() - began) / len(made)  # each has its share, so that they add up
    begun = [Refresh(step // how.refresh_every - 1, step, len(job.rows), job.samples) for job in jobs]
    found = [recorded(one, model, fit_seconds=seconds) for one, model in zip(begun, made, strict=True)]
    models = [None if isinstance(model, SyntherError) else model for model in made]
    return list(zip(found, models, strict=True))


class Refreshing:
    """The generators of a run, in `folder`, and the record of every refresh in `refreshes.json`."""

    def __init__(
        self, upsampling: Upsampling, env_id: str, experience: Experience, learner: Learner, folder: Path
    ) -> None:
        self.upsampling, self.experience, self.learner, self.folder = upsampling, experience, learner, folder
        self.settings = for_environment(upsampling.settings, env_id)
        self._where, self._members = str(learner.device), range(len(learner.seeds))
        self._models: dict[int, tuple[int, Synthesizer]] = {}  # of a member: the step it was fitted at, and itself
        self._drawn: dict[int, int] = {}  # of a member: the step of the model that its rows are from
        self._record = folder / "refreshes.json"
        known = read_object(self._record)["refreshes"] if self._record.exists() else []
        self._known: dict[tuple[int, int], dict[str, Any]] = {(entry["added"], entry["seed"]): entry for entry in known}

    def refresh(self, step: int, progress: Progress) -> None:
        """Fit all generators on the rows until `step` and replace the synthetic ones, or take up doing so."""
        if all(self._is_settled(member, step) for member in self._members):
            for member in self._members:
                if self._file(member, step).exists():
                    self._models[member] = step, self._load(member, step)
        else:
            self._fit(step, progress)
        for member in self._members:
            self._draw(member, progress)
        self._tidy()

    def restore(self, step: int, progress: Progress, *, rows: bool) -> None:
        """Find the models that members had before `step`, for a run that is taken up there, and draw their `rows`."""
        for member in self._members:
            steps = [int(file.stem.rpartition("-")[2]) for file in self.folder.glob(f"{self._name(member)}-*")]
            newest = max((found for found in steps if found < step), default=None)
            if newest is not None:
                self._models[member] = newest, self._load(member, newest)
            if rows:
                self._draw(member, progress)

    def _is_settled(self, member: int, step: int) -> bool:
        """Whether the fit after `step` has come to a model, or is known to have failed."""
        failed = not self._known.get((step, self.learner.seeds[member]), {"kept": True})["kept"]
        return failed or self._file(member, step).exists()

    def _fit(self, step: int, progress: Progress) -> None:
        jobs = []
        for member, matrix in enumerate(self.experience.rows(self.learner.rows.capacity)):
            before = self._models[member][1] if member in self._models else None
            columns, seed, how = self.experience.columns, self.learner.seeds[member], self.upsampling
            job = Job.of(
                columns,
                columns.transitions(matrix),
                self.settings,
                how.refit,
                stream=(seed, HELD_OUT),
                gone=step - len(matrix),
                before=before,
                samples=how.samples,
                seed=seed_of(FITS, seed, step),
                device=self._where,
            )
            jobs.append(job)
        found = refresh_all(self.upsampling, step, jobs, progress)
        for member, (refresh, model) in enumerate(found):
            seed = self.learner.seeds[member]
            self._known[step, seed] = {"seed": seed, **asdict(refresh)}
            self._write_record()
            if model is None:
                self._tell(member, refresh)
            else:
                model.save(self._file(member, step))  # from here on it counts
                self._models[member] = step, model

    def _tell(self, member: int, failed: Refresh) -> None:
        """The old generator, and its rows, are kept."""
        kept, told = self._models.get(member), (self.learner.seeds[member], f"{failed.added:,}")
        stays = "batches stay real" if kept is None else f"the rows of step {kept[0]:,} stay"
        log.warning("the refresh of seed %d after %s steps failed, %s: %s", *told, stays, failed.reason)

    def _draw(self, member: int, progress: Progress) -> None:
        """Give the learner the rows of a member's newest model, unless it has them."""
        if member not in self._models or self._drawn.get(member) == self._models[member][0]:
            return
        step, model = self._models[member]
        seed, samples, began = self.learner.seeds[member], self.upsampling.samples, time.monotonic()
        rows = drawn(model, self.experience.columns, samples, seed_of(FITS, seed, step), progress)
        self.learner.generate(member, rows)
        self._drawn[member] = step
        if (step, seed) in self._known:  # unless somebody has removed the record
            self._known[step, seed]["sample_seconds"] = time.monotonic() - began
            self._write_record()

    def _write_record(self) -> None:
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

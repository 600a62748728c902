"""Generators of all seeds, fitted again on what has come in, and the synthetic rows that agents learn from.

All seeds are fitted together, and a model is a file of its own as soon as they are. A run that was stopped before all
files are there fits all of them again, since rounding depends on who is fitted with whom; one that was stopped later
draws the same rows from the same models again.
"""

from __future__ import annotations

import logging
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from synther.agents.learner import Learner
from synther.experiments.online.experience import Experience
from synther.experiments.online.plan import Upsampling, for_environment
from synther.experiments.online.refitting import FITS, Own, refit, seed_of
from synther.folder import read_object, write_object
from synther.progress import Progress
from synther.replay.refit import Refresh
from synther.synthesizer import Synthesizer

log = logging.getLogger(__name__)


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
        every = []
        for member, matrix in enumerate(self.experience.rows(self.learner.rows.capacity)):
            before = self._models[member][1] if member in self._models else None
            rows = self.experience.columns.transitions(matrix)
            every.append(Own(self.learner.seeds[member], rows, step - len(rows), before))
        found = refit(self.upsampling, self.settings, step, every, self._where, progress)
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
        blocks = model.sample_blocks(samples, seed=seed_of(FITS, seed, step), progress=progress)
        self.learner.generate(member, self.experience.columns.pack_parts(blocks, samples))
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

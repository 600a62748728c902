"""Generators of the latents of all seeds, fitted again as their agents learn to see, and heads that learn from them.

All of a refresh follows from the agents and frames that it begins with. Its generators are kept in a folder that
appears when all are fitted, so that a run which is stopped after that only has to draw and to train heads again.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from synther import compute
from synther.agents.agent import Agent
from synther.agents.rows import Arm, Member, Rows
from synther.data.transitions import Transitions
from synther.durable import replacing
from synther.errors import SyntherError
from synther.experiments.folder import read_object, write_object
from synther.experiments.online_pixels.plan import LatentUpsampling
from synther.pixels.learner import PixelLearner
from synther.pixels.own_latents import encode_own
from synther.progress import Progress
from synther.replay.refit import Refresh, settings_for
from synther.synthesizer import Synthesizer
from synther.synthesizer.together import fit_models

log = logging.getLogger(__name__)

_FITS, _HELD_OUT, _HEADS = 4, 5, 6  # streams of random numbers, beside those of agents and worlds
_SHOWN_UPDATES = 100
"""Updates between two movements of the display."""


class Refreshing:
    """The generators of a run, in `folder`, and the record of every refresh in `refreshes.json`."""

    def __init__(
        self, upsampling: LatentUpsampling, learner: PixelLearner, folder: Path, precision: compute.Precision
    ) -> None:
        self.upsampling, self.learner, self.folder = upsampling, learner, folder
        # Products of heads alone are too small to gain from bf16.
        self.precision: Literal["auto", "float32", "tf32"] = "auto" if precision == "bf16" else precision
        self._where = str(learner.device)
        self._record = folder / "refreshes.json"

    def refresh(self, step: int, progress: Progress) -> None:
        """Encode, fit, draw, train the heads, and give them back."""
        found = encode_own(self.learner, number=step, progress=progress)
        latents = {member: rows for member, rows in enumerate(found) if rows is not None}
        if not latents:
            return  # all have diverged, as the next measurement will tell
        models = self._models(step, latents, progress)
        synthetic = {
            member: model.sample(self.upsampling.samples, seed=self._seed(_FITS, member, step), progress=progress)
            for member, model in models.items()
        }
        self._train(step, latents, synthetic, progress)

    def _models(self, step: int, latents: dict[int, Transitions], progress: Progress) -> dict[int, Synthesizer]:
        """Of all members but those whose fit has failed."""
        kept = self._folder(step)
        if not kept.exists():
            made, records = self._fit(step, latents, progress)
            self._remember(step, records)
            with replacing(kept) as beside:
                beside.mkdir()
                for member, model in made.items():
                    model.save(beside / self._file(member))
        self._tidy(step)
        return self._load(kept)

    def _fit(
        self, step: int, latents: dict[int, Transitions], progress: Progress
    ) -> tuple[dict[int, Synthesizer], list[dict[str, Any]]]:
        how, before = self.upsampling, self._before(step)
        models, starts, marks = [], [], []
        for member, rows in latents.items():
            start = before.get(member) if how.refit == "warm" else None
            held_out = self._held_out(member, len(rows))
            settings = settings_for(how.settings, how.refit, first=start is None, measured=bool(held_out.any()))
            models.append(Synthesizer(settings, device=self._where, seed=self._seed(_FITS, member, step)))
            starts.append(start)
            marks.append(held_out)
        began = time.monotonic()
        outcomes = fit_models(models, list(latents.values()), starts=starts, held_out=marks, progress=progress)
        seconds = (time.monotonic() - began) / len(outcomes)  # each has its share, so that they add up
        made, records = {}, []
        for (member, rows), outcome in zip(latents.items(), outcomes, strict=True):
            begun = Refresh(step // how.refresh_every - 1, step, len(rows), how.samples, fit_seconds=seconds)
            if isinstance(outcome, SyntherError):
                record = self._failed(member, begun, outcome)
            else:
                made[member] = outcome
                held = outcome.measured.get("held_out")
                record = replace(begun, kept=True, steps=outcome.record.steps, held_out=held)
            records.append({"seed": self.learner.seeds[member], **asdict(record)})
        return made, records

    def _failed(self, member: int, begun: Refresh, error: SyntherError) -> Refresh:
        seed, after = self.learner.seeds[member], f"{begun.added:,}"
        log.warning("the generator of seed %d after %s steps failed, its heads stay real: %s", seed, after, error)
        return replace(begun, reason=str(error))

    def _train(
        self, step: int, latents: dict[int, Transitions], synthetic: dict[int, Transitions], progress: Progress
    ) -> None:
        """The heads of all members that see, on real latents and synthetic ones, with the noise of now."""
        tables: list[Transitions] = []
        members: list[Member] = []
        for member, rows in latents.items():
            place, share = len(tables), self.upsampling.ratio
            arm = Arm((place,), (1.0,), place)
            tables.append(rows)
            if member in synthetic:
                tables.append(synthetic[member])
                arm = Arm((place, place + 1), (1 - share, share), place)
            members.append(Member(self._seed(_HEADS, member, step), arm))
        spread = self.learner.spread()
        config = replace(self.learner.config, first_deviation=spread, last_deviation=spread)
        agent = Agent(config, Rows(tables, device=self.learner.device), members, precision=self.precision)
        own = list(latents)
        agent.load_state(agent.state() | self.learner.heads(own), 0)
        updates = self.upsampling.updates
        with progress.phase("train heads", updates) as phase:
            for done in range(0, updates, _SHOWN_UPDATES):
                count = min(_SHOWN_UPDATES, updates - done)
                agent.train(count)
                phase.advance(count)
        self.learner.take_heads(agent.state(), own)

    def _held_out(self, member: int, rows: int) -> NDArray[np.bool_]:
        """Which rows no fit may learn from: those of the same decisions each time, so that a warm start has not seen
        them either."""
        draws = np.random.PCG64([self.learner.seeds[member], _HELD_OUT])
        draws.advance(int(self.learner.store.gone[member]))
        chosen: NDArray[np.bool_] = np.random.Generator(draws).random(rows) < self.upsampling.settings.fit.holdout
        return chosen & (not chosen.all())

    def _remember(self, step: int, records: Sequence[dict[str, Any]]) -> None:
        known = read_object(self._record)["refreshes"] if self._record.exists() else []
        earlier = [entry for entry in known if entry["added"] < step]
        write_object(self._record, {"refreshes": [*earlier, *records]})

    def _before(self, step: int) -> dict[int, Synthesizer]:
        """The generators of the refresh before."""
        steps = [found for found in self._kept() if found < step]
        return self._load(self._folder(max(steps))) if steps else {}

    def _load(self, folder: Path) -> dict[int, Synthesizer]:
        files = {member: folder / self._file(member) for member in range(len(self.learner.seeds))}
        return {m: Synthesizer.load(file, device=self._where) for m, file in files.items() if file.exists()}

    def _tidy(self, step: int) -> None:
        """Remove the generators that have been followed by others."""
        for found in self._kept():
            if found < step:
                shutil.rmtree(self._folder(found))

    def _kept(self) -> list[int]:
        return [int(found.name.rpartition("-")[2]) for found in self.folder.glob("generators-*")]

    def _folder(self, step: int) -> Path:
        return self.folder / f"generators-{step:010}"

    def _file(self, member: int) -> str:
        return f"seed-{self.learner.seeds[member]}.safetensors"

    def _seed(self, stream: int, member: int, step: int) -> int:
        """Below 2**31, where a `Synthesizer` keeps streams of its own."""
        key = np.random.SeedSequence([stream, self.learner.seeds[member], step])
        return int(key.generate_state(1)[0]) >> 1

"""Generators of the latents of all seeds, fitted again as their agents learn to see, and heads that learn from them.

All of a refresh follows from the agents and frames that it begins with. Its generators are kept in a folder that
appears when all are fitted, so that a run which is stopped after that only has to draw and to train heads again.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from synther import compute
from synther.agents.agent import Agent
from synther.agents.rows import Arm, Member, Rows
from synther.data.transitions import Transitions
from synther.durable import replacing
from synther.errors import ConfigError
from synther.experiments.refresh import FITS, HEADS, HELD_OUT, Upsampling, refresh_all
from synther.folder import read_object, write_object
from synther.pixels.latents import encode_own
from synther.pixels.learner import PixelLearner
from synther.progress import Progress
from synther.replay.columns import Columns
from synther.replay.refit import Job, seed_of
from synther.synthesizer import Synthesizer

log = logging.getLogger(__name__)

_SHOWN_UPDATES = 100
"""Updates between two movements of the display."""


@dataclass(frozen=True)
class LatentUpsampling(Upsampling):
    """A generator of each seed's own latents, fitted anew as its frames come in and as it learns to see them.

    After every refresh the heads alone learn from real and synthetic latents, and are given back. Then all latents are
    dropped, so that none is older than the eyes that it is learned with.
    """

    samples: int = 250_000
    updates: int = 5_000
    """Of the heads, after every refresh."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.updates < 1:
            raise ConfigError(f"updates, of the heads after a refresh, must be at least 1, got {self.updates}")


class LatentRefreshing:
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
            member: model.sample(self.upsampling.samples, seed=self._seed(FITS, member, step), progress=progress)
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
        how, before, seeds, gone = self.upsampling, self._before(step), self.learner.seeds, self.learner.store.gone
        jobs = [
            Job.of(
                Columns.of(rows),
                rows,
                how.settings,
                how.refit,
                stream=(seeds[one], HELD_OUT),
                gone=int(gone[one]),
                before=before.get(one),
                samples=how.samples,
                seed=self._seed(FITS, one, step),
                device=self._where,
            )
            for one, rows in latents.items()
        ]
        made, records = {}, []
        found = refresh_all(how, step, jobs, progress)
        for member, (refresh, model) in zip(latents, found, strict=True):
            if model is None:
                told = seeds[member], f"{step:,}", refresh.reason
                log.warning("the generator of seed %d after %s steps failed, its heads stay real: %s", *told)
            else:
                made[member] = model
            records.append({"seed": seeds[member], **asdict(refresh)})
        return made, records

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
            members.append(Member(self._seed(HEADS, member, step), arm))
        stddev = self.learner.stddev()
        config = replace(self.learner.config, stddev_start=stddev, stddev_end=stddev)
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
        return seed_of(stream, self.learner.seeds[member], step)

"""Generators that are fitted again as experience comes in, and the synthetic rows or latents agents learn from."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from synther import compute
from synther.agents.agent import Agent
from synther.agents.learner import Learner
from synther.agents.rows import Arm, Member, Rows
from synther.conditions import TD_ERROR
from synther.data.transitions import Transitions
from synther.errors import ConfigError, SyntherError
from synther.experiments.experience import Experience
from synther.experiments.specs import Synthetic, SyntheticLatents
from synther.folder import read_object, write_object
from synther.pixels.latents import encode_own
from synther.pixels.learner import PixelLearner
from synther.presets import Settings
from synther.progress import Progress
from synther.replay import adapting
from synther.replay.columns import Columns
from synther.replay.refit import Job, Refresh, drawn, fit_all, recorded, seed_of
from synther.synthesizer import Synthesizer

log = logging.getLogger(__name__)

FITS, HELD_OUT, HEADS = 4, 5, 6
"""Random streams, beside those of agents and environments."""

_SHOWN_UPDATES = 100
"""Updates of heads between two movements of the display."""


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


class Real(NamedTuple):
    """The real rows of a member that a generator is fitted on."""

    rows: Transitions
    columns: Columns
    gone: int
    """Earlier rows that are no longer in the buffer."""
    relevance: NDArray[np.float64] | None = None
    """Of each row, where the agent tells it."""


class _Known(TypedDict):
    added: int
    seed: int


class _Refreshes(TypedDict):
    refreshes: list[_Known]


class _Looks(TypedDict):
    looks: list[_Known]


class Generators:
    """The generators of a run: a file in `folder` for each seed, and the record of every refresh in `refreshes.json`.

    A refresh is settled when each of its fits has a file or is recorded as failed. Until then, a resumed run repeats
    all of them: they are fitted together, and rounding depends on which ones are.
    """

    def __init__(self, how: Synthetic, settings: Settings, learner: Learner | PixelLearner, folder: Path) -> None:
        self.how, self.settings, self.seeds, self.folder = how, settings, learner.seeds, folder
        self._device = str(learner.device)
        self._record = folder / "refreshes.json"
        known = read_object(self._record, _Refreshes)["refreshes"] if self._record.exists() else []
        self._known: dict[tuple[int, int], dict[str, Any]] = {(entry["added"], entry["seed"]): entry for entry in known}

    def fit(self, step: int, real: Mapping[int, Real], progress: Progress) -> None:
        """Fit the generators of some members after `step`, unless that is settled."""
        if all(self.is_settled(member, step) for member in real):
            return
        jobs = [self._job(member, step, own) for member, own in real.items()]
        began = time.monotonic()
        made = fit_all(jobs, progress)
        seconds = (time.monotonic() - began) / len(made)  # each has its share, so that they add up
        for member, job, model in zip(real, jobs, made, strict=True):
            seed = self.seeds[member]
            number = sum(known < step and whose == seed for known, whose in self._known)
            begun = Refresh(number, step, len(job.rows), job.samples)
            self._known[step, seed] = {"seed": seed, **asdict(recorded(begun, model, fit_seconds=seconds))}
            self._write_record()
            if isinstance(model, SyntherError):
                told = seed, f"{step:,}", model
                log.warning("the refresh of seed %d after %s steps failed, so it has no new synthetic rows: %s", *told)
            else:
                model.save(self._file(member, step))  # from here on it counts

    def last(self, member: int, step: int) -> int:
        """The step of a member's last refresh before `step`, failed or not; 0 if there is none."""
        tried = [known for known, seed in self._known if seed == self.seeds[member]]
        return max((found for found in (*tried, *self._steps(member)) if found < step), default=0)

    def newest(self, member: int, step: int) -> int | None:
        """The step of a member's newest generator that was fitted after `step` or earlier."""
        return max((found for found in self._steps(member) if found <= step), default=None)

    def load(self, member: int, step: int) -> Synthesizer:
        return Synthesizer.load(self._file(member, step), device=self._device)

    def seed(self, stream: int, member: int, step: int) -> int:
        return seed_of(stream, self.seeds[member], step)

    def took(self, member: int, step: int, seconds: float) -> None:
        """Record how long it took to draw the rows."""
        if (step, self.seeds[member]) in self._known:  # unless the record was removed
            self._known[step, self.seeds[member]]["sample_seconds"] = seconds
            self._write_record()

    def looked(self, member: int, look: adapting.Look) -> None:
        """Record what was decided, and why."""
        seed, file = self.seeds[member], self.folder / "looks.json"
        known = read_object(file, _Looks)["looks"] if file.exists() else []
        before = [entry for entry in known if (entry["added"], entry["seed"]) != (look.added, seed)]
        write_object(file, {"looks": [*before, {"seed": seed, **asdict(look)}]})
        log.info("look at the generator of seed %d after %s steps: %s", seed, f"{look.added:,}", look)

    def tidy(self) -> None:
        """Remove the generators that newer ones have replaced."""
        for member in range(len(self.seeds)):
            for step in sorted(self._steps(member))[:-1]:
                self._file(member, step).unlink()

    def _job(self, member: int, step: int, real: Real) -> Job:
        before = self.newest(member, step - 1)
        return Job.of(
            real.columns,
            real.rows,
            self.settings,
            self.how.refit,
            stream=(self.seeds[member], HELD_OUT),
            gone=real.gone,
            before=None if before is None else self.load(member, before),
            samples=self.how.samples,
            seed=self.seed(FITS, member, step),
            device=self._device,
            relevant=self.how.wanted(),
            condition=real.relevance,
        )

    def is_settled(self, member: int, step: int) -> bool:
        """Whether a refresh after `step` has come to its end, well or not."""
        failed = not self._known.get((step, self.seeds[member]), {"kept": True})["kept"]
        return failed or self._file(member, step).exists()

    def _write_record(self) -> None:
        write_object(self._record, {"refreshes": list(self._known.values())})

    def _steps(self, member: int) -> list[int]:
        files = self.folder.glob(f"generator-{self.seeds[member]}-*.safetensors")
        return [int(file.stem.rpartition("-")[2]) for file in files]

    def _file(self, member: int, step: int) -> Path:
        return self.folder / f"generator-{self.seeds[member]}-{step:010}.safetensors"


class Refreshing:
    """Synthetic rows of states, which the learner mixes into its batches until the next refresh."""

    part = "generators"
    """Name of the time it takes, in results."""

    def __init__(self, how: Synthetic, env_id: str, experience: Experience, learner: Learner, folder: Path) -> None:
        self.experience, self.learner = experience, learner
        self.generators = Generators(how, for_environment(how.settings(), env_id), learner, folder)
        self._drawn: dict[int, int] = {}  # of a member: the step of the generator that its rows are from

    def refresh(self, step: int, progress: Progress) -> None:
        """Fit all generators on the rows until `step` and replace the synthetic rows, or resume doing so."""
        columns, most = self.experience.columns, self.learner.rows.capacity
        everything = self.learner.joined(*self.experience.rows())
        rows, gone = [own[-most:] for own in everything], [max(0, len(own) - most) for own in everything]
        told: Sequence[Any] = [None] * len(rows)
        if self.generators.how.relevance == TD_ERROR:
            told = self.learner.td_errors(rows)
        real = [Real(columns.transitions(own), columns, *rest) for own, *rest in zip(rows, gone, told, strict=True)]
        due = {member: own for member, own in enumerate(real) if self._is_due(member, step, own)}
        self.generators.fit(step, due, progress)
        self.draw(step, progress)
        self.generators.tidy()

    def _is_due(self, member: int, step: int, real: Real) -> bool:
        """Whether a member's generator is fitted after `step`: see replay/adapting.py. Repeated, it is the same."""
        generators, how = self.generators, self.generators.how
        if how.refresh == "fixed" or generators.is_settled(member, step):
            return True
        last, newest = generators.last(member, step), generators.newest(member, step - 1)
        if newest is None:
            return step - last >= how.refresh_every
        rows, ends = self.experience.rows()
        looked = max(last, step - how.look_every)
        total, old, known = (len(self.learner.joined(rows[:, :s], ends[:, :s])[member]) for s in (step, last, looked))
        stored = adapting.Stored(real.rows, real.gone)
        held_out = stored.held_out((generators.seeds[member], HELD_OUT), generators.settings.fit.holdout)
        unseen, new = held_out & ~stored.newest(total - old), stored.newest(total - known)
        found = adapting.drift(generators.load(member, newest), real.rows[unseen], real.rows[new])
        is_due = found.is_there or step - last >= adapting.LONGEST * how.refresh_every
        generators.looked(member, adapting.Look(step, is_due, how.ratio, found.unseen, found.newest))
        return is_due

    def draw(self, step: int, progress: Progress) -> None:
        """Give the learner the rows of each member's newest generator, unless it has them.

        A member whose fit failed keeps the rows of its old generator, or real batches if it never had one.
        """
        for member in range(len(self.learner.seeds)):
            newest = self.generators.newest(member, step)
            if newest is not None and self._drawn.get(member) != newest:
                model, seed, began = self.generators.load(member, newest), self.generators.seed, time.monotonic()
                how = self.generators.how
                place = how.samples, seed(FITS, member, newest)
                rows = drawn(model, self.experience.columns, *place, progress, how.wanted())
                self.learner.generate(member, rows)
                self._drawn[member] = newest
                self.generators.took(member, newest, time.monotonic() - began)


class Copying:
    """Real rows in the place of synthetic ones: drawn again, with replacement, at every refresh."""

    part = "copies"

    def __init__(self, how: Synthetic, experience: Experience, learner: Learner) -> None:
        self.how, self.experience, self.learner = how, experience, learner
        self._drawn = 0

    def refresh(self, step: int, progress: Progress) -> None:
        self.draw(step, progress)

    def draw(self, step: int, progress: Progress) -> None:
        """Give the learner copies of the rows that it had at the newest refresh, unless it has them."""
        newest = step // self.how.refresh_every * self.how.refresh_every
        if newest == self._drawn:
            return
        rows, ends = self.experience.rows()
        for member, own in enumerate(self.learner.joined(rows[:, :newest], ends[:, :newest])):
            known = own[-self.learner.rows.capacity :]
            draw = np.random.default_rng([FITS, self.learner.seeds[member], newest])
            self.learner.generate(member, known[draw.integers(len(known), size=self.how.samples)])
        self._drawn = newest


class LatentRefreshing:
    """Synthetic latents, from which the heads of pixel agents learn at once. Latents are not kept.

    All of a refresh follows from the agents and frames that it begins with, so a run that was stopped in the middle
    repeats it, with the generators that are there already.
    """

    part = "latents"

    def __init__(
        self, how: SyntheticLatents, learner: PixelLearner, folder: Path, precision: compute.Precision
    ) -> None:
        if how.relevance == TD_ERROR:
            raise ConfigError(f"relevance {TD_ERROR} is for agents that see states: expected another one for latents")
        self.how, self.learner = how, learner
        self.generators = Generators(how, how.settings(), learner, folder)
        # Products of heads alone are too small to gain from bf16.
        self.precision: Literal["auto", "float32", "tf32"] = "auto" if precision == "bf16" else precision

    def refresh(self, step: int, progress: Progress) -> None:
        """Encode, fit, draw, train the heads, and give them back. Heads whose fit failed learn from real latents."""
        encoded, gone = encode_own(self.learner, number=step, progress=progress), self.learner.store.gone
        latents = {member: rows for member, rows in enumerate(encoded) if rows is not None}
        if not latents:
            return  # all have diverged, as the next measurement will show
        real = {member: Real(rows, Columns.of(rows), int(gone[member])) for member, rows in latents.items()}
        synthetic: dict[int, Transitions] = {}
        if not self.how.copies:  # otherwise heads learn from the real latents alone, and as long
            self.generators.fit(step, real, progress)
        for member in latents:
            if self.generators.newest(member, step) == step:
                model, seed = self.generators.load(member, step), self.generators.seed(FITS, member, step)
                wanted = self.how.wanted()
                asked = {} if wanted is None else wanted.asked()
                synthetic[member] = model.sample(self.how.samples, seed=seed, **asked, progress=progress)
        self.generators.tidy()
        self._train(step, latents, synthetic, progress)

    def draw(self, step: int, progress: Progress) -> None:
        """Nothing is left of a refresh but the heads, which are in the checkpoint."""

    def _train(
        self, step: int, latents: dict[int, Transitions], synthetic: dict[int, Transitions], progress: Progress
    ) -> None:
        """Train the heads of all members that see, with the exploration noise of now."""
        tables: list[Transitions] = []
        members: list[Member] = []
        for member, rows in latents.items():
            place, share = len(tables), self.how.ratio
            arm = Arm((place,), (1.0,), place)
            tables.append(rows)
            if member in synthetic:
                tables.append(synthetic[member])
                arm = Arm((place, place + 1), (1 - share, share), place)
            members.append(Member(self.generators.seed(HEADS, member, step), arm))
        stddev = self.learner.stddev()
        config = replace(self.learner.config, stddev_start=stddev, stddev_end=stddev)
        agent = Agent(config, Rows(tables, device=self.learner.device), members, precision=self.precision)
        own = list(latents)
        agent.load_state(agent.state() | self.learner.heads(own), 0)
        updates = self.how.updates
        with progress.phase("train heads", updates) as phase:
            for done in range(0, updates, _SHOWN_UPDATES):
                count = min(_SHOWN_UPDATES, updates - done)
                agent.train(count)
                phase.advance(count)
        self.learner.take_heads(agent.state(), own)

"""Generators that are fitted again as experience comes in, and the synthetic rows or latents agents learn from."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from synther import compute
from synther.agents.agent import Agent
from synther.agents.learner import Learner
from synther.agents.rows import Arm, Member, Rows
from synther.conditions import TD_ERROR
from synther.data.transitions import Transitions
from synther.errors import ConfigError
from synther.experiments.specs import Synthetic, SyntheticLatents
from synther.pixels.latents import encode_own
from synther.pixels.learner import PixelLearner
from synther.presets import Settings
from synther.progress import Progress
from synther.replay import adapting
from synther.replay.columns import Columns
from synther.replay.experience import Experience
from synther.replay.refit import FITS, HELD_OUT, Generators, Real, drawn

log = logging.getLogger(__name__)

HEADS = 6
"""Random stream, beside those of generators, agents and environments."""

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


def _generators(how: Synthetic, settings: Settings, learner: Learner | PixelLearner, folder: Path) -> Generators:
    more: dict[str, Any] = {"device": str(learner.device), "relevant": how.wanted()}
    return Generators(folder, learner.seeds, settings, how.refit, how.samples, **more)


class Refreshing:
    """Synthetic rows of states, which the learner mixes into its batches until the next refresh."""

    part = "generators"
    """Name of the time it takes, in results."""

    def __init__(self, how: Synthetic, env_id: str, experience: Experience, learner: Learner, folder: Path) -> None:
        self.how, self.experience, self.learner = how, experience, learner
        self.generators = _generators(how, for_environment(how.settings(), env_id), learner, folder)
        self._drawn: dict[int, int] = {}  # of a member: the step of the generator that its rows are from

    def refresh(self, step: int, progress: Progress) -> None:
        """Fit all generators on the rows until `step` and replace the synthetic rows, or resume doing so."""
        columns, most = self.experience.columns, self.learner.rows.capacity
        everything = self.learner.joined(*self.experience.rows())
        rows, gone = [own[-most:] for own in everything], [max(0, len(own) - most) for own in everything]
        told: Sequence[Any] = [None] * len(rows)
        if self.how.relevance == TD_ERROR:
            told = self.learner.td_errors(rows)
        real = [Real(columns.transitions(own), columns, *rest) for own, *rest in zip(rows, gone, told, strict=True)]
        due = {member: own for member, own in enumerate(real) if self._is_due(member, step, own)}
        self.generators.fit(step, due, progress)
        self.draw(step, progress)
        self.generators.tidy()

    def _is_due(self, member: int, step: int, real: Real) -> bool:
        """Whether a member's generator is fitted after `step`: see replay/adapting.py. Repeated, it is the same."""
        generators, how = self.generators, self.how
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
        found = stored.drift(generators.load(member, newest), held_out, total - old, total - known)
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
                place = self.how.samples, seed(FITS, member, newest)
                rows = drawn(model, self.experience.columns, *place, progress, self.how.wanted())
                self.learner.generate(member, rows)
                self._drawn[member] = newest
                self.generators.took(member, newest, time.monotonic() - began)


class Copying:
    """Real rows in the place of synthetic ones: drawn again, with replacement, at every refresh."""

    part = "copies"

    def __init__(self, how: Synthetic, experience: Experience, learner: Learner) -> None:
        self.how, self.experience, self.learner = how, experience, learner
        self._drawn = 0

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

    refresh = draw


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
        self.generators = _generators(how, how.settings(), learner, folder)
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

"""Refreshes: generators are fitted again on the experience so far, and their rows or latents replace earlier ones."""

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
from synther.replay.refit import FITS, HELD_OUT, Generators, Look, Real, drawn

log = logging.getLogger(__name__)

HEADS = 6
"""Number of the random stream of the heads. Generators, agents and environments have other numbers."""

_SHOWN_UPDATES = 100
"""Number of updates of heads between two updates of the progress display."""


def for_environment(settings: Settings, env_id: str) -> Settings:
    """Return the settings for an environment. As in the paper, rewards of the dm_control suite are not scaled.

    These rewards lie in [0, 1]. Residuals of rewards are scaled as everywhere else, because their size does not depend
    on this range. The suite has no terminals, which needs no setting: a constant column is not modelled.
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
    """Refreshes the synthetic rows of state agents. The learner mixes them into its batches until the next refresh."""

    part = "generators"
    """Name of its part of the time in results."""

    def __init__(self, how: Synthetic, env_id: str, experience: Experience, learner: Learner, folder: Path) -> None:
        self.how, self.experience, self.learner = how, experience, learner
        self.generators = _generators(how, for_environment(how.settings(), env_id), learner, folder)
        self._drawn: dict[int, int] = {}  # for each member, the step of the generator that sampled its present rows

    def refresh(self, step: int, progress: Progress) -> None:
        """Fit the generators that are due on the rows up to `step`, and replace the synthetic rows. Or resume this."""
        columns, most = self.experience.columns, self.learner.rows.capacity
        everything = self.learner.joined(*self.experience.rows())
        rows, gone = [own[-most:] for own in everything], [max(0, len(own) - most) for own in everything]
        errors: Sequence[Any] = self.learner.td_errors(rows) if self.how.relevance == TD_ERROR else [None] * len(rows)
        real = [Real(columns.transitions(own), columns, *rest) for own, *rest in zip(rows, gone, errors, strict=True)]
        due = {member: own for member, own in enumerate(real) if self._is_due(member, step, own)}
        self.generators.fit(step, due, progress)
        self.draw(step, progress)
        self.generators.tidy()

    def _is_due(self, member: int, step: int, real: Real) -> bool:
        """Return whether a member's generator is fitted after `step`, see replay/adapting.py. The result is the same if
        the call is repeated after the run was stopped."""
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
        generators.looked(member, Look(step, is_due, how.ratio, found.unseen, found.newest))
        return is_due

    def draw(self, step: int, progress: Progress) -> None:
        """Sample rows from each member's newest generator and give them to the learner, if it does not have them yet.
        If the fit of a member failed, it keeps the rows of its old generator. Without one, its batches stay real."""
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
    """Replaces synthetic rows by real rows, which are drawn again, with replacement, at every refresh."""

    part = "copies"

    def __init__(self, how: Synthetic, experience: Experience, learner: Learner) -> None:
        self.how, self.experience, self.learner = how, experience, learner
        self._drawn = 0

    def draw(self, step: int, progress: Progress) -> None:
        """Give the learner copies of the real rows of the newest refresh, if it does not have them yet."""
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
    """Refreshes the synthetic latents of pixel agents. The heads learn from them immediately. Latents are not kept.

    A refresh depends only on the agents and frames at its beginning. So a run that was stopped during a refresh repeats
    it, and uses the generators that are already fitted.
    """

    part = "latents"

    def __init__(
        self, how: SyntheticLatents, learner: PixelLearner, folder: Path, precision: compute.Precision
    ) -> None:
        if how.relevance == TD_ERROR:
            raise ConfigError(f"relevance {TD_ERROR} is only for state agents: choose another one for pixel agents")
        self.how, self.learner = how, learner
        self.generators = _generators(how, how.settings(), learner, folder)
        # The matrix products of heads are too small to be faster in bf16.
        self.precision: Literal["auto", "float32", "tf32"] = "auto" if precision == "bf16" else precision

    def refresh(self, step: int, progress: Progress) -> None:
        """Encode the frames, fit generators, sample latents, train the heads, and give the heads back to the learner.
        If a fit failed, the heads of this member learn only from real latents."""
        encoded, gone = encode_own(self.learner, number=step, progress=progress), self.learner.store.gone
        latents = {member: rows for member, rows in enumerate(encoded) if rows is not None}
        if not latents:
            return  # all members have diverged, as the next measurement will show
        real = {member: Real(rows, Columns.of(rows), int(gone[member])) for member, rows in latents.items()}
        synthetic: dict[int, Transitions] = {}
        if not self.how.copies:  # with copies, the heads make the same number of updates, only on real latents
            self.generators.fit(step, real, progress)
        for member in latents:
            if self.generators.newest(member, step) == step:
                model, seed = self.generators.load(member, step), self.generators.seed(FITS, member, step)
                wanted = self.how.wanted()
                options = {} if wanted is None else wanted.asked()
                synthetic[member] = model.sample(self.how.samples, seed=seed, **options, progress=progress)
        self.generators.tidy()
        self._train(step, latents, synthetic, progress)

    def draw(self, step: int, progress: Progress) -> None:
        """Do nothing: the result of the last refresh, the heads, is in the checkpoint."""

    def _train(
        self, step: int, latents: dict[int, Transitions], synthetic: dict[int, Transitions], progress: Progress
    ) -> None:
        """Train the heads of all members that have latents, with the present exploration noise."""
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

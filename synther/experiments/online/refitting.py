"""The generators of all seeds, fitted together on what has come in: of rows or of latents."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from synther.data.transitions import Transitions
from synther.errors import SyntherError
from synther.experiments.online.plan import Upsampling
from synther.presets import Settings
from synther.progress import Progress
from synther.replay.refit import Refresh, settings_for
from synther.synthesizer import Synthesizer
from synther.synthesizer.together import fit_models

FITS, HELD_OUT, HEADS = 4, 5, 6
"""Streams of random numbers, beside those of agents and worlds."""


@dataclass(frozen=True, eq=False)
class Own:
    """What the generator of one seed is fitted on."""

    seed: int
    rows: Transitions
    gone: int
    """Rows of the seed before them, which are not kept any more."""
    before: Synthesizer | None
    """Its generator of the refresh before."""

    def held_out(self, share: float) -> NDArray[np.bool_]:
        """Which rows no fit may learn from: once and for all, so that a warm start has not seen them either."""
        draws = np.random.PCG64([self.seed, HELD_OUT])
        draws.advance(self.gone)
        chosen: NDArray[np.bool_] = np.random.Generator(draws).random(len(self.rows)) < share
        return chosen & (not chosen.all())


def refit(
    how: Upsampling, settings: Settings, step: int, every: Sequence[Own], device: str, progress: Progress
) -> list[tuple[Refresh, Synthesizer | None]]:
    """Of each seed the record of the refresh after so many steps, and its generator, unless the fit has failed."""
    models, starts, marks = [], [], []
    for own in every:
        start, held_out = own.before if how.refit == "warm" else None, own.held_out(settings.fit.holdout)
        fit = settings_for(settings, how.refit, first=start is None, measured=bool(held_out.any()))
        models.append(Synthesizer(fit, device=device, seed=seed_of(FITS, own.seed, step)))
        starts.append(start)
        marks.append(held_out)
    began = time.monotonic()
    made = fit_models(models, [own.rows for own in every], starts=starts, held_out=marks, progress=progress)
    seconds = (time.monotonic() - began) / len(made)  # each has its share, so that they add up
    found: list[tuple[Refresh, Synthesizer | None]] = []
    for own, model in zip(every, made, strict=True):
        begun = Refresh(step // how.refresh_every - 1, step, len(own.rows), how.samples, fit_seconds=seconds)
        if isinstance(model, SyntherError):
            found.append((replace(begun, reason=str(model)), None))
        else:
            held = model.measured.get("held_out")
            found.append((replace(begun, kept=True, steps=model.record.steps, held_out=held), model))
    return found


def seed_of(stream: int, seed: int, step: int) -> int:
    """Below 2**31, where a `Synthesizer` keeps streams of its own."""
    return int(np.random.SeedSequence([stream, seed, step]).generate_state(1)[0]) >> 1

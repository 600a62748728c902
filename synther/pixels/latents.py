"""From frames to rows of latents: an ordinary data set, on which models are fitted and heads are trained.

A row is (trunks of the observation, action, reward, trunks of the observation that follows), as in the paper's appendix
on V-D4RL. NOTE[paper]: the paper does not say how far the next observation is; here a row spans as many decisions as
the agent learned from, three in DrQ+BC, and its reward is their discounted sum, so that heads learn as they did.
"""

from __future__ import annotations

import os
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from synther import compute
from synther.data.spaces import Box
from synther.data.transitions import Transitions
from synther.errors import ConfigError, DataError
from synther.pixels.augmentation import drawn_offsets
from synther.pixels.eyes import Eyes, Features, TrunkName, load_eyes
from synther.pixels.frames import Decisions, Frames
from synther.pixels.seeing import SeeingAgent, convolving
from synther.pixels.store import FrameStore, stacked
from synther.progress import Progress, resolve

_STREAM = 2
"""Sets the shifts of latents apart from the numbers of training (`agents/algorithm.py`)."""


@torch.no_grad()
def encode(
    source: SeeingAgent | str | os.PathLike[str],
    frames: Frames,
    *,
    features: Features | None = None,
    seed: int = 0,
    augment: bool = True,
    chunk: int = 256,
    device: str = "auto",
    precision: compute.Precision = "float32",
    progress: Progress | bool = False,
) -> list[Transitions]:
    """`frames` as each member's encoder and trunks see them, a data set for each.

    `source` is an agent or its file; `device` is for a file: an agent encodes where it is. `features` are those of the
    actor's trunk followed by the critic's, or of one of them; None is all that there are. Observations are randomly
    shifted, by numbers that follow from `seed` and the member's own, unless not to `augment` is asked for. So many
    observations of each member as `chunk` says are encoded together, as precisely as a policy sees them.
    """
    eyes = source.eyes() if isinstance(source, SeeingAgent) else load_eyes(source, compute.pick_device(device))
    names = _names(features, eyes)
    if chunk < 1:
        raise ConfigError(f"chunk must be at least 1, got {chunk}")
    if stacked(frames) != eyes.encoder.frame:
        raise DataError(f"this agent sees stacks of {eyes.encoder.frame}, the frames make stacks of {stacked(frames)}")
    with compute.working_on(eyes.device, "lower the chunk or encode fewer frames at once"):
        store = FrameStore(frames, eyes.nstep, eyes.discount, eyes.device)
        seen = np.empty((2, len(eyes.seeds), len(store), len(names) * eyes.trunk(names[0]).features), np.float32)
        shifts = None
        if augment:
            shifts = torch.stack([drawn_offsets(len(store), member, _STREAM, seed) for member in eyes.seeds])
        chosen = compute.pick_precision(precision, eyes.device)
        dtype = compute.working_dtype(chosen)
        with convolving(chosen, eyes.device), resolve(progress).phase("encode", len(store)) as phase:
            for start in range(0, len(store), chunk):
                some = slice(start, min(start + chunk, len(store)))
                own = None if shifts is None else shifts[:, some].to(eyes.device)
                for place, encoded in zip(seen, _encoded(eyes, names, store, some, own, dtype), strict=True):
                    place[:, some] = encoded.cpu().numpy()
                phase.advance(some.stop - some.start)
    decisions = frames.decisions(eyes.nstep, eyes.discount)
    return [_rows(here, there, frames, decisions) for here, there in zip(*seen, strict=True)]


def _names(features: Features | None, eyes: Eyes) -> list[TrunkName]:
    if features is None:
        return list(eyes.trunks)
    if features not in get_args(Features):
        raise ConfigError(f"features must be one of {', '.join(get_args(Features))}, got {features!r}")
    names: list[TrunkName] = ["actor", "critic"] if features == "both" else [features]
    for name in names:
        eyes.trunk(name)
    return names


def _encoded(
    eyes: Eyes, names: list[TrunkName], store: FrameStore, some: slice, shifts: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Features of the observations and of those that follow, (S, rows, features) each."""
    picked = torch.arange(some.start, some.stop, device=eyes.device).expand(len(eyes.seeds), -1)
    here, there = (None, None) if shifts is None else torch.split(shifts, 2, -1)
    seen = eyes.features(store.observations(picked, here, dtype), names)
    return seen, eyes.features(store.next_observations(picked, there, dtype), names)


def _rows(here: np.ndarray, there: np.ndarray, frames: Frames, decisions: Decisions) -> Transitions:
    return Transitions(
        observation=here,
        action=decisions.action.clip(frames.low, frames.high),
        reward=decisions.reward,
        next_observation=there,
        terminal=decisions.discount == 0,
        action_space=(Box(tuple(frames.low.tolist()), tuple(frames.high.tolist())),),
        observation_space=(Box.uniform(-1, 1, here.shape[1]),),
    )

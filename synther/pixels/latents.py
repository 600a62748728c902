"""Encode frames as rows of latents. The result is an ordinary data set to fit generators and train heads on.

A row is (features of the observation, action, reward, features of the next observation), as in the paper's appendix on
V-D4RL. NOTE[paper]: the paper does not say how many decisions lie between the two observations. Here a row spans as
many as in the agent's own training (three in DrQ+BC), and its reward is their discounted sum.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from synther import compute
from synther.data.spaces import Box
from synther.data.transitions import Transitions
from synther.errors import ConfigError, DataError
from synther.pixels.agent import PixelAgentBase, convolving
from synther.pixels.encoder import Features, PixelEncoder, TrunkName, load_pixel_encoder
from synther.pixels.frames import Decisions, Frames
from synther.pixels.learner import PixelLearner
from synther.pixels.store import FrameStore, drawn_offsets, stacked
from synther.progress import Progress, resolve

SHIFTS = 8
"""How often each decision is encoded, each time with another random shift. Stage one draws new shifts in every update.
"""
_STREAM = 2
"""Random stream of the shifts in `encode`. Training uses other streams (`agents/algorithm.py`)."""


@torch.no_grad()
def encode(
    source: PixelAgentBase | str | os.PathLike[str],
    frames: Frames,
    *,
    features: Features | None = None,
    seed: int = 0,
    shifts: int = SHIFTS,
    pairs: bool = False,
    chunk: int = 256,
    device: str = "auto",
    precision: compute.Precision = "float32",
    progress: Progress | bool = False,
) -> list[Transitions]:
    """Encode `frames` with each member's encoder and trunks, and return one data set per member.

    `source` is an agent or its file. A file is loaded to `device`; an agent encodes on its own device. `features`
    selects the actor's trunk, the critic's trunk, or both in this order (None: all trunks of the agent). Each decision
    is encoded `shifts` times, each time with another random shift of its frames, as in training. With 0, it is encoded
    once and without a shift. The shifts depend on `seed` and the member's seed. With `pairs`, rows have only latents
    and actions, because behaviour cloning needs no more: rewards and next latents are 0. `chunk` is the number of
    observations of each member that are encoded at once.
    """
    if isinstance(source, PixelAgentBase):
        encoder = source.pixel_encoder()
    else:
        encoder = load_pixel_encoder(source, compute.pick_device(device))
    names = _names(features, encoder)
    if pairs and "critic" in encoder.trunks:
        raise ConfigError("pairs are only for behaviour cloning: this agent has a critic, which needs rewards")
    if chunk < 1 or shifts < 0:
        raise ConfigError(f"expected a chunk of at least 1 and 0 or more shifts, got {chunk} and {shifts}")
    if stacked(frames) != encoder.encoder.frame:
        raise DataError(
            f"this agent expects stacks of shape {encoder.encoder.frame}, but these frames give {stacked(frames)}"
        )
    with compute.working_on(encoder.device, "lower the chunk or encode fewer frames at once"):
        store = FrameStore(frames, encoder.nstep, encoder.discount, encoder.device)
        width, times = len(names) * encoder.trunk(names[0]).features, max(shifts, 1)
        # Features of observations and next observations. (2, S, shifts, decisions, features)
        latents = np.zeros((2, len(encoder.seeds), times, len(store), width), np.float32)
        chosen = compute.pick_precision(precision, encoder.device)
        dtype = compute.working_dtype(chosen)
        with convolving(chosen, encoder.device), resolve(progress).phase("encode", times * len(store)) as phase:
            for number in range(times):
                offsets = None
                if shifts:
                    key = (_STREAM, seed, number) if number else (_STREAM, seed)
                    offsets = torch.stack([drawn_offsets(len(store), member, *key) for member in encoder.seeds])
                for start in range(0, len(store), chunk):
                    some = slice(start, min(start + chunk, len(store)))
                    part = None if offsets is None else offsets[:, some].to(encoder.device)
                    for place, encoded in enumerate(_encoded(encoder, names, store, some, part, dtype, pairs)):
                        latents[place, :, number, some] = encoded.cpu().numpy()
                    phase.advance(some.stop - some.start)
    decisions = frames.decisions(encoder.nstep, encoder.discount)
    members = [_rows(first, following, frames, decisions) for first, following in zip(*latents, strict=True)]
    return [pairs_of(rows) for rows in members] if pairs else members


def pairs_of(rows: Transitions) -> Transitions:
    """Return `rows` with rewards and next observations of 0. Only observations and actions keep their values.

    Episodes end in the same rows, but always with a timeout and never with a terminal.
    """
    assert rows.timeout is not None
    zeros, timeout = np.zeros_like(rows.reward), rows.timeout | rows.terminal
    following = np.zeros_like(rows.next_observation)
    return replace(rows, reward=zeros, next_observation=following, terminal=zeros > 0, timeout=timeout)


def _names(features: Features | None, encoder: PixelEncoder) -> list[TrunkName]:
    """Return the names of the trunks to use. Raises an error if the agent does not have them."""
    if features is None:
        return list(encoder.trunks)
    if features not in get_args(Features):
        raise ConfigError(f"features must be one of {', '.join(get_args(Features))}, got {features!r}")
    names: list[TrunkName] = ["actor", "critic"] if features == "both" else [features]
    for name in names:
        encoder.trunk(name)
    return names


def _encoded(
    encoder: PixelEncoder,
    names: list[TrunkName],
    store: FrameStore,
    some: slice,
    shifts: Tensor | None,
    dtype: torch.dtype,
    pairs: bool,
) -> Iterator[Tensor]:
    """Yield the features (S, rows, features) of the observations and, without `pairs`, of the next observations."""
    picked = torch.arange(some.start, some.stop, device=encoder.device).expand(len(encoder.seeds), -1)
    first, second = (None, None) if shifts is None else torch.split(shifts, 2, -1)
    yield encoder.features(store.observations(picked, first, dtype), names)
    if not pairs:
        yield encoder.features(store.next_observations(picked, second, dtype), names)


def _rows(latents: np.ndarray, following: np.ndarray, frames: Frames, decisions: Decisions) -> Transitions:
    """Return one member's rows: all decisions with the first shift, then all decisions with the second, and so on.

    `latents` and `following` are the features of observations and next observations, (shifts, decisions, features).
    """
    times, _, features = latents.shape
    action = decisions.action.clip(frames.low, frames.high)
    terminal = decisions.discount == 0
    return Transitions(
        observation=latents.reshape(-1, features),
        action=np.tile(action, (times, 1)),
        reward=np.tile(decisions.reward, times),
        next_observation=following.reshape(-1, features),
        terminal=np.tile(terminal, times),
        timeout=np.tile(decisions.last & ~terminal, times),  # from this, generators learn where episodes begin
        action_space=(Box(tuple(frames.low.tolist()), tuple(frames.high.tolist())),),
        observation_space=(Box.uniform(-1, 1, features),),
    )


_OWN_STREAM = 3
"""Random stream of the shifts in `encode_own`."""


@torch.no_grad()
def encode_own(
    learner: PixelLearner, *, number: int = 0, chunk: int = 256, progress: Progress | bool = False
) -> list[Transitions | None]:
    """Encode all decisions in each member's ring buffer as rows of latents, with the current encoder of the member.

    Observations are randomly shifted and encoded with the actor's and the critic's trunk. Actions lie in [-1, 1]. The
    result of a member is None if it has no decisions yet, or if its features are not finite. Shifts depend on the
    member's seed and `number`. `chunk` is the number of observations of each member that are encoded at once.
    """
    encoder, ring = learner.pixel_encoder(), learner.store
    most = int(ring.counts.max())
    if not most:
        return [None] * len(learner.seeds)
    last = torch.from_numpy(ring.counts - 1).to(ring.device).unsqueeze(1)
    shifts = torch.stack([drawn_offsets(most, seed, _OWN_STREAM, number) for seed in learner.seeds])
    parts: list[Tensor] = []
    with (
        compute.working_on(ring.device, "train fewer seeds together, or keep fewer frames"),
        convolving("float32", ring.device),
        resolve(progress).phase("encode", most) as phase,
    ):
        for start in range(0, most, chunk):
            some = torch.arange(start, min(start + chunk, most), device=ring.device)
            # Members with fewer decisions repeat their last one. The repetitions are removed below.
            picked = ring.at(torch.minimum(some, last))
            batch = ring.batch(picked, shifts[:, some.cpu()].to(ring.device), torch.float32)
            pair = batch.observation, batch.next_observation
            latents, following = (encoder.features(x, encoder.trunks) for x in pair)
            numbers = torch.stack([batch.reward, batch.terminal], -1)
            parts.append(torch.cat([latents, batch.action, numbers, following], -1).cpu())
            phase.advance(len(some))
    matrices = torch.cat(parts, 1).numpy()
    return [_own_rows(matrix[:count], len(ring.low)) for matrix, count in zip(matrices, ring.counts, strict=True)]


def _own_rows(matrix: np.ndarray, actions: int) -> Transitions | None:
    """Convert a matrix of one member's latents to rows. Return None if it is empty or not finite."""
    if not len(matrix) or not np.isfinite(matrix).all():
        return None
    size = (matrix.shape[1] - actions - 2) // 2
    latents, action, reward, lost, following = np.split(matrix, np.cumsum([size, actions, 1, 1]), axis=1)
    return Transitions(
        observation=latents,
        action=action,
        reward=reward[:, 0],
        next_observation=following,
        terminal=lost[:, 0] > 0.5,
        action_space=(Box.uniform(-1, 1, actions),),
        observation_space=(Box.uniform(-1, 1, size),),
    )

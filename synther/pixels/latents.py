"""Encode frames as rows of latents: an ordinary data set, on which generators are fitted and heads are trained.

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
"""Random shifts with which each decision is encoded. Stage one sees new ones at every update."""
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
    """Encode `frames` with each member's encoder and trunks: one data set per member.

    `source` is an agent or its file. `device` applies to a file; an agent encodes on its own device. `features` selects
    the actor's trunk, the critic's trunk, or both in this order; None is all that the agent has. Each decision is
    encoded `shifts` times, with other random shifts of its frames each time, as in training; 0 encodes it once, without
    a shift. The shifts depend on `seed` and the member's seed. With `pairs`, rows have only latents and actions, which
    is all that behaviour cloning learns from: rewards and next latents are 0. `chunk` is the number of observations of
    each member that are encoded at once.
    """
    if isinstance(source, PixelAgentBase):
        encoder = source.pixel_encoder()
    else:
        encoder = load_pixel_encoder(source, compute.pick_device(device))
    names = _names(features, encoder)
    if pairs and "critic" in encoder.trunks:
        raise ConfigError("pairs are enough for behaviour cloning alone: this agent has a critic, which needs rewards")
    if chunk < 1 or shifts < 0:
        raise ConfigError(f"expected a chunk of at least 1 and 0 or more shifts, got {chunk} and {shifts}")
    if stacked(frames) != encoder.encoder.frame:
        raise DataError(
            f"this agent sees stacks of {encoder.encoder.frame}, the frames make stacks of {stacked(frames)}"
        )
    with compute.working_on(encoder.device, "lower the chunk or encode fewer frames at once"):
        store = FrameStore(frames, encoder.nstep, encoder.discount, encoder.device)
        width, times = len(names) * encoder.trunk(names[0]).features, max(shifts, 1)
        seen = np.zeros((2, len(encoder.seeds), times, len(store), width), np.float32)
        chosen = compute.pick_precision(precision, encoder.device)
        dtype = compute.working_dtype(chosen)
        with convolving(chosen, encoder.device), resolve(progress).phase("encode", times * len(store)) as phase:
            for number in range(times):
                moved = None
                if shifts:
                    key = (_STREAM, seed, number) if number else (_STREAM, seed)
                    moved = torch.stack([drawn_offsets(len(store), member, *key) for member in encoder.seeds])
                for start in range(0, len(store), chunk):
                    some = slice(start, min(start + chunk, len(store)))
                    own = None if moved is None else moved[:, some].to(encoder.device)
                    for place, encoded in enumerate(_encoded(encoder, names, store, some, own, dtype, pairs)):
                        seen[place, :, number, some] = encoded.cpu().numpy()
                    phase.advance(some.stop - some.start)
    decisions = frames.decisions(encoder.nstep, encoder.discount)
    found = [_rows(here, there, frames, decisions) for here, there in zip(*seen, strict=True)]
    return [pairs_of(rows) for rows in found] if pairs else found


def pairs_of(rows: Transitions) -> Transitions:
    """The latents and actions of `rows` alone: rewards and next latents are 0. Episodes end where they did."""
    assert rows.timeout is not None
    nothing, timeout = np.zeros_like(rows.reward), rows.timeout | rows.terminal
    following = np.zeros_like(rows.next_observation)
    return replace(rows, reward=nothing, next_observation=following, terminal=nothing > 0, timeout=timeout)


def _names(features: Features | None, encoder: PixelEncoder) -> list[TrunkName]:
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
    """Features of the observations and, but for pairs, of the next observations, (S, rows, features) each."""
    picked = torch.arange(some.start, some.stop, device=encoder.device).expand(len(encoder.seeds), -1)
    here, there = (None, None) if shifts is None else torch.split(shifts, 2, -1)
    yield encoder.features(store.observations(picked, here, dtype), names)
    if not pairs:
        yield encoder.features(store.next_observations(picked, there, dtype), names)


def _rows(here: np.ndarray, there: np.ndarray, frames: Frames, decisions: Decisions) -> Transitions:
    """Rows of the decisions with each of their shifts, (shifts, decisions, features), one after the other."""
    times, _, features = here.shape
    action = decisions.action.clip(frames.low, frames.high)
    terminal = decisions.discount == 0
    return Transitions(
        observation=here.reshape(-1, features),
        action=np.tile(action, (times, 1)),
        reward=np.tile(decisions.reward, times),
        next_observation=there.reshape(-1, features),
        terminal=np.tile(terminal, times),
        timeout=np.tile(decisions.last & ~terminal, times),  # so that generators know where episodes begin
        action_space=(Box(tuple(frames.low.tolist()), tuple(frames.high.tolist())),),
        observation_space=(Box.uniform(-1, 1, features),),
    )


_OWN_STREAM = 3
"""Random stream of the shifts in `encode_own`."""


@torch.no_grad()
def encode_own(
    learner: PixelLearner, *, number: int = 0, chunk: int = 256, progress: Progress | bool = False
) -> list[Transitions | None]:
    """Encode all decisions in each member's ring as rows of latents, with its own encoder as it is now.

    Observations are randomly shifted, encoded by the actor's and the critic's trunk, and actions lie within [-1, 1].
    The result is None for a member that has no decisions yet, or whose features are not finite. Shifts depend on the
    member's seed and `number`. `chunk` is the number of observations of each member that are encoded at once.
    """
    encoder, ring = learner.pixel_encoder(), learner.store
    most = int(ring.counts.max())
    if not most:
        return [None] * len(learner.seeds)
    last = torch.from_numpy(ring.counts - 1).to(ring.device).unsqueeze(1)
    shifts = torch.stack([drawn_offsets(most, seed, _OWN_STREAM, number) for seed in learner.seeds])
    found: list[Tensor] = []
    with (
        compute.working_on(ring.device, "train fewer seeds together, or keep fewer frames"),
        convolving("float32", ring.device),
        resolve(progress).phase("encode", most) as phase,
    ):
        for start in range(0, most, chunk):
            some = torch.arange(start, min(start + chunk, most), device=ring.device)
            picked = ring.at(
                torch.minimum(some, last)
            )  # members with fewer decisions repeat their last one; cut off below
            batch = ring.batch(picked, shifts[:, some.cpu()].to(ring.device), torch.float32)
            seen, following = (encoder.features(x, encoder.trunks) for x in (batch.observation, batch.next_observation))
            numbers = torch.stack([batch.reward, batch.terminal], -1)
            found.append(torch.cat([seen, batch.action, numbers, following], -1).cpu())
            phase.advance(len(some))
    matrices = torch.cat(found, 1).numpy()
    return [_own_rows(own[:count], len(ring.low)) for own, count in zip(matrices, ring.counts, strict=True)]


def _own_rows(matrix: np.ndarray, actions: int) -> Transitions | None:
    if not len(matrix) or not np.isfinite(matrix).all():
        return None
    size = (matrix.shape[1] - actions - 2) // 2
    seen, action, reward, lost, following = np.split(matrix, np.cumsum([size, actions, 1, 1]), axis=1)
    return Transitions(
        observation=seen,
        action=action,
        reward=reward[:, 0],
        next_observation=following,
        terminal=lost[:, 0] > 0.5,
        action_space=(Box.uniform(-1, 1, actions),),
        observation_space=(Box.uniform(-1, 1, size),),
    )

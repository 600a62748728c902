"""Latents of agents that act: what each member has seen, as its own eyes see it now."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from synther import compute
from synther.data.spaces import Box
from synther.data.transitions import Transitions
from synther.pixels.augmentation import drawn_offsets
from synther.pixels.learner import PixelLearner
from synther.pixels.seeing import convolving
from synther.progress import Progress, resolve

_STREAM = 3
"""Sets these shifts apart from a member's other random numbers (`agents/algorithm.py`, `latents.py`)."""


@torch.no_grad()
def encode_own(
    learner: PixelLearner, *, number: int = 0, chunk: int = 256, progress: Progress | bool = False
) -> list[Transitions | None]:
    """All decisions that each member can learn from, randomly shifted, as rows of latents: features of its actor's
    trunk and of its critic's, and actions within [-1, 1]. None for a member that has no decisions, or whose features
    are no finite numbers.

    Shifts follow from the member's seed and `number`. So many observations of each member as `chunk` says are encoded
    together.
    """
    eyes, ring = learner.eyes(), learner.store
    most = int(ring.counts.max())
    if not most:
        return [None] * len(learner.seeds)
    last = torch.from_numpy(ring.counts - 1).to(ring.device).unsqueeze(1)
    shifts = torch.stack([drawn_offsets(most, seed, _STREAM, number) for seed in learner.seeds])
    found: list[Tensor] = []
    with (
        compute.working_on(ring.device, "train fewer seeds together, or keep fewer frames"),
        convolving("float32", ring.device),
        resolve(progress).phase("encode", most) as phase,
    ):
        for start in range(0, most, chunk):
            some = torch.arange(start, min(start + chunk, most), device=ring.device)
            picked = ring.at(torch.minimum(some, last))  # who has fewer repeats the last, to no avail
            batch = ring.batch(picked, shifts[:, some.cpu()].to(ring.device), torch.float32)
            seen, following = (eyes.features(x, eyes.trunks) for x in (batch.observation, batch.next_observation))
            numbers = torch.stack([batch.reward, batch.terminal], -1)
            found.append(torch.cat([seen, batch.action, numbers, following], -1).cpu())
            phase.advance(len(some))
    matrices = torch.cat(found, 1).numpy()
    return [_rows(own[:count], len(ring.low)) for own, count in zip(matrices, ring.counts, strict=True)]


def _rows(matrix: np.ndarray, actions: int) -> Transitions | None:
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

"""Classifier two-sample test: measure how well a small network separates real from synthetic rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from synther.assess import learners

Array = NDArray[Any]


def auc(lower: Array, higher: Array) -> float:
    """Return the area under the ROC curve: the probability that a score of `higher` (m,) exceeds one of `lower` (n,).

    Ties count half. Range 0 to 1; 0.5 is as good as guessing.
    """
    ordered = np.sort(lower)
    below = np.searchsorted(ordered, higher, side="left")
    up_to = np.searchsorted(ordered, higher, side="right")
    return float((below + up_to).mean() / 2 / len(ordered))


def tell_apart(
    fitted: Sequence[Array], scored: Sequence[Array], *, seed: int, device: torch.device | str = "cpu"
) -> list[float]:
    """Return the AUC with which a network separates the first group of rows from each other group.

    `fitted` and `scored` contain the groups in the same order, as float32 rows (n, D). Networks learn from `fitted` and
    are scored on `scored`. Range 0.5 (guessing) to 1; values slightly below 0.5 are chance.
    """
    edges = np.cumsum([0, *map(len, fitted)])
    pools = [np.arange(start, end) for start, end in pairwise(edges)]
    target = (np.arange(edges[-1]) >= len(fitted[0])).astype(np.float32)[:, None]
    draws = [[pools[0], pool] for pool in pools[1:]]
    networks = learners.fit(np.concatenate(fitted), target, draws, learners.flags, seed=seed, device=device)
    first = networks.predict(scored[0])[..., 0]
    others = [networks.predict(group)[member, :, 0] for member, group in enumerate(scored[1:])]
    return [auc(first[member], scores) for member, scores in enumerate(others)]

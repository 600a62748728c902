"""Rare rewards that are far from all usual ones: whether they come as much, where, and as large as in real rows.

Other measures look at the mean of rewards and at their usual spread, in which one row in a hundred is lost. A generator
may make as many payouts as there are, and forget what they depend on.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from synther.assess import learners
from synther.assess.features import Features
from synther.assess.metrics import Figure
from synther.data.payouts import Usual
from synther.data.transitions import Transitions

Array = NDArray[Any]

FEWEST = 20
"""Payouts of the rows that are judged."""
EFFORT = 0.5
"""Steps of the networks, as a share of the usual number: payouts are few, and would be learned by heart."""


def figures(
    features: Features,
    reference: Transitions,
    synthetic: Transitions,
    held_out: Transitions,
    *,
    seed: int,
    device: torch.device | str = "cpu",
) -> dict[str, Figure]:
    """`payout_mean`, `payout_place` and `payout_size`; nothing where real rows have no payouts."""
    usual = Usual.of(reference.reward)
    if usual is None:
        return {}
    sides = synthetic, held_out
    beyond = [usual.beyond(rows.reward) for rows in (*sides, reference)]
    real = np.concatenate(beyond[1:])
    found = {
        "payout_mean": Figure(
            float(beyond[0].mean()), float(real.mean()), 2 * math.hypot(_error(beyond[0]), _error(real))
        )
    }
    if min(np.count_nonzero(each) for each in beyond[:2]) < FEWEST:
        return found
    pays, inputs = beyond[2] != 0, features.decision(reference)
    how: Any = {"seed": seed, "device": device, "effort": EFFORT}
    pools = [[np.flatnonzero(~pays), np.flatnonzero(pays)]]
    places = learners.fit(inputs, pays[:, None].astype(np.float32), pools, learners.flags, **how)
    sizes = beyond[2][pays]
    scaled = ((sizes - sizes.mean()) / (sizes.std() or 1.0)).astype(np.float32)[:, None]
    told = learners.fit(inputs[pays], scaled, [[np.arange(len(sizes))]], learners.squared, **how)
    placed, sized = [], []
    for rows, own in zip(sides, beyond, strict=False):
        asked = features.decision(rows)
        placed.append(place(places.predict(asked)[0, :, 0], own != 0))
        sized.append(agreement(told.predict(asked[own != 0])[0, :, 0], own[own != 0]))
    for name, ((value, error), (held, error_held)) in (("payout_place", placed), ("payout_size", sized)):
        found[name] = Figure(value, held, 2 * math.hypot(error, error_held))
    return found


def place(scores: Array, pays: NDArray[np.bool_]) -> tuple[float, float]:
    """How well scores (n,) tell rows that pay from others, 2 AUC - 1, and its standard error.

    Range -1 to 1; best is 1, and 0 is where payouts have nothing to do with the scores.
    """
    others = np.sort(scores[~pays])
    below = (np.searchsorted(others, scores[pays], "left") + np.searchsorted(others, scores[pays], "right")) / 2
    told = 2 * below / max(len(others), 1) - 1
    return float(told.mean()), _error(told)


def agreement(predicted: Array, sizes: Array) -> tuple[float, float]:
    """Pearson's r of predicted and true sizes (n,), and its standard error; 0 where either is constant.

    Range -1 to 1; best is 1.
    """
    if np.ptp(predicted) == 0 or np.ptp(sizes) == 0:
        return 0.0, 0.0
    r = float(np.corrcoef(predicted, sizes)[0, 1])
    return r, (1 - r * r) / math.sqrt(len(sizes))


def _error(values: Array) -> float:
    return float(values.std() / math.sqrt(len(values)))

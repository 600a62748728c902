"""Measure payouts: rare rewards that are far from all others, such as a bonus of 50 in one row of a hundred.

Other measures average over all rows, so that payouts hardly count. A generator can make the right number of payouts but
at random states. So three figures compare payouts with those of real rows: what they add to the mean reward, with which
(s, a) they come, and how large they are.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from synther.assess import learners
from synther.assess.features import Features
from synther.assess.figure import Figure, standard_error
from synther.calibration.rare_rows import Usual
from synther.data.transitions import Transitions

Array = NDArray[Any]

FEWEST = 20
"""Smallest number of payouts in synthetic and in held-out rows for `payout_place` and `payout_size`."""
EFFORT = 0.5
"""Training steps of the networks, as a share of the default. With more steps they would memorise the few payouts."""


def figures(
    features: Features,
    reference: Transitions,
    synthetic: Transitions,
    held_out: Transitions,
    *,
    seed: int,
    device: torch.device | str = "cpu",
) -> dict[str, Figure]:
    """Return `payout_mean`, `payout_place` and `payout_size`. The result is empty if real rows have no payouts."""
    usual = Usual.of(reference.reward)
    if usual is None:
        return {}
    sides = synthetic, held_out
    beyond = [usual.beyond(rows.reward) for rows in (*sides, reference)]
    real = np.concatenate(beyond[1:])
    result = {
        "payout_mean": Figure(
            float(beyond[0].mean()), float(real.mean()), 2 * math.hypot(*map(standard_error, (beyond[0], real)))
        )
    }
    if min(np.count_nonzero(each) for each in beyond[:2]) < FEWEST:
        return result
    pays, inputs = beyond[2] != 0, features.decision(reference)
    options: Any = {"seed": seed, "device": device, "effort": EFFORT}
    pools = [[np.flatnonzero(~pays), np.flatnonzero(pays)]]
    place_networks = learners.fit(inputs, pays[:, None].astype(np.float32), pools, learners.flags, **options)
    sizes = beyond[2][pays]
    scaled = ((sizes - sizes.mean()) / (sizes.std() or 1.0)).astype(np.float32)[:, None]
    size_networks = learners.fit(inputs[pays], scaled, [[np.arange(len(sizes))]], learners.squared, **options)
    placed, sized = [], []
    for rows, payout in zip(sides, beyond, strict=False):
        decision, paid = features.decision(rows), payout != 0
        placed.append(place(place_networks.predict(decision)[0, :, 0], paid))
        sized.append(agreement(size_networks.predict(decision[paid])[0, :, 0], payout[paid]))
    for name, ((value, error), (real_value, real_error)) in (("payout_place", placed), ("payout_size", sized)):
        result[name] = Figure(value, real_value, 2 * math.hypot(error, real_error))
    return result


def place(scores: Array, pays: NDArray[np.bool_]) -> tuple[float, float]:
    """Return how well scores (n,) separate rows with a payout from other rows (2 AUC - 1), and the standard error.

    Range -1 to 1. 1 is best, and 0 means that payouts do not depend on the scores.
    """
    others = np.sort(scores[~pays])
    below = (np.searchsorted(others, scores[pays], "left") + np.searchsorted(others, scores[pays], "right")) / 2
    values = 2 * below / max(len(others), 1) - 1
    return float(values.mean()), float(standard_error(values))


def agreement(predicted: Array, sizes: Array) -> tuple[float, float]:
    """Return Pearson's r of predicted and true sizes (n,), and its standard error. Both are 0 if either is constant.

    Range -1 to 1. 1 is best.
    """
    if np.ptp(predicted) == 0 or np.ptp(sizes) == 0:
        return 0.0, 0.0
    r = float(np.corrcoef(predicted, sizes)[0, 1])
    return r, (1 - r * r) / math.sqrt(len(sizes))

"""All experiments by name: the paper's and our own. Experiments share runs of the same name, which are trained once."""

from __future__ import annotations

from synther.paper import offline, online, pixels
from synther.paper.experiment import Experiment
from synther.plain import check_one_of

_ALL = (
    offline.full_eval, offline.vae_gan, offline.subsample, offline.barchart, offline.larger, offline.upsample,
    offline.network, offline.antmaze, offline.mixture, offline.compression, offline.rliable, online.online,
    pixels.vd4rl, pixels.representation,
    offline.agents, offline.mixed_subsample, offline.mixed_eval, offline.mixed_larger, offline.fractions,
    online.online_first, online.online_100k, online.online_200k, pixels.pixels, pixels.pixels_online,
    offline.regularisation, offline.variants, offline.guided_offline,
    online.regularisation_online, online.guided,
)  # fmt: skip
"""The paper's experiments in the order of the paper, followed by our own."""

EXPERIMENTS: dict[str, Experiment] = {found.name: found for found in (describe() for describe in _ALL)}


def find(name: str) -> Experiment:
    """Return the experiment of this name. An unknown name raises an error."""
    check_one_of("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]

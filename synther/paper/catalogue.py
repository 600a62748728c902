"""All experiments by name. Runs of the same name are the same run, whoever asks for it: it is trained once."""

from __future__ import annotations

from synther.paper import evidence, offline_tables, online_tables, pixel_tables
from synther.paper.experiment import Experiment
from synther.plain import check_one_of

_ALL = (
    offline_tables.full_eval(),
    offline_tables.vae_gan(),
    offline_tables.subsample(),
    offline_tables.barchart(),
    offline_tables.larger(),
    offline_tables.upsample(),
    offline_tables.network(),
    offline_tables.antmaze(),
    offline_tables.mixture(),
    offline_tables.compression(),
    offline_tables.rliable(),
    online_tables.online(),
    pixel_tables.vd4rl(),
    pixel_tables.representation(),
    evidence.agents(),
    evidence.mixed_subsample(),
    evidence.mixed_eval(),
    evidence.mixed_larger(),
    evidence.fractions(),
    online_tables.online_first(),
    online_tables.online_100k(),
    online_tables.online_200k(),
    pixel_tables.pixels(),
)

EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in _ALL}


def experiment(name: str) -> Experiment:
    check_one_of("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]

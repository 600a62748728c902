from __future__ import annotations

import re
from math import nan

import pytest

from synther.diffusion.config import FitConfig, NetworkConfig, NoiseConfig, SamplerConfig
from synther.errors import ConfigError

WRONG = [
    (NetworkConfig, "network", {"kind": ["resnet", ""], "width": [0, -1], "depth": [0]}),
    (NetworkConfig, "network", {"embedding": [0], "frequencies": [0]}),
    (NoiseConfig, "noise", {"sigma_min": [0, -1, 80.0, 81.0, nan], "sigma_max": [0.001, nan]}),
    (NoiseConfig, "noise", {"sigma_data": [0, -1, nan], "rho": [0, -7, nan], "p_std": [0, -1, nan]}),
    (SamplerConfig, "sampler", {"kind": ["ddim"], "steps": [0, -1], "s_churn": [-1, nan], "s_noise": [-1, nan]}),
    (
        FitConfig,
        "fit",
        {"steps": [0], "batch_size": [0], "ema_every": [0], "evaluate_every": [0], "checkpoint_every": [0]},
    ),
    (
        FitConfig,
        "fit",
        {
            "learning_rate": [0, -1, nan],
            "max_grad_norm": [0, nan],
            "patience": [0],
            "overfit": [0, -1, nan],
            "minutes": [0, -1, nan],
        },
    ),
    (FitConfig, "fit", {"beta1": [1, -0.1, nan], "beta2": [1, nan]}),
    (FitConfig, "fit", {"ema_decay": [1, -1, nan], "holdout": [1, -0.1, nan]}),
]
CASES = [
    (config, part, name, value)
    for config, part, options in WRONG
    for name, values in options.items()
    for value in values
]


@pytest.mark.parametrize(("config", "part", "name", "value"), CASES)
def test_an_option_out_of_range_is_named(config, part, name, value):
    with pytest.raises(ConfigError, match=rf"\b{part}\.{name}\b.*got .*{re.escape(str(value))}"):
        config(**{name: value})


def test_the_ends_of_the_ranges_and_the_batch_of_the_reference():
    FitConfig(steps=1, batch_size=1, holdout=0, ema_decay=0, beta1=0, beta2=0, ema_every=1, minutes=1e-9)
    SamplerConfig(steps=1, s_churn=0, s_noise=0)
    NetworkConfig(width=1, depth=1, embedding=1, frequencies=1)
    with pytest.raises(ConfigError, match=r"fit\.patience .* fit\.holdout"):
        FitConfig(patience=3, holdout=0)
    assert FitConfig().batch_for(799_999) == 256
    assert FitConfig().batch_for(800_000) == 1024
    assert FitConfig(batch_size=77).batch_for(5) == FitConfig(batch_size=77).batch_for(10**7) == 77

"""Where rows come from, and what an arm makes of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from synther.data.spaces import Box, Discrete
from synther.errors import ConfigError, DataError
from synther.experiments.sources import Augmented, Given, Material

from .pendulum import swings


@pytest.mark.parametrize(
    ("synthetic", "ratio", "tables", "counts"),
    [(False, None, [0], [8]), (True, None, [1], [8]), (True, 0.5, [1, 0], [4, 4]), (True, 0.25, [1, 0], [2, 6]),
     (True, 1.0, [1], [8]), (True, 0.0, [0], [8])],
)  # fmt: skip
def test_what_a_batch_is_drawn_from(synthetic, ratio, tables, counts):
    (arm,) = Material.mixed(swings(), Given(swings(seed=1)) if synthetic else None, ratio).agent_arms()
    assert (list(arm.tables), arm.counts(8), arm.real) == (tables, counts, 0)


def test_material_that_cannot_be():
    real = swings()
    for wrong in (
        replace(real, action=np.zeros(60, np.int64), action_space=None),
        replace(real, action=np.zeros((60, 1)), action_space=(Discrete(2),)),
    ):
        with pytest.raises(DataError, match="the actions of this data are discrete"):
            Material(wrong)
    with pytest.raises(ConfigError, match=r"a ratio of 0\.5 mixes synthetic rows with real ones"):
        Material.mixed(real, None, 0.5)
    for ratio in (-0.1, 1.5, float("nan")):
        with pytest.raises(ConfigError, match=r"must lie in \[0, 1\], got"):
            Material.mixed(real, Given(real), ratio)
    wide = replace(real, action=np.zeros((60, 2)), action_space=(Box.uniform(-2, 2, 2),))
    with pytest.raises(DataError, match=r"have actions of shape \(2,\), the real ones of shape \(1,\)"):
        Material.mixed(real, Given(wide))
    with pytest.raises(ConfigError, match="arm 'a' asks for noise"):
        Material(real, arms={"a": {"noise": 1.0}})
    with pytest.raises(ConfigError, match="unknown augmentation 'salt'"):
        Augmented("salt", real, 5)
    with pytest.raises(ConfigError, match="the number of samples must be"):
        Material.mixed(real, Augmented("additive", real, 0))

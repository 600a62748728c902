"""The scaling that was asked for reaches the columns it was asked for."""

from __future__ import annotations

import numpy as np
import pytest

from synther import Synthesizer
from synther.errors import ConfigError

from .rows import plain
from .settings import SHORT

MIXED = {"default": "minmax", "reward": "quantile", "observation[0]": "none"}


@pytest.mark.parametrize("scaling", ["standard", "minmax", "quantile", "none", MIXED], ids=str)
def test_every_choice_reaches_its_columns(scaling):
    model = Synthesizer("laptop", **SHORT, data={"scaling": scaling}).fit(plain(), progress=False)
    asked = scaling if isinstance(scaling, dict) else {"default": scaling}
    assert model.scaler.kinds == (
        asked.get("observation[0]", asked["default"]),
        asked["default"],
        asked.get("reward", asked["default"]),
        asked["default"],
    )
    assert np.isfinite(model.sample(100, seed=0, progress=False).reward).all()


def test_a_wrong_name_is_an_error():
    model = Synthesizer("laptop", **SHORT, data={"scaling": {"rewards": "quantile"}})
    with pytest.raises(ConfigError, match="unknown name 'rewards': expected default, observation"):
        model.fit(plain(), progress=False)

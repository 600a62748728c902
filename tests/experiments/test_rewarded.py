"""Synthetic rows get the rewards that the real ones get."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from synther.datasets import Dataset
from synther.errors import DataError
from synther.experiments.sources import Given, Rewarded
from synther.progress import Silent

from .pendulum import swings


def test_rewards_change_as_the_data_set_says(tmp_path):
    real, given = swings(), swings(seed=1)
    dataset = Dataset("mine", real, None, {}, {}, rewards={"iql": lambda rows: (2.0, -float(len(rows)))})
    source = Rewarded(Given(given), dataset, "iql")
    assert source.description() == {**Given(given).description(), "rewards": [2.0, -60.0]}
    found = source.rows(tmp_path / "unused.npz", Silent())
    np.testing.assert_allclose(found.reward, 2 * given.reward - 60, rtol=1e-6)
    np.testing.assert_array_equal(found.observation, given.observation)
    with pytest.raises(DataError, match="observations of shape"):
        source.check(replace(real, observation=real.observation[:, :2], next_observation=real.next_observation[:, :2]))

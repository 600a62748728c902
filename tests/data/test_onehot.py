"""A discrete observation, flattened: what never occurs in the data is never generated."""

from __future__ import annotations

import json

import numpy as np
import pytest

from synther.data import spaces
from synther.data.kinds import OneHot
from synther.data.layout import Layout
from synther.data.transitions import Transitions
from synther.errors import DataError


@pytest.mark.parametrize("coding", ["onehot", "bits"])
def test_places_of_a_one_hot_group_that_are_never_set_stay_so(coding):
    """Five states of which 1, 3 and 4 occur, 4 as a next state alone."""
    here, there = np.eye(5)[[1, 3, 3, 1]], np.eye(5)[[3, 4, 1, 1]]
    rows = Transitions(here, np.arange(4) % 2, np.zeros(4), there, observation_space=(spaces.OneHot(5),))
    found = Layout.infer(rows, coding)
    assert found.observation == found.next_observation == (OneHot(5, coding, (1, 3, 4)),)
    assert found.unpack(found.pack(rows)).equals(rows)
    assert Layout.from_json(json.loads(json.dumps(found.to_json()))) == found
    noise = found.unpack(np.random.default_rng(0).normal(size=(200, found.width)))
    for states in (noise.observation, noise.next_observation):
        assert (states.sum(1) == 1).all()
        assert set(states.argmax(1)) == {1, 3, 4}
    if coding == "onehot":
        assert found.names[:3] == ("observation[1]", "observation[3]", "observation[4]")
    with pytest.raises(DataError, match=r"observation.*the 1 where it has been seen \(3 places\)"):
        found.pack(Transitions(np.eye(5)[[0]], [0], [0.0], there[:1], observation_space=(spaces.OneHot(5),)))

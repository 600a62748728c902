"""Flags that follow from thresholds on other columns are decided by these."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from synther.data import layout_json
from synther.data.decoding import Decoder
from synther.data.preparing import Prepared, prepare
from synther.data.transitions import Transitions
from synther.errors import SyntherError

from ..support.layouts import through_json

ROWS = 8_000


def rows(chance: float = 0.0) -> Transitions:
    """A door that is open beyond 0.3, a heating that is switched on and off at 0.5 from what is wanted, and a
    temperature that follows it; with some `chance` the switch does nothing."""
    draw = np.random.default_rng(0)
    place, warm, wanted = draw.normal(size=ROWS), draw.normal(20, 2, ROWS), draw.normal(20, 2, (ROWS, 1))
    was = draw.random(ROWS) < 0.4
    then = place + 0.2 * draw.normal(size=ROWS)
    cold, hot = warm < wanted[:, 0] - 0.5, warm > wanted[:, 0] + 0.5
    stuck = draw.random(ROWS) < chance
    heats = np.where(stuck, was, np.where(cold, True, np.where(hot, False, was)))
    here = np.c_[place, place > 0.3, warm, was]
    there = np.c_[then, then > 0.3, 0.9 * warm + 3.0 * heats, heats]
    return Transitions(here, wanted, draw.normal(size=ROWS), there, np.zeros(ROWS, bool))


def prepared(real: Transitions, residuals: str = "linear") -> Prepared:
    return prepare(real, "standard", "onehot", True, residuals=residuals)


def test_flags_follow_their_limits_in_whatever_row_and_others_follow_them():
    found = prepared(rows())
    layout = found.layout
    assert [(flag.column, flag.inside) for flag in layout.decided] == [(1, True), (3, False)]
    assert through_json(layout) == layout
    assert "next_observation[1] is decided by next_observation[0]" in layout.computed
    noise = np.random.default_rng(1).normal(size=found.matrix.shape).astype(np.float32)
    noise[:, layout.names.index("next_observation[2]")] = 0.0
    made = Decoder(layout, found.scaler)(torch.from_numpy(found.matrix + 0.7 * noise)).rows
    for side in (made.observation, made.next_observation):
        assert (side[:, 1] == (side[:, 0] > 0.3)).mean() > 0.995
    apart = made.observation[:, 2] - made.action[:, 0]
    heats = np.where(apart < -0.5, 1.0, np.where(apart > 0.5, 0.0, made.observation[:, 3]))
    assert (made.next_observation[:, 3] == heats).mean() > 0.99
    temperature = 0.9 * made.observation[:, 2] + 3.0 * made.next_observation[:, 3]
    assert np.quantile(np.abs(made.next_observation[:, 2] - temperature), 0.999) < 0.02


def test_flags_that_chance_decides_are_generated():
    layout = prepared(rows(chance=0.2)).layout
    assert [flag.column for flag in layout.decided] == [1]


def test_a_flag_whose_rule_holds_on_one_side_only_is_not_decided_by_it():
    real = rows()
    real.observation[::2, 1] = 1.0
    assert 1 not in [flag.column for flag in prepared(real).layout.decided if flag.inside]


def test_nothing_is_decided_without_residuals():
    assert prepared(rows(), "none").layout.decided == ()


@pytest.mark.parametrize(
    "change", [{"column": 0}, {"column": 99}, {"inside": "yes"}, {"tree": None}, {"inside": False}]
)
def test_files_with_a_wrong_flag_are_refused(change):
    told = layout_json.to_json(prepared(rows()).layout)
    told["decided"][0] |= change
    with pytest.raises(SyntherError, match=r"layout\.decided"):
        layout_json.from_json(json.loads(json.dumps(told)))

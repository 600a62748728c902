"""Cosine and sine a step later are what the step turns them to."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from synther.data import layout_json
from synther.data.decoding import Decoder
from synther.data.preparing import Prepared, prepare
from synther.data.transitions import Transitions
from synther.errors import SyntherError

from ..support.layouts import through_json

ROWS = 3_000


def rows() -> tuple[Transitions, np.ndarray]:
    """A wheel that turns by more than half a round in some steps, a direction that is drawn anew; the wheel's angle."""
    draw = np.random.default_rng(0)
    start, before, after = draw.uniform(-np.pi, np.pi, (3, ROWS))
    speed, push = 1.5 * draw.normal(size=ROWS), draw.uniform(-1, 1, ROWS)
    angle = speed + 0.2 * push + 0.05 * np.sin(start)

    def seen(place: np.ndarray, speed: np.ndarray, direction: np.ndarray) -> np.ndarray:
        columns = (2 * np.cos(place), speed, 2 * np.sin(place), np.cos(direction), np.sin(direction))
        return np.stack(columns, 1).astype(np.float32)

    here, there = seen(start, speed, before), seen(start + angle, speed + 0.2 * push, after)
    return Transitions(here, push[:, None], draw.normal(size=ROWS), there, np.zeros(ROWS, bool)), angle


def prepared(residuals: str = "linear") -> Prepared:
    return prepare(rows()[0], "standard", "onehot", True, residuals=residuals)


def test_the_matrix_has_the_angle_of_a_step_however_fast():
    real, angle = rows()
    layout = prepared().layout
    assert [turn.columns for turn in layout.turns] == [(0, 2)]
    assert (np.abs(angle) > np.pi).sum() > 50
    packed = layout.pack(real)
    first, second = (layout.names.index(f"next_observation[{column}]") for column in (0, 2))
    np.testing.assert_allclose(packed[:, first], angle, atol=1e-5)
    assert not packed[:, second].any()
    assert through_json(layout) == layout
    assert prepared("none").layout.turns == ()


def test_rows_come_back_turned_from_where_they_are():
    (real, angle), found = rows(), prepared()
    decoder = Decoder(found.layout, found.scaler)
    back = decoder(torch.from_numpy(found.matrix)).rows
    np.testing.assert_allclose(back.next_observation, real.next_observation, atol=1e-5)
    moved = found.matrix.copy()
    moved[:, found.layout.names.index("observation[2]")] += 0.3
    made = decoder(torch.from_numpy(moved)).rows
    here, there = (side[:, 0] + 1j * side[:, 2] for side in (made.observation, made.next_observation))
    assert np.abs(here - real.observation[:, 0] - 1j * real.observation[:, 2]).mean() > 0.1
    weight = found.layout.turns[0].weights[2]
    shift = weight * (made.observation[:, 2] - real.observation[:, 2])  # what the line explains of the angle
    np.testing.assert_allclose(there / here, np.exp(1j * (angle + shift)), atol=0.02)
    np.testing.assert_allclose(np.abs(there), 2, rtol=1e-6)


@pytest.mark.parametrize("damage", [{"columns": [0, 9]}, {"columns": [0]}, {"weights": [1.0]}, {"shift": None}])
def test_a_turn_that_cannot_be(damage):
    described = layout_json.to_json(prepared().layout)
    described["turns"][0] |= damage
    with pytest.raises(SyntherError):
        layout_json.from_json(described)

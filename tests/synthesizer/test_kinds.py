"""Every column that comes out is of the kind that went in: its type, its values, its place and spread."""

from __future__ import annotations

import numpy as np
import pytest

from synther import Synthesizer
from synther.data.spaces import Binary, Discrete

from .rows import ACTIONS, OBSERVATIONS, SHORT, plain


def test_shapes_types_names_and_boxes_are_those_of_the_real_rows(real, fake):
    for name, array in real.arrays().items():
        assert getattr(fake, name).shape == (20_000, *array.shape[1:]), name
        assert getattr(fake, name).dtype == array.dtype, name
    assert fake.timeout is None
    assert (fake.env_id, fake.action_space, fake.observation_space) == ("Made-v0", ACTIONS, OBSERVATIONS)
    first, second = fake.action.T
    assert -1 <= first.min() < -0.8
    assert 0.8 < first.max() <= 1
    assert 0 <= second.min() < 0.02
    assert 0.08 < float(second.max()) <= 0.1


@pytest.mark.parametrize("name", ["observation", "next_observation"])
def test_every_column_keeps_its_kind_place_and_spread(fake, name, real):
    _, tiny, constant, whole, flag = getattr(fake, name).T
    assert (constant == 0.1).all()
    assert set(np.unique(whole)) <= set(range(8))
    assert set(np.unique(flag)) == {0.0, 1.0}
    assert len(np.unique(tiny)) > 10_000
    truth, drawn = getattr(real, name), getattr(fake, name)
    for column in (0, 1, 3):
        mean, deviation = truth[:, column].mean(), truth[:, column].std()
        assert drawn[:, column].mean() == pytest.approx(mean, abs=0.1 * deviation), column
        assert drawn[:, column].std() == pytest.approx(deviation, rel=0.1), column


RANDOM = np.random.default_rng(1)
DISCRETE = {
    "undeclared": (3 + RANDOM.integers(0, 5, 500), None, [range(3, 8)]),
    "one": (3 + RANDOM.integers(0, 5, 500), (Discrete(6, 3),), [range(3, 8)]),
    "several": (RANDOM.integers((0, 1), (3, 5), (500, 2)), (Discrete(3), Discrete(4, 1)), [range(3), range(1, 5)]),
    "binary": (RANDOM.integers(0, 2, (500, 3)).astype(np.int8), (Binary(3),), [range(2)] * 3),
}


@pytest.mark.parametrize("coding", ["onehot", "bits"])
@pytest.mark.parametrize(("actions", "space", "values"), DISCRETE.values(), ids=DISCRETE)
def test_discrete_actions(coding, actions, space, values):
    rows = plain(500, action=actions, action_space=space)
    model = Synthesizer("laptop", **SHORT, data={"coding": coding}).fit(rows, progress=False)
    drawn = model.sample(2000, seed=0, progress=False).action
    assert drawn.shape == (2000, *actions.shape[1:])
    assert drawn.dtype == actions.dtype
    beyond = {8} if space == (Discrete(6, 3),) else set()  # possible, and never seen
    for column, expected in zip(drawn.reshape(2000, -1).T, values, strict=True):
        assert set(expected) <= set(column.tolist()) <= set(expected) | beyond


def test_rows_wider_than_the_embedding():
    rows = plain(200, columns=70)
    model = Synthesizer("laptop", **{**SHORT, "network": {"width": 32, "depth": 2, "embedding": 128}})
    drawn = model.fit(rows, progress=False).sample(30, seed=0, progress=False)
    assert model.layout.width == 211
    assert drawn.observation.shape == drawn.action.shape == (30, 70)

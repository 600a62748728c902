"""Columns whose changes are in proportion to them are found, and small ones move as little as they should."""

from __future__ import annotations

import numpy as np
import pytest

from synther import Synthesizer
from synther.data import layout_json
from synther.data.kinds import Continuous, Logarithmic
from synther.data.layout import Layout
from synther.data.preparing import prepare
from synther.data.transitions import Transitions
from synther.errors import DataError, FormatError

from ..support.layouts import through_json


def prices(count: int = 8_000, spread: float = 2.0) -> Transitions:
    """A price from 0.01 to 1,000 that moves by 5 %, and a number that moves by 1."""
    random = np.random.default_rng(0)
    price, number = np.exp(spread * random.normal(size=count)), 50 * random.normal(size=count)
    after = price * np.exp(0.05 * random.normal(size=count)), number + random.normal(size=count)
    return Transitions(np.stack([price, number], 1), random.uniform(-1, 1, (count, 1)), number / 50, np.stack(after, 1))


def moves(rows: Transitions) -> np.ndarray:
    return np.log(rows.next_observation[:, 0] / rows.observation[:, 0])


def test_prices_are_logarithms_in_the_matrix_and_come_back():
    real = prices()
    found = prepare(real, "quantile", "onehot", True, residuals="bent")
    layout = found.layout
    price, number = layout.observation
    assert isinstance(price, Logarithmic)
    assert isinstance(number, Continuous)
    assert layout.logarithmic == (layout.names.index("observation[0]"), layout.names.index("next_observation[0]"))
    np.testing.assert_allclose(layout.pack(real)[:, 0], np.log(real.observation[:, 0]))
    again = layout.unpack(found.scaler.inverse(found.matrix))
    np.testing.assert_allclose(again.next_observation, real.next_observation, rtol=1e-4, atol=1e-4)
    assert through_json(layout) == layout
    wild = layout.unpack(np.random.default_rng(1).normal(0, 1e3, (1_000, layout.width)))
    assert wild.observation[:, 0].min() == price.low
    assert wild.observation[:, 0].max() == price.high


@pytest.mark.parametrize("case", ["narrow", "negative", "steady"])
def test_other_columns_stay_as_they_are(case: str):
    rows = prices(spread=0.3 if case == "narrow" else 2.0)
    if case == "negative":
        rows.observation[0, 0] = -1.0
    if case == "steady":  # steps of one size
        rows.next_observation[:, 0] = rows.observation[:, 0] + np.random.default_rng(1).uniform(0, 0.01, len(rows))
    assert not isinstance(Layout.infer(rows, spikes=True).observation[0], Logarithmic)


def test_small_prices_move_as_little_as_large_ones():
    fit, network = {"steps": 300, "evaluate_every": 300}, {"width": 64, "depth": 2, "embedding": 16}
    model = Synthesizer("laptop", fit=fit, network=network).fit(prices(), progress=False)
    fake = model.sample(8_000, seed=0, progress=False)
    for chosen in (fake.observation[:, 0] < 0.3, fake.observation[:, 0] > 3):
        assert moves(fake[chosen]).std() == pytest.approx(0.05, rel=0.2)
    # A density of prices, not of their logarithms: both prices are four times as likely per unit at a quarter.
    places = np.array([[1.0, 0.0], [0.25, 0.0]])
    one, quarter = model.log_likelihood(Transitions(places, np.zeros((2, 1)), np.zeros(2), places))
    assert quarter - one == pytest.approx(2 * np.log(4) - (np.log(4) / 2) ** 2 / 2, abs=0.5)


def test_prices_of_nothing_are_refused():
    rows = prices()
    layout = Layout.infer(rows, spikes=True)
    rows.observation[7, 0] = 0.0
    with pytest.raises(DataError, match=r"observation\[0\] is 0.0 in row 7: expected a number above 0"):
        layout.pack(rows)
    entry = layout_json.to_json(layout)
    entry["kinds"]["observation"][0]["low"] = 0.0
    with pytest.raises(FormatError, match="above 0"):
        layout_json.from_json(entry)

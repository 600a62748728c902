"""Rows on their way to the matrix that a network learns from."""

from __future__ import annotations

import numpy as np
import pytest

from synther.data import preparing
from synther.data.preparing import prepare
from synther.data.transitions import Transitions

from .every_kind import everything


@pytest.mark.parametrize("chunk", [7, 40])
def test_rows_are_prepared_chunk_by_chunk(chunk: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(preparing, "_CHUNK_ROWS", chunk)
    rows = everything()
    prepared = prepare(rows, "standard", "onehot", False)
    packed = prepared.layout.pack(rows)
    scaled = prepared.layout.scaled_columns
    expected = packed.copy()
    expected[:, scaled] = (packed[:, scaled] - packed[:, scaled].mean(0)) / packed[:, scaled].std(0)
    assert np.allclose(prepared.matrix, expected, atol=1e-5)
    names = prepared.layout.flag_names
    assert names == (
        "observation[2]",
        "observation[5]",
        "reward",
        "next_observation[2]",
        "next_observation[5]",
        "terminal",
    )
    places = [prepared.layout.names.index(name) for name in names]
    assert prepared.rates == pytest.approx(packed[:, places].mean(0))
    assert prepared.rates[-1] == pytest.approx(6 / 40)


@pytest.mark.parametrize("unit", [2.0**-20, 2.0**20])
def test_units_change_nothing_where_only_the_next_observation_varies(unit: float):
    following = np.linspace(0.25, 0.75, 50)[:, None]
    matrices, errors = [], []
    for factor in (1.0, unit):
        rows = Transitions(np.full((50, 1), 0.5 * factor), following, np.zeros(50), following * factor)
        made = prepare(rows, "standard", "onehot", spikes=False)
        matrices.append(made.matrix)
        errors.append(made.layout.unpack(made.scaler.inverse(made.matrix + 0.01)).observation[0, 0] / factor - 0.5)
    np.testing.assert_array_equal(*matrices)
    assert errors[0] == pytest.approx(0.01 * following.std())
    assert errors[1] == pytest.approx(errors[0])

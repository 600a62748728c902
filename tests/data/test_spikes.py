"""Values that come again and again in a column of real numbers come back exact."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from synther.data import inference
from synther.data.kinds import Bounded, Continuous, Spiked, from_json, to_json
from synther.data.layout import Layout
from synther.data.spaces import Box
from synther.data.transitions import Transitions

KIND = Spiked(low=-10.0, high=12.0, spikes=(-10.0, 0.0, 3.0), gap=0.5)


def column(*values: float) -> np.ndarray:
    return np.array(values)[:, None]


def test_every_spike_opens_a_gap_on_both_of_its_sides():
    values = column(-10, -9, -1e-9, 0, 1e-9, 3, 4)
    expected = column(-9.5, -8, 1 - 1e-9, 1.5, 2 + 1e-9, 5.5, 7)
    assert np.allclose(KIND.encode(values), expected, atol=1e-12)


def test_whatever_is_generated_within_a_gap_is_the_spike():
    generated = column(-20, -10, -9.2, 1.0, 1.3, 2.0, 5.0, 5.9, 6.0)
    assert KIND.decode(generated)[:, 0].tolist() == [-10, -10, -10, 0, 0, 0, 3, 3, 3]
    for spike, start in ((-10, -10), (0, 1), (3, 5)):
        assert (KIND.decode(column(*np.linspace(start, start + 1, 65))) == spike).all()


def test_what_lies_between_the_gaps_keeps_its_distances_and_its_bounds():
    assert np.allclose(KIND.decode(column(-8.0, 0.5, 3.0, 6.5, 1e9)), column(-9.0, -0.5, 1.0, 3.5, 12.0))


@given(hnp.arrays(np.float64, st.integers(1, 50), elements=st.floats(-10, 12)))
def test_encoding_is_undone_and_keeps_the_order(values: np.ndarray):
    encoded = KIND.encode(values[:, None])
    assert np.allclose(KIND.decode(encoded)[:, 0], values, atol=1e-12)
    order = np.argsort(values, kind="stable")
    assert (np.diff(encoded[order, 0]) >= np.diff(values[order]) - 1e-12).all()


@given(hnp.arrays(np.float64, st.integers(1, 50), elements=st.floats(-1e6, 1e6)))
def test_anything_decodes_into_the_bounds(matrix: np.ndarray):
    decoded = KIND.decode(matrix[:, None])
    assert ((decoded >= -10) & (decoded <= 12)).all()


def test_a_small_scatter_around_a_spike_is_healed():
    values = np.where(np.arange(2000) % 3 == 0, 3.0, np.linspace(3.1, 8, 2000))[:, None]
    scatter = np.random.default_rng(0).normal(0, 0.05, values.shape)
    plain, healed = values + scatter, KIND.decode(KIND.encode(values) + scatter)
    assert np.mean(plain == values) == 0
    assert (healed[values == 3.0] == 3.0).all()
    assert (healed[values > 3.2] != 3.0).all()


def test_json_round_trip():
    assert from_json(to_json(KIND)) == KIND


def made(clipped_share: float = 0.1, rows: int = 2000, action_space: Box | None = None) -> Transitions:
    random = np.random.default_rng(0)
    observation = random.normal(size=(rows, 3)).astype(np.float32)
    next_observation = random.normal(size=(rows, 3)).astype(np.float32)
    for array in (observation, next_observation):
        array[random.random(rows) < clipped_share, 1] = 2.5
    observation[:, 1] = observation[:, 1].clip(max=2.5)
    next_observation[:, 1] = next_observation[:, 1].clip(max=2.5)
    return Transitions.of(
        observation=observation,
        action=random.normal(size=(rows, 1)).clip(-1, 1).astype(np.float32),
        reward=np.where(random.random(rows) < 0.5, 0.0, random.normal(size=rows)).astype(np.float32),
        next_observation=next_observation,
        terminal=np.zeros(rows, bool),
        action_space=None if action_space is None else (action_space,),
    )


def test_spikes_are_found_where_they_are():
    layout = Layout.infer(made(), spikes=True)
    assert [type(kind) for kind in layout.observation] == [Continuous, Spiked, Continuous]
    assert layout.observation[1].spikes == (2.5,)
    assert layout.next_observation == layout.observation
    assert layout.action[0].spikes == (-1.0, 1.0)
    assert layout.reward[0].spikes == (0.0,)


def test_without_being_asked_nothing_changes():
    layout = Layout.infer(made())
    assert [type(kind) for kind in layout.observation] == [Continuous] * 3
    assert type(layout.action[0]) is Bounded


def test_rows_with_spikes_come_back_exactly():
    rows = made()
    layout = Layout.infer(rows, spikes=True)
    back = layout.unpack(layout.pack(rows))
    for name, array in rows.arrays().items():
        assert np.allclose(getattr(back, name), array, atol=1e-6), name
    assert np.array_equal(back.observation[:, 1] == 2.5, rows.observation[:, 1] == 2.5)
    assert Layout.from_json(layout.to_json()) == layout


def test_a_declared_box_still_bounds_the_actions():
    layout = Layout.infer(made(action_space=Box((-1.0,), (1.0,))), spikes=True)
    assert (layout.action[0].low, layout.action[0].high) == (-1.0, 1.0)
    wild = layout.pack(made()) + 100
    assert layout.unpack(wild).action.max() == 1.0


@pytest.mark.parametrize(("share", "found"), [(0.001, 0), (0.004, 1)])
def test_rare_repetitions_are_no_spikes(share: float, found: int):
    values = np.random.default_rng(0).normal(size=(10_000, 1))
    values[: round(share * len(values))] = 7.0
    seen = inference.Profile.of(values)
    (kind,) = inference.spiked((Continuous(),), values, seen)
    assert isinstance(kind, Spiked) == bool(found)


def test_a_quantised_column_has_no_spikes():
    values = np.round(np.random.default_rng(0).normal(size=(10_000, 1)), 1)
    assert inference.spiked((Continuous(),), values, inference.Profile.of(values)) == (Continuous(),)


@pytest.mark.parametrize("unit", [2.0**-900, 2.0**900])
def test_the_gap_grows_and_shrinks_with_the_column(unit: float):
    values = np.random.default_rng(0).normal(size=(1_000, 1)).clip(-1, 1)
    (plain,) = inference.spiked((Continuous(),), values, inference.Profile.of(values))
    (scaled,) = inference.spiked((Continuous(),), values * unit, inference.Profile.of(values * unit))
    assert plain.gap == 0.25 * values.std()
    assert scaled.gap == plain.gap * unit  # the squares of such numbers are infinite, or 0

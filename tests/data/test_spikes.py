"""Values that come again and again in a column of real numbers come back exact, and as often."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from synther.calibration.rates import Calibration, calibrate
from synther.data import inference, spikes
from synther.data.decoding import Decoder
from synther.data.kinds import Bounded, Continuous, Levels, Spiked, from_json, to_json
from synther.data.layout import Layout
from synther.data.preparing import prepare
from synther.data.spaces import Box
from synther.data.transitions import Transitions

from ..support.layouts import through_json

KIND = Spiked(low=-10.0, high=12.0, spikes=(-10.0, 0.0, 3.0), gap=0.5)
BOTH_ENDS = Spiked(low=-1.0, high=1.0, spikes=(-1.0, 1.0), gap=0.4)
MISSING = Spiked(low=-1.0, high=1.0, spikes=(-999.0, -1.0), gap=0.4, usual=0.25)


def column(*values: float) -> np.ndarray:
    return np.array(values)[:, None]


def test_a_spike_at_an_end_is_moved_out_and_one_inside_has_a_flag():
    matrix = KIND.encode(column(-10, -9, 0, 1e-9, 3, 12))
    assert matrix.tolist() == [[-10.5, 0, 0], [-9, 0, 0], [0, 1, 0], [1e-9, 0, 0], [3, 0, 1], [12, 0, 0]]
    assert BOTH_ENDS.encode(column(-1, 0.5, 1)).tolist() == [[-1.4], [0.5], [1.4]]
    assert KIND.labels(("reward",)) == ("reward", "reward=0.0", "reward=3.0")
    assert KIND.flag_labels(("reward",)) == ("reward=-10.0", "reward=0.0", "reward=3.0")
    assert KIND.scaled_columns == (True, False, False)
    assert (BOTH_ENDS.matrix_width, len(BOTH_ENDS.thresholds)) == (1, 2)
    values = column(-10, -9.9, 0, 1e-9, 3, 5, 12)
    assert np.array_equal(KIND.flags(KIND.encode(values)) > KIND.cuts, values == np.array(KIND.spikes))


def test_what_is_generated_half_way_out_of_the_range_is_the_spike():
    generated = column(-9.0, -1.3, -1.21, -1.19, -1.0, 0.3, 1.0, 1.19, 1.21, 7.0)
    spikes = BOTH_ENDS.decode(generated)[:, 0]
    assert (spikes[:3] == -1).all()
    assert (spikes[-2:] == 1).all()
    assert (np.abs(spikes[3:-2]) < 1).all()
    assert BOTH_ENDS.decode(column(-1.3, 1.05))[:, 0].tolist() == pytest.approx([-1.0, 0.95])
    strict = BOTH_ENDS.with_thresholds((0.9, 0.1))
    assert strict.decode(column(-1.3, 1.05))[:, 0].tolist() == pytest.approx([-0.7, 1.0])
    assert from_json(json.loads(json.dumps(to_json(strict)))) == strict


def test_values_out_of_the_range_and_flags_inside_it():
    assert np.allclose(BOTH_ENDS.decode(column(-1.1, 1.15, 0.7)), column(-0.9, 0.85, 0.7))  # folded back
    assert KIND.decode(np.array([[11.5, 0.0, 0.0], [1e9, 0.0, 0.0]]))[:, 0].tolist() == [11.5, 12.0]  # a plain bound
    matrix = np.array([[0.4, 0.9, 0.1], [0.4, 0.1, 0.1], [2.8, 0.1, 0.8], [0.9, 0.6, 0.9]])
    assert KIND.decode(matrix)[:, 0].tolist() == [0.0, 0.4, 3.0, 0.0]  # where both flags are set, the nearer spike


def test_a_spike_beyond_the_range_has_a_flag_and_does_not_stretch_the_column():
    values = column(-999, -1, 0.5, 1, -1.5)  # the last one is rarer than a sample shows
    assert MISSING.encode(values).tolist() == [[0.25, 1], [-1.4, 0], [0.5, 0], [1, 0], [-1.5, 0]]
    assert MISSING.decode(MISSING.encode(values))[:, 0].tolist() == [-999, -1, 0.5, 1, -1]
    assert MISSING.decode(np.array([[1e9, 0.6], [-1.3, 0.9], [-1.3, 0.4], [7.0, 0.4]]))[:, 0].tolist() == [
        -999,
        -999,
        -1,
        1,
    ]
    assert MISSING.bounds == (-999.0, 1.0)
    flags = MISSING.flags(MISSING.encode(column(-999, -1, 0.5)))
    assert (flags > 0.5).tolist() == [[True, False], [False, True], [False, False]], "in the order of the spikes"
    assert from_json(json.loads(json.dumps(to_json(MISSING)))) == MISSING


def with_missing(values: np.ndarray, share: float, mark: float, seed: int) -> np.ndarray:
    draw = np.random.default_rng(seed)
    return np.where(draw.random(values.shape) < share, mark, values).astype(np.float32)


@pytest.mark.parametrize(("mark", "share"), [(-999.0, 0.05), (1e6, 0.002), (-100.0, 0.4)])
def test_a_mark_for_missing_values_is_found_and_the_others_keep_their_scale(mark: float, share: float):
    draw = np.random.default_rng(0)
    numbers = draw.normal(size=(20_001, 2))
    shown = with_missing(numbers, share, mark, 1)
    rows = Transitions.of(
        observation=shown[:-1], action=draw.uniform(-1, 1, (20_000, 1)), reward=draw.normal(size=20_000),
        next_observation=shown[1:], terminal=np.zeros(20_000, bool),
    )  # fmt: skip
    prepared = prepare(rows, "standard", "onehot", spikes=True)
    layout = prepared.layout
    for kind in layout.observation:
        assert isinstance(kind, Spiked)
        assert (kind.spikes, kind.inner) == ((mark,), (mark,))
        assert -6 < kind.low < kind.high < 6
    back = layout.unpack(prepared.scaler.inverse(prepared.matrix))
    assert np.allclose(back.observation, rows.observation, atol=1e-4)
    # A small error of the network stays small: it is not stretched by the mark.
    off = layout.unpack(prepared.scaler.inverse(prepared.matrix + np.float32(0.01)))
    assert np.array_equal(off.observation == mark, rows.observation == mark)
    assert np.abs(off.observation - rows.observation).max() < 0.03


def test_a_spike_that_is_near_the_others_stays_where_it_is():
    draw = np.random.default_rng(0)
    force = np.maximum(draw.normal(size=(20_001, 1)), 0)  # 0 in half of the rows
    rows = Transitions.of(
        observation=force[:-1], action=draw.uniform(-1, 1, (20_000, 1)), reward=draw.normal(size=20_000),
        next_observation=force[1:], terminal=np.zeros(20_000, bool),
    )  # fmt: skip
    (kind,) = Layout.infer(rows, spikes=True).observation
    assert isinstance(kind, Spiked)
    assert (kind.low, kind.spikes, kind.inner) == (0.0, (0.0,), ())


def test_a_range_without_an_end_gives_finite_numbers():
    for kind in (Spiked(0.0, np.inf, (0.0,), gap=0.3), Spiked(-np.inf, 0.0, (0.0,), gap=0.3)):
        side = 1 if kind.high > 0 else -1
        decoded = side * kind.decode(side * column(-0.1, -0.3, 0.0, 2.0))[:, 0]
        assert decoded.tolist() == pytest.approx([0.1, 0.0, 0.0, 2.0], abs=1e-6)


@settings(deadline=None, max_examples=50)
@given(
    hnp.arrays(np.float64, st.integers(1, 50), elements=st.floats(-10, 12) | st.sampled_from([-10.0, 0.0, 3.0])),
    hnp.arrays(np.float64, (5, 3), elements=st.floats(-1e6, 1e6)),
)
def test_encoding_is_undone_and_anything_decodes_into_the_bounds(values: np.ndarray, generated: np.ndarray):
    back = KIND.decode(KIND.encode(values[:, None]))[:, 0]
    assert np.array_equal(back == 3.0, values == 3.0)
    assert np.allclose(back, values, atol=3e-5)
    assert ((KIND.decode(generated) >= -10) & (KIND.decode(generated) <= 12)).all()


@pytest.mark.parametrize("scatter", [0.05, 0.2])
@pytest.mark.parametrize("share", [0.03, 0.3, 0.8])
@pytest.mark.parametrize("spike", [-1.0, 0.25], ids=["at an end", "inside"])
def test_a_spike_comes_as_often_as_in_the_real_rows_however_smeared(spike: float, share: float, scatter: float):
    """A generator scatters numbers and flags alike; the threshold that `calibrate` finds gives the exact share."""
    random = np.random.default_rng(1)
    kind = Spiked(-1.0, 1.0, (spike,), gap=0.3)
    values = np.where(random.random(20_000) < share, spike, random.uniform(-1, 1, 20_000))[:, None]
    generated = kind.encode(values)
    generated = generated + scatter * random.normal(size=generated.shape)
    rate = float(np.mean(values == spike))
    cut = calibrate(rate, kind.flags(generated)[:, 0], 0.5, kind.lowest_threshold)
    made = kind.with_thresholds((cut,)).decode(generated)
    assert np.mean(made == spike) == pytest.approx(rate, abs=1e-9)
    # and they are the right rows
    assert np.mean((made == spike) == (values == spike)) > (0.95 if scatter < 0.1 else 0.7)


def test_where_too_few_flags_are_set_the_rows_nearest_to_the_spike_are_taken():
    kind = Spiked(-1.0, 1.0, (0.0,), gap=0.3)
    matrix = np.column_stack([np.linspace(-0.9, 0.9, 1001), np.zeros(1001)])
    cut = calibrate(0.1, kind.flags(matrix)[:, 0], 0.5, kind.lowest_threshold)
    made = kind.with_thresholds((cut,)).decode(matrix)[:, 0]
    assert np.mean(made == 0) == pytest.approx(0.1, abs=1e-3)
    assert np.abs(matrix[made == 0, 0]).max() < 0.1
    assert np.abs(matrix[made != 0, 0]).min() > 0.085


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
        terminal=random.random(rows) < 0.1,
        action_space=None if action_space is None else (action_space,),
    )


@pytest.mark.parametrize(("place", "share", "is_spike"), [(0.0, 0.001, False), (0.0, 0.003, True), (9.0, 0.001, True)])
def test_a_rare_value_is_a_spike_where_hardly_any_others_are_near(place, share, is_spike):
    """As a bonus of +100 is, and a height at which a body happens to rest again and again is not."""
    draw = np.random.default_rng(0)
    values = draw.normal(size=(40_000, 2))
    values[: int(share * 40_000), 0] = place
    zero = np.zeros(40_000)
    layout = Layout.infer(Transitions(values, zero, zero, values, zero.astype(bool)), spikes=True)
    assert isinstance(layout.observation[0], Spiked) == is_spike


def test_spikes_are_found_where_they_are_and_come_back_exactly():
    rows = made(action_space=Box((-1.0,), (1.0,)))
    plain = Layout.infer(rows)
    assert [type(kind) for kind in (*plain.observation, *plain.action)] == [Continuous] * 3 + [Bounded]
    layout = Layout.infer(rows, spikes=True)
    assert [type(kind) for kind in layout.observation] == [Continuous, Spiked, Continuous]
    assert layout.observation[1].spikes == (2.5,)
    assert layout.observation[1].high == 2.5
    assert layout.next_observation == layout.observation
    assert layout.action[0].spikes == (-1.0, 1.0)
    assert (layout.action[0].low, layout.action[0].high) == (-1.0, 1.0)
    assert layout.unpack(layout.pack(rows) + 100).action.max() == 1.0
    assert layout.reward[0].spikes == (0.0,)
    flags = ("observation[1]=2.5", "action[0]=-1.0", "action[0]=1.0", "reward=0.0", "next_observation[1]=2.5")
    assert layout.flag_names == (*flags, "terminal")
    assert layout.lowest_thresholds == (-1.0,) * 5 + (0.05,)
    back = layout.unpack(layout.pack(rows))
    for name, array in rows.arrays().items():
        assert np.allclose(getattr(back, name), array, atol=1e-5), name
    assert np.array_equal(back.observation[:, 1] == 2.5, rows.observation[:, 1] == 2.5)
    assert np.array_equal(back.reward == 0, rows.reward == 0)
    assert through_json(layout) == layout


def test_a_whole_calibration_gives_every_flag_its_real_share():
    """Rows of deviation 1 or so, smeared as by a generator, all flags at once."""
    prepared = prepare(made(rows=20_000), "standard", "onehot", spikes=True)
    layout, random = prepared.layout, np.random.default_rng(2)
    raw = prepared.scaler.inverse(prepared.matrix + 0.3 * random.normal(size=prepared.matrix.shape))
    rates, count = prepared.rates, len(prepared.matrix)
    calibration = Calibration(()).cutting(rates, layout.flags(raw), layout)
    cut = layout.with_thresholds(calibration.thresholds)
    rows = cut.unpack(raw)
    calibration = calibration.balancing(rates[layout.flag_names.index("terminal")], rows.terminal)
    shares = [
        np.mean(rows.observation[:, 1] == np.float32(2.5)),
        np.mean(rows.action == -1),
        np.mean(rows.action == 1),
        np.mean(rows.reward == 0),
        np.mean(rows.next_observation[:, 1] == np.float32(2.5)),
        np.mean(rows.terminal),
    ]
    for share, rate in zip(shares, rates, strict=True):  # up to chance in the generated rows
        assert share == pytest.approx(rate, rel=np.sqrt(1 / (rate * count)))
    assert calibration.terminal_odds == pytest.approx(1, abs=1e-3)
    assert Calibration.from_json(json.loads(json.dumps(calibration.to_json()))) == calibration


def found_in(values: np.ndarray) -> object:
    (kind,) = spikes.special((Continuous(),), values, inference.Profile.of(values))
    return kind


@pytest.mark.parametrize(("share", "found"), [(0.0, False), (0.001, False), (0.004, True)])
def test_rare_repetitions_are_no_spikes(share: float, found: bool):
    values = np.random.default_rng(0).normal(size=(10_000, 1))
    values[: round(share * len(values))] = 7.0
    assert isinstance(found_in(values), Spiked) == found


def test_a_spike_stands_out_among_numbers_that_come_a_few_times_each():
    """Thousandths come several times; a spike has to be many times as frequent as they are."""
    values = np.round(np.random.default_rng(0).uniform(size=(10_000, 1)), 3)
    values[:, 0] += 1e-9 * (np.arange(10_000) % 3)  # too many to be levels
    values[:40] = 0.5
    assert isinstance(found_in(values), Continuous)
    values[:2_000] = 0.5
    assert found_in(values).spikes == (0.5,)


def test_of_many_repeated_values_the_most_frequent_are_special():
    """Speeds that are limited to one of many numbers, and often 0."""
    draw = np.random.default_rng(0)
    values = draw.normal(size=20_000)
    repeated = np.repeat(np.arange(1, 31) / 7, 20)
    values[: len(repeated)], values[-1_000:] = repeated, 0.0
    found = spikes.special((Continuous(),), values[:, None], inference.Profile.of(values[:, None]))
    assert isinstance(found[0], Spiked)
    assert found[0].spikes == (0.0,)


def test_columns_of_one_sign_keep_it():
    draw = np.random.default_rng(0)
    price, debt = draw.uniform(2, 9, 5_000), -draw.uniform(0.5, 4, 5_000)
    here = np.c_[price, debt, price + 2 * debt]
    real = Transitions(here, draw.uniform(-1, 1, (5_000, 1)), price, here + 0.1, np.zeros(5_000, bool))
    kinds = Layout.infer(real, spikes=True).observation
    assert [type(kind) for kind in kinds] == [Bounded, Bounded, Continuous]
    assert kinds[0] == Bounded(price.min(), np.inf)
    assert kinds[1] == Bounded(-np.inf, (debt + 0.1).max())
    assert isinstance(Layout.infer(real).observation[0], Continuous)
    assert Layout.infer(real, spikes=True).unpack(np.full((1, 8), -3.0)).observation[0, 0] == price.min()


def test_a_quantised_column_has_levels():
    values = np.random.default_rng(0).integers(-20, 21, (10_000, 1)) / 10
    kind = found_in(values)
    assert kind == Levels(tuple(np.unique(values).tolist()))
    assert np.array_equal(kind.decode(kind.encode(values)), values)
    assert from_json(json.loads(json.dumps(to_json(kind)))) == kind
    assert Levels((-1.0, 0.0, 0.5, 3.0)).decode(column(-9, -0.51, 0.24, 0.26, 99))[:, 0].tolist() == [-1, -1, 0, 0.5, 3]


def test_levels_that_differ_by_rounding_are_one():
    """0.3 and 0.1 + 0.2 are two numbers, and one level. Far from 0, levels are as near to each other as they like."""
    steps = np.random.default_rng(0).integers(0, 5, 2_000)
    tenths = np.where(np.arange(2_000) % 2, steps / 10, 0.1 * steps)
    assert len(np.unique(tenths)) == 6
    assert found_in(tenths[:, None]) == Levels((0.0, 0.1, 0.2, 0.3, 0.4))
    far = found_in(1e6 + tenths[:, None])
    assert isinstance(far, Levels)
    assert len(far.values) == 5


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20, unique=True).map(sorted),
    hnp.arrays(np.float64, (7, 1), elements=st.floats(-2e6, 2e6)),
)
def test_no_level_is_nearer_than_the_one_that_is_taken(levels: list[float], generated: np.ndarray):
    taken = Levels(tuple(levels)).decode(generated)
    assert np.isin(taken, levels).all()
    nearest = np.abs(generated - np.array(levels)).min(1, keepdims=True)
    assert np.allclose(np.abs(taken - generated), nearest, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("unit", [2.0**-900, 2.0**900])
def test_the_gap_grows_and_shrinks_with_the_column(unit: float):
    values = np.random.default_rng(0).normal(size=(1_000, 1)).clip(-1, 1)
    plain, scaled = found_in(values), found_in(values * unit)
    assert plain.gap == 0.5 * values.std()
    assert scaled.gap == plain.gap * unit  # the squares of such numbers are infinite, or 0


def test_a_rare_bonus_is_special_and_rare_levels_stay_levels():
    random = np.random.default_rng(0)
    paid = np.where(np.arange(40_000) % 1_000 == 0, 100.0, random.normal(size=40_000))
    assert found_in(paid[:, None]).spikes == (100.0,)
    # Steps of 0.1 around 0.5 at the ends of which values are rare: one of them came five times.
    steps = np.repeat(np.arange(11) / 10, [5, 30, 300, 2_000, 4_000, 7_330, 4_000, 2_000, 300, 30, 5])
    assert isinstance(found_in(steps[:, None]), Levels)


@pytest.mark.parametrize(("noise", "gap"), [(0.001, 0.1), (0.1, 0.3), (0.5, 0.5)])
def test_a_spike_is_moved_out_by_what_a_step_leaves_open(noise, gap):
    """In stds of the column, for a position between two walls that moves with the action and some noise."""
    draw = np.random.default_rng(0)
    before, action = draw.uniform(-1.8, 1.8, 20_000), draw.uniform(-1, 1, (20_000, 1))
    after = before + 0.1 * action[:, 0] + noise * draw.normal(size=20_000)
    before, after = (np.stack([values.clip(-1.7, 1.7)], 1).astype(np.float32) for values in (before, after))
    rows = Transitions(before, action, after[:, 0], after, np.zeros(20_000, bool))
    (kind,) = Layout.infer(rows, spikes=True).observation
    assert kind.spikes == pytest.approx((-1.7, 1.7))
    assert kind.gap / np.concatenate([before, after]).std() == pytest.approx(gap, abs=0.06)


def touching() -> Transitions:
    """Three forces that are 0 together, each with its own sign or none, and one that is 0 by itself."""
    draw = np.random.default_rng(0)

    def moment() -> np.ndarray:
        forces = np.exp(draw.normal(size=(6_000, 4))) * [1, 1, -1, 1]
        forces[:, [0, 1, 2]] *= draw.random((6_000, 1)) < 0.3
        forces[:, 3] *= draw.random(6_000) < 0.3
        return np.concatenate([forces, draw.normal(size=(6_000, 1))], 1).astype(np.float32)

    return Transitions(
        moment(), draw.uniform(-1, 1, (6_000, 2)), draw.normal(size=6_000), moment(), np.zeros(6_000, bool)
    )


def test_forces_that_are_0_together_stay_so():
    found = prepare(touching(), "standard", "onehot", True)
    kinds = found.layout.observation
    assert [kind.tied for kind in kinds[:4]] == [0, 0, 0, None], "the third is 0 at the other end of its range"
    assert through_json(found.layout) == found.layout
    assert np.array_equal(found.layout.unpack(found.layout.pack(touching())).observation, touching().observation)
    noise = np.random.default_rng(1).normal(size=found.matrix.shape)
    packed = found.scaler.inverse(found.matrix + 0.2 * noise)
    rows = found.layout.unpack(packed)
    for field in ("observation", "next_observation"):
        zero = getattr(rows, field)[:, :4] == 0
        assert np.array_equal(zero[:, 0], zero[:, 1])
        assert np.array_equal(zero[:, 0], zero[:, 2])
        assert 0.6 < zero[:, 0].mean() < 0.8
        assert np.mean(zero[:, 0] != zero[:, 3]) > 0.2
    assert np.mean((rows.observation[:, 0] == 0) != (rows.next_observation[:, 0] == 0)) > 0.2
    flags = found.layout.flags(packed)
    names = [name.split("=")[0] for name in found.layout.flag_names]
    one, *others = (flags[:, names.index(f"observation[{column}]")] for column in (0, 1, 2))
    for other in others:
        np.testing.assert_allclose(one, other)


def contacts(draw: np.random.Generator) -> np.ndarray:
    """Forces of one body, clipped to [-1, 1], the last one never negative. All are 0 without a contact."""
    forces = np.concatenate([draw.normal(size=(6_000, 2)), np.exp(draw.normal(size=(6_000, 1)))], 1)
    return (forces * (draw.random((6_000, 1)) < 0.3)).clip(-1, 1)


@pytest.mark.parametrize(("share", "column", "tied"), [(0.005, 0, 0), (0.03, 0, None), (0.005, 2, None)])
def test_a_force_that_is_0_in_a_few_more_rows_is_tied_inside_its_range_only(share, column, tied):
    draw = np.random.default_rng(0)
    before, after = contacts(draw), contacts(draw)
    for side in (before, after):
        side[draw.random(6_000) < share, column] = 0
    rows = Transitions(before, draw.uniform(-1, 1, (6_000, 2)), draw.normal(size=6_000), after)
    found = prepare(rows, "standard", "onehot", True)
    assert found.layout.observation[column].tied == tied
    back = found.layout.unpack(found.layout.pack(rows))
    np.testing.assert_allclose(back.observation, rows.observation, atol=1e-12)


def test_clipped_forces_that_are_0_together_stay_so():
    draw = np.random.default_rng(0)
    rows = Transitions(contacts(draw), draw.uniform(-1, 1, (6_000, 2)), draw.normal(size=6_000), contacts(draw))
    found = prepare(rows, "standard", "onehot", True)
    assert [(kind.spikes, kind.tied, kind.shared) for kind in found.layout.observation] == [
        ((-1.0, 0.0, 1.0), 0, 0.0),
        ((-1.0, 0.0, 1.0), 0, 0.0),
        ((0.0, 1.0), 0, 0.0),
    ]
    assert through_json(found.layout) == found.layout
    assert np.array_equal(found.layout.unpack(found.layout.pack(rows)).observation, rows.observation)
    noise = np.random.default_rng(1).normal(size=found.matrix.shape)
    made = found.layout.unpack(found.scaler.inverse(found.matrix + 0.1 * noise))
    for real, other in ((rows.observation, made.observation), (rows.next_observation, made.next_observation)):
        is_zero = other == 0
        assert (is_zero.all(1) | ~is_zero.any(1)).all()
        assert is_zero.mean() == pytest.approx((real == 0).mean(), abs=0.02)
        assert np.mean(other == 1, axis=0) == pytest.approx(np.mean(real == 1, axis=0), abs=0.02)


@pytest.mark.cuda
def test_a_gpu_ties_as_a_cpu():
    found = prepare(touching(), "standard", "onehot", True)
    matrix = torch.from_numpy(found.matrix + 0.2 * np.random.default_rng(1).normal(size=found.matrix.shape))
    cpu, gpu = (Decoder(found.layout, found.scaler, device=torch.device(name))(matrix).rows for name in ("cpu", "cuda"))
    np.testing.assert_allclose(gpu.observation, cpu.observation, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("often", "step", "expected"),
    [(6.0, 0.01, Spiked), (0.0, 0.01, Levels), (6.0, 0.1, Levels)],
    ids=["inside many levels", "at the end", "among few levels"],
)
def test_a_value_of_many_rows_among_hundreds_of_levels_is_a_spike(often: float, step: float, expected: type):
    draw = np.random.default_rng(0)
    values = np.where(draw.random(20_000) < 0.4, often, step * np.rint(draw.uniform(0, 10, 20_000) / step))
    kind = found_in(values[:, None])
    assert isinstance(kind, expected)
    assert not isinstance(kind, Spiked) or kind.spikes == (often,)

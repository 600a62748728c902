from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from synther.data import encoding, inference, kinds, preparing, spaces
from synther.data.decoding import settle
from synther.data.kinds import Binary, Bounded, Categorical, Codebook, Constant, Continuous, Integer, Kind, OneHot
from synther.data.lattices import Grid
from synther.data.layout import Layout
from synther.data.preparing import prepare
from synther.data.spaces import Box, Discrete
from synther.data.transitions import Transitions
from synther.errors import ConfigError, DataError, FormatError

from ..support.layouts import through_json
from .every_kind import ROWS, columns, everything


def make(rows: int = ROWS, **changes: Any) -> Transitions:
    random = np.random.default_rng(0)
    given: dict[str, Any] = {
        "observation": random.normal(size=(rows, 2)).astype(np.float32),
        "action": random.uniform(-0.9, 0.9, (rows, 2)).astype(np.float32),
        "reward": random.normal(size=rows).astype(np.float32),
        "next_observation": random.normal(size=(rows, 2)).astype(np.float32),
        "terminal": np.arange(rows) % 10 == 9,
    }
    return Transitions(**(given | changes))


def same(matrix: np.ndarray, **changes: Any) -> Transitions:
    return make(observation=matrix, next_observation=matrix, **changes)


@pytest.mark.parametrize("coding", ["onehot", "bits"])
def test_every_kind_comes_back_exactly(coding: kinds.Coding):
    rows = everything()
    layout = Layout.infer(rows, coding, integers="ordered")
    assert layout.observation == (
        Continuous(),
        Constant(7.25),
        Binary(0, 1),
        Integer(2, 9),
        Categorical(6, 4, coding),
        Binary(0, 1),
        OneHot(3, coding),
    )
    assert layout.action == (Bounded(-1, np.inf), Categorical(5, 0, coding))
    assert layout.reward == (Binary(-1, 0),)
    matrix = layout.pack(rows)
    assert matrix.dtype == np.float64
    assert matrix.shape == (ROWS, layout.width)
    back = layout.unpack(matrix)
    assert back.equals(rows)
    assert (back.env_id, back.env_options) == ("Everything-v0", {"nothing": 0})
    assert back.observation_space == rows.observation_space
    for found in (layout, Layout.infer(rows, coding, integers="categorical")):
        changed = found.with_thresholds([*found.thresholds[:-1], 0.3])
        assert through_json(changed) == changed


def test_rows_without_next_observations():
    """Those of zeros are left out, and do not change the kinds of observations, also where these are grouped."""
    whole = everything()
    rows = replace(whole, next_observation=np.zeros_like(whole.next_observation))
    layout = Layout.infer(rows, spikes=True)
    assert (
        layout.observation == Layout.infer(replace(whole, next_observation=whole.observation), spikes=True).observation
    )
    assert layout.next_observation == (Constant(0.0),) * whole.observation.shape[1]
    assert layout.twins == tuple(range(layout.width))
    assert layout.unpack(layout.pack(rows)).equals(rows)
    assert through_json(layout) == layout
    rows.next_observation[-1, 0] = 1e-3
    assert Layout.infer(rows).next_observation != layout.next_observation


def test_an_unknown_kind_in_json_is_named():
    with pytest.raises(FormatError, match=r"'vector'.*constant"):
        kinds.from_json({"kind": "vector"})


def test_names_fields_and_scaled_columns():
    layout = Layout.infer(everything(), integers="ordered")
    assert layout.names[:9] == (
        "observation[0]",
        "observation[2]",
        "observation[3]",
        *(f"observation[4]={value}" for value in range(4, 10)),
    )
    assert layout.names[9:13] == ("observation[5]", "observation[6]", "observation[7]", "observation[8]")
    assert layout.names[13:20] == ("action[0]", *(f"action[1]={value}" for value in range(5)), "reward")
    assert layout.names[-1] == "terminal"
    assert layout.source_names[1] == "observation[1]"
    assert len(layout.source_names) == 9 + 2 + 1 + 9 + 1
    assert len(layout.names) == len(layout.fields) == layout.width
    assert (layout.fields[0], layout.fields[20]) == ("observation", "next_observation")
    assert layout.twins == (*range(20, 33), *range(13, 20), *range(13), 33)
    scaled = [name for name, is_scaled in zip(layout.names, layout.scaled_columns, strict=True) if is_scaled]
    real = ["observation[0]", "observation[3]"]
    assert scaled == [*real, "action[0]", *(f"next_{name}" for name in real)]
    bits = Layout.infer(everything(), "bits", integers="ordered").names[3:6]
    assert bits == tuple(f"observation[4].bit{bit}" for bit in (2, 1, 0))
    single = Layout.infer(make(action=np.arange(ROWS) % 3)).names
    assert single[2:5] == ("action=0", "action=1", "action=2")


def test_the_matrix_follows_the_paper():
    rows = make()
    expected = np.concatenate(
        [rows.observation, rows.action, rows.reward[:, None], rows.next_observation, rows.terminal[:, None]], 1
    )
    assert np.array_equal(Layout.infer(rows).pack(rows), expected)


def test_next_observation_is_judged_together_with_observation():
    rows = make(
        observation=columns(3, [1, 2, 3], [0.5, 1], 5),
        next_observation=columns(4, [1, 2, 9], [1, 2], 5),
    )
    layout = Layout.infer(rows, integers="ordered")
    assert layout.observation == layout.next_observation
    assert layout.observation == (Binary(3, 4), Integer(1, 9), Continuous(), Constant(5))
    assert layout.unpack(layout.pack(rows)).equals(rows)


def test_no_terminals_take_no_column_and_no_flag():
    rows = make(terminal=np.zeros(ROWS, bool))
    layout = Layout.infer(rows)
    assert "terminal" not in layout.names
    assert not layout.unpack(layout.pack(rows)).terminal.any()
    assert layout.flag_names == layout.thresholds == ()
    assert layout.flags(np.zeros((3, layout.width))).shape == (3, 0)
    assert layout.with_thresholds([]) == layout


def test_rows_that_never_change_need_no_matrix():
    rows = make()[np.zeros(3, int)]
    rows = Transitions(rows.observation, rows.action, rows.reward, rows.observation)
    layout = Layout.infer(rows)
    assert layout.width == 0
    assert layout.unpack(layout.pack(rows)).equals(rows)


@pytest.mark.parametrize(
    ("observation", "expected"),
    [
        (columns(2**60 + 1, [1, 2, 3], dtype=np.int64), Constant(2**60 + 1)),
        (columns([True, False], True, dtype=bool), Binary(0, 1)),
        (columns(1 + 1e-12 * np.arange(ROWS), [1, 2], dtype=np.float64), Continuous()),
        (columns(2.0**60 * np.arange(3), [1, 2], dtype=np.float64), Continuous()),
        (1e6 + 1e-3 * np.random.default_rng(0).normal(size=(ROWS, 1)), Continuous()),
    ],
    ids=["beyond float64", "boolean", "tiny deviations", "too large for fractions", "large offset"],
)
def test_kinds_of_observations(observation: np.ndarray, expected: Kind):
    rows = same(observation)
    layout = Layout.infer(rows)
    assert layout.observation[0] == expected
    assert layout.unpack(layout.pack(rows)).equals(rows)
    assert layout.unpack(layout.pack(rows)).observation.dtype == observation.dtype


@pytest.mark.parametrize(
    ("action", "space", "expected"),
    [
        (columns([-0.5, 0.5]), None, (Bounded(-0.5, 0.5),)),
        (columns([-0.5, 0.5]), (Box.uniform(-1, 1, 1),), (Bounded(-1, 1),)),
        (columns(0.5), (Box.uniform(-1, 1, 1),), (Constant(0.5),)),
        (columns([3, 5, 4], dtype=np.uint8)[:, 0], None, (Categorical(3, 3),)),
        (columns([3, 5, 4], dtype=int)[:, 0], (Discrete(7),), (Categorical(7, 0),)),
        (columns(3, dtype=int)[:, 0], (Discrete(7),), (Constant(3),)),
        (columns([-1, 1], [0, 2], dtype=int), None, (Categorical(3, -1), Categorical(3, 0))),
        (columns([1, 2, 3], dtype=int), (Box.uniform(0.5, 3.5, 1),), (Integer(1, 3),)),
        (columns([*range(0, 10**6, 20_000)], dtype=int), None, (Integer(0, 780_000),)),
        (columns([0, 10**6], dtype=int), None, (Codebook(((0.0,), (10.0**6,))),)),
        (columns([0.0, 50.0, 250.0]), None, (Codebook(((0.0,), (50.0,), (250.0,))),)),
        (columns([0, 1], 1, dtype=int), (spaces.Binary(2),), (Binary(0, 1), Constant(1))),
        (columns(0, 1), (spaces.OneHot(2),), (Constant(0), Constant(1))),
    ],
)
def test_kinds_of_actions(action: np.ndarray, space: spaces.Space | None, expected: tuple[Kind, ...]):
    rows = make(action=action, action_space=space)
    layout = Layout.infer(rows)
    assert layout.action == expected
    assert layout.unpack(layout.pack(rows)).equals(rows)


def test_actions_are_clipped_into_a_box_that_float32_cannot_hold():
    rows = make(action=columns([0.05, -0.05]), action_space=(Box.uniform(-0.1, 0.1, 1),))
    layout = Layout.infer(rows)
    matrix = layout.pack(rows)
    matrix[:, layout.names.index("action[0]")] = np.resize([5.0, -5.0], ROWS)
    action = layout.unpack(matrix).action.astype(np.float64)
    assert action.max() == pytest.approx(0.1)
    assert action.max() <= 0.1
    assert action.min() >= -0.1


def test_huge_discrete_spaces_need_bits():
    rows = make(action=np.arange(ROWS), action_space=(Discrete(10**9),))
    for coding in ("onehot", "gray"):
        with pytest.raises(ConfigError, match="bits"):
            Layout.infer(rows, coding)  # type: ignore[arg-type]
    layout = Layout.infer(rows, "bits")
    assert layout.action[0].matrix_width == 30
    assert layout.unpack(layout.pack(rows)).equals(rows)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"observation": columns(1, 2, 3), "next_observation": columns(1, 2, 3)}, "3 columns"),
        ({"reward": np.arange(ROWS) < ROWS - 1}, rf"reward is 0\.0 in row {ROWS - 1}"),
        ({"observation": columns([5, 5, 4], [0, 1])}, r"observation\[0\] is 4.0 in row 2"),
        ({"next_observation": columns(5, [0, 1, 0.5])}, r"next_observation\[1\] is 0.5 in row 2"),
        ({"action": np.resize([0, 1, 2, 3], ROWS)}, r"action is 3 in row 3"),
    ],
)
def test_rows_that_do_not_fit_are_refused(changes: dict[str, Any], text: str, monkeypatch):
    both = columns(5, [0, 1])
    good = {"observation": both, "next_observation": both, "action": np.arange(ROWS) % 3, "reward": np.ones(ROWS)}
    layout = Layout.infer(make(**good))
    monkeypatch.setattr(encoding, "CHUNK", 7)
    with pytest.raises(DataError, match=text):
        layout.pack(make(**(good | changes)))


def test_rows_that_do_not_fit_their_space_are_refused():
    for observation, space in ((columns([0, 1, 1.5]), Discrete(3)), (columns([0, 1], [1, 1]), spaces.OneHot(2))):
        rows = same(observation, observation_space=(space,))
        with pytest.raises(DataError, match=r"observation\[0\] is .* in row [12]"):
            Layout.infer(rows).pack(rows)


def test_a_constant_is_compared_in_the_coarser_type():
    single, double = (same(columns(0.1, [0, 1], dtype=dtype)) for dtype in (np.float32, np.float64))
    Layout.infer(single).pack(double)
    Layout.infer(double).pack(single)
    with pytest.raises(DataError, match=r"observation\[0\]"):
        Layout.infer(same(columns(1e300, [0, 1], dtype=np.float64))).pack(single)
    whole = Layout.infer(same(columns(0, [0, 1, 2], dtype=int)))
    with pytest.raises(DataError, match=r"observation\[0\] is 0.5"):
        whole.pack(same(columns(0.5, [0, 1, 2])))


def test_integers_beyond_int64_are_no_categories():
    action = np.resize(np.array([2**63, 2**63 + 1], np.uint64), ROWS)
    assert Layout.infer(make(action=action)).action == (Integer(2.0**63, 2.0**63),)


@pytest.mark.parametrize("rows", [ROWS, ROWS // 8 * 8 - 1])
def test_chunks_make_no_difference(rows: int, monkeypatch: pytest.MonkeyPatch):
    late = make(
        observation=columns(3, np.repeat([0, 1], 20), np.repeat([0, 1, 2, 2], 10), [0.5, 1]),
        next_observation=columns(3, 1, 2, 1),
    )
    judged = Layout.infer(late, integers="ordered")
    assert judged.observation == (Constant(3), Binary(0, 1), Integer(0, 2), Continuous())
    whole = everything()[:rows]
    layout = Layout.infer(whole)
    matrix = layout.pack(whole)
    other = matrix + np.random.default_rng(0).normal(size=matrix.shape)
    expected = layout.unpack(other)
    monkeypatch.setattr(encoding, "CHUNK", 8)
    monkeypatch.setattr(inference, "CHUNK", 7)
    assert Layout.infer(late, integers="ordered") == judged
    assert np.array_equal(layout.pack(whole), matrix)
    assert layout.unpack(other).equals(expected)


def test_unpack_refuses_other_shapes_and_what_is_not_finite(monkeypatch):
    monkeypatch.setattr(encoding, "CHUNK", 7)
    layout = Layout.infer(make())
    with pytest.raises(DataError, match=r"\(rows, 8\)"):
        layout.unpack(np.zeros((3, 1)))
    matrix = np.zeros((20, 8), np.float32)
    matrix[19, 4] = np.nan
    with pytest.raises(DataError, match=r"reward.*19"):
        layout.unpack(matrix)


def test_neighbours_of_one_kind_are_treated_as_each_alone():
    random = np.random.default_rng(3)
    real, whole = random.normal(size=(ROWS, 2)), columns([0, 5, 2], [5, 0, 3], [0, 9, 4], dtype=np.float64)
    rows = make(
        observation=np.concatenate([real, whole, real[:, :1], columns(7.0, [0, 1], [1, 0], dtype=np.float64)], 1),
        next_observation=np.concatenate([real, whole, real[:, 1:], columns(7.0, [1, 0], [1, 0], dtype=np.float64)], 1),
        action=random.uniform(-1, 1, (ROWS, 4)).astype(np.float32),
        action_space=(Box((-1.0, -1.0, -2.0, -1.0), (1.0, 1.0, 1.0, 1.0)),),
    )
    layout = Layout.infer(rows, integers="ordered")
    assert len(layout.runs) == 7 + 3 + 1 + 7 + 1
    assert layout.unpack(layout.pack(rows)).equals(rows)
    wild = random.normal(scale=9, size=(ROWS, layout.width))
    for matrix in (wild, np.asfortranarray(wild)):
        made, column = layout.unpack(matrix), 0
        for field in ("observation", "action", "reward", "next_observation", "terminal"):
            for place, kind in enumerate(getattr(layout, field)):
                decoded = kind.decode(wild[:, column : column + kind.matrix_width])[:, 0]
                found = getattr(made, field).reshape(ROWS, -1)[:, place]
                np.testing.assert_array_equal(found, decoded.astype(found.dtype), err_msg=f"{field}[{place}]")
                column += kind.matrix_width


def test_whole_numbers_come_back_as_the_nearest_in_their_range():
    generated = np.array([[-9.0], [-1.6], [-0.4], [0.6], [1.49], [1.51], [4.0]])
    assert Integer(-2, 3).decode(generated)[:, 0].tolist() == [-2, -2, 0, 1, 1, 2, 3]


def test_thresholds_decide_flags():
    layout = Layout.infer(make())
    assert layout.thresholds == (0.5,)
    assert layout.lowest_thresholds == (0.05,)
    assert layout.flag_names == ("terminal",)
    matrix = np.zeros((3, 8))
    matrix[:, 7] = [0.2, 0.4, 0.6]
    assert layout.flags(matrix)[:, 0].tolist() == [0.2, 0.4, 0.6]
    assert layout.unpack(matrix).terminal.tolist() == [False, False, True]
    assert layout.with_thresholds([0.3]).unpack(matrix).terminal.tolist() == [False, True, True]
    for wrong in ([0.3, 0.4], [float("nan")]):
        with pytest.raises(DataError, match="threshold"):
            layout.with_thresholds(wrong)
    layout = Layout.infer(same(columns([0, 1]))).with_thresholds([0.9, 0.5, 0.4])
    assert layout.flag_names == ("observation[0]", "next_observation[0]", "terminal")
    assert layout.observation == (Binary(0, 1, 0.9),)
    assert layout.next_observation == (Binary(0, 1, 0.5),)
    assert layout.terminal == (Binary(0, 1, 0.4),)


def test_columns_side_by_side_become_rows():
    rows = everything()
    fields = ("observation", "action", "reward", "next_observation", "terminal")
    beside = np.concatenate([getattr(rows, field).reshape(ROWS, -1) for field in fields], 1, dtype=np.float64)
    assert Layout.infer(rows).rows_from_columns(beside).equals(rows)


def test_settling_makes_what_others_follow_from_valid_and_leaves_outcomes_and_numbers_alone():
    layout = Layout.infer(everything())
    generated = np.random.default_rng(2).normal(size=(200, layout.width))
    settled = generated.copy()
    settle(layout.unsettled, settled)
    given = np.isin(layout.fields, ("observation", "action"))
    for place in layout.nominal_outcomes:
        given[place.matrix] = True
    smooth = np.array([name in ("observation[0]", "action[0]") for name in layout.names])
    assert np.array_equal(settled[:, ~given | smooth], generated[:, ~given | smooth])
    assert not np.array_equal(settled[:, given & ~smooth], generated[:, given & ~smooth])
    before, after = layout.unpack(generated), layout.unpack(settled)
    assert after.equals(before)
    assert np.array_equal(layout.pack(after)[:, given & ~smooth], settled[:, given & ~smooth])


def test_steps_are_next_observations_on_a_lattice():
    tenths = np.random.default_rng(0).integers(-20, 21, (2_000, 1)) / 10
    observation = np.concatenate([np.random.default_rng(1).normal(size=(2_000, 1)), tenths, np.rint(50 * tenths)], 1)
    rows = make(2_000, observation=observation, next_observation=observation[::-1])
    layout = Layout.infer(rows, spikes=True)
    names = [(layout.names[column], layout.names[twin]) for column, twin in Grid.of(layout).steps]
    assert names == [(f"next_observation[{place}]", f"observation[{place}]") for place in (1, 2)]
    assert not Grid.of(Layout.infer(make())).steps


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int64, np.uint64, np.float16])
def test_values_beyond_the_type_end_at_its_limit(dtype: Any):
    limits = np.finfo(dtype) if np.dtype(dtype).kind == "f" else np.iinfo(dtype)
    fraction = 0.5 if np.dtype(dtype).kind == "f" else 1
    rows = same(np.tile(np.array([[limits.min], [limits.max], [fraction], [0]], dtype), (ROWS // 4, 1)))
    layout = Layout.infer(rows, integers="ordered")
    matrix = np.repeat([[1e300], [-1e300]], layout.width, 1)
    column = layout.unpack(matrix).observation[:, 0]
    assert float(column[0]) == pytest.approx(float(limits.max))
    assert float(column[1]) == float(limits.min)


MATRICES = hnp.arrays(
    np.float64,
    (4, Layout.infer(everything(), integers="ordered").width),
    elements=st.floats(allow_nan=False, allow_infinity=False) | st.floats(-3, 3),
)


@settings(max_examples=60, deadline=None)
@given(matrix=MATRICES, coding=st.sampled_from(["onehot", "bits"]))
def test_any_finite_matrix_decodes_to_valid_rows(matrix: np.ndarray, coding: kinds.Coding):
    layout = Layout.infer(everything(), coding, integers="ordered")
    rows = layout.unpack(matrix[:, : layout.width])
    for values in (rows.observation, rows.next_observation):
        assert (values[:, 1] == 7.25).all()
        assert np.isin(values[:, [2, 5]], (0, 1)).all()
        assert np.isin(values[:, 3], range(2, 10)).all()
        assert np.isin(values[:, 4], range(4, 10)).all()
        assert np.isin(values[:, 6:], (0, 1)).all()
        assert (values[:, 6:].sum(1) == 1).all()
    assert (rows.action[:, 0] >= -1).all()
    assert np.isin(rows.action[:, 1], range(5)).all()
    assert np.isin(rows.reward, (-1, 0)).all()
    assert np.array_equal(layout.unpack(layout.pack(rows)).action, rows.action)


@pytest.mark.parametrize("chunk", [7, 40])
def test_rows_are_prepared_chunk_by_chunk(chunk: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(preparing, "CHUNK_ROWS", chunk)
    rows = everything()
    prepared = prepare(rows, "standard", "onehot", False)
    packed = prepared.layout.pack(rows)
    scaled = prepared.layout.scaled_columns
    expected = packed.copy()
    expected[:, scaled] = (packed[:, scaled] - packed[:, scaled].mean(0)) / packed[:, scaled].std(0)
    assert np.allclose(prepared.matrix, expected, atol=1e-5)
    names = prepared.layout.flag_names
    flags = ("observation[2]", "observation[5]")
    assert names == (*flags, "reward", *(f"next_{flag}" for flag in flags), "terminal")
    places = [prepared.layout.names.index(name) for name in names]
    assert prepared.rates == pytest.approx(packed[:, places].mean(0))
    assert prepared.rates[-1] == pytest.approx(6 / 40)


def test_rewards_enter_the_matrix_without_what_terminals_pay():
    rows = everything()
    rows = replace(rows, reward=np.linspace(0, 1, len(rows)) + 8 * rows.terminal)
    layout = prepare(rows, "standard", "onehot", False, terminal_reward=8.0).layout
    assert through_json(layout) == layout
    np.testing.assert_allclose(layout.pack(rows)[:, layout.names.index("reward")], np.linspace(0, 1, len(rows)))
    np.testing.assert_allclose(layout.unpack(layout.pack(rows)).reward, rows.reward)
    discrete = prepare(everything(), "standard", "onehot", False, terminal_reward=8.0).layout
    assert discrete.terminal_reward == 0, "a reward of two values is one of these"


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

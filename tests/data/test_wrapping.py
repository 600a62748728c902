"""A step from just below pi to just above -pi is a short one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from synther import Synthesizer
from synther.data.kinds import Continuous, Integer, Levels, Wrapped, from_json, to_json
from synther.data.layout import Layout
from synther.data.numbers import Numbers
from synther.data.preparing import prepare
from synther.data.scaling import resolve_kinds
from synther.data.spaces import Box
from synther.data.transitions import Transitions
from synther.errors import SyntherError

from ..support.layouts import decoded, through_json

TURN = 2 * np.pi
ROWS = 4_000
ANGLE = Wrapped(-np.pi, TURN)


def wrap(values: np.ndarray, low: float = -np.pi, period: float = TURN) -> np.ndarray:
    return low + (values - low) % period


def rows_of(before: np.ndarray, after: np.ndarray, action: np.ndarray | None = None) -> Transitions:
    """Beside the column in question a plain one."""
    action = np.zeros(len(before)) if action is None else action
    plain = np.random.default_rng(1).normal(size=(2, len(before)))
    here, there = (
        np.stack([values, own], 1).astype(np.float32) for values, own in zip((before, after), plain, strict=True)
    )
    ended = np.zeros(len(before), bool)
    return Transitions(here, action[:, None].astype(np.float32), np.sin(before), there, ended)


def turning(low: float = -np.pi, period: float = TURN, at: float | None = None) -> Transitions:
    """A heading that turns by the action and a little noise. It points everywhere, or about one way."""
    draw = np.random.default_rng(0)
    before = low + period * draw.random(ROWS) if at is None else wrap(at + period * 0.05 * draw.normal(size=ROWS))
    action = draw.uniform(-1, 1, ROWS)
    after = before + period * (0.05 * action + 0.01 * draw.normal(size=ROWS))
    return rows_of(before, wrap(after, low, period), action)


def kind_of(rows: Transitions) -> object:
    layout = Layout.infer(rows, spikes=True)
    assert layout.observation == layout.next_observation
    assert layout.observation[1] == Continuous()
    return layout.observation[0]


@pytest.mark.parametrize(("low", "period"), [(-np.pi, TURN), (0.0, TURN), (0.0, 360.0), (-180.0, 360.0), (0.0, 1.0)])
def test_circles_that_everybody_knows(low, period):
    assert kind_of(turning(low, period)) == Wrapped(low, period)
    assert not isinstance(Layout.infer(turning(low, period)).observation[0], Wrapped), "only where it is asked for"


def test_circles_of_any_length():
    found = kind_of(turning(-20.0, 33.0))
    assert isinstance(found, Wrapped)
    assert (found.low, found.period) == pytest.approx((-20, 33), abs=0.02)
    declared = replace(turning(-20.0, 33.0), observation_space=(Box((-20.0, -np.inf), (13.0, np.inf)),))
    assert kind_of(declared) == Wrapped(-20.0, 33.0)


def test_an_angle_that_only_ever_points_backwards():
    assert kind_of(turning(at=np.pi)) == ANGLE
    assert kind_of(turning(at=0.0)) == Continuous()


def other_columns() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    draw = np.random.default_rng(2)
    before, after = draw.uniform(-np.pi, np.pi, (2, ROWS))
    side = draw.choice([-1.0, 1.0], (2, ROWS)) + 0.05 * draw.normal(size=(2, ROWS))
    clock = draw.random(ROWS)
    return {
        "drawn anew": (before, after),
        "two modes": tuple(side),
        "reflected": (before, np.clip(before + 0.3 * draw.normal(size=ROWS), -np.pi, np.pi)),
        "set back at random": (clock, np.where(draw.random(ROWS) < 0.05, 0.001 * clock, np.minimum(clock + 0.01, 1))),
        "hardly ever across": (before, np.where(np.arange(ROWS) < 5, -before, before)),
    }


@pytest.mark.parametrize("name", other_columns())
def test_columns_that_go_in_no_circle(name):
    assert not isinstance(kind_of(rows_of(*other_columns()[name])), Wrapped)


@pytest.mark.parametrize(("step", "period"), [(1.0, 360.0), (1.0, 100.0), (0.25, 24.0)])
def test_whole_numbers_and_levels_on_a_circle(step, period):
    """A heading in whole degrees, the place in a cycle of 100, a time of day in quarters of an hour."""
    draw = np.random.default_rng(0)
    before = step * draw.integers(0, round(period / step), 20_000)
    action = draw.integers(-2, 3, len(before))
    after = before + step * (action + draw.integers(0, 2, len(before)))
    plain = draw.normal(size=(2, len(before)))
    here, there = (np.stack([own, each], 1) for own, each in zip((before, after % period), plain, strict=True))
    rows = Transitions.of(observation=here, action=action[:, None], reward=plain[0], next_observation=there)
    found = prepare(rows, "standard", "onehot", True, residuals="bent", counted=True, decided=True)
    kind = found.layout.observation[0]
    assert isinstance(kind, Integer if step == 1 else Levels)
    assert kind.circle == pytest.approx(period)
    column = found.layout.names.index("next_observation[0]")
    assert len(np.unique(found.matrix[:, column].round(3))) == 2  # whether it went a step further than asked
    noise = 0.1 * draw.normal(size=found.matrix.shape) * (np.arange(found.matrix.shape[1]) == column)
    back = decoded(found, found.matrix + noise)
    assert np.array_equal(back.next_observation[:, 0], rows.next_observation[:, 0])
    assert set(np.unique(back.next_observation[:, 0])) <= set(np.unique(before))
    assert through_json(found.layout) == found.layout


@given(st.integers(-1_000, 1_000), st.floats(-0.4, 0.4))
def test_any_number_comes_back_on_the_lattice_of_the_circle(number, off):
    hours, quarters = Integer(0.0, 23.0, 24.0), Levels(tuple(np.arange(0, 24, 0.25).tolist()), 24.0)
    assert hours.decode(np.array([[number + off]])) == number % 24
    assert quarters.decode(np.array([[(number + off) / 4]])) == number % 96 / 4


@pytest.mark.parametrize("period", [5.0, -1.0, float("inf"), float("nan")])
def test_a_lattice_is_shorter_than_its_circle(period):
    with pytest.raises(SyntherError, match="circular column"):
        Integer(0.0, 9.0, period)


def test_what_depends_on_sine_and_cosine_of_an_angle_is_exact():
    """A point goes ahead at its speed, and a pole falls. The speed of the pole is limited."""
    draw = np.random.default_rng(0)
    angle, speed = draw.uniform(-np.pi, np.pi, 20_000), draw.uniform(-8, 8, 20_000)
    action = draw.uniform(-2, 2, 20_000)
    ahead = 0.2 * (1 + action / 2) * np.cos(angle)
    faster = np.clip(speed + 0.75 * np.sin(angle) + 0.15 * action, -8, 8)
    here = np.stack([angle, speed, np.zeros(20_000)], 1)
    there = np.stack([wrap(angle + 0.05 * faster), faster, ahead], 1)
    here[:, 2] = draw.normal(size=20_000)
    there[:, 2] += here[:, 2]
    rows = Transitions.of(observation=here, action=action[:, None], reward=here[:, 2], next_observation=there)
    found = prepare(rows, "quantile", "onehot", True, residuals="bent", counted=True, decided=True)
    assert [clip.column for clip in found.layout.clips] == [1]
    made = decoded(found, found.matrix + 0.1 * draw.normal(size=found.matrix.shape))
    o, a, n = made.observation, made.action[:, 0], made.next_observation
    expected = np.clip(o[:, 1] + 0.75 * np.sin(o[:, 0]) + 0.15 * a, -8, 8)
    assert np.abs(n[:, 1] - expected).max() < 1e-3
    assert np.abs(n[:, 2] - o[:, 2] - 0.2 * (1 + a / 2) * np.cos(o[:, 0])).max() < 1e-3
    assert np.mean(np.abs(n[:, 1]) == 8) == pytest.approx(np.mean(np.abs(faster) == 8), rel=0.1)


def test_the_matrix_has_short_steps_and_rows_come_back():
    rows = turning()
    layout = Layout.infer(rows, spikes=True)
    matrix = layout.pack(rows)
    before, after = (matrix[:, layout.names.index(f"{field}[0]")] for field in ("observation", "next_observation"))
    assert np.array_equal(before, rows.observation[:, 0])
    assert np.abs(after - before).max() < 0.6
    assert np.mean(np.abs(rows.next_observation[:, 0] - rows.observation[:, 0]) > 5) > 0.01
    assert layout.unpack(matrix).equals(rows)
    alone = layout.pack_fields({"next_observation": rows.next_observation})
    assert np.abs(alone[:, layout.names.index("next_observation[0]")]).max() <= np.float32(np.pi)
    assert through_json(layout) == layout


@given(st.floats(-1e6, 1e6))
def test_any_number_comes_back_as_the_same_angle(value):
    (made,) = ANGLE.decode(np.array([[value]]))[0]
    assert -np.pi <= made <= np.pi
    assert np.cos(made - value) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("damage", [{"period": 0.0}, {"period": -1.0}, {"low": None}, {"period": "inf"}])
def test_a_circle_that_cannot_be(damage):
    with pytest.raises(SyntherError):
        from_json(to_json(ANGLE) | damage)


def test_generated_angles_turn_as_real_ones_do():
    """Also across the end, with a network that was fitted for a moment."""
    rows = turning()
    network, fit = {"width": 64, "depth": 2, "embedding": 16}, {"steps": 300, "learning_rate": 4e-3}
    made = (
        Synthesizer("laptop", network=network, fit=fit).fit(rows, progress=False).sample(8_000, seed=0, progress=False)
    )

    def turn(rows: Transitions) -> np.ndarray:
        return wrap(rows.next_observation[:, 0] - rows.observation[:, 0] - 0.05 * TURN * rows.action[:, 0])

    assert np.abs(made.observation[:, 0]).max() <= np.float32(np.pi)
    assert turn(made).std() == pytest.approx(turn(rows).std(), rel=0.15)
    assert np.abs(turn(made)).max() < 1
    across = [np.mean(np.abs(one.next_observation[:, 0] - one.observation[:, 0]) > np.pi) for one in (rows, made)]
    assert across[1] == pytest.approx(across[0], rel=0.3)


@pytest.mark.cuda
def test_a_gpu_wraps_as_a_cpu():
    matrix = torch.linspace(-30, 30, 1_001, dtype=torch.float64).repeat(2, 1)
    cpu, gpu = (Numbers([ANGLE, Continuous()], [0, 1], torch.device(name)) for name in ("cpu", "cuda"))
    torch.testing.assert_close(gpu(matrix.cuda()).cpu(), cpu(matrix))


def test_circles_are_not_blended():
    """Their density does not fall off at the ends of their range."""
    layout = Layout.infer(turning(), spikes=True)
    kinds = dict(zip(layout.names, resolve_kinds(layout, "blend"), strict=True))
    assert [kinds[name] for name in ("observation[0]", "observation[1]", "action[0]")] == ["quantile", "blend", "blend"]
    assert set(resolve_kinds(layout, "standard")) == {"standard"}

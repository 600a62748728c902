"""Chances of discrete values in worlds where they are known, and rows weighted by them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from synther import Synthesizer, Transitions
from synther.calibration.rates import resampled
from synther.data.kinds import Drawn
from synther.data.layout import Layout
from synther.data.preparing import prepare
from synther.errors import FormatError
from synther.relevance.discrete import DiscreteLaw, Reweighting

ROWS = 4_000


def chance(sharpness: float, state: np.ndarray, action: np.ndarray) -> np.ndarray:
    """That the lamp is on afterwards."""
    return 1 / (1 + np.exp(-sharpness * (state[:, 0] + (action - 1) * state[:, 1] - 1)))


def policy(sharpness: float, state: np.ndarray) -> np.ndarray:
    """Chances of three actions. (N, 3)"""
    odds = np.exp(sharpness * state[:, :1] * np.array([-1.0, 0.0, 1.0]))
    return odds / odds.sum(1, keepdims=True)


def world(seed: int, sharpness: float = 2.0, count: int = ROWS) -> Transitions:
    """Two numbers, an action, and a lamp. A generator that blurs what depends on the numbers has less `sharpness`."""
    draw = np.random.default_rng(seed)
    state = draw.normal(size=(count, 2))
    action = (draw.random((count, 1)) > policy(sharpness, state).cumsum(1)).sum(1)
    lamp = draw.random(count) < chance(sharpness, state, action)
    here = np.column_stack([state, draw.random(count) < 0.5])
    there = np.column_stack([0.9 * state, lamp])
    return Transitions(here, action, state[:, 1], there, np.zeros(count, bool))


def shares(rows: Transitions) -> np.ndarray:
    """How often the lamp is on, and the first action is taken, where that is unlikely, possible and likely: as a part
    of how often it should be."""
    state, is_first = rows.observation[:, :2], rows.action == 0
    found = []
    for happened, wanted in (
        (rows.next_observation[:, 2], chance(2.0, state, rows.action)),
        (is_first, policy(2.0, state)[:, 0]),
    ):
        parts = [(wanted >= low) & (wanted < high) for low, high in ((0.02, 0.2), (0.2, 0.8), (0.8, 1.01))]
        found += [happened[part].mean() / wanted[part].mean() for part in parts]
    return np.array(found)


@pytest.fixture(scope="module")
def real() -> Transitions:
    return world(0)


@pytest.fixture(scope="module")
def law(real) -> DiscreteLaw:
    found = DiscreteLaw.fit(real, Layout.infer(real))
    assert found is not None
    return found


@pytest.fixture(scope="module")
def blurred() -> Transitions:
    return world(1, sharpness=0.5, count=10_000)


@pytest.fixture(scope="module")
def reweighting(law, blurred) -> Reweighting:
    found = Reweighting.learn(law, blurred, seed=0)
    assert found is not None
    return found


def test_chances_are_those_of_the_world(law):
    rows = world(2)
    found = law.log_likelihood(rows)
    state, lit = rows.observation[:, :2], rows.next_observation[:, 2] == 1
    on = chance(2.0, state, rows.action)
    true = [
        np.full(ROWS, np.log(0.5)),  # the lamp before the step is up to chance
        np.log(policy(2.0, state)[np.arange(ROWS), rows.action]),
        np.log(np.where(lit, on, 1 - on)),
    ]
    lost = np.mean(np.stack(true, axis=1) - found, axis=0)
    np.testing.assert_array_less(np.abs(lost), 0.02)


def test_weighted_rows_have_discrete_values_as_often_as_real_ones(reweighting):
    rows = world(3, sharpness=0.5, count=40_000)
    off = np.abs(np.log(shares(rows)))
    assert off[[0, 2, 3, 5]].min() > 0.25
    taken = rows[resampled(reweighting.weights(rows), np.random.default_rng(0))]
    assert np.abs(np.log(shares(taken))).max() < 0.12


def test_weights_leave_numbers_as_they_are(reweighting, blurred):
    weight = reweighting.weights(blurred)
    for column in blurred.observation[:, :2].T:
        assert abs(np.average(column, weights=weight)) < 0.06
        assert np.average(column**2, weights=weight) == pytest.approx(1, abs=0.06)


def test_only_columns_that_are_wrong_are_weighted(law):
    right = world(4, count=10_000)
    assert Reweighting.learn(law, right, seed=0) is None
    draw = np.random.default_rng(5)
    there = right.next_observation.copy()
    there[:, 2] = draw.random(len(right)) < there[:, 2].mean()
    found = Reweighting.learn(law, replace(right, next_observation=there), seed=0)
    assert found is not None
    assert found.blurred == (2,)


def test_a_law_that_has_learned_little_gives_no_weights(real):
    """The law of generated rows, which are right, tells more about real rows than that of the real rows."""
    weak = DiscreteLaw.fit(real, Layout.infer(real), steps=3)
    right = world(4, count=10_000)
    assert Reweighting.learn(weak, right, seed=0) is None


def test_whole_numbers_of_few_values_have_chances_too(real):
    """A stock of 0 to 9 may be ordered, as here, or a category."""
    draw = np.random.default_rng(6)
    stock = draw.integers(0, 10, len(real)).astype(np.float64)
    rows = replace(real, observation=np.column_stack([real.observation, stock]),
                   next_observation=np.column_stack([real.next_observation, stock]))  # fmt: skip
    laws = [DiscreteLaw.fit(rows, Layout.infer(rows, integers=how), steps=2) for how in ("ordered", "categorical")]
    assert [law.names for law in laws] == [laws[1].names] * 2
    assert "next_observation[3]" in laws[0].names
    found = [law.log_likelihood(rows[:100])[:, law.names.index("next_observation[3]")] for law in laws]
    np.testing.assert_allclose(*found)


def test_rows_of_numbers_have_no_law(real):
    numbers = Transitions(real.observation[:, :2], real.observation[:, :1], real.reward, real.observation[:, :2])
    assert DiscreteLaw.fit(numbers, Layout.infer(numbers)) is None


def test_too_few_rows_have_no_law(real):
    few = real[:500]
    assert DiscreteLaw.fit(few, Layout.infer(few)) is None


def test_skipped_fields_have_no_part_in_it(real):
    rows = replace(real, reward=(real.next_observation[:, 0] > 0).astype(np.float64))[:1_000]
    layout = Layout.infer(rows)
    columns = [
        len(DiscreteLaw.fit(rows, layout, skipped, steps=10).log_likelihood(rows[:2])[0])
        for skipped in ((), ("reward",))
    ]
    assert columns == [4, 3]


def test_a_file_keeps_chances_and_weights(law, reweighting, real):
    layout = Layout.infer(real)
    restored = DiscreteLaw.restored(layout, (), law.tensors())
    again = Reweighting.restored(restored, reweighting.tensors())
    np.testing.assert_array_equal(again.weights(real), reweighting.weights(real))
    with pytest.raises(ValueError, match="columns"):
        Reweighting.restored(restored, reweighting.tensors() | {"blurred": torch.tensor([9])})
    other = Layout.infer(replace(real, observation=real.observation[:, :2], next_observation=real.observation[:, :2]))
    with pytest.raises(ValueError, match="columns"):
        DiscreteLaw.restored(other, (), law.tensors())


@pytest.fixture(scope="module")
def model(real) -> Synthesizer:
    small = {"network": {"width": 32, "depth": 2}, "fit": {"steps": 300}, "sampler": {"steps": 8}}
    return Synthesizer("laptop", device="cpu", **small).fit(real, progress=False)


def test_a_model_draws_weighted_rows(model):
    assert {"action", "next_observation[2]"} <= {*model.weighted}
    drawn = model.sample(20_000, seed=1, progress=False)
    assert np.abs(np.log(shares(drawn))).max() < 0.3


def test_a_saved_model_draws_the_same_rows(model, tmp_path):
    model.save(tmp_path / "model.safetensors")
    again = Synthesizer.load(tmp_path / "model.safetensors", device="cpu")
    one, other = (each.sample(500, seed=3, progress=False) for each in (model, again))
    np.testing.assert_array_equal(one.action, other.action)
    np.testing.assert_array_equal(one.next_observation, other.next_observation)


def test_a_file_with_half_of_the_chances_is_refused(model, tmp_path):
    path = tmp_path / "model.safetensors"
    model.save(path)
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(path, "pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys() if name != "discrete.0.1"}  # noqa: SIM118
    save_file(tensors, path, metadata)
    with pytest.raises(FormatError, match="damaged"):
        Synthesizer.load(path)


def test_values_that_differ_by_rounding_have_probabilities():
    """0.1 + 0.2 is not 0.3 in float64, and a column on a lattice may have both."""
    draw = np.random.default_rng(0)
    here, reward = draw.normal(size=(4_000, 2)), draw.choice([0.1, 0.3, 0.1 + 0.2, 0.7], 4_000)
    real = Transitions(here, draw.normal(size=(4_000, 1)), reward, here[::-1].copy())
    layout = prepare(real, "quantile", "onehot", True, residuals="bent", counted=True).layout
    assert isinstance(layout.reward[0], Drawn)
    law = DiscreteLaw.fit(real, layout, steps=10)
    assert law is not None
    assert np.isfinite(law.log_likelihood(real)).all()

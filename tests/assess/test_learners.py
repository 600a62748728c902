from __future__ import annotations

import numpy as np
import pytest
import torch

from synther.assess import learners, usefulness
from synther.assess.classifier import auc, tell_apart
from synther.assess.features import Features
from synther.data.transitions import Transitions


def normal(count: int, width: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learners, "WIDTH", 64)


class TestFit:
    def test_members_learn_from_their_own_rows(self) -> None:
        inputs = np.tile(normal(1_000, 2, 0), (2, 1))
        targets = inputs[:, :1] * np.repeat([1.0, -1.0], 1_000)[:, None].astype(np.float32)
        first, second = np.arange(1_000), np.arange(1_000, 2_000)
        networks = learners.fit(inputs, targets, [[first], [second], [first, second]], learners.squared, seed=0)
        asked = normal(500, 2, 1)
        up, down, between = networks.predict(asked)[..., 0]
        np.testing.assert_allclose(up, asked[:, 0], atol=0.25)
        np.testing.assert_allclose(down, -asked[:, 0], atol=0.25)
        assert np.abs(between).mean() < 0.25

    def test_same_seed_same_weights_and_nothing_global_is_touched(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(learners, "FEWEST_STEPS", 20)
        torch.set_num_threads(2)
        state = torch.random.get_rng_state()
        inputs, draws = normal(50, 3, 0), [[np.arange(50)]]
        fits = [learners.fit(inputs, inputs, draws, learners.squared, seed=seed).predict(inputs) for seed in (0, 0, 1)]
        assert np.array_equal(fits[0], fits[1])
        assert not np.array_equal(fits[0], fits[2])
        assert torch.get_num_threads() == 2
        assert torch.equal(state, torch.random.get_rng_state())
        torch.set_num_threads(1)

    def test_classes(self) -> None:
        inputs = normal(2_000, 2, 0)
        targets = np.eye(3, dtype=np.float32)[np.digitize(inputs[:, 0], [-0.5, 0.5])]
        networks = learners.fit(inputs, targets, [[np.arange(2_000)]], learners.classes, seed=0)
        assert usefulness.accuracy(networks.predict(inputs)[0], targets) > 0.95


class TestAuc:
    def test_equals_counting_pairs(self) -> None:
        rng = np.random.default_rng(0)
        lower, higher = rng.integers(0, 9, 40), rng.integers(2, 12, 30)
        pairs = np.sign(higher[:, None] - lower) / 2 + 0.5
        assert auc(lower, higher) == pytest.approx(pairs.mean())


def test_tell_apart_what_is_other_and_not_what_is_alike() -> None:
    fitted = normal(1_000, 3, 0), normal(1_000, 3, 1) * [1, 1, 0.1], normal(1_000, 3, 2)
    scored = normal(800, 3, 3), normal(800, 3, 4) * [1, 1, 0.1], normal(800, 3, 5)
    other, alike = tell_apart(*([part.astype(np.float32) for part in group] for group in (fitted, scored)), seed=0)
    assert other > 0.85  # the best anybody can do for these two stds is 0.90
    assert alike == pytest.approx(0.5, abs=0.05)


def rows(count: int, seed: int, *, obeys: bool = True, discrete: bool = False) -> Transitions:
    rng = np.random.default_rng(seed)
    state = rng.normal(size=(count, 2)).astype(np.float32)
    knows = state if obeys else rng.normal(size=(count, 2)).astype(np.float32)
    action = (knows[:, 0] > 0).astype(int) if discrete else np.tanh(knows[:, :1])
    return Transitions(observation=state, action=action, reward=knows[:, 1], next_observation=state + 0.1 * knows)


@pytest.mark.parametrize("discrete", [False, True])
def test_usefulness_of_rows_that_obey_and_of_rows_that_do_not(discrete: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usefulness, "MEMBERS", 1)
    monkeypatch.setattr(learners, "FEWEST_STEPS", 150)
    real, held_out = rows(800, 0, discrete=discrete), rows(600, 1, discrete=discrete)
    useful, useless = (rows(800, 2, obeys=obeys, discrete=discrete) for obeys in (True, False))
    features = Features.of(real)
    good = usefulness.actions(features, real, useful, held_out, seed=0).scores
    bad = usefulness.actions(features, real, useless, held_out, seed=0).scores
    assert good.synthetic > 0.95
    assert good.synthetic == pytest.approx(good.real, abs=0.03)
    assert bad.synthetic < (0.65 if discrete else 0.1)
    assert bad.synthetic + 0.2 < bad.mixed < bad.real + 0.01
    if not discrete:
        assert usefulness.outcomes(features, real, useful, held_out, seed=0).scores.synthetic > 0.95


def test_explained_at_best_at_worst_and_without_anything_to_explain() -> None:
    truth = normal(50, 2, 0)
    assert usefulness.explained(truth, truth) == 1
    assert usefulness.explained(np.broadcast_to(truth.mean(0), truth.shape), truth) == pytest.approx(0, abs=1e-6)
    assert usefulness.explained(-truth, truth) < -2
    assert usefulness.explained(np.ones((5, 1)), np.ones((5, 1))) == 1
    assert usefulness.explained(np.zeros((5, 1)), np.ones((5, 1))) == 0


def test_an_action_nobody_knows_is_never_named() -> None:
    assert usefulness.accuracy(np.eye(2)[[0, 1, 0]], np.array([[1, 0], [1, 0], [0, 0]])) == pytest.approx(1 / 3)


class TestFeatures:
    def test_discrete_actions_are_columns(self) -> None:
        real = rows(100, 0, discrete=True)
        features = Features.of(real)
        assert features.action(real).sum(axis=1).tolist() == [1] * 100
        other = Transitions(real.observation[:1], np.array([7]), real.reward[:1], real.observation[:1])
        assert features.action(other).tolist() == [[0, 0]]

    def test_absurd_values_are_cut_and_constants_are_left_alone(self) -> None:
        huge = np.array([[1.7e308, 3.0], [-1.7e308, 3.0], [0.0, 3.0]])
        real = Transitions(huge, np.array([0, 1, 70_000]), np.zeros(3), -huge)
        features = Features.of(real)
        for part in (features.whole(real), features.decision(real), features.outcome(real)):
            assert np.isfinite(part).all()
            assert np.abs(part).max() <= 10
        many = Transitions(np.zeros((300, 1)), np.arange(300), np.zeros(300), np.zeros((300, 1)))
        assert Features.of(many).action(many).shape == (300, 1)

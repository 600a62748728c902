"""The ensemble on worlds whose law is known, and the filter that it makes possible."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from synther import Transitions
from synther.data.spaces import Discrete
from synther.errors import ConfigError, DataError
from synther.relevance import dynamics
from synther.relevance.consistency import Filter, check_keep
from synther.relevance.dynamics import Ensemble, one_step

NOISE = 0.2


def world(count: int, seed: int = 0) -> Transitions:
    """s' - s = 0.5 tanh(s) + 0.3 a and noise in the first column only; r = s'[0] exactly; it ends above 1.5.

    The last column is constant, the one before it a thousand times as large as the others.
    """
    draw = np.random.default_rng(seed)
    state = draw.normal(size=(count, 2))
    action = draw.uniform(-1, 1, (count, 1))
    following = state + 0.5 * np.tanh(state) + 0.3 * action
    following[:, 0] += NOISE * draw.normal(size=count)
    here, there = (np.hstack([part * [1, 1000], np.full((count, 1), 7.0)]) for part in (state, following))
    return Transitions(here, action, following[:, 0], there, following[:, 0] > 1.5)


def quick(rows: Transitions, **how) -> Ensemble:
    return Ensemble.fit(rows, **{"members": 3, "width": 48, "steps": 200, "device": "cpu", "progress": False, **how})


@pytest.fixture(scope="module")
def ensemble() -> Ensemble:
    return quick(world(4_000))


@pytest.fixture(scope="module")
def fresh() -> Transitions:
    return world(6_000, seed=1)


def noise_in(rows: Transitions) -> float:
    """The standard deviation of what is random, which is known here."""
    state, moved = rows.observation[:, 0], rows.next_observation[:, 0]
    return float(np.std(moved - state - 0.5 * np.tanh(state) - 0.3 * rows.action[:, 0]))


def filtered(ensemble: Ensemble, rows: Transitions, keep: float) -> np.ndarray:
    chance = ensemble.filter(rows, keep).chance(ensemble.scores(rows)[0], rows.terminal)
    return np.random.default_rng(0).random(len(rows)) < chance


def test_outcomes_have_the_law_of_the_world(ensemble, fresh):
    drawn = ensemble.outcomes(fresh.observation, fresh.action, seed=0)
    assert noise_in(drawn) == pytest.approx(NOISE, rel=0.1)
    assert np.array_equal(drawn.observation, fresh.observation)
    assert np.abs(drawn.reward - drawn.next_observation[:, 0]).mean() < 0.1  # the reward belongs to what was drawn
    assert np.mean(drawn.terminal == (drawn.next_observation[:, 0] > 1.5)) > 0.93
    assert (drawn.next_observation[:, 2] == 7).all()
    assert drawn.equals(ensemble.outcomes(fresh.observation, fresh.action, seed=0))
    assert not drawn.equals(ensemble.outcomes(fresh.observation, fresh.action, seed=1))


def test_real_rows_are_as_consistent_as_real_rows(ensemble, fresh):
    scores, _ = ensemble.scores(fresh)
    assert np.quantile(scores, [0.5, 0.9]) == pytest.approx(-np.log([0.5, 0.1]), rel=0.2)  # exponential


@pytest.mark.parametrize("keep", [0.8, 0.5])
def test_the_filter_does_not_narrow_what_is_random(ensemble, fresh, keep):
    kept = filtered(ensemble, fresh, keep)
    assert kept.mean() == pytest.approx(keep, abs=0.02)
    assert noise_in(fresh[kept]) == pytest.approx(noise_in(fresh), rel=0.02)
    scores, _ = ensemble.scores(fresh)
    narrowed = scores <= np.quantile(scores, keep)  # what a filter by score alone would do
    assert noise_in(fresh[narrowed]) < 0.95 * noise_in(fresh)


@pytest.mark.parametrize("field", ["next_observation", "reward", "terminal"])
def test_corrupted_rows_go_and_noise_stays(ensemble, fresh, field):
    """In one row of ten one outcome is that of another row."""
    wrong = np.arange(len(fresh)) % 10 == 0
    values = getattr(fresh, field).copy()
    values[wrong] = ~values[wrong] if field == "terminal" else np.roll(values[wrong], 1, axis=0)
    rows = replace(fresh, **{field: values})
    kept = filtered(ensemble, rows, 0.88)
    assert kept[wrong].mean() < 0.35  # fewer with more real rows to compare with
    assert noise_in(fresh[kept & ~wrong]) == pytest.approx(noise_in(fresh), rel=0.03)
    causes = ensemble.scores(rows[wrong])[1]
    if field != "next_observation":  # whose reward and terminal do not fit either
        assert np.mean(np.array(ensemble.names)[causes] == field) > 0.5


@pytest.mark.parametrize(("real_rate", "kept_rate"), [(0.1, 0.1), (0.5, 0.1), (0.06, 0.06)])
def test_terminals_are_kept_as_far_as_real_rows_have_them(real_rate, kept_rate):
    """One row in ten is a terminal; every second one of these is inconsistent, and no other row."""
    draw = np.random.default_rng(0)
    scores, terminal = draw.exponential(size=20_000), np.arange(20_000) % 10 == 0
    wrong = np.arange(20_000) % 20 == 0
    scores[wrong] += 8
    found = Filter.of(scores, terminal, 0.9, 5_000, real_rate)
    chance = found.chance(scores, terminal)
    assert chance.mean() == pytest.approx(0.9, abs=0.01)
    assert chance[terminal].sum() / chance.sum() == pytest.approx(kept_rate, abs=0.005)
    assert chance[wrong].mean() < 0.82 < 0.89 < chance[~terminal].mean()


def test_rows_that_are_too_consistent_are_not_discarded_for_it(ensemble, fresh):
    state, action = fresh.observation[:, :2] / [1, 1000], fresh.action
    exact = (state + 0.5 * np.tanh(state) + 0.3 * action) * [1, 1000]
    rows = replace(fresh, next_observation=np.hstack([exact, fresh.next_observation[:, 2:]]), reward=exact[:, 0])
    scores, _ = ensemble.scores(rows)
    kept = filtered(ensemble, rows, 0.7)
    assert scores[kept].mean() < 1.05 * scores.mean()


def test_relabelled_rows_have_the_reward_and_terminal_that_belong_to_them(ensemble, fresh):
    rows = replace(fresh, reward=np.zeros(len(fresh)), terminal=np.zeros(len(fresh), bool))
    found = ensemble.relabelled(rows)
    assert np.corrcoef(found.reward, fresh.reward)[0, 1] > 0.99
    assert np.mean(found.terminal == fresh.terminal) > 0.93
    assert np.array_equal(found.next_observation, fresh.next_observation)
    assert found.equals(ensemble.relabelled(rows))


def test_one_step_error_and_spread(ensemble, fresh):
    found = one_step(ensemble.outcomes, fresh[:2_000], draws=4)
    size = np.std(fresh.next_observation - fresh.observation, axis=0)[:2]
    noise = np.sqrt(np.mean([(NOISE / size[0]) ** 2, 0]))  # in units of the changes, over both columns that vary
    assert found.spread == pytest.approx(noise, rel=0.15)
    assert noise < found.error < 1.3 * np.sqrt(1 + 1 / 4) * noise
    assert 0 < found.reward_spread < found.reward_error < 1
    with pytest.raises(DataError, match="draws"):
        one_step(ensemble.outcomes, fresh, draws=1)


def test_saved_networks_answer_alike(ensemble, fresh):
    copy = Ensemble.restored(ensemble.layout, ensemble.to_json(), ensemble.tensors())
    assert all(np.array_equal(*pair) for pair in zip(copy.scores(fresh), ensemble.scores(fresh), strict=True))
    assert copy.outcomes(fresh.observation, fresh.action).equals(ensemble.outcomes(fresh.observation, fresh.action))
    tensors = ensemble.tensors()
    with pytest.raises(ValueError, match="ensemble"):
        Ensemble.restored(ensemble.layout, ensemble.to_json(), {**tensors, "units.mean": tensors["units.mean"][1:]})


def test_the_same_seed_gives_the_same_networks():
    rows = world(300)
    one, same, other = (quick(rows, seed=seed, steps=5).tensors() for seed in (0, 0, 1))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["transition.0"], other["transition.0"])


def grid(count: int) -> Transitions:
    """Nine states in a row; action 1 goes right and 0 left, and one time in four nothing happens."""
    draw = np.random.default_rng(0)
    state, action = draw.integers(0, 9, count), draw.integers(0, 2, count)
    moved = np.clip(state + np.where(draw.random(count) < 0.25, 0, 2 * action - 1), 0, 8)
    space = (Discrete(9),)
    return Transitions(
        state, action, moved == 8, moved, moved == 8, observation_space=space, action_space=(Discrete(2),)
    )


def test_discrete_observations_and_actions_are_categories():
    rows = grid(2_000)
    ensemble = quick(rows, members=2)
    drawn = ensemble.outcomes(rows.observation, rows.action)
    inside = (rows.observation[:, 0] > 0) & (rows.observation[:, 0] < 8)
    stayed = (drawn.next_observation == drawn.observation)[inside, 0]
    assert stayed.mean() == pytest.approx(0.25, abs=0.05)
    assert np.mean(np.abs(drawn.next_observation - drawn.observation) > 1) < 0.01
    wrong = replace(rows, next_observation=(rows.next_observation + 4) % 9)
    assert ensemble.scores(wrong)[0].mean() > 3 * ensemble.scores(rows)[0].mean()


@pytest.mark.parametrize("count", [2, 30])
def test_few_rows_are_enough(count):
    rows = world(count)
    found = quick(rows, steps=10)
    assert np.isfinite(found.scores(rows)[0]).all()
    assert len(found.outcomes(rows.observation, rows.action)) == count


def test_whole_episodes_are_held_out():
    steps = np.arange(0.0, 1_000)[:, None]
    rows = Transitions(steps, steps, steps[:, 0], steps + 1, steps[:, 0] % 25 == 24)
    learned, selecting, measuring = (part // 25 for part in dynamics._split(rows, 4, 0))
    assert len(learned) + len(selecting) + len(measuring) == 1_000
    assert not {*learned} & {*selecting, *measuring}
    assert not {*selecting} & {*measuring}
    assert (len(selecting), len(measuring)) == pytest.approx((50, 100), abs=25)


def test_what_cannot_be_fitted_or_asked_is_refused(ensemble, fresh, monkeypatch):
    zeros = np.zeros((50, 1))
    still = Transitions(zeros, np.arange(50.0)[:, None], np.zeros(50), zeros)
    with pytest.raises(DataError, match="constant"):
        quick(still)
    monkeypatch.setattr(dynamics, "MOST_COLUMNS", 5)
    with pytest.raises(DataError, match="columns"):
        quick(world(50))
    with pytest.raises(DataError, match="shape"):
        ensemble.outcomes(fresh.observation[:, :2], fresh.action)
    for keep in (0, 1.5, float("nan"), "half"):
        with pytest.raises(ConfigError, match="keep"):
            check_keep(keep)

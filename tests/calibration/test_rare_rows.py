"""Rare rewards that a fit sees more often, and that are drawn at their real share."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from synther import Synthesizer, Transitions
from synther.calibration.rare_rows import RareRows, Usual
from synther.calibration.rates import resampled
from synther.data.layout import Layout
from synther.data.preparing import prepare
from synther.errors import FormatError
from synther.progress import Silent
from synther.relevance.discrete import DiscreteLaw, Reweighting

SHARE, PRIZE = 0.02, 30.0


def world(count: int = 6_000, seed: int = 0) -> Transitions:
    """A reward of about 0, and in one row of fifty a prize, where the second column is high."""
    draw = np.random.default_rng(seed)
    state, action = draw.normal(size=(count, 2)), draw.uniform(-1, 1, (count, 1))
    paid = draw.normal(size=count) + np.where(state[:, 1] > np.quantile(state[:, 1], 1 - SHARE), PRIZE, 0)
    return Transitions(state, action, paid, 0.9 * state, np.zeros(count, bool))


def found(rows: Transitions) -> RareRows | None:
    return RareRows.find(rows, Layout.infer(rows, spikes=True))


@pytest.fixture(scope="module")
def rows() -> Transitions:
    return world()


@pytest.fixture(scope="module")
def rare(rows) -> RareRows:
    there = found(rows)
    assert there is not None
    return there


def test_prizes_are_payouts(rows, rare):
    np.testing.assert_array_equal(rare.among(rows), rows.reward > PRIZE / 2)
    assert rare.times == 4
    assert rare.share == pytest.approx(SHARE, rel=0.01)


@pytest.mark.parametrize(
    "change",
    [
        lambda rows, draw: draw.normal(size=len(rows)),  # no reward is far from the others
        lambda rows, draw: np.where(draw.random(len(rows)) < 0.1, PRIZE, rows.reward),  # too many are
        lambda rows, draw: np.where(np.arange(len(rows)) < 20, PRIZE, draw.normal(size=len(rows))),  # too few are
        lambda rows, draw: np.where(rows.reward > PRIZE / 2, rows.reward, 0.0),  # most are the same: these are spikes
        lambda rows, draw: np.where(rows.reward > PRIZE / 2, 1.0, 0.0),
    ],
)
def test_other_rewards_have_none(rows, change):
    assert found(replace(rows, reward=change(rows, np.random.default_rng(1)))) is None


def test_weights_undo_repeats(rows, rare):
    """Whatever is measured on the rows that a fit sees has, weighted, the mean that it has in the real rows."""
    seen = rows[np.arange(len(rows)).repeat(rare.repeats(rows))]
    weight = rare.weights(seen)
    assert weight.mean() == pytest.approx(1)
    for measured, real in ((seen.observation, rows.observation), (seen.reward, rows.reward)):
        np.testing.assert_allclose(np.average(measured, axis=0, weights=weight), real.mean(0), atol=1e-9)
    taken = seen[resampled(weight, np.random.default_rng(0))]
    assert np.mean(taken.reward > PRIZE / 2) == pytest.approx(SHARE, rel=0.05)


def test_flags_are_as_frequent_as_in_what_a_fit_sees(rows):
    """A flag that is set where there is a prize."""
    here = np.column_stack([rows.observation, rows.reward > PRIZE / 2])
    flagged = Transitions(here, rows.action, rows.reward, here, rows.terminal)
    layout = Layout.infer(flagged, spikes=True)
    there = RareRows.find(flagged, layout)
    assert there is not None
    seen = SHARE * there.times / (1 + SHARE * (there.times - 1))
    assert dict(zip(layout.flag_names, there.rates, strict=True))["observation[2]"] == pytest.approx(seen, rel=0.01)


def test_a_file_keeps_them_and_wrong_ones_are_refused(rare):
    assert RareRows.from_json(rare.to_json()) == rare
    for wrong in ({"low": 99.0}, {"times": 0}, {"share": 2.0}, {"rates": "x"}):
        with pytest.raises(FormatError):
            RareRows.from_json({**rare.to_json(), **wrong})


def short(rows: Transitions) -> Synthesizer:
    small = {"network": {"width": 64, "depth": 2}, "fit": {"steps": 600}, "sampler": {"steps": 8}}
    return Synthesizer("laptop", device="cpu", **small).fit(rows, progress=False)


@pytest.fixture(scope="module")
def model(rows) -> Synthesizer:
    return short(rows)


def test_a_model_draws_them_at_their_real_share_and_place(model, rows, tmp_path):
    drawn = model.sample(20_000, seed=1, progress=False)
    pays = drawn.reward > PRIZE / 2
    assert pays.mean() == pytest.approx(SHARE, rel=0.25)
    limit = np.quantile(rows.observation[:, 1], 1 - SHARE)
    assert np.mean(drawn.observation[pays, 1] > limit - 0.5) > 0.95
    np.testing.assert_allclose(drawn.observation.mean(0), rows.observation.mean(0), atol=0.06)
    model.save(tmp_path / "model.safetensors")
    again = Synthesizer.load(tmp_path / "model.safetensors", device="cpu")
    assert again.sample(500, seed=3, progress=False).equals(model.sample(500, seed=3, progress=False))


def test_odds_bring_payouts_to_their_real_share(rare, rows):
    """Of a perfect network one in four is taken. One that makes half as many payouts keeps twice as many of them."""
    seen = rows[np.arange(len(rows)).repeat(rare.repeats(rows))]
    assert rare.odds(seen) == pytest.approx(1 / rare.times)
    assert rare.among(seen).mean() == pytest.approx(rare.seen)
    fewer = seen[~rare.among(seen) | (np.arange(len(seen)) % 3 > 0)]
    weight = rare.weights(fewer, rare.odds(fewer))
    assert np.average(fewer.reward > PRIZE / 2, weights=weight) == pytest.approx(rare.share)
    assert rare.odds(rows[rows.reward < PRIZE / 2]) == 1 / rare.times


def test_outcomes_of_given_rows_pay_as_often_as_real_ones(rows):
    """Here every row has the same chance of a prize. The network pays several times as often."""
    draw = np.random.default_rng(5)
    paid = draw.normal(size=len(rows)) + np.where(draw.random(len(rows)) < SHARE, PRIZE, 0)
    model = short(replace(rows, reward=paid))
    given = {"observation": np.tile([0.2, -0.3], (6_000, 1)), "action": np.zeros((6_000, 1))}
    drawn = model.sample(given=given, seed=0, progress=False)
    assert drawn.equals(model.sample(given=given, seed=0, progress=False))
    odds = model._drawing("teacher", Silent()).calibration.given_rare_odds
    model._fitted = replace(model._model, rare=None)
    raw = np.mean(model.sample(given=given, seed=1, progress=False).reward > PRIZE / 2)
    assert raw > 2 * SHARE
    assert np.mean(drawn.reward > PRIZE / 2) == pytest.approx(raw * odds / (raw * odds + 1 - raw), abs=0.006)


class Leaning:
    """Weights of discrete values, by which rows with a prize come too often, and rows that end too seldom."""

    def weights(self, rows: Transitions) -> np.ndarray:
        return np.where(rows.reward > PRIZE / 2, 1.8, 1.0) * np.where(rows.terminal, 0.5, 1.0)


def test_shares_are_right_after_all_weights(rows, monkeypatch):
    """Half of the rows with a prize end, so each weight changes the shares that the others correct."""
    draw = np.random.default_rng(6)
    ends = draw.random(len(rows)) < np.where(rows.reward > PRIZE / 2, 0.5, 0.01)
    monkeypatch.setattr(DiscreteLaw, "fit", lambda *rest, **more: "the law of the real rows")
    monkeypatch.setattr(Reweighting, "learn", lambda *rest: Leaning())
    model = short(replace(rows, terminal=ends))
    drawn, rare = model.sample(40_000, seed=1, progress=False), model._model.rare
    assert rare is not None
    assert rare.among(drawn).mean() == pytest.approx(SHARE, rel=0.15)
    assert drawn.terminal.mean() == pytest.approx(ends.mean(), rel=0.15)


def test_likelihoods_are_those_of_rows_as_they_are_drawn(model, rows, rare):
    own = model.log_likelihood(rows[:300])
    model._fitted, fitted = replace(model._model, rare=None), model._model
    try:
        of_network = model.log_likelihood(rows[:300])
    finally:
        model._fitted = fitted
    np.testing.assert_allclose(own - of_network, np.log(rare.weights(rows[:300])), atol=1e-6)


def test_rows_that_are_asked_for_by_a_condition_are_not_shown_more_often(rows):
    small = {"network": {"width": 16, "depth": 1}, "fit": {"steps": 5}, "sampler": {"steps": 2}}
    asked = Synthesizer("laptop", device="cpu", **small).fit(rows, condition="reward", progress=False)
    assert asked._model.rare is None


def test_normal_rewards_are_not_exceeded():
    draw = np.random.default_rng(2)
    normal = draw.normal(size=100_000)
    assert Usual.of(normal) is None
    heavy = np.where(draw.random(100_000) < 0.01, 50.0, normal)
    usual = Usual.of(heavy)
    assert usual is not None
    assert usual.exceeded(heavy).mean() == pytest.approx(0.01, rel=0.1)
    assert usual.beyond(heavy)[~usual.exceeded(heavy)].max() == 0


def pushed(count: int = 12_000, seed: int = 0) -> Transitions:
    """A finger, and an object that moves in one row of a hundred: if the finger is beside it."""
    draw = np.random.default_rng(seed)
    finger, thing, action = draw.uniform(-1, 1, count), draw.uniform(-1, 1, count), draw.uniform(-1, 1, count)
    moved = np.where(np.abs(finger - thing) < 0.01, thing + 0.3 * action, thing)
    here, there = np.c_[finger, thing], np.c_[finger + 0.1 * action + 0.01 * draw.normal(size=count), moved]
    return Transitions.of(
        observation=here, action=action[:, None], reward=draw.normal(size=count), next_observation=there
    )


def test_moves_of_what_seldom_moves_are_rare():
    rows = pushed()
    layout = prepare(rows, "quantile", "onehot", True, residuals="bent").layout
    assert [one.column for one in layout.held] == [1]
    rare = RareRows.find(rows, layout)
    assert rare is not None
    assert rare.moves == (1,)
    assert rare.times == 8
    moves = rows.observation[:, 1] != rows.next_observation[:, 1]
    np.testing.assert_array_equal(rare.among(rows), moves)
    assert rare.share == pytest.approx(moves.mean())
    assert RareRows.from_json(json.loads(json.dumps(rare.to_json()))) == rare


def test_what_seldom_moves_does_so_at_its_real_share_and_where_it_is_touched():
    rows = pushed()
    drawn = short(rows).sample(40_000, seed=1, progress=False)
    moves, real = (each.observation[:, 1] != each.next_observation[:, 1] for each in (drawn, rows))
    assert moves.mean() == pytest.approx(real.mean(), rel=0.2)
    apart = np.abs(drawn.observation[:, 0] - drawn.observation[:, 1])
    assert np.median(apart[moves]) < 0.2 * np.median(apart)


def test_a_file_whose_moves_are_in_no_column_is_refused(model, tmp_path):
    path, fitted = tmp_path / "model.safetensors", model._model
    assert fitted.rare is not None
    model._fitted = replace(fitted, rare=replace(fitted.rare, moves=(2,)))
    try:
        model.save(path)
    finally:
        model._fitted = fitted
    with pytest.raises(FormatError, match="rare rows"):
        Synthesizer.load(path, device="cpu")

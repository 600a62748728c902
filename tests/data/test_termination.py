"""The limits at which an environment ends an episode are found in its rows, and generated rows are held to them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from synther.calibration.rates import resampled
from synther.data import termination
from synther.data.numbers import Continuous
from synther.data.preparing import prepare
from synther.data.surfaces import Surface
from synther.data.termination import Examples, Regions, TerminationTree, UsualReward, terminal_reward
from synther.data.transitions import Transitions
from synther.errors import FormatError
from synther.formats import read, shipped

from ..support.layouts import decoded, through_json

RANDOM = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def the_same_numbers_in_any_order_of_tests() -> None:
    global RANDOM
    RANDOM = np.random.default_rng(0)


def rows_that_end(ends: np.ndarray, following: np.ndarray) -> Transitions:
    count = len(following)
    return Transitions.of(
        observation=RANDOM.normal(size=following.shape),
        action=RANDOM.uniform(-1, 1, size=(count, 1)),
        reward=RANDOM.normal(size=count),
        next_observation=following,
        terminal=ends,
    )


def test_two_limits_on_two_columns():
    following = RANDOM.normal(size=(20_000, 2))
    ends = (following[:, 0] < -2) | (np.abs(following[:, 1]) > 2.5)
    tree = termination.learn(rows_that_end(ends, following))
    fresh = RANDOM.normal(size=(20_000, 2)) * 1.5
    truth = (fresh[:, 0] < -2) | (np.abs(fresh[:, 1]) > 2.5)
    found = tree.decide(rows_that_end(truth, fresh))
    assert np.mean(found == truth) > 0.999
    assert set(tree.feature) == {-1, 4, 5}
    assert TerminationTree.from_json(json.loads(json.dumps(tree.to_json(), allow_nan=False))) == tree
    assert termination.learn(rows_that_end(RANDOM.random(20_000) < 0.05, following)) is None, "without a reason"
    tree = termination.learn(rows_that_end(np.zeros(20_000, bool), following), truth=following[:, 1] > 1)
    assert np.mean(tree.decide(rows_that_end(truth, fresh)) == (fresh[:, 1] > 1)) > 0.999


def test_a_hopper_falls_below_height_0_7_or_leans_by_0_2():
    rows = read(shipped.path("hopper-sac"))
    tree = termination.learn(rows)
    limits = {
        (feature - 15, round(cut, 1)) for feature, cut in zip(tree.feature, tree.cut, strict=True) if feature >= 0
    }
    assert limits <= {(0, 0.7), (1, -0.2), (1, 0.2)}
    assert len(limits) >= 2
    assert np.array_equal(tree.decide(rows), rows.terminal)


@pytest.mark.parametrize("count", [0, 10, 5_000])
def test_too_few_rows_of_one_kind_are_not_explained(count: int):
    following = np.arange(10_000.0).reshape(5_000, 2)
    assert termination.learn(rows_that_end(np.arange(5_000) >= 5_000 - count, following)) is None


def test_rows_left_out_of_the_fit_count_through_those_that_are_in(monkeypatch):
    monkeypatch.setattr(termination, "MOST_OTHERS", 2_000)
    following = RANDOM.normal(size=(50_000, 2))
    ends = following[:, 0] > 2.5
    found = termination.learn(rows_that_end(ends, following)).decide(rows_that_end(ends, following))
    assert np.mean(found[ends]) > 0.95
    assert np.mean(found[~ends]) < 0.001


def test_a_tree_is_believed_for_rows_that_it_has_not_seen(monkeypatch):
    monkeypatch.setattr(termination, "FEWEST", 1)  # so that a tree could learn anything by heart
    monkeypatch.setattr(termination, "DEEPEST", 30)
    ends = RANDOM.random(400) < 0.3
    assert termination.learn(rows_that_end(ends, RANDOM.normal(size=(400, 2)))) is None


@pytest.mark.parametrize(("beyond", "trusted"), [(0, True), (500, False), (2_500, False)])
def test_rows_that_go_on_beyond_the_limit_count_though_few_are_looked_at(beyond: int, trusted: bool, monkeypatch):
    """Of 1,000 terminal rows and 500 others beyond a limit two in three are terminal, not 100 in 101."""
    monkeypatch.setattr(termination, "MOST_OTHERS", 1_000)
    following = RANDOM.uniform(-1, 0, size=(51_000, 2))
    following[: 1_000 + beyond, 0] *= -1
    tree = termination.learn(rows_that_end(np.arange(51_000) < 1_000, following))
    assert (tree is not None) == trusted


def test_a_limit_lies_halfway_between_the_rows_on_its_sides_with_at_least_five_beyond_it():
    values = np.arange(100.0)[:, None]
    for above in (5, 50, 95):
        tree = TerminationTree.fit(Examples.of(values, values[:, 0] >= 100 - above, np.ones(100)))
        assert (tree.feature, tree.cut[0]) == ((0, -1, -1), 99.5 - above)
    assert TerminationTree.fit(Examples.of(values, values[:, 0] >= 96, np.ones(100))).cut[0] == 94.5
    assert TerminationTree.fit(Examples.of(values, values[:, 0] < 4, np.ones(100))).cut[0] == 4.5


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_cut_between_neighbouring_floats(dtype: type):
    second = np.nextafter(dtype(1), dtype(2))
    values = np.repeat([dtype(1), second, np.nextafter(second, dtype(2))], [20, 20, 30])
    features = np.zeros((70, 1), dtype) + values[:, None]
    tree = TerminationTree.fit(Examples.of(features, values > second, np.ones(70)))
    assert tree.feature == (0, -1, -1)
    assert tree.terminal[1:] == (False, True)


def test_one_kind_of_rows_and_a_constant_feature_make_a_single_leaf():
    assert TerminationTree.fit(Examples.of(np.ones((100, 5)), np.arange(100) % 2 == 0, np.ones(100))).feature == (-1,)
    tree = TerminationTree.fit(Examples.of(RANDOM.normal(size=(50, 5)), np.zeros(50, bool), np.ones(50)))
    assert tree.feature == (-1,)
    assert not tree.decide(rows_that_end(np.zeros(7, bool), np.zeros((7, 2)))).any()


def paid_rows(count: int, wrong: float = 0.0) -> Transitions:
    """A reward of -1, or near 3 beyond a limit; of a share the other one of the two."""
    following = RANDOM.normal(size=(count, 2))
    beyond = (following[:, 0] > 1) ^ (RANDOM.random(count) < wrong)
    rows = rows_that_end(np.zeros(count, bool), following)
    rows.reward[:] = np.where(beyond, RANDOM.normal(3, 0.1, count), -1.0)
    return rows


def test_the_usual_reward_is_where_the_real_rows_have_it():
    usual = UsualReward.learn(paid_rows(10_000), -1.0)
    assert usual.reward == -1.0
    assert set(usual.tree.feature) == {-1, 4}
    generated = paid_rows(5_000, wrong=0.2)
    better = generated[usual.consistent(generated, usual.tree.decide(generated), np.random.default_rng(0))]
    assert len(better) == 5_000
    beyond = better.next_observation[:, 0] > 1
    assert np.mean((better.reward != -1.0) == beyond) > 0.995
    assert np.mean((generated.reward != -1.0) == (generated.next_observation[:, 0] > 1)) < 0.85
    # Rows are replaced by whole rows of the same side, and right ones stay.
    assert np.isin(better.next_observation[:, 0], generated.next_observation[:, 0]).all()
    assert abs(beyond.mean() - np.mean(generated.next_observation[:, 0] > 1)) < 0.005
    right = (generated.reward != -1.0) == usual.tree.decide(generated)
    assert np.array_equal(better.reward[right], generated.reward[right])


def test_rows_without_a_contradiction_or_without_a_right_row_stay_as_they_are():
    usual = UsualReward.learn(paid_rows(10_000), -1.0)
    rows = paid_rows(1_000)
    clear = rows[np.abs(rows.next_observation[:, 0] - 1) > 0.05]
    for given in (clear, replace(rows, reward=np.full(1_000, -1.0))):
        taken = usual.consistent(given, usual.tree.decide(given), np.random.default_rng(0))
        assert np.array_equal(taken, np.arange(len(given)))


def test_a_reward_that_nothing_but_itself_explains_is_left_to_the_network():
    rows = paid_rows(5_000)
    for other in (rows.reward, 3.0):
        unexplained = replace(rows, reward=np.where(RANDOM.random(5_000) < 0.5, -1.0, other))
        assert UsualReward.learn(unexplained, -1.0) is None


def test_a_rare_reward_is_not_taken_away_by_a_tree_that_never_finds_it():
    """A tree that answers "another reward" for every row is right about 99 % of them."""
    rows = paid_rows(20_000)
    rare = replace(rows, reward=np.where(RANDOM.random(20_000) < 0.01, -100.0, rows.reward))
    assert UsualReward.learn(rare, -100.0) is None


def test_the_usual_reward_of_a_coarser_type_is_known():
    rows = paid_rows(10_000)
    single = rows.reward.astype(np.float32)
    single[single == -1.0] = 0.1
    rows = replace(rows, reward=single)
    usual = UsualReward.learn(rows, 0.1)
    assert np.mean(usual.tree.decide(rows) == (rows.reward != np.float32(0.1))) > 0.999
    again = UsualReward.from_json(json.loads(json.dumps(usual.to_json(), allow_nan=False)))
    assert again == usual


def priced(price: float | np.ndarray, count: int = 20_000) -> Transitions:
    """Reward grows with the square of where a row leads, and beyond 1.5, where episodes end, changes by `price`."""
    following = RANDOM.normal(size=(count, 2))
    rows = rows_that_end(following[:, 0] > 1.5, following)
    paid = following[:, 0] ** 2 + 0.5 * rows.action[:, 0] + 0.05 * RANDOM.normal(size=count)
    return replace(rows, reward=paid + price * rows.terminal)


@pytest.mark.parametrize("price", [-1.0, 5.0])
def test_what_a_terminal_costs(price):
    """Not what a line through all rows would say: the reward is curved, and terminals lie at its end."""
    assert terminal_reward(priced(price)) == pytest.approx(price, abs=0.1)


def test_a_hopper_that_falls_loses_its_reward_for_being_healthy():
    assert terminal_reward(read(shipped.path("hopper-sac"))) == pytest.approx(-1, abs=0.01)


def test_a_few_falls_that_cost_far_more_than_anything_else():
    """A walker that gets -100 in place of its reward, in 8 of 4,000 rows, which tell nothing about when it falls."""
    random = np.random.default_rng(0)
    state, action = random.normal(size=(4_000, 3)), random.uniform(-1, 1, (4_000, 1))
    falls = np.arange(4_000) % 500 == 7
    paid = 0.1 * np.where(falls, -1_000, random.normal(size=4_000))
    rows = Transitions(state, action, paid, state + 0.1, falls)
    assert terminal_reward(rows) == pytest.approx(-100, abs=0.1)
    assert terminal_reward(replace(rows, reward=np.where(falls, -0.4, rows.reward))) == 0, "not far from others"
    mixed = replace(rows, reward=np.where(falls, np.where(state[:, 0] > 0, 100.0, -100.0), rows.reward))
    assert terminal_reward(mixed) == 0, "there are two prices"
    found = prepare(rows, "standard", "onehot", True, residuals="linear", terminal_reward=-100.0)
    assert found.layout.at_end is not None
    assert found.layout.at_end.values == (-100.0,)
    assert isinstance(found.layout.reward[0], Continuous), "-100 is no special value of the reward"
    np.testing.assert_allclose(decoded(found, found.matrix).reward, rows.reward, atol=1e-4)


def test_no_price_where_terminals_have_none_or_not_one():
    assert terminal_reward(priced(0.0)) == 0
    assert terminal_reward(priced(RANDOM.choice([-1.0, 1.0, 1.0], 20_000))) == 0
    crashing = rows_that_end(np.zeros(20_000, bool), RANDOM.normal(size=(20_000, 2)))
    crashing.reward[:500] = RANDOM.normal(-100, 1, 500)
    crashing = replace(crashing, terminal=crashing.reward < -50)
    assert terminal_reward(crashing) == pytest.approx(-100, abs=0.5), "though nothing but the reward tells of it"
    assert terminal_reward(priced(-1.0, 1_000)) == pytest.approx(-1, abs=0.1)
    here, there = RANDOM.normal(size=(2, 1_000, 50))
    wide = replace(priced(-1.0, 1_000), observation=here, next_observation=there, terminal=there[:, 0] > 1.5)
    assert terminal_reward(wide) == 0, "too few rows for a regression"


def arms(count: int) -> tuple[Transitions, np.ndarray]:
    """Two links as sine and cosine, beside two columns that do not matter, and whether they reach above 1."""
    first, second = RANDOM.uniform(-np.pi, np.pi, size=(2, count))
    turns = np.stack([np.cos(first), np.sin(first), np.cos(second), np.sin(second)], 1)
    up = -np.cos(first) - np.cos(first + second) > 1.5
    return rows_that_end(up, np.concatenate([turns, RANDOM.normal(size=(count, 2))], 1)), up


def goals(count: int) -> tuple[Transitions, np.ndarray]:
    """A body and a goal, and whether it is there."""
    places = RANDOM.uniform(-1, 1, size=(count, 4))
    there = np.linalg.norm(places[:, :2] - places[:, 2:], axis=1) < 0.25
    return rows_that_end(there, places), there


@pytest.mark.parametrize("world", [arms, goals])
def test_a_limit_that_has_to_be_computed(world):
    """No limits on columns tell, and the reward need not be asked, though it says it all."""
    rows, ends = world(20_000)
    tree = termination.learn(replace(rows, reward=np.where(ends, 0.0, -1.0)))
    assert termination.SURFACE in tree.feature
    assert rows.observation.shape[1] + 1 not in tree.used
    fresh, truth = world(20_000)
    assert np.mean(tree.decide(fresh)[truth]) > 0.95
    assert np.mean(truth[tree.decide(fresh)]) > 0.95
    entry = json.loads(json.dumps(tree.to_json(), allow_nan=False))
    assert TerminationTree.from_json(entry) == tree
    for damage in ({"surface": None}, {"surface": entry["surface"] | {"std": [0.0] * len(entry["surface"]["std"])}}):
        with pytest.raises(FormatError):
            TerminationTree.from_json(entry | damage)


def test_the_height_is_a_weighted_sum_of_columns_and_of_their_products():
    mean, std, weights = RANDOM.normal(size=3), RANDOM.uniform(0.5, 2, size=3), RANDOM.normal(size=9)
    surface = Surface((0, 1, 2), tuple(mean), tuple(std), tuple(weights))
    values = RANDOM.normal(size=(50, 3))
    scaled = (values - mean) / std
    pairs = ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))
    products = np.stack([scaled[:, one] * scaled[:, other] for one, other in pairs], axis=1)
    heights = surface.on(torch.device("cpu"))(torch.from_numpy(values.T))
    np.testing.assert_allclose(heights, np.concatenate([scaled, products], axis=1) @ weights, rtol=1e-12, atol=1e-12)


def test_few_ends_are_judged_in_all_rows():
    """In a fifth of the rows there are 20 or 30 of them, of which chance makes a tenth wrong."""
    places = RANDOM.uniform(-1, 1, size=(5_000, 4))
    ends = np.linalg.norm(places[:, :2] - places[:, 2:], axis=1) < 0.2
    assert 100 < ends.sum() < 200
    rows = replace(rows_that_end(ends, places), reward=np.where(ends, 0.0, -1.0))
    for seed in range(3):
        assert termination.learn(rows, seed).surface is not None


def test_a_limit_on_a_column_needs_no_surface():
    following = RANDOM.normal(size=(20_000, 3))
    assert termination.learn(rows_that_end(following[:, 0] > 2, following)).surface is None


def test_of_many_columns_those_that_tell_are_taken():
    following = RANDOM.normal(size=(6_000, 20))
    tree = termination.learn(rows_that_end(np.abs(following[:, 7] - following[:, 15]) < 0.3, following))
    assert {22 + 7, 22 + 15} <= {*tree.surface.columns}  # after observation, action and reward


def test_the_reward_is_asked_for_only_where_it_tells_more():
    following = RANDOM.normal(size=(20_000, 2))
    rows = rows_that_end(following[:, 0] < -2, following)
    paid = replace(rows, reward=np.where(rows.terminal, -50.0, rows.reward))
    assert termination.learn(paid).used == (4,)
    unseen = replace(paid, next_observation=RANDOM.normal(size=(20_000, 2)))
    assert termination.learn(unseen).used == (3,)


def risky_rows(count: int, beyond: float = 0.8, elsewhere: float = 0.0) -> Transitions:
    """Beyond 1.5, an episode ends with one probability, elsewhere with another. Ends cost 1, others pay 0.1, or 0.5
    below -1."""
    following = RANDOM.normal(size=(count, 2))
    rows = rows_that_end(RANDOM.random(count) < np.where(following[:, 0] > 1.5, beyond, elsewhere), following)
    rows.reward[:] = np.where(rows.terminal, -1.0, np.where(following[:, 1] < -1, 0.5, 0.1))
    return rows


def taken(regions: Regions, generated: Transitions) -> Transitions:
    odds = np.array(regions.weights(generated))[regions.places(generated)]
    return generated[resampled(odds, np.random.default_rng(0))]


@pytest.mark.parametrize("rewards", [(), (-1.0, 0.1, 0.5)])
def test_what_is_left_to_chance_comes_in_each_part_as_often_as_in_the_real_rows(rewards):
    regions = Regions.learn(risky_rows(20_000), rewards)
    generated = risky_rows(20_000, beyond=0.3, elsewhere=0.02)
    if rewards:
        generated.reward[:] = RANDOM.permutation(generated.reward)
        generated.reward[generated.terminal] = -1.0
    better = taken(regions, generated)
    beyond = better.next_observation[:, 0] > 1.5
    # 1,300 rows are beyond, which tells a share up to 0.011; the real share is as uncertain.
    assert better.terminal[beyond].mean() == pytest.approx(0.8, abs=0.035)
    assert better.terminal[~beyond].mean() < 0.002
    assert beyond.mean() == pytest.approx(np.mean(generated.next_observation[:, 0] > 1.5), abs=0.002)
    if rewards:
        low = better[~beyond & (better.next_observation[:, 1] < -1)]
        assert np.mean(low.reward == 0.5) > 0.97
        assert np.mean(better.reward[~beyond & (better.next_observation[:, 1] > -1)] == 0.1) > 0.97


def test_what_a_terminal_pays_goes_with_it():
    """Terminals are decided, and rewards are not: half of the ends do not cost anything."""
    regions = Regions.learn(risky_rows(20_000, beyond=1.0), (-1.0, 0.1, 0.5))
    generated = risky_rows(20_000, beyond=1.0)
    generated.reward[:] = np.where(RANDOM.random(20_000) < 0.5, generated.reward, RANDOM.choice([-1.0, 0.1], 20_000))
    better = taken(regions, generated)
    assert np.mean(better.reward[better.terminal] == -1.0) > 0.97
    assert np.mean(better.reward[~better.terminal] == -1.0) < 0.01
    assert better.terminal.mean() == pytest.approx(generated.terminal.mean(), abs=0.002)


def test_any_other_reward_is_one_event():
    """Nothing is paid, except beyond 1.5, where it is some number: more than half of it was generated elsewhere."""

    def world(count: int) -> Transitions:
        rows = risky_rows(count, beyond=0.0)
        rows.reward[:] = np.where(rows.next_observation[:, 0] > 1.5, RANDOM.normal(3, 1, count), 0.0)
        return rows

    regions = Regions.learn(world(20_000), (0.0,))
    generated = world(20_000)
    generated.reward[:] = np.where(RANDOM.random(20_000) < 0.1, RANDOM.permutation(generated.reward), generated.reward)
    generated.reward[:] = np.where(RANDOM.random(20_000) < 0.5, generated.reward, 0.0)
    better = taken(regions, generated)
    beyond = better.next_observation[:, 0] > 1.5
    assert np.mean((better.reward != 0) == beyond) > 0.995
    assert better.reward[beyond].std() == pytest.approx(1.0, abs=0.1)


def test_there_are_no_parts_where_nothing_tells_them_or_too_few_rows_do():
    assert Regions.learn(risky_rows(20_000, beyond=0.05, elsewhere=0.05), ()) is None
    assert Regions.learn(risky_rows(300), ()) is None


def test_some_30_ends_say_where_they_are():
    """If limits tell them. A tree is trusted if it is right about ends that it has not seen."""
    rows = risky_rows(20_000, beyond=0.0)
    rows.terminal[:] = np.abs(rows.next_observation[:, 1]) > 3.2
    assert 20 < rows.terminal.sum() < 50
    assert termination.learn(rows).used == (5,)
    anywhere = replace(rows, terminal=RANDOM.permutation(rows.terminal))
    assert termination.learn(anywhere) is None
    assert set(Regions.learn(rows, ()).tree.used) == {5}  # of two numbers, an action, a reward and two more


def test_regions_to_json_and_back():
    regions = Regions.learn(risky_rows(5_000), (-1.0, 0.1, 0.5))
    told = json.loads(json.dumps(regions.to_json()))
    assert Regions.from_json(told) == regions
    for change in ({"shares": []}, {"rewards": [1.0]}, {"rewards": [0.5, 0.1, -1.0]}, {"tree": {}}):
        with pytest.raises(FormatError):
            Regions.from_json(told | change)


def arriving(bonus: float, crash: float | None = None) -> Transitions:
    """A step costs its distance from the middle. Where an episode ends, `bonus` is paid instead, or `crash`."""
    draw = np.random.default_rng(2)
    here = draw.uniform(-1, 1, (8_000, 2))
    there = here + 0.1 * draw.normal(size=here.shape)
    away = np.hypot(*there.T)
    paid = np.where(away < 0.15, bonus, -away)
    ends = away < 0.15
    if crash is not None:
        ends |= there[:, 0] > 1
        paid = np.where(there[:, 0] > 1, crash, paid)
    return Transitions(here, draw.uniform(-1, 1, (8_000, 1)), paid, there, ends)


@pytest.mark.parametrize(("bonus", "crash"), [(10.0, None), (0.0, None), (100.0, -100.0)])
def test_terminals_that_are_paid_one_of_a_few_numbers_are_paid_it_exactly(bonus, crash):
    rows = arriving(bonus, crash)
    price = terminal_reward(rows)
    found = prepare(rows, "standard", "onehot", True, residuals="linear", terminal_reward=price)
    values = {bonus} | ({crash} if crash is not None else set())
    assert found.layout.at_end is not None
    assert {*found.layout.at_end.values} == values
    assert through_json(found.layout) == found.layout
    np.testing.assert_allclose(decoded(found, found.matrix).reward, rows.reward, atol=1e-4)
    noise = 0.05 * np.random.default_rng(0).normal(size=found.matrix.shape).astype(np.float32)
    made = decoded(found, found.matrix + noise)
    assert {*made.reward[made.terminal].tolist()} == values
    away = np.hypot(*made.next_observation.T)
    error = np.abs(made.reward + away)[~made.terminal].max()
    assert error < (1e-3 if crash is None else 0.3)


def test_nothing_is_done_about_ends_without_residuals():
    assert prepare(arriving(10.0), "standard", "onehot", False).layout.at_end is None


def test_terminals_that_are_paid_many_numbers_are_paid_what_is_generated():
    rows = arriving(10.0)
    rows.reward[rows.terminal] += np.arange(np.count_nonzero(rows.terminal)) / 100
    assert prepare(rows, "standard", "onehot", True, residuals="linear").layout.at_end is None

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from synther.assess import learners, usefulness
from synther.assess.assessment import Assessment
from synther.assess.dynamics import Simulator
from synther.assess.fidelity import marginal, matrices_of
from synther.assess.judge import assess
from synther.assess.metrics import METRICS
from synther.assess.split import HELD_OUT_SHARE, Split
from synther.data.spaces import Discrete
from synther.data.transitions import Transitions
from synther.errors import ConfigError, DataError

from ..support.short import short_learners
from ..support.watch import Watch
from . import worlds


def world(observations: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A pendulum pushed by its action; it ends when it turns too fast."""
    angle, speed = observations.astype(float).T
    push = actions.reshape(len(actions), -1)[:, 0]
    speed = speed - 0.3 * np.sin(angle) + 0.5 * push
    there = np.column_stack([angle + 0.1 * speed, speed])
    return there, -(angle**2) - 0.1 * speed**2, np.abs(speed) > 2.2


def rows(count: int, seed: int) -> Transitions:
    rng = np.random.default_rng(seed)
    here = rng.normal(size=(count, 2)).astype(np.float32)
    action = np.tanh(here[:, :1] - here[:, 1:] + 0.3 * rng.normal(size=(count, 1))).astype(np.float32)
    there, reward, terminal = world(here, action)
    return Transitions(here, action, reward.astype(np.float32), there.astype(np.float32), terminal)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what does not depend on how well networks learn."""
    short_learners(monkeypatch)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """One network each, of a few steps: as many as tell good rows from bad ones."""
    monkeypatch.setattr(usefulness, "MEMBERS", 1)
    monkeypatch.setattr(learners, "MOST_STEPS", 120)
    monkeypatch.setattr(learners, "WIDTH", 64)


def sound(found: Assessment) -> None:
    """What holds for every assessment: finite figures within their ranges, and plain JSON."""
    json.dumps(found.to_json(), allow_nan=False)
    assert [measure.name for measure in found.measures] == METRICS.names()
    for measure in found.measures:
        for figure in (measure.value, measure.real):
            if figure is not None:
                assert math.isfinite(figure)
                assert measure.low is None or figure >= measure.low
                assert measure.high is None or figure <= measure.high
    for column in found.columns:
        assert len(column.edges) == len(column.real_shares) + 1
        assert sum(column.real_shares) == pytest.approx(1)
        assert sum(column.synthetic_shares) == pytest.approx(1)
    assert found.verdict.sentence
    assert len(found.correlations.real) == len(found.columns)


def test_good_rows_and_rows_without_any_order_with_a_simulator(short: None) -> None:
    real, good = rows(2_000, 0), rows(1_600, 1)
    rng = np.random.default_rng(0)
    disorder = {name: rng.permutation(getattr(good, name)) for name in ("action", "next_observation")}
    shuffled = replace(good, **disorder)
    found = assess(real, good, simulator=world, simulator_name="the pendulum", parameters=1_000)
    sound(found)
    assert found.verdict.decision == "use"
    assert (found.rows_real, found.rows_synthetic, found.rows_held_out) == (2_000, 1_600, 400)
    assert found.measure("dynamics_error").value == pytest.approx(0, abs=1e-9)
    assert found.measure("dynamics_error").better == "lower"
    assert found.measure("terminal_correctness").value == 1
    assert found.measure("compression").value == pytest.approx(2_000 * 7 / 1_000)
    assert found.measure("auc").value == pytest.approx(0.5, abs=0.06)
    assert found.cloud is not None
    assert found.cloud.judge == "the pendulum"
    assert found.cloud.synthetic[0][0] > 0
    assert found.notes == ()
    bad = assess(real, shuffled, simulator=world)
    sound(bad)
    assert bad.verdict.decision == "do not use"
    assert bad.measure("marginal").value == pytest.approx(found.measure("marginal").value, abs=0.01)
    assert bad.verdict.reasons[0].says == "do not use"
    assert {"outcome_score", "policy_score", "worst_correlation"} <= {r.measure for r in bad.verdict.reasons}


@pytest.mark.parametrize("simulator", [world, None])
def test_rewards_and_terminals_that_are_wrong_in_some_rows(short: None, simulator: Simulator | None) -> None:
    real, good = rows(4_000, 0), rows(3_000, 1)
    random = np.random.default_rng(0)
    chosen = random.random(3_000)
    paid = replace(good, reward=np.where(chosen < 0.1, random.permutation(good.reward), good.reward))
    ends = replace(good, terminal=np.where(chosen < 0.6, random.permutation(good.terminal), good.terminal))
    for part, names in (
        *([] if simulator else [(good, set())]),  # good rows with a simulator are above
        (paid, {"reward_error"}),
        (ends, {"terminal_precision", "terminal_recall"}),
    ):
        found = assess(real, part, simulator=simulator).verdict
        against = {reason.measure for reason in found.reasons if reason.says != "use"}
        assert against <= names
        assert bool(against) == bool(names)
        assert found.decision == ("mix" if names else "use")


@pytest.mark.usefixtures("quick")
class TestAnyRows:
    def test_identical_rows(self) -> None:
        real = rows(300, 0)
        found = assess(real, real, held_out=real)
        sound(found)
        assert found.to_json() == assess(real, real, held_out=real).to_json()
        for name in ("marginal", "worst_column", "correlation", "coverage"):
            measure = found.measure(name)
            assert measure.value == pytest.approx(1)
            assert measure.real is not None
        assert found.measure("novelty").value == 0

    def test_no_simulator_is_noted(self) -> None:
        watch = Watch()
        found = assess(rows(200, 0), rows(200, 1), progress=watch, real_name="a.npz", synthetic_name="b.npz")
        assert [done == total for _, total, _, done in watch.phases] == [True]
        assert (found.real_name, found.synthetic_name) == ("a.npz", "b.npz")
        assert any("no simulator" in note for note in found.notes)
        assert found.cloud is not None
        assert found.cloud.judge.startswith("3 networks")
        assert found.measure("dynamics_error").better == found.measure("reward_error").better == "nearer"

    def test_rescaled_actions_are_told(self) -> None:
        real, other = rows(300, 0), rows(300, 1)
        ends = np.where(np.arange(300)[:, None] % 2, -1, 1).astype(np.float32)
        found = assess(replace(real, action=2 * ends), replace(other, action=ends))
        assert any("look rescaled" in note for note in found.notes)
        assert found.measure("action_scale").value == pytest.approx(0.5)
        assert any("look rescaled" in reason.text for reason in found.verdict.reasons)

    def test_few_states_and_discrete_actions(self) -> None:
        real, other = (worlds.slippery_line(600, seed) for seed in (0, 1))
        found = assess(replace(real, action_space=(Discrete(2),)), other)
        sound(found)
        assert found.measure("possible_transitions").value == found.measure("known_observations").value == 1
        assert found.measure("frequency_error").value == pytest.approx(0, abs=0.05)
        assert found.measure("outcome_spread").value is None
        assert 0 <= (found.measure("policy_score").value or -1) <= 1

    @pytest.mark.parametrize("count", [1, 7])
    def test_few_rows(self, count: int) -> None:
        found = assess(rows(count, 0), rows(count, 1))
        sound(found)
        assert found.measure("auc").value is None
        assert found.verdict.decision != "use"
        assert any("fewer than 100" in note for note in found.notes)
        sound(assess(rows(count, 0), rows(300, 1), simulator=world))
        sound(assess(rows(300, 0), rows(count, 1)))

    @pytest.mark.parametrize("terminal", [False, True])
    def test_all_flags_alike_and_constant_columns(self, terminal: bool) -> None:
        flags, zeros = np.full(200, terminal), np.zeros(200)
        real, other = (replace(rows(200, seed), terminal=flags, reward=zeros) for seed in (0, 1))
        found = assess(real, other)
        sound(found)
        assert found.measure("terminal_rate").value == terminal
        assert found.measure("terminal_correctness").value == 1
        assert found.measure("reward_error").value is None
        still = replace(real, next_observation=np.zeros((200, 2)))
        sound(assess(still, other))
        same = Transitions(np.ones((200, 1)), np.ones((200, 1)), zeros, np.ones((200, 1)))
        sound(assess(same, same))

    @pytest.mark.parametrize("kind", [np.float32, np.float64])
    def test_absurd_scales(self, kind: type) -> None:
        def absurd(seed: int) -> Transitions:
            part = rows(200, seed)
            fields = {name: array.astype(kind) for name, array in part.arrays().items() if name != "terminal"}
            huge, tiny = (part.observation * factor for factor in (np.float64(1e307), np.float64(1e-307)))
            return Transitions(**{**fields, "observation": huge, "next_observation": tiny}, terminal=part.terminal)

        sound(assess(absurd(0), absurd(1)))

    def test_a_simulator_that_cannot_follow(self) -> None:
        def lost(observations: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            there, reward, terminal = world(observations, actions)
            return np.full_like(there, np.nan), np.full_like(reward, np.nan), terminal

        found = assess(rows(200, 0), rows(200, 1), simulator=lost)
        sound(found)
        assert found.measure("dynamics_error").value == 1e6
        assert any("could not simulate 100.00% of the synthetic rows" in note for note in found.notes)


def test_what_cannot_be_assessed() -> None:
    real = rows(10, 0)
    wide = Transitions(np.zeros((5, 3)), np.zeros((5, 1)), np.zeros(5), np.zeros((5, 3)))
    for synthetic, options, name in (
        (wide, {}, "observation"),
        (real, {"held_out": wide}, "observation"),
        (real, {"parameters": 0}, "parameters"),
        (real, {"max_rows": 0}, "max_rows"),
    ):
        with pytest.raises((ConfigError, DataError), match=name):
            assess(real, synthetic, **options)


class TestSplit:
    def test_drawn_parts_are_all_of_the_real_rows(self) -> None:
        real, synthetic = rows(100, 0), rows(40, 1)
        split = Split.of(real, synthetic, None, max_rows=1_000, seed=0)
        assert len(split.held_out) == HELD_OUT_SHARE * 100
        parts = np.concatenate([split.reference.reward, split.held_out.reward])
        assert np.array_equal(np.sort(parts), np.sort(real.reward))
        assert np.array_equal(np.sort(split.synthetic.reward), np.sort(synthetic.reward))

    def test_given_rows_are_kept_apart(self) -> None:
        split = Split.of(rows(100, 0), rows(40, 1), rows(30, 2), max_rows=50, seed=0)
        assert [len(part) for part in (split.real, split.reference, split.held_out)] == [50, 50, 30]
        assert split.shrink() == 1

    def test_rows_of_an_episode_stay_together(self) -> None:
        """Thirty episodes of ten rows, in which each observation is the next one of the row before."""
        path = np.random.default_rng(0).normal(size=(30, 11, 2))
        here, there = path[:, :-1].reshape(300, 2), path[:, 1:].reshape(300, 2)
        last = np.arange(300) % 10 == 9
        real = Transitions(here, here[:, :1], np.arange(300.0), there, timeout=last)
        split = Split.of(real, rows(40, 1), None, max_rows=1_000, seed=0)
        held_out, reference = (set((part.reward // 10).tolist()) for part in (split.held_out, split.reference))
        assert len(split.held_out) == HELD_OUT_SHARE * 300
        assert not held_out & reference
        assert len(held_out) == 6
        one_by_one = split.by_rows()
        assert [len(part) for part in one_by_one] == [240, 60]
        assert len(set((one_by_one[1].reward // 10).tolist())) > 20
        more = Split.of(real, rows(400, 1), None, max_rows=1_000, seed=0)
        assert more.shrink() == pytest.approx(np.sqrt((1 / 300 + 1 / 400) / (1 / 240 + 1 / 60)))
        few = Split.of(real[:100], rows(40, 1), None, max_rows=1_000, seed=0)  # ten episodes are too few
        assert few.order is None

    def test_the_figure_of_real_rows_is_that_of_as_many_rows(self) -> None:
        """Under the law of chance that `shrink` follows, the real figure is what fresh rows of the same world get."""
        fresh, real = [], []
        for seed in range(6):
            split = Split.of(rows(4_000, seed), rows(4_000, seed + 100), None, max_rows=10_000, seed=0)
            fresh.append(1 - marginal(*matrices_of(split.real, split.synthetic))[1])
            real.append(split.shrink() * (1 - marginal(*matrices_of(split.reference, split.held_out))[1]))
        assert np.mean(real) == pytest.approx(np.mean(fresh), rel=0.15)


def test_other_episodes_of_the_same_world_are_as_good_as_real_rows(short: None) -> None:
    """Rows of an episode are alike, so those of a few episodes are further from real rows than chance would say."""
    assert assess(worlds.drifting_walks(100, 0), worlds.drifting_walks(25, 1)).verdict.decision == "use"


def test_the_same_rows_in_any_order_are_further_from_real_rows_than_chance_says(quick: None) -> None:
    real, others = worlds.drifting_walks(100, 0), worlds.drifting_walks(25, 1)
    shuffled = others[np.random.default_rng(0).permutation(len(others))]  # as if somebody had generated them
    assert "worst_correlation" in [reason.measure for reason in assess(real, shuffled).verdict.reasons]


def test_rows_without_the_starts_of_episodes_are_to_be_mixed(quick: None) -> None:
    real, others = (worlds.drifting_walks(100, seed) for seed in (0, 1))
    later = others[others.observation[:, 0] > -4]
    later = later[np.random.default_rng(0).permutation(len(later))]
    found = assess(real, later)
    assert found.measure("start_coverage").value == 0
    assert "start_coverage" in [reason.measure for reason in found.verdict.reasons if reason.says == "mix"]

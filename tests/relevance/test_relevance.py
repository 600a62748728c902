"""Each relevance function on rows whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from synther import Transitions
from synther.errors import DataError
from synther.relevance import RELEVANCE, curiosity, log_probability, relevance, td_error, value

RANDOM = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def the_same_numbers_in_any_order_of_tests() -> None:
    global RANDOM
    RANDOM = np.random.default_rng(0)


def rows(count: int = 50, discrete: bool = False) -> Transitions:
    state = RANDOM.normal(size=(count, 2))
    action = RANDOM.integers(0, 3, count) if discrete else RANDOM.uniform(-1, 1, (count, 1))
    return Transitions(state, action, state[:, 0], state + 0.1, np.arange(count) % 10 == 9)


def test_reward_is_the_reward():
    some = rows()
    assert np.array_equal(relevance("reward", some), some.reward)


def test_returns_to_go_stop_at_the_end_of_an_episode():
    steps = np.arange(7.0)[:, None]
    terminal = np.array([False, False, True, False, False, False, False])
    some = Transitions(steps, steps, np.array([1.0, 2, 4, 8, 1, 1, 1]), steps + 1, terminal)
    last = [8 + 0.99 * (1 + 0.99 * 1.99), 1 + 0.99 * 1.99, 1.99, 1]
    np.testing.assert_allclose(relevance("return", some), [1 + 0.99 * (2 + 0.99 * 4), 2 + 0.99 * 4, 4, *last])
    with pytest.raises(DataError, match="return"):
        relevance("return", some[[4, 0, 3, 1, 6, 2, 5]])


@pytest.mark.parametrize("discrete", [False, True])
def test_curiosity_is_about_what_cannot_be_foreseen(discrete):
    """One row in 20 goes anywhere, all others where the action sends them."""
    some = rows(2_000, discrete)
    odd = np.arange(2_000) % 20 == 0
    moved = some.action.reshape(2_000, -1).mean(1, keepdims=True)
    following = np.where(odd[:, None], RANDOM.normal(size=(2_000, 2)), 0.8 * some.observation + 0.3 * moved)
    some = Transitions(some.observation, some.action, some.reward, following, some.terminal)
    found = curiosity(some, steps=80, device="cpu")
    assert found.shape == (2_000,)
    assert np.median(found[odd]) > 10 * np.median(found[~odd])


def test_curiosity_is_a_function_of_the_rows():
    some = rows()
    assert np.array_equal(curiosity(some, steps=3, device="cpu"), curiosity(some, steps=3, device="cpu"))


def test_critics_by_their_formulas():
    some = rows()

    def q(state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        one = state.sum(1) + 2 * action[:, 0]
        return torch.stack([one, one + 1])  # of two critics the lower one counts

    def target(state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return (3 * state[:, :1]) + action

    def policy(state: torch.Tensor) -> torch.Tensor:
        return 0.5 * state[:, :1]

    state, then, action = some.observation, some.next_observation, some.action
    np.testing.assert_allclose(value(q, policy)(some), state.sum(1) + state[:, 0], rtol=1e-5, atol=1e-6)
    after = 3.5 * then[:, 0] * ~some.terminal
    expected = np.abs(some.reward + 0.9 * after - (state.sum(1) + 2 * action[:, 0]))
    found = td_error(q, policy, target=target, discount=0.9)(some)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    own = td_error(q, policy, discount=0.9)(some)
    assert not np.allclose(own, found)
    likely = log_probability(lambda state, action: -((action[:, 0] - state[:, 0]) ** 2))(some)
    np.testing.assert_allclose(likely, -((action[:, 0] - state[:, 0]) ** 2), rtol=1e-4, atol=1e-6)


def test_names_are_known_and_other_packages_can_add_some():
    assert RELEVANCE.names() == ["reward", "return", "curiosity"]
    RELEVANCE.register("speed", lambda some: some.observation[:, 1])
    try:
        some = rows()
        assert np.array_equal(relevance("speed", some), some.observation[:, 1])
    finally:
        RELEVANCE.remove("speed")

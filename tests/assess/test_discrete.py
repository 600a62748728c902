"""States and transitions that exist, and how often each follows, against plain counting."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from synther.assess.discrete import States, figures, frequency_error, possible_transitions
from synther.data.transitions import Transitions

from .worlds import linear, slippery_line


def test_transitions_count_where_the_state_and_the_action_are_known() -> None:
    real = Counter({(b"a", 0, b"b"): 5, (b"b", 0, b"a"): 4})
    assert possible_transitions(real, [(b"a", 0, b"b"), (b"a", 0, b"c")]) == 0.5
    assert possible_transitions(real, [(b"b", 0, b"a")]) is None  # seen four times
    assert possible_transitions(real, [(b"z", 0, b"a")]) is None


def test_frequencies_are_those_of_the_same_state_and_action() -> None:
    real = Counter({(b"a", 0, b"b"): 8_000, (b"a", 0, b"c"): 2_000})
    rarer = Counter({(b"a", 0, b"b"): 9_000, (b"a", 0, b"c"): 1_000})
    found = frequency_error(real, rarer)
    assert found is not None
    assert found[0] == pytest.approx(np.sqrt(2 * 0.1**2), abs=1e-3)
    same = frequency_error(real, real)
    assert same is not None
    assert same[0] == 0
    assert frequency_error(real, Counter({(b"z", 0, b"a"): 9})) is None


def test_what_few_rows_differ_by_is_no_error() -> None:
    """Two draws of the same world, about ten rows for each state and action: without the correction 0.4."""
    one, other = (slippery_line(480, seed, size=24) for seed in (0, 1))
    found = figures(one, other, other)["frequency_error"]
    assert found.value < 0.12


@pytest.mark.parametrize("one_hot", [False, True])
def test_a_world_of_few_states(one_hot: bool) -> None:
    real, held_out = (slippery_line(4_000, seed, one_hot=one_hot) for seed in (0, 1))
    good = figures(real, slippery_line(4_000, 2, one_hot=one_hot), held_out)
    assert good["known_observations"][:2] == good["possible_transitions"][:2] == (1, 1)
    assert good["frequency_error"].value == pytest.approx(0, abs=0.03)
    slippery = figures(real, slippery_line(4_000, 2, 0.1, one_hot=one_hot), held_out)
    assert slippery["frequency_error"].value == pytest.approx(0.14 * np.sqrt(11 / 12), abs=0.04)
    wrong = slippery_line(4_000, 2, one_hot=one_hot)
    shuffled = replace(wrong, next_observation=np.random.default_rng(0).permutation(wrong.next_observation))
    assert figures(real, shuffled, held_out)["possible_transitions"].value < 0.3
    between = replace(wrong, observation=wrong.observation + 0.4)
    assert figures(real, between, held_out)["known_observations"].value == pytest.approx(0.5)


def test_storage_makes_no_new_state() -> None:
    grid = np.round(np.random.default_rng(0).integers(64, size=(500, 1)) / 64 * 0.7, 9)
    states = States.of(Transitions(grid, grid, np.zeros(500), grid))
    assert set(states.keys(grid)) == set(states.keys(grid.astype(np.float32)))
    assert len(set(states.keys(grid))) == len(np.unique(grid))


def test_other_worlds_have_no_such_figures() -> None:
    assert figures(linear(300, 0), linear(300, 1), linear(100, 2)) == {}
    same = Transitions(np.ones((9, 1)), np.zeros(9, int), np.zeros(9), np.ones((9, 1)))
    assert figures(same, same, same) == {}
    moved = replace(slippery_line(900, 0), action=np.random.default_rng(0).normal(size=(900, 1)))
    assert set(figures(moved, moved, moved)) == {"known_observations"}

from __future__ import annotations

import numpy as np
import pytest

from synther.assess.features import Features
from synther.assess.terminals import TerminalJudge, agreement
from synther.data import termination
from synther.data.transitions import Transitions


def flags(text: str) -> np.ndarray:
    return np.array([letter == "1" for letter in text])


def test_agreement() -> None:
    found = agreement(flags("110000"), flags("101100"))
    assert (found.correct, found.precision, found.recall) == (pytest.approx(0.5), 0.5, pytest.approx(1 / 3))
    perfect = agreement(flags("0100"), flags("0100"))
    assert (perfect.correct, perfect.precision, perfect.recall) == (1, 1, 1)
    never = agreement(flags("0"), flags("0"))
    assert (never.correct, never.precision, never.recall) == (1, None, None)
    assert agreement(flags("00"), flags("01")).recall == 0


def rows(count: int, seed: int) -> Transitions:
    """A world that ends where its first column falls below -2."""
    rng = np.random.default_rng(seed)
    here, there = rng.normal(size=(2, count, 2))
    return Transitions(here, rng.normal(size=(count, 1)), np.zeros(count), there, terminal=there[:, 0] < -2)


def test_thresholds_judge_where_they_explain_the_real_terminals() -> None:
    real, other = rows(6_000, 0), rows(4_000, 1)
    judge = TerminalJudge(Features.of(real), real, seed=0)
    assert agreement(judge(other), other.terminal).correct > 0.998


def test_a_network_that_judges_rare_terminals_does_not_look_at_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(termination, "learn", lambda *rows_and_seed: None)
    real, other = rows(6_000, 0), rows(4_000, 1)
    judge = TerminalJudge(Features.of(real), real, seed=0)
    found = agreement(judge(other), other.terminal)
    assert real.terminal.mean() < 0.03
    assert found.precision is not None
    assert found.recall is not None
    assert min(found.precision, found.recall) > 0.7
    flipped = Transitions(other.observation, other.action, other.reward, other.next_observation, ~other.terminal)
    assert np.array_equal(judge(flipped), judge(other))


@pytest.mark.parametrize("value", [False, True])
def test_where_all_flags_are_the_same_so_is_the_answer(value: bool) -> None:
    real = rows(30, 0)
    same = Transitions(real.observation, real.action, real.reward, real.next_observation, np.full(30, value))
    assert (TerminalJudge(Features.of(same), same, seed=0)(real) == value).all()

"""The laws hold on other real rows, and each of them notices rows that break it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import law_worlds
import laws
import numpy as np
import pytest
from law_tables import possible, table

from synther import Transitions
from synther.presets import PRESETS

ROWS = 60_000
Array = np.ndarray[Any, Any]


@cache
def real(world: str) -> Transitions:
    return laws.WORLDS[world][0](ROWS, 0)


@cache
def expected(world: str) -> tuple[dict[str, float], dict[str, float]]:
    every = laws.WORLDS[world][1]
    errors = {laws.law_key(law): laws.standard_error(law.measure, real(world)) for law in every}
    return laws.figures(every, real(world)), errors


def broken(world: str, rows: Transitions, preset: str = "best", only: str = "") -> set[str]:
    """The laws that `rows` miss, of all or of one."""
    every = [law for law in laws.WORLDS[world][1] if only in ("", laws.law_key(law))]
    known, errors = expected(world)
    line = {"preset": preset, "rows": ROWS, "samples": len(rows), "real": known, "errors": errors}
    line["figures"] = laws.figures(every, rows)
    return {laws.law_key(law) for law in every if laws.missed(law, line)}


@pytest.mark.parametrize("world", laws.WORLDS)
def test_other_real_rows_obey_every_law(world: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laws, "STANDARD_ERRORS", 4)  # two are exceeded by chance in one of twenty comparisons
    other = laws.WORLDS[world][0](3 * ROWS, 2)
    assert len(other) == 3 * ROWS
    assert broken(world, other) == set()


@pytest.mark.parametrize("world", laws.WORLDS)
def test_a_world_is_repeatable_and_has_no_declared_spaces(world: str) -> None:
    make = laws.WORLDS[world][0]
    assert make(500, 3).equals(make(500, 3))
    assert not make(500, 3).equals(make(500, 4))
    assert make(500, 3).observation_space is None


def changed(rows: Transitions, column: int, values: Array, *, before: bool = False) -> Transitions:
    """`rows` with other values in one column of the next observations (or of the observations)."""
    field = "observation" if before else "next_observation"
    side = getattr(rows, field).copy()
    side[:, column] = values
    return replace(rows, **{field: side})


def some(share: float) -> Array:
    return np.random.default_rng(5).random(ROWS) < share


def narrowed(column: int, rows: Transitions) -> Transitions:
    """Outcomes drawn together to 0.8 of their spread, as a generator that removes noise does."""
    mean = 0.9 * rows.observation[:, column] + (0.3 * rows.action[:, 0] if rows.action.ndim == 2 else 0)
    return changed(rows, column, mean + 0.8 * (rows.next_observation[:, column] - mean))


def between(rows: Transitions) -> Transitions:
    """Some outcomes of the fork halfway between its branches."""
    halfway = np.where(some(0.02), 0.5 * rows.observation[:, 4], rows.next_observation[:, 4])
    return changed(rows, 4, halfway)


def zeroed(column: int, share: float, rows: Transitions) -> Transitions:
    """Twice as many zeros."""
    for before in (True, False):
        side = rows.observation if before else rows.next_observation
        rows = changed(rows, column, np.where(some(share), 0, side[:, column]), before=before)
    return rows


def unclipped(rows: Transitions) -> Transitions:
    """Half of the clipped values a little inside the limits."""
    for before in (True, False):
        side = rows.observation[:, 3] if before else rows.next_observation[:, 3]
        rows = changed(rows, 3, np.where(some(0.5), side * 0.99, side), before=before)
    return rows


def turned(rows: Transitions) -> Transitions:
    """The walker slips as often as not."""
    before = np.rint(10 * rows.observation[:, 3])
    other = (2 * before - np.rint(10 * rows.next_observation[:, 3])).clip(0, law_worlds.STEPS) / 10
    return changed(rows, 3, np.where(some(0.3), other, rows.next_observation[:, 3]))


def flipped(rows: Transitions) -> Transitions:
    """Actions that were sent the other way."""
    return replace(rows, action=np.where(some(0.1), rows.action ^ 1, rows.action))


def doubled(rows: Transitions) -> Transitions:
    """A second 1 in a one-hot group, or none."""
    first = rows.next_observation[:, 4]
    return changed(rows, 4, np.where(some(0.02), 1 - first, first))


def widened(rows: Transitions) -> Transitions:
    """A column too wide, as a sampler with few steps makes it."""
    return changed(rows, 0, 1.07 * rows.observation[:, 0], before=True)


def off(column: int, distance: float, rows: Transitions) -> Transitions:
    return changed(rows, column, rows.next_observation[:, column] + distance)


def mirrored(rows: Transitions) -> Transitions:
    """The fork's branches exchanged, and no values of the mixture below zero."""
    rows = changed(rows, 4, -rows.next_observation[:, 4])
    return changed(rows, 5, np.abs(rows.observation[:, 5]), before=True)


def ended(marks: Callable[[Transitions], Any], rows: Transitions) -> Transitions:
    return replace(rows, terminal=marks(rows))


def flagless(rows: Transitions) -> Transitions:
    """No terminals in one half of the states."""
    return ended(lambda r: r.terminal & (r.observation[:, 0] < 0), rows)


def turned_actions(rows: Transitions) -> Transitions:
    return replace(rows, action=(rows.action + some(0.2)) % 4)


def shuffled(rows: Transitions) -> Transitions:
    """Next observations of other rows."""
    return replace(rows, next_observation=np.roll(rows.next_observation, 1, 0))


WRONG: list[tuple[str, str, Callable[[Transitions], Transitions]]] = [
    ("noise", "Gaussian noise, 0.05 of a deviation: spread given (s, a) / true", partial(narrowed, 0)),
    ("noise", "Gaussian noise, 0.5 of a deviation: spread given (s, a) / true", partial(narrowed, 1)),
    ("noise", "Gaussian noise, 0.5 of a deviation: effect of the action", shuffled),
    ("noise", "noise that grows with the state: spread, low third / true", partial(narrowed, 2)),
    ("noise", "noise that grows with the state: spread, high third / true", partial(narrowed, 2)),
    ("noise", "heavy-tailed noise (t, 3 degrees): 1% quantile / true", partial(narrowed, 3)),
    ("noise", "heavy-tailed noise (t, 3 degrees): 99% quantile / true", partial(narrowed, 3)),
    ("noise", "two outcomes of one action: share of neither", between),
    ("noise", "two outcomes of one action: share of the upper outcome", mirrored),
    ("noise", "next = sin(3 s) + a / 2, no noise: error / deviation", partial(off, 6, 0.1)),
    ("noise", "noisy reward: spread given (s, a) / true", lambda r: replace(r, reward=r.observation[:, 0])),
    ("noise", "normal column: deviation", widened),
    ("noise", "normal column: share beyond 2.5", widened),
    ("noise", "normal column: 99.9% quantile / true", widened),
    ("noise", "mixture of three modes: share of the narrow mode", mirrored),
    ("noise", "terminals at random, 0.5%: share", partial(ended, lambda r: r.terminal | some(0.005))),
    ("noise", "terminals at random, 0.5%: share where s > 0", flagless),
    ("special", "exact zeros, 0.3%: share", partial(zeroed, 0, 0.003)),
    ("special", "exact zeros, 1%: share", partial(zeroed, 1, 0.01)),
    ("special", "exact zeros, 5%: share", partial(zeroed, 2, 0.05)),
    ("special", "clipped on both sides: share at the upper limit", unclipped),
    ("special", "clipped on both sides: share within 0.25 of the lower limit", unclipped),
    ("special", "clipped on both sides: share that stays at the upper limit", shuffled),
    ("special", "sparse reward, 3%: share", lambda r: replace(r, reward=r.reward + 1e-3)),
    ("special", "sparse reward, 3%: spread where paid / true", lambda r: replace(r, reward=np.where(r.reward, 1, 0))),
    ("special", "sparse reward, 3%: rewards paid beyond the line", shuffled),
    ("special", "rare terminals, 0.2%: share", partial(ended, lambda r: r.terminal | some(0.002))),
    ("special", "rare terminals, 0.2%: terminals beyond the line", partial(ended, lambda r: np.roll(r.terminal, 1))),
    ("special", "rare terminals, 0.2%: rows beyond the line that end", partial(ended, lambda r: None)),
    ("lattice", "steps of 0.1, 11 values: share off the lattice", partial(off, 0, 0.01)),
    ("lattice", "steps of 0.1, 11 values: share that stays", shuffled),
    ("lattice", "steps of 0.008, 4,000 values: share off the lattice", partial(off, 1, 0.001)),
    ("lattice", "steps of 0.008, 4,000 values: spread given s / true", partial(narrowed, 1)),
    ("lattice", "walker on steps of 0.1: share of impossible steps", shuffled),
    ("lattice", "walker on steps of 0.1: slips when sent right", turned),
    ("lattice", "walker on steps of 0.1: slips when sent left", turned),
    ("lattice", "walker on steps of 0.1: reward is not the next place", turned),
    ("lattice", "one-hot, 5 wide: share not one-hot", doubled),
    ("lattice", "one-hot, 5 wide: share of impossible steps", shuffled),
    ("lattice", "one-hot, 12 wide: share that changes", shuffled),
    ("rare", "starts at rest, 0.2%: share", lambda r: replace(r, observation=r.observation + 1)),
    ("rare", "starts at rest, 0.2%: spread of the action / true", lambda r: replace(r, action=np.roll(r.action, 1, 0))),
    ("rare", "landings, +100, 0.15%: share of rewards above 50", lambda r: replace(r, reward=r.reward / 3)),
    ("rare", "landings, +100, 0.15%: landings that end", partial(ended, lambda r: r.terminal & some(0.5))),
    ("rare", "landings, +100, 0.15%: ends that are paid", partial(ended, lambda r: r.terminal | some(0.001))),
    ("rare", "landings, +100, 0.15%: error of what is paid", lambda r: replace(r, reward=1.1 * r.reward)),
    ("falls", "falls, -2, 3%: share of terminals", partial(ended, lambda r: r.terminal | some(0.01))),
    ("falls", "falls, -2, 3%: falls that end", partial(ended, lambda r: r.terminal & some(0.8))),
    ("falls", "falls, -2, 3%: ends that are falls", partial(ended, lambda r: r.terminal | some(0.01))),
    ("falls", "falls, -2, 3%: mean loss in terminal rows", lambda r: replace(r, reward=r.reward + 0.3 * r.terminal)),
    ("falls", "falls, -2, 3%: spread of the loss / true", lambda r: replace(r, reward=r.reward + some(0.1))),
    ("falls", "falls, -2, 3%: correlation with the reward", lambda r: replace(r, reward=r.reward + r.terminal)),
    ("falls", "falls, -2, 3%: wrong reward", lambda r: replace(r, reward=r.reward + 2 * some(0.04))),
    ("falls", "angle: steps across the end", lambda r: changed(r, 5, r.next_observation[:, 5] * (1 - 2 * some(0.01)))),
    ("falls", "angle: spread of turns / true", lambda r: changed(r, 5, r.next_observation[:, 5] + 0.1 * some(0.5))),
    ("falls", "angle: impossible turns", lambda r: changed(r, 5, r.next_observation[:, 5] * np.where(some(0.1), 0, 1))),
    ("falls", "angle: beyond the circle", lambda r: changed(r, 5, 1.1 * r.next_observation[:, 5])),
    ("slippery", "5 x 5 cells, numbers in no order: share of impossible steps", shuffled),
    ("slippery", "5 x 5 cells, numbers in no order: slips", flipped),
    ("slippery", "5 x 5 cells, sparse reward at the goal: wrong reward or terminal", shuffled),
    ("slippery", "chain of 20 integers: slips when sent left", flipped),
    ("frozenlake", "FrozenLake 8x8, slippery: share of impossible transitions", shuffled),
    ("frozenlake", "FrozenLake 8x8, slippery: goes the intended way", turned_actions),
    ("frozenlake", "FrozenLake 8x8, slippery: wrong reward or terminal", partial(ended, lambda r: None)),
    ("taxi", "Taxi: share of impossible transitions", shuffled),
    ("taxi", "Taxi: wrong reward or terminal", lambda r: replace(r, reward=np.where(some(0.02), 20, r.reward))),
]  # fmt: skip


@pytest.mark.parametrize(("world", "law", "wrong"), WRONG, ids=[f"{entry[0]}: {entry[1]}" for entry in WRONG])
def test_wrong_rows_break_the_law(world: str, law: str, wrong: Callable[[Transitions], Transitions]) -> None:
    assert broken(world, wrong(real(world)), only=law) == {law}


def test_every_measure_notices_rows_without_what_it_measures() -> None:
    few = replace(real("special")[:50], terminal=np.zeros(50, bool), reward=np.zeros(50))
    law = next(law for law in laws.WORLDS["special"][1] if law.figure == "terminals beyond the line")
    assert math.isnan(law.measure(few))
    assert broken("special", few, only=laws.law_key(law))


def test_shares_of_rare_values_as_stated() -> None:
    assert np.mean(real("special").reward != 0) == pytest.approx(0.03, rel=0.1)
    assert np.mean(laws.WORLDS["special"][0](400_000, 0).terminal) == pytest.approx(0.002, rel=0.1)
    fine = laws.WORLDS["lattice"][0](200_000, 0).observation[:, 1]
    assert len(np.unique(fine)) > 2_500
    assert fine.min() >= -16
    assert fine.max() <= 16


def test_laptop_has_wider_tolerances() -> None:
    narrow = narrowed(1, real("noise"))
    mean = 0.9 * narrow.observation[:, 1] + 0.3 * narrow.action[:, 0]
    slightly = changed(narrow, 1, mean + 0.93 / 0.8 * (narrow.next_observation[:, 1] - mean))
    key = "Gaussian noise, 0.5 of a deviation: spread given (s, a) / true"
    assert broken("noise", slightly, only=key) == {key}
    assert broken("noise", slightly, "laptop", only=key) == set()


def test_a_tolerance_is_never_tighter_than_two_standard_errors() -> None:
    law = laws.WORLDS["noise"][1][0]
    key = laws.law_key(law)
    line = {"preset": "best", "rows": 100, "samples": 300, "real": {key: 1.0}, "errors": {key: 0.3}}
    assert laws.tolerance(law, line) == pytest.approx(2 * 0.3 * math.sqrt(4 / 3))
    assert laws.tolerance(law, line | {"errors": {key: 0.0}}) == pytest.approx(0.05)


def test_the_standard_error_of_a_mean() -> None:
    rows = replace(real("noise"), reward=np.random.default_rng(0).normal(size=ROWS))
    found = laws.standard_error(lambda part: float(part.reward.mean()), rows)
    assert found == pytest.approx(1 / math.sqrt(ROWS), rel=0.4)
    assert laws.standard_error(lambda part: math.nan, rows) == math.inf


def test_presets_that_differ_in_the_sampler_share_a_fit() -> None:
    groups = laws.fits(list(PRESETS))
    assert sorted(name for group in groups for name in group) == sorted(PRESETS)
    for group in groups:
        assert len({str(PRESETS[name].to_json() | {"sampler": None, "distill": None}) for name in group}) == 1
    assert ["paper", "fast"] in groups


def test_tables_of_gymnasium() -> None:
    for name, states in (("frozenlake", 53), ("taxi", 400)):
        truth = table(name)
        total = truth.probability.sum(2)
        assert np.allclose(total[total > 0], 1)
        assert (total > 0).all(1).sum() == states
        rows = real(name)
        assert possible(name, rows).all()
        over = rows.terminal | np.asarray(rows.timeout)
        assert over[-1]
        ahead = rows.next_observation[:-1, 0] == rows.observation[1:, 0]
        assert ahead[~over[:-1]].all()


def test_a_command_leaves_results_that_are_not_measured_again(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--presets", "laptop", "--only", "slippery", "--rows", "300", "--samples", "200", "--fit-steps", "3"]
    monkeypatch.setattr("sys.argv", ["laws.py", *asked, "--folder", str(tmp_path), "--out", str(tmp_path / "laws.md")])
    laws.main()
    assert "slippery: laptop, seed 0: fit" in capsys.readouterr().out
    laws.main()
    assert "seed 0: fit" not in capsys.readouterr().out
    told = (tmp_path / "laws.md").read_text()
    assert "| chain of 20 integers" in told
    assert "of 9" in told.splitlines()[-2] or "of 9" in told.splitlines()[-3]


def test_several_seeds_are_one_line_with_their_range() -> None:
    law = laws.WORLDS["noise"][1][0]
    key = laws.law_key(law)
    one = {"preset": "best", "rows": 10, "samples": 10, "fit_seconds": 1, "sample_seconds": 2, "real": {key: 1.0}}
    lines = [one | {"figures": {key: value}, "errors": {key: 0.1}} for value in (0.8, 1.1, 1.4)]
    found = laws.mean(lines)
    assert found["figures"][key] == pytest.approx(1.1)
    assert found["ranges"][key] == (0.8, 1.4)
    assert found["errors"][key] == pytest.approx(0.1 / math.sqrt(3))
    assert (found["fit_seconds"], found["sample_seconds"]) == (3, 6)

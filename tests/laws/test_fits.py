"""Short fits of the default preset in worlds of known laws: what the network need not be good for must hold."""

from __future__ import annotations

import numpy as np
import pytest
from law_tables import FROZENLAKE, tabular
from law_worlds import LATTICE, NOISE, SPECIAL, Law, lattice, noise, special

from synther import Synthesizer, Transitions

SMALL = {"network": {"width": 64, "depth": 2}, "fit": {"steps": 150, "evaluate_every": 50}}


def drawn(real: Transitions, count: int = 20_000) -> Transitions:
    return Synthesizer("laptop", **SMALL, device="cpu").fit(real, progress=False).sample(count, seed=1, progress=False)


def figure(laws: tuple[Law, ...], name: str, text: str, rows: Transitions) -> float:
    (law,) = [law for law in laws if law.name.startswith(name) and law.figure.startswith(text)]
    return law.measure(rows)


def test_what_is_random_about_an_outcome_stays_random():
    """The noise is 0.05 of a deviation, or half of one: a fit of seconds keeps its spread to a tenth."""
    rows = drawn(noise(8_000, 0), 8_000)
    for law in ("Gaussian noise, 0.05", "Gaussian noise, 0.5", "noisy reward"):
        assert figure(NOISE, law, "spread given (s, a)", rows) == pytest.approx(1, abs=0.1), law


def test_special_values_come_as_often_as_in_the_real_rows():
    real = special(20_000, 0)
    rows = drawn(real)
    for law, text in (
        ("exact zeros, 1%", "share"),
        ("exact zeros, 5%", "share"),
        ("clipped on both sides", "share at the lower limit"),
        ("clipped on both sides", "share at the upper limit"),
    ):
        laws = tuple(one for one in SPECIAL if "other values" not in one.figure)
        truth = figure(laws, law, text, real)
        # of 20,000 rows drawn, and as many from which the thresholds were set
        chance = 4 * np.sqrt(2 * truth / 20_000)
        assert figure(laws, law, text, rows) == pytest.approx(truth, abs=chance), (law, text)
    assert figure(SPECIAL, "sparse reward", "rewards paid beyond", rows) > 0.95


def test_values_stay_on_their_lattice_and_groups_one_hot():
    rows = drawn(lattice(20_000, 0), 4_000)
    for law in LATTICE:
        if any(word in law.figure for word in ("off the lattice", "not one-hot", "not whole")):
            assert law.measure(rows) == 0, (law.name, law.figure)


def test_a_finite_world_has_no_impossible_row_and_the_same_chances():
    real = tabular("frozenlake", 20_000, 0)
    rows = drawn(real)
    for law in FROZENLAKE:
        if law.limits is not None:
            assert law.measure(rows) == 0, law.figure
        else:
            assert law.measure(rows) == pytest.approx(law.measure(real), rel=0.15), law.figure

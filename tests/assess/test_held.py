"""Columns that stay as they are in some rows, in worlds whose law is known."""

from __future__ import annotations

import numpy as np
import pytest

from synther.assess.held import figures
from synther.assess.metrics import measure
from synther.assess.verdict import LIMITS, votes
from synther.data.transitions import Transitions


def shop(seed: int, buys: float = 0.4, blur: float = 0.0, rows: int = 6_000) -> Transitions:
    """A budget that is spent in a share `buys` of the rows, and a temperature that always changes."""
    draw = np.random.default_rng(seed)
    budget, warm = draw.uniform(50, 100, rows), draw.normal(size=rows)
    paid = np.where(draw.random(rows) < buys, draw.uniform(0.5, 2, rows), 0.0) + blur * draw.normal(size=rows)
    here, there = (np.stack(each, 1).astype(np.float32) for each in ((budget, warm), (budget - paid, 0.9 * warm)))
    return Transitions(here, warm[:, None], warm, there, np.zeros(rows, bool))


@pytest.mark.parametrize(
    ("buys", "blur", "says"),
    [(0.4, 0.0, "use"), (0.4, 1e-4, "use"), (0.5, 0.0, "mix"), (0.3, 0.0, "mix"), (0.4, 0.2, "mix")],
)
def test_the_share_of_steps_without_a_change(buys, blur, says):
    figure = figures(shop(0), shop(1, buys, blur), shop(2))["held_rate"]
    assert figure.real == pytest.approx(0.6, abs=0.026)
    if blur < 0.1:
        assert figure.value == pytest.approx(1 - buys, abs=0.026)
    assert figure.detail == "observation[0]"
    (vote,) = votes({"held_rate": measure("held_rate", figure)}, LIMITS)
    assert vote.says == says


def test_what_differs_between_real_episodes_is_no_reason():
    figure = figures(shop(0), shop(1), shop(2, buys=0.2))["held_rate"]
    assert figure.real == pytest.approx(0.8, abs=0.026)
    (vote,) = votes({"held_rate": measure("held_rate", figure)}, LIMITS)
    assert vote.says == "use"


def test_values_at_an_end_of_the_range_are_ignored():
    def clipped(seed: int, blur: float = 0.0) -> Transitions:
        draw = np.random.default_rng(seed)
        speed = draw.normal(size=(2, 6_000)).clip(-1, 1) * (1 + blur * draw.uniform(-1, 0, (2, 6_000)))
        here, there = speed[:, :, None].astype(np.float32)
        return Transitions(here, here, speed[0], there, np.zeros(6_000, bool))

    assert (clipped(0).observation == clipped(0).next_observation).mean() > 0.03
    assert figures(clipped(0), clipped(1, 0.1), clipped(2)) == {}


def test_columns_that_always_or_never_change_are_ignored():
    always, never = shop(0, 1.0), shop(0, 0.0)
    assert figures(always, shop(1), always) == {}
    assert figures(never, shop(1), never) == {}


def test_rows_of_one_episode_count_as_one():
    """A body that lies on its back stays there for the rest of the episode."""

    def ant(seed: int, lying: float) -> Transitions:
        draw = np.random.default_rng(seed)
        lies = np.repeat(draw.random(40) < lying, 150)
        speed = draw.normal(size=6_000)
        then = np.where(lies, speed, draw.normal(size=6_000))
        return Transitions(speed[:, None], speed[:, None], speed, then[:, None])

    episodes = np.arange(6_000) // 150
    real, few, none = ant(0, 0.5), ant(1, 0.4), ant(3, 0.0)
    alone = figures(real, few, ant(2, 0.5))["held_rate"]
    assert abs(alone.value - alone.real) > alone.chance
    together = figures(real, few, ant(2, 0.5), episodes, episodes)["held_rate"]
    assert abs(together.value - together.real) < together.chance
    missing = figures(real, none, ant(2, 0.5), episodes)["held_rate"]
    assert abs(missing.value - missing.real) > missing.chance

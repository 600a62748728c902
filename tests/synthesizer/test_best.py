"""What preset `best` adds, on a network small enough for a test."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest

from synther import Synthesizer, Transitions
from synther.data import termination
from synther.diffusion.config import SamplerConfig

from ..support.distributions import furthest
from ..support.watch import Watch
from .rows import SHORT

SAMPLER = {"kind": "unipc", "steps": 8, "matched": True, "restarts": 1, "restart_steps": 4}
DATA = {"scaling": "blend", "spikes": True, "terminals": "decided"}


def falling(rows: int = 3_000, explained: bool = True) -> Transitions:
    """A body that falls: its speed is clipped at 2, and below height 0 the episode ends."""
    random = np.random.default_rng(0)
    height, speed = random.uniform(0, 2, rows), random.normal(size=rows).clip(-2, 2)
    action = random.uniform(-1, 1, (rows, 1))
    next_speed = (speed + action[:, 0] - 0.3).clip(-2, 2)
    next_height = height + 0.3 * next_speed
    ends = next_height < 0 if explained else random.random(rows) < 0.05
    return Transitions.of(
        observation=np.stack([height, speed], 1).astype(np.float32),
        action=action.astype(np.float32),
        reward=next_height.astype(np.float32),
        next_observation=np.stack([next_height, next_speed], 1).astype(np.float32),
        terminal=ends,
    )


def small(steps: int = 500) -> Synthesizer:
    fit = {"steps": steps, "learning_rate": 4e-3, "evaluate_every": 500}
    network = {"width": 64, "depth": 2, "embedding": 16}
    return Synthesizer("laptop", network=network, fit=fit, sampler=SAMPLER, data=DATA)


@pytest.fixture(scope="module")
def best() -> tuple[Synthesizer, Watch]:
    watch = Watch()
    return small().fit(falling(), progress=watch), watch


def test_clipped_speeds_come_back_exactly_clipped(best):
    model, real = best[0], falling()
    fake = model.sample(4_000, seed=0, progress=False)
    for field in ("observation", "next_observation"):
        speeds = getattr(fake, field)[:, 1]
        assert np.abs(speeds).max() <= 2
        for limit in (-2.0, 2.0):
            share, truth = np.mean(speeds == limit), np.mean(getattr(real, field)[:, 1] == limit)
            assert 0.5 * truth < share < 1.5 * truth
            assert np.mean(np.abs(speeds - limit) < 0.02) < 1.3 * share


def test_observations_and_actions_have_the_real_quantiles_and_outcomes_follow():
    """Also of a network that has learned for a moment only. Given values, and rows that are like others, stay."""
    model, real = small(steps=100).fit(falling(), progress=False), falling()
    columns = [("observation", 0), ("observation", 1), ("action", 0)]

    def off(rows: Transitions) -> list[float]:
        return [furthest(getattr(rows, field)[:, column], getattr(real, field)[:, column]) for field, column in columns]

    def inconsistent(rows: Transitions) -> float:
        height = rows.observation[:, 0] + 0.3 * rows.next_observation[:, 1]
        return float(np.abs(rows.next_observation[:, 0] - height).mean())

    plain = model.sample(8_000, seed=0, sampler={**SAMPLER, "matched": False}, progress=False)
    rows = model.sample(8_000, seed=0, progress=False)
    assert max(off(rows)) < min(0.03, 0.7 * max(off(plain)))
    assert inconsistent(rows) < 1.25 * inconsistent(plain)
    given = model.sample(given={"observation": real.observation, "action": real.action}, seed=0, progress=False)
    np.testing.assert_array_equal(given.observation, real.observation)
    near = model.sample(2_000, like=real, strength=0.01, seed=0, progress=False)
    assert max(off(near)) < 0.05


def test_terminals_are_where_the_limit_is_learned_from_the_rows_alone(best):
    assert best[0]._model.ending == termination.learn(falling())
    fake = best[0].sample(4_000, seed=0, progress=False)
    assert np.mean(fake.terminal == (fake.next_observation[:, 0] < 0)) > 0.995
    assert fake.terminal.mean() == pytest.approx(falling().terminal.mean(), rel=0.2)


def test_terminal_rows_have_the_reward_of_terminal_rows():
    """Also where a network that was fitted for a moment makes a flag which the limits overrule."""
    real = falling()
    paid = 2 * real.action[:, 0] - 2 * real.terminal + np.random.default_rng(1).normal(0, 0.1, len(real))
    real = replace(real, reward=paid.astype(np.float32))
    model = small(steps=100).fit(real, progress=False)
    assert model.layout.terminal_reward == pytest.approx(-2, abs=0.05)
    fake = model.sample(20_000, seed=0, progress=False)

    def off(rows: Transitions) -> float:
        return float(np.mean((rows.reward - 2 * rows.action[:, 0])[rows.terminal]))

    assert off(fake) == pytest.approx(off(real), abs=0.05)


@pytest.mark.parametrize("at_random", [False, True])
def test_what_is_paid_in_all_rows_is_not_lost_beside_a_bonus_at_the_end(at_random):
    """Also where nothing but the bonus tells which rows end."""
    real = falling()
    if at_random:
        real = replace(real, terminal=np.random.default_rng(2).random(len(real)) < 0.05)
    paid = -0.1 * real.action[:, 0] ** 2
    real = replace(real, reward=(paid + 100 * real.terminal).astype(np.float32))
    fake = small(steps=400).fit(real, progress=False).sample(4_000, seed=0, progress=False)
    off = np.abs(fake.reward + 0.1 * fake.action[:, 0] ** 2 - 100 * fake.terminal)
    assert off.mean() < 0.25 * paid.std()


def test_terminals_that_are_paid_one_number_each_come_as_often_and_are_paid_it():
    """Landings and crashes that nothing but the reward tells of."""
    draw, real = np.random.default_rng(3), falling()
    ends, lands = draw.random(len(real)) < 0.03, draw.random(len(real)) < 0.5
    paid = np.where(ends, np.where(lands, 100.0, -100.0), real.action[:, 0] + 0.1 * draw.normal(size=len(real)))
    real = replace(real, terminal=ends, reward=paid.astype(np.float32))
    fake = small(steps=400).fit(real, progress=False).sample(20_000, seed=0, progress=False)
    assert fake.terminal.mean() == pytest.approx(ends.mean(), rel=0.2)
    assert {*fake.reward[fake.terminal].tolist()} == {-100.0, 100.0}
    assert np.mean(fake.reward[fake.terminal] > 0) == pytest.approx(np.mean(lands[ends]), abs=0.1)
    assert np.abs(fake.reward[~fake.terminal]).max() < 2


def test_terminals_with_a_reward_of_their_own_come_as_often_as_in_the_real_rows():
    """The reward alone would tell which rows end, and it is generated."""
    real = falling()
    real = replace(real, reward=np.where(real.terminal, 0.0, -1.0).astype(np.float32))
    fake = small(steps=400).fit(real, progress=False).sample(20_000, seed=0, progress=False)
    assert np.mean(fake.terminal == (fake.next_observation[:, 0] < 0)) > 0.995
    assert np.array_equal(fake.reward, -1.0 + fake.terminal)
    assert fake.terminal.mean() == pytest.approx(real.terminal.mean(), rel=0.1)


def test_matching_is_a_phase_and_as_brief_as_the_fit(best):
    assert [name for name, *_ in best[1].phases] == ["fit", "match", "calibrate"]
    watch, brief = Watch(), Watch()
    other = SamplerConfig("euler", 2, matched=True)
    best[0].sample(10, sampler=other, progress=watch)
    best[0].sample(10, sampler=other, progress=watch)
    assert [name for name, *_ in watch.phases] == ["match", "calibrate", "sample", "sample"]
    settings = best[0].settings.changed(fit={"steps": 10, "evaluate_every": 10})
    Synthesizer(settings).fit(falling(), progress=brief)
    rows = [total for each in (brief, best[1], watch) for name, total, *_ in each.phases if name == "match"]
    # In two rounds: a block, as many as take half the time of the fit, and as many as a CPU is ever asked for.
    assert rows == [2 * 512, 2 * 16 * 512, 2 * 32 * 512]


def test_a_saved_model_goes_on_alike(best, tmp_path):
    best[0].save(tmp_path / "m.safetensors")
    again = Synthesizer.load(tmp_path / "m.safetensors")
    watch = Watch()
    loaded, kept = again.sample(100, seed=0, progress=watch), best[0].sample(100, seed=0, progress=False)
    assert [name for name, *_ in watch.phases] == ["sample"]
    for name, array in kept.arrays().items():
        assert np.array_equal(getattr(loaded, name), array), name


def test_terminals_that_no_limit_explains_are_generated(caplog):
    rows = falling(explained=False)
    model = Synthesizer("laptop", **SHORT | {"data": DATA})
    with caplog.at_level(logging.INFO, "synther"):
        model.fit(rows, progress=False)
    assert "no thresholds explain the terminals" in caplog.text
    assert model.sample(2_000, seed=0, progress=False).terminal.mean() == pytest.approx(rows.terminal.mean(), rel=0.5)


def test_terminals_that_a_limit_only_makes_likely_stay_a_matter_of_chance(tmp_path):
    """Seven of ten bodies below height 0 end there. A tree may not decide about that, and knows where it happens."""
    rows = falling(6_000)
    rows.terminal[:] &= np.random.default_rng(1).random(len(rows)) < 0.7
    model = small().fit(rows, progress=False)
    assert model.ending is None
    made = model.sample(20_000, seed=0, progress=False)
    below = made.next_observation[:, 0] < 0
    assert made.terminal[below].mean() == pytest.approx(0.7, abs=0.1)
    assert made.terminal[~below].mean() < 0.01
    assert below.mean() == pytest.approx(np.mean(rows.next_observation[:, 0] < 0), rel=0.2)
    model.save(tmp_path / "model.safetensors")
    again = Synthesizer.load(tmp_path / "model.safetensors")
    assert again.sample(2_000, seed=0, progress=False).equals(model.sample(2_000, seed=0, progress=False))


def test_the_moments_are_matched(best):
    """Of a sampler that makes rows too wide: thirty steps of Euler's method."""
    model, real = best[0], falling()
    coarse = {"kind": "euler", "steps": 30}
    matched = model.sample(5_000, seed=0, sampler=SamplerConfig(**coarse, matched=True), progress=False)
    plain = model.sample(5_000, seed=0, sampler=SamplerConfig(**coarse), progress=False)

    def off(fake: Transitions) -> float:
        return float(np.abs(fake.observation.std(0) / real.observation.std(0) - 1).max())

    assert off(matched) < 0.5 * off(plain)
    assert off(matched) < 0.04

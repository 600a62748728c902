"""Flags are as frequent as in the real rows, whichever sampler draws them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from synther import Synthesizer, Transitions
from synther.calibration.rates import Calibration
from synther.data.termination import TerminationTree
from synther.diffusion.blocks import BlockSampler
from synther.diffusion.config import SamplerConfig
from synther.synthesizer import drawing

from ..support.watch import Watch
from .rows import QUICK, SHORT, made


def test_flags_are_as_frequent_as_in_the_real_rows(watched_fit, real, fake):
    """Within four deviations: the rate was measured on the rows that calibration drew, and on those drawn now."""
    (calibration,) = [total for name, total, *_ in watched_fit[1].phases if name == "calibrate"]
    flags = {
        "terminal": (real.terminal, fake.terminal),
        "observation": (real.observation[:, 4], fake.observation[:, 4]),
        "next_observation": (real.next_observation[:, 4], fake.next_observation[:, 4]),
    }
    for name, (truth, drawn) in flags.items():
        rate = truth.mean()
        deviation = math.sqrt(rate * (1 - rate) * (1 / calibration + 1 / len(drawn)))
        assert drawn.mean() == pytest.approx(rate, abs=4 * deviation), name


def test_every_sampler_is_calibrated_once(real, saved):
    """A coarse sampler misses the rate on its own way."""
    model, coarse = Synthesizer.load(saved), SamplerConfig("euler", 6)
    watch = Watch()
    drawn = model.sample(10_000, seed=0, sampler=coarse, progress=watch).terminal
    (name, calibration, *_), *others = watch.phases
    assert (name, [other[0] for other in others]) == ("calibrate", ["sample"])
    rate = real.terminal.mean()
    deviation = math.sqrt(rate * (1 - rate) * (1 / calibration + 1 / len(drawn)))
    assert drawn.mean() == pytest.approx(rate, abs=4 * deviation)
    again = Watch()
    model.sample(10, sampler=coarse, progress=again)
    model.sample(10, progress=again)
    assert [phase[0] for phase in again.phases] == ["sample", "sample"]


def test_what_is_found_out_before_is_found_out_on_rows_that_nobody_is_given(monkeypatch):
    """Noise to begin from in two rounds, and flags: on blocks of their own, of seeds that no replay or caller has."""
    asked, draw = [], BlockSampler.draw

    def spy(self: BlockSampler, seed: int, block: int) -> torch.Tensor:
        asked.append((seed, block))
        return draw(self, seed, block)

    monkeypatch.setattr(BlockSampler, "draw", spy)
    settings = {**QUICK, "sampler": {"steps": 2, "matched": True}}
    Synthesizer("laptop", **settings, device="cpu").fit(made(300), progress=False)
    assert len(asked) == len(set(asked))
    assert len({seed for seed, _ in asked}) == 2
    assert min(seed for seed, _ in asked) >= 2**31


def with_odds(model: Synthesizer, odds: float) -> Synthesizer:
    """The same model, as if its sampler made terminals so many times too rare."""
    thresholds = (0.5,) * len(model._model.rates)
    fitted = replace(model._model, calibrations={model.settings.sampler: Calibration(thresholds, odds)})
    other = Synthesizer(model.settings, device="cpu")
    other._fitted = fitted
    return other


def test_weighted_rows_too_begin_a_larger_sample(model):
    raised = with_odds(model, 4.0)
    whole = raised.sample(1100, seed=0, progress=False)
    assert whole.terminal.sum() > 2 * with_odds(model, 1.0).sample(1100, seed=0, progress=False).terminal.sum() > 0
    for count in (100, 600, 1024):
        assert raised.sample(count, seed=0, progress=False).equals(whole[:count]), count


def test_every_block_of_every_seed_is_weighted_by_numbers_of_its_own(quick, monkeypatch):
    seen = []

    def spy(weight: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        seen.append(draw.random())
        return np.arange(len(weight))

    monkeypatch.setattr(drawing, "resampled", spy)
    raised = with_odds(quick, 4.0)
    for seed in (0, 1):
        raised.sample(1500, seed=seed, progress=False)
    assert len(seen) == len(set(seen)) == 6


def above(column: int, cut: float) -> TerminationTree:
    return TerminationTree((column, -1, -1), (cut, 0.0, 0.0), (1, -1, -1), (2, -1, -1), (False, False, True))


class Halving:
    """Replaces every second terminal row by one that is not terminal."""

    tree = above(0, 2.5)

    def consistent(self, rows: Transitions, unusual: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        assert np.array_equal(unusual, rows.terminal)
        taken, ends = np.arange(len(rows)), np.flatnonzero(unusual)
        taken[ends[::2]] = np.flatnonzero(~unusual)[0]
        return taken


@pytest.mark.parametrize("usual_reward", [None, Halving()])
def test_terminals_are_counted_in_rows_as_they_are_drawn(quick, usual_reward):
    """A tree calls a row terminal where its first observation is high: a third of them, not 1 in 20. Rows whose reward
    contradicts the rest are replaced after that."""
    model = Synthesizer(quick.settings, device="cpu")
    # Without shares of other values: their weights would leave too few of the 3,840 rows that a calibration sees.
    model._fitted = replace(quick._model, ending=above(0, 2.5), usual_reward=usual_reward, calibrations={}, shares=())
    rows, rate = model.sample(20_000, seed=0, progress=False), quick._model.rates[-1]
    assert np.mean(rows.terminal) == pytest.approx(rate, rel=0.1)
    assert np.array_equal(rows.terminal, rows.observation[:, 0] > 2.5)


def test_calibration_moves_the_threshold_and_half_leaves_it_alone(model):
    calibrated, model = model, Synthesizer("laptop", **SHORT, data={"threshold": "half"})
    watch = Watch()
    model.fit(made(200), progress=watch)
    assert [name for name, *_ in watch.phases] == ["fit", "match"]
    assert set(model.layout.thresholds) == {0.5}
    assert len(model.layout.thresholds) == 3
    assert calibrated.layout.thresholds[calibrated.layout.flag_names.index("terminal")] != 0.5


def test_a_flag_that_only_next_observations_carry():
    """Reaching a goal is seen after a step, never before one."""
    rows = made(400)
    before, after = rows.observation.copy(), rows.next_observation.copy()
    before[:, 4] = 0
    after[:, 4] = rows.terminal
    model = Synthesizer("laptop", **SHORT).fit(made(400, observation=before, next_observation=after), progress=False)
    assert model.layout.thresholds[model.layout.flag_names.index("observation[4]")] == 0.5
    assert set(np.unique(model.sample(600, seed=0, progress=False).next_observation[:, 4])) <= {0.0, 1.0}


def test_ends_that_follow_from_a_flag_are_as_frequent_as_in_the_real_rows():
    """As where reaching a goal is rewarded and ends the episode. Of a short fit, flags lie anywhere between 0 and 1:
    where they are cut decides about the ends."""
    goal = np.random.default_rng(0).random(2_000) < 0.1
    rows = made(2_000, reward=goal.astype(np.float32), terminal=goal)
    short = {**QUICK, "fit": {**QUICK["fit"], "steps": 60}}
    model = Synthesizer("laptop", **short, device="cpu").fit(rows, progress=False)
    assert model.ending is not None
    fake = model.sample(20_000, seed=0, progress=False)
    assert fake.terminal.mean() == pytest.approx(goal.mean(), rel=0.1)
    assert fake.reward.mean() == pytest.approx(goal.mean(), rel=0.1)

"""Flags are as frequent as in the real rows, whichever sampler draws them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from synther import Synthesizer
from synther.diffusion.config import SamplerConfig

from .rows import made
from .settings import SHORT
from .watch import Watch


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
    drawn = model.sample(10_000, sampler=coarse, progress=watch).terminal
    (name, calibration, *_), *others = watch.phases
    assert (name, [other[0] for other in others]) == ("calibrate", ["sample"])
    rate = real.terminal.mean()
    deviation = math.sqrt(rate * (1 - rate) * (1 / calibration + 1 / len(drawn)))
    assert drawn.mean() == pytest.approx(rate, abs=4 * deviation)
    again = Watch()
    model.sample(10, sampler=coarse, progress=again)
    model.sample(10, progress=again)
    assert [phase[0] for phase in again.phases] == ["sample", "sample"]


@pytest.mark.parametrize(("steps", "blocks"), [(1, 1), (32, 6), (64, 8)])
def test_calibration_takes_no_longer_than_the_fit(steps, blocks):
    """A step costs three evaluations of its 256 rows, a sampled row 8: 3 x 32 x 256 / 8 rows are 6 blocks of 512.
    After 64 steps one can afford 12, but a quarter of 8 blocks are 1,024 events, and more are not needed."""
    watch = Watch()
    Synthesizer("laptop", **{**SHORT, "fit": {"steps": steps}}, device="cpu").fit(
        made(320, terminal=np.arange(320) % 4 == 0), progress=watch
    )
    (drawn,) = [total for name, total, *_ in watch.phases if name == "calibrate"]
    assert drawn == blocks * 512


def test_half_leaves_the_threshold_alone():
    model = Synthesizer("laptop", **SHORT, data={"threshold": "half"})
    watch = Watch()
    model.fit(made(200), progress=watch)
    assert [name for name, *_ in watch.phases] == ["fit"]
    assert set(model.layout.thresholds.values()) == {0.5}
    assert len(model.layout.thresholds) == 3


def test_calibration_moves_the_threshold(model):
    (terminal,) = [c for c in model.layout.binary_columns if model.layout.names[c] == "terminal"]
    assert model.layout.thresholds[terminal] != 0.5


def test_a_flag_that_only_next_observations_carry():
    """Reaching a goal is seen after a step, never before one."""
    rows = made(400)
    before, after = rows.observation.copy(), rows.next_observation.copy()
    before[:, 4] = 0
    after[:, 4] = rows.terminal
    model = Synthesizer("laptop", **SHORT).fit(made(400, observation=before, next_observation=after), progress=False)
    assert model.layout.thresholds[model.layout.names.index("observation[4]")] == 0.5
    assert set(np.unique(model.sample(600, progress=False).next_observation[:, 4])) <= {0.0, 1.0}

"""One-step rollouts in an ensemble: real starts, cloned actions, outcomes of the world."""

from __future__ import annotations

import numpy as np
import pytest

from synther import Transitions
from synther.baselines.mbpo import MBPO
from synther.data.spaces import Box
from synther.errors import ConfigError
from synther.relevance import conditional


def made(count: int, discrete: bool) -> Transitions:
    """The policy: a = s / 2 with noise of 0.1, or 1 where s > 0 in nine rows of ten. The world: s' = s + a, r = s'."""
    draw = np.random.default_rng(0)
    state = draw.uniform(-1, 1, (count, 1))
    if discrete:
        action = ((state[:, 0] > 0) ^ (draw.random(count) < 0.1)).astype(np.int64)
        moved = state + action[:, None]
        return Transitions(state, action, moved[:, 0], moved, env_id="Made-v0")
    action = np.clip(state / 2 + 0.1 * draw.normal(size=(count, 1)), -0.5, 0.5)
    space = (Box.uniform(-0.5, 0.5, 1),)
    return Transitions(state, action, (state + action)[:, 0], state + action, action_space=space, env_id="Made-v0")


@pytest.fixture(scope="module", params=[False, True], ids=["continuous", "discrete"])
def both(request) -> tuple[Transitions, MBPO]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conditional, "MOST_STEPS", 120)
        patch.setattr(conditional, "BATCH", 64)
        rows = made(2_000, request.param)
        return rows, MBPO(device="cpu").fit(rows, progress=False)


def test_rows_come_of_real_starts_and_the_policy_of_the_rows(both):
    real, model = both
    rows = model.sample(3_000, seed=0)
    assert np.isin(rows.observation[:, 0], real.observation[:, 0]).all()
    assert rows.env_id == "Made-v0"
    assert rows.action.dtype == real.action.dtype
    if rows.action.ndim == 1:
        assert np.mean(rows.action == (rows.observation[:, 0] > 0)) == pytest.approx(0.9, abs=0.05)
    else:
        assert np.abs(rows.action).max() <= 0.5
        off, usual = ((part.action - part.observation / 2)[np.abs(part.observation) < 0.7] for part in (rows, real))
        assert off.std() == pytest.approx(usual.std(), rel=0.3)
    errors = rows.next_observation[:, 0] - rows.observation[:, 0] - rows.action.reshape(-1)
    assert errors.std() < 0.06
    assert np.abs(rows.reward - rows.next_observation[:, 0]).mean() < 0.06


def test_the_same_seed_gives_the_same_rows(both):
    _, model = both
    rows = model.sample(50, seed=0)
    assert rows.equals(model.sample(50, seed=0))
    assert not rows.equals(model.sample(50, seed=1))
    assert not model.sample(50).equals(model.sample(50))


def test_an_unfitted_one_has_no_rows():
    with pytest.raises(ConfigError, match="fit"):
        MBPO(device="cpu").sample(5)

"""Rewards that many rows share: the others are generated as amounts, with a flag that tells which rows have one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from synther import Synthesizer
from synther.calibration.rare_rows import RareRows
from synther.data import layout_json
from synther.data.numbers import Spiked
from synther.data.preparing import Prepared, prepare
from synther.data.sparse_rewards import SparseReward
from synther.data.transitions import Transitions
from synther.errors import FormatError
from synther.relevance.discrete import DiscreteLaw
from synther.relevance.dynamics import plain_layout

from ..support.layouts import decoded, through_json

ROWS, NOISE = 6_000, 0.5


def amount(rows: Transitions) -> np.ndarray:
    """The mean price of a sale."""
    return 5 + rows.observation[:, 1] + 2 * rows.action[:, 0]


def chance(rows: Transitions) -> np.ndarray:
    """The probability of a sale."""
    return 1 / (1 + np.exp(4 - 3 * rows.observation[:, 0]))


def shop(count: int = ROWS, usual: float = 0.0, dtype: str = "float32", seed: int = 0) -> Transitions:
    """A sale has a price, and all other rows the `usual` reward."""
    draw = np.random.default_rng(seed)
    here, action = draw.normal(size=(count, 3)), draw.uniform(-1, 1, (count, 1))
    there = 0.9 * here + 0.2 * draw.normal(size=here.shape)
    rows = Transitions.of(observation=here, action=action, reward=np.zeros(count, dtype), next_observation=there)
    sold, noise = draw.random(count) < chance(rows), NOISE * draw.normal(size=count)
    return replace(rows, reward=np.where(sold, amount(rows) + noise, usual).astype(dtype))


def prepared(rows: Transitions, residuals: str = "bent", scaling: str = "quantile") -> Prepared:
    return prepare(rows, scaling, "onehot", True, residuals=residuals)


def spread(rows: Transitions, usual: float = 0.0) -> float:
    sold = rows.reward != usual
    return float(np.std((rows.reward - amount(rows))[sold]))


@pytest.mark.parametrize("usual", [0.0, 5.0, -0.1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rewards_come_back(usual, dtype):
    """The usual reward may be below all others, or among them."""
    rows = shop(usual=usual, dtype=dtype)
    found = prepared(rows)
    assert found.layout.sparse is not None
    assert through_json(found.layout) == found.layout
    back = decoded(found, found.matrix).reward
    usual_again = back == rows.reward.dtype.type(usual)
    np.testing.assert_array_equal(usual_again, rows.reward == rows.reward.dtype.type(usual))
    np.testing.assert_allclose(back, rows.reward, atol=1e-4)


def test_every_row_has_an_amount_like_those_of_sales():
    """The regression and the noise of the amounts are the same in rows with and without a sale."""
    rows = shop(20_000)
    layout = prepared(rows).layout
    amounts = layout.pack(rows)[:, layout.columns_of("reward")[0]]
    sold = rows.reward != 0
    np.testing.assert_allclose(amounts[sold], rows.reward[sold])
    for part in (sold, ~sold):
        off = (amounts - amount(rows))[part]
        assert abs(off.mean()) < 0.1
        assert off.std() == pytest.approx(NOISE, rel=0.1)


@pytest.mark.parametrize(
    "change",
    [
        lambda rows, draw: rows.reward + draw.normal(size=len(rows)),  # no reward repeats
        lambda rows, draw: np.where(np.arange(len(rows)) < 20, rows.reward + 1, 0),  # too few vary
        lambda rows, draw: np.where(draw.random(len(rows)) < 0.03, 0, draw.normal(size=len(rows))),  # too few repeat
        lambda rows, draw: np.where(rows.reward != 0, 1.0, 0.0),  # all sales pay the same
    ],
)
def test_other_rewards_are_not_sparse(change):
    rows = shop()
    rows = replace(rows, reward=change(rows, np.random.default_rng(1)).astype(np.float32))
    assert prepared(rows).layout.sparse is None


@pytest.mark.parametrize("residuals", ["none", "linear"])
def test_only_small_networks_get_amounts(residuals):
    assert prepared(shop(), residuals).layout.sparse is None


def test_the_price_of_a_terminal_is_none_of_the_amounts():
    rows = shop()
    ended = rows.next_observation[:, 2] < -2
    rows = replace(rows, terminal=ended, reward=np.where(ended, -100, rows.reward).astype(np.float32))
    found = prepared(rows)
    assert found.layout.sparse is not None
    assert found.layout.at_end is not None
    assert through_json(found.layout) == found.layout
    assert found.layout.reward[0].bounds[0] >= 0
    amounts = found.layout.pack(rows)[:, found.layout.columns_of("reward")[0]]
    assert np.std(amounts - amount(rows)) == pytest.approx(NOISE, rel=0.1)
    back = decoded(found, found.matrix).reward
    np.testing.assert_array_equal(back == -100, ended)
    np.testing.assert_allclose(back, rows.reward, atol=1e-4)
    plain = plain_layout(found.layout)
    np.testing.assert_allclose(plain.unpack(plain.pack(rows)).reward, rows.reward, atol=1e-4)


def test_few_amounts_have_no_regression():
    rows = shop()
    kept = np.flatnonzero(rows.reward)[60:]
    few = replace(rows, reward=np.where(np.isin(np.arange(len(rows)), kept), 0, rows.reward))
    sparse = prepared(few).layout.sparse
    assert sparse is not None
    assert set(sparse.line.weights) == {0.0}
    assert sparse.line.level == pytest.approx(few.reward[few.reward != 0].mean())


def test_sales_are_drawn_at_their_real_share():
    """They are weighted even if they are too frequent to be repeated in the fit."""
    rows = shop()
    rare = RareRows.find(rows, prepared(rows).layout)
    assert rare is not None
    assert rare.times == 1
    assert (rare.among(rows) == (rows.reward != 0)).all()
    assert rare.odds(rows) == pytest.approx(1)
    twice = Transitions.concatenate([rows, rows[rows.reward != 0]])
    assert rare.odds(twice) == pytest.approx(0.5, rel=0.01)


def test_the_law_of_discrete_values_knows_who_buys():
    rows = shop(20_000)
    law = DiscreteLaw.fit(rows, prepared(rows).layout)
    assert law is not None
    assert "reward" in law.names
    found = law.log_likelihood(rows)[:, law.names.index("reward")]
    sold, true = rows.reward != 0, chance(rows)
    best = np.log(np.where(sold, true, 1 - true)).mean()
    none = np.log(np.where(sold, sold.mean(), 1 - sold.mean())).mean()
    assert found.mean() > best - 0.1 * (best - none)


def test_dynamics_models_see_rewards():
    rows = shop(usual=-0.1)
    plain = plain_layout(prepared(rows).layout)
    assert plain.sparse is None
    np.testing.assert_allclose(plain.unpack(plain.pack(rows)).reward, rows.reward, atol=1e-6)


def test_a_damaged_file_is_refused():
    entry = layout_json.to_json(prepared(shop()).layout)
    sparse = entry["sparse"]
    for wrong in ({"usual": 1.0}, {"line": sparse["line"] | {"weights": [1.0]}}, {"line": None}, {"more": 1}):
        with pytest.raises(FormatError, match="sparse"):
            layout_json.from_json(entry | {"sparse": sparse | wrong})


def test_a_short_fit_has_the_share_the_prices_and_their_noise(tmp_path):
    rows = shop(12_000)
    small = {"network": {"width": 64, "depth": 2}, "fit": {"steps": 600}, "sampler": {"steps": 8}}
    model = Synthesizer("laptop", device="cpu", **small).fit(rows, progress=False)
    made = model.sample(20_000, seed=1, progress=False)
    share = float(np.mean(rows.reward != 0))
    assert np.mean(made.reward != 0) == pytest.approx(share, rel=0.1)
    assert spread(made) == pytest.approx(spread(rows), rel=0.1)
    model.save(tmp_path / "model.safetensors")
    again = Synthesizer.load(tmp_path / "model.safetensors", device="cpu")
    given = {"observation": rows.observation[:500], "action": rows.action[:500]}
    for how in ({}, {"given": given}):
        first, second = (each.sample(None if how else 500, seed=3, progress=False, **how) for each in (again, model))
        assert first.equals(second)


def test_kinds_are_an_amount_and_a_flag():
    (kind,) = prepared(shop()).layout.reward
    assert isinstance(kind, Spiked)
    assert kind.by_flag
    assert kind.matrix_width == 2
    assert isinstance(prepared(shop()).layout.sparse, SparseReward)

"""Requests on a GPU: fits are captured, and blocks of guided rows too."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from synther import Synthesizer, Transitions, compute
from synther.conditions import top
from synther.data.decoding import Decoder
from synther.errors import DataError
from synther.guides import policy_guide, value_guide
from synther.progress import Silent
from synther.relevance import curiosity
from synther.relevance.dynamics import Ensemble, one_step
from synther.synthesizer.drawing import Constraints

from .test_conditions import SETTINGS, noisy
from .test_extra import walk

pytestmark = pytest.mark.cuda


@pytest.fixture(scope="module")
def real() -> Transitions:
    return noisy(20_000)


@pytest.mark.parametrize("precision", ["bf16", "float32"])
@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_captured_blocks_of_a_request_are_those_of_plain_calls(real, precision, guidance):
    model = Synthesizer("laptop", device="cuda", precision=precision, **SETTINGS)
    model.fit(real, condition="reward", progress=False)
    asking = model.conditions.asking(top(0.2), guidance)
    blocks = model._drawing(None, Silent(), Constraints(asking)).ready().sampler
    draw = blocks.captured()
    drawn = [draw(7, block) for block in (2, 0, 2)]
    assert torch.equal(drawn[0], drawn[2])
    for block, rows in zip((2, 0), drawn, strict=False):
        torch.testing.assert_close(rows, blocks.draw(7, block), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("precision", ["bf16", "float32"])
def test_a_captured_fit_with_conditions_is_that_of_plain_steps(real, precision, monkeypatch):
    def fitted() -> Synthesizer:
        model = Synthesizer("laptop", device="cuda", precision=precision, **SETTINGS)
        return model.fit(real, condition="reward", progress=False)

    captured = fitted()
    monkeypatch.setattr(compute, "capture", lambda update, device, state, *others: update)
    for a, b in zip(captured.network.parameters(), fitted().network.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


def test_rows_of_the_top_are_like_the_real_ones(real):
    model = Synthesizer("laptop", device="cuda", **SETTINGS).fit(real, condition="reward", progress=False)
    best = real[real.reward >= np.quantile(real.reward, 0.8)]
    rows = model.sample(200_000, condition=top(0.2), seed=0, progress=False)  # so many that blocks are captured
    # As on a CPU: a short fit of a small network.
    assert rows.reward.mean() == pytest.approx(best.reward.mean(), abs=0.25)
    assert rows.observation.mean() == pytest.approx(best.observation.mean(), abs=0.25)
    assert rows.observation.std() == pytest.approx(best.observation.std(), rel=0.25)


def test_curiosity_is_that_of_a_cpu(real):
    found, expected = (curiosity(real, steps=300, device=device) for device in ("cuda", "cpu"))
    # The devices draw other batches: the same rows are new to both.
    assert np.corrcoef(np.argsort(np.argsort(found)), np.argsort(np.argsort(expected)))[0, 1] > 0.5
    assert np.array_equal(found, curiosity(real, steps=300, device="cuda"))


@pytest.fixture(scope="module")
def model(real) -> Synthesizer:
    return Synthesizer("laptop", device="cuda", **SETTINGS).fit(real, progress=False)


def test_rows_are_decoded_where_they_are_drawn(model):
    """The first block of many is captured with its decoding, one alone is not; a CPU decodes the same matrix alike."""
    drawing = model._drawing(None, Silent()).ready()
    assert drawing.decoder.device.type == "cuda"
    matrix = drawing.sampler.draw(3, 0)
    on_cpu = Decoder(drawing.layout, model.scaler, model.ending)(matrix.cpu()).rows
    alone = model.sample(len(matrix), seed=3, progress=False)
    many = model.sample(12 * len(matrix), seed=3, progress=False)
    for name, values in on_cpu.arrays().items():
        # bf16 decides the first digits of a captured block too. Rebalanced rows are others, on a CPU none are.
        assert np.isclose(alone.arrays()[name], values, rtol=1e-5, atol=1e-5).mean() > 0.99
        assert np.isclose(many.arrays()[name][: len(matrix)], values, rtol=0.05, atol=0.05).mean() > 0.99
    assert np.unique(many.observation).size > 11 * len(matrix)  # no block is another's memory


def test_a_model_that_has_diverged_is_refused(real):
    model = Synthesizer("laptop", device="cuda", **SETTINGS).fit(real, progress=False)
    with torch.no_grad():
        model.network.row_out.bias.fill_(torch.nan)
    with pytest.raises(DataError, match="diverged"):
        model.sample(1_000, seed=0, progress=False)


def test_what_follows_given_observations_and_actions(model, real):
    s, a = real.observation[:2_000], -real.action[:2_000]
    rows = model.sample(given={"observation": s, "action": a}, seed=0, progress=False)
    assert np.array_equal(rows.observation, s)
    assert np.array_equal(rows.action, a)
    assert rows.next_observation == pytest.approx(s + 0.1 * a, abs=0.01)
    about = rows.reward - 0.8 * s[:, 0]
    assert about.mean() == pytest.approx(0, abs=0.1)
    assert about.std() == pytest.approx(0.6, rel=0.15)


def test_a_policy_guides_many_rows(model):
    rows = model.sample(200_000, seed=0, guide=policy_guide(lambda s: 0.5 * torch.tanh(s), std=0.1), progress=False)
    assert np.abs(rows.action - 0.5 * np.tanh(rows.observation)).mean() < 0.25


def test_a_value_guide_without_strength_changes_nothing(model):
    guides = (None, value_guide(lambda s, a: a[:, 0], 0.0))
    plain, rows = (model.sample(500, seed=3, guide=guide, progress=False) for guide in guides)
    for name, values in plain.arrays().items():
        assert np.array_equal(values, getattr(rows, name))
    strong = model.sample(500, seed=3, guide=value_guide(lambda s, a: a[:, 0], 2.0), progress=False)
    assert strong.action.mean() > plain.action.mean() + 0.2


def test_an_ensemble_predicts_as_well_as_on_a_cpu(real):
    errors = []
    for device in ("cuda", "cpu"):
        ensemble = Ensemble.fit(real, members=3, width=48, steps=300, device=device, progress=False)
        errors.append(one_step(ensemble.outcomes, real[:2_000]).error)
    assert errors[0] == pytest.approx(errors[1], rel=0.3)


def test_extra_columns_are_fitted_and_drawn():
    real = walk()
    rows = Synthesizer("laptop", device="cuda", **SETTINGS).fit(real, progress=False).sample(1_000, progress=False)
    assert set(rows.extra) == set(real.extra)
    assert set(np.unique(rows.extra["discount"])) <= set(np.unique(real.extra["discount"]))

"""Conditions on a GPU: fits are captured, and blocks of guided rows too."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from synther import Synthesizer, Transitions, compute
from synther.conditions import top
from synther.progress import Silent
from synther.relevance import curiosity

from .test_conditions import SETTINGS, noisy

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
    blocks = model._drawing(None, Silent(), asking).ready().sampler
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

"""The paper's two measures are those of SDMetrics, which defined them."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

from synther.assess.fidelity import correlation, marginal


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_marginal_and_correlation(kind: type) -> None:
    with warnings.catch_warnings():  # of its own making, at import, which takes seconds
        warnings.simplefilter("ignore")
        from sdmetrics.column_pairs import CorrelationSimilarity
        from sdmetrics.single_column import KSComplement
    rng = np.random.default_rng(0)
    real = rng.normal(size=(4_000, 5)) @ rng.normal(size=(5, 5))
    synthetic = rng.normal(0.1, 1, size=(3_000, 5)) @ rng.normal(size=(5, 5))
    for side in (real, synthetic):
        side[:, 1] = np.clip(side[:, 1], -1, 1)  # ties at both ends, as actions have
        side[:, 2] = np.round(side[:, 2])
        side[:, 3] = side[:, 3] > 0.5
    real, synthetic = real.astype(kind), synthetic.astype(kind)
    per_column, mean = marginal(real, synthetic)
    theirs = [KSComplement.compute(pd.Series(real[:, c]), pd.Series(synthetic[:, c])) for c in range(5)]
    np.testing.assert_allclose(per_column, theirs, atol=1e-6)
    assert mean == pytest.approx(np.mean(theirs), abs=1e-6)

    frames = pd.DataFrame(real.astype(float)), pd.DataFrame(synthetic.astype(float))
    pairs = [(i, j) for i in range(5) for j in range(i + 1, 5)]
    theirs = [CorrelationSimilarity.compute(*(frame[list(pair)] for frame in frames)) for pair in pairs]
    assert correlation(real, synthetic) == pytest.approx(np.mean(theirs), abs=1e-6)

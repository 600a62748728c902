"""Adam for networks with stacked weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from synther.descent import Descent

STEPS, RATE, BETAS = 8, 3e-3, (0.9, 0.99)


@pytest.mark.parametrize("limit", [math.inf, 1.0])
def test_each_network_takes_the_steps_of_adam_along_a_cosine(limit):
    targets = [torch.tensor([[[3.0, -1e-3]], [[0.02, 0.01]]]), torch.tensor([[[1.0]], [[0.1]]])]
    descent = Descent([torch.zeros_like(each) for each in targets], STEPS, RATE, betas=BETAS, max_grad_norm=limit)
    wanted = torch.cat([each.flatten(1) for each in targets], 1).numpy()
    expected, mean, square = np.zeros((3, *wanted.shape))
    for step in range(STEPS):
        descent.step(sum(((own - each) ** 2).sum() for own, each in zip(descent.weights, targets, strict=True)))
        gradient = 2 * (expected - wanted)
        norm = np.linalg.norm(gradient, axis=1, keepdims=True)
        assert (norm > 1).tolist() == [[True], [False]]
        gradient = gradient * np.minimum(limit / norm, 1)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.99 * square + 0.01 * gradient**2
        rate = RATE * (1 + np.cos(np.pi * step / STEPS)) / 2
        unbiased = mean / (1 - 0.9 ** (step + 1)), square / (1 - 0.99 ** (step + 1))
        expected = expected - rate * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-8)
        found = torch.cat([each.detach().flatten(1) for each in descent.weights], 1)
        np.testing.assert_allclose(found, expected, rtol=1e-5)

"""The algorithms' losses once more, in NumPy and float64, one member and one row at a time where that is clearer."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from synther.agents.stacked import Stack


def kept(stack: Stack) -> Stack:
    """The stack as it is now."""
    return stack.clone()


def network(stack: Stack, member: int, x: np.ndarray, critic: int | None = None) -> np.ndarray:
    """One network of a stack on x (B, in). (B, out)"""
    weights = stack.weights.detach().double().numpy()
    row = weights[member] if critic is None else weights[member, critic]
    shapes = list(pairwise(stack.sizes))
    at, bias_at = 0, sum(inputs * outputs for inputs, outputs in shapes)
    for layer, (inputs, outputs) in enumerate(shapes):
        x = x @ row[at : at + inputs * outputs].reshape(inputs, outputs) + row[bias_at : bias_at + outputs]
        x = np.maximum(x, 0) if layer < len(shapes) - 1 else x
        at, bias_at = at + inputs * outputs, bias_at + outputs
    return x


def critics(stack: Stack, member: int, observation: np.ndarray, action: np.ndarray) -> np.ndarray:
    """(E, B)"""
    pair = np.hstack([observation, action])
    return np.stack([network(stack, member, pair, e)[:, 0] for e in range(stack.weights.shape[1])])


def squashed(mean: np.ndarray, log_deviation: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Actions, and their density by the change of variables. (B, A), (B,)"""
    x = mean + np.exp(log_deviation) * noise
    normal = np.exp(-(noise**2) / 2) / np.sqrt(2 * np.pi) / np.exp(log_deviation)
    return np.tanh(x), np.log(normal / (1 - np.tanh(x) ** 2)).sum(-1)

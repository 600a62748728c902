"""Small worlds whose law is known: what follows (s, a), and how random it is. `factor` multiplies the randomness."""

from __future__ import annotations

import numpy as np

from synther.data.transitions import Transitions


def _rows(here: np.ndarray, action: np.ndarray, reward: np.ndarray, there: np.ndarray) -> Transitions:
    return Transitions(*(part.astype(np.float32) for part in (here, action, reward, there)))


def _start(count: int, seed: int, width: int, actions: int) -> tuple[np.random.Generator, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw, draw.normal(size=(count, width)), np.clip(draw.normal(size=(count, actions)), -1, 1)


def linear(count: int, seed: int, factor: float = 1.0) -> Transitions:
    """next = 0.9 s + 0.3 a + 0.1 n in every column; the reward follows from the next observation."""
    draw, here, action = _start(count, seed, 4, 2)
    there = 0.9 * here + 0.3 * action[:, [0, 1, 0, 1]] + factor * 0.1 * draw.normal(size=here.shape)
    return _rows(here, action, there[:, 0] - there[:, 1], there)


def one_random_column(count: int, seed: int, factor: float = 1.0) -> Transitions:
    """Four columns that are not linear, and noise in the third alone."""
    draw, here, action = _start(count, seed, 4, 2)
    there = 0.9 * here + 0.3 * np.sin(2 * here[:, [1, 2, 3, 0]]) + 0.3 * action[:, [0, 1, 0, 1]]
    there[:, 2] += factor * 0.15 * draw.normal(size=count)
    return _rows(here, action, there[:, 0] * action[:, 0], there)


def heteroscedastic(count: int, seed: int, factor: float = 1.0) -> Transitions:
    """Noise depends on s, and hardly exists where the action is negative."""
    draw, here, action = _start(count, seed, 3, 1)
    scale = 0.02 + 0.3 * np.abs(here[:, :1]) * (action > 0)
    there = 0.9 * here + 0.3 * action + factor * scale * draw.normal(size=here.shape)
    return _rows(here, action, here[:, 0], there)


def heavy_tailed(count: int, seed: int, factor: float = 1.0) -> Transitions:
    """Noise of Student's t with three degrees of freedom."""
    draw, here, action = _start(count, seed, 3, 1)
    there = 0.9 * here + 0.3 * action + factor * 0.1 * draw.standard_t(3, size=here.shape)
    return _rows(here, action, here[:, 0], there)


def deterministic(count: int, seed: int, factor: float = 1.0) -> Transitions:
    """Hard to learn in a few steps, with a jump, but nothing is random."""
    _, here, action = _start(count, seed, 4, 2)
    there = here + 0.1 * np.sin(3 * here[:, ::-1]) + 0.2 * action.sum(1, keepdims=True) * np.cos(here)
    there += np.where(here[:, :1] > 0, 0.2, 0.0)
    return _rows(here, action, there[:, 0] ** 2, there)


def slippery_line(count: int, seed: int, slip: float = 0.2, *, one_hot: bool = False, size: int = 12) -> Transitions:
    """Integer or one-hot places in a row; a step goes the other way with probability `slip`."""
    draw = np.random.default_rng(seed)
    here, action = draw.integers(size, size=count), draw.integers(2, size=count)
    step = np.where(action == 1, 1, -1) * np.where(draw.random(count) < slip, -1, 1)
    there = np.clip(here + step, 0, size - 1)
    reward = (there == size - 1).astype(np.float32)
    if one_hot:
        codes = np.eye(size, dtype=np.float32)
        return Transitions(codes[here], action, reward, codes[there], there == size - 1)
    return Transitions(here[:, None], action, reward, there[:, None], there == size - 1)


def normal_rows(count: int = 200, seed: int = 0, shift: float = 0.0, width: int = 3) -> Transitions:
    """Normal observations that hardly move, uniform actions, and a terminal in ten rows."""
    draw = np.random.default_rng(seed)
    here = draw.normal(shift, 1, (count, width)).astype(np.float32)
    action, reward = draw.uniform(-1, 1, (count, 2)).astype(np.float32), draw.normal(shift, 1, count).astype(np.float32)
    there = here + draw.normal(0, 0.1, (count, width)).astype(np.float32)
    return Transitions(here, action, reward, there, draw.random(count) < 0.1)


def drifting_walks(episodes: int, seed: int, length: int = 60) -> Transitions:
    """Walks from rest, far from where they go on; each has a drift of its own, so that rows of a walk are alike."""
    draw = np.random.default_rng(seed)
    drift = draw.normal(size=(episodes, 1, 3))
    action = np.clip(0.5 * drift[..., :1] + 0.3 * draw.normal(size=(episodes, length, 1)), -1, 1)
    places = np.empty((episodes, length + 1, 3))
    places[:, 0] = -6 + 0.02 * draw.normal(size=(episodes, 3))
    for step in range(length):
        noise = 0.3 * draw.normal(size=(episodes, 3))
        places[:, step + 1] = 0.5 * np.maximum(places[:, step], -2) + 0.5 * drift[:, 0] + 0.3 * action[:, step] + noise
    here, there = (part.reshape(-1, 3).astype(np.float32) for part in (places[:, :-1], places[:, 1:]))
    timeout = np.arange(episodes * length) % length == length - 1
    reward = there[:, 0].astype(np.float32)
    return Transitions(here, action.reshape(-1, 1).astype(np.float32), reward, there, terminal=None, timeout=timeout)

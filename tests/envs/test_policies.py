from __future__ import annotations

import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synther.envs.policies import LOG_STD, MlpPolicy, UniformPolicy, policies_of, read_policy
from synther.errors import DataError, FormatError


def network(seed: int, *sizes: int) -> tuple[tuple[Any, Any], ...]:
    rng = np.random.default_rng(seed)
    return tuple((rng.normal(size=(a, b)), rng.normal(size=b)) for a, b in pairwise(sizes))


def constant(inputs: int, *outputs: float) -> tuple[tuple[Any, Any], ...]:
    return ((np.zeros((inputs, len(outputs))), np.array(outputs)),)


RNG = np.random.default_rng


def test_a_network_by_hand() -> None:
    # hidden: relu(1 - 2 + 0.5), relu(1 + 2 - 1) = 0, 2; out: 2 * 0.25 - 0.1
    layers = (([[1.0, 1.0], [-2.0, 2.0]], [0.5, -1.0]), ([[3.0], [0.25]], [-0.1]))
    act = MlpPolicy(layers).act  # type: ignore[arg-type]
    np.testing.assert_allclose(act(np.array([1.0, 1.0])), [np.tanh(0.4)], rtol=1e-6)
    np.testing.assert_allclose(act(np.array([[1.0, 1.0], [3.0, 1.0]])), np.tanh([[0.4], [3 * 1.5 + 0.25 * 4 - 0.1]]))


def test_observations_are_standardised_and_actions_scaled_into_the_box() -> None:
    layers = ((np.eye(2), np.zeros(2)),)
    mean, std = np.array([1.0, 2.0]), np.array([2.0, 4.0])
    low, high = np.array([-2.0, 0.0]), np.array([2.0, 10.0])
    seen = np.array([[2.0, 0.0], [101.0, -398.0]])  # standardised: 0.5, -0.5 and 50, -100
    inner = MlpPolicy(layers, "clamp", mean, std)
    np.testing.assert_allclose(inner.act(seen), [[0.5, -0.5], [1, -1]])
    boxed = MlpPolicy(layers, "clamp", mean, std, low, high)
    np.testing.assert_allclose(boxed.act(seen), [[1, 2.5], [2, 0]])
    squashed = MlpPolicy(layers, "tanh", mean, std, low, high)
    np.testing.assert_allclose(squashed.act(seen[0]), [2 * np.tanh(0.5), 5 + 5 * np.tanh(-0.5)], rtol=1e-6)
    assert boxed.act(seen).dtype == np.float32


def test_a_policy_keeps_its_own_arrays_and_travels() -> None:
    layers = network(0, 3, 8, 2)
    policy, seen = MlpPolicy(layers), np.ones((4, 3))
    before = policy.act(seen)
    layers[0][0][:] = 0
    np.testing.assert_array_equal(policy.act(seen), before)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(policy)).act(seen), before)


def test_gaussian_draws_have_the_mean_and_the_deviation() -> None:
    policy = MlpPolicy(constant(3, 0.3, -0.2, np.log(0.5), np.log(0.1)), log_std=LOG_STD)
    drawn = np.arctanh(policy.act(np.zeros((40_000, 3)), RNG(0)).astype(np.float64))
    np.testing.assert_allclose(drawn.mean(0), [0.3, -0.2], atol=0.01)
    np.testing.assert_allclose(drawn.std(0), [0.5, 0.1], rtol=0.02)
    same, other = (policy.act(np.zeros(3), RNG(seed)) for seed in (1, 2))
    np.testing.assert_array_equal(same, policy.act(np.zeros(3), RNG(1)))
    assert not np.array_equal(same, other)


def test_gaussian_draws_by_hand() -> None:
    layers = network(1, 3, 16, 4)
    layers[1][1][2:] += [9.0, -90.0]  # log-deviations beyond their bounds, 2 and -20
    seen = RNG(0).normal(size=(5, 3))
    out = np.maximum(seen @ layers[0][0] + layers[0][1], 0) @ layers[1][0] + layers[1][1]
    assert (out[:, 2].max() > 2, out[:, 3].min() < -20) == (True, True)
    expected = np.tanh(out[:, :2] + np.exp(out[:, 2:].clip(-20, 2)) * RNG(4).standard_normal((5, 2), np.float32))
    np.testing.assert_allclose(MlpPolicy(layers, log_std=LOG_STD).act(seen, RNG(4)), expected, rtol=1e-4)
    low, high = np.array([-2.0, 0.0]), np.array([2.0, 1.0])
    boxed = MlpPolicy(layers, "tanh", np.ones(3), np.full(3, 2.0), low, high, LOG_STD)
    np.testing.assert_allclose(boxed.act(2 * seen + 1, RNG(4)), low + (high - low) * (expected + 1) / 2, atol=1e-5)
    with pytest.raises(DataError, match="even"):
        MlpPolicy(constant(3, 0, 0, 0), log_std=LOG_STD)


def test_chance_fills_the_box() -> None:
    low, high = np.array([-2.0, 0.0]), np.array([2.0, 1.0])
    policy = UniformPolicy(low, high)
    drawn = policy.act(np.zeros((20_000, 7)), RNG(0))
    assert (drawn >= low).all()
    assert (drawn <= high).all()
    np.testing.assert_allclose(drawn.mean(0), [0, 0.5], atol=0.03)
    np.testing.assert_allclose(drawn.std(0), (high - low) / np.sqrt(12), rtol=0.02)
    assert policy.act(np.zeros(7), RNG(0)).shape == (2,)
    with pytest.raises(DataError, match="finite bounds"):
        UniformPolicy(np.array([-np.inf]), np.array([1.0]))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"layers": ()}, "layer"),
        ({"layers": ((np.zeros((3, 2)), np.zeros(3)),)}, "layer 0"),
        ({"layers": ((np.zeros((3, 4)), np.zeros(4)), (np.zeros((5, 1)), np.zeros(1)))}, "layer 1"),
        ({"layers": ((np.zeros(()), np.zeros(())),)}, "layer 0"),
        ({"squash": "relu"}, "'relu'"),
        ({"mean": np.zeros(3)}, "mean and std"),
        ({"high": np.zeros(2)}, "low and high"),
        ({"mean": np.zeros(2), "std": np.ones(2)}, "mean"),
    ],
)
def test_what_is_no_network_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(DataError, match=text):
        MlpPolicy(**{"layers": constant(3, 0, 0), **given})


def save(path: Path, **policies: tuple[tuple[Any, Any], ...]) -> Path:
    arrays = {"note": np.zeros(1)}
    for name, layers in policies.items():
        for number, (weight, bias) in enumerate(layers):
            arrays[f"{name.replace('_', '/')}/weight{number}"] = weight
            arrays[f"{name.replace('_', '/')}/bias{number}"] = bias
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def test_policies_are_read_by_name(tmp_path: Path) -> None:
    layers = network(2, 11, 32, 32, 6)
    path = save(tmp_path / "policies.npz", hopper_medium=network(3, 11, 32, 6), hopper_best=layers)
    assert policies_of(path) == ("hopper/medium", "hopper/best")
    seen = RNG(0).normal(size=(4, 11))
    policy = read_policy(path, "hopper", "best")
    np.testing.assert_array_equal(policy.act(seen, RNG(5)), MlpPolicy(layers, log_std=LOG_STD).act(seen, RNG(5)))
    with pytest.raises(FormatError, match=r"'hopper/expert'.* hopper/medium, hopper/best"):
        read_policy(path, "hopper", "expert")
    with pytest.raises(FormatError, match="none"):
        read_policy(save(tmp_path / "none.npz"), "hopper", "medium")


def test_files_that_are_no_policies(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("weights")
    np.save(tmp_path / "array.npy", np.zeros(3))
    np.savez(tmp_path / "half.npz", **{"hopper/medium/weight0": np.zeros((2, 2)), "hopper/medium/bias1": np.zeros(2)})
    save(tmp_path / "odd.npz", hopper_medium=network(0, 2, 3))
    for name in ("absent.npz", "text.npz", "array.npy", "half.npz", "odd.npz"):
        with pytest.raises(FormatError, match=name):
            read_policy(tmp_path / name, "hopper", "medium")

from __future__ import annotations

import numpy as np
import pytest

from synther.envs.rollout import rollout
from synther.envs.simulator import CHUNK_ROWS, SUPPORTED, simulate
from synther.errors import DataError

CLIPPED = ("Hopper", "Walker2d")
"""Tasks whose observed velocities are clipped to [-10, 10]."""


@pytest.mark.parametrize("env_id", SUPPORTED)
def test_a_rollout_comes_out_again(env_id: str) -> None:
    rows = rollout(env_id, 120, seed=1)
    following, rewards, terminals = simulate(env_id, rows.observation, rows.action, processes=1)
    known = np.ones(len(rows), bool)
    if env_id.startswith(CLIPPED):
        known = np.abs(rows.observation).max(1) < 10
    assert known.sum() > 20
    np.testing.assert_allclose(following[known], rows.next_observation[known], atol=1e-6)
    np.testing.assert_allclose(rewards[known], rows.reward[known], atol=1e-6)
    np.testing.assert_array_equal(terminals[known], rows.terminal[known])


def test_a_row_does_not_depend_on_the_rows_around_it() -> None:
    rows = rollout("Hopper-v5", 200)
    together = simulate("Hopper-v5", rows.observation, rows.action, processes=1)
    order = np.random.default_rng(0).permutation(len(rows))
    shuffled = simulate("Hopper-v5", rows.observation[order], rows.action[order], processes=1)
    for one, other in zip(together, shuffled, strict=True):
        np.testing.assert_array_equal(one[order], other)


def test_two_processes_give_what_one_gives() -> None:
    rows = rollout("Pendulum-v1", CHUNK_ROWS + 100)
    seen: list[int] = []

    class Watch:
        def phase(self, name: str, total: int, start: int = 0) -> Watch:
            assert total == len(rows)
            return self

        def __enter__(self) -> Watch:
            return self

        def __exit__(self, *exc: object) -> None:
            pass

        def advance(self, amount: int, note: str = "") -> None:
            seen.append(amount)

    alone = simulate("Pendulum-v1", rows.observation, rows.action, processes=1)
    spread = simulate("Pendulum-v1", rows.observation, rows.action, processes=2, progress=Watch())
    for one, other in zip(alone, spread, strict=True):
        np.testing.assert_array_equal(one, other)
    assert seen == [CHUNK_ROWS, 100]


def test_a_state_that_blows_up_is_marked_and_leaves_no_log(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(str(tmp_path))
    rows = rollout("HalfCheetah-v5", 3)
    observations = rows.observation.copy()
    observations[1, 8:] = 1e12
    following, rewards, _ = simulate("HalfCheetah-v5", observations, rows.action, processes=1)
    assert np.isnan(following).all(1).tolist() == [False, True, False]
    assert np.isnan(rewards).tolist() == [False, True, False]
    np.testing.assert_allclose(following[2], rows.next_observation[2], atol=1e-6)
    assert not list(__import__("pathlib").Path.cwd().iterdir())
    assert capfd.readouterr().err == ""


def test_wrong_arguments_are_named() -> None:
    observations, actions = np.zeros((2, 3)), np.zeros((2, 1))
    with pytest.raises(
        DataError, match=r"'Humanoid-v5' into a recorded state: expected one of Hopper-v4, .*Pendulum-v1"
    ):
        simulate("Humanoid-v5", observations, actions)
    with pytest.raises(DataError, match=r"observations of shape \(rows, 11\), got \(2, 3\)"):
        simulate("Hopper-v5", observations, actions)
    with pytest.raises(DataError, match=r"actions of shape \(2, 1\), got \(2,\)"):
        simulate("Pendulum-v1", observations, actions[:, 0])
    with pytest.raises(DataError, match="finite"):
        simulate("Pendulum-v1", observations * np.nan, actions)
    with pytest.raises(DataError, match="processes"):
        simulate("Pendulum-v1", observations, actions, processes=0)

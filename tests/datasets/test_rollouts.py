from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synther import formats
from synther.data import spaces
from synther.data.transitions import Transitions
from synther.envs.recording import actors_of, record
from synther.errors import ConfigError, DataError, FormatError

from ..support.watch import Watch

LEVELS = {"medium": (0.2, -1.0), "expert": (-0.4, 0.0), "sure-footed": (0.2, -1.0)}
"""Means (at the origin) and log stds of a hopper's actions, by which it falls soon."""

WEIGHT = np.random.default_rng(0).normal(size=(11, 3)) / 10


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    arrays = {}
    for level, outputs in LEVELS.items():
        arrays[f"hopper/{level}/weight0"] = np.hstack([WEIGHT, 0 * WEIGHT])
        arrays[f"hopper/{level}/bias0"] = np.repeat(outputs, 3)
    arrays |= {"hopper/swimming/weight0": np.zeros((3, 2)), "hopper/swimming/bias0": np.zeros(2)}
    path = tmp_path_factory.mktemp("policies") / "policies.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def rolled_out(policies: Path | None, level: str, count: int, env_id: str = "Hopper-v4", **how: Any) -> Transitions:
    return record(env_id, actors_of(policies, "hopper", level, env_id), count, **{"seed": 3, "processes": 1, **how})


@pytest.fixture(scope="module")
def mixed(policies: Path) -> Transitions:
    return rolled_out(policies, "medium-expert", 401, processes=2)


def ends_of(rows: Transitions) -> list[int]:
    assert rows.timeout is not None
    assert not (rows.terminal & rows.timeout).any()
    return np.flatnonzero(rows.terminal | rows.timeout).tolist()


def test_rows_are_whole_episodes(mixed: Transitions) -> None:
    assert len(mixed) == 401
    assert mixed.env_id == "Hopper-v4"
    assert mixed.action_space == (spaces.Box.uniform(-1, 1, 3),)
    assert {mixed.observation.dtype, mixed.action.dtype, mixed.reward.dtype} == {np.dtype(np.float32)}
    ends = ends_of(mixed)
    inside = np.setdiff1d(np.arange(400), ends)
    np.testing.assert_array_equal(mixed.next_observation[inside], mixed.observation[inside + 1])
    after = np.array(ends[:-1]) + 1
    np.testing.assert_allclose(mixed.observation[after], [[1.25] + [0] * 10] * len(after), atol=0.006)  # as reset
    assert mixed.terminal[ends].sum() >= len(ends) - 2  # hoppers fall; each half's last episode may be cut
    assert {200 - 1, 401 - 1} <= set(ends)


def test_actions_are_drawn_as_the_policy_says(mixed: Transitions) -> None:
    for level, half in (("medium", mixed[:200]), ("expert", mixed[200:])):
        mean, log_std = LEVELS[level]
        noise = (np.arctanh(half.action.astype(np.float64)) - half.observation @ WEIGHT - mean) / np.exp(log_std)
        assert noise.mean() == pytest.approx(0, abs=0.15)
        assert noise.std() == pytest.approx(1, abs=0.1)
        assert np.abs(np.corrcoef(noise[:-1].ravel(), noise[1:].ravel())[0, 1]) < 0.15


def test_a_half_is_that_of_its_level_alone_on_however_many_processes(policies: Path, mixed: Transitions) -> None:
    assert rolled_out(policies, "medium", 200).equals(mixed[:200])


def test_another_seed_gives_other_rows(policies: Path, mixed: Transitions) -> None:
    rows = rolled_out(policies, "sure-footed", 60, seed=4)  # medium, by a name with a dash
    assert len(rows) == 60
    assert not np.isin(rows.observation[:, 1], mixed.observation[:, 1]).any()


def test_chance_needs_no_policy(tmp_path: Path) -> None:
    watch = Watch()
    rows = rolled_out(None, "random", 1500, "Pendulum-v1", progress=watch)
    assert [phase[1:] for phase in watch.phases] == [[1500, 0, 1500]]
    assert rows.timeout is not None
    assert ends_of(rows) == [199, 399, 599, 799, 999, 1199, 1399, 1499]
    assert not rows.terminal.any()
    assert np.abs(rows.action).max() <= 2
    assert rows.action.std() == pytest.approx(4 / np.sqrt(12), rel=0.05)
    assert len(np.unique(rows.observation[::200, 0])) == 8
    formats.write(rows, tmp_path / "random.npz")
    assert formats.read(tmp_path / "random.npz").equals(rows)


@pytest.mark.parametrize(
    ("level", "how", "kind", "says"),
    [
        ("best", {}, FormatError, r"'hopper/best'.* hopper/sure-footed"),
        ("medium-expert", {"count": 1}, ConfigError, "at least 2"),
        ("random", {"seed": -1}, ConfigError, "seed must be"),
        ("random", {"processes": 0}, ConfigError, "at least one worker"),
        ("medium", {"env_id": "Pendulum-v1"}, DataError, "11 observation columns"),
        ("swimming", {"env_id": "Pendulum-v1"}, DataError, r"act in \[-1, 1\]"),
    ],
)
def test_wrong_arguments(policies: Path, level: str, how: dict[str, Any], kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        rolled_out(policies, level, **{"count": 10, **how})

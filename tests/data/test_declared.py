"""Spaces that a registered environment declares, for rows that do not carry them."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

from synther import Transitions
from synther.data import declared
from synther.data.kinds import Categorical, Integer, OneHot
from synther.data.layout import Layout


def rows(env_id: str | None, observation: np.ndarray, actions: int = 4, **about: object) -> Transitions:
    draw = np.random.default_rng(0)
    count = len(observation)
    return Transitions.of(
        observation=observation,
        action=draw.integers(actions, size=count),
        reward=draw.random(count).astype(np.float32),
        next_observation=observation,
        terminal=np.zeros(count, bool),
        env_id=env_id,
        **about,
    )


def places(below: int, count: int = 300) -> np.ndarray:
    return np.random.default_rng(1).integers(below, size=(count, 1)).astype(np.float32)


def test_states_that_were_never_visited_are_known_from_the_environment():
    layout = Layout.infer(rows("FrozenLake-v1", places(10), actions=3))
    assert layout.observation == (Categorical(16, 0, "onehot"),)
    assert layout.action == (Categorical(4, 0, "onehot"),)
    layout = Layout.infer(rows("FrozenLake-v1", np.eye(16, dtype=np.float32)[places(10).astype(int)[:, 0]]))
    assert [type(kind) for kind in layout.observation] == [OneHot]


@pytest.mark.parametrize("env_id", [None, "Nobody-v0", "os:FrozenLake-v1", "CartPole-v1", "NeverMade-v0"])
def test_without_a_discrete_declaration_the_rows_decide(env_id, monkeypatch):
    def broken(**_: object) -> None:
        raise OSError("no such device")

    monkeypatch.setitem(gymnasium.registry, "NeverMade-v0", EnvSpec("NeverMade-v0", entry_point=broken))
    layout = Layout.infer(rows(env_id, places(4_000)))
    assert [type(kind) for kind in layout.observation] == [Integer]


def test_options_that_could_name_a_file_are_not_passed_on():
    for options in ({"map_name": "8x8"}, {"desc": ["SF", "FG"]}):
        assert Layout.infer(rows("FrozenLake-v1", places(10), env_options=options)).observation_space is None
    assert declared._declared("FrozenLake-v1", (("is_slippery", False),))["observation"].n == 16


def test_a_late_row_can_contradict_a_declaration():
    values = places(16, 70_000)
    values[-1] = 16
    assert Layout.infer(rows("FrozenLake-v1", values)).observation_space is None

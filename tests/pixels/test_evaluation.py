"""Episodes of pixel policies: what they depend on, what can go wrong in them, and one in a world that is drawn."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch

from synther.agents.noisy_bc import NoisyBCConfig
from synther.envs.pixels import PixelEnv
from synther.errors import ConfigError, DataError
from synther.pixels import evaluation
from synther.pixels.agent import PixelAgent
from synther.pixels.evaluation import Place, Played, obstacle, play
from synther.pixels.frames import Frames
from synther.pixels.policy import PixelPolicy

from ..here import Here

ENV_ID = "dm_control/cartpole-balance-v0"


class Screen:
    """Noise on a screen for as many decisions as its seed says; each pays the action, and the repeat."""

    fault = ""
    resets: ClassVar[list[int]] = []

    def __init__(self, env_id: str, *, size: int, repeat: int, stack: int) -> None:
        self.shape, self.repeat = (3 * stack, size, size), repeat
        self.low = np.full(2 if self.fault == "actions" else 1, -1.0, np.float32)

    def reset(self, seed: int) -> np.ndarray:
        self.resets.append(seed)
        self.draw, self.left = np.random.default_rng(seed), 2 + seed % 3
        return self._seen()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        self.left -= 1
        reward = float("nan") if self.fault == "reward" else self.repeat + float(action[0])
        over = self.left == 0 and self.fault != "endless"
        return self._seen(), reward, over and self.fault == "terminal", over

    def close(self) -> None:
        pass

    def _seen(self) -> np.ndarray:
        return self.draw.integers(0, 256, self.shape, np.uint8)


@pytest.fixture(scope="module")
def policy() -> PixelPolicy:
    """Two members that have learned nothing."""
    first = np.arange(6) % 3 == 0
    draw = np.random.default_rng(0)
    frames = Frames(draw.integers(0, 256, (6, 3, 16, 16), np.uint8), np.zeros((6, 1)), np.zeros(6), np.ones(6), first)
    return PixelAgent(
        NoisyBCConfig(width=8, depth=1, batch_size=2), frames, [5, 6], device=torch.device("cpu")
    ).policy()


@pytest.fixture
def episodes(monkeypatch):
    monkeypatch.setattr(evaluation, "Workers", Here)
    monkeypatch.setattr(Screen, "resets", [])

    def call(policy, seeds=(5, 6), **options):
        return dict(play(policy, ENV_ID, seeds, make_env=Screen, **options))

    return call


def test_a_policy_of_grey_frames_is_refused(episodes):
    first = np.arange(6) % 3 == 0
    frames = Frames(np.zeros((6, 1, 16, 16), np.uint8), np.zeros((6, 1)), np.zeros(6), np.ones(6), first)
    agent = PixelAgent(NoisyBCConfig(width=8, depth=1, batch_size=2), frames, [5], device=torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"\(3, 16, 16\) cannot be evaluated: .*\(9, 16, 16\)"):
        episodes(agent.policy(), [5])


def test_returns_are_sums_of_what_was_paid(episodes, policy):
    found = episodes(policy, episodes=2, repeat=4)
    begun = dict(zip([Place(0, 0), Place(1, 0), Place(0, 1), Place(1, 1)], Screen.resets, strict=True))
    assert found.keys() == begun.keys()
    for place, start in begun.items():
        env, played = Screen("", size=16, repeat=4, stack=3), found[place]
        seen, paid = env.reset(start), 0.0
        for _ in range(played.length):
            seen, reward, _, over = env.step(policy.act(np.stack([[seen]] * 2))[place.member, 0])
            paid += reward
        assert over
        assert played.total == pytest.approx(paid, abs=1e-5)


def test_an_episode_depends_on_its_member_its_seed_and_its_place_alone(episodes, policy):
    every = episodes(policy, episodes=2)
    assert len(set(Screen.resets)) == 4
    assert episodes(policy, episodes=2) == every
    assert episodes(policy, episodes=1) == {place: every[place] for place in (Place(0, 0), Place(1, 0))}
    alone = episodes(policy.member(1), [6], episodes=2)
    assert {Place(1, place.episode): played for place, played in alone.items()}.items() <= every.items()
    assert not episodes(policy, [7, 8], episodes=2).items() & every.items()


def test_what_is_done_is_not_played_again(episodes, policy):
    done = {Place(0, 0), Place(1, 1)}
    assert episodes(policy, episodes=2, done=done).keys() == {Place(1, 0), Place(0, 1)}
    assert len(Screen.resets) == 2
    assert episodes(policy, episodes=1, done={Place(0, 0), Place(1, 0)}) == {}


@pytest.mark.parametrize(
    ("fault", "says"),
    [("reward", "the reward nan"), ("endless", "within 9 decisions"), ("actions", "takes 2 actions")],
)
def test_worlds_that_go_wrong(episodes, policy, fault, says, monkeypatch):
    monkeypatch.setattr(Screen, "fault", fault)
    monkeypatch.setattr(evaluation, "_LONGEST", 9)
    evaluation._held.cache_clear()
    with pytest.raises(DataError, match=says):
        episodes(policy, episodes=1)
    evaluation._held.cache_clear()


def test_a_terminal_state_ends_an_episode(episodes, policy, monkeypatch):
    before = episodes(policy, episodes=1)
    monkeypatch.setattr(Screen, "fault", "terminal")
    assert episodes(policy, episodes=1) == before


def test_a_policy_that_has_diverged(episodes, policy):
    lost = policy.with_heads(policy.actor)
    lost.actor.weights[0] = float("nan")
    found = episodes(lost, episodes=1)
    assert found[Place(0, 0)] == Played(None, 0)
    assert found[Place(1, 0)] == episodes(policy, episodes=1)[Place(1, 0)]


def test_no_episodes_are_none(episodes, policy):
    with pytest.raises(ConfigError, match="episodes must be at least 1, got 0"):
        episodes(policy, episodes=0)


def test_what_stands_in_the_way_of_drawing(monkeypatch):
    def broken() -> str:
        raise ConfigError("cannot draw frames here")

    monkeypatch.setattr(evaluation, "graphics", broken)
    assert obstacle(ENV_ID) == "cannot draw frames here"
    assert "expected dm_control/walker-walk-v0, got 'Hopper-v4'" in str(obstacle("Hopper-v4"))


def test_episodes_in_a_world_that_is_drawn(policy, monkeypatch):
    why = obstacle(ENV_ID)
    if why is not None:
        pytest.skip(why)
    monkeypatch.setattr(evaluation, "Workers", Here)
    found = dict(play(policy, ENV_ID, [5, 6], episodes=1, repeat=500))
    again = dict(play(policy, ENV_ID, [5, 6], episodes=1, repeat=500, done={Place(1, 0)}))
    evaluation._held(PixelEnv, ENV_ID, 16, 500).close()
    evaluation._held.cache_clear()
    assert again == {Place(0, 0): found[Place(0, 0)]}
    assert found.keys() == {Place(0, 0), Place(1, 0)}
    for played in found.values():
        assert played.length == 2
        assert 0 < played.total <= 1_000

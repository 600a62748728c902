"""Episodes of pixel policies: what they depend on, what can go wrong in them, and one in a world that is drawn."""

from __future__ import annotations

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

from ..support.processes import Here
from .lamps import Doors, Lamps

ENV_ID = "dm_control/cartpole-balance-v0"


def untrained(channels: int, *seeds: int) -> PixelPolicy:
    first, draw = np.arange(6) % 3 == 0, np.random.default_rng(0)
    image = draw.integers(0, 256, (6, channels, 16, 16), np.uint8)
    frames = Frames(image, np.zeros((6, 1)), np.zeros(6), np.ones(6), first)
    config = NoisyBCConfig(width=8, depth=1, batch_size=2)
    return PixelAgent(config, frames, seeds, device=torch.device("cpu")).policy()


@pytest.fixture(scope="module")
def policy() -> PixelPolicy:
    return untrained(3, 5, 6)


@pytest.fixture
def episodes(monkeypatch):
    monkeypatch.setattr(evaluation, "Workers", Here)
    monkeypatch.setattr(Lamps, "resets", [])

    def call(policy, seeds=(5, 6), make_env=Doors, **options):
        return dict(play(policy, ENV_ID, seeds, make_env=make_env, **options))

    return call


def test_refusals(episodes, policy, monkeypatch):
    with pytest.raises(ConfigError, match=r"\(3, 16, 16\) .*\(9, 16, 16\)"):
        episodes(untrained(1, 5), [5])
    with pytest.raises(ConfigError, match="episodes"):
        episodes(policy, episodes=0)

    def broken() -> str:
        raise ConfigError("cannot draw frames here")

    monkeypatch.setattr(evaluation, "graphics", broken)
    assert obstacle(ENV_ID) == "cannot draw frames here"
    assert "Hopper-v4" in str(obstacle("Hopper-v4"))


def test_returns_are_sums_of_what_was_paid(episodes, policy):
    found = episodes(policy, episodes=2, repeat=4)
    begun = dict(zip([Place(0, 0), Place(1, 0), Place(0, 1), Place(1, 1)], Doors.resets, strict=True))
    assert found.keys() == begun.keys()
    for place, start in begun.items():
        env, played = Doors("", size=16, repeat=4, stack=3), found[place]
        seen, paid = env.reset(start), 0.0
        for _ in range(played.length):
            seen, reward, terminal, timeout = env.step(policy.act(np.stack([[seen]] * 2))[place.member, 0])
            paid += reward
        assert terminal or timeout
        assert played.total == pytest.approx(paid, abs=1e-5)
    assert len({played.length for played in found.values()}) > 1, "terminal states end episodes too"


def test_an_episode_depends_on_its_member_its_seed_and_its_place_alone(episodes, policy):
    every = episodes(policy, episodes=2)
    assert len(set(Doors.resets)) == 4
    assert episodes(policy, episodes=2) == every
    assert episodes(policy, episodes=1) == {place: every[place] for place in (Place(0, 0), Place(1, 0))}
    alone = episodes(policy.member(1), [6], episodes=2)
    assert {Place(1, place.episode): played for place, played in alone.items()}.items() <= every.items()
    assert not episodes(policy, [7, 8], episodes=2).items() & every.items()


def test_what_is_done_is_not_played_again(episodes, policy):
    done = {Place(0, 0), Place(1, 1)}
    assert episodes(policy, episodes=2, done=done).keys() == {Place(1, 0), Place(0, 1)}
    assert len(Doors.resets) == 2
    assert episodes(policy, episodes=1, done={Place(0, 0), Place(1, 0)}) == {}


@pytest.mark.parametrize(
    ("fault", "says"),
    [("reward", "the reward nan"), ("endless", "within 9 decisions"), ("actions", "takes 2 actions")],
)
def test_worlds_that_go_wrong(episodes, policy, fault, says, monkeypatch):
    monkeypatch.setattr(Lamps, "fault", fault)
    monkeypatch.setattr(evaluation, "LONGEST", 9)
    evaluation._held.cache_clear()
    with pytest.raises(DataError, match=says):
        episodes(policy, episodes=1, make_env=Lamps)
    evaluation._held.cache_clear()


def test_a_policy_that_has_diverged(episodes, policy):
    lost = policy.with_heads(policy.actor)
    lost.actor.weights[0] = float("nan")
    found = episodes(lost, episodes=1)
    assert found[Place(0, 0)] == Played(None, 0)
    assert found[Place(1, 0)] == episodes(policy, episodes=1)[Place(1, 0)]


def test_an_episode_of_a_policy_that_has_diverged_has_no_length(policy, monkeypatch):
    episodes = {Place(0, 0): Played(None, 3), Place(0, 1): Played(5.0, 7)}
    monkeypatch.setattr(evaluation, "play", lambda *given, **how: episodes.items())
    found = evaluation.evaluate(policy, ENV_ID, [0], 2)
    assert found.lengths.tolist() == [[0, 7]]
    np.testing.assert_array_equal(found.returns, [[np.nan, 5.0]])


def test_episodes_in_a_world_that_is_drawn(policy, monkeypatch):
    why = obstacle(ENV_ID)
    if why is not None:
        pytest.skip(why)
    monkeypatch.setattr(evaluation, "Workers", Here)
    found = dict(play(policy, ENV_ID, [5, 6], episodes=1, repeat=500, done={Place(1, 0)}))
    evaluation._held(PixelEnv, ENV_ID, 16, 500, None).close()
    evaluation._held.cache_clear()
    assert found.keys() == {Place(0, 0)}
    assert found[Place(0, 0)].length == 2
    assert 0 < found[Place(0, 0)].total <= 1_000

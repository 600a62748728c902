"""Policies that see: what they do, where they go, and what they are made of."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from synther.agents.agent import Agent
from synther.agents.algorithm import Shape
from synther.agents.bc import BCConfig
from synther.agents.policy import load_policy
from synther.agents.rows import Member
from synther.errors import ConfigError, DataError, FormatError
from synther.pixels.encoder import FEATURES
from synther.pixels.policy import PixelPolicy, load_pixel_policy

from ..agents.tables import rows as state_rows
from .pictures import CONFIGS, CPU, agent, noise, stacks

SEEN = stacks(noise(seed=5))[:4]


@pytest.fixture(scope="module")
def policy() -> PixelPolicy:
    return agent(updates=2).policy()


def other_heads(members: int = 2, features: int = FEATURES):
    return Shape(features, 2, tuple(range(members)), CPU).stack(9, (features, 5, 2))


def test_a_policy_is_encoder_trunk_and_actor(policy):
    actions = policy.act(SEEN)
    assert actions.shape == (2, 4, 2)
    assert actions.dtype == np.float32
    x = torch.from_numpy(np.stack([SEEN, SEEN])).float() / 255 - 0.5
    expected = policy.actor(policy.trunk(policy.encoder(x))).tanh()
    np.testing.assert_allclose(actions, expected, atol=1e-5)
    assert np.abs(actions[0] - actions[1]).max() > 1e-3
    both = policy.act(np.stack([SEEN, SEEN[::-1]]))
    np.testing.assert_allclose(both[0], actions[0], atol=1e-6)
    np.testing.assert_allclose(both[1], policy.act(SEEN[::-1])[1], atol=1e-6)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(policy)).act(SEEN), actions)


def test_a_member_alone_acts_as_in_company(policy):
    alone = policy.member(1)
    assert alone.members == 1
    np.testing.assert_allclose(alone.act(SEEN)[0], policy.act(SEEN)[1], atol=1e-6)
    with pytest.raises(ConfigError, match="2 members"):
        policy.member(2)


def test_actions_are_within_their_bounds():
    low, high = np.array([-3.0, 0.0], np.float32), np.array([-1.0, 10.0], np.float32)
    unit = noise()
    moved = replace(unit, action=low + (high - low) * (unit.action + 1) / 2, low=low, high=high)
    actions = agent(frames=moved, updates=2).policy().act(SEEN)
    expected = low + (high - low) * (agent(frames=unit, updates=2).policy().act(SEEN) + 1) / 2
    np.testing.assert_allclose(actions, expected, atol=1e-3)
    assert (actions >= low).all()
    assert (actions <= high).all()


def test_a_policy_is_kept_as_it_was():
    made = agent(updates=1)
    policy = made.policy()
    before = policy.act(SEEN)
    made.train(2)
    np.testing.assert_array_equal(policy.act(SEEN), before)
    assert not np.allclose(made.policy().act(SEEN), before)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_files_act_like_the_agent(config, tmp_path):
    made = agent(config, updates=2)
    made.save(tmp_path / "agent.safetensors")
    made.policy().save(tmp_path / "policy.safetensors")
    for name in ("agent", "policy"):
        loaded = load_pixel_policy(tmp_path / f"{name}.safetensors")
        np.testing.assert_array_equal(loaded.act(SEEN), made.policy().act(SEEN))
        assert (loaded.members, loaded.size) == (2, 15)
    sizes = [(tmp_path / f"{name}.safetensors").stat().st_size for name in ("agent", "policy")]
    assert sizes[0] > 2 * sizes[1]


def test_other_heads_act_on_the_same_features(policy, tmp_path):
    heads = other_heads()
    changed = policy.with_heads(heads)
    x = torch.from_numpy(np.stack([SEEN, SEEN])).float() / 255 - 0.5
    expected = heads(policy.trunk(policy.encoder(x))).tanh().detach()
    np.testing.assert_allclose(changed.act(SEEN), expected, atol=1e-5)
    changed.save(tmp_path / "policy.safetensors")
    np.testing.assert_array_equal(load_pixel_policy(tmp_path / "policy.safetensors").act(SEEN), changed.act(SEEN))
    heads.weights.data.zero_()
    np.testing.assert_allclose(changed.act(SEEN), expected, atol=1e-5)
    for wrong in (other_heads(members=3), other_heads(features=49)):
        with pytest.raises(ConfigError, match=r"\(2, 50, 2\)"):
            policy.with_heads(wrong)


@pytest.mark.parametrize(
    "seen",
    [SEEN[0], SEEN[:, :2], SEEN[..., :14], SEEN.astype(np.float32), SEEN[None, None], np.stack([SEEN] * 3)],
    ids=lambda x: str(x.shape),
)
def test_other_stacks_are_refused(policy, seen):
    with pytest.raises(DataError, match="stacks of frames"):
        policy.act(seen)


def test_files_of_others_are_refused(policy, tmp_path):
    path = tmp_path / "agent.safetensors"
    with pytest.raises(FormatError, match="no such file"):
        load_pixel_policy(path)
    Agent(BCConfig(width=4), state_rows(), [Member(0)]).save(path)
    with pytest.raises(FormatError, match="pixels"):
        load_pixel_policy(path)
    policy.save(path)
    with pytest.raises(FormatError, match="rows"):
        load_policy(path)
    agent(CONFIGS["bc"]).save(path)
    with pytest.raises(ConfigError, match="critic"):
        load_pixel_policy(path, features="critic")

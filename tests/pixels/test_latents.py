"""Rows of latents: what they hold, that heads learn from them, and that eyes stay as they are."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch

from synther.agents.agent import Agent
from synther.agents.drq_bc import DrQBCConfig
from synther.agents.noisy_bc import NoisyBCConfig
from synther.agents.rows import Arm, Member, Rows
from synther.data.layout import Layout
from synther.errors import ConfigError, DataError, FormatError
from synther.pixels import latents
from synther.pixels.agent import PixelAgent
from synther.pixels.latents import encode
from synther.pixels.policy import load_pixel_policy
from synther.pixels.store import drawn_offsets

from .pictures import CONFIGS, CPU, agent, noise, stacks

FRAMES = noise()


@pytest.fixture(scope="module")
def made() -> PixelAgent:
    return agent(updates=2)


def by_hand(made: PixelAgent, member: int, trunk: str) -> np.ndarray:
    """One member's features of every observation that three decisions follow, as it is."""
    x = torch.from_numpy(stacks(FRAMES, made.config.nstep)).float() / 255 - 0.5
    eyes = made.pixel_encoder()
    features = eyes.trunks[trunk](eyes.encoder(x.expand(2, *x.shape)))[member]
    return features.numpy()


@torch.no_grad()
def test_without_shifts_a_row_is_what_the_trunks_see(made, tmp_path):
    """A row has 4 x 50 + |a| + 1 columns, and one for terminals where there are any."""
    lasting = replace(FRAMES, discount=np.ones(len(FRAMES)))
    assert Layout.infer(encode(made, lasting, shifts=1)[0]).width == 4 * 50 + 2 + 1
    made.save(tmp_path / "agent.safetensors")
    tables = encode(tmp_path / "agent.safetensors", FRAMES, device="cpu", shifts=0)
    for member, rows in enumerate(tables):
        expected = np.hstack([by_hand(made, member, "actor"), by_hand(made, member, "critic")])
        np.testing.assert_allclose(rows.observation, expected, atol=1e-5)
        decisions = FRAMES.decisions(3, 0.99)
        np.testing.assert_allclose(rows.reward, decisions.reward)
        np.testing.assert_allclose(rows.action, decisions.action)
        assert rows.terminal.tolist() == [False] * 11 + [True]
        # Three decisions after the first observation of an episode comes the fourth.
        np.testing.assert_allclose(rows.next_observation[0], rows.observation[3], atol=1e-5)


def test_pairs_have_latents_and_actions_alone(made):
    cloning = agent(CONFIGS["bc"], updates=2)
    whole, pairs = (encode(cloning, FRAMES, shifts=2, pairs=wanted)[0] for wanted in (False, True))
    np.testing.assert_array_equal(pairs.observation, whole.observation)
    np.testing.assert_array_equal(pairs.action, whole.action)
    assert not pairs.next_observation.any()
    assert not pairs.reward.any()
    assert pairs.timeout is not None
    np.testing.assert_array_equal(pairs.timeout, whole.timeout | whole.terminal)
    assert Layout.infer(pairs).width == 50 + 2
    with pytest.raises(ConfigError, match="critic"):
        encode(made, FRAMES, pairs=True)


def test_shifts_are_a_function_of_the_seeds(made, monkeypatch):
    asked = []
    monkeypatch.setattr(latents, "drawn_offsets", lambda *given: asked.append(given) or drawn_offsets(*given))
    one, other, third = (encode(made, FRAMES, shifts=1, seed=seed) for seed in (0, 0, 1))
    drawn = [drawn_offsets(*given) for given in set(asked)]
    assert len(drawn) == 4, "every member has shifts of its own"
    assert all(not torch.equal(one, other) for one, other in combinations(drawn, 2))
    still = encode(made, FRAMES, shifts=0)
    for member in range(2):
        np.testing.assert_array_equal(one[member].observation, other[member].observation)
        assert not np.allclose(one[member].observation, third[member].observation, atol=1e-3)
        assert not np.allclose(one[member].observation, still[member].observation, atol=1e-3)


def test_each_decision_comes_with_several_shifts(made):
    once, often = encode(made, FRAMES, shifts=1)[0], encode(made, FRAMES, shifts=3)[0]
    count = len(once)
    assert len(often) == 3 * count
    np.testing.assert_allclose(often.observation[:count], once.observation, atol=1e-6)
    assert not np.allclose(often.observation[count : 2 * count], once.observation, atol=1e-3)
    np.testing.assert_array_equal(often.action, np.tile(once.action, (3, 1)))
    ends = once.terminal | once.timeout
    # Two episodes: generators see where each begins.
    assert np.flatnonzero(ends).tolist() == np.flatnonzero(FRAMES.decisions(3, 0.99).last).tolist()
    assert len(np.flatnonzero(ends)) == len(FRAMES.episodes[0])


def test_what_follows_is_shifted_by_itself(made):
    """Where nothing moves, an observation and the one that follows differ by their shifts alone."""
    lying = replace(FRAMES, image=np.repeat(FRAMES.image[:1], len(FRAMES), 0))
    still, moved = (encode(made, lying, shifts=shifts)[0] for shifts in (0, 1))
    np.testing.assert_allclose(still.observation, still.next_observation, atol=1e-6)
    assert (np.abs(moved.observation - moved.next_observation).max(1) > 1e-3).sum() > 8  # one in 81 is shifted alike


def test_chunks_and_company_do_not_matter(made):
    whole, cut = encode(made, FRAMES, shifts=2), encode(made, FRAMES, shifts=2, chunk=5)
    alone = encode(agent(seeds=[4], updates=2), FRAMES, shifts=2)
    for rows, others in zip(whole, cut, strict=True):
        np.testing.assert_allclose(rows.observation, others.observation, atol=1e-5)
        np.testing.assert_allclose(rows.next_observation, others.next_observation, atol=1e-5)
    np.testing.assert_allclose(alone[0].observation, whole[1].observation, atol=1e-2)


def test_an_imitator_has_no_critic():
    imitator = agent(CONFIGS["bc"])
    rows = encode(imitator, FRAMES, shifts=1)[0]
    assert rows.observation.shape == (18, 50)
    np.testing.assert_allclose(rows.reward, FRAMES.decisions(1, 0.99).reward)
    for features in ("both", "critic"):
        with pytest.raises(ConfigError, match="no critic trunk"):
            encode(imitator, FRAMES, features=features)
    heads = Agent(NoisyBCConfig(width=8, batch_size=8), Rows([rows], device=CPU), [Member(3)])
    heads.train(2)
    assert np.isfinite(heads.losses()["actor"]).all()


HEADS = {
    "both": DrQBCConfig(width=8, batch_size=8),
    "actor": DrQBCConfig(width=8, batch_size=8, features="shared"),
    "critic": DrQBCConfig(width=8, batch_size=8, features="shared"),
}


@pytest.mark.parametrize("features", HEADS)
def test_heads_learn_from_latents_and_eyes_are_frozen(features, made, tmp_path):
    """Stage two: its policy is its heads on the features of the frozen trunk."""
    before = {name: tensor.clone() for name, tensor in made.state().items()}
    tables = encode(made, FRAMES, features=features, shifts=0)
    both = encode(made, FRAMES, shifts=0)[1].observation
    columns = {"both": slice(None), "actor": slice(50), "critic": slice(50, None)}[features]
    np.testing.assert_allclose(tables[1].observation, both[:, columns], atol=1e-6)
    heads = Agent(HEADS[features], Rows(tables, device=CPU), [Member(3, Arm((0,))), Member(4, Arm((1,), real=1))])
    start = heads.algorithm.actor.clone()
    heads.train(5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in made.state().items())
    assert not torch.equal(heads.algorithm.actor.weights, start.weights)
    made.save(tmp_path / "agent.safetensors")
    policy = load_pixel_policy(tmp_path / "agent.safetensors", features=features).with_heads(heads.policy().actor)
    seen = np.stack([rows.observation[:, :50] for rows in tables])
    np.testing.assert_allclose(policy.act(stacks(FRAMES, 3)), heads.act(seen), atol=1e-5)


def test_refusals(made, tmp_path):
    made.policy().save(tmp_path / "policy.safetensors")
    with pytest.raises(FormatError, match="whole agent"):
        encode(tmp_path / "policy.safetensors", FRAMES)
    for options in ({"features": "all"}, {"chunk": 0}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            encode(made, FRAMES, **options)
    with pytest.raises(DataError, match=r"\(3, 15, 15\).*\(3, 16, 16\)"):
        encode(made, noise(size=16))

"""Agents that learn from frames: what holds for every algorithm. `test_by_hand.py` has their losses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from synther.agents.drq_bc import DrQBCConfig
from synther.agents.noisy_bc import NoisyBCConfig
from synther.errors import ConfigError, FormatError
from synther.pixels.agent import PIXEL_ALGORITHMS, PixelAgent, algorithm_of
from synther.pixels.frames import Frames

from ..support.states import assert_member, assert_same, assert_sound
from .pictures import CONFIGS, CPU, SIZE, agent, noise, stacks

every = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def test_targets_follow_by_tau():
    start, end = (agent(replace(CONFIGS["drq_bc"], tau=0.25), updates=updates).state() for updates in (0, 1))
    for name in ("critic_trunk", "critics"):
        target = f"target_{name}"
        torch.testing.assert_close(end[target], start[target].lerp(end[name], 0.25))
        assert not torch.equal(end[target], start[target])


@every
def test_members_together_equal_each_alone(config):
    together = agent(config, updates=12)
    assert together.updates == 12
    assert_sound(together, 2)
    for index, seed in enumerate((3, 4)):
        alone = agent(config, seeds=[seed], updates=12)
        assert_member(together, index, alone)
    assert not torch.allclose(together.state()["encoder"][0], together.state()["encoder"][1], atol=1e-3)


@every
def test_cut_or_resumed_equals_uninterrupted(config, tmp_path):
    """Rounds have ten updates: these cuts fall within them and between them. Captured rounds work on addresses."""
    whole, cut, resumed = agent(config, updates=13), agent(config, updates=4), agent(config)
    places = {name: tensor.data_ptr() for name, tensor in resumed.state().items()}
    cut.save(tmp_path / "agent.safetensors")
    resumed.load(tmp_path / "agent.safetensors")
    assert resumed.updates == 4
    for updates in (6, 0, 2, 1):
        resumed.train(updates)
    assert_same(whole, resumed)
    assert {name: tensor.data_ptr() for name, tensor in resumed.state().items()} == places


def test_every_update_sees_and_shifts_anew():
    made = agent(replace(CONFIGS["drq_bc"], batch_size=32))
    batch, seen = made.store.batch, []
    made.store.batch = lambda *given: seen.append((given[0].clone(), given[1].clone())) or batch(*given)
    made.train(12)
    picked, cuts = (torch.stack(part).float() for part in zip(*seen, strict=True))
    assert len(picked.flatten(1).unique(dim=0)) == 12
    assert set(cuts.unique().tolist()) == set(range(9))
    # Those of the observation and of the one that follows, and of the members, have nothing to do with each other.
    alike = torch.corrcoef(torch.cat(list(cuts.transpose(0, 1).flatten(1, 2)), -1).t()).fill_diagonal_(0)
    assert alike.abs().max() < 5 / (12 * 32) ** 0.5


def brightness(episodes: int, informed: bool, seed: int) -> tuple[Frames, np.ndarray]:
    """A square somewhere, whose brightness says which of two actions is wanted: reward -(a - wanted)^2.

    Who is not informed acts at random.
    """
    draw, steps = np.random.default_rng(seed), 10
    count = episodes * (steps + 1)
    wanted = draw.choice(np.array([-0.8, 0.8], np.float32), count)
    image = np.zeros((count, 1, SIZE, SIZE), np.uint8)
    for frame, value in zip(image, wanted, strict=True):
        y, x = draw.integers(3, SIZE - 9, 2)
        frame[:, y : y + 6, x : x + 6] = np.rint(127.5 * (value + 1))
    first = np.arange(count) % (steps + 1) == 0
    action, reward = np.zeros((count, 1), np.float32), np.zeros(count, np.float32)
    action[1:, 0] = wanted[:-1] if informed else draw.uniform(-1, 1, count - 1)
    reward[1:] = -((action[1:, 0] - wanted[:-1]) ** 2)
    frames = Frames(image, action, reward, np.ones(count, np.float32), first)
    return frames, wanted[frames.decisions(1, 1.0).stack[:, -1]]


@pytest.mark.parametrize(
    ("config", "informed", "updates"),
    [
        (NoisyBCConfig(width=32, batch_size=32, learning_rate=3e-3), True, 20),
        (
            DrQBCConfig(width=64, batch_size=32, learning_rate=3e-3, nstep=1, discount=0.1, alpha=5.0, tau=0.05),
            False,
            100,
        ),
    ],
    ids=["bc imitates", "drq_bc improves on random actions"],
)
def test_learns_what_is_to_be_seen(config, informed, updates):
    """Only the newest of three frames matters, wherever in it the square is."""
    made = PixelAgent(config, brightness(80, informed, 0)[0], [0], device=CPU)
    made.train(updates)
    frames, wanted = brightness(20, True, 1)
    error = ((made.policy().act(stacks(frames))[0, :, 0] - wanted) ** 2).mean()
    assert error < 0.2 * (wanted**2).mean(), error


OTHER = {
    "algorithm, config, decisions, rewards, trunks": lambda: agent(CONFIGS["bc"]),
    "config": lambda: agent(replace(CONFIGS["drq_bc"], alpha=1.0)),
    "seeds": lambda: agent(seeds=(3, 5)),
    "frame, rewards": lambda: agent(frames=noise(size=16)),
    "decisions, rewards": lambda: agent(frames=noise(episodes=4)),
    "rewards": lambda: agent(frames=noise(seed=1)),
    "low": lambda: agent(frames=replace(noise(), low=-2.0)),
}


@pytest.mark.parametrize(("what", "other"), OTHER.items(), ids=OTHER)
def test_anothers_file_is_refused(what, other, tmp_path):
    agent().save(tmp_path / "agent.safetensors")
    made = other()
    before = {name: tensor.clone() for name, tensor in made.state().items()}
    with pytest.raises(ConfigError, match=f"another {what}"):
        made.load(tmp_path / "agent.safetensors")
    assert all(torch.equal(tensor, before[name]) for name, tensor in made.state().items())
    path = tmp_path / "agent.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FormatError):
        made.load(path)


def test_names_and_refusals():
    frames = noise()
    for config, seeds, options, named in (
        (CONFIGS["bc"], [], {}, "seed"),
        ({}, [0], {}, "dict"),
        (DrQBCConfig(features="shared"), [0], {}, r"agent\.features"),
        (CONFIGS["bc"], [0], {"precision": "half"}, "precision"),
    ):
        with pytest.raises(ConfigError, match=named):
            PixelAgent(config, frames, seeds, device=CPU, **options)
    with pytest.raises(ConfigError, match="updates"):
        agent().train(-1)
    with pytest.raises(ConfigError):
        agent().load_state(agent(CONFIGS["bc"]).state(), 0)
    assert {name: algorithm_of(config) for name, config in CONFIGS.items()} == {name: name for name in PIXEL_ALGORITHMS}

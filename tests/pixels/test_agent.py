"""Agents that learn from frames: their losses by hand, who trains what, and what holds for every algorithm."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from synther.agents.algorithm import Noise
from synther.agents.drq_bc import DrQBCConfig
from synther.agents.noisy_bc import NoisyBCConfig
from synther.errors import ConfigError, FormatError
from synther.pixels.agent import PIXEL_ALGORITHMS, PixelAgent, algorithm_of
from synther.pixels.frames import Frames

from .pictures import CONFIGS, CPU, SIZE, agent, noise, stacks

every = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def assert_same(one: PixelAgent, other: PixelAgent) -> None:
    for name, tensor in one.state().items():
        assert torch.equal(tensor, other.state()[name]), name


def drawn(made: PixelAgent, generator: torch.Generator):
    """A batch of the agent's frames, and noise for one update."""
    picked = torch.randint(0, len(made.store), (2, 5), generator=generator)
    cuts = torch.randint(0, 9, (2, 5, made.algorithm.uniforms), generator=generator)
    normal = torch.randn(2, 5, made.algorithm.normals, generator=generator)
    return made.store.batch(picked, cuts, torch.float32), Noise(normal, torch.zeros(2, 5, 0))


def plain(stack, member: int, x: torch.Tensor) -> torch.Tensor:
    """Each network of one member on x (B, in): (B, out), or (E, B, out)."""
    rows, found = stack.weights[member].detach().view(-1, stack.weights.shape[-1]), []
    for row in rows:
        y, at, shapes = x, 0, list(zip(stack.sizes, stack.sizes[1:], strict=False))
        bias_at = sum(inputs * outputs for inputs, outputs in shapes)
        for layer, (inputs, outputs) in enumerate(shapes):
            y = y @ row[at : at + inputs * outputs].view(inputs, outputs) + row[bias_at : bias_at + outputs]
            y = y.relu() if layer < len(shapes) - 1 else y
            at, bias_at = at + inputs * outputs, bias_at + outputs
        found.append(y)
    return torch.stack(found) if stack.weights.dim() == 3 else found[0]


@torch.no_grad()
def test_drq_bc_by_hand(generator):
    with torch.enable_grad():
        made = agent(DrQBCConfig(width=8, discount=0.9, nstep=2, deviation_updates=10, learning_rate=1e-2), updates=5)
    batch, noise_ = drawn(made, generator)
    own = made.algorithm
    encoded, following = own.encoder(batch.observation), own.encoder(batch.next_observation)
    of_actor, next_of_actor = own.actor_trunk(encoded), own.actor_trunk(following)
    of_critic, next_of_critic = own.critic_trunk(encoded), own.target_critic_trunk(following)
    actor, critics, targets = own.actor.clone(), own.critics.clone(), own.target_critics.clone()
    with torch.enable_grad():
        losses = own.update(batch, noise_, 0)
    after = own.critic_trunk(encoded)  # the critics are updated first, and see what was encoded before
    for s in range(2):
        for_target, for_policy = (0.55 * noise_.normal[s]).clamp(-0.3, 0.3).chunk(2, -1)
        next_action = (plain(actor, s, next_of_actor[s]).tanh() + for_target).clamp(-1, 1)
        next_value = plain(targets, s, torch.cat([next_of_critic[s], next_action], -1)).squeeze(-1).amin(0)
        aim = batch.reward[s] + 0.81 * (1 - batch.terminal[s]) * next_value
        predicted = plain(critics, s, torch.cat([of_critic[s], batch.action[s]], -1)).squeeze(-1)
        torch.testing.assert_close(losses["critic"][s], (predicted - aim).square().mean(1).sum(), rtol=1e-4, atol=1e-6)
        action = (plain(actor, s, of_actor[s]).tanh() + for_policy).clamp(-1, 1)
        value = plain(own.critics, s, torch.cat([after[s], action], -1)).squeeze(-1).amin(0)
        imitation = (action - batch.action[s]).square().mean()
        expected = -2.5 / value.abs().mean() * value.mean() + imitation
        torch.testing.assert_close(losses["actor"][s], expected, rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_bc_by_hand(generator):
    with torch.enable_grad():
        made = agent(NoisyBCConfig(width=8, deviation_updates=10), updates=5)
    batch, noise_ = drawn(made, generator)
    own = made.algorithm
    seen = own.actor_trunk(own.encoder(batch.observation))
    actor = own.actor.clone()
    with torch.enable_grad():
        losses = own.update(batch, noise_, 0)
    for s in range(2):
        action = (plain(actor, s, seen[s]).tanh() + (0.55 * noise_.normal[s]).clamp(-0.3, 0.3)).clamp(-1, 1)
        torch.testing.assert_close(losses["actor"][s], (action - batch.action[s]).square().mean(), rtol=1e-4, atol=1e-6)


def changed(one: PixelAgent, other: PixelAgent) -> set[str]:
    """The weights in which two agents differ."""
    names = ("encoder", "actor_trunk", "critic_trunk", "actor", "critics")
    return {name for name in names if not torch.equal(one.state()[name], other.state()[name])}


def test_what_the_policys_loss_trains():
    """Its weight of values moves nothing else."""
    config = CONFIGS["drq_bc"]
    assert changed(agent(config, updates=1), agent(replace(config, alpha=9.0), updates=1)) == {"actor_trunk", "actor"}
    start, end = agent(config), agent(config, updates=1)
    assert changed(start, end) == {"encoder", "actor_trunk", "critic_trunk", "actor", "critics"}


def test_what_the_critics_loss_trains():
    """Rewards move nothing else, where the policy only imitates."""
    config, frames = replace(CONFIGS["drq_bc"], alpha=0.0), noise()
    richer = replace(frames, reward=3 * frames.reward + 1)
    one, other = (agent(config, frames=each, updates=1) for each in (frames, richer))
    assert changed(one, other) == {"encoder", "critic_trunk", "critics"}


def test_an_imitator_trains_all_it_has():
    start, end = agent(CONFIGS["bc"]).state(), agent(CONFIGS["bc"], updates=1).state()
    assert {name for name in start if not torch.equal(start[name], end[name])} == set(start)


def test_targets_follow_by_tau():
    start, end = (agent(replace(CONFIGS["drq_bc"], tau=0.25), updates=updates).state() for updates in (0, 1))
    for name in ("critic_trunk", "critics"):
        target = f"target_{name}"
        torch.testing.assert_close(end[target], start[target].lerp(end[name], 0.25))
        assert not torch.equal(end[target], start[target])


@every
def test_shapes(config):
    made = agent(config, updates=11)
    assert made.updates == 11
    for name, loss in made.losses().items():
        assert loss.shape == (2,), name
        assert np.isfinite(loss).all()
        assert (loss != 0).all()
    for name, tensor in made.state().items():
        assert tensor.isfinite().all(), name
        assert tensor.dtype == torch.float32, name
        assert tensor.shape[:1] in ((2,), ()), name


@every
def test_members_together_equal_each_alone(config):
    together = agent(config, updates=12)
    for index, seed in enumerate((3, 4)):
        alone = agent(config, seeds=[seed], updates=12)
        for name, tensor in together.state().items():
            if tensor.dim():
                torch.testing.assert_close(tensor[index], alone.state()[name][0], rtol=1e-3, atol=1e-4, msg=name)
    assert not torch.allclose(together.state()["encoder"][0], together.state()["encoder"][1], atol=1e-3)


@every
def test_cuts_do_not_matter(config):
    """Rounds have ten updates: these cuts fall within them and between them."""
    whole, cut = agent(config, updates=13), agent(config)
    for updates in (4, 6, 0, 2, 1):
        cut.train(updates)
    assert_same(whole, cut)


@every
def test_resumed_equals_uninterrupted(config, tmp_path):
    whole, first, second = agent(config, updates=10), agent(config, updates=4), agent(config)
    first.save(tmp_path / "agent.safetensors")
    second.load(tmp_path / "agent.safetensors")
    assert second.updates == 4
    second.train(6)
    assert_same(whole, second)


@every
def test_state_stays_where_it_is(config):
    """A captured round works on addresses."""
    made = agent(config)
    places = {name: tensor.data_ptr() for name, tensor in made.state().items()}
    made.train(2)
    made.load_state({name: tensor.clone() for name, tensor in made.state().items()}, 3)
    assert {name: tensor.data_ptr() for name, tensor in made.state().items()} == places


def test_every_update_sees_and_shifts_anew():
    made = agent(replace(CONFIGS["drq_bc"], batch=32))
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
        (NoisyBCConfig(width=32, batch=32, learning_rate=3e-3), True, 40),
        (DrQBCConfig(width=64, batch=32, learning_rate=3e-3, nstep=1, discount=0.1, alpha=5.0, tau=0.05), False, 100),
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
    with pytest.raises(ConfigError, match=f"belongs to an agent with another {what}: choose another place"):
        made.load(tmp_path / "agent.safetensors")
    assert all(torch.equal(tensor, before[name]) for name, tensor in made.state().items())


@pytest.mark.parametrize("share", [0.0, 0.001, 0.999])
def test_a_truncated_file_is_refused(share, tmp_path):
    path = tmp_path / "agent.safetensors"
    made = agent()
    made.save(path)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(FormatError, match="is no agent that can be read"):
        made.load(path)


def test_other_refusals():
    frames = noise()
    with pytest.raises(ConfigError, match="at least one seed, got none"):
        PixelAgent(CONFIGS["bc"], frames, [], device=CPU)
    with pytest.raises(ConfigError, match="expected a DrQBCConfig or NoisyBCConfig, got dict"):
        PixelAgent({}, frames, [0], device=CPU)
    with pytest.raises(ConfigError, match=r"agent\.features is both, not shared"):
        PixelAgent(DrQBCConfig(features="shared"), frames, [0], device=CPU)
    with pytest.raises(ConfigError, match="updates must be at least 0, got -1"):
        agent().train(-1)
    with pytest.raises(ConfigError, match="precision must be one of"):
        PixelAgent(CONFIGS["bc"], frames, [0], device=CPU, precision="half")
    with pytest.raises(ConfigError, match="other options, members or data"):
        agent().load_state(agent(CONFIGS["bc"]).state(), 0)


def test_every_algorithm_has_its_name():
    assert {name: algorithm_of(config) for name, config in CONFIGS.items()} == {name: name for name in PIXEL_ALGORITHMS}

"""DrQ-v2 agents that act while they learn: their losses by hand, who trains what, heads that go out and come back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from synther.agents.algorithm import Noise
from synther.agents.drq_v2 import DrQv2Config
from synther.errors import ConfigError
from synther.pixels.latents import encode_own
from synther.pixels.learner import PixelLearner
from synther.pixels.policy import load_pixel_policy
from synther.pixels.vector_env import PixelVectorEnv

from ..support.states import assert_member, assert_same
from .lamps import Doors, Lamps, worlds_here
from .pictures import CPU

pytestmark = pytest.mark.usefixtures("in_this_process")

CONFIG = DrQv2Config(width=8, batch_size=8, nstep=2, discount=0.9, stddev_updates=40, learning_rate=1e-2)
SIZE = 15


def learner(seeds=(3, 4), config: DrQv2Config = CONFIG, capacity: int = 60, device=CPU, **how) -> PixelLearner:
    return PixelLearner(config, seeds, (3, SIZE, SIZE), [-1.0], [1.0], capacity=capacity, device=device, **how)


def live(made: PixelLearner, decisions: int, *, guessing: int = 12, train: bool = True, make_env=Doors) -> PixelLearner:
    """Act by chance, and then by the policy, with an update after each decision."""
    with PixelVectorEnv("", made.seeds, size=SIZE, repeat=1, processes=1, make_env=make_env) as there:
        made.add(there.reset(0))
        for number in range(decisions):
            learning = number >= guessing and train
            stepped = there.step(made.act() if learning else made.random_action(), number)
            made.add(stepped.records)
            if stepped.over.any():
                made.add(stepped.restarts, np.flatnonzero(stepped.over))
            made.decided()
            made.train(int(learning))
    return made


@pytest.fixture(scope="module")
def lived() -> PixelLearner:
    with worlds_here():
        return live(learner(), 20)


@torch.no_grad()
def test_the_loss_of_the_policy_by_hand():
    """It is minus the lower value of its own noisy action. All else is DrQ+BC's, which `test_by_hand.py` has."""
    with torch.enable_grad():
        made = live(learner(), 16)
    own, generator = made.algorithm, torch.Generator().manual_seed(0)
    picked = made.store.pick(torch.randint(0, 1_000, (2, 5), generator=generator))
    batch = made.store.batch(picked, torch.randint(0, 9, (2, 5, 4), generator=generator), torch.float32)
    noise = Noise(torch.randn(2, 5, 2, generator=generator), torch.zeros(2, 5, 0))
    encoded, actor, trunk = own.encoder(batch.observation), own.actor.clone(), own.actor_trunk.clone()
    assert made.stddev() == pytest.approx(1 - 0.9 * 4 / 40)
    with torch.enable_grad():
        losses = own.update(batch, noise, 0)
    _, for_policy = (0.91 * noise.normal).clamp(-0.3, 0.3).chunk(2, -1)
    action = (actor(trunk(encoded)).tanh() + for_policy).clamp(-1, 1)
    value = own.critics(torch.cat([own.critic_trunk(encoded), action], -1)).squeeze(-1).amin(1)
    torch.testing.assert_close(losses["actor"], -value.mean(1))


def test_members_together_equal_each_alone(lived):
    for index, seed in enumerate((3, 4)):
        assert_member(lived.algorithm, index, live(learner([seed]), 20).algorithm, atol=1e-3)
    assert not torch.allclose(lived.state()["actor"][0], lived.state()["actor"][1], atol=1e-3)


def test_actions_have_the_noise_of_the_schedule():
    made = live(learner(), 12)
    quiet = learner(config=replace(CONFIG, stddev_start=0.0, stddev_end=0.0))
    live(quiet, 12)
    seen = made.store.images[made.store.seen()].permute(0, 1, 4, 2, 3).flatten(1, 2).numpy()
    mean = made.policy().act(seen[:, None])[:, 0]
    np.testing.assert_allclose(quiet.act(), mean, atol=1e-5)
    drawn = []
    for _ in range(60):
        drawn.append(made.act())
        np.testing.assert_array_equal(drawn[-1], made.act())  # those of one decision are the same
        made.decided()
    inside = (np.abs(np.array(drawn)) < 1).all((1, 2))
    assert 0.2 < inside.mean() < 0.9  # of a deviation of 1 many are cut
    noise = np.array([np.random.default_rng((2, 3, number)).standard_normal(1, np.float32) for number in range(12, 72)])
    np.testing.assert_allclose(np.array(drawn)[:, 0], (mean[0] + noise).clip(-1, 1), atol=1e-5)


def test_heads_go_out_and_come_back(lived):
    made = live(learner(), 20)
    assert_same(made, lived)
    others = {name: tensor + 1 for name, tensor in made.heads([1]).items()}
    made.take_heads(others, [1])
    heads = {"actor", "critics", "target_critics", "actor_adam", "critics_adam"}
    for name, tensor in made.state().items():
        if name.partition(".")[0] in heads and tensor.dim():
            assert torch.equal(tensor[1], lived.state()[name][1] + 1), name
            assert torch.equal(tensor[0], lived.state()[name][0]), name
        elif name == "target_critic_trunk":  # on which the target critics that came back have learned
            trunk = lived.state()["critic_trunk"]
            assert not torch.equal(trunk[1], lived.state()[name][1])
            assert torch.equal(tensor[1], trunk[1])
            assert torch.equal(tensor[0], lived.state()[name][0])
        else:
            assert torch.equal(tensor, lived.state()[name]), name


@torch.no_grad()
def test_latents_are_what_each_member_sees_of_its_own(lived):
    """Without knowing the shifts: rewards and actions are those of the ring, features those of some shift."""
    one, other = encode_own(lived, number=7), encode_own(lived, number=7, chunk=5)
    assert any(rows.terminal.any() for rows in one)
    for member, rows in enumerate(one):
        numbers = torch.arange(lived.store.counts[member]).expand(2, -1).clamp(max=int(lived.store.counts.min()) - 1)
        assert rows.observation.shape == (lived.store.counts[member], 100)
        np.testing.assert_allclose(rows.observation, other[member].observation, atol=1e-5)
        places = lived.store.at(numbers)[member][: len(lived.store)]
        np.testing.assert_array_equal(rows.reward[: len(lived.store)], lived.store.reward[places])
        np.testing.assert_array_equal(rows.action[: len(lived.store)], lived.store.action[places])
        np.testing.assert_array_equal(rows.terminal[: len(lived.store)], lived.store.terminal[places] > 0.5)
        assert (np.abs(rows.observation) <= 1).all()
    assert not np.allclose(encode_own(lived, number=8)[0].observation, one[0].observation, atol=1e-3)
    keys = set()
    still = pytest.MonkeyPatch()
    still.setattr(
        "synther.pixels.latents.drawn_offsets", lambda count, *key: keys.add(key) or torch.full((count, 4), 4)
    )
    rows = encode_own(lived)[1]
    still.undo()
    assert len(keys) == 2  # every member has shifts of its own
    picked = lived.store.at(torch.zeros(2, 1, dtype=torch.int64))
    eyes, seen = lived.pixel_encoder(), lived.store.observations(picked, None, torch.float32)
    np.testing.assert_allclose(rows.observation[0, :50], eyes.trunks["actor"](eyes.encoder(seen))[1, 0], atol=1e-5)
    np.testing.assert_allclose(rows.observation[0, 50:], eyes.trunks["critic"](eyes.encoder(seen))[1, 0], atol=1e-5)


def test_who_has_seen_nothing_or_diverged_has_no_latents():
    with pytest.raises(ConfigError, match="seed"):
        learner([])
    made = learner()
    assert encode_own(made) == [None, None]
    live(made, 9)
    with torch.no_grad():
        made.algorithm.encoder.weights[0] = float("nan")
    found = encode_own(made)
    assert found[0] is None
    assert found[1] is not None


def test_saved_and_taken_up_it_goes_on_as_it_would(lived, tmp_path):
    lived.save(tmp_path / "learner.safetensors")
    made = learner()
    made.load(tmp_path / "learner.safetensors")
    assert (made.decisions, made.updates) == (20, 8)
    assert_same(made, lived)
    seen = np.zeros((1, 9, SIZE, SIZE), np.uint8)
    policy = load_pixel_policy(tmp_path / "learner.safetensors")
    np.testing.assert_array_equal(policy.act(seen), lived.policy().act(seen))
    learner(capacity=61).load(tmp_path / "learner.safetensors")  # for a run that goes on


def test_a_policy_learns_to_look():
    """What is lit is all that there is to know, and the next picture does not depend on the action."""
    config = DrQv2Config(width=32, batch_size=16, nstep=1, discount=0.01, learning_rate=3e-3, stddev_updates=100)
    made = live(learner([0], config, 200), 100, guessing=40, make_env=Lamps)
    env, policy, returns = Lamps("", size=SIZE, repeat=1, stack=3), made.policy(), []
    for episode in range(5):
        seen = env.reset(10_000 + episode)
        for _ in range(Lamps.DECISIONS):
            seen, reward, _, _ = env.step(policy.act(seen[None, None])[0, 0])
            returns.append(reward)
    assert np.mean(returns) > 0.7  # of 1; chance has 0

"""The buffer in the hands of Stable-Baselines3's own algorithms, and against Stable-Baselines3's own buffer."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from synther import read, write
from synther.errors import ConfigError, DataError, FormatError
from synther.integrations.d3rlpy import to_mdp_dataset
from synther.integrations.sb3 import SyntheticReplayBuffer

from ..replay.rows import OPTIONS

VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)
TORQUE = spaces.Box(-2, 2, (2,), np.float32)
GOAL = spaces.Dict({"achieved": spaces.Box(-1, 1, (2, 2), np.float64), "mode": spaces.Discrete(3)})


def model(algorithm: Any, env: Any, **changes: Any) -> Any:
    how: dict[str, Any] = {"learning_starts": 30, "batch_size": 16, "buffer_size": 500, "seed": 0, "device": "cpu"}
    how |= {"policy_kwargs": {"net_arch": [8]}, "train_freq": 4, "replay_buffer_kwargs": OPTIONS}
    policy = "MultiInputPolicy" if isinstance(env, GoalEnv) else "MlpPolicy"
    return algorithm(policy, env, replay_buffer_class=SyntheticReplayBuffer, **{**how, **changes})


def pair(
    observation: spaces.Space = VECTOR, action: spaces.Space = TORQUE, envs: int = 2, **how: Any
) -> tuple[Any, SyntheticReplayBuffer]:
    """Stable-Baselines3's buffer and ours, with the same 40 steps of two environments, 30 of which fit."""
    draw = np.random.default_rng(0)
    theirs = (DictReplayBuffer if isinstance(observation, spaces.Dict) else ReplayBuffer)(
        30 * envs, observation, action, device="cpu", n_envs=envs, **how
    )
    ours = SyntheticReplayBuffer(
        30 * envs, observation, action, device="cpu", n_envs=envs, **how, **{**OPTIONS, "refresh_every": 10_000}
    )
    observation.seed(0)
    for step in range(40):
        here, following = _observed(observation, envs), _observed(observation, envs)
        act = (
            draw.integers(action.n, size=(envs, 1))
            if isinstance(action, spaces.Discrete)
            else draw.uniform(-1, 1, (envs, 2))
        )
        done = draw.random(envs) < 0.5
        infos = [{"TimeLimit.truncated": bool(end and draw.random() < 0.5)} for end in done]
        for buffer in (theirs, ours):
            buffer.add(here, following, act, np.arange(envs) + 10.0 * step, done, infos)
        assert (ours.pos, ours.full, ours.size()) == (theirs.pos, theirs.full, theirs.size())
    return theirs, ours


def _observed(space: spaces.Space, envs: int) -> Any:
    drawn = [space.sample() for _ in range(envs)]
    if isinstance(space, spaces.Dict):
        return {key: np.stack([one[key] for one in drawn]) for key in space.spaces}
    return np.stack(drawn)


def parts(samples: Any) -> dict[str, torch.Tensor]:
    """The tensors of a batch by name, its rows in the order of their rewards."""
    order = samples.rewards[:, 0].argsort()
    named = {}
    for name, value in samples._asdict().items():
        for key, tensor in value.items() if isinstance(value, dict) else [("", value)]:
            if tensor is not None:
                named[name + key] = tensor[order]
    return named


def assert_the_same_rows(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    """Rewards name a row, and so many draws of theirs find all of the 60."""
    where = torch.searchsorted(theirs["rewards"][:, 0].contiguous(), ours["rewards"][:, 0].contiguous())
    assert theirs.keys() == ours.keys()
    for name, tensor in theirs.items():
        assert (ours[name].dtype, ours[name].shape[1:]) == (tensor.dtype, tensor.shape[1:]), name
        torch.testing.assert_close(ours[name], tensor[where], msg=name)


@pytest.mark.parametrize("timeouts", [True, False])
@pytest.mark.parametrize(
    ("observation", "action"),
    [
        (VECTOR, TORQUE),
        (VECTOR, spaces.Discrete(4)),
        (spaces.Box(-5, 5, (2, 3), np.float64), TORQUE),
        (spaces.Discrete(5), TORQUE),
        (GOAL, TORQUE),
    ],
    ids=["vector", "discrete actions", "matrix of doubles", "discrete observations", "dict"],
)
def test_real_rows_come_out_as_from_their_buffer(observation, action, timeouts):
    theirs, ours = pair(observation, action, handle_timeout_termination=timeouts)
    assert_the_same_rows(parts(ours.sample(60)), parts(theirs.sample(3000)))


@pytest.mark.parametrize("observation", [VECTOR, GOAL["achieved"]], ids=["float32", "float64"])
def test_batches_are_normalized_like_theirs(observation):
    theirs, ours = pair(observation)
    env = VecNormalize(make_vec_env(lambda: Still(observation), 2), clip_reward=1e9)
    env.obs_rms.mean, env.obs_rms.var = np.full(observation.shape, 0.5), np.full(observation.shape, 4.0)
    env.ret_rms.var = np.array(9.0)
    assert_the_same_rows(parts(ours.sample(60, env)), parts(theirs.sample(3000, env)))


@pytest.mark.parametrize("algorithm", [SAC, TD3])
def test_they_learn_from_mixed_batches(algorithm):
    agent = model(algorithm, make_vec_env("Pendulum-v1", 2))
    agent.learn(140)
    replay = agent.replay_buffer.replay
    assert [refresh.kept for refresh in replay.history] == [True, True]
    batch = replay.sample(100)
    assert int(batch.synthetic.sum()) == 50
    assert batch.action.abs().max() <= 1
    assert np.isfinite(agent.predict(np.zeros(3, np.float32))[0]).all()


def test_dqn_gets_whole_actions():
    agent = model(DQN, "CartPole-v1", replay_buffer_kwargs={**OPTIONS, "ratio": 1.0})
    agent.learn(100)
    batch = agent.replay_buffer.sample(80)
    assert batch.actions.dtype == torch.int64
    assert batch.actions.shape == (80, 1)
    assert set(batch.actions.ravel().tolist()) <= {0, 1}
    assert set(batch.dones.ravel().tolist()) <= {0.0, 1.0}


class Still(gymnasium.Env):
    """Nothing happens, for ever."""

    def __init__(self, space: spaces.Space) -> None:
        self.observation_space, self.action_space = space, TORQUE

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 1.0, False, False, {}


class GoalEnv(Still):
    def __init__(self) -> None:
        super().__init__(GOAL)


def test_dict_observations_through_an_algorithm():
    agent = model(SAC, GoalEnv())
    agent.learn(80)
    batch = agent.replay_buffer.sample(10)
    assert agent.replay_buffer.replay.model is not None
    assert batch.observations["achieved"].shape == (10, 2, 2)
    assert set(batch.observations["mode"].ravel().tolist()) <= {0, 1, 2}


def test_a_time_limit_is_no_end_but_others_are():
    agent = model(SAC, gymnasium.make("Pendulum-v1", max_episode_steps=10), learning_starts=10_000)
    agent.learn(40)
    rows = agent.replay_buffer.transitions()
    assert not rows.terminal.any()
    assert np.flatnonzero(rows.timeout).tolist() == [9, 19, 29, 39]
    inside = ~rows.timeout[:-1]
    # The true next observation, not the first one of the next episode.
    assert (rows.next_observation[:-1] == rows.observation[1:]).all(1).tolist() == inside.tolist()
    ours = SyntheticReplayBuffer(5, VECTOR, TORQUE, device="cpu", **OPTIONS)
    for done in (0, 1, 0):
        ours.add(np.zeros((1, 3)), np.zeros((1, 3)), np.zeros((1, 2)), np.zeros(1), np.array([done]), [{}])
    assert ours.transitions().terminal.tolist() == [False, True, False]
    assert not ours.transitions().timeout.any()


@pytest.mark.parametrize("taken", [9, 40], ids=["not full", "wrapped around"])
def test_environments_that_take_turns_come_back_one_after_the_other(taken):
    """As from their own buffer: rows that form episodes, with the end of each environment but the last cut."""
    theirs, ours = (
        kind(93, VECTOR, TORQUE, device="cpu", n_envs=3, **how)
        for kind, how in ((ReplayBuffer, {}), (SyntheticReplayBuffer, {**OPTIONS, "refresh_every": 10_000}))
    )
    number, who = np.zeros(3), np.arange(3)
    for step in range(taken):
        here, following = (np.stack([who, at, who + at], 1) for at in (number, number + 1))
        cut, over = (number + who) % 11 == 10, (number + who) % 7 == 6
        infos = [{"TimeLimit.truncated": bool(one)} for one in cut & ~over]
        for buffer in (theirs, ours):
            buffer.add(here, following, np.zeros((3, 2)), 10.0 * step + who, cut | over, infos)
        number = np.where(cut | over, 0, number + 1)
    rows = ours.transitions()
    assert rows.equals(read(theirs))
    assert len(to_mdp_dataset(rows).episodes) == np.count_nonzero((rows.terminal | rows.timeout)[:-1]) + 1
    ours.replay.add(*(np.zeros(shape) for shape in (3, 2, (), 3)), False, False)  # whose this is nobody knows
    assert ours.transitions().timeout is None


def test_an_episode_is_cut_where_its_environment_was_reset():
    agent = model(SAC, make_vec_env("Pendulum-v1", 2), learning_starts=10_000)
    for _ in range(2):
        agent.learn(24)  # 12 steps of each, of 200, and from the beginning
    rows = agent.replay_buffer.transitions()
    assert np.flatnonzero(rows.timeout).tolist() == [11, 23, 35]
    assert len(to_mdp_dataset(rows).episodes) == 4


def test_synther_reads_it_like_any_buffer_and_writes_into_none_of_its_kind():
    _, ours = pair()
    rows = read(ours)
    stored = ours.transitions()
    np.testing.assert_array_equal(rows.reward, stored.reward)
    low, high = TORQUE.low, TORQUE.high  # rows are in the units of the environment, `transitions` as they are stored
    np.testing.assert_allclose(rows.action, low + (stored.action + 1) / 2 * (high - low), atol=1e-5)
    assert np.abs(stored.action).max() <= 1
    with pytest.raises(FormatError, match=r"replay\.add"):
        write(rows, ours)


def test_model_and_buffer_are_saved_whole(tmp_path):
    env = make_vec_env("Pendulum-v1", 2, seed=0)
    agent = model(SAC, env)
    agent.learn(100)
    agent.save(tmp_path / "model")
    agent.save_replay_buffer(tmp_path / "buffer")
    other = SAC.load(tmp_path / "model", env=env, device="cpu")
    assert other.replay_buffer.replay.refresh_every == OPTIONS["refresh_every"]
    other.load_replay_buffer(tmp_path / "buffer")
    ours, theirs = agent.replay_buffer, other.replay_buffer
    row = [np.zeros((2, 3)), np.ones((2, 3)), np.zeros((2, 1)), np.ones(2), np.zeros(2), [{}, {}]]
    for buffer in (ours, theirs):
        for _ in range(20):  # over the next refresh
            buffer.add(*row)
    assert len(theirs.replay.history) == 2
    assert (theirs.pos, theirs.full, theirs.size()) == (ours.pos, ours.full, ours.size())
    for one, two in zip(ours.replay.sample(64), theirs.replay.sample(64), strict=True):
        assert torch.equal(one, two)


def test_random_numbers_follow_the_algorithms_seed():
    def drawn(**changes: Any) -> torch.Tensor:
        buffer = model(SAC, "Pendulum-v1", **changes).replay_buffer
        for step in range(10):
            buffer.add(np.zeros((1, 3)), np.ones((1, 3)), np.zeros((1, 1)), np.array([step]), np.zeros(1), [{}])
        return buffer.sample(30).rewards

    assert torch.equal(drawn(seed=1), drawn(seed=1))
    assert not torch.equal(drawn(seed=1), drawn(seed=2))
    own = {**OPTIONS, "seed": 5}
    assert torch.equal(drawn(seed=1, replay_buffer_kwargs=own), drawn(seed=2, replay_buffer_kwargs=own))


def test_a_copy_is_a_buffer_of_its_own_and_reset_forgets_everything():
    _, buffer = pair()
    other = copy.deepcopy(buffer)
    assert torch.equal(buffer.sample(20).rewards, other.sample(20).rewards)
    other.reset()
    assert buffer.size() == 30
    assert (other.size(), other.pos, other.full) == (0, 0, False)
    with pytest.raises(DataError, match="empty"):
        other.sample(1)


@pytest.mark.parametrize(
    ("observation", "how", "said"),
    [
        (VECTOR, {"optimize_memory_usage": True}, "optimize_memory_usage"),
        (VECTOR, {"n_steps": 3, "gamma": 0.99}, "n_steps"),
        (spaces.Box(0, 255, (3, 40, 40), np.uint8), {}, "images of shape .3, 40, 40."),
        (spaces.Dict({"eye": spaces.Box(0, 255, (1, 40, 40), np.uint8)}), {}, "encode"),
        (spaces.Sequence(VECTOR), {}, "wrap the environment"),
        (VECTOR, {"ratio": 2}, "ratio"),
    ],
    ids=["memory", "several steps", "image", "image in a dict", "sequence", "ratio"],
)
def test_what_cannot_work_is_refused_at_once(observation, how, said):
    with pytest.raises((ConfigError, DataError), match=said):
        SyntheticReplayBuffer(10, observation, TORQUE, device="cpu", **how)


def test_other_rows_are_refused_and_rounding_is_not():
    buffer = SyntheticReplayBuffer(10, VECTOR, TORQUE, device="cpu", **OPTIONS)
    row = [np.zeros((1, 3)), np.zeros((1, 3))]
    buffer.add(*row, np.array([[1.00005, -1.00005]]), np.zeros(1), np.zeros(1), [{}])
    assert buffer.transitions().action.tolist() == [[1, -1]]
    with pytest.raises(DataError, match="outside the space"):
        buffer.add(*row, np.array([[1.9, 0.0]]), np.zeros(1), np.zeros(1), [{}])
    with pytest.raises(DataError, match="3 environments"):
        buffer.add(np.zeros((3, 3)), np.zeros((3, 3)), np.zeros((3, 2)), np.zeros(3), np.zeros(3), [{}] * 3)
    assert buffer.size() == 1

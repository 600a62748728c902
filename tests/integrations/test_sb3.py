"""The buffer in the hands of Stable-Baselines3's own algorithms, and against Stable-Baselines3's own buffer."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_contrib import TQC, CrossQ
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from synther import read, write
from synther.data.episodes import episode_spans
from synther.data.spaces import Box
from synther.errors import ConfigError, DataError
from synther.integrations.sb3 import SyntheticReplayBuffer

from ..replay.rows import OPTIONS, drift_at

VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)
TORQUE = spaces.Box(-2, 2, (2,), np.float32)
GOAL = spaces.Dict({"achieved": spaces.Box(-1, 1, (2, 2), np.float64), "mode": spaces.Discrete(3)})


def model(algorithm: Any, env: Any, **changes: Any) -> Any:
    how: dict[str, Any] = {"learning_starts": 30, "batch_size": 16, "buffer_size": 500, "seed": 0, "device": "cpu"}
    how |= {"policy_kwargs": {"net_arch": [8]}, "train_freq": 4, "replay_buffer_kwargs": OPTIONS}
    policy = "MultiInputPolicy" if isinstance(env, GoalEnv) else "MlpPolicy"
    return algorithm(policy, env, **{"replay_buffer_class": SyntheticReplayBuffer, **how, **changes})


def pair(
    observation: spaces.Space = VECTOR, action: spaces.Space = TORQUE, envs: int = 2, **how: Any
) -> tuple[Any, SyntheticReplayBuffer]:
    """Stable-Baselines3's buffer and ours, with the same 40 steps of two environments, 30 of which fit."""
    draw = np.random.default_rng(0)
    several = NStepReplayBuffer if "n_steps" in how else ReplayBuffer
    theirs = (DictReplayBuffer if isinstance(observation, spaces.Dict) else several)(
        30 * envs, observation, action, device="cpu", n_envs=envs, **how
    )
    ours = SyntheticReplayBuffer(
        30 * envs, observation, action, device="cpu", n_envs=envs, **how, **{**OPTIONS, "refresh_every": 10_000}
    )
    observation.seed(0)
    for _ in range(40):
        here, following = _observed(observation, envs), _observed(observation, envs)
        act = (
            draw.integers(action.n, size=(envs, 1))
            if isinstance(action, spaces.Discrete)
            else draw.uniform(-1, 1, (envs, 2))
        )
        done = draw.random(envs) < 0.5
        infos = [{"TimeLimit.truncated": bool(end and draw.random() < 0.5)} for end in done]
        reward = draw.standard_normal(envs)
        for buffer in (theirs, ours):
            buffer.add(here, following, act, reward, done, infos)
        assert (ours.pos, ours.full, ours.size()) == (theirs.pos, theirs.full, theirs.size())
    return theirs, ours


def _observed(space: spaces.Space, envs: int) -> Any:
    drawn = [space.sample() for _ in range(envs)]
    if isinstance(space, spaces.Dict):
        return {key: np.stack([one[key] for one in drawn]) for key in space.spaces}
    return np.stack(drawn)


def tensors(samples: Any) -> dict[str, torch.Tensor]:
    """The tensors of a batch by name."""
    named = {}
    for name, value in samples._asdict().items():
        for key, tensor in value.items() if isinstance(value, dict) else [("", value)]:
            if tensor is not None:
                named[name + key] = tensor
    return named


def assert_drawn_alike(ours: Any, theirs: Any, env: Any = None) -> None:
    """The very same rows, in the same order."""
    batches = []
    for buffer in (ours, theirs):
        np.random.seed(3)  # noqa: NPY002 - they draw from it
        batches.append(tensors(buffer.sample(70, env)))
    assert batches[0].keys() == batches[1].keys()
    for name, tensor in batches[1].items():
        assert batches[0][name].dtype == tensor.dtype, name
        assert torch.equal(batches[0][name], tensor), name


@pytest.mark.parametrize(
    ("observation", "action", "how"),
    [
        (VECTOR, TORQUE, {}),
        (VECTOR, spaces.Discrete(4), {}),
        (spaces.Box(-5, 5, (2, 3), np.float64), TORQUE, {}),
        (spaces.Discrete(5), TORQUE, {}),
        (GOAL, TORQUE, {}),
        (VECTOR, TORQUE, {"handle_timeout_termination": False}),
        (VECTOR, TORQUE, {"handle_timeout_termination": False, "optimize_memory_usage": True}),
        (VECTOR, TORQUE, {"n_steps": 3, "gamma": 0.9}),
    ],
    ids=["vector", "discrete actions", "matrix of doubles", "discrete observations", "dict", "limits", "memory", "n"],
)
def test_batches_are_those_of_their_buffer_and_after_a_refresh_half_new(observation, action, how):
    theirs, ours = pair(observation, action, **how)
    assert isinstance(ours, type(theirs))
    assert_drawn_alike(ours, theirs)
    np.testing.assert_array_equal(ours.rewards, theirs.rewards)  # attributes that others look at
    ours.refresh()
    assert [refresh.kept for refresh in ours.synthetic.history] == [True]
    batch, real = tensors(ours.sample(70)), tensors(theirs.sample(500))
    assert batch.keys() == real.keys()
    for name, tensor in real.items():
        assert (batch[name].dtype, batch[name].shape) == (tensor.dtype, (70, *tensor.shape[1:])), name
    known = set(real["rewards"][:, 0].tolist())
    assert sum(reward in known for reward in batch["rewards"][:, 0].tolist()) == 35
    if "n_steps" in how:
        assert set(np.round(batch["discounts"][:, 0].double().numpy(), 3)) <= {0.9, 0.81, 0.729}


def test_ratio_zero_is_their_buffer_and_takes_images():
    image = spaces.Box(0, 255, (3, 40, 40), np.uint8)
    theirs, ours = (
        kind(20, image, TORQUE, device="cpu", **how)
        for kind, how in ((ReplayBuffer, {}), (SyntheticReplayBuffer, {"ratio": 0}))
    )
    for step in range(25):
        row = [np.full((1, 3, 40, 40), step), np.full((1, 3, 40, 40), step + 1), np.zeros((1, 2)), np.zeros(1)]
        for buffer in (theirs, ours):
            buffer.add(*row, np.zeros(1), [{}])
    assert_drawn_alike(ours, theirs)


def test_an_agent_learns_the_same_until_the_first_refresh():
    actions = []
    for kind, how in ((None, {}), (SyntheticReplayBuffer, {**OPTIONS, "refresh_every": 1000})):
        agent = model(SAC, "Pendulum-v1", replay_buffer_class=kind, replay_buffer_kwargs=how, batch_size=700)
        agent.learn(60)
        actions.append(agent.predict(np.zeros(3, np.float32), deterministic=True)[0].tolist())
    assert actions[0] == actions[1]


def counting(taken: int, *buffers: Any) -> None:
    """Steps of three environments that count, two of which end or are cut now and then."""
    number, who = np.zeros(3), np.arange(3)
    for step in range(taken):
        here, following = (np.stack([who, at, who + at], 1) for at in (number, number + 1))
        cut, over = (number + who) % 11 == 10, (number + who) % 7 == 6
        infos = [{"TimeLimit.truncated": bool(one)} for one in cut & ~over]
        for buffer in buffers:
            buffer.add(here, following, np.zeros((3, 2)), 10.0 * step + who, cut | over, infos)
        number = np.where(cut | over, 0, number + 1)


@pytest.mark.parametrize("taken", [9, 40], ids=["not full", "wrapped around"])
def test_rows_of_several_steps_are_fitted_as_they_are_drawn(taken):
    how: dict[str, Any] = {"device": "cpu", "n_envs": 3, "n_steps": 3, "gamma": 0.9}
    theirs = NStepReplayBuffer(93, VECTOR, TORQUE, **how)
    ours = SyntheticReplayBuffer(93, VECTOR, TORQUE, **how, **OPTIONS, ratio=0)
    counting(taken, theirs, ours)
    seen: list[Any] = []
    ours.synthetic.refresh_on = lambda rows, added, **where: seen.append(rows)
    ours.refresh()
    drawn = theirs.sample(4000)
    found = np.stack([seen[0].reward, seen[0].extra["discount"], seen[0].terminal, seen[0].next_observation[:, 1]], 1)
    asked = torch.cat([drawn.rewards, drawn.discounts, drawn.dones, drawn.next_observations[:, 1:2]], 1).numpy()
    fitted, sampled = ({tuple(row) for row in np.round(rows.astype(float), 2)} for rows in (found, asked))
    assert fitted == sampled


@pytest.mark.parametrize("observation", [VECTOR, GOAL["achieved"]], ids=["float32", "float64"])
def test_batches_are_normalized_like_theirs(observation):
    theirs, ours = pair(observation)
    env = VecNormalize(make_vec_env(lambda: Still(observation), 2), clip_reward=1e9)
    env.obs_rms.mean, env.obs_rms.var = np.full(observation.shape, 0.5), np.full(observation.shape, 4.0)
    env.ret_rms.var = np.array(9.0)
    assert_drawn_alike(ours, theirs, env)
    ours.refresh()
    raw, normal = (tensors(ours._generated(2000, how))["observations"].mean(0) for how in (None, env))
    torch.testing.assert_close(normal.double(), (raw.double() - 0.5) / 2, atol=0.1, rtol=0)


@pytest.mark.parametrize("algorithm", [SAC, TD3, CrossQ, TQC])
def test_they_learn_from_mixed_batches(algorithm):
    agent = model(algorithm, make_vec_env("Pendulum-v1", 2))
    agent.learn(140)
    replay = agent.replay_buffer.synthetic
    assert [refresh.kept for refresh in replay.history] == [True, True]
    assert replay.split(100) == (50, 50)
    assert agent.replay_buffer.sample(100).actions.abs().max() <= 1
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
    assert agent.replay_buffer.synthetic.model is not None
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
    counting(taken, theirs, ours)
    rows = ours.transitions()
    assert rows.equals(read(theirs, actions="raw"))
    assert len(list(episode_spans(rows))) == np.count_nonzero((rows.terminal | rows.timeout)[:-1]) + 1


def test_an_episode_is_cut_where_its_environment_was_reset():
    agent = model(SAC, make_vec_env("Pendulum-v1", 2), learning_starts=10_000)
    for _ in range(2):
        agent.learn(24)  # 12 steps of each, of 200, and from the beginning
    rows = agent.replay_buffer.transitions()
    assert np.flatnonzero(rows.timeout).tolist() == [11, 23, 35]
    assert len(list(episode_spans(rows))) == 4


def test_synther_reads_and_writes_it_like_any_buffer():
    _, ours = pair()
    rows = read(ours, actions="scaled")
    stored = ours.transitions()
    np.testing.assert_array_equal(rows.reward, stored.reward)
    low, high = TORQUE.low, TORQUE.high  # rows are in the units of the environment, `transitions` as they are stored
    np.testing.assert_allclose(rows.action, low + (stored.action + 1) / 2 * (high - low), atol=1e-5)
    assert np.abs(stored.action).max() <= 1
    write(rows[:8], ours)
    assert read(ours, actions="scaled")[-4:].reward.tolist() == rows.reward[1:8:2].tolist()  # dealt out in turn


def test_model_and_buffer_are_saved_whole(tmp_path):
    env = make_vec_env("Pendulum-v1", 2, seed=0)
    agent = model(SAC, env)
    agent.learn(100)
    agent.save(tmp_path / "model")
    agent.save_replay_buffer(tmp_path / "buffer")
    other = SAC.load(tmp_path / "model", env=env, device="cpu")
    assert other.replay_buffer.synthetic.refresh_every == OPTIONS["refresh_every"]
    other.load_replay_buffer(tmp_path / "buffer")
    ours, theirs = agent.replay_buffer, other.replay_buffer
    row = [np.zeros((2, 3)), np.ones((2, 3)), np.zeros((2, 1)), np.ones(2), np.zeros(2), [{}, {}]]
    for buffer in (ours, theirs):
        for _ in range(20):  # over the next refresh
            buffer.add(*row)
    assert len(theirs.synthetic.history) == 2
    assert (theirs.pos, theirs.full, theirs.size()) == (ours.pos, ours.full, ours.size())
    assert_drawn_alike(ours, theirs)


def test_random_numbers_follow_the_algorithms_seed():
    def seed(**changes: Any) -> int:
        return model(SAC, "Pendulum-v1", **changes).replay_buffer.synthetic.seed

    assert seed(seed=1) == seed(seed=1) != seed(seed=2)
    assert seed(seed=1, replay_buffer_kwargs={**OPTIONS, "seed": 5}) == 5


def test_a_copy_is_a_buffer_of_its_own_and_reset_forgets_everything():
    _, buffer = pair()
    buffer.refresh()
    other = copy.deepcopy(buffer)
    assert_drawn_alike(buffer, other)
    other.reset()
    assert buffer.size() == 30
    assert (other.size(), other.pos, other.full) == (0, 0, False)
    assert other.synthetic.history == []


@pytest.mark.parametrize(
    ("observation", "how", "said"),
    [
        (GOAL, {"n_steps": 3}, "n_steps"),
        (GOAL, {"n_sampled_goal": 4}, "HerReplayBuffer"),
        (spaces.Box(0, 255, (3, 40, 40), np.uint8), {}, "images of shape .3, 40, 40."),
        (spaces.Box(0, 1, (3, 40, 40), np.float32), {}, "images of shape .3, 40, 40."),
        (spaces.Dict({"eye": spaces.Box(0, 255, (1, 40, 40), np.uint8)}), {}, "encode"),
        (spaces.Sequence(VECTOR), {}, "wrap the environment"),
        (VECTOR, {"ratio": 2}, "ratio"),
        (VECTOR, {"sample": 100}, "did you mean samples"),
    ],
    ids=["n of dicts", "her", "image", "image of floats", "image in a dict", "sequence", "ratio", "misspelt"],
)
def test_what_cannot_work_is_refused_at_once(observation, how, said):
    with pytest.raises((ConfigError, DataError), match=said):
        SyntheticReplayBuffer(10, observation, TORQUE, device="cpu", **how)


@pytest.mark.parametrize(
    ("action", "space"),
    [
        ([1.00005, -1.00005], (-1, 1)),  # rescaled, and rounded
        ([1.9, 0.0], (-2, 2)),  # in the units of the environment, as CleanRL's scripts store them
        ([0.3, -0.2], (-1, 1)),
        ([2.5, 0.0], None),
    ],
)
def test_what_actions_can_be_is_told_from_those_that_were_stored(action, space):
    buffer = SyntheticReplayBuffer(100, VECTOR, TORQUE, device="cpu", **OPTIONS)
    buffer.add(np.zeros((1, 3)), np.ones((1, 3)), np.array([action]), np.ones(1), np.zeros(1), [{}])
    seen: list[Any] = []
    buffer.synthetic.refresh_on = lambda rows, added, **where: seen.append(rows)
    buffer.refresh()
    assert seen[0].action_space == (None if space is None else (Box.uniform(*space, 2),))


def test_a_step_of_other_environments_is_refused():
    buffer = SyntheticReplayBuffer(10, VECTOR, TORQUE, device="cpu", **OPTIONS)
    with pytest.raises(DataError, match="3 environments"):
        buffer.add(np.zeros((3, 3)), np.zeros((3, 3)), np.zeros((3, 2)), np.zeros(3), np.zeros(3), [{}] * 3)
    with pytest.raises(DataError, match="handle_timeout_termination=False"):
        buffer.add(np.zeros((1, 3)), np.zeros((1, 3)), np.zeros((1, 2)), np.zeros(1), np.zeros(1), {})
    assert buffer.size() == 0


@pytest.mark.parametrize("envs", [1, 3])
def test_steps_of_a_vector_environment_go_in_as_in_cleanrl(envs):
    """Its loop knows no automatic resets in a step of their own, which are no experience."""
    vector = gymnasium.vector.SyncVectorEnv(
        [lambda first=first: gymnasium.wrappers.RecordEpisodeStatistics(Walk(first)) for first in range(envs)]
    )
    buffer = SyntheticReplayBuffer(
        100 * envs, vector.single_observation_space, vector.single_action_space, "cpu", n_envs=envs, ratio=0.0,
        handle_timeout_termination=False,
    )  # fmt: skip
    here, _ = vector.reset(seed=0)
    for _ in range(20):
        actions = vector.action_space.sample()
        following, rewards, terminations, _, infos = vector.step(actions)
        buffer.add(here, following, actions, rewards, terminations, infos)
        here = following
    rows = buffer.transitions()
    assert len(rows) == (20 - 4 if envs == 1 else 20 * envs)
    assert (rows.next_observation[:, 0] == rows.observation[:, 0] + 1).all()
    assert buffer.sample(30).actions.shape == (30, 1)


class Walk(gymnasium.Env):
    """Without reward, to 4, and to a time limit at 3 in turn. The first episode begins at `first`."""

    observation_space, action_space = spaces.Box(-np.inf, np.inf, (1,)), spaces.Box(-2, 2, (1,))

    def __init__(self, first: int) -> None:
        self.first, self.episode = first, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at = self.first if self.episode == 0 else 0
        self.episode += 1
        return np.full(1, self.at, np.float32), {}

    def step(self, action: Any) -> Any:
        self.at += 1
        over, cut = self.at == 4, self.at == 3 and self.episode % 2 == 0
        return np.full(1, self.at, np.float32), 0.0, over, cut, {}


def test_refreshes_can_follow_the_newest_steps(monkeypatch):
    seen = drift_at(3, monkeypatch)
    buffer = SyntheticReplayBuffer(80, VECTOR, TORQUE, device="cpu", n_envs=2, **OPTIONS, refresh="auto")
    for step in range(50):
        here = np.full((2, 3), step, np.float32)
        buffer.add(here, here + 1, np.zeros((2, 2)), np.full(2, step), np.zeros(2), [{}, {}])
    assert [set(look) for look in seen[:3]] == [set(range(start, start + 6)) for start in (30, 36, 42)]
    assert [one.added for one in buffer.synthetic.history] == [60, 96]
    with pytest.raises(ConfigError, match="SyntheticReplay"):
        SyntheticReplayBuffer(80, VECTOR, TORQUE, ratio="auto", td_error=lambda rows: rows.reward)

"""What d3rlpy draws from a data set is what the rows say, and its algorithms learn from it."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from synther import Transitions
from synther.data.spaces import Box, Discrete
from synther.errors import ConfigError, DataError, FormatError

from ..replay.rows import OPTIONS, drift_at


def to_mdp_dataset(*given: Any, **how: Any) -> Any:
    """Imported when it is used: d3rlpy takes seconds, for which every process that collects tests would wait."""
    from synther.integrations import d3rlpy

    return d3rlpy.to_mdp_dataset(*given, **how)


def rows(count: int = 40, *, discrete: bool = False, episodes: bool = False) -> Transitions:
    """Rows that their reward names. As episodes: five steps each, every second one terminated and the last one open."""
    draw = np.random.default_rng(0)
    number = np.arange(count)
    chain = draw.standard_normal((count + 1, 3))
    end = number % 5 == 4
    terminal = end & (number % 10 == 9) if episodes else number % 3 == 0
    following = chain[1:] + (end[:, None] if episodes else 100.0)
    return Transitions(
        observation=chain[:-1],
        action=draw.integers(0, 3, count) if discrete else draw.uniform(-1, 1, (count, 2)),
        reward=number + 0.5,
        next_observation=following,
        terminal=terminal,
        timeout=(end & ~terminal) if episodes else None,
    )


def test_a_data_set_is_one_of_d3rlpy_with_the_actions_of_the_space():
    from d3rlpy.constants import ActionSpace
    from d3rlpy.dataset import MDPDataset

    discrete = rows(discrete=True)
    for given, kind, size in (
        (rows(), ActionSpace.CONTINUOUS, 2),
        (discrete, ActionSpace.DISCRETE, 3),
        (discrete.with_spaces(action=(Discrete(7),)), ActionSpace.DISCRETE, 7),
        (discrete.with_spaces(action=(Box.uniform(0, 5, 1),)), ActionSpace.CONTINUOUS, 1),
    ):
        dataset = to_mdp_dataset(given)
        assert isinstance(dataset, MDPDataset)
        assert dataset.transition_count == 40
        assert (dataset.dataset_info.action_space, dataset.dataset_info.action_size) == (kind, size)
    assert dataset.sample_transition().action.dtype == np.float32


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("episodes", [False, True], ids=["alone", "episodes"])
def test_batches_are_the_rows(discrete, episodes):
    given = rows(discrete=discrete, episodes=episodes)
    dataset = to_mdp_dataset(given)
    assert dataset.transition_count == len(given)
    np.random.seed(0)  # noqa: NPY002 - d3rlpy draws from it
    batch = dataset.sample_transition_batch(400)
    which = (batch.rewards[:, 0] - 0.5).astype(int)
    assert set(which) == set(range(len(given)))  # so many draws meet every row
    following = given.next_observation.copy()
    following[given.terminal] = 0  # d3rlpy's own way with what nobody will look at
    assert np.array_equal(batch.observations, given.observation.astype(np.float32)[which])
    assert np.array_equal(batch.next_observations, following.astype(np.float32)[which])
    assert np.array_equal(batch.actions, given.action.reshape(len(given), -1).astype(np.float32)[which])
    assert np.array_equal(batch.terminals[:, 0], given.terminal[which])
    assert (batch.intervals == 1).all()


def test_recorded_rows_are_episodes():
    given = rows(23, episodes=True)
    dataset = to_mdp_dataset(given)
    assert [episode.transition_count for episode in dataset.episodes] == [5, 5, 5, 5, 3]
    assert [episode.terminated for episode in dataset.episodes] == [False, True, False, True, False]
    returns = [given.reward[start : start + 5].sum() for start in range(0, 23, 5)]
    assert [episode.compute_return() for episode in dataset.episodes] == returns
    assert dataset.sample_trajectory_batch(4, 3).observations.shape == (4, 3, 3)
    file = io.BytesIO()
    dataset.dump(file)
    assert file.tell() > 0


def test_rows_mean_the_same_in_any_buffer_of_d3rlpy():
    """Which picks transitions out of their episodes in a way of its own."""
    from d3rlpy.dataset import MDPDataset, create_fifo_replay_buffer

    given = rows()
    alone = to_mdp_dataset(given)
    grown = MDPDataset(np.zeros((2, 3)), np.zeros((2, 2)), np.zeros(2), np.array([0.0, 1.0]))
    for episode in alone.episodes:
        grown.append_episode(episode)
    for buffer, first in ((create_fifo_replay_buffer(40, episodes=alone.episodes), 0), (grown, 2)):
        picked = [buffer.transition_picker(*buffer.buffer[first + row]) for row in range(40)]
        assert [one.reward[0] for one in picked] == given.reward.tolist()
        assert [one.terminal for one in picked] == given.terminal.tolist()
        following = np.where(given.terminal[:, None], 0, given.next_observation).astype(np.float32)
        assert np.array_equal([one.next_observation for one in picked], following)


def test_what_is_appended_comes_after_the_rows():
    dataset = to_mdp_dataset(rows(4))
    for step in range(3):
        dataset.append(np.full(3, step, np.float32), np.zeros(2, np.float32), 7.0)
    dataset.clip_episode(True)
    assert dataset.transition_count == 7
    assert [len(episode) for episode in dataset.episodes] == [1, 2, 2, 1, 3]
    assert [len(episode) for episode in dataset.episodes[-2:]] == [1, 3]
    assert dataset.episodes[-1] is dataset.buffer[6][0]
    with pytest.raises(IndexError):
        dataset.episodes[5]


def small_agent(continuous: str, discrete: bool, **options: Any) -> Any:
    """The algorithm of this name, or DQN for discrete actions."""
    import d3rlpy
    from d3rlpy.models.encoders import VectorEncoderFactory

    config = d3rlpy.algos.DoubleDQNConfig if discrete else getattr(d3rlpy.algos, f"{continuous}Config")
    parts = ["encoder_factory"] if discrete else ["actor_encoder_factory", "critic_encoder_factory"]
    return config(batch_size=16, **dict.fromkeys(parts, VectorEncoderFactory([8])), **options).create()


@pytest.mark.parametrize("discrete", [False, True])
def test_algorithms_learn_from_real_and_synthetic_together(discrete, tmp_path):
    import d3rlpy
    from d3rlpy.dataset import MixedReplayBuffer, create_fifo_replay_buffer

    scaler = d3rlpy.preprocessing.StandardObservationScaler()
    agent = small_agent("TD3PlusBC", discrete, observation_scaler=scaler)
    synthetic, real = to_mdp_dataset(rows(discrete=discrete)), to_mdp_dataset(rows(discrete=discrete, episodes=True))
    theirs = create_fifo_replay_buffer(100, episodes=real.episodes)
    mixed = [MixedReplayBuffer(one, synthetic, 0.5) for one in (real, theirs)]
    for data in (synthetic, MixedReplayBuffer(synthetic, real, 0.5), *mixed):
        agent.fit(data, 3, 3, logger_adapter=d3rlpy.logging.NoopAdapterFactory(), show_progress=False)
    assert np.isfinite(agent.predict(np.zeros((1, 3), np.float32))).all()


def test_rows_that_stand_alone_have_no_trajectories_and_no_file():
    dataset = to_mdp_dataset(rows())
    with pytest.raises(DataError, match="single transitions"):
        dataset.sample_trajectory(3)
    file = io.BytesIO()
    with pytest.raises(FormatError, match=r"synther\.write"):
        dataset.dump(file)
    assert file.tell() == 0
    with pytest.raises(DataError, match="have no return"):
        dataset.episodes[0].compute_return()
    terminal, other = (dataset.transition_picker(*dataset.buffer[row]) for row in (0, 1))
    assert np.isnan(other.next_action).all()
    assert np.isnan(other.rewards_to_go.sum())  # Cal-QL bounds its values by what is to come, which is unknown
    assert terminal.rewards_to_go.tolist() == [[0.5]]  # but for a last row


@pytest.mark.parametrize("discrete", [False, True])
def test_evaluators_look_at_all_rows_at_once_and_see_the_same(discrete, monkeypatch):
    import d3rlpy
    from d3rlpy.dataset import ReplayBuffer

    synthetic = to_mdp_dataset(rows(discrete=discrete))
    agent = small_agent("TD3PlusBC", discrete)
    agent.build_with_dataset(synthetic)
    kinds = [d3rlpy.metrics.TDErrorEvaluator, d3rlpy.metrics.AverageValueEstimationEvaluator]
    kinds.append(
        d3rlpy.metrics.DiscreteActionMatchEvaluator if discrete else d3rlpy.metrics.ContinuousActionDiffEvaluator
    )
    one_by_one = d3rlpy.dataset.create_infinite_replay_buffer(episodes=synthetic.episodes[:])
    assert isinstance(one_by_one, ReplayBuffer)
    calls: list[int] = []
    predict = agent.predict
    monkeypatch.setattr(agent, "predict", lambda seen: calls.append(len(seen)) or predict(seen))
    for kind in kinds:
        slow = kind()(agent, one_by_one)
        calls.clear()
        assert kind()(agent, synthetic) == pytest.approx(slow, rel=1e-5)
        assert calls == [40]
        chosen = kind(episodes=to_mdp_dataset(rows(discrete=discrete, episodes=True)).episodes)
        assert np.isfinite(chosen(agent, synthetic))  # which looks at its own episodes


def test_a_scaler_of_returns_is_not_fitted_to_single_rows():
    import d3rlpy
    from d3rlpy.dataset import MixedReplayBuffer

    single, whole = to_mdp_dataset(rows()), to_mdp_dataset(rows(episodes=True))
    for data in (single, MixedReplayBuffer(whole, single, 0.5)):
        scaler = d3rlpy.preprocessing.ReturnBasedRewardScaler()
        with pytest.raises(DataError, match="return_max"):
            scaler.fit_with_transition_picker(data.episodes, data.transition_picker)
    scaler.fit_with_transition_picker(whole.episodes, whole.transition_picker)
    assert scaler.built


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "CartPole-v1"])
def test_agents_learn_online_from_mixed_batches(env_id):
    import d3rlpy
    import gymnasium

    from synther.integrations.d3rlpy import SyntheticReplayBuffer

    np.random.seed(0)  # noqa: NPY002 - d3rlpy draws from it
    discrete = env_id == "CartPole-v1"
    env, agent = gymnasium.make(env_id), small_agent("SAC", discrete)
    buffer = SyntheticReplayBuffer(1000, env=env, device="cpu", **OPTIONS)
    seen: list[np.ndarray] = []
    sample = buffer.sample_transition_batch
    buffer.sample_transition_batch = lambda size: seen.append(sample(size)) or seen[-1]
    agent.fit_online(
        env, buffer, n_steps=80, n_steps_per_epoch=80, random_steps=80, update_start_step=40, show_progress=False,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
    )  # fmt: skip
    assert [refresh.kept for refresh in buffer.synthetic.history] == [True]
    real = {tuple(row) for row in buffer.transitions().observation.astype(np.float32)}
    for batch, least in ((seen[0], 16), (seen[-1], 8)):
        assert batch.observations.shape[0] == 16
        assert sum(tuple(row) in real for row in batch.observations) == least
    made = sample(600)
    assert (made.next_observations[made.terminals[:, 0] == 1] == 0).all()
    found = buffer.transitions()
    assert (found.next_observation[found.terminal] == found.observation[found.terminal]).all()


def test_an_online_buffer_forgets_its_oldest_rows():
    from synther.integrations.d3rlpy import SyntheticReplayBuffer

    given = to_mdp_dataset(rows(episodes=True)).episodes
    buffer = SyntheticReplayBuffer(15, episodes=given, device="cpu", **{**OPTIONS, "refresh_every": 30})
    assert buffer.transitions().reward.tolist() == [number + 0.5 for number in range(25, 40)]
    assert [(refresh.added, refresh.rows) for refresh in buffer.synthetic.history] == [(30, 15)]


def test_refreshes_can_follow_the_newest_episodes(monkeypatch):
    from synther.integrations.d3rlpy import SyntheticReplayBuffer

    seen = drift_at(2, monkeypatch)
    given = to_mdp_dataset(rows(count=60, episodes=True)).episodes  # of five steps each
    how = {**OPTIONS, "refresh_every": 25, "refresh": "auto"}
    buffer = SyntheticReplayBuffer(40, episodes=given, device="cpu", **how)
    assert seen[:2] == [[number + 0.5 for number in range(start, start + 5)] for start in (25, 30)]
    assert [refresh.added for refresh in buffer.synthetic.history] == [25, 35]


def test_what_an_online_buffer_cannot_hold_is_refused_at_once():
    from gymnasium import spaces

    from synther.integrations.d3rlpy import SyntheticReplayBuffer

    class Camera:
        observation_space, action_space = spaces.Box(0, 255, (1, 8, 8), np.uint8), spaces.Discrete(2)

    with pytest.raises(ConfigError, match="FlattenObservation, and encode"):
        SyntheticReplayBuffer(10, env=Camera())
    with pytest.raises(ConfigError, match="samples"):
        SyntheticReplayBuffer(10, sample=5)
    with pytest.raises(ConfigError, match=r"env must be an environment, .* got 'Pendulum-v1'"):
        SyntheticReplayBuffer(10, env="Pendulum-v1")
    with pytest.raises(ConfigError, match="limit must be a whole number and at least 1, got 0"):
        SyntheticReplayBuffer(0)


def test_what_d3rlpy_cannot_hold_is_refused():
    given = rows(discrete=True)
    with pytest.raises(DataError, match="expected Transitions, got str"):
        to_mdp_dataset("rows.npz")
    with pytest.raises(DataError, match="start at 2"):
        to_mdp_dataset(Transitions(**{**given.arrays(), "action": given.action + 2}, action_space=(Discrete(3, 2),)))
    with pytest.raises(DataError, match="without_extra"):
        to_mdp_dataset(Transitions(**given.arrays(), extra={"discount": np.full(len(given), 0.9)}))
    recorded = rows(episodes=True)
    with pytest.raises(DataError, match=r"replace\(rows, timeout=None\)"):
        to_mdp_dataset(recorded[np.random.default_rng(0).permutation(len(recorded))])
    with pytest.raises(DataError, match="2 discrete columns"):
        to_mdp_dataset(Transitions(**{**given.arrays(), "action": np.stack([given.action, given.action], 1)}))


def test_the_old_gym_under_it_keeps_quiet():
    code = "import sys; sys.modules['d3rlpy.constants'] = None\n"  # all of d3rlpy would take ten seconds
    code += "try: import synther.integrations.d3rlpy\nexcept ImportError: import gym"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Gymnasium" not in done.stderr

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gym
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer, RolloutBuffer

from synther.data import gym_spaces, spaces
from synther.data.transitions import Transitions
from synther.errors import ConfigError, DataError, FormatError
from synther.formats import read, sb3, write, writing

BOX = gym.Box(-np.inf, np.inf, (2,), np.float32)
TORQUE = gym.Box(-2, 2, (1,), np.float32)


def filled(steps: int, size: int = 10, envs: int = 1, **how: Any) -> ReplayBuffer:
    """A chain of observations: env e at step t sees 100 e + t; an episode ends every 4 steps, every 8 by a timeout."""
    buffer = ReplayBuffer(size * envs, BOX, TORQUE, device="cpu", n_envs=envs, **how)
    offset = 100 * np.arange(envs)[:, None] * np.ones(2)
    for t in range(steps):
        cut = t % 8 == 7
        done = np.full(envs, t % 4 == 3)
        infos = [{"TimeLimit.truncated": cut}] * envs
        buffer.add(offset + t, offset + t + 1, np.full((envs, 1), t / 100), np.full(envs, t), done, infos)
    return buffer


@pytest.mark.parametrize(("steps", "oldest"), [(1, 0), (7, 0), (10, 0), (11, 1), (27, 17), (30, 20)])
def test_oldest_first(steps: int, oldest: int) -> None:
    rows = read(filled(steps))
    expected = np.arange(oldest, steps)
    assert rows.observation[:, 0].tolist() == expected.tolist()
    assert rows.next_observation[:, 0].tolist() == (expected + 1).tolist()
    assert rows.reward.tolist() == expected.tolist()
    assert rows.terminal.tolist() == (expected % 8 == 3).tolist()
    assert rows.timeout.tolist() == (expected % 8 == 7).tolist()


def test_several_environments_follow_one_another() -> None:
    rows = read(filled(13, envs=3))
    assert rows.observation[:, 0].tolist() == [100 * env + t for env in range(3) for t in range(3, 13)]
    cuts = rows.observation[rows.timeout, 0].tolist()
    assert cuts == [7, 12, 107, 112, 207], "where the rows of two environments meet, the episode is cut"
    buffer = ReplayBuffer(20, BOX, TORQUE, device="cpu", n_envs=2)
    for _ in range(3):  # the next seems to go on
        buffer.add(np.ones((2, 2)), np.ones((2, 2)), np.zeros((2, 1)), np.zeros(2), np.zeros(2), [{}, {}])
    assert np.flatnonzero(read(buffer).timeout).tolist() == [2]


def test_a_reset_in_the_middle_of_an_episode_cuts_it() -> None:
    """As every `learn` begins with one."""
    buffer = filled(2)
    for t in (50, 51):
        at = np.full((1, 2), t)
        buffer.add(at, at + 1, np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])
    rows = read(buffer)
    assert rows.timeout.tolist() == [False, True, False, False]


@pytest.mark.parametrize(
    ("steps", "kept"), [(6, range(6)), (8, range(8)), (10, range(1, 10)), (12, range(3, 12)), (17, range(8, 17))]
)
def test_optimized_memory(steps: int, kept: range) -> None:
    """The row at the write position is invalid once the ring is full; ends of episodes lost their next observation."""
    for envs in (1, 2):
        rows = read(filled(steps, envs=envs, optimize_memory_usage=True, handle_timeout_termination=False))
        assert rows.observation[:, 0].tolist() == [100 * env + t for env in range(envs) for t in kept]
        ended = [t % 4 == 3 and t != steps - 1 for t in kept]
        following = [t if end else t + 1 for t, end in zip(kept, ended, strict=True)]
        assert rows.next_observation[:, 0].tolist() == [100 * env + t for env in range(envs) for t in following]
        assert rows.timeout is None
        assert rows.terminal.tolist() == [t % 4 == 3 for t in kept] * envs


def test_timeouts_that_nobody_handles() -> None:
    rows = read(filled(9, handle_timeout_termination=False))
    assert rows.timeout is None
    assert np.flatnonzero(rows.terminal).tolist() == [3, 7]


def test_actions_are_those_of_the_environment(caplog: pytest.LogCaptureFixture) -> None:
    """Stored are those of [-1, 1]; the box is from -2 to 2."""
    rows = read(filled(5))
    assert rows.action_space == (spaces.Box.uniform(-2, 2, 1),)
    np.testing.assert_allclose(rows.action[:, 0], 2 * np.arange(5) / 100, rtol=1e-6)
    assert "from [-2.0] to [2.0]" in caplog.text
    assert read(filled(5), actions="scaled").equals(rows)
    after = ReplayBuffer(10, BOX, TORQUE, device="cpu")
    write(rows, after)
    np.testing.assert_allclose(after.actions[:5], filled(5).actions[:5], atol=1e-6)
    caplog.clear()
    raw = read(filled(5), actions="raw")
    assert raw.action_space == (spaces.Box.uniform(-2, 2, 1),)
    np.testing.assert_allclose(raw.action[:, 0], np.arange(5) / 100)
    assert not caplog.records


def test_actions_of_a_buffer_filled_by_hand() -> None:
    by_hand = filled(5)
    by_hand.actions[2] = 1.7
    rows = read(by_hand)
    assert rows.action_space == (spaces.Box.uniform(-2, 2, 1),)
    np.testing.assert_array_equal(rows.action, by_hand.actions[:5, 0])
    with pytest.raises(DataError, match="actions='raw'"):
        read(by_hand, actions="scaled")
    by_hand.actions[2] = 5
    assert read(by_hand).action_space is None


def test_actions_of_the_usual_box_stay_bit_by_bit(caplog: pytest.LogCaptureFixture) -> None:
    buffer = ReplayBuffer(10, BOX, gym.Box(-1, 1, (1,), np.float32), device="cpu")
    for value in (1e-20, -1.0, 1.0, 0.3):
        buffer.add(np.zeros((1, 2)), np.ones((1, 2)), np.full((1, 1), value), np.zeros(1), np.ones(1), [{}])
    np.testing.assert_array_equal(read(buffer).action, buffer.actions[:4, 0])
    assert not caplog.records


def test_discrete_spaces() -> None:
    buffer = ReplayBuffer(10, gym.Discrete(4), gym.Discrete(3), device="cpu")
    for t in range(5):
        buffer.add(np.array([t % 4]), np.array([(t + 1) % 4]), np.array([t % 3]), np.array([1.0]), np.array([0]), [{}])
    rows = read(buffer)
    assert rows.observation_space == (spaces.OneHot(4),)
    assert rows.observation.argmax(1).tolist() == [0, 1, 2, 3, 0]
    assert rows.action.tolist() == [0, 1, 2, 0, 1]
    assert rows.action_space == (spaces.Discrete(3),)
    again = ReplayBuffer(10, gym.Discrete(4), gym.Discrete(3), device="cpu")
    write(rows, again)
    assert read(again).equals(rows)


DICT = gym.Dict({"z": gym.Box(-1, 1, (2, 2), np.float32), "a": gym.Box(0, 255, (3,), np.uint8), "d": gym.Discrete(3)})


def test_dict_observations() -> None:
    DICT.seed(0)
    buffer = DictReplayBuffer(8, DICT, TORQUE, device="cpu", n_envs=2)
    seen = [[DICT.sample() for _ in range(2)] for _ in range(7)]
    for now, then in pairwise(seen):
        obs, following = (
            {key: np.stack([sample[key] for sample in step]) for key in DICT.spaces} for step in (now, then)
        )
        buffer.add(obs, following, np.zeros((2, 1)), np.zeros(2), np.zeros(2), [{}, {}])
    rows = read(buffer)  # steps 2 to 5 are left of 6
    expected = [gym.utils.flatten(DICT, seen[t][env]) for env in range(2) for t in range(2, 6)]
    assert np.array_equal(rows.observation, np.stack(expected))
    assert np.array_equal(rows.next_observation[:3], rows.observation[1:4])
    assert rows.observation_space == gym_spaces.observation_space(DICT)
    again = DictReplayBuffer(8, DICT, TORQUE, device="cpu")
    write(rows, again)
    assert read(again).equals(rows)


def rows_to_add(count: int) -> Transitions:
    chain = np.arange(count, dtype=np.float32)[:, None] * np.ones(2, np.float32)
    flags = {"terminal": np.arange(count) % 5 == 1, "timeout": np.arange(count) % 5 == 3}
    return Transitions(chain, chain[:, :1] / 1000, chain[:, 0], chain + 1, **flags)


@pytest.mark.parametrize("before", [0, 4, 10, 13])
@pytest.mark.parametrize("added", [1, 6, 25])
@pytest.mark.parametrize(("envs", "chunk_bytes"), [(1, 400), (3, 400), (3, 1 << 20)])
def test_appending_is_what_add_does(
    before: int, added: int, envs: int, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "CHUNK_BYTES", chunk_bytes)
    ours, theirs = filled(before, envs=envs), filled(before, envs=envs)
    rows = rows_to_add(added * envs)
    write(rows, ours)
    for start in range(0, len(rows), envs):
        step = slice(start, start + envs)
        theirs.add(
            rows.observation[step],
            rows.next_observation[step],
            rows.action[step],
            rows.reward[step],
            rows.terminal[step] | rows.timeout[step],
            [{"TimeLimit.truncated": cut} for cut in rows.timeout[step]],
        )
    assert (ours.pos, ours.full) == (theirs.pos, theirs.full)
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name


def test_actions_are_stored_in_the_buffers_units() -> None:
    own = rows_to_add(4).with_spaces(action=(spaces.Box.uniform(-2, 2, 1),))
    object.__setattr__(own, "action", np.array([[-2.0], [-1.0], [0.0], [2.0]], np.float32))
    buffer = filled(0)
    write(own, buffer)
    assert buffer.actions[:4, 0, 0].tolist() == [-1, -0.5, 0, 1]
    by_hand = filled(1)
    by_hand.actions[0] = 1.5
    write(own, by_hand)
    assert by_hand.actions[1:5, 0, 0].tolist() == [-2, -1, 0, 2]
    unknown = Transitions.of(own.arrays())
    with pytest.raises(DataError, match=r"outside \[-1, 1\]"):
        write(unknown, filled(0))


HERE = np.zeros((5, 2), np.float32)


@pytest.mark.parametrize(
    ("rows", "buffer", "error", "text"),
    [
        (Transitions(np.ones((2, 3)), np.ones(2), np.ones(2), np.ones((2, 3))), filled(0), DataError, "3 observation"),
        (rows_to_add(7), filled(0, envs=3), DataError, "6"),
        (replace(rows_to_add(3), extra={"discount": np.full(3, 0.9)}), filled(0), DataError, "without_extra"),
        (
            rows_to_add(3),
            filled(0, optimize_memory_usage=True, handle_timeout_termination=False),
            FormatError,
            "optimize_memory_usage",
        ),
        (rows_to_add(3), NStepReplayBuffer(10, BOX, TORQUE, device="cpu"), FormatError, "steps"),
        *(
            (Transitions(HERE, action, np.zeros(5), HERE), ReplayBuffer(10, BOX, gym.Discrete(2)), DataError, "0 to 1")
            for action in (np.random.default_rng(0).random((5, 1)), np.array([0, 1, 2, 7, 9]))
        ),
    ],
    ids=["columns", "environments", "extra columns", "memory", "n steps", "real actions", "other actions"],
)
def test_rows_that_do_not_fit_are_refused(rows, buffer, error, text) -> None:
    with pytest.raises(error, match=text):
        write(rows, buffer)
    assert buffer.size() == 0


def test_what_is_no_buffer_with_rows_is_refused() -> None:
    with pytest.raises(DataError, match="no complete row"):
        read(filled(0))
    for given in (RolloutBuffer(4, BOX, TORQUE, device="cpu"), {"observations": np.zeros(3)}):
        with pytest.raises(FormatError, match=type(given).__name__):
            read(given)
    with pytest.raises(FormatError, match="str"):
        sb3.read("buffer")
    for source, actions in (("hopper-sac", "raw"), (filled(2), "other")):
        with pytest.raises(ConfigError, match="actions"):
            read(source, actions=actions)  # type: ignore[arg-type]

"""Frames of episodes, and what is learned from them: against an episode written by hand, and against a plain loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from synther.errors import ConfigError, DataError
from synther.pixels.frames import Frames


def frames(*lengths: int, columns: int = 2, size: int = 4, terminal: bool = False, seed: int = 0) -> Frames:
    """Episodes of so many records; what stands at resets is nonsense, as it may be."""
    rng = np.random.default_rng(seed)
    records = sum(lengths)
    first = np.isin(np.arange(records), np.cumsum([0, *lengths]))
    discount = np.ones(records)
    if terminal:
        discount[np.cumsum(lengths) - 1] = 0
    action = rng.uniform(-1, 1, (records, columns))
    action[first] = 50.0
    return Frames(
        image=rng.integers(0, 256, (records, 3, size, size), np.uint8),
        action=action,
        reward=np.where(first, 1_000.0, rng.normal(size=records)),
        discount=discount,
        first=first,
    )


def by_hand() -> Frames:
    """Five records: action k and reward 10^k led to record k, and the last is terminal."""
    return Frames(
        image=np.arange(5, dtype=np.uint8).repeat(3 * 4).reshape(5, 3, 2, 2),
        action=np.array([[0.0], [0.1], [0.2], [0.3], [0.4]]),
        reward=np.array([0.0, 1.0, 10.0, 100.0, 1000.0]),
        discount=np.array([1.0, 1.0, 1.0, 1.0, 0.0]),
        first=np.array([True, False, False, False, False]),
    )


def test_decisions_by_hand():
    found = by_hand().decisions(1, 0.5)
    assert [part.dtype for part in found] == [np.int64, np.int64, np.float32, np.float32, np.float32, np.bool_]
    assert found.stack.tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3]]
    assert found.next_stack.tolist() == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]
    np.testing.assert_allclose(found.action[:, 0], [0.1, 0.2, 0.3, 0.4], rtol=1e-6)
    assert found.reward.tolist() == [1, 10, 100, 1000]
    assert found.discount.tolist() == [0.5, 0.5, 0.5, 0.0]
    three = by_hand().decisions(3, 0.5)
    assert three.stack.tolist() == [[0, 0, 0], [0, 0, 1]]  # the last start is the one whose third record is the end
    assert three.next_stack.tolist() == [[1, 2, 3], [2, 3, 4]]
    np.testing.assert_allclose(three.action[:, 0], [0.1, 0.2], rtol=1e-6)
    assert three.reward.tolist() == [1 + 5 + 25, 10 + 50 + 250]
    assert three.discount.tolist() == [0.125, 0.0]
    assert three.last.tolist() == [False, True]
    with pytest.raises(ConfigError, match="nstep"):
        by_hand().decisions(0, 0.99)
    with pytest.raises(ConfigError, match="discount"):
        by_hand().decisions(1, 1.1)
    with pytest.raises(DataError, match="5 decisions"):
        by_hand().decisions(5, 0.99)


@pytest.mark.parametrize("nstep", [1, 3])
@pytest.mark.parametrize("terminal", [False, True])
def test_several_episodes_against_a_plain_loop(nstep, terminal):
    data = frames(6, 2, 4, 9, terminal=terminal)
    found = data.decisions(nstep, 0.9)
    row = 0
    for start, end in zip(*data.episodes, strict=True):
        for record in range(start, end - nstep):
            reward, worth = 0.0, 1.0
            for step in range(record + 1, record + nstep + 1):
                reward += worth * data.reward[step]
                worth *= 0.9 * data.discount[step]
            assert found.stack[row].tolist() == [max(start, record - 2), max(start, record - 1), record]
            last = record + nstep
            assert found.next_stack[row].tolist() == [max(start, last - 2), max(start, last - 1), last]
            np.testing.assert_array_equal(found.action[row], data.action[record + 1])
            assert found.reward[row] == pytest.approx(reward, rel=1e-5)
            assert found.discount[row] == pytest.approx(worth, rel=1e-6)
            row += 1
    assert row == len(found.reward)


def test_episodes_and_returns():
    data = frames(6, 2, 4)
    starts, ends = data.episodes
    assert (starts.tolist(), ends.tolist(), len(data)) == ([0, 6, 8], [6, 8, 12], 12)
    expected = [data.reward[start + 1 : end].sum() for start, end in zip(starts, ends, strict=True)]
    np.testing.assert_allclose(data.returns(), expected, rtol=1e-5)
    assert "12 of 3x4x4, 3 episodes, action 2" in repr(data)
    mapped = data.image.view(np.memmap)
    wide = replace(data, image=mapped, low=np.array([-2, -1]), high=np.array([2, 3]))
    assert (wide.low.tolist(), wide.high.tolist(), wide.low.dtype) == ([-2, -1], [2, 3], np.float32)
    assert wide.image is mapped, "frames are not copied"


def test_concatenate():
    one, other = frames(4, 3), frames(5, seed=1)
    both = Frames.concatenate([one, other])
    assert both.episodes[0].tolist() == [0, 4, 7]
    np.testing.assert_array_equal(both.image, np.concatenate([one.image, other.image]))
    np.testing.assert_allclose(both.returns(), [*one.returns(), *other.returns()])
    named = [replace(one, env_id="a", action_repeat=2), replace(other, env_id="b", action_repeat=2)]
    assert (Frames.concatenate(named).env_id, Frames.concatenate(named).action_repeat) == (None, 2)
    for parts in ([], [one, frames(3, size=6)], [one, replace(other, high=np.array([1, 2]))]):
        with pytest.raises(DataError, match="part 1" if parts else "nothing"):
            Frames.concatenate(parts)


def changed(name: str, place: object, value: object) -> Callable[[Frames], Frames]:
    def change(data: Frames) -> Frames:
        array = getattr(data, name).copy()
        array[place] = value
        return replace(data, **{name: array})

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (changed("first", 0, False), "record 0"),
        (changed("first", 5, True), "record 5"),
        (changed("action", (2, 1), np.nan), r"action\[2, 1\] is nan"),
        (changed("action", (2, 1), 1.1), r"action\[2, 1\] is 1\.1"),
        (changed("reward", 3, np.inf), r"reward\[3\] is inf"),
        (lambda data: replace(data, reward=np.full(6, 1e39)), r"reward\[0\] is 1e\+39"),
        (changed("discount", 3, 1.5), r"discount\[3\] is 1\.5"),
        (changed("discount", 3, 0.0), "record 3 is terminal"),
        (lambda data: replace(data, image=data.image / 255), "image has dtype float64"),
        (lambda data: replace(data, image=data.image.tolist()), "image is a list"),
        (lambda data: replace(data, image=data.image[:0]), "image has no records"),
        (lambda data: replace(data, image=data.image[:, 0]), r"image.*\(6, 4, 4\)"),
        (lambda data: replace(data, image=data.image.repeat(3, 1)), r"image.*\(6, 9, 4, 4\)"),
        (lambda data: replace(data, reward=data.reward[1:]), "reward has 5 records"),
        (lambda data: replace(data, action=data.reward), "action is float32"),
        (lambda data: replace(data, action=data.action[:, :0]), "action has no columns"),
        (lambda data: replace(data, reward=np.array(["x"] * 6)), "reward is <U1"),
        (lambda data: replace(data, first=data.first * 2), "first is int64"),
        (lambda data: replace(data, low=np.zeros(3)), "low"),
        (lambda data: replace(data, low=np.ones(2)), "low"),
        (lambda data: replace(data, action_repeat=0), "action_repeat"),
    ],
)
def test_what_is_refused(change, says):
    with pytest.raises(DataError, match=says):
        change(frames(6))

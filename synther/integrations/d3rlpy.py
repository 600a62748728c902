"""d3rlpy: transitions as the `MDPDataset` that its algorithms learn from.

    d3rlpy.algos.TD3PlusBCConfig().create().fit(to_mdp_dataset(synthetic), n_steps=100_000)

d3rlpy stores episodes and takes the next observation of a step from the step after it. Synthetic rows do not follow
each other, so each one becomes an episode of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from synther.data.formats import episodes as recorded
from synther.data.formats.writing import Stream
from synther.data.spaces import Box, Discrete
from synther.data.transitions import Array, Transitions
from synther.errors import DataError, FormatError, MissingExtra

try:
    import gym_notices.notices as old_gym
except ImportError:
    pass
else:
    old_gym.notices.clear()  # d3rlpy imports Gym 0.26, which prints a notice on stderr
try:
    from d3rlpy.constants import ActionSpace
    from d3rlpy.dataset import Episode, InfiniteBuffer, MDPDataset, PartialTrajectory, ReplayBuffer
except ImportError:
    raise MissingExtra("d3rlpy", "d3rlpy", "an MDPDataset") from None


def to_mdp_dataset(rows: Transitions) -> MDPDataset:
    """Convert rows, each with exactly its own next observation.

    Rows with timeouts are recorded experience and become episodes. Rows without timeouts, such as synthetic ones,
    become single transitions. These work with algorithms that learn from transitions, not with those that need
    trajectories, the next action or returns. The observation after a terminal row is zeros, as always in d3rlpy.
    """
    rows.refuse_extra("an MDPDataset of d3rlpy")
    kind, size = _action_kind(rows)
    return _Dataset(_Rows(rows, kind) if rows.timeout is None else _recorded(rows, kind), kind, size)


class _Dataset(MDPDataset):  # type: ignore[misc]  # the library has no types here
    """An `MDPDataset` from a buffer. Its own constructor only accepts one long recording."""

    def __init__(self, buffer: InfiniteBuffer, action_space: ActionSpace, action_size: int) -> None:
        first = buffer.episodes[0]
        ReplayBuffer.__init__(
            self,
            buffer,
            observation_signature=first.observation_signature,
            action_signature=first.action_signature,
            reward_signature=first.reward_signature,
            action_space=action_space,
            action_size=action_size,
        )

    def sample_trajectory(self, length: int) -> PartialTrajectory:
        if isinstance(self._buffer, _Rows):
            raise DataError(
                "these rows do not follow each other, so there are no trajectories: expected an algorithm that learns "
                "from single transitions, or recorded rows with their timeouts"
            )
        return super().sample_trajectory(length)

    def dump(self, f: BinaryIO) -> None:
        if isinstance(self._buffer, _Rows):
            raise FormatError(
                "d3rlpy's file format cannot hold rows that do not form episodes: save them with synther.write(rows, "
                "path), and make the data set again"
            )
        super().dump(f)


class _Alone(Episode):  # type: ignore[misc]
    """One row as an episode.

    A terminal row is an episode of one step. Any other row has a second step that holds its next observation. That
    step's action and reward are unknown and therefore NaN.
    """

    def compute_return(self) -> float:
        raise DataError("these rows do not follow each other, so they have no return: expected recorded episodes")


class _Rows(InfiniteBuffer):  # type: ignore[misc]
    """Single rows, converted to episodes on access, because a million episodes would take gigabytes.

    Appended episodes come after them.
    """

    def __init__(self, rows: Transitions, kind: ActionSpace) -> None:
        super().__init__()
        actions, rewards = _actions(rows.action, kind), _rewards(rows.reward)
        unknown = actions if kind == ActionSpace.DISCRETE else np.full_like(actions, np.nan)  # integers have no NaN
        self._observations = np.stack([rows.observation, rows.next_observation], 1).astype(np.float32, copy=False)
        self._actions = np.stack([actions, unknown], 1)
        self._rewards = np.stack([rewards, np.full_like(rewards, np.nan)], 1)
        self._terminal = rows.terminal

    @property
    def episodes(self) -> Sequence[Episode]:
        return _Episodes(self, self._episodes)

    @property
    def transition_count(self) -> int:
        return len(self)

    def __len__(self) -> int:
        return len(self._terminal) + len(self._transitions)

    def __getitem__(self, index: int) -> tuple[Episode, int]:
        after = index - len(self._terminal)
        return (self.episode(index), 0) if after < 0 else self._transitions[after]

    def episode(self, row: int) -> _Alone:
        terminal = bool(self._terminal[row])
        steps = slice(1 if terminal else 2)
        return _Alone(self._observations[row, steps], self._actions[row, steps], self._rewards[row, steps], terminal)

    @property
    def count(self) -> int:
        """Number of single rows."""
        return len(self._terminal)


class _Episodes(Sequence[Any]):
    """All rows of a buffer, each as an episode, followed by the appended episodes."""

    def __init__(self, rows: _Rows, appended: list[Episode]) -> None:
        self._rows, self._appended = rows, appended

    def __len__(self) -> int:
        return self._rows.count + len(self._appended)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]  # handles negative indices and checks the range
        after = place - self._rows.count
        return self._rows.episode(place) if after < 0 else self._appended[after]


def _recorded(rows: Transitions, kind: ActionSpace) -> InfiniteBuffer:
    buffer = InfiniteBuffer()
    try:
        for one in recorded.episodes(Stream(rows)):
            episode = _episode(one, kind)
            for step in range(episode.transition_count):
                buffer.append(episode, step)
    except DataError as error:
        raise DataError(f"{error}, or pass them without timeouts, as single rows") from None
    return buffer


def _episode(one: recorded.Episode, kind: ActionSpace) -> Episode:
    """Convert an episode. A truncated one gets an extra step that holds its last next observation."""
    observations = np.asarray(one.observation, np.float32)
    actions, rewards = _actions(one.action, kind), _rewards(one.reward)
    if one.terminated:
        return Episode(observations[:-1], actions, rewards, True)
    padded = np.concatenate([actions, actions[-1:]]), np.concatenate([rewards, np.zeros_like(rewards[-1:])])
    return Episode(observations, *padded, False)


def _actions(action: Array, kind: ActionSpace) -> Array:
    columns = action.reshape(len(action), -1)
    return columns if kind == ActionSpace.DISCRETE else columns.astype(np.float32, copy=False)


def _rewards(reward: Array) -> Array:
    return np.asarray(reward, np.float32)[:, None]


def _action_kind(rows: Transitions) -> tuple[ActionSpace, int]:
    parts: tuple[Any, ...] = rows.action_space or ()
    if rows.action.dtype.kind == "f" or any(isinstance(part, Box) for part in parts):
        return ActionSpace.CONTINUOUS, rows.action.reshape(len(rows), -1).shape[1]
    if rows.action.ndim != 1:
        raise DataError(
            f"action has {rows.action.shape[1]} discrete columns: d3rlpy expects one, with values from 0 on"
        )
    lowest, highest = int(rows.action.min()), int(rows.action.max())
    if parts and isinstance(parts[0], Discrete):
        lowest, highest = parts[0].start, parts[0].start + parts[0].size - 1
    if lowest < 0 or (parts and lowest > 0):
        raise DataError(f"actions begin at {lowest}: d3rlpy expects 0 to n - 1; subtract {lowest} from all of them")
    return ActionSpace.DISCRETE, highest + 1

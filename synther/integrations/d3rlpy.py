"""d3rlpy: rows of experience as the `MDPDataset` that its algorithms learn from.

    d3rlpy.algos.TD3PlusBCConfig().create().fit(to_mdp_dataset(synthetic), n_steps=100_000)

d3rlpy keeps episodes and looks for the next observation of a step in the step that follows. Generated rows do not
follow each other, so each is an episode of its own.
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
    old_gym.notices.clear()  # d3rlpy imports Gym 0.26, which would tell our user on stderr to leave it
try:
    from d3rlpy.constants import ActionSpace
    from d3rlpy.dataset import Episode, InfiniteBuffer, MDPDataset, PartialTrajectory, ReplayBuffer
except ImportError:
    raise MissingExtra("d3rlpy", "d3rlpy", "an MDPDataset") from None


def to_mdp_dataset(rows: Transitions) -> MDPDataset:
    """All rows, each with exactly its own next observation.

    Rows whose timeouts are known are recorded ones and become episodes. Other rows stand alone, as generated ones do:
    algorithms that learn from single transitions take them, those that need trajectories, the next action or the return
    to come do not. What follows a terminal row is zeros, as in all episodes of d3rlpy.
    """
    kind, size = _action_kind(rows)
    return _Dataset(_Rows(rows, kind) if rows.timeout is None else _recorded(rows, kind), kind, size)


class _Dataset(MDPDataset):  # type: ignore[misc]  # the library's types are left out here
    """An `MDPDataset` of what is given, which its own constructor would cut out of one long recording."""

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
                "a file of d3rlpy has no place for rows that stand alone: save them with synther.write(rows, path), "
                "and make the data set anew"
            )
        super().dump(f)


class _Alone(Episode):  # type: ignore[misc]
    """One row, in a form that whoever picks transitions out of episodes understands.

    A terminal one is an episode of one step. Of another one a second step has the next observation; that step's action
    and reward are NaN: nobody knows them, and what is computed from them shall not look like a number.
    """

    def compute_return(self) -> float:
        raise DataError("these rows do not follow each other, so they have no return: expected recorded episodes")


class _Rows(InfiniteBuffer):  # type: ignore[misc]
    """Rows that stand alone, made into episodes when they are asked for: a million of them would take gigabytes.

    What is appended comes after them.
    """

    def __init__(self, rows: Transitions, kind: ActionSpace) -> None:
        super().__init__()
        actions, rewards = _actions(rows.action, kind), _rewards(rows.reward)
        unknown = actions if kind == ActionSpace.DISCRETE else np.full_like(actions, np.nan)  # integers know no NaN
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
        """Rows that stand alone."""
        return len(self._terminal)


class _Episodes(Sequence[Any]):
    """All rows of a buffer, each an episode, and then the episodes that were appended."""

    def __init__(self, rows: _Rows, appended: list[Episode]) -> None:
        self._rows, self._appended = rows, appended

    def __len__(self) -> int:
        return self._rows.count + len(self._appended)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]  # which knows negative ones, and where the end is
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
        raise DataError(f"{error}, or here without their timeouts, as rows that stand alone") from None
    return buffer


def _episode(one: recorded.Episode, kind: ActionSpace) -> Episode:
    """One that terminated as it is. One that was cut gets a step more, without which its last row would have no end."""
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

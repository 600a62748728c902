"""d3rlpy: rows of experience as the `MDPDataset` that its algorithms learn from.

    d3rlpy.algos.TD3PlusBCConfig().create().fit(to_mdp_dataset(synthetic), n_steps=100_000)

d3rlpy keeps episodes and looks for the next observation of a step in the step that follows. Generated rows do not
follow each other, so they carry their own.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    from d3rlpy.dataset import (
        BasicTrajectorySlicer,
        BasicTransitionPicker,
        Episode,
        InfiniteBuffer,
        MDPDataset,
        PartialTrajectory,
        ReplayBuffer,
        Transition,
    )
except ImportError:
    raise MissingExtra("d3rlpy", "d3rlpy", "an MDPDataset") from None


def to_mdp_dataset(rows: Transitions) -> MDPDataset:
    """All rows, each with exactly its own next observation.

    Rows whose timeouts are known are recorded ones and become episodes; what follows a terminal one is zeros then, as
    in all episodes of d3rlpy. Other rows stand alone, as generated ones do: algorithms that learn from single
    transitions take them, those that need trajectories, the next action or the return to come do not.
    """
    kind, size = _action_kind(rows)
    if rows.timeout is None:
        return _Dataset([_alone(rows, kind)], kind, size)
    return _Dataset([_episode(one, kind) for one in recorded.episodes(Stream(rows))], kind, size)


class _Dataset(MDPDataset):  # type: ignore[misc]  # the library's types are left out here
    """An `MDPDataset` of given episodes, which its own constructor would cut out of one long recording."""

    def __init__(self, episodes: list[Episode], action_space: ActionSpace, action_size: int) -> None:
        first = episodes[0]
        ReplayBuffer.__init__(
            self,
            InfiniteBuffer(),
            transition_picker=_Picker(),
            trajectory_slicer=_Slicer(),
            episodes=episodes,
            observation_signature=first.observation_signature,
            action_signature=first.action_signature,
            reward_signature=first.reward_signature,
            action_space=action_space,
            action_size=action_size,
        )

    def dump(self, f: BinaryIO) -> None:
        if any(isinstance(episode, _Alone) for episode in self.episodes):
            raise FormatError(
                "a file of d3rlpy has no place for rows that stand alone: save them with synther.write(rows, path), "
                "and make the data set anew"
            )
        super().dump(f)


@dataclass(frozen=True)
class _Alone(Episode):  # type: ignore[misc]
    """Rows of which none follows another, in one object: a million small episodes would take gigabytes."""

    next_observations: Array
    terminals: Array

    @property
    def transition_count(self) -> int:
        return len(self.rewards)

    def compute_return(self) -> float:
        raise DataError("these rows do not follow each other, so they have no return: expected recorded episodes")


class _Picker(BasicTransitionPicker):  # type: ignore[misc]
    """The basic one, which a `MixedReplayBuffer` asks for on both sides, but for rows that stand alone."""

    def __call__(self, episode: Episode, index: int) -> Transition:
        if not isinstance(episode, _Alone):
            return super().__call__(episode, index)
        return Transition(
            observation=episode.observations[index],
            action=episode.actions[index],
            reward=episode.rewards[index],
            next_observation=episode.next_observations[index],
            # Nobody knows it, nor what is to come: what is computed from them shall not look like a number.
            next_action=np.full(episode.actions.shape[1:], np.nan, np.float32),
            terminal=float(episode.terminals[index]),
            interval=1,
            rewards_to_go=np.full((1, 1), np.nan, np.float32),
        )


class _Slicer(BasicTrajectorySlicer):  # type: ignore[misc]
    def __call__(self, episode: Episode, end_index: int, size: int) -> PartialTrajectory:
        if isinstance(episode, _Alone):
            raise DataError(
                "these rows do not follow each other, so there are no trajectories: expected an algorithm that learns "
                "from single transitions, or recorded rows with their timeouts"
            )
        return super().__call__(episode, end_index, size)


def _alone(rows: Transitions, kind: ActionSpace) -> _Alone:
    return _Alone(
        observations=np.asarray(rows.observation, np.float32),
        actions=_actions(rows.action, kind),
        rewards=_rewards(rows.reward),
        terminated=False,
        next_observations=np.asarray(rows.next_observation, np.float32),
        terminals=rows.terminal,
    )


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

"""d3rlpy: convert rows to an `MDPDataset` for its offline algorithms, and a replay buffer for online training.

    d3rlpy.algos.TD3PlusBCConfig().create().fit(to_mdp_dataset(synthetic), n_steps=100_000)
    d3rlpy.algos.SACConfig().create().fit_online(env, SyntheticReplayBuffer(1_000_000, env=env))

d3rlpy stores episodes, and reads the next observation of a step from the next step. Synthetic rows do not follow each
other, so each of them becomes an episode of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, BinaryIO

import numpy as np

from synther.data import gym_spaces
from synther.data.checks import check_kind
from synther.data.spaces import Box, Discrete
from synther.data.transitions import ROW_FIELDS, Array, Transitions
from synther.errors import ConfigError, DataError, FormatError, MissingExtra
from synther.formats import episodes as recorded
from synther.formats.writing import Stream
from synther.replay.adapting import Stored
from synther.replay.rows import SyntheticRows, check_options, whole

try:
    import gym_notices.notices as old_gym
except ImportError:
    pass
else:
    old_gym.notices.clear()  # d3rlpy imports Gym 0.26, which would print a notice on stderr
try:
    from d3rlpy.constants import ActionSpace  # isort: skip - first, so that a test without d3rlpy fails fast
    from d3rlpy import metrics
    from d3rlpy.dataset import (
        BasicTransitionPicker,
        Episode,
        FIFOBuffer,
        InfiniteBuffer,
        MDPDataset,
        PartialTrajectory,
        ReplayBuffer,
        Transition,
        TransitionMiniBatch,
    )
    from d3rlpy.preprocessing import ReturnBasedRewardScaler
except ImportError:
    raise MissingExtra("d3rlpy", "d3rlpy", "an MDPDataset") from None


def to_mdp_dataset(rows: Transitions) -> MDPDataset:
    """Convert rows to a data set in which each transition has its own next observation.

    Rows with timeouts are recorded experience and become episodes. Rows without timeouts, such as synthetic rows,
    become single transitions. These work with algorithms that learn from transitions, but not with algorithms that need
    trajectories, the next action or returns. The observation after a terminal row is zeros, as always in d3rlpy.
    """
    check_kind(rows)
    rows.refuse_extra("an MDPDataset of d3rlpy")
    kind, size = _action_kind(rows)
    return _Dataset(_Rows(rows, kind) if rows.timeout is None else _recorded(rows, kind), kind, size)


class SyntheticReplayBuffer(ReplayBuffer):  # type: ignore[misc]  # the library has no types here
    """A FIFO buffer for `fit_online` with partly synthetic batches after the first refresh.

    It accepts `limit`, `env` and `episodes`, as in `d3rlpy.dataset.create_fifo_replay_buffer`, and the options of
    `SyntheticReplay`. A refresh runs in `append` when it is due. `synthetic` holds the generator and its rows. d3rlpy
    does not store the observation after a terminal step. The generator sees the observation before it instead, and
    batches have zeros there, as always in d3rlpy.
    """

    synthetic: SyntheticRows

    def __init__(self, limit: int, *, env: Any = None, episodes: Sequence[Any] | None = None, **options: Any) -> None:
        check_options(options, "limit", "env", "episodes")
        self._spaces: dict[str, Any] = {}
        if env is not None:
            if not hasattr(env, "observation_space"):
                raise ConfigError(f"env must be an environment, such as gymnasium.make('Pendulum-v1'), got {env!r}")
            if len(getattr(env.observation_space, "shape", None) or ()) != 1:
                raise ConfigError(
                    f"the observation space is {env.observation_space}: expected vectors; flatten a Dict with "
                    "gymnasium.wrappers.FlattenObservation, and encode images first"
                )
            self._spaces = {
                "action_space": gym_spaces.action_space(env.action_space),
                "observation_space": gym_spaces.observation_space(env.observation_space),
            }
        self.synthetic = SyntheticRows(**options)
        super().__init__(_Counting(whole("limit", limit)), env=env, episodes=episodes)

    def append(self, observation: Any, action: Any, reward: Any) -> None:
        """Add a step, and refresh the generator if that is due."""
        super().append(observation, action, reward)
        self._refresh_if_due()

    def append_episode(self, episode: Any) -> None:
        """Add an episode, and refresh the generator if that is due."""
        super().append_episode(episode)
        self._refresh_if_due()

    def _refresh_if_due(self) -> None:
        self.synthetic.collect()
        if self.synthetic.due(self.buffer.added, self._stored):
            self.refresh()

    def transitions(self) -> Transitions:
        """Return the real rows, oldest first."""
        if not self.transition_count:
            raise DataError("the replay buffer is empty: add rows first")
        picked = [self.transition_picker(*self.buffer[row]) for row in range(self.transition_count)]
        fields: dict[str, Any] = {name: np.stack([getattr(one, name) for one in picked]) for name in ROW_FIELDS}
        ended = fields["terminal"] > 0
        fields["next_observation"][ended] = fields["observation"][ended]
        fields["reward"] = fields["reward"][:, 0]
        space = self._spaces.get("action_space")
        known = {**self._spaces, "action_space": space and gym_spaces.believed(space, fields["action"])}
        return Transitions(**fields, **known)

    def refresh(self) -> None:
        """Fit the generator on the real rows and generate synthetic rows, now or in the background."""
        stored = self._stored()
        self.synthetic.refresh_on(stored.rows, self.buffer.added, gone=stored.gone)

    def _stored(self) -> Stored:
        rows = self.transitions()
        return Stored(rows, self.buffer.added - len(rows))

    def sample_transition_batch(self, batch_size: int) -> TransitionMiniBatch:
        """Draw a batch of real and synthetic transitions."""
        real, synthetic = self.synthetic.split(batch_size)
        drawn = [self.sample_transition() for _ in range(real)]
        return TransitionMiniBatch.from_transitions(drawn + self._generated(synthetic))

    def _generated(self, count: int) -> list[Transition]:
        """Draw synthetic rows as transitions of d3rlpy."""
        if not count:
            return []
        columns = self.synthetic.columns
        assert columns is not None
        rows = columns.transitions(self.synthetic.draw(count).cpu().numpy())
        kind = self.dataset_info.action_space
        single = _Single(rows, kind)
        return [single.transition(row) for row in range(count)]


class _Counting(FIFOBuffer):  # type: ignore[misc]
    """A FIFO buffer that counts all steps that were ever added."""

    added = 0

    def append(self, episode: Any, index: int) -> None:
        super().append(episode, index)
        self.added += 1


class _Dataset(MDPDataset):  # type: ignore[misc]  # the library has no types here
    """An `MDPDataset` that is built from a buffer. The constructor of `MDPDataset` only accepts one long recording."""

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

    def sample_transition(self) -> Transition:
        if not isinstance(self._buffer, _Rows):
            return super().sample_transition()
        index = np.random.randint(self.transition_count)  # noqa: NPY002 - the stream of all buffers of d3rlpy
        single = self._buffer.single
        return single.transition(index) if index < len(single) else self.transition_picker(*self._buffer[index])

    def sample_trajectory(self, length: int) -> PartialTrajectory:
        if isinstance(self._buffer, _Rows):
            raise DataError(
                "these rows do not follow each other, so there are no trajectories: use an algorithm that learns from "
                "single transitions, or recorded rows with timeouts"
            )
        return super().sample_trajectory(length)

    def dump(self, f: BinaryIO) -> None:
        if isinstance(self._buffer, _Rows):
            raise FormatError(
                "d3rlpy's file format cannot store rows that do not form episodes: save them with synther.write(rows, "
                "path), and create the data set again from this file"
            )
        super().dump(f)


class _Single:
    """Single rows with the array types of d3rlpy. Each row can be returned as an episode or as a transition."""

    def __init__(self, rows: Transitions, kind: ActionSpace) -> None:
        self.observations = np.asarray(rows.observation, np.float32)
        self.following = np.asarray(rows.next_observation, np.float32)
        self.actions, self.rewards = _actions(rows.action, kind), _rewards(rows.reward)
        self.terminal = rows.terminal
        discrete = kind == ActionSpace.DISCRETE
        self.unknown = self.actions[0] if discrete else np.full_like(self.actions[0], np.nan)  # integers have no NaN

    def __len__(self) -> int:
        return len(self.terminal)

    @property
    def transition_count(self) -> int:
        return len(self)

    def episode(self, row: int) -> _Alone:
        """Return a row as an episode."""
        here, action, reward = self.observations[row], self.actions[row], self.rewards[row]
        if self.terminal[row]:
            return _Alone(here[None], action[None], reward[None], True)
        later = np.full_like(reward, np.nan)
        steps = np.stack([here, self.following[row]]), np.stack([action, self.unknown]), np.stack([reward, later])
        return _Alone(*steps, False)

    def transition(self, row: int) -> Transition:
        """Return the same transition as `BasicTransitionPicker` for `episode(row)`, but without building the
        episode."""
        over, here, reward = bool(self.terminal[row]), self.observations[row], self.rewards[row]
        return Transition(
            observation=here,
            action=self.actions[row],
            reward=reward,
            next_observation=np.zeros_like(here) if over else self.following[row],
            next_action=np.zeros_like(self.unknown) if over else self.unknown,
            terminal=float(over),
            interval=1,
            rewards_to_go=reward[None] if over else np.stack([reward, np.full_like(reward, np.nan)]),
        )


class _Alone(Episode):  # type: ignore[misc]
    """One row as an episode.

    A terminal row is an episode of one step. Every other row gets a second step with its next observation. The action
    and reward of this step are unknown and therefore NaN.
    """

    def compute_return(self) -> float:
        raise DataError("these rows do not follow each other, so they have no return: use recorded episodes")


class _Rows(InfiniteBuffer):  # type: ignore[misc]
    """A buffer of single rows. Each row is converted to an episode on access, because a million episodes would take
    gigabytes.

    Appended episodes come after the rows.
    """

    def __init__(self, rows: Transitions, kind: ActionSpace) -> None:
        super().__init__()
        self.single = _Single(rows, kind)

    @property
    def episodes(self) -> Sequence[Episode]:
        return _Episodes(self.single, self._episodes)

    @property
    def transition_count(self) -> int:
        return len(self)

    def __len__(self) -> int:
        return len(self.single) + len(self._transitions)

    def __getitem__(self, index: int) -> tuple[Episode, int]:
        after = index - len(self.single)
        return (self.single.episode(index), 0) if after < 0 else self._transitions[after]


class _Episodes(Sequence[Any]):
    """All rows of a buffer, each as an episode, followed by the appended episodes."""

    def __init__(self, rows: _Single, appended: list[Episode]) -> None:
        self.rows, self.appended = rows, appended

    def __len__(self) -> int:
        return len(self.rows) + len(self.appended)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]  # handles negative indices and checks the range
        after = place - len(self.rows)
        return self.rows.episode(place) if after < 0 else self.appended[after]


class _Together:
    """A data set in which all single rows are one episode.

    It is for evaluators that look at each transition alone. With it they pass many rows at once to the networks, as
    they do for recorded episodes.
    """

    def __init__(self, episodes: _Episodes) -> None:
        self.episodes = [episodes.rows, *episodes.appended]
        self.transition_picker = _Picker()


class _Picker(BasicTransitionPicker):  # type: ignore[misc]
    """A transition picker that also accepts `_Single` in place of an episode."""

    def __call__(self, episode: Any, index: int) -> Transition:
        return episode.transition(index) if isinstance(episode, _Single) else super().__call__(episode, index)


def _all_at_once(evaluate: Callable[..., float]) -> Callable[..., float]:
    """Wrap an evaluator so that it evaluates all single rows at once instead of one by one."""

    @wraps(evaluate)
    def quickly(self: Any, algo: Any, dataset: Any) -> float:
        episodes = dataset.episodes
        return evaluate(self, algo, _Together(episodes) if isinstance(episodes, _Episodes) else dataset)

    return quickly


def _of_episodes(fit: Callable[..., None]) -> Callable[..., None]:
    """Wrap the fit of a reward scaler so that single rows, which have no returns, are an error."""

    @wraps(fit)
    def checked(self: Any, episodes: Sequence[Any], *how: Any, **named: Any) -> None:
        if isinstance(episodes, _Episodes) or any(isinstance(episode, _Alone) for episode in episodes):
            raise DataError(
                "ReturnBasedRewardScaler needs returns, but single rows have none: pass the returns of the recorded "
                "episodes, as in ReturnBasedRewardScaler(return_max=..., return_min=...)"
            )
        fit(self, episodes, *how, **named)

    return checked


# These methods of d3rlpy are replaced, because d3rlpy has no other way to treat single rows differently from episodes.
for _evaluator in (
    metrics.TDErrorEvaluator,
    metrics.AverageValueEstimationEvaluator,
    metrics.ContinuousActionDiffEvaluator,
    metrics.DiscreteActionMatchEvaluator,
    metrics.CompareContinuousActionDiffEvaluator,
    metrics.CompareDiscreteActionMatchEvaluator,
):
    _evaluator.__call__ = _all_at_once(_evaluator.__call__)
ReturnBasedRewardScaler.fit_with_transition_picker = _of_episodes(ReturnBasedRewardScaler.fit_with_transition_picker)


def _recorded(rows: Transitions, kind: ActionSpace) -> InfiniteBuffer:
    """Convert rows with timeouts to a buffer of episodes."""
    buffer = InfiniteBuffer()
    try:
        for one in recorded.episodes(Stream(rows)):
            episode = _episode(one, kind)
            for step in range(episode.transition_count):
                buffer.append(episode, step)
    except DataError:
        raise DataError(
            "rows with timeouts must be whole episodes, one after the other, but these are not: pass the rows as they "
            "were recorded, or dataclasses.replace(rows, timeout=None) as single rows"
        ) from None
    return buffer


def _episode(one: recorded.Episode, kind: ActionSpace) -> Episode:
    """Convert an episode. A truncated episode gets an extra step with its last next observation."""
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
    """Return the kind of the action space, and its size: number of columns, or number of discrete actions."""
    parts: tuple[Any, ...] = rows.action_space or ()
    if rows.action.dtype.kind == "f" or any(isinstance(part, Box) for part in parts):
        return ActionSpace.CONTINUOUS, rows.action.reshape(len(rows), -1).shape[1]
    if rows.action.ndim != 1:
        raise DataError(
            f"action has {rows.action.shape[1]} discrete columns: d3rlpy expects one column, with values from 0 on"
        )
    lowest, highest = int(rows.action.min()), int(rows.action.max())
    if parts and isinstance(parts[0], Discrete):
        lowest, highest = parts[0].start, parts[0].start + parts[0].size - 1
    if lowest < 0 or (parts and lowest > 0):
        raise DataError(f"actions start at {lowest}: d3rlpy expects 0 to n - 1; subtract {lowest} from all actions")
    return ActionSpace.DISCRETE, highest + 1

"""Stable-Baselines3: a replay buffer class for SAC, TD3, DDPG, DQN and every other off-policy algorithm.

SAC("MlpPolicy", env, replay_buffer_class=SyntheticReplayBuffer, replay_buffer_kwargs={"samples": 50_000})
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther.data import gym_spaces
from synther.data.episodes import n_step_rows
from synther.data.spaces import Box
from synther.data.transitions import Array, Transitions
from synther.errors import ConfigError, DataError, MissingExtra
from synther.formats.sb3 import places, stored
from synther.integrations.adapter import not_in_files, packed, unpacked
from synther.replay.adapting import Stored
from synther.replay.rows import SyntheticRows, check_options

try:
    from gymnasium import spaces
    from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
    from stable_baselines3.common.preprocessing import is_image_space
    from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
except ImportError:
    raise MissingExtra("stable-baselines3", "sb3", "a replay buffer for Stable-Baselines3") from None

_THEIRS = ("optimize_memory_usage", "handle_timeout_termination", "n_steps", "gamma")
"""Options of the buffers of Stable-Baselines3 that a user can give."""
_HER = ("n_sampled_goal", "goal_selection_strategy", "copy_info_dict", "env")
"""Options of `HerReplayBuffer`."""
_ROUNDING = 1e-3
"""An action may exceed its bounds by this much, because of rounding when it was rescaled."""


class SyntheticReplayBuffer(ReplayBuffer):  # type: ignore[misc]  # the library has no types here
    """A `ReplayBuffer` of Stable-Baselines3 with partly synthetic batches after the first refresh.

    Real rows are stored and drawn by Stable-Baselines3 itself. Until the first refresh, batches are exactly the same as
    from its own buffer. For Dict observations, the buffer is also a `DictReplayBuffer`. With `n_steps` (and `gamma`) it
    is also an `NStepReplayBuffer`, and its synthetic rows are n-step rows too. `synthetic` holds the generator and its
    rows. By default, `seed` depends on the seed of the algorithm. The other options are those of `SyntheticReplay`.
    """

    synthetic: SyntheticRows

    def __new__(cls, buffer_size: int = 0, observation_space: Any = None, *given: Any, **options: Any) -> Self:
        if cls is SyntheticReplayBuffer:
            if isinstance(observation_space, spaces.Dict):
                return super().__new__(_OfDicts)  # type: ignore[no-any-return]
            if options.get("n_steps", 1) > 1:
                return super().__new__(_OfSeveralSteps)  # type: ignore[no-any-return]
        return super().__new__(cls)  # type: ignore[no-any-return]

    def __init__(
        self,
        buffer_size: int,
        observation_space: Any,
        action_space: Any,
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        n_steps: int = 1,
        gamma: float = 0.99,
        **options: Any,
    ) -> None:
        _check_options(options)
        how: dict[str, Any] = {"optimize_memory_usage": optimize_memory_usage}
        if isinstance(self, NStepReplayBuffer):
            how |= {"n_steps": n_steps, "gamma": gamma}
        elif n_steps > 1:
            raise ConfigError(
                f"n_steps={n_steps} is not possible with Dict observations, because Stable-Baselines3 has no n-step "
                "returns for them: use n_steps=1"
            )
        how["handle_timeout_termination"] = handle_timeout_termination
        if options.get("ratio", 0.5) != 0:
            _check_can_be_modelled(observation_space, action_space)
        super().__init__(buffer_size, observation_space, action_space, device, n_envs=n_envs, **how)
        if "seed" not in options:
            options["seed"] = _seed_of_algorithm()
        self._options = {**options, "device": str(self.device)}
        self.reset()

    def reset(self) -> None:
        """Delete all rows and the generator."""
        super().reset()
        self.synthetic = SyntheticRows(**self._options)
        self._added = 0  # number of real rows that were added so far
        self._ended = np.zeros(self.n_envs, bool)  # environments that will reset themselves in the next step

    def transitions(self) -> Transitions:
        """Return the real rows, grouped by environment, oldest first, with actions as they are stored.

        Algorithms of Stable-Baselines3 store Box actions rescaled to [-1, 1]. `synther.read(buffer)` returns the same
        rows with actions in the units of the environment.
        """
        return stored(self)

    def refresh(self) -> None:
        """Fit the generator on the real rows and generate synthetic rows, now or in the background."""
        stored = self._stored()
        self.synthetic.refresh_on(stored.rows, self._added, places=stored.places)

    def _stored(self) -> Stored:
        """Return the rows on which the generator is fitted, and where they are in the buffer."""
        several = isinstance(self, NStepReplayBuffer)
        rows = _in_space(stored(self, cuts=several), self.action_space)
        if several:
            rows = n_step_rows(rows, self.n_steps, self.gamma)
        return Stored(rows, places=places(self), groups=self.n_envs)

    def add(self, obs: Any, next_obs: Any, action: Array, reward: Array, done: Array, infos: Any) -> None:
        """Add one step of every environment. A refresh runs in this call when it is due.

        `infos` is a list with one dict for each environment, or the dict of a Gymnasium vector environment. If such an
        environment resets itself in this step (autoreset mode NEXT_STEP), its row is not real experience. It is
        replaced by a copy of another environment's row. If all environments reset themselves, the step is left out.
        """
        reset = None
        if isinstance(infos, Mapping):
            reset = self._resets(obs, reward, done)
            self._ended = _ended(infos, done)
            infos = self._without_time_limits()
        elif len(infos) != self.n_envs:
            raise DataError(
                f"got a step of {len(infos)} environments, but this buffer was created for {self.n_envs}: use the same "
                "number of environments, or start with a new buffer"
            )
        if reset is None or not reset.all():
            super().add(*(_replaced(values, reset) for values in (obs, next_obs, action, reward, done)), infos)
            self._added += self.n_envs
        self.synthetic.collect()
        if self.synthetic.due(self._added, self._stored):
            self.refresh()

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Draw a batch of real and synthetic rows, normalized by `env` if that is a `VecNormalize`."""
        real, synthetic = self.synthetic.split(batch_size)
        parts = [super().sample(real, env)] if real or not synthetic else []
        if synthetic:
            parts.append(self._generated(synthetic, env))
        if len(parts) == 1:
            return parts[0]
        order = self.synthetic.order(batch_size)
        return type(parts[0])(*(_joined(fields, order) for fields in zip(*parts, strict=True)))

    def _generated(self, count: int, env: Any) -> Any:
        """Draw a batch of synthetic rows."""
        rows, columns = self.synthetic.draw(count), self.synthetic.columns
        assert columns is not None
        flags = torch.ones(count, dtype=torch.bool, device=rows.device)
        batch = columns.batch(rows, flags)
        fields: dict[str, Any] = {
            "observations": self._observations(batch.observation, env),
            "actions": self.to_torch(batch.action.reshape(count, -1).cpu().numpy().astype(self.actions.dtype)),
            "next_observations": self._observations(batch.next_observation, env),
            "dones": batch.terminal[:, None].to(self.device),
            "rewards": self.to_torch(self._normalize_reward(batch.reward[:, None].cpu().numpy(), env)),
        }
        if isinstance(self, NStepReplayBuffer):
            fields["discounts"] = rows[:, columns.places["extra/discount"]].to(self.device)
        kind = DictReplayBufferSamples if isinstance(self.observation_space, spaces.Dict) else ReplayBufferSamples
        return kind(**fields)

    def _observations(self, flat: Tensor, env: Any) -> Tensor | dict[str, Tensor]:
        """Convert columns (B, O) to observations with the shape and dtype of the environment."""
        space = self.observation_space
        if env is None and isinstance(space, spaces.Box) and space.dtype == np.float32:
            return flat.reshape(-1, *self.obs_shape).to(self.device)
        values = self._normalize_obs(gym_spaces.unflatten(space, flat.cpu().numpy()), env)
        if isinstance(values, dict):
            return {key: self._tensor(value, self.obs_shape[key]) for key, value in values.items()}
        return self._tensor(values, self.obs_shape)

    def _tensor(self, values: Array, shape: tuple[int, ...]) -> Tensor:
        return torch.as_tensor(values.reshape(-1, *shape), device=self.device)

    def _without_time_limits(self) -> list[dict[str, Any]]:
        """Return an empty info for each environment. Raise an error if the buffer needs to know time limits."""
        if self.handle_timeout_termination:
            raise DataError(
                "infos is the dict of a vector environment, which does not tell time limits from terminations: "
                "pass handle_timeout_termination=False, and only terminations (without truncations) as done"
            )
        return [{}] * self.n_envs

    def _resets(self, obs: Any, reward: Array, done: Array) -> NDArray[np.bool_] | None:
        """Return for each environment whether its row is a reset: from the last state of an episode to the first state
        of the next one. Return None if no row is a reset."""
        if not self._ended.any():
            return None
        before, last = (
            (self.observations, self.pos) if self.optimize_memory_usage else (self.next_observations, self.pos - 1)
        )
        keys = before if isinstance(before, dict) else [None]
        reset = self._ended & (np.asarray(reward) == 0) & ~np.asarray(done).astype(bool)
        for key in keys:
            then, now = (before[last], obs) if key is None else (before[key][last], obs[key])
            reset &= (then.reshape(self.n_envs, -1) == np.asarray(now).reshape(self.n_envs, -1)).all(1)
        return reset if reset.any() else None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "synthetic": packed(self.synthetic)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        synthetic = unpacked(state["synthetic"], state["device"], **not_in_files(state["_options"]))
        options = {**state["_options"], "device": str(synthetic.device)}
        self.__dict__.update(state, synthetic=synthetic, _options=options)


class _OfDicts(SyntheticReplayBuffer, DictReplayBuffer):  # type: ignore[misc]
    """The buffer for Dict observations."""


class _OfSeveralSteps(SyntheticReplayBuffer, NStepReplayBuffer):  # type: ignore[misc]
    """The buffer for n-step returns."""


def _check_options(options: Mapping[str, Any]) -> None:
    """Raise an error for unknown options, and for options of `HerReplayBuffer`."""
    if any(name in _HER for name in options):
        raise ConfigError(
            "hindsight goals are not supported: HerReplayBuffer changes the goals of whole episodes, but synthetic "
            f"rows do not form episodes; remove {', '.join(name for name in options if name in _HER)}"
        )
    check_options(options, *_THEIRS)


def _check_can_be_modelled(observation_space: Any, action_space: Any) -> None:
    """Raise an error if a generator cannot model the spaces."""
    parts = observation_space.spaces.values() if isinstance(observation_space, spaces.Dict) else [observation_space]
    for part in parts:
        if is_image_space(part) or (isinstance(part, spaces.Box) and len(part.shape) > 2):
            raise ConfigError(
                f"observations are images of shape {part.shape}: expected vectors, because the diffusion model cannot "
                "generate images; encode the images first, or pass ratio=0 for a buffer without synthetic rows"
            )
    gym_spaces.observation_space(observation_space)
    gym_spaces.action_space(action_space)


def _seed_of_algorithm() -> int:
    """Return a seed that depends on NumPy's global random state, which the algorithm has seeded.

    The global state itself is not changed.
    """
    stream = np.random.RandomState()
    stream.set_state(np.random.get_state())  # noqa: NPY002
    return int(stream.randint(2**31))


def _in_space(rows: Transitions, space: Any) -> Transitions:
    """Return the rows with the space of their actions, and clip actions that exceed it by rounding.

    The space is [-1, 1], as algorithms of Stable-Baselines3 rescale actions, or the space of the environment. If all
    actions lie in both spaces, the intersection of the spaces is used.
    """
    own = gym_spaces.action_space(space)
    if not isinstance(own[0], Box):
        return replace(rows, action_space=gym_spaces.believed(own, rows.action))
    bounds = [np.array([box.low, box.high]) for box in (own[0], Box.uniform(-1, 1, own[0].width))]
    fitting = np.array([pair for pair in bounds if _within(rows.action, *pair)])
    if not len(fitting):
        return replace(rows, action_space=gym_spaces.believed(own, rows.action))
    low, high = fitting[:, 0].max(0), fitting[:, 1].min(0)
    clipped = np.clip(rows.action, low, high).astype(rows.action.dtype)  # only removes rounding errors
    return replace(rows, action=clipped, action_space=(Box(tuple(low), tuple(high)),))


def _within(action: Array, low: Array, high: Array) -> bool:
    """Return whether all actions lie within bounds, apart from rounding."""
    beyond = np.maximum(low - action, action - high).max(initial=0)
    return bool(beyond <= _ROUNDING)


def _ended(infos: Mapping[str, Any], done: Array) -> NDArray[np.bool_]:
    """Return which environments of a vector environment will reset themselves in the next step."""
    if any(name in infos for name in ("final_obs", "final_observation", "final_info")):  # already reset in this step
        return np.zeros(len(done), bool)
    ended: NDArray[np.bool_] = np.asarray(done).astype(bool).reshape(-1) | infos.get("_episode", False)
    return ended


def _replaced(values: Any, reset: NDArray[np.bool_] | None) -> Any:
    """Return values (n_envs, ...) in which rows with `reset` are replaced by copies of rows of other environments."""
    if isinstance(values, dict):
        return {key: _replaced(value, reset) for key, value in values.items()}
    values = np.asarray(values)
    if reset is None:
        return values
    others = np.flatnonzero(~reset)
    index = np.arange(len(reset))
    index[reset] = others[np.arange(np.count_nonzero(reset)) % len(others)]
    return values[index]


def _joined(fields: tuple[Any, ...], order: Tensor | None) -> Any:
    """Join a field of two batches, and put the rows into `order` if that is given."""
    first = fields[0]
    if first is None:
        return None
    if isinstance(first, dict):
        return {key: _joined(tuple(field[key] for field in fields), order) for key in first}
    both = torch.cat(fields)
    return both if order is None else both[order.to(both.device)]

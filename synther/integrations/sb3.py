"""Stable-Baselines3: a replay buffer class for SAC, TD3, DDPG, DQN and every other off-policy algorithm.

SAC("MlpPolicy", env, replay_buffer_class=SyntheticReplayBuffer, replay_buffer_kwargs={"samples": 50_000})
"""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from synther.data.formats import gym_spaces
from synther.data.spaces import Box, Space
from synther.data.transitions import Array, Transitions
from synther.errors import ConfigError, DataError, MissingExtra
from synther.integrations.adapter import ReplayOptions, packed, unpacked
from synther.progress import Progress
from synther.replay.synthetic import SyntheticReplay

try:
    from gymnasium import spaces
    from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer
    from stable_baselines3.common.preprocessing import is_image_space
    from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
except ImportError:
    raise MissingExtra("stable-baselines3", "sb3", "a replay buffer for Stable-Baselines3") from None

_ROUNDING = 1e-3
"""How far an action may leave [-1, 1] because of rounding when it was rescaled."""


class SyntheticReplayBuffer(ReplayBuffer):  # type: ignore[misc]  # the library has no types here
    """A `ReplayBuffer` whose batches are partly synthetic. `replay` is its `SyntheticReplay`.

    Rows are stored as Stable-Baselines3 does: Box actions rescaled to [-1, 1], observations and rewards unnormalized;
    `VecNormalize` is applied when a batch is drawn. By default the `seed` depends on the seed of the algorithm. The
    other options are those of `SyntheticReplay`.
    """

    replay: SyntheticReplay

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
        seed: int | None = None,
        **options: Unpack[ReplayOptions],
    ) -> None:
        if optimize_memory_usage:
            raise ConfigError(
                "optimize_memory_usage=True takes the next observation from the next row, but synthetic rows do not "
                "follow each other: expected optimize_memory_usage=False"
            )
        if "n_steps" in options:  # as the documentation of Stable-Baselines3 suggests
            raise ConfigError(
                "n-step returns need rows that follow each other, which synthetic rows do not: remove n_steps and "
                "gamma from replay_buffer_kwargs"
            )
        _check_no_images(observation_space)
        known = {
            "observation_space": gym_spaces.observation_space(observation_space),
            "action_space": _stored_actions(action_space),
        }
        # Not ReplayBuffer's own: it allocates memory for rows, which `replay` stores.
        BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs=n_envs)
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.optimize_memory_usage = False
        self.handle_timeout_termination = handle_timeout_termination
        if seed is None:
            seed = int(np.random.randint(2**31))  # noqa: NPY002 - the algorithm has seeded this global stream
        self._options: dict[str, Any] = {"seed": seed, **known, **options}
        self.reset()

    def reset(self) -> None:
        """Delete all rows and the generator."""
        super().reset()
        self.replay = SyntheticReplay(self.buffer_size * self.n_envs, device=str(self.device), **self._options)

    def size(self) -> int:
        """Stored steps per environment."""
        steps: int = len(self.replay) // self.n_envs
        return steps

    def transitions(self) -> Transitions:
        """The real rows, grouped by environment, oldest first.

        Box actions lie in [-1, 1], as Stable-Baselines3 stores them and as the generator learns them;
        `synther.read(buffer)` gives the same rows with actions in the units of the environment.
        """
        return self.replay.store.transitions(self.n_envs)

    def add(self, obs: Any, next_obs: Any, action: Array, reward: Array, done: Array, infos: list[Any]) -> None:
        """Add one step of every environment. A refresh that is due runs in this call."""
        if len(infos) != self.n_envs:
            raise DataError(
                f"got a step of {len(infos)} environments: this buffer was made for {self.n_envs}; use as many "
                "environments, or start with a new buffer"
            )
        timeout = None
        if self.handle_timeout_termination:
            timeout = np.array([info.get("TimeLimit.truncated", False) for info in infos], bool)
        self.replay.add(
            self._flat(obs),
            _unrounded(np.asarray(action, self.action_space.dtype).reshape(self.n_envs, self.action_dim)),
            np.asarray(reward).reshape(self.n_envs),
            self._flat(next_obs),
            done if timeout is None else np.asarray(done, bool) & ~timeout,
            timeout,
        )
        steps = self.replay.added // self.n_envs
        self.pos, self.full = steps % self.buffer_size, steps >= self.buffer_size

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Draw `batch_size` rows, normalized by `env` if that is a `VecNormalize`."""
        batch = self.replay.sample(batch_size)
        reward = batch.reward[:, None]
        if env is not None:
            reward = torch.from_numpy(self._normalize_reward(reward.cpu().numpy(), env))
        kind = DictReplayBufferSamples if isinstance(self.observation_space, spaces.Dict) else ReplayBufferSamples
        return kind(
            observations=self._observations(batch.observation, env),
            actions=batch.action.reshape(batch_size, self.action_dim).to(self.device),
            next_observations=self._observations(batch.next_observation, env),
            dones=batch.terminal[:, None].to(self.device),
            rewards=reward.to(self.device),
        )

    def _flat(self, observations: Any) -> Array:
        """Observations of all environments as columns (n_envs, O)."""
        if isinstance(self.observation_space, spaces.Box):  # the most frequent case, ten times faster
            return np.asarray(observations).reshape(self.n_envs, -1)
        return gym_spaces.flatten(self.observation_space, observations, self.n_envs)

    def _observations(self, flat: Tensor, env: Any) -> Tensor | dict[str, Tensor]:
        """Columns (B, O) as observations with the environment's shape and dtype."""
        space = self.observation_space
        if env is None and isinstance(space, spaces.Box) and space.dtype == np.float32:
            return flat.reshape(-1, *self.obs_shape).to(self.device)
        values = self._normalize_obs(gym_spaces.unflatten(space, flat.cpu().numpy()), env)
        if isinstance(values, dict):
            return {key: self._tensor(value, self.obs_shape[key]) for key, value in values.items()}
        return self._tensor(values, self.obs_shape)

    def _tensor(self, values: Array, shape: tuple[int, ...]) -> Tensor:
        return torch.as_tensor(values.reshape(-1, *shape), device=self.device)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "replay": packed(self.replay)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        progress: Progress | bool = state["_options"].get("progress", True)
        replay = unpacked(state["replay"], state["device"], progress)
        self.__dict__.update(state, replay=replay)


def _check_no_images(space: Any) -> None:
    parts = space.spaces.values() if isinstance(space, spaces.Dict) else [space]
    for part in parts:
        if is_image_space(part):
            raise ConfigError(
                f"observations are images of shape {part.shape}: expected vectors, because the diffusion model is too "
                "small for images; encode the images first"
            )


def _stored_actions(space: Any) -> Space:
    """The stored action space: Box actions rescaled to [-1, 1], others unchanged."""
    own = gym_spaces.action_space(space)
    return (Box.uniform(-1, 1, own[0].width),) if isinstance(own[0], Box) else own


def _unrounded(action: Array) -> Array:
    """Clip actions that leave [-1, 1] by rounding. Actions that were never rescaled stay, and are refused later."""
    if action.dtype.kind != "f" or (beyond := np.abs(action).max()) <= 1:
        return action
    return np.clip(action, -1, 1) if beyond < 1 + _ROUNDING else action

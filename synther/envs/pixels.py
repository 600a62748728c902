"""Tasks of the dm_control suite with frames of the task's camera as observations, and with repeated actions."""

from __future__ import annotations

import math
from collections import deque
from contextlib import ExitStack
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from synther.envs.camera import Camera, Image
from synther.envs.making import import_suite, quiet_mujoco
from synther.envs.suite_tasks import PREFIX
from synther.errors import ConfigError, DataError, MissingExtra

Array = NDArray[np.float32]

SIZE, REPEAT, STACK = 84, 2, 3
"""Frame size in pixels, action repeat, and frames per observation, as in DrQ-v2 and V-D4RL."""

_UNBOUNDED = 1e10
"""MuJoCo uses this value for an action without a bound."""

_CAMERAS = {"quadruped": 2}
"""Camera numbers by domain, as in DrQ-v2. Default: 0."""


class PixelEnv:
    """The rendered task `env_id`, for example `dm_control/walker-walk-v0`. Use it as a context manager or call `close`.

    An observation contains the last `stack` frames, oldest first: (3 * stack, size, size) of uint8. After a reset, all
    of them are the same frame. Each action is taken `repeat` times, and the rewards are summed. `backend` is the result
    of `camera.graphics` (None: call it), which many environments can share. A smaller `shadow_size` than that of
    dm_control is faster and changes a few pixels at the edges of shadows, see `Camera`.
    """

    def __init__(
        self,
        env_id: str,
        *,
        size: int = SIZE,
        repeat: int = REPEAT,
        stack: int = STACK,
        backend: str | None = None,
        shadow_size: int | None = None,
    ) -> None:
        if min(size, repeat, stack) < 1:
            raise ConfigError(f"size, repeat and stack must be at least 1, got {size}, {repeat} and {stack}")
        domain, task = check_drawable(env_id)
        from dm_control import suite

        self.env_id, self.repeat = env_id, repeat
        self._random = np.random.RandomState(0)
        self._stack = ExitStack()
        try:
            self._stack.enter_context(quiet_mujoco())  # after the import of dm_control, which turns warnings on again
            self._env = suite.load(domain, task, task_kwargs={"random": self._random})
            self._stack.callback(self._env.close)
            self.low, self.high = _bounds(self._env, env_id)
            self._camera = Camera(self._env.physics.model.ptr, _CAMERAS.get(domain, 0), size, backend, shadow_size)
            self._stack.callback(self._camera.close)
        except BaseException:
            self._stack.close()
            raise
        self.decisions = math.ceil(math.ceil(self._env._step_limit) / repeat)
        """Number of decisions after which an episode is truncated."""
        self.state: Array = np.zeros(0, np.float32)
        """The current state observation, flattened as in Gymnasium."""
        self.frame: Image = np.zeros((3, size, size), np.uint8)
        """The newest frame."""
        self._frames: deque[Image] = deque(maxlen=stack)

    def reset(self, seed: int) -> Image:
        """Start an episode and return its first observation. The episode depends only on `seed`."""
        self._random.seed(seed)
        self._see(self._env.reset())
        self._frames.extend([self.frame] * (self._frames.maxlen or 1))
        return np.concatenate(self._frames)

    def step(self, action: Array) -> tuple[Image, float, bool, bool]:
        """Take an action `repeat` times. Return observation, sum of the rewards, terminal and timeout."""
        from dm_control.rl.control import PhysicsError

        reward = 0.0
        for _ in range(self.repeat):
            try:
                now = self._env.step(np.asarray(action, np.float64))
            except PhysicsError as error:
                raise DataError(f"{self.env_id}: the simulation became unstable at action {action}: {error}") from error
            if now.first():
                raise DataError(f"{self.env_id}: the episode is over, or none has begun: reset it first")
            reward += float(now.reward)
            if now.last():
                break
        self._see(now)
        self._frames.append(self.frame)
        terminal = bool(now.last() and now.discount == 0)
        return np.concatenate(self._frames), reward, terminal, bool(now.last() and not terminal)

    def _see(self, now: Any) -> None:
        """Store the state observation of the time step `now`, and render its frame."""
        self.state = np.concatenate([np.ravel(now.observation[name]) for name in sorted(now.observation)])
        self.state = self.state.astype(np.float32)
        self.frame = self._camera.frame(self._env.physics.data.ptr)

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


def check_drawable(env_id: str) -> tuple[str, str]:
    """Return domain and task of `env_id`. Raises an error if it is not a task of the dm_control suite."""
    domain, _, task = env_id.removeprefix(PREFIX).removesuffix("-v0").partition("-")
    if env_id != f"{PREFIX}{domain}-{task}-v0":
        raise ConfigError(
            f"frames can only be rendered for the dm_control suite: expected {PREFIX}walker-walk-v0, got {env_id!r}"
        )
    import_suite(env_id)
    from dm_control import suite

    if (domain, task) not in suite.ALL_TASKS:
        near = [name for one, name in suite.ALL_TASKS if one == domain]
        known = f"the tasks of {domain} are {', '.join(near)}" if near else f"it has no domain {domain}"
        raise ConfigError(f"the dm_control suite has no task {env_id!r}: {known}")
    return domain, task


def check_task(env_id: str, actions: int) -> None:
    """Raise an error if `env_id` is not a task of the dm_control suite or has another number of actions.

    Does nothing if dm_control is not installed.
    """
    try:
        domain, task = check_drawable(env_id)
    except MissingExtra:
        return
    from dm_control import suite

    expected = len(_bounds(suite.load(domain, task), env_id)[0])
    if expected != actions:
        raise DataError(f"{env_id} has {expected} actions, but the frames have {actions}: they come from another task")


def _bounds(env: Any, env_id: str) -> tuple[Array, Array]:
    """Return the action bounds, (A,) each. Raises an error if actions are unbounded."""
    spec = env.action_spec()
    low, high = (np.broadcast_to(bound, spec.shape).astype(np.float32) for bound in (spec.minimum, spec.maximum))
    if max(np.abs(low).max(), np.abs(high).max()) >= _UNBOUNDED:
        raise ConfigError(f"{env_id} has unbounded actions: expected a task with action bounds")
    return low, high

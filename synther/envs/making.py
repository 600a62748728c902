"""Open environments by id, with errors that say what to install. Also: control MuJoCo's warnings and solver state."""

from __future__ import annotations

import io
import logging
import math
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr
from typing import Any

import numpy as np

from synther.envs import bodies
from synther.errors import ConfigError, DataError, MissingExtra

log = logging.getLogger(__name__)

_IMAGE = 32
"""Smallest width and height of an image."""
_MAZES = ("PointMaze_", "AntMaze_")
_PLAIN = re.compile(r"[\w +-]*")
"""Texts that options from a file may contain: plain words, without characters of paths or module names."""


class Trusted(str):
    """An environment id that the user typed, on the command line or as an argument in Python.

    Only a trusted id may have the form `module:Env-v0`, which makes Gymnasium import the module. Only the options of a
    trusted id may name files. An id that was read from a file is a plain str. Pickling keeps the type, so worker
    processes know it too.
    """

    __slots__ = ()


@contextmanager
def opened(env_id: str, /, **options: Any) -> Iterator[Any]:
    """Open the environment `env_id`, and close it when the block ends.

    `options` are passed to `gymnasium.make`, except `capsules="old"`, which is an option of SynthER (see `bodies.py`).

    An id that is not `Trusted` may come from a file that somebody else wrote. An error is raised if such an id names a
    module, or if its options contain text that may name a file or code.

    Ids such as `dm_control/cheetah-run-v0` are tasks of the dm_control suite, which are created with shimmy. Ids such
    as `PointMaze_UMaze-v3` and `AntMaze_UMaze-v4` are mazes of gymnasium-robotics. MuJoCo's warnings are turned off
    inside the block, because by default MuJoCo prints them and writes them to a file in the working directory.
    """
    try:
        import gymnasium
    except ImportError:
        raise MissingExtra("gymnasium", "gym", f"running {env_id}") from None
    if not isinstance(env_id, Trusted):
        _check_untrusted(env_id, options)
    options, old_capsules = bodies.split(options)
    if env_id.startswith("dm_control/"):
        _register_suite(env_id)
    maze = env_id.rpartition(":")[2].startswith(_MAZES)
    if maze:
        _register_mazes(env_id)
    with quiet_mujoco():
        with warnings.catch_warnings(), _own_temporary_folder() if maze else nullcontext():
            warnings.simplefilter("ignore", DeprecationWarning)  # old versions are needed for recorded data
            try:
                env = gymnasium.make(env_id, disable_env_checker=True, **options)
            except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
                if "mujoco" in str(error).lower():
                    raise MissingExtra("mujoco", "gym", f"running {env_id}") from None
                raise DataError(f"{env_id} cannot be made here: {error}") from error
            except gymnasium.error.Error as error:
                raise DataError(f"{env_id!r} is not an environment of Gymnasium: {error}") from None
            except Exception as error:  # a user's environment can raise anything
                raise DataError(f"{env_id} cannot be made here: {type(error).__name__}: {error}") from error
        try:
            for space in ("observation_space", "action_space"):
                if not hasattr(env, space):
                    raise DataError(f"{env_id} has no {space}: set it in the __init__ of the environment")
            if old_capsules:
                bodies.reweigh(env, env_id)
            yield env
        finally:
            env.close()


def _check_untrusted(env_id: str, options: Mapping[str, Any]) -> None:
    """Raise an error if id or options could make Gymnasium import code or read files that the user did not choose."""
    module, colon, _ = env_id.rpartition(":")
    if colon:
        raise DataError(
            f"the data or run names the environment {env_id!r}, which would import the Python module {module!r}. "
            "A name from a file never imports code. If you trust this module, pass the id yourself, with --env-id or "
            "as env_id in Python"
        )
    for name, value in options.items():
        for text in _texts(value):
            if not _PLAIN.fullmatch(text):
                raise DataError(
                    f"the option {name!r} of the environment {env_id!r} holds {text!r}, which may name a file or code. "
                    "Options from a file may hold numbers and plain words only. If you trust it, pass the id and the "
                    "options yourself, with --env-id and --env-options or as env_id and env_options in Python"
                )


def _texts(value: Any) -> Iterator[str]:
    """Yield all strings inside an option, which is a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inside in value.items():
            yield str(name)
            yield from _texts(inside)
    elif isinstance(value, (list, tuple)):
        for inside in value:
            yield from _texts(inside)


def warn_of_images(env: Any, env_id: str) -> None:
    """Log a warning if an environment observes images. Small pictures of symbols, as in MiniGrid, are no images."""
    shape = getattr(env.observation_space, "shape", None) or ()
    if len(shape) == 3 and env.observation_space.dtype == np.uint8 and sorted(shape)[1] >= _IMAGE:
        sizes, columns = " x ".join(map(str, shape)), f"{math.prod(shape):,}"
        log.warning(
            "%s observes images of %s, which become %s columns: agents and generators of rows learn little from them, "
            "see docs/pixels.md", env_id, sizes, columns,
        )  # fmt: skip


def begun(env: Any, **how: Any) -> Any:
    """Reset the environment and return the first observation.

    Raises a `TypeError` if the environment does not follow Gymnasium's interface. Callers handle it.
    """
    answer = env.reset(**how)
    if not isinstance(answer, tuple) or len(answer) != 2:  # an array of two numbers could also be unpacked
        raise TypeError("expected reset to return an observation and a dictionary, as in Gymnasium 0.26 and later")
    return answer[0]


def stepped(env: Any, action: Any) -> tuple[Any, float, bool, bool]:
    """Step the environment. Return observation, reward, terminated, truncated. Errors are as in `begun`."""
    observation, reward, terminated, truncated, _ = env.step(action)
    return observation, float(reward), bool(terminated), bool(truncated)


def attempt(who: str, what: str, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Call a function of an environment. Every exception becomes a `DataError`: `who` failed in `what`."""
    try:
        return call(*given, **named)
    except Exception as error:  # an environment can raise anything
        raise DataError(f"{who} failed in {what}: {type(error).__name__}: {error}") from error


def time_limit(env: Any) -> int | None:
    """Return the number of steps after which an episode is truncated, or None if it is unknown.

    Shimmy does not report the time limit of dm_control's tasks, so it is read from the wrapped environment.
    """
    limit: float | None = getattr(env.spec, "max_episode_steps", None)
    if limit is None:
        limit = getattr(getattr(env.unwrapped, "_env", None), "_step_limit", None)
    return int(limit) if limit is not None and math.isfinite(limit) else None


def import_suite(env_id: str) -> None:
    """Import dm_control, which `env_id` needs, or raise an error that says what to install.

    On import, dm_control warns if there is no display. The warning is hidden, because no display is needed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import dm_control.suite  # noqa: F401
        except ModuleNotFoundError as error:
            raise MissingExtra(error.name or "dm_control", "dmc", f"running {env_id}") from None
        except Exception as error:  # a graphics library can raise anything
            chosen = os.environ.get("MUJOCO_GL")
            raise ConfigError(f"dm_control cannot be imported with MUJOCO_GL={chosen}: {error}; unset it") from error


def _register_suite(env_id: str) -> None:
    """Register the tasks of the dm_control suite in Gymnasium."""
    import gymnasium

    import_suite(env_id)
    try:
        with redirect_stderr(io.StringIO()):  # shimmy imports the old gym, which prints that it is unmaintained
            import shimmy
    except ImportError as error:
        raise MissingExtra(error.name or "shimmy", "dmc", f"running {env_id}") from None
    gymnasium.register_envs(shimmy)


def _register_mazes(env_id: str) -> None:
    """Register the mazes of gymnasium-robotics in Gymnasium."""
    import gymnasium

    try:
        with redirect_stderr(io.StringIO()):  # gymnasium-robotics prints a notice about its other tasks
            import gymnasium_robotics
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or "gymnasium-robotics", "mazes", f"running {env_id}") from None
    gymnasium.register_envs(gymnasium_robotics)


@contextmanager
def _own_temporary_folder() -> Iterator[None]:
    """Use a separate temporary folder while a maze is created.

    gymnasium-robotics writes the maze to a temporary file. The file is named after the current time and never removed.
    Processes that start at the same time would write the same file.
    """
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = before


@contextmanager
def quiet_mujoco() -> Iterator[None]:
    """Turn off MuJoCo's warnings inside the block. Does nothing if MuJoCo is not installed."""
    try:
        import mujoco
    except ImportError:
        yield
        return
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def forget(data: Any, action: Any) -> None:
    """Clear what MuJoCo's data keeps from the last step, and set the controls to `action`.

    MuJoCo's solver starts from its last solution. Without this reset, the result for a row would depend on the row
    before it.
    """
    data.time = 0.0
    data.qacc_warmstart[:] = 0.0
    data.ctrl[:] = action
    data.warning.number[:] = 0


def blown_up(data: Any) -> bool:
    """Return whether a position, velocity or acceleration became invalid. MuJoCo then resets the state silently."""
    import mujoco

    kinds = (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL, mujoco.mjtWarning.mjWARN_BADQACC)
    return any(data.warning.number[kind] for kind in kinds)

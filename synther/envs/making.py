"""Opening an environment by its id, with errors that say what to install, and keeping MuJoCo in hand."""

from __future__ import annotations

import io
import math
import os
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr
from typing import Any

from synther.errors import ConfigError, DataError, MissingExtra

_MAZES = ("PointMaze_", "AntMaze_")
_PLAIN = re.compile(r"[\w +-]*")
"""Text of options from a file: words, without what paths and modules are made of."""


class Trusted(str):
    """An environment id that the user typed, on the command line or as an argument in Python.

    Only such an id may be `module:Env-v0`, of which Gymnasium imports the module, and only its options may name files.
    An id that was read from a file is a plain str. The mark survives pickling, so worker processes see it too.
    """

    __slots__ = ()


@contextmanager
def opened(env_id: str, /, **options: Any) -> Iterator[Any]:
    """The environment `env_id`, closed again when the block ends; `options` go to `gymnasium.make`.

    An id that is not `Trusted` may come from a file that somebody else wrote: it is refused if it names a module, or if
    its options hold text that may name a file or code.

    `dm_control/cheetah-run-v0` and its like are the dm_control suite, through shimmy; `PointMaze_UMaze-v3` and
    `AntMaze_UMaze-v4` and theirs are gymnasium-robotics. MuJoCo is kept quiet meanwhile: it would print its warnings
    and write them to a file in the working directory.
    """
    try:
        import gymnasium
    except ImportError:
        raise MissingExtra("gymnasium", "gym", f"running {env_id}") from None
    if not isinstance(env_id, Trusted):
        _check_untrusted(env_id, options)
    if env_id.startswith("dm_control/"):
        _register_suite(env_id)
    maze = env_id.rpartition(":")[2].startswith(_MAZES)
    if maze:
        _register_mazes(env_id)
    with quiet_mujoco():
        with warnings.catch_warnings(), _own_temporary_folder() if maze else nullcontext():
            warnings.simplefilter("ignore", DeprecationWarning)  # recorded data cannot move to a newer version
            try:
                env = gymnasium.make(env_id, disable_env_checker=True, **options)
            except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
                if "mujoco" in str(error).lower():
                    raise MissingExtra("mujoco", "gym", f"running {env_id}") from None
                raise DataError(f"{env_id} cannot be made here: {error}") from error
            except gymnasium.error.Error as error:
                raise DataError(f"{env_id!r} is not an environment of Gymnasium: {error}") from None
            except Exception as error:  # whatever somebody's environment raises
                raise DataError(f"{env_id} cannot be made here: {type(error).__name__}: {error}") from error
        try:
            yield env
        finally:
            env.close()


def _check_untrusted(env_id: str, options: Mapping[str, Any]) -> None:
    """Refuse an id or options that could make Gymnasium import code or read files which the user did not ask for."""
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
    """All strings inside an option, which is what JSON can hold."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inside in value.items():
            yield str(name)
            yield from _texts(inside)
    elif isinstance(value, (list, tuple)):
        for inside in value:
            yield from _texts(inside)


def begun(env: Any, **how: Any) -> Any:
    """The first observation. Whoever calls this is prepared for an environment that answers in another form."""
    answer = env.reset(**how)
    if not isinstance(answer, tuple) or len(answer) != 2:  # an array of two numbers could be taken apart, too
        raise TypeError("expected an observation and a dictionary from reset, as Gymnasium has it since 0.26")
    return answer[0]


def stepped(env: Any, action: Any) -> tuple[Any, float, bool, bool]:
    """Observation, reward, whether the state is terminal and whether the episode was cut, likewise."""
    observation, reward, terminated, truncated, _ = env.step(action)
    return observation, float(reward), bool(terminated), bool(truncated)


def time_limit(env: Any) -> int | None:
    """Steps after which an episode is cut, where that is known. The suite's tasks have a limit that shimmy keeps quiet
    about."""
    told: float | None = getattr(env.spec, "max_episode_steps", None)
    if told is None:
        told = getattr(getattr(env.unwrapped, "_env", None), "_step_limit", None)
    return int(told) if told is not None and math.isfinite(told) else None


def import_suite(env_id: str) -> None:
    """Import dm_control, which `env_id` needs.

    It looks for a display at once, and warns where there is none; nothing here draws on one.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import dm_control.suite  # noqa: F401
        except ModuleNotFoundError as error:
            raise MissingExtra(error.name or "dm_control", "dmc", f"running {env_id}") from None
        except Exception as error:  # whatever a graphics library raises
            chosen = os.environ.get("MUJOCO_GL")
            raise ConfigError(f"dm_control cannot be imported with MUJOCO_GL={chosen}: {error}; unset it") from error


def _register_suite(env_id: str) -> None:
    import gymnasium

    import_suite(env_id)
    try:
        with redirect_stderr(io.StringIO()):  # it looks for the old gym too, which prints a notice about itself
            import shimmy
    except ImportError as error:
        raise MissingExtra(error.name or "shimmy", "dmc", f"running {env_id}") from None
    gymnasium.register_envs(shimmy)


def _register_mazes(env_id: str) -> None:
    import gymnasium

    try:
        with redirect_stderr(io.StringIO()):  # it prints a notice about tasks that are no mazes
            import gymnasium_robotics
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or "gymnasium-robotics", "mazes", f"running {env_id}") from None
    gymnasium.register_envs(gymnasium_robotics)


@contextmanager
def _own_temporary_folder() -> Iterator[None]:
    """For making a maze, which is written to a file that is named by the clock and stays there when it has been read.

    Processes that begin together would write the same one.
    """
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory() as own:
        tempfile.tempdir = own
        try:
            yield
        finally:
            tempfile.tempdir = before


@contextmanager
def quiet_mujoco() -> Iterator[None]:
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
    """Take from MuJoCo's data all that the next step could know of the last, and set the controls to `action`.

    The solver starts from its last solution: without this a row would depend on the row before it.
    """
    data.time = 0.0
    data.qacc_warmstart[:] = 0.0
    data.ctrl[:] = action
    data.warning.number[:] = 0


def blown_up(data: Any) -> bool:
    """Whether MuJoCo met a position, velocity or acceleration it could not go on from (and silently started over)."""
    import mujoco

    kinds = (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL, mujoco.mjtWarning.mjWARN_BADQACC)
    return any(data.warning.number[kind] for kind in kinds)

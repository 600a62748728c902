"""Opening a Gymnasium environment by its id, with errors that say what to install."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from synther.errors import DataError, MissingExtra


@contextmanager
def opened(env_id: str) -> Iterator[Any]:
    """The environment `env_id`, closed again when the block ends.

    MuJoCo is kept quiet meanwhile: it would print its warnings and write them to a file in the working directory.
    """
    try:
        import gymnasium
    except ImportError:
        raise MissingExtra("gymnasium", "gym", f"running {env_id}") from None
    with _quiet_mujoco():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # recorded data cannot move to a newer version
            try:
                env = gymnasium.make(env_id, disable_env_checker=True)
            except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
                if "mujoco" in str(error).lower():
                    raise MissingExtra("mujoco", "gym", f"running {env_id}") from None
                raise DataError(f"{env_id} cannot be made here: {error}") from error
            except gymnasium.error.Error as error:
                raise DataError(f"{env_id!r} is not an environment of Gymnasium: {error}") from None
        try:
            yield env
        finally:
            env.close()


@contextmanager
def _quiet_mujoco() -> Iterator[None]:
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

"""Converts Gymnasium spaces to those of `synther.data.spaces`, and batches of their values to flat rows and back.

The columns are the same as in `gymnasium.spaces.utils.flatten` (order of Dict keys, one-hot vectors, dtype), but a
whole batch is flattened at once. A batch of a Dict is a dict of arrays, a batch of a Tuple is a tuple of arrays, and
the first axis of every array is the batch.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from synther.data import spaces
from synther.data.spaces import Space
from synther.data.transitions import Array
from synther.errors import DataError, MissingExtra

_log = logging.getLogger(__name__)
_IGNORED: set[Space] = set()
"""Spaces about which a warning was logged. A replay buffer is converted at every refresh."""


def gymnasium_spaces() -> Any:
    """Return the module `gymnasium.spaces`, or raise an error that says how to install Gymnasium."""
    try:
        import gymnasium.spaces
    except ImportError:
        raise MissingExtra("gymnasium", "gym", "reading a Gymnasium space") from None
    return gymnasium.spaces


def observation_space(space: Any) -> Space:
    """Return the space of flattened observations of a Gymnasium `space`."""
    gym = gymnasium_spaces()
    if isinstance(space, gym.Box):
        return (_box(space),) if int(np.prod(space.shape)) else ()
    if isinstance(space, gym.MultiBinary):
        return (spaces.Binary(int(np.prod(space.shape))),)
    if isinstance(space, gym.Discrete):
        return (spaces.OneHot(int(space.n)),)
    if isinstance(space, gym.MultiDiscrete):
        return tuple(spaces.OneHot(int(size)) for size in space.nvec.reshape(-1))
    return tuple(part for _, inner in _inner(space, "observation") for part in observation_space(inner))


def action_space(space: Any) -> Space:
    """Return the space of the actions of a Gymnasium `space`: real columns of a Box, or integers of a Discrete or
    MultiDiscrete space."""
    gym = gymnasium_spaces()
    if isinstance(space, gym.Box):
        return (_box(space),)
    if isinstance(space, gym.Discrete):
        return (spaces.Discrete(int(space.n), int(space.start)),)
    if isinstance(space, gym.MultiDiscrete):
        sizes, starts = space.nvec.reshape(-1), space.start.reshape(-1)
        return tuple(spaces.Discrete(int(size), int(start)) for size, start in zip(sizes, starts, strict=True))
    raise DataError(
        f"actions of a {type(space).__name__} space are not supported: expected Box, Discrete or MultiDiscrete; "
        "wrap the environment so that its action space is one of these"
    )


def actions(space: Any, values: Any) -> Array:
    """Convert a batch of actions to numbers (N, A), or to integers (N,) for a Discrete space."""
    gym = gymnasium_spaces()
    action_space(space)
    batch = np.asarray(values)
    if batch.dtype.kind not in "iu" or isinstance(space, gym.Box):
        batch = batch.astype(space.dtype, copy=False)
    return batch.reshape(len(batch)) if isinstance(space, gym.Discrete) else batch.reshape(len(batch), -1)


def believed(space: Space, action: Array) -> Space | None:
    """Return `space`, or None if recorded actions are outside it, as those of policies without tanh often are. This is
    logged once for a space."""
    try:
        spaces.check(space, action.reshape(len(action), -1), "action")
    except DataError as error:
        if space not in _IGNORED:
            _log.warning("the declared action space is ignored: %s", error)
        _IGNORED.add(space)
        return None
    return space


def width(space: Any) -> int:
    """Return the number of columns of flattened observations of a Gymnasium `space`."""
    return spaces.width(observation_space(space))


def dtype(space: Any) -> np.dtype[Any]:
    """Return the dtype that `gymnasium.spaces.flatten` gives observations of `space`."""
    gym = gymnasium_spaces()
    if isinstance(space, (gym.Box, gym.MultiBinary, gym.Discrete, gym.MultiDiscrete)):
        flat_dtype: np.dtype[Any] = np.dtype(space.dtype)
    else:
        flat_dtype = np.result_type(*(dtype(inner) for _, inner in _inner(space, "observation")))
    return flat_dtype


def flat(space: Any, observation: Any) -> Array:
    """Flatten one observation to a new array, because some environments reuse the array that they return.

    The dtype is that of the observation. But integers in a space of real numbers become real numbers, because the next
    observation may not be whole.
    """
    gym = gymnasium_spaces()
    if not isinstance(space, (gym.Box, gym.MultiBinary)):
        return np.array(gym.utils.flatten(space, observation))
    row = np.array(observation).reshape(-1)
    return row.astype(space.dtype) if row.dtype.kind in "biu" and np.dtype(space.dtype).kind == "f" else row


def flatten(space: Any, values: Any, rows: int) -> Array:
    """Flatten a batch of `rows` observations to an array (rows, width)."""
    out = np.empty((rows, width(space)), dtype(space))
    flatten_into(space, values, out)
    return out


def flatten_into(space: Any, values: Any, out: Array) -> None:
    """Flatten a batch of observations into the array `out` (rows, width)."""
    gym = gymnasium_spaces()
    rows = len(out)
    if isinstance(space, (gym.Box, gym.MultiBinary)):
        out[:] = _batch(values, space, rows, int(np.prod(space.shape)))
    elif isinstance(space, gym.Discrete):
        _one_hot(_batch(values, space, rows, 1) - space.start, np.array([space.n]), out)
    elif isinstance(space, gym.MultiDiscrete):
        _one_hot(_batch(values, space, rows, space.nvec.size) - space.start.reshape(-1), space.nvec.reshape(-1), out)
    else:
        start = 0
        for key, inner in _inner(space, "observation"):
            columns = width(inner)
            flatten_into(inner, values[key], out[:, start : start + columns])
            start += columns


def unflatten(space: Any, flat: Array) -> Any:
    """Convert flat rows (N, width) back to a batch of observations. In integer spaces, real numbers are rounded."""
    gym = gymnasium_spaces()
    rows = len(flat)
    if isinstance(space, (gym.Box, gym.MultiBinary)):
        if np.dtype(space.dtype).kind in "biu" and flat.dtype.kind == "f":  # clip first: as a byte, 256 would become 0
            low, high = (space.low, space.high) if isinstance(space, gym.Box) else (np.zeros(1), np.ones(1))
            flat = np.clip(np.rint(flat), low.reshape(-1), high.reshape(-1))
        return flat.astype(space.dtype, copy=False).reshape(rows, *space.shape)
    if isinstance(space, gym.Discrete):
        return flat.argmax(1).astype(space.dtype) + space.start
    if isinstance(space, gym.MultiDiscrete):
        blocks = np.split(flat, np.cumsum(space.nvec.reshape(-1))[:-1], axis=1)
        return np.stack([block.argmax(1) for block in blocks], 1).reshape(rows, *space.shape) + space.start
    parts: dict[Any, Any] = {}
    start = 0
    for key, inner in _inner(space, "observation"):
        columns = width(inner)
        parts[key] = unflatten(inner, flat[:, start : start + columns])
        start += columns
    return parts if isinstance(space, gym.Dict) else tuple(parts.values())


def flat_box(space: Space | None, columns: int, of: np.dtype[Any]) -> Any:
    """Return a Gymnasium Box for flat columns of dtype `of`, with the bounds of `space`, or with the limits of the
    dtype if there is no space."""
    gym = gymnasium_spaces()
    if of.kind not in "fb":
        return gym.Box(np.iinfo(of).min, np.iinfo(of).max, (columns,), of.type)
    low, high = spaces.limits((spaces.Binary(columns),) if space is None and of.kind == "b" else space, columns)
    return gym.Box(low.astype(of), high.astype(of), dtype=of.type)


def flat_discrete(space: Space | None, values: Array) -> Any:
    """Return a Gymnasium Discrete or MultiDiscrete space for integer actions. Without a `space`, its range is that of
    `values`."""
    gym = gymnasium_spaces()
    columns = values.reshape(len(values), -1)
    if space and all(isinstance(part, spaces.Discrete) for part in space):
        starts = np.array([part.start for part in space if isinstance(part, spaces.Discrete)])
        sizes = np.array([part.size for part in space if isinstance(part, spaces.Discrete)])
    else:
        starts = columns.min(0).astype(np.int64)
        sizes = columns.max(0).astype(np.int64) - starts + 1
    if values.ndim == 1:
        return gym.Discrete(int(sizes[0]), start=int(starts[0]))
    return gym.MultiDiscrete(sizes, start=starts)


def _box(space: Any) -> spaces.Box:
    low, high = (np.asarray(bound, np.float64).reshape(-1).tolist() for bound in (space.low, space.high))
    return spaces.Box(tuple(low), tuple(high))


def _inner(space: Any, what: str) -> list[tuple[Any, Any]]:
    """Return the keys and the spaces inside a Dict or Tuple space. `what` is for the error text."""
    gym = gymnasium_spaces()
    if isinstance(space, gym.Dict):
        return list(space.spaces.items())
    if isinstance(space, gym.Tuple):
        return list(enumerate(space.spaces))
    raise DataError(
        f"{what}s of a {type(space).__name__} space have no fixed number of columns: expected Box, Discrete, "
        f"MultiBinary, MultiDiscrete, or a Dict or Tuple of these; wrap the environment so that its {what} space is "
        "one of these"
    )


def _batch(values: Any, space: Any, rows: int, columns: int) -> Array:
    """Return a batch of values of `space` as an array (rows, columns)."""
    batch = np.asarray(values, space.dtype)
    if batch.size != rows * columns or len(batch) != rows:
        raise DataError(f"values of {space} have shape {batch.shape}: expected {rows:,} rows of {columns} numbers")
    return batch.reshape(rows, columns)


def _one_hot(index: Array, sizes: Array, out: Array) -> None:
    """Write the one-hot codes of indices (N, K) into `out`. `sizes` (K,) are the numbers of values."""
    if ((index < 0) | (index >= sizes)).any():
        raise DataError(f"a discrete value is outside its space, which has {sizes.tolist()} values")
    offsets = np.cumsum(sizes) - sizes
    out[:] = 0
    np.put_along_axis(out, index + offsets, 1, axis=1)

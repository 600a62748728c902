"""`Frames` stores whole episodes of images, one record per frame. `Decisions` has n-step transitions as frame indices.

A frame is part of six or more observations, but it is stored only once, as uint8. An observation consists of three
frame indices.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from synther.errors import ConfigError, DataError

Array = NDArray[Any]

STACK = 3
"""Number of frames per observation. A single frame does not show velocities."""

_CHANNELS = 4
"""Largest number of channels of an image. With more, frames are probably stacked or have channels in the last axis."""

_ROUNDING = 1e-5
"""Fraction of the action range by which an action may exceed its bounds."""


class Decisions(NamedTuple):
    """M n-step transitions: observation, action, and the result n decisions later."""

    stack: NDArray[np.int64]
    """(M, 3): indices of the frames of the observation, oldest first. At the start of an episode, its first frame is
    repeated."""
    next_stack: NDArray[np.int64]
    """(M, 3): indices of the frames of the observation n decisions later."""
    action: NDArray[np.float32]
    """(M, A): action of the first of the n decisions."""
    reward: NDArray[np.float32]
    """(M,): discounted sum of the rewards of the n decisions."""
    discount: NDArray[np.float32]
    """(M,): discount of the value after n decisions: discount ** n, or 0 after a terminal."""
    last: NDArray[np.bool_]
    """(M,): whether this is the last transition of its episode."""


@dataclass(frozen=True, eq=False)
class Frames:
    """N records of consecutive episodes. The first record of an episode is its reset. Each other one ends a decision.

    image     (N, C, H, W)  uint8, in memory or mapped from a file
    action    (N, A)        action that led to the record; ignored at a reset
    reward    (N,)          reward of this action; ignored at a reset
    discount  (N,)          0 if the record is terminal, otherwise 1 (numbers in between are allowed)
    first     (N,)          bool: whether the record is a reset

    `low` and `high` are the action bounds: (A,), or one number for all actions. `action_repeat` is the number of times
    that the simulator repeated each action. `shadow_size` is the width of the shadow map of the frames, if it was not
    the task's own. Arrays that already have the right dtype are not copied, so do not modify them.
    """

    image: NDArray[np.uint8]
    action: NDArray[np.float32]
    reward: NDArray[np.float32]
    discount: NDArray[np.float32]
    first: NDArray[np.bool_]
    env_id: str | None = None
    action_repeat: int | None = None
    low: NDArray[np.float32] = -1.0  # type: ignore[assignment]  # an array (A,) after __post_init__
    high: NDArray[np.float32] = 1.0  # type: ignore[assignment]
    shadow_size: int | None = None

    def __post_init__(self) -> None:
        records = _check_image(self.image)
        action = _numbers("action", self.action, 2)
        if not action.shape[1]:
            raise DataError(f"action has no columns: shape {action.shape}")
        fields = {
            "action": action,
            "reward": _numbers("reward", self.reward, 1),
            "discount": _numbers("discount", self.discount, 1),
            "first": _flags(self.first),
            "low": _bound("low", self.low, action.shape[1]),
            "high": _bound("high", self.high, action.shape[1]),
        }
        for name, array in fields.items():
            if name not in ("low", "high") and len(array) != records:
                raise DataError(
                    f"{name} has {len(array):,} records, image has {records:,}: expected one for each frame"
                )
            object.__setattr__(self, name, array)
        for name in ("action_repeat", "shadow_size"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise DataError(f"{name} must be at least 1, got {getattr(self, name)}")
        self._check_episodes()
        self._check_actions()

    def _check_episodes(self) -> None:
        """Raise an error if the records are not whole episodes with at least one decision each."""
        if not self.first[0]:
            raise DataError("record 0 is not a reset: expected frames that begin with the first record of an episode")
        starts, ends = self.episodes
        short = np.flatnonzero(ends - starts < 2)
        if len(short):
            raise DataError(
                f"the episode at record {starts[short[0]]} has only its reset: expected at least one decision"
            )
        wrong = np.flatnonzero((self.discount < 0) | (self.discount > 1))
        if len(wrong):
            raise DataError(f"discount[{wrong[0]}] is {self.discount[wrong[0]]}: expected a number from 0 to 1")
        inside = np.setdiff1d(np.flatnonzero((self.discount == 0) & ~self.first), ends - 1)
        if len(inside):
            raise DataError(f"record {inside[0]} is terminal (discount 0), but its episode continues after it")

    def _check_actions(self) -> None:
        """Raise an error if an action exceeds its bounds by more than a rounding error."""
        if not (self.low < self.high).all():
            raise DataError(f"actions from {self.low} to {self.high}: expected low below high in every column")
        slack = _ROUNDING * (self.high - self.low)
        outside = (self.action < self.low - slack) | (self.action > self.high + slack)
        outside &= ~self.first[:, None]
        if outside.any():
            record, column = np.argwhere(outside)[0]
            raise DataError(
                f"action[{record}, {column}] is {self.action[record, column]}: expected "
                f"{self.low[column]} to {self.high[column]}"
            )

    @classmethod
    def concatenate(cls, parts: Sequence[Frames]) -> Frames:
        """Concatenate all episodes of `parts`, in order. Their frame sizes and action bounds must be equal."""
        if not parts:
            raise DataError("nothing to concatenate: expected at least one Frames")
        one = parts[0]
        for number, part in enumerate(parts[1:], start=1):
            for what, expected, got in (
                ("frames of", one.image.shape[1:], part.image.shape[1:]),
                ("actions from", (*one.low,), (*part.low,)),
                ("actions to", (*one.high,), (*part.high,)),
            ):
                if expected != got:
                    raise DataError(f"cannot concatenate: part {number} has {what} {got}, part 0 has {expected}")
        names = ("image", "action", "reward", "discount", "first")
        joined: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        for name in ("env_id", "action_repeat", "shadow_size"):
            values = {getattr(part, name) for part in parts}
            joined[name] = values.pop() if len(values) == 1 else None
        return cls(**joined, low=one.low, high=one.high)

    def __len__(self) -> int:
        """Number of records, including resets."""
        return len(self.image)

    @property
    def episodes(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Start (first record) and end (one after the last record) of each episode, (E,) each."""
        starts = np.flatnonzero(self.first)
        return starts, np.append(starts[1:], len(self.first))

    def returns(self) -> NDArray[np.float64]:
        """Return the sum of each episode's rewards (E,)."""
        earned = np.where(self.first, 0.0, self.reward.astype(np.float64))
        return np.add.reduceat(earned, self.episodes[0])

    def decisions(self, nstep: int, discount: float) -> Decisions:
        """Return an n-step transition for each observation that has `nstep` decisions after it in its episode."""
        if nstep < 1:
            raise ConfigError(f"nstep must be at least 1, got {nstep}")
        if not 0 <= discount <= 1:
            raise ConfigError(f"the discount must lie in [0, 1], got {discount}")
        starts, ends = self.episodes
        lengths = ends - starts
        records = np.arange(len(self))
        start, end = np.repeat(starts, lengths), np.repeat(ends, lengths)
        kept = records[records + nstep < end]
        if not len(kept):
            raise DataError(f"no episode has {nstep} decisions: the longest has {lengths.max() - 1}; lower nstep")
        reward, worth = np.zeros(len(kept)), np.ones(len(kept))
        for step in range(1, nstep + 1):
            reward += worth * self.reward[kept + step]
            worth *= discount * self.discount[kept + step]
        beginning = start[kept]
        return Decisions(
            stack_of(kept, beginning),
            stack_of(kept + nstep, beginning),
            self.action[kept + 1],
            reward.astype(np.float32),
            worth.astype(np.float32),
            kept + nstep + 1 == end[kept],
        )

    def digest(self) -> str:
        """Return a SHA-256 digest that identifies these frames."""
        shadows = () if self.shadow_size is None else (self.shadow_size,)
        digest = hashlib.sha256(repr((self.env_id, self.action_repeat, self.image.shape, *shadows)).encode())
        for array in (self.image, self.action, self.reward, self.discount, self.first, self.low, self.high):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def __repr__(self) -> str:
        size, columns = "x".join(map(str, self.image.shape[1:])), self.action.shape[1]
        return f"Frames({len(self):,} of {size}, {len(self.episodes[0]):,} episodes, action {columns})"


def stack_of(newest: NDArray[np.int64], beginning: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the frame indices (M, 3) of observations that end with the frames `newest` (M,).

    `beginning` (M,) is the first frame of the episode. It is repeated if there are not enough earlier frames.
    """
    stack: NDArray[np.int64] = np.maximum(newest[:, None] - np.arange(STACK)[::-1], beginning[:, None])
    return stack


def _check_image(image: Array) -> int:
    """Check the images and return the number of records."""
    if not isinstance(image, np.ndarray):
        raise DataError(f"image is a {type(image).__name__}: expected a NumPy array of uint8")
    if image.dtype != np.uint8:
        raise DataError(f"image has dtype {image.dtype}: expected uint8, 0 to 255, as frames are recorded")
    if image.ndim != 4 or 0 in image.shape[1:] or image.shape[1] > _CHANNELS:
        raise DataError(
            f"image has shape {image.shape}: expected (records, channels, height, width): one frame per record, "
            "channels first (3 for RGB)"
        )
    if not len(image):
        raise DataError("image has no records: expected at least one episode")
    return len(image)


def _numbers(name: str, values: Any, dimensions: int) -> NDArray[np.float32]:
    """Return `values` as float32. Raises an error if they are not numeric, not finite, or have other dimensions."""
    array = np.asarray(values)
    if array.dtype.kind not in "biuf" or array.ndim != dimensions:
        expected = ("", "(records,)", "(records, columns)")[dimensions]
        raise DataError(f"{name} is {array.dtype} of shape {array.shape}: expected numbers {expected}")
    with np.errstate(over="ignore"):
        numbers = array.astype(np.float32, copy=False)
    finite = np.isfinite(numbers)
    if not finite.all():
        place = tuple(int(at) for at in np.argwhere(~finite)[0])
        raise DataError(f"{name}[{', '.join(map(str, place))}] is {array[place]}: expected a finite number of float32")
    return numbers


def _flags(values: Any) -> NDArray[np.bool_]:
    """Return `values` (N,) as booleans. Raises an error if they have values other than 0 and 1."""
    array = np.asarray(values)
    if array.ndim != 1 or not ((array == 0) | (array == 1)).all():
        raise DataError(f"first is {array.dtype} of shape {array.shape}: expected a boolean for each record")
    return array.astype(bool, copy=False)


def _bound(name: str, values: Any, columns: int) -> NDArray[np.float32]:
    """Return an action bound for each column (A,), from one number or (A,)."""
    array = np.asarray(values, np.float32)
    if array.shape not in ((), (columns,)) or not np.isfinite(array).all():
        raise DataError(
            f"{name} is {values}: expected a finite number, or one for each of the {columns} action columns"
        )
    return np.broadcast_to(array, (columns,)).copy()

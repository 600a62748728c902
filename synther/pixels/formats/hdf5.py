"""Read and write HDF5 files with V-D4RL's keys.

The keys are `observation` (N, 3, 84, 84) of uint8, `action`, `reward`, `discount` and `step_type`. `step_type` is 0 for
the first record of an episode, 2 for its last record, and 1 for all records in between.

V-D4RL's own files do not contain the name of their task. It is read from their folders: TASK/LEVEL/84px.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, get_type_hints

import numpy as np
from numpy.typing import NDArray

from synther.durable import replacing
from synther.errors import DataError, FormatError
from synther.formats.hdf5 import attribute, check_numbers, created, opened
from synther.formats.reading import reading
from synther.pixels.formats import Block, channels_first, column, frame_size
from synther.pixels.frames import Frames
from synther.schema import checked

SUFFIXES = (".hdf5", ".h5")

_KEYS = ("observation", "action", "reward", "discount", "step_type")


class _Facts(TypedDict, total=False):
    """Attributes of files that `write` has created: fields of `Frames`."""

    env_id: str
    action_repeat: int
    shadow_size: int
    low: list[float]
    high: list[float]


class About(TypedDict, total=False):
    """Additional attributes of files that `synther collect` has recorded."""

    recorded: str
    """Options of the recording as JSON: policies, noise, seed and so on."""
    whole_episodes: int
    """Number of episodes that terminated or reached the time limit."""
    mean_return: float
    std_return: float
    """Mean and std of the returns of whole episodes, if there are any."""


class Outcomes(NamedTuple):
    """Results of E episodes."""

    decisions: NDArray[np.int64]
    """(E,): number of decisions"""
    returns: NDArray[np.float64]
    """(E,): sum of the rewards"""
    terminal: NDArray[np.bool_]
    """(E,): whether the episode ended with a terminal"""


_FIRST, _MID, _LAST = 0, 1, 2
_LEVELS = ("random", "medium_replay", "medium", "medium_expert", "expert")
_REPEAT = 2
"""Action repeat of all V-D4RL data."""

_CHUNK = 16
"""Frames per compressed chunk. With 16, 20K frames of 84 x 84 take 100 MB; with 1, more than twice as much."""

_BLOCK = 32 * _CHUNK
"""Minimum number of frames that are read at once."""

BLOCK_BYTES = 200_000_000
"""Maximum size of the frames that are read at once."""


def is_of_frames(path: Path) -> bool:
    """Return whether a file is an HDF5 file of frames: only these have the key `step_type`."""
    if path.suffix.lower() not in SUFFIXES:
        return False
    import h5py

    if not h5py.is_hdf5(path):
        return False
    with reading(path, "an HDF5 file"), opened(path) as file:
        return _KEYS[-1] in file


class Shard:
    """One HDF5 file of frames. All its episodes are complete, except possibly the last one."""

    def __init__(self, path: Path) -> None:
        import h5py

        self.name = str(path)
        self._path = path
        with reading(path, "an HDF5 file of frames"), opened(path) as file:
            missing = [key for key in _KEYS if not isinstance(file.get(key), h5py.Dataset)]
            if missing:
                raise FormatError(
                    f"no frames with V-D4RL's keys: missing {', '.join(missing)}; got {', '.join(file) or 'nothing'}"
                )
            check_numbers(path, (file[key] for key in _KEYS))
            pictures = file["observation"]
            self.size = frame_size(pictures.shape, pictures.dtype, "observation")
            self.records = len(pictures)
            self.actions = math.prod(file["action"].shape[1:])
            self.known = _attributes(file, _Facts) or _known(path)
            self.about = _attributes(file, About)

    def blocks(self) -> Iterator[Block]:
        """Yield all records, block by block."""
        with opened(self._path) as file:
            reward, discount = (column(name, file[name][()], self.records) for name in ("reward", "discount"))
            first = _firsts(column("step_type", file["step_type"][()], self.records))
            action, pictures = file["action"][()], file["observation"]
            if action.shape[:1] != (self.records,):
                raise DataError(f"action has shape {action.shape}, observation has {self.records:,} records")
            for some in _steps(pictures):
                image = channels_first(pictures[some], self.size)
                yield Block(image, action[some], reward[some], discount[some], first[some])
                del image  # free the memory before the next block is read

    def outcomes(self) -> Outcomes:
        """Return lengths, returns and ends of the episodes, without reading frames."""
        with reading(self._path, "an HDF5 file of frames"), opened(self._path) as file:
            names = ("reward", "discount", "step_type")
            reward, discount, step_type = (column(name, file[name][()], self.records) for name in names)
            first = _firsts(step_type)
            if not self.records:
                raise DataError("it has no records: expected an episode at least")
        starts = np.flatnonzero(first)
        ends = np.append(starts[1:], self.records)
        returns = np.add.reduceat(np.where(first, 0.0, reward.astype(np.float64)), starts)
        return Outcomes(ends - starts - 1, returns, discount[ends - 1] == 0)


def _steps(pictures: Any) -> Iterator[slice]:
    """Yield the ranges of frames to read at once.

    A range consists of whole chunks, because HDF5 always decompresses a whole chunk. V-D4RL's chunks have thousands of
    records. Chunks that are too large for memory are read in as few parts as possible.
    """
    records = len(pictures)
    chunk = pictures.chunks[0] if pictures.chunks else 1
    height = chunk * max(1, _BLOCK // chunk)
    most = max(1, BLOCK_BYTES * records // max(pictures.nbytes, 1))
    step = math.ceil(height / math.ceil(height / most))
    for top in range(0, records, height):
        end = min(top + height, records)
        for start in range(top, end, step):
            yield slice(start, min(start + step, end))


def _firsts(step_type: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask (N,) of the first records of episodes. Raises an error for an impossible order of step types."""
    wrong = np.flatnonzero(~np.isin(step_type, (_FIRST, _MID, _LAST)))
    if len(wrong):
        raise DataError(f"step_type[{wrong[0]}] is {step_type[wrong[0]]}: expected 0 (first), 1 or 2 (last)")
    first: NDArray[np.bool_] = step_type == _FIRST
    if len(first) and not first[0]:
        raise DataError(f"step_type[0] is {step_type[0]}: expected the first record of an episode (0)")
    lost = np.flatnonzero((step_type[:-1] == _LAST) & ~first[1:])
    if len(lost):
        raise DataError(f"step_type[{lost[0] + 1}] is {step_type[lost[0] + 1]} after a last record (2): expected 0")
    return first


def _attributes(file: Any, kind: Any) -> dict[str, Any]:
    """Return the attributes of `kind` that a file has. Raises an error if they have other types than in `kind`."""
    facts = {name: attribute(file, name) for name in get_type_hints(kind) if name in file.attrs}
    plain = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in facts.items()}
    attributes: dict[str, Any] = checked(plain, kind, "its attributes")
    return attributes


def _known(path: Path) -> dict[str, Any]:
    """Return task and action repeat of a file, if its folders are named as in V-D4RL. Otherwise return no values."""
    task, level, pixels = ("", "", "", *path.absolute().parts)[-4:-1]
    domain, _, name = task.partition("_")
    if level in _LEVELS and pixels.endswith("px") and domain and name:
        return {"env_id": f"dm_control/{domain}-{name}-v0", "action_repeat": _REPEAT}
    return {}


def write(episodes: Iterable[Frames], target: str | os.PathLike[str], about: About) -> None:
    """Write all `episodes` to one file. The memory of each part is freed after it was written."""
    path = Path(target).expanduser()
    with replacing(path) as beside, created(beside) as (file, writing):
        kind = None
        for part in episodes:
            images = part.image.shape[1:], part.shadow_size
            part_kind = part.env_id, part.action_repeat, *images, (*part.low,), (*part.high,)
            if kind not in (None, part_kind):
                raise DataError(f"{path}: the parts of one file must agree, got {part_kind} after {kind}")
            with writing():
                if kind is None:
                    _prepare(file, part)
                    file.attrs.update(about)
                _append(file, part)
            kind = part_kind
        if kind is None:
            raise DataError(f"{path}: nothing to write: expected at least one episode")


def _prepare(file: Any, part: Frames) -> None:
    """Create empty data sets and the attributes for parts like `part`."""
    for name in get_type_hints(_Facts):
        if getattr(part, name) is not None:
            value = getattr(part, name)
            file.attrs[name] = str(value) if isinstance(value, str) else value  # h5py does not accept subclasses of str
    compressed = {"chunks": (_CHUNK, *part.image.shape[1:]), "compression": "gzip", "compression_opts": 4}
    shapes = {"observation": part.image.shape[1:], "action": part.action.shape[1:]}
    types = {"observation": np.uint8, "step_type": np.int64}
    for key in _KEYS:
        shape = shapes.get(key, ())
        how = compressed if key == "observation" else {"chunks": True}
        file.create_dataset(key, (0, *shape), types.get(key, np.float32), maxshape=(None, *shape), **how)


def _append(file: Any, part: Frames) -> None:
    """Append the records of `part` to a file."""
    starts, ends = part.episodes
    step_type = np.full(len(part), _MID)
    step_type[ends - 1] = _LAST
    step_type[starts] = _FIRST
    arrays: tuple[NDArray[Any], ...] = part.image, part.action, part.reward, part.discount, step_type
    for key, array in zip(_KEYS, arrays, strict=True):
        before = len(file[key])
        file[key].resize(before + len(array), axis=0)
        file[key][before:] = array

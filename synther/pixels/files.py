"""Read frames from files and data sets, and write them. Frames are uint8 on disk and in memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.durable import writing_to
from synther.errors import ConfigError, DataError, FormatError
from synther.formats.minari import data_folder
from synther.formats.reading import reading
from synther.pixels.formats import Block, Source, hdf5, minari, npz
from synther.pixels.frames import Frames
from synther.progress import Phase, Progress, resolve

Place = str | os.PathLike[str]

_VD4RL_LEVELS = {"mixed": "medium_replay", "medium-expert": "medium_expert"}
"""V-D4RL's names of levels, if they differ from the names in SynthER."""


def read(source: Place | Sequence[Place], progress: Progress | bool = False) -> Frames:
    """Read all episodes of one or several sources.

    A source is a file, a folder of files (HDF5 shards as in V-D4RL, or npz episodes), or a Minari data set (folder or
    id). Files in a folder are read in the order of their names. All must have the same frame size and action columns.
    """
    given = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    sources = [part for one in given for part in _sources(one)]
    if not sources:
        raise FormatError("nothing to read: expected at least one file or folder of frames")
    _check_sizes(sources)
    image = np.empty((sum(one.records for one in sources), *sources[0].size), np.uint8)
    blocks: list[Block] = []
    at = 0
    with resolve(progress).phase("read frames", len(image)) as phase:
        for one in sources:
            with reading(one.name, "frames"):
                blocks += _filled(image[at : at + one.records], one, phase)
                _check_actions(blocks[-1].action, blocks[0].action)
            at += one.records
    action, reward, discount, first = map(np.concatenate, zip(*(block[1:] for block in blocks), strict=True))
    # Values at a reset have no meaning and can be NaN, so they are replaced.
    action = np.where(first[:, None], 0, action)
    reward, discount = np.where(first, 0, reward), np.where(first, 1, discount)
    with reading(sources[0].name if len(sources) == 1 else f"{len(sources)} files", "frames"):
        return Frames(image, action, reward, discount, first, **_agreed(sources))


def frames_of(task: str, level: str, data: Path | None) -> Path:
    """Return the path of a data set in the folder `data`, or raise an error if it is not there.

    For the task `walker-walk` and the level `medium`, this is `walker-walk-medium`, `walker-walk-medium.hdf5`,
    `walker_walk/medium/84px` or `main/walker_walk/medium/84px`. The last two are the folders that V-D4RL distributes.
    """
    if data is None:
        raise ConfigError(f"{task}-{level}: frames do not come with the package; name their folder with --data")
    name, vd4rl = f"{task}-{level}", Path(task.replace("-", "_"), _VD4RL_LEVELS.get(level, level), "84px")
    wanted = [Path(name), Path(f"{name}.hdf5"), vd4rl, Path("main") / vd4rl]
    for place in wanted:
        if (data / place).exists():
            return data / place
    raise FormatError(f"no frames of {name} in {data}: expected {', '.join(map(str, wanted[:-1]))} or {wanted[-1]}")


def write(frames: Frames | Iterable[Frames], path: Place, about: hdf5.About | None = None) -> None:
    """Write frames to one HDF5 file with V-D4RL's keys. The file is written atomically and replaces an existing file.

    `frames` may be a generator of parts. Then only one part is in memory at a time. `about` are further attributes of
    the file.
    """
    if Path(path).suffix.lower() not in hdf5.SUFFIXES:
        raise FormatError(f"{path}: frames are written as {' or '.join(hdf5.SUFFIXES)}: choose such a file name")
    with writing_to(path):
        hdf5.write([frames] if isinstance(frames, Frames) else frames, path, about or {})


def _sources(given: Place) -> list[Source]:
    """Return the sources in a file, a folder or a Minari data set."""
    path = Path(given).expanduser()
    if path.is_dir() and data_folder(path) is None:
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in (*hdf5.SUFFIXES, *npz.SUFFIXES))
        is_npz = {file.suffix.lower() in npz.SUFFIXES for file in files}
        if len(is_npz) != 1:
            content = "both" if is_npz else "neither"
            raise FormatError(f"{path}: expected a folder of HDF5 files or of npz files, it contains {content}")
        return [source for file in files for source in _sources(file)]
    suffix = path.suffix.lower()
    if suffix in hdf5.SUFFIXES + npz.SUFFIXES:
        if not path.is_file():
            raise FormatError(f"{path}: no such file; check the path (the working folder is {Path.cwd()})")
        return [hdf5.Shard(path) if suffix in hdf5.SUFFIXES else npz.Episode(path)]
    if path.is_file():
        raise FormatError(f"{path}: expected frames as .hdf5, .h5 or .npz, a folder of them, or a Minari data set")
    return [minari.Dataset(given)]


def _check_sizes(sources: Sequence[Source]) -> None:
    """Raise an error if a source is empty or if frame sizes differ."""
    one = sources[0]
    for other in sources:
        if not other.records:
            raise DataError(f"{other.name} has no records: expected at least one episode")
        if other.size != one.size:
            sizes = f"{other.name} has frames of {_text(other.size)}, {one.name} has frames of {_text(one.size)}"
            raise DataError(f"{sizes}: expected the same size")


def _filled(image: NDArray[np.uint8], source: Source, phase: Phase) -> list[Block]:
    """Copy the frames of `source` to `image`, and return its blocks without frames.

    Raises an error if the source has another number of records than it declares, or values that are not numbers.
    """
    blocks: list[Block] = []
    at = 0
    for block in source.blocks():
        start, at = at, at + len(block.image)
        if at <= len(image):
            image[start:at] = block.image
        phase.advance(len(block.image))
        blocks.append(block._replace(image=block.image[:0].copy()))
        del block  # free the memory before the next block is read
    if at != len(image):
        raise FormatError(f"the source declares {len(image):,} records but has {at:,}: download it again")
    for name in ("action", "reward", "discount"):
        kinds = {getattr(block, name).dtype.kind for block in blocks}
        if not kinds <= set("biuf"):
            raise DataError(f"{name} is not numeric: expected an array of numbers")
    if not blocks[0].first[0]:
        raise DataError("record 0 is not a reset: expected a file that begins with the first record of an episode")
    return blocks


def _check_actions(actions: NDArray[Any], before: NDArray[Any]) -> None:
    """Raise an error if `actions` is not a matrix, or has other columns than the actions `before`."""
    if actions.ndim != 2 or actions.shape[1:] != before.shape[1:]:
        columns = "columns" if before.ndim != 2 else before.shape[1]
        raise DataError(f"action has shape {actions.shape}: expected (records, {columns})")


def _text(size: tuple[int, int, int]) -> str:
    return " x ".join(map(str, size))


def _agreed(sources: Sequence[Source]) -> dict[str, Any]:
    """Return the properties that all sources share.

    Raises an error if action bounds differ. Other properties are None if they differ.
    """
    agreed: dict[str, Any] = {}
    for name in ("low", "high"):
        bounds = {tuple(np.ravel(one.known[name])) for one in sources if name in one.known}
        if len(bounds) > 1:
            raise DataError(
                f"the action bound {name!r} differs between files: {', '.join(map(str, bounds))}; expected the same"
            )
        if bounds:
            agreed[name] = np.array(bounds.pop(), np.float32)
    for name in ("env_id", "action_repeat", "shadow_size"):
        every = {one.known.get(name) for one in sources}
        agreed[name] = every.pop() if len(every) == 1 else None
        if agreed[name] is not None and name != "env_id":
            agreed[name] = int(agreed[name])
    return agreed

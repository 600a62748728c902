"""Where the frames of a data set are: in a folder or file of its name, or where V-D4RL's own layout has them."""

from __future__ import annotations

from pathlib import Path

from synther.errors import ConfigError, FormatError

_THEIRS = {"mixed": "medium_replay", "medium-expert": "medium_expert"}
"""V-D4RL's names of levels, where they are not ours."""


def frames_of(task: str, level: str, data: Path | None) -> Path:
    """What `pixels.files.read` reads as the data set: `walker-walk-medium`, alone or with .hdf5, in the folder `data`,
    or `walker_walk/medium/84px` there or in its folder `main`, as V-D4RL distributes it."""
    if data is None:
        raise ConfigError(f"{task}-{level}: frames do not come with the package; name their folder with --data")
    name, theirs = f"{task}-{level}", Path(task.replace("-", "_"), _THEIRS.get(level, level), "84px")
    wanted = [Path(name), Path(f"{name}.hdf5"), theirs, Path("main") / theirs]
    for place in wanted:
        if (data / place).exists():
            return data / place
    raise FormatError(f"no frames of {name} in {data}: expected {', '.join(map(str, wanted[:-1]))} or {wanted[-1]}")

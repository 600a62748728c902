"""The replay data that comes with the package, so that everything can be tried before anything is downloaded."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from synther.errors import FormatError


def names() -> tuple[str, ...]:
    """What `path` knows, such as `hopper-sac`."""
    return tuple(sorted(file.stem for file in _folder().glob("*.npz")))


def path(name: str) -> Path:
    """The file of a shipped data set; what is in it stands in README.md beside it."""
    if name not in names():
        raise FormatError(f"no data set called {name!r} comes with the package: expected {' or '.join(names())}")
    return _folder() / f"{name}.npz"


def hopper() -> Path:
    """Everything one SAC agent saw while it learned Gymnasium's Hopper-v5."""
    return path("hopper-sac")


def _folder() -> Path:
    return Path(str(resources.files("synther.data"))) / "replay"

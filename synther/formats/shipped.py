"""The replay data that is part of the package, so that everything can be tried without a download."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from synther.errors import FormatError


def names() -> tuple[str, ...]:
    """Return the names that `path` accepts, such as `hopper-sac`."""
    return tuple(sorted(file.stem for file in _folder().glob("*.npz")))


def path(name: str) -> Path:
    """Return the file of a data set of the package. README.md in the same folder describes it."""
    if name not in names():
        raise FormatError(f"the package has no data set {name!r}: expected {' or '.join(names())}")
    return _folder() / f"{name}.npz"


def hopper() -> Path:
    """Return the file with all rows that one SAC agent saw while it learned Gymnasium's Hopper-v5."""
    return path("hopper-sac")


def _folder() -> Path:
    return Path(str(resources.files("synther.formats"))) / "replay"

"""Check the target of new rows before any work is done."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from synther import formats
from synther.durable import check_folder, check_new, check_writable
from synther.errors import MissingExtra
from synther.formats import MINARI

_LIBRARIES = {"": ("minari", "minari"), ".parquet": ("pyarrow", "parquet"), ".pq": ("pyarrow", "parquet")}
"""For each suffix of a target ("" for a Minari data set): the library that writes it, and the extra that installs
it."""


def target_of(out: str, *, new: bool = True) -> str | Path:
    """Check where rows will be written, and return it as a Minari id or a path.

    `out` is `minari:ID`, a file, or a name without suffix: the folder of a Minari data set. Raises an error if it
    cannot be written, if the id is taken, or if `new` is true and the path exists.
    """
    if out.startswith(MINARI):
        name, _ = formats.without_prefix(out)
        _require("")
        from synther.formats.minari import place_to_write

        place_to_write(name)
        return str(name)
    path = Path(out).expanduser()
    if new:
        check_new(path)
    if path.suffix:
        formats.check_rows_target(path)
    _require(path.suffix.lower())
    above = next(folder for folder in path.absolute().parents if folder.exists())
    check_folder(above, "choose another --out")
    check_writable(above)
    return path


def _require(suffix: str) -> None:
    """Raise an error if the library that writes files with this suffix is not installed."""
    library, extra = _LIBRARIES.get(suffix, ("", ""))
    if library and find_spec(library) is None:
        raise MissingExtra(library, extra, "writing a Minari data set" if not suffix else f"writing a {suffix} file")

"""Errors that a user can fix. Each message says what was expected, what was found and what to do.

The command line prints such an error as one line. The exit code is 1 for `Failed`, because the same command may succeed
later, and 2 for all others.
"""

from __future__ import annotations


class SyntherError(Exception):
    """Base class of all errors about the user's input or machine, in contrast to bugs in SynthER."""


class DataError(SyntherError, ValueError):
    """Raised for rows with wrong shapes, keys, types or values."""


class FormatError(SyntherError, ValueError):
    """Raised for a file or folder that is missing, truncated, damaged or in an unknown format."""


class ConfigError(SyntherError, ValueError):
    """Raised for options that contradict each other or are out of range."""


class Failed(SyntherError):
    """Raised if correct work could not be finished, for example because a process was killed."""


class Unwritable(Failed, OSError):
    """Raised for a file or folder that cannot be written, because the disk is full or permissions are missing."""


class MissingExtra(SyntherError, ImportError):
    """Raised if an optional library is needed and not installed. The message names the extra that installs it."""

    def __init__(self, library: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {library}, which is not installed: pip install 'synther[{extra}]'")

"""Errors a user can act on: each says what was expected, what came and what to do.

The command line prints them as one line and leaves with exit code 2, or 1 where the same command may succeed.
"""

from __future__ import annotations


class SyntherError(Exception):
    """Base of every error that is about the user's input rather than about a defect of ours."""


class DataError(SyntherError, ValueError):
    """Rows that cannot be experience: wrong shapes, keys, types or values."""


class FormatError(SyntherError, ValueError):
    """A file or folder that is absent, truncated, foreign or of an unknown kind."""


class ConfigError(SyntherError, ValueError):
    """Options that contradict each other or lie outside their range."""


class Failed(SyntherError):
    """Work that could not be finished though nothing was wrong with it, such as that of a process that was killed."""


class Unwritable(Failed, OSError):
    """A file or folder that cannot be written, because the disk is full or writing there is not allowed."""


class MissingExtra(SyntherError, ImportError):
    """An optional library is needed for what was asked."""

    def __init__(self, library: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {library}, which is not installed: pip install 'synther[{extra}]'")

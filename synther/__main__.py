"""`python -m synther`, the same as the command `synther`."""

from synther.cli import entry

entry()

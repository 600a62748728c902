"""Run `python -m synther`, which is the same as the command `synther`."""

from synther.cli import entry

entry()

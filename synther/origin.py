"""The origin of results: version, commit, machine and libraries. Every table of results states it."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import torch

from synther import __version__, compute


def origin(device: torch.device) -> dict[str, str]:
    """Return version and commit, machine, and versions of Python and PyTorch, as text for people."""
    gpu = f", {compute.describe(device)}" if device.type == "cuda" else ""
    return {
        "synther": " ".join(part for part in (__version__, _commit()) if part),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores{gpu}",
        "python": f"{platform.python_version()}, torch {torch.__version__}",
    }


def _commit() -> str:
    """Return the commit, or "" if it is unknown.

    It is the environment variable `SYNTHER_COMMIT` if that is set (for a copy without .git), or the answer of git.
    """
    root = Path(__file__).resolve().parents[1]
    given = os.environ.get("SYNTHER_COMMIT", "")
    if given or not (root / ".git").exists():
        return given
    try:
        command = ["git", "-C", str(root), "describe", "--always", "--dirty"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # git is not installed
        return ""

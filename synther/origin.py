"""What every table of results states about where it comes from."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import torch

from synther import __version__, compute


def origin(device: torch.device) -> dict[str, str]:
    """Version, commit (where this is a checkout), machine and libraries, each in words."""
    gpu = f", {compute.describe(device)}" if device.type == "cuda" else ""
    return {
        "synther": " ".join(part for part in (__version__, _commit()) if part),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores{gpu}",
        "python": f"{platform.python_version()}, torch {torch.__version__}",
    }


def _commit() -> str:
    """As `SYNTHER_COMMIT` says, for a copy without its history, or as git does."""
    here = Path(__file__).resolve().parents[1]
    told = os.environ.get("SYNTHER_COMMIT", "")
    if told or not (here / ".git").exists():
        return told
    try:
        command = ["git", "-C", str(here), "describe", "--always", "--dirty"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # no git here
        return ""

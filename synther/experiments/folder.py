"""Whose folder it is: a run writes down what it is for, and touches no folder that is for something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from synther.durable import replacing
from synther.errors import ConfigError


def claim(folder: Path, description: dict[str, Any]) -> None:
    """Write down what the folder is for, or check that it is for this."""
    run = folder / "run.json"
    if run.exists():
        found = read_object(run)
        wanted = json.loads(json.dumps(description))
        other = [key for key in wanted if found.get(key) != wanted[key]]
        if other:
            raise ConfigError(
                f"{folder} holds a run with another {', '.join(other)}: choose another --out, or remove the folder"
            )
        return
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file: choose an empty or a new folder")
    # What begins with .run. was left by a run that was killed while it wrote its description.
    if folder.exists() and not all(file.name.startswith(".run.") for file in folder.iterdir()):
        raise ConfigError(f"{folder} holds files of something else: choose an empty or a new folder")
    write_object(run, description)


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of ours."""
    try:
        found = json.loads(path.read_text())
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} is not the description of a run: choose another --out, or remove the folder")
    return found


def write_object(path: Path, content: dict[str, Any]) -> None:
    """A JSON object as a file, whole or not at all."""
    with replacing(path) as beside:
        beside.write_text(json.dumps(content, indent=2) + "\n")

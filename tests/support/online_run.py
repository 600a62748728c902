"""The folder of an online run, made by hand."""

from __future__ import annotations

import json
from pathlib import Path

from synther import Transitions, write
from synther.experiments.results import Result


def run_folder(folder: Path, rows: Transitions) -> Path:
    """The files that `synther collect` reads."""
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"env_id": rows.env_id, "learning_starts": 5, "steps": len(rows)}))
    (folder / "result.json").write_text(json.dumps(Result(len(rows), 1.0, {}, unit="env_steps").to_json()))
    write(rows, folder / "replay.npz")
    return folder

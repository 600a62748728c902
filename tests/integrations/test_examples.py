"""The examples run, and keep what they promise about their size."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from .tiny import OPTIONS

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_an_agent_of_ones_own():
    small = {"steps": 270, "updates": 1, "refresh": 200, "samples": 200, "fit": 10}
    options = [f"--{name}={value}" for name, value in small.items()]
    script = [sys.executable, EXAMPLES / "add_to_your_agent.py", *options]
    done = subprocess.run(script, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"step 200: return -\d+\n", done.stdout)


def test_three_lines_of_fewer_than_sixty():
    lines = (EXAMPLES / "add_to_your_agent.py").read_text().splitlines()
    assert len(lines) < 60
    assert [line[-1] for line in lines if re.search(r"# \d$", line)] == ["1", "2", "3"]


def test_pendulum_with_and_without(monkeypatch):
    pendulum = loaded("pendulum")
    seen: list[Any] = []
    monkeypatch.setattr(pendulum, "evaluated", lambda agent: seen.append(agent.replay_buffer) or -float(len(seen)))
    assert pendulum.returns(0, 260, 130, 1, None) == [-1, -2]
    assert pendulum.returns(0, 260, 130, 1, OPTIONS) == [-3, -4]
    assert not hasattr(seen[0], "replay")
    assert [refresh.added for refresh in seen[-1].replay.history] == [60, 120, 180, 240]


def loaded(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

"""The examples run, and keep what they promise about their size."""

from __future__ import annotations

import importlib.util
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from synther.plots.statistics import Aggregate, Interval

from ..replay.rows import OPTIONS

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_an_agent_of_ones_own(monkeypatch, capsys):
    small = {"steps": 270, "updates": 1, "refresh": 200, "samples": 200, "fit": 10}
    options = [f"--{name}={value}" for name, value in small.items()]
    monkeypatch.setattr(sys, "argv", ["add_to_your_agent.py", *options])
    with torch.random.fork_rng([]):
        runpy.run_path(str(EXAMPLES / "add_to_your_agent.py"), run_name="__main__")
    assert re.fullmatch(r"step 200: return -\d+\n", capsys.readouterr().out)


def test_three_lines_of_fewer_than_sixty():
    lines = (EXAMPLES / "add_to_your_agent.py").read_text().splitlines()
    assert len(lines) < 60
    assert [line[-1] for line in lines if re.search(r"# \d$", line)] == ["1", "2", "3"]


@pytest.mark.parametrize("name", ["sac", "td3", "dqn"])
def test_scripts_of_cleanrl(name, monkeypatch, capsys):
    small = {"total_timesteps": 210, "learning_starts": 190, "batch_size": 16, "refresh_every": 200, "samples": 100}
    options = [f"--{option.replace('_', '-')}={value}" for option, value in {**small, "fit_steps": 10}.items()]
    monkeypatch.setattr(sys, "argv", ["cleanrl.py", *options])
    with torch.random.fork_rng([]):
        left = runpy.run_path(str(EXAMPLES / f"cleanrl_{name}.py"), run_name="__main__")
    assert "return=" in capsys.readouterr().out
    assert [refresh.kept for refresh in left["rb"].synthetic.history] == [True]
    lines = (EXAMPLES / f"cleanrl_{name}.py").read_text().splitlines()
    assert [line[-1] for line in lines if re.search(r"# \d$", line)] == ["1", "2", "3"]


def test_pendulum_with_and_without(monkeypatch):
    pendulum = loaded("pendulum")
    seen: list[Any] = []
    monkeypatch.setattr(pendulum, "evaluated", lambda agent: seen.append(agent.replay_buffer) or -float(len(seen)))
    assert pendulum.returns(0, 130, 65, 1, None) == [-1, -2]
    assert pendulum.returns(0, 130, 65, 1, OPTIONS) == [-3, -4]
    assert not hasattr(seen[0], "synthetic")
    assert [refresh.added for refresh in seen[-1].synthetic.history] == [60, 120]


def test_pendulum_goes_on_where_it_was_stopped(monkeypatch, tmp_path, capsys):
    pendulum = loaded("pendulum")
    done: list[tuple[int, bool]] = []

    def returns(seed: int, steps: int, every: int, updates: int, synthetic: Any) -> list[float]:
        done.append((seed, synthetic is not None))
        return [seed - 100.0, seed + 10.0 * (synthetic is not None)]

    monkeypatch.setattr(pendulum, "returns", returns)
    monkeypatch.setattr(pendulum, "aggregate", lambda scores: {name: means(runs) for name, runs in scores.items()})
    monkeypatch.setattr(pendulum, "improvement", lambda one, other: Interval(np.mean(one > other), 0, 1))
    monkeypatch.setattr(sys, "argv", ["pendulum.py", "--seeds=2", f"--out={tmp_path}/p"])
    pendulum.main()
    assert done == [(seed, way) for seed in (0, 1) for way in (False, False, True)]
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--first-seed=1"])
    pendulum.main()
    assert done[6:] == [(2, False), (2, False), (2, True)]
    text = (tmp_path / "p.md").read_text()
    assert text in capsys.readouterr().out
    assert "| 20 updates, half synthetic | -98 ± 0 | 12 ± 0 |" in text
    assert "| last | 20 updates, real | 2 [1, 2] | 2 [1, 2] | 1.00 [0.00, 1.00] |" in text
    assert "| whole curve | 20 updates, half synthetic | -44 [-44, -43] | -44 [-44, -43] |  |" in text
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--updates=5"])
    with pytest.raises(SystemExit, match="runs with other options"):
        pendulum.main()


def means(runs: np.ndarray) -> Aggregate:
    return Aggregate(*[Interval(runs.mean(), runs.min(), runs.max())] * 4)


def loaded(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

from __future__ import annotations

import sys

import interleaved


def test_versions_take_turns_and_their_medians_are_compared(tmp_path, monkeypatch):
    """Of as much work as was asked for, in each of the two folders."""
    seconds, ran = iter([1.0, 2.0, 30.0, 3.0, 4.0, 50.0]), []

    def timed(tree, script):
        ran.append((tree.name, script.partition("\n")[0]))
        return next(seconds)

    monkeypatch.setattr(interleaved, "_seconds", timed)
    options = ["--repeats", "3", "--only", "iql", "--scale", "0.1", "--out", str(tmp_path / "table.md")]
    monkeypatch.setattr(sys, "argv", ["interleaved.py", str(tmp_path / "old"), str(tmp_path / "new"), *options])
    interleaved.main()
    told = [("old", "NEW, DEVICE, COUNT = False, 'cpu', 30"), ("new", "NEW, DEVICE, COUNT = True, 'cpu', 30")]
    assert ran == 3 * told
    (line,) = [line for line in (tmp_path / "table.md").read_text().splitlines() if line.startswith("| iql")]
    assert [cell.strip() for cell in line.split("|")[2:5]] == ["4.0 s", "3.0 s", "0.75"]


def test_a_script_says_how_long_its_work_took(tmp_path):
    assert interleaved._seconds(tmp_path, "import os; print('a table'); print(len(os.listdir()) + 0.25)") == 0.25

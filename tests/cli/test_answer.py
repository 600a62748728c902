"""Tables and paragraphs as a person sees them."""

from __future__ import annotations

import pytest

from synther.cli.answer import over, say, standing, table
from synther.experiments.results import EvalPoint


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")


def test_numbers_stand_at_their_right_edge_and_nothing_follows_a_line(capsys):
    table(("name", "value", "share", "better"), [("a", "-1,000.5", "5 %", "higher"), ("[red]", "2e-05", "-", "")])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines if line] == [
        ["name", "value", "share", "better"],
        ["\u2500" * len(lines[2].strip())],
        ["a", "-1,000.5", "5", "%", "higher"],
        ["[red]", "2e-05", "-"],
    ]
    assert lines == [line.rstrip() for line in lines]
    header, _, first, second = (line for line in lines if line)
    ends = [line.index(word) + len(word) for line, word in ((header, "value"), (first, "-1,000.5"), (second, "2e-05"))]
    assert len(set(ends)) == 1
    assert header.index("better") == first.index("higher")


def test_a_table_without_a_header_is_read_from_the_left(capsys):
    table(("", ""), [("rows", "6,000"), ("model", "m.safetensors")])
    first, second = filter(None, capsys.readouterr().out.splitlines())
    assert first.index("6,000") == second.index("m.safetensors")


def test_a_title_is_not_broken_by_a_narrow_table(capsys):
    table(("", ""), [("a", "1")], title="agents runs/a/long/name.safetensors")
    assert capsys.readouterr().out.startswith("agents runs/a/long/name.safetensors\n")


def test_a_paragraph_is_as_wide_as_the_terminal_and_breaks_no_name(narrow, capsys):
    say("- the rows were read from the file cheetah-run-collected.hdf5 of this machine")
    assert capsys.readouterr().out.splitlines() == [
        "- the rows were read from the file",
        "  cheetah-run-collected.hdf5 of this",
        "  machine",
    ]


def test_one_seed_has_no_std():
    alone, two = EvalPoint(300, (-1260.04,), None), EvalPoint(300, (1_000.0, 1_010.0), (1.0, None))
    assert standing("final", alone, "steps") == [("final return", "-1,260.0 after 300 steps")]
    assert standing("best", two, "updates") == [
        ("best score", "1.0 after 300 updates"),
        ("best return", "1,005.0 ± 5.0 after 300 updates"),
    ]
    assert (over(1), over(2)) == ("1 seed", "2 seeds: mean ± std")

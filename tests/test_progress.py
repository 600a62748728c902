from __future__ import annotations

import io
import re
import sys
from types import SimpleNamespace

import pytest

from synther.progress import Bars, Lines, Notebook, Silent, resolve


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines_of(total: int, amounts: list[int], start: int = 0, note: str = "", least: float = 0.0) -> list[str]:
    stream = io.StringIO()
    with Lines(stream, least=least).phase("fit", total, start) as phase:
        for amount in amounts:
            phase.advance(amount, note)
    return stream.getvalue().splitlines()


def shares(lines: list[str]) -> list[int]:
    return [int(match[1]) for line in lines if (match := re.match(r"fit: (\d+) % of", line))]


@pytest.mark.parametrize(
    ("total", "amounts", "start", "told"),
    [
        (1000, [10] * 100, 0, [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100]),
        (100, [35, 35, 30], 0, [0, 30, 70, 100]),
        (100_000, [1] * 50, 0, [0]),
        (100, [10, 10], 80, [90, 100]),
        (100, [], 100, []),
        (0, [], 0, []),
        (1, [1], 0, [0, 100]),
        (3, [1] * 3, 0, [0, 30, 60, 100]),
    ],
)
def test_a_line_every_tenth(total, amounts, start, told):
    assert shares(lines_of(total, amounts, start)) == told


def test_a_short_phase_has_two_lines():
    assert shares(lines_of(1000, [10] * 110, least=60.0)) == [0, 100]
    assert shares(lines_of(1000, [10] * 99, least=60.0)) == [0]


def test_a_line_has_name_share_total_time_and_note():
    *_, last = lines_of(12_000, [12_000], note="loss 0.5")
    assert re.fullmatch(r"fit: 100 % of 12,000, \d+\.\d s  loss 0\.5", last)
    *_, last = lines_of(12_000, [12_000])
    assert re.fullmatch(r"fit: 100 % of 12,000, \d+\.\d s", last)


def test_the_first_line_comes_before_the_work():
    stream = io.StringIO()
    with Lines(stream).phase("fit", 3_500):
        assert stream.getvalue() == "fit: 0 % of 3,500\n"
    with Lines(stream).phase("fit", 3_500, 1_000):
        assert stream.getvalue().endswith("fit: continues at 1,000 of 3,500\n")


def test_slow_work_has_lines_between_the_tenths(monkeypatch):
    clock = iter(range(0, 1000, 20))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    stream = io.StringIO()
    with Lines(stream, pause=30.0).phase("fit", 1_000) as phase:
        for _ in range(4):
            phase.advance(10)
    assert stream.getvalue().splitlines() == [
        "fit: 0 % of 1,000",
        "fit: 2 % of 1,000, 40.0 s, about 1960 s left",
        "fit: 4 % of 1,000, 80.0 s, about 1920 s left",
    ]


def test_a_notebook_has_a_bar(monkeypatch):
    display = pytest.importorskip("IPython.display")
    drawn: list[str] = []
    handle = SimpleNamespace(update=lambda picture: drawn.append(picture.data))

    def show(picture, display_id):
        drawn.append(picture.data)
        return handle

    monkeypatch.setattr(display, "display", show)
    monkeypatch.setattr(Notebook, "pause", 0.0)
    with Notebook().phase("fit <1>", 100, 20) as phase:
        phase.advance(30, "loss 0.5")
    assert "fit &lt;1&gt;" in drawn[0]
    assert '<progress value="20" max="100">' in drawn[0]
    assert '<progress value="50" max="100">' in drawn[-1]
    assert "loss 0.5" in drawn[-1]


def test_kernels_of_notebooks_are_recognised(monkeypatch):
    fake = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=1))
    monkeypatch.setitem(sys.modules, "IPython", fake)
    assert isinstance(resolve(True), Notebook)
    fake.get_ipython = lambda: None
    assert not isinstance(resolve(True), Notebook)


def test_all_is_drawn_on_stderr(capsys):
    with Silent().phase("fit", 1) as phase:
        phase.advance(1, "loss 1")
    assert capsys.readouterr() == ("", "")
    with Lines().phase("fit", 1) as phase:
        phase.advance(1)
    out, err = capsys.readouterr()
    assert (out, "100 %" in err) == ("", True)
    with Bars().phase("fit", 10, 4) as phase:
        phase.advance(6, "loss 0.25")
    out, err = capsys.readouterr()
    assert out == ""
    assert "fit" in err
    assert "10/10" in err
    assert "loss 0.25" in err


def test_resolve(monkeypatch):
    assert isinstance(resolve(False), Silent)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(resolve(True), Lines)
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert isinstance(resolve(True), Bars)
    own = Silent()
    assert resolve(own) is own

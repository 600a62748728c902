"""How many real rows agents on synthetic ones are worth, where that is known."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import worth

ROWS = (1_000, 2_000, 4_000, 8_000)


def seeds(rows: float, spread: float = 1.0) -> np.ndarray:
    """Scores of ten agents, which rise by 10 with twice the rows."""
    return 10 * np.log2(rows) + spread * np.linspace(-1, 1, 10)


def test_rows_are_worth_as_many_as_give_the_same_score() -> None:
    real = {rows: seeds(rows) for rows in ROWS}
    found = worth.worth(seeds(3_000), real)
    assert found.value == pytest.approx(3_000)
    assert 2_600 < found.low < 2_950 < 3_050 < found.high < 3_400
    wider = worth.worth(seeds(3_000, spread=5.0), real)
    assert wider.low < found.low < found.high < wider.high


def test_more_than_all_rows_and_less_than_the_fewest() -> None:
    real = {rows: seeds(rows) for rows in ROWS}
    assert worth.worth(seeds(20_000), real) == worth.Interval(np.inf, np.inf, np.inf)
    assert worth.worth(seeds(10), real).high == pytest.approx(1_000)
    dip = real | {4_000: seeds(500)}  # an unlucky part: the curve goes on from where it was
    assert worth.worth(seeds(2_000) - 1, dip).value < 2_000


def test_committed_runs_make_the_committed_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["worth.py", "--out", str(tmp_path / "worth.md")])
    worth.main()
    made, kept = (
        path.read_text().split("\n\n")[1] for path in (tmp_path / "worth.md", worth.RUNS.parents[1] / "worth.md")
    )
    assert made.strip() == kept.strip()
    assert (tmp_path / "worth.png").stat().st_size > 10_000
    monkeypatch.setattr(sys, "argv", ["worth.py", "--runs", str(tmp_path)])
    with pytest.raises(SystemExit, match="expected two or more"):
        worth.main()

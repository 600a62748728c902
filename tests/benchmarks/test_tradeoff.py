"""The picture of time against fidelity is drawn from the committed tables."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tradeoff


def test_every_point_is_in_the_tables() -> None:
    walker2d, halfcheetah = tradeoff.walker2d(), tradeoff.halfcheetah()
    assert walker2d["student"] == (0.168, 0.00947, 0.9858)
    assert walker2d["reference"] == (76, 0.0031, 0.978)
    assert halfcheetah["best"][0] == walker2d["best"][0]
    assert halfcheetah["tvae"][1:] == pytest.approx((0.24178, 0.9167), abs=1e-4)
    assert {*walker2d, *halfcheetah} == {*tradeoff.LABELS} == {*tradeoff.PLACES}
    with pytest.raises(SystemExit, match="nobody"):
        tradeoff.cell("speed-h200.md", "nobody", "reference")


def test_it_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["tradeoff.py", "--out", str(tmp_path / "picture.png")])
    tradeoff.main()
    assert (tmp_path / "picture.png").stat().st_size > 10_000

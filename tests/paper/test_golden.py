"""The committed runs give the committed tables: what is published can be rebuilt from the files beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from synther.paper import find
from synther.paper.tables import Table

RESULTS = Path(__file__).parents[2] / "results"
TABLES = sorted(
    str(path.relative_to(RESULTS).with_suffix("")) for kind in RESULTS.iterdir() for path in kind.glob("*.md")
)


def test_there_are_tables_of_all_kinds() -> None:
    assert len(TABLES) >= 10
    assert {name.partition("/")[0] for name in TABLES} == {"offline", "online", "pixels"}


@pytest.mark.parametrize("name", TABLES)
def test_committed_runs_give_the_committed_table(name: str) -> None:
    """When this fails because a preset or a name has changed, run `synther paper table NAME --out results/KIND`."""
    pytest.importorskip("rliable")
    place = RESULTS / name
    committed = json.loads(place.with_suffix(".json").read_text())
    table = Table.of(find(place.name), place.parent)
    found = json.loads(json.dumps(table.to_json(committed["origin"])))
    assert found == committed
    assert table.markdown(committed["origin"]) == place.with_suffix(".md").read_text()

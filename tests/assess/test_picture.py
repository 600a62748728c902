from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from synther.assess.fidelity import column_names, compare
from synther.assess.picture import MAX_PANELS, _panels, draw
from synther.data.transitions import Transitions


def rows(count: int, width: int, seed: int, discrete: bool = False) -> Transitions:
    rng = np.random.default_rng(seed)
    return Transitions(
        observation=rng.normal(size=(count, width)),
        action=rng.integers(0, 3, count) if discrete else rng.uniform(-1, 1, (count, 2)),
        reward=np.ones(count),
        next_observation=rng.normal(size=(count, width)),
        env_id="Hopper-v5",
    )


@pytest.mark.parametrize(("width", "discrete", "count"), [(40, True, 200), (1, True, 1)])
def test_a_picture_is_written_whole(tmp_path: Path, width: int, discrete: bool, count: int) -> None:
    target = tmp_path / "new" / "likeness.png"
    draw(rows(count, width, 0, discrete), rows(count, width, 1, discrete), target)
    data = target.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert data.rstrip().endswith(b"IEND\xaeB`\x82")
    assert [path.name for path in target.parent.iterdir()] == ["likeness.png"]


def test_the_least_alike_columns_come_first_when_there_are_many() -> None:
    real, synthetic = rows(100, 40, 0), rows(100, 40, 1)
    found, names = compare(real, synthetic), column_names(real)
    chosen = _panels(names, found)
    likeness = [found.columns[names[at]] for at in chosen]
    assert len(chosen) == MAX_PANELS
    assert likeness == sorted(likeness)
    assert not any(names[at].startswith(("next", "terminal")) for at in chosen)
    few = rows(100, 3, 0)
    assert [column_names(few)[at] for at in _panels(column_names(few), compare(few, few))][-1] == "reward"

"""200 kills of whole process groups, over every verb, the background refresh and Ray: see `kills.py`."""

from __future__ import annotations

import pytest

from . import kills


@pytest.mark.slow
@pytest.mark.parametrize("name", kills.COMMANDS)
def test_killed_at_random_it_ends_with_the_same_result(name: str, tmp_path) -> None:
    (line,) = kills.run(tmp_path, -(-200 // len(kills.COMMANDS)), [name])
    assert line.kills * len(kills.COMMANDS) >= 200

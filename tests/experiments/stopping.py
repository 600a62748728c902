"""Work that is brought down before or after one of its calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

Place = tuple[Any, str, bool, int]
"""Whose call, its name, whether after it, and the how many-th."""


class Stopped(BaseException):
    """Nobody catches it, as nobody catches a kill."""


def stop(work: Callable[[], object], owner: Any, name: str, after: bool, call: int) -> None:
    """Let `work` go on until the n-th call of what `owner` has under a name."""
    whole, calls = getattr(owner, name), 0

    def stopping(*given, **named):
        nonlocal calls
        calls += 1
        if calls == call and not after:
            raise Stopped
        answer = whole(*given, **named)
        if calls == call:
            raise Stopped
        return answer

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owner, name, stopping)
        with pytest.raises(Stopped):
            work()


def stop_at_each(places: Iterable[Place], run: Callable[[Path], object], folder: Path) -> Iterator[Place]:
    """Each of the places where it was stopped, in the order of time; at none of them is there a result yet."""
    for place in places:
        stop(lambda: run(folder), *place)
        assert not (folder / "result.json").exists()
        yield place

"""Work that is brought down before or after one of its calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


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

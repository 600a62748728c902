"""For scripts that are to be killed while they work."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

SLOW = """
import time
from contextlib import contextmanager

class Slow:
    def __init__(self, seconds):
        self.seconds = seconds
    @contextmanager
    def phase(self, name, total, start=0):
        yield self
    def advance(self, amount, note=""):
        time.sleep(self.seconds)
"""
"""Progress that takes so many seconds at every report, so that there is time to be killed in."""


def killed(script: str, *arguments: object, once: Callable[[], bool], cwd: Path | None = None) -> None:
    """Run a script in a process of its own, and kill it as soon as `once` holds, which has to come before its end."""
    victim = subprocess.Popen([sys.executable, "-c", script, *map(str, arguments)], cwd=cwd)
    deadline = time.monotonic() + 60
    while not once():
        assert victim.poll() is None, "ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    victim.send_signal(signal.SIGKILL)
    assert victim.wait() == -signal.SIGKILL

"""For scripts that are to be killed while they work."""

from __future__ import annotations

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

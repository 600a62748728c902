"""When agents are measured while they train."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """After every so many updates, or steps of online runs, and after the last one."""

    every: int
    last: int

    def includes(self, time: int) -> bool:
        return time == self.last or time % self.every == 0

    def after(self, time: int) -> int:
        """The first one after so many updates."""
        return min(self.last, (time // self.every + 1) * self.every)

    def until(self, time: int) -> list[int]:
        """All that are due after so many updates."""
        last = [time] if time == self.last and time % self.every else []
        return [*range(self.every, time + 1, self.every), *last]

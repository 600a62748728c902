"""What data sets are called: in papers, in the names of D4RL's files, and as Minari's ids."""

from __future__ import annotations

import re
from dataclasses import dataclass

from synther.datasets.regenerated import ENV_IDS

REPLAY = "medium-replay"
MIXED = "mixed"
"""Our own recordings of everything an agent met while it learned: the same kind of data as D4RL's medium-replay."""

REPLAYS = (REPLAY, "full-replay", MIXED)
"""What an agent met while it learned."""

_LOCOMOTION = ("random", "medium", "expert", "medium-expert", *REPLAYS)
_LEVELS = {
    **dict.fromkeys(ENV_IDS, _LOCOMOTION),
    "maze2d": ("umaze", "medium", "large"),
    "antmaze": ("umaze", "umaze-diverse", "medium-play", "medium-diverse", "large-play", "large-diverse"),
}

_IN_MINARI = {"maze2d": "pointmaze"}
_MINARI_ID = re.compile(r"(?:d4rl|mujoco)/(?P<env>[a-z0-9]+)/(?P<level>[a-z-]+)")
_ANT_FILE = re.compile(
    r"ant-maze-(?P<maze>u|big|hardest)-maze-noisy-multistart-(?P<starts>true|false)-multigoal-(?P<goals>true|false)"
    r"-sparse(-fixed)?"
)
_ANT_SIZES = {"u": "umaze", "big": "medium", "hardest": "large"}


@dataclass(frozen=True)
class Task:
    """A data set of D4RL, or one like it."""

    env: str
    level: str

    @property
    def name(self) -> str:
        return f"{self.env}-{self.level}"

    @property
    def is_maze(self) -> bool:
        return self.env not in ENV_IDS

    def is_of(self, env_id: str) -> bool:
        """Whether the environment of that id has its body."""
        return any(body in env_id.lower() for body in (self.env, _IN_MINARI.get(self.env, self.env)))

    def minari(self, namespace: str) -> str:
        """Minari's id in a namespace, without a version."""
        return f"{namespace}/{_IN_MINARI.get(self.env, self.env)}/{self.level}"


def canonical(text: str) -> str:
    """`hopper-medium-replay` of `hopper_medium_replay-v2`, `maze2d-umaze` of `D4RL/pointmaze/umaze-v2`, and so on.

    Small letters, dashes, no version. What is not known is only spelt so.
    """
    plain = re.sub(r"-v\d+$", "", text.lower().replace("_", "-"))
    minari, ant = _MINARI_ID.fullmatch(plain), _ANT_FILE.fullmatch(plain)
    if minari:
        own = {there: here for here, there in _IN_MINARI.items()}
        return f"{own.get(minari['env'], minari['env'])}-{minari['level']}"
    if ant:
        kind = "diverse" if ant["goals"] == "true" else "play" if ant["starts"] == "true" else ""
        return f"antmaze-{_ANT_SIZES[ant['maze']]}" + (f"-{kind}" if kind else "")
    return re.sub(r"^(maze2d-\w+)-sparse$", r"\1", plain)


def task_of(name: str) -> Task | None:
    """The task that a name means, in whatever spelling; None where it means none that is known here."""
    env, _, level = canonical(name).partition("-")
    return Task(env, level) if level in _LEVELS.get(env, ()) else None


def known() -> tuple[str, ...]:
    """All names of tasks."""
    return tuple(f"{env}-{level}" for env, levels in _LEVELS.items() for level in levels)

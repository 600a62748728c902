"""What trained agents that see are worth, found out wherever frames can be drawn: that need not be where they trained.

A training leaves behind `policy.safetensors` and, last of all, `trained.json`. These and `run.json` are all that is
needed here. Every episode that is over is a line of `episodes.jsonl`, so an evaluation that was stopped goes on. A line
says which policy was played, and counts for no other.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from synther.durable import replacing
from synther.envs.pixels import REPEAT
from synther.envs.scores import reference
from synther.errors import ConfigError
from synther.experiments.folder import append_line, write_object
from synther.experiments.measurements import Result, Standing
from synther.experiments.pixels.trained import POLICY, description, result_of
from synther.pixels import evaluation
from synther.pixels.evaluation import Place, Played
from synther.pixels.policy import load_pixel_policy
from synther.progress import Progress, resolve


def why_not(folder: Path, env_id: str | None = None) -> str | None:
    """What keeps the run in `folder` from being evaluated here, in words; None where nothing does.

    The environment is that of its frames, unless `env_id` names it.
    """
    wanted = env_id or description(folder)["env_id"]
    if wanted is None:
        return f"its frames name no environment: `synther pixels evaluate {folder} --env-id` does"
    return evaluation.obstacle(wanted)


def evaluate(
    folder: Path,
    *,
    episodes: int = 10,
    env_id: str | None = None,
    workers: int | None = None,
    progress: Progress | bool = True,
) -> Result:
    """Play `episodes` episodes with every seed of the run in `folder`, and write its `result.json`.

    They are played in `env_id`, or where that is None in the environment of the run's frames. Episodes that were played
    before are not played again, also where fewer of them were asked for then.
    """
    about, obstacle = description(folder), why_not(folder, env_id)
    if obstacle is not None:
        raise ConfigError(obstacle)
    env_id, seeds = env_id or about["env_id"], about["seeds"]
    policy, repeat = load_pixel_policy(folder / POLICY), about["action_repeat"] or REPEAT
    book = _Book(folder / "episodes.jsonl", _digest(folder / POLICY, env_id, repeat))
    total = len(seeds) * episodes
    found = {place: played for place, played in book.played.items() if place.episode < episodes}
    with resolve(progress).phase("evaluate", total, len(found)) as phase:
        left = evaluation.play(
            policy,
            env_id,
            seeds,
            episodes=episodes,
            repeat=repeat,
            workers=workers,
            done=found.keys(),
        )
        for place, played in left:
            book.add(place, played)
            found[place] = played
            phase.advance(1, "diverged" if played.total is None else f"return {played.total:,.1f}")
    result = _result(result_of(folder), env_id, len(seeds), found)
    write_object(folder / "result.json", result.to_json())
    return result


def _result(trained: Result, env_id: str, members: int, found: dict[Place, Played]) -> Result:
    """The training with how its agents stood at the end."""
    (arm,) = trained.curves
    known, returns = reference(env_id), []
    for member in range(members):
        own = [played.total for place, played in found.items() if place.member == member]
        there = [total for total in own if total is not None]
        # Sorted: they came to their ends in any order, and sums are rounded by it.
        returns.append(float(np.mean(sorted(there))) if len(there) == len(own) else None)
    scores = None
    if known is not None:
        scores = tuple(None if value is None else float(known.score(value)) for value in returns)
    lost = set(trained.diverged[arm]) | {member for member, value in enumerate(returns) if value is None}
    standing = Standing(trained.updates, tuple(returns), scores)
    return replace(trained, curves={arm: (standing,)}, diverged={arm: tuple(sorted(lost))})


def _digest(policy: Path, env_id: str, repeat: int) -> str:
    """By what is known whether an episode is of this policy, in this environment."""
    with policy.open("rb") as file:
        found = hashlib.file_digest(file, "sha256")
    found.update(f"{env_id} {repeat}".encode())
    return found.hexdigest()[:16]


class _Book:
    """The episodes of `policy` that are over, one a line, each on the disk before anything builds on it."""

    def __init__(self, path: Path, policy: str) -> None:
        self.path, self.policy = path, policy
        text = path.read_text() if path.exists() else ""
        self.played: dict[Place, Played] = {}
        for line in text.splitlines(keepends=True):
            found = self._parsed(line)
            if found is not None:
                self.played[found[0]] = found[1]
        kept = "".join(self._line(*entry) for entry in self.played.items())
        if kept != text:
            with replacing(path) as beside:
                beside.write_text(kept)

    def add(self, place: Place, played: Played) -> None:
        append_line(self.path, self._line(place, played))
        self.played[place] = played

    def _line(self, place: Place, played: Played) -> str:
        entry = {**place._asdict(), "return": played.total, "length": played.length, "policy": self.policy}
        return json.dumps(entry) + "\n"

    def _parsed(self, line: str) -> tuple[Place, Played] | None:
        """None where the line was cut, is none of ours, or is of another policy: that episode is played again."""
        try:
            found = json.loads(line)
            place, played = Place(found["member"], found["episode"]), Played(found["return"], found["length"])
            return (place, played) if self._line(place, played) == line else None
        except (ValueError, TypeError, KeyError):
            return None

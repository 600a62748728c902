"""What trained agents that see are worth, found out wherever frames can be drawn: that need not be where they trained.

A training leaves behind `policy.safetensors` and, last of all, `trained.json`. These and `run.json` are all that is
needed here. Every episode that is over is a line of `episodes.jsonl`, so an evaluation that was stopped goes on. A line
says which policy was played, and counts for no other.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np

from synther.durable import replacing
from synther.envs.pixels import REPEAT
from synther.envs.scores import reference
from synther.errors import ConfigError
from synther.experiments.measurements import Result, Standing
from synther.experiments.pixels.trained import POLICY, description, result_of
from synther.folder import RunFolder, append_line, write_object
from synther.pixels import evaluation
from synther.pixels.evaluation import Place, Played
from synther.pixels.policy import PixelPolicy, load_pixel_policy
from synther.progress import Progress, resolve

log = logging.getLogger(__name__)


def why_not(folder: Path, env_id: str | None = None) -> str | None:
    """What keeps the run in `folder` from being evaluated here, in words; None where nothing does.

    The environment is that of its frames, unless `env_id` names it.
    """
    wanted = env_id or description(folder)["env_id"]
    if wanted is None:
        return f"its frames name no environment: `synther pixels evaluate {folder} --env-id` does"
    try:
        evaluation.check_sight(load_pixel_policy(folder / POLICY).encoder.frame)
    except ConfigError as error:
        return str(error)
    return evaluation.obstacle(wanted)


def evaluate(
    folder: Path,
    *,
    episodes: int = 10,
    env_id: str | None = None,
    repeat: int | None = None,
    workers: int | None = None,
    progress: Progress | bool = True,
) -> Result:
    """Play `episodes` episodes with every seed of the run in `folder`, and write its `result.json`.

    They are played in `env_id`, or where that is None in the environment of the run's frames, every action `repeat`
    times, or as often as for those. Episodes that were played before are not played again, also where fewer of them
    were asked for then.
    """
    about, obstacle = description(folder), why_not(folder, env_id)
    if obstacle is not None:
        raise ConfigError(obstacle)
    env_id, seeds = env_id or about["env_id"], about["seeds"]
    policy, repeat = load_pixel_policy(folder / POLICY), about["action_repeat"] if repeat is None else repeat
    if repeat is None:
        repeat = REPEAT
        log.warning("the frames do not say how often each action was done: taken to be %d times (--repeat)", repeat)
    with RunFolder(folder).lock():
        return _evaluated(folder, policy, env_id, seeds, episodes, repeat, workers, resolve(progress))


def _evaluated(
    folder: Path,
    policy: PixelPolicy,
    env_id: str,
    seeds: list[int],
    episodes: int,
    repeat: int,
    workers: int | None,
    progress: Progress,
) -> Result:
    book = _Book(folder / "episodes.jsonl", _digest(folder / POLICY, env_id, repeat))
    total = len(seeds) * episodes
    found = {place: played for place, played in book.played.items() if place.episode < episodes}
    with progress.phase("evaluate", total, len(found)) as phase:
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
    where = f"{env_id}, {episodes} episodes of each seed, every action {repeat} times"
    result = replace(result, origin={**result.origin, "environment": where})
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
    """The episodes of `policy` that are over, one a line, each on the disk before anything builds on it.

    Those of other policies, or in other environments, stay where they are.
    """

    def __init__(self, path: Path, policy: str) -> None:
        self.path, self.policy = path, policy
        text = path.read_text() if path.exists() else ""
        self.played: dict[Place, Played] = {}
        lines = [(line, _parsed(line)) for line in text.splitlines(keepends=True)]
        for _, found in lines:
            if found is not None and found[0] == policy:
                self.played[found[1]] = found[2]
        kept = "".join(line for line, found in lines if found is not None)
        if kept != text:
            with replacing(path) as beside:
                beside.write_text(kept)

    def add(self, place: Place, played: Played) -> None:
        append_line(self.path, _line(self.policy, place, played))
        self.played[place] = played


def _line(policy: str, place: Place, played: Played) -> str:
    entry = {**place._asdict(), "return": played.total, "length": played.length, "policy": policy}
    return json.dumps(entry) + "\n"


def _parsed(line: str) -> tuple[str, Place, Played] | None:
    """The policy that was played, and what came of it; None where the line was cut or is none of ours."""
    try:
        found = json.loads(line)
        place, played = Place(found["member"], found["episode"]), Played(found["return"], found["length"])
        return (found["policy"], place, played) if _line(found["policy"], place, played) == line else None
    except (ValueError, TypeError, KeyError):
        return None

"""Record frames of whole episodes in worker processes: while policies act on states, or from recorded states.

Workers import this module, so it must not import PyTorch.
"""

from __future__ import annotations

import atexit
import itertools
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from synther.data.transitions import Transitions
from synther.envs.camera import check_shadow_size, graphics
from synther.envs.episodes import RECORDINGS, Key, seed_of
from synther.envs.pixels import PixelEnv
from synther.envs.policies import Policy
from synther.envs.redrawing import redraw
from synther.envs.workers import Workers, in_order
from synther.errors import DataError
from synther.pixels.frames import Frames
from synther.progress import Progress

Array = NDArray[Any]


class Look(NamedTuple):
    """Settings of a rendered task: how it is stepped and rendered."""

    env_id: str
    repeat: int
    size: int
    shadow_size: int | None
    backend: str
    """Graphics library, see `camera.graphics`."""

    @classmethod
    def here(cls, env_id: str, repeat: int, size: int, shadow_size: int | None) -> Look:
        """Create the settings with the graphics library of this machine."""
        if shadow_size is not None:
            check_shadow_size(shadow_size)
        return cls(env_id, repeat, size, shadow_size, graphics())

    def env(self) -> PixelEnv:
        """Open an environment with these settings."""
        how: dict[str, Any] = {"repeat": self.repeat, "size": self.size, "shadow_size": self.shadow_size}
        return PixelEnv(self.env_id, **how, backend=self.backend)

    def frames(self, images: Array, actions: Array, rewards: Sequence[float], terminal: bool, **bounds: Any) -> Frames:
        """Return one episode as `Frames`. `terminal` says whether its last record is terminal."""
        discount = np.ones(len(images), np.float32)
        discount[-1] = 1 - terminal
        fields: dict[str, Any] = {"env_id": self.env_id, "action_repeat": self.repeat, "shadow_size": self.shadow_size}
        first = np.arange(len(images)) == 0
        return Frames(images, actions, np.array(rewards), discount, first, **fields, **bounds)


def play(
    look: Look,
    policies: Sequence[Policy],
    decisions: int,
    longest: int,
    *,
    seed: int,
    done: Sequence[int],
    processes: int,
    progress: Progress,
) -> Iterator[Frames]:
    """Play episodes and yield their frames. Each policy gets an equal share of all `decisions`.

    The last episode of each share may be cut. An episode that reaches its time limit has `longest` decisions. `done`
    has the number of decisions of each episode that was recorded before, in order; these are not played again.
    """
    shares = [end - start for start, end in pairwise(decisions * n // len(policies) for n in range(len(policies) + 1))]
    have, numbers, remaining_done = [0] * len(shares), [itertools.count() for _ in shares], list(done)
    with Workers(processes) as workers, progress.phase(f"record {look.env_id}", decisions, sum(done)) as phase:
        while have != shares:  # another round is only needed if an episode ended before its time limit
            # Policy, number and maximum length of each episode of this round.
            plan = [
                (which, next(numbers[which]), min(longest, share - start))
                for which, share in enumerate(shares)
                for start in range(have[which], share, longest)
            ]
            existing, remaining_done = remaining_done[: len(plan)], remaining_done[len(plan) :]
            for (which, _, _), length in zip(plan, existing, strict=False):
                have[which] += length
            plan = plan[len(existing) :]
            given = [(look, policies[which], (RECORDINGS, seed, which, number), most) for which, number, most in plan]
            for (which, _, _), episode in zip(plan, in_order(workers, _played, given), strict=True):
                have[which] += len(episode) - 1
                phase.advance(len(episode) - 1)
                yield episode


def draw(
    look: Look, rows: Transitions, spans: Sequence[slice], *, done: Sequence[int], processes: int, progress: Progress
) -> Iterator[Frames]:
    """Render every state of the episodes of `rows`, and yield the frames of each episode.

    Each of the `spans` is an episode. The first `len(done)` episodes exist already and are skipped.
    """
    given = ((look, rows[span]) for span in spans[len(done) :])
    with Workers(processes) as workers, progress.phase(f"draw {look.env_id}", len(rows), sum(done)) as phase:
        for episode in in_order(workers, _drawn, given):
            phase.advance(len(episode) - 1)
            yield episode


def _played(look: Look, policy: Policy, key: Key, most: int) -> Frames:
    """Play one episode with at most `most` decisions. Runs in a worker."""
    env = _env(look)
    rng = np.random.default_rng(np.random.SeedSequence(key).spawn(1)[0])
    env.reset(seed_of(key))
    images, actions, rewards = [env.frame], [np.zeros_like(env.low)], [0.0]
    terminal = timeout = False
    while len(images) <= most and not (terminal or timeout):
        action = np.asarray(policy.act(env.state[None], rng)[0], np.float32)
        if not np.isfinite(action).all():
            raise DataError(f"{look.env_id}: the policy's action is not finite: it has diverged in training")
        _, reward, terminal, timeout = env.step(action)
        images.append(env.frame)
        actions.append(action)
        rewards.append(reward)
    return look.frames(np.stack(images), np.stack(actions), rewards, terminal, low=env.low, high=env.high)


def _drawn(look: Look, rows: Transitions) -> Frames:
    """Render the frames of one episode, `rows`. Runs in a worker."""
    observations = np.concatenate([rows.observation, rows.next_observation[-1:]])
    images = redraw(look.env_id, observations, rows.action, look.size, look.backend, look.shadow_size)
    actions = np.concatenate([np.zeros_like(rows.action[:1]), rows.action])
    return look.frames(images, actions, [0.0, *rows.reward], bool(rows.terminal[-1]))


@cache
def _env(look: Look) -> PixelEnv:
    """Open an environment on the first call. It stays open until the worker process ends."""
    env = look.env()
    atexit.register(env.close)
    return env

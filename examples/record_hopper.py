"""Record the replay data that ships with SynthER: all steps of one SAC agent while it learned Hopper-v5.

    pip install 'synther[gym,sb3]'
    python examples/record_hopper.py --steps 20000 --seed 0 --out hopper-sac.npz

The file has the compact format, which stores each observation once. For each episode, `observations` has one row more
than there are steps, so that the last next observation of an episode is also stored.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback

from synther.durable import replacing

ENV_ID = "Hopper-v5"
PROGRESS_EVERY = 1_000


class Recorder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Records all observations, actions and rewards of an environment, episode by episode."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observations: list[np.ndarray] = []
        self.actions: list[np.ndarray] = []
        self.rewards: list[float] = []
        self.episode_lengths: list[int] = []
        self.terminated: list[bool] = []
        self.returns: list[float] = []
        self._length = 0
        self._return = 0.0

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        self._close_episode(terminated=False)
        observation, info = self.env.reset(**options)
        if len(self.observations) > len(self.actions) + len(self.episode_lengths):
            self.observations.pop()  # the previous episode had no steps
        self.observations.append(np.asarray(observation, np.float32))
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.observations.append(np.asarray(observation, np.float32))
        self.actions.append(np.asarray(action, np.float32))
        self.rewards.append(float(reward))
        self._length += 1
        self._return += float(reward)
        if terminated or truncated:
            self._close_episode(terminated)
        return observation, reward, terminated, truncated, info

    def _close_episode(self, terminated: bool) -> None:
        if self._length:
            self.episode_lengths.append(self._length)
            self.terminated.append(bool(terminated))
            self.returns.append(self._return)
        self._length, self._return = 0, 0.0

    def compact(self) -> dict[str, np.ndarray]:
        """Return everything that was recorded. An unfinished episode counts as truncated."""
        self._close_episode(terminated=False)
        steps, episodes = len(self.actions), len(self.episode_lengths)
        observations = self.observations[: steps + episodes]  # without the reset of an episode without steps
        return {
            "observations": np.stack(observations),
            "actions": np.stack(self.actions),
            "rewards": np.asarray(self.rewards, np.float32),
            "episode_lengths": np.asarray(self.episode_lengths, np.int32),
            "terminated": np.asarray(self.terminated, bool),
            "env_id": np.asarray(ENV_ID),
        }


class ProgressLine(BaseCallback):
    """Shows steps, steps per second and the mean return of the last ten episodes, in a line that is overwritten."""

    def __init__(self, recorder: Recorder, steps: int) -> None:
        super().__init__()
        self.recorder, self.steps, self.started = recorder, steps, time.monotonic()

    def _on_step(self) -> bool:
        done = self.num_timesteps
        if done % PROGRESS_EVERY == 0 or done == self.steps:
            rate = done / (time.monotonic() - self.started)
            recent = np.mean(self.recorder.returns[-10:] or [0.0])
            print(
                f"\r{done:,} of {self.steps:,} steps, {rate:.0f} a second, return {recent:.0f} ",
                end="",
                file=sys.stderr,
            )
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20_000, help="environment steps (default 20000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="the .npz file to write")
    options = parser.parse_args()

    torch.set_num_threads(2)  # more threads do not make small networks faster
    recorder = Recorder(gymnasium.make(ENV_ID))
    agent = SAC("MlpPolicy", recorder, seed=options.seed, device="cpu")
    agent.learn(options.steps, callback=ProgressLine(recorder, options.steps))
    print(file=sys.stderr)

    columns = recorder.compact()
    with replacing(options.out) as unfinished:
        np.savez_compressed(unfinished, **columns)
    print(
        f"{options.out}: {len(columns['actions']):,} steps, {len(columns['episode_lengths'])} episodes, "
        f"{int(columns['terminated'].sum())} of them terminated, {options.out.stat().st_size / 1e6:.2f} MB; "
        f"mean return of the first ten episodes {np.mean(recorder.returns[:10]):.0f}, "
        f"of the last ten {np.mean(recorder.returns[-10:]):.0f}"
    )


if __name__ == "__main__":
    main()

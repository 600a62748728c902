"""SAC of Stable-Baselines3 on Pendulum-v1, with and without synthetic replay: mean return after so many steps.

    pip install 'synther[gym,sb3]'
    python examples/pendulum.py --steps 1000 --updates 10 --seeds 4

Three ways are compared: one update a step on real rows, `--updates` a step on real rows, and as many on batches that
are half synthetic. Each return is the mean of ten evaluation episodes that all seeds share; the best possible is
about -150, an agent that does nothing gets about -1200.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.evaluation import evaluate_policy

from synther import preset
from synther.integrations.sb3 import SyntheticReplayBuffer

GENERATOR = preset("laptop", network={"width": 128, "depth": 3}, fit={"steps": 1500})
"""Rows of Pendulum have nine columns: a smaller network than the preset's learns them in seconds."""


def returns(seed: int, steps: int, every: int, updates: int, synthetic: dict[str, Any] | None) -> list[float]:
    """Mean return of the policy, without noise, after every `every` steps."""
    agent = SAC(
        "MlpPolicy",
        "Pendulum-v1",
        seed=seed,
        device="cpu",
        learning_starts=250,
        buffer_size=steps,
        batch_size=128,
        learning_rate=1e-3,
        gradient_steps=updates,
        policy_kwargs={"net_arch": [64, 64]},
        replay_buffer_class=None if synthetic is None else SyntheticReplayBuffer,
        replay_buffer_kwargs=synthetic,
    )
    measured = []
    for _ in range(steps // every):
        agent.learn(every, reset_num_timesteps=False)
        measured.append(evaluated(agent))
    return measured


def evaluated(agent: SAC) -> float:
    env = gymnasium.make("Pendulum-v1")
    env.reset(seed=12345)
    mean, _ = evaluate_policy(agent, env, n_eval_episodes=10, warn=False)
    return float(mean)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000, help="environment steps (default 1000)")
    parser.add_argument("--every", type=int, default=250, help="steps between two evaluations (default 250)")
    parser.add_argument("--updates", type=int, default=10, help="updates a step where there are many (default 10)")
    parser.add_argument("--refresh-every", type=int, default=250, help="real rows between two refits (default 250)")
    parser.add_argument("--samples", type=int, default=20_000, help="synthetic rows (default 20000)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)

    generated = {"refresh_every": chosen.refresh_every, "samples": chosen.samples}
    generated |= {"preset": GENERATOR, "progress": False}
    ways: dict[str, tuple[int, dict[str, Any] | None]] = {
        "1 update, real": (1, None),
        f"{chosen.updates} updates, real": (chosen.updates, None),
        f"{chosen.updates} updates, half synthetic": (chosen.updates, generated),
    }
    marks = range(chosen.every, chosen.steps + 1, chosen.every)
    print(f"| {'way':27} | " + " | ".join(f"{mark:>13,}" for mark in marks) + " | seconds a seed |")
    print(f"|{'-' * 29}|" + f"{'-' * 15}|" * len(marks) + "----------------|")
    for name, (updates, synthetic) in ways.items():
        began = time.monotonic()
        curves = np.array(
            [returns(seed, chosen.steps, chosen.every, updates, synthetic) for seed in range(chosen.seeds)]
        )
        seconds = (time.monotonic() - began) / chosen.seeds
        cells = (f"{mean:6.0f} ± {error:4.0f}" for mean, error in zip(*spread(curves), strict=True))
        print(f"| {name:27} | " + " | ".join(f"{cell:>13}" for cell in cells) + f" | {seconds:14.0f} |", flush=True)


def spread(curves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over seeds (S, T), and its standard error."""
    errors = curves.std(0, ddof=1) / np.sqrt(len(curves)) if len(curves) > 1 else np.zeros(curves.shape[1])
    return curves.mean(0), errors


if __name__ == "__main__":
    main()

"""Compare SAC of Stable-Baselines3 on Pendulum-v1 with and without synthetic replay.

    pip install 'synther[gym,sb3,stats]'
    python examples/pendulum.py --out pendulum

Three ways to learn are compared: one update per step on real rows, `--updates` updates per step on real rows, and
`--updates` updates per step on batches that are half synthetic. A return is the mean of ten evaluation episodes, which
are the same for all seeds. The best possible return is about -150. An agent that does nothing gets about -1200. Runs
that are already in `--out` are not repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from synther import preset
from synther.compute import pick_device
from synther.durable import replacing
from synther.integrations.sb3 import SyntheticReplayBuffer
from synther.origin import origin
from synther.plots.statistics import Interval, aggregate, improvement

GENERATOR = preset("laptop", network={"width": 128, "depth": 3})
"""A smaller network than the preset's. It learns the nine columns of Pendulum rows in seconds."""
EPISODES = 10
BATCH = 128


def returns(seed: int, steps: int, every: int, updates: int, synthetic: dict[str, Any] | None) -> list[float]:
    """Train an agent, and return the mean return of its deterministic policy after every `every` steps."""
    agent = SAC(
        "MlpPolicy",
        "Pendulum-v1",
        seed=seed,
        device="cpu",
        learning_starts=100,
        buffer_size=max(steps, BATCH),
        batch_size=BATCH,
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
    """Return the mean return of an agent over the evaluation episodes."""
    envs = make_vec_env("Pendulum-v1", EPISODES, seed=12345)
    mean, _ = evaluate_policy(agent, envs, n_eval_episodes=EPISODES)
    return float(mean)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500, help="environment steps (default 500)")
    parser.add_argument("--every", type=int, default=50, help="steps between two evaluations (default 50)")
    parser.add_argument(
        "--updates", type=int, default=20, help="updates per step of the second and third way (default 20)"
    )
    parser.add_argument("--refresh-every", type=int, default=100, help="real rows between two refits (default 100)")
    parser.add_argument("--samples", type=int, default=20_000, help="synthetic rows (default 20000)")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="write all runs to OUT.json and the tables to OUT.md")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)

    generated = {"refresh_every": chosen.refresh_every, "samples": chosen.samples}
    generated |= {"preset": GENERATOR, "progress": False}
    ways: dict[str, tuple[int, dict[str, Any] | None]] = {
        "1 update, real": (1, None),
        f"{chosen.updates} updates, real": (chosen.updates, None),
        f"{chosen.updates} updates, half synthetic": (chosen.updates, generated),
    }
    setting = {name: value for name, value in vars(chosen).items() if name not in ("out", "seeds", "first_seed")}
    facts = origin(pick_device("cpu"))  # before the runs, because the checkout may change during them
    runs = Runs(chosen.out.with_suffix(".json"), setting, facts["synther"])
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.seeds)
    for seed in seeds:
        for name, (updates, synthetic) in ways.items():
            if not runs.has(name, seed):
                began = time.monotonic()
                found = returns(seed, chosen.steps, chosen.every, updates, synthetic)
                runs.keep(name, seed, found, time.monotonic() - began)
                print(f"seed {seed}, {name}: {', '.join(f'{value:.0f}' for value in found)}", flush=True)
    curves = {name: runs.curves(name, seeds) for name in ways}
    text = page(curves, chosen.every, {name: runs.seconds(name, seeds) for name in ways}, facts | runs.versions())
    with replacing(chosen.out.with_suffix(".md")) as beside:
        beside.write_text(text)
    print(text)


class Runs:
    """The returns of finished runs, in a file that is written after each run."""

    def __init__(self, path: Path, setting: dict[str, Any], version: str) -> None:
        self._path, self._version, self._content = path, version, {"setting": setting, "runs": {}}
        if path.exists():
            self._content = json.loads(path.read_text())
            if self._content["setting"] != setting:
                sys.exit(f"{path} has runs with other options, {self._content['setting']}: choose another --out")

    def has(self, way: str, seed: int) -> bool:
        return str(seed) in self._content["runs"].get(way, {})

    def keep(self, way: str, seed: int, found: list[float], seconds: float) -> None:
        run = {"returns": found, "seconds": seconds, "synther": self._version}
        self._content["runs"].setdefault(way, {})[str(seed)] = run
        with replacing(self._path) as beside:
            beside.write_text(json.dumps(self._content, indent=1))

    def curves(self, way: str, seeds: range) -> np.ndarray:
        """Return the returns of a way to learn, (seeds, evaluations)."""
        return np.array([self._content["runs"][way][str(seed)]["returns"] for seed in seeds])

    def seconds(self, way: str, seeds: range) -> float:
        return float(np.mean([self._content["runs"][way][str(seed)]["seconds"] for seed in seeds]))

    def versions(self) -> dict[str, str]:
        """Return the versions of SynthER that made the runs. They can differ from the present version."""
        found = {run["synther"] for way in self._content["runs"].values() for run in way.values()}
        return {"synther": ", ".join(sorted(found))}


def page(curves: dict[str, np.ndarray], every: int, seconds: dict[str, float], facts: dict[str, str]) -> str:
    """Return a page with the learning curves, their final and mean returns, and the probability that the last way is
    better than each other way."""
    seeds, marks = next(iter(curves.values())).shape
    named = {"command": f"python {' '.join(sys.argv)}", **facts}
    head = [f"    {name + ':':9}{value}" for name, value in named.items()]
    steps = [f"{every * (mark + 1):,}" for mark in range(marks)]
    table = [["way", *steps, "seconds a seed"]]
    for name, runs in curves.items():
        errors = runs.std(0, ddof=1) / np.sqrt(seeds) if seeds > 1 else np.zeros(marks)
        cells = [f"{mean:.0f} ± {error:.0f}" for mean, error in zip(runs.mean(0), errors, strict=True)]
        table.append([name, *cells, f"{seconds[name]:.0f}"])

    measures = {"last": {name: runs[:, -1:] for name, runs in curves.items()}}
    measures["whole curve"] = {name: runs.mean(1, keepdims=True) for name, runs in curves.items()}
    *others, last = curves
    summary = [["return", "way", "mean", "interquartile mean", f"probability that '{last}' is better"]]
    for measure, scores in measures.items():
        for name, found in aggregate(scores).items():
            better = _interval(improvement(scores[last], scores[name]), 2) if name in others else ""
            summary.append([measure, name, _interval(found.mean, 0), _interval(found.iqm, 0), better])
    title = f"Return after so many steps: mean of {seeds} seeds ± one standard error."
    intervals = "The last return of a run and the mean over its curve, with 95 % bootstrap intervals over the seeds."
    return "\n".join([*head, "", title, "", *_lines(table), "", intervals, "", *_lines(summary), ""])


def _interval(found: Interval, digits: int) -> str:
    return f"{found.value:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"


def _lines(rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]


if __name__ == "__main__":
    main()

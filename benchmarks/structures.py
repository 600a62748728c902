"""Whether generated rows keep what columns have to do with each other, in worlds that the presets were not tuned on.

    python benchmarks/structures.py --preset laptop --out results/structures.md

Fits a preset on 20,000 rows of each world, draws as many, and measures on both what the world guarantees: a goal that
stays in place, an angle that goes round, frames that move up in a stack, forces that are 0 together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from law_worlds import Array, on_circle, share
from machine import command_line, keep, origin, print_table

from synther import Synthesizer, Transitions
from synther.presets import PRESETS

ROWS = 20_000
NOISE, REACHED = 0.02, 0.1  # of a position that is pushed, and the distance from the goal at which an episode ends
STEP, SPEED = 0.05, 8.0  # seconds, and the highest speed of the pendulum
TOUCH = -0.8  # position below which a body touches the ground
RAYS = np.linspace(-2, 2, 8)

Figures = dict[str, float]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--preset", choices=PRESETS, default="laptop")
    parser.add_argument("--only", nargs="+", choices=WORLDS, default=list(WORLDS))
    parser.add_argument("--fit-steps", type=int, help="fit steps, if not the preset's: few make a smoke test")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    head = origin()
    lines = []
    for name in chosen.only:
        make, measure = WORLDS[name]
        real, began = make(chosen.seed), time.perf_counter()
        more: dict[str, Any] = {"fit": {"steps": chosen.fit_steps}} if chosen.fit_steps else {}
        model = Synthesizer(chosen.preset, seed=chosen.seed, **more).fit(real, progress=False)
        drawn = model.sample(len(real), seed=chosen.seed + 1, progress=False)
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
        known, found = measure(real), measure(drawn)
        lines += [[name, figure, f"{known[figure]:.4g}", f"{found[figure]:.4g}"] for figure in known]
    keep(chosen.out, head, print_table(["world", "figure", "real rows", chosen.preset], lines))


def goal(seed: int) -> Transitions:
    """A point between four walls that is pushed towards a goal, and a clock. Episodes of 50 steps."""
    draw, steps = np.random.default_rng(seed), 50
    many = ROWS // steps
    here, there = draw.uniform(-1, 1, (2, many, 2))
    parts = []
    for step in range(steps):
        action = draw.uniform(-1, 1, (many, 2))
        moved = np.clip(here + 0.1 * action + NOISE * draw.normal(size=(many, 2)), -1, 1)
        distance = np.linalg.norm(moved - there, axis=1)
        ended = distance < REACHED
        before, after = (
            np.concatenate([place, there, np.full((many, 1), number / steps)], 1)
            for place, number in ((here, step), (moved, step + 1))
        )
        parts.append((before, action, -distance, after, ended))
        here, there = (np.where(ended[:, None], draw.uniform(-1, 1, (many, 2)), each) for each in (moved, there))
    return _rows(parts)


def of_goal(rows: Transitions) -> Figures:
    before, after = rows.observation.astype(np.float64), rows.next_observation.astype(np.float64)
    distance = np.linalg.norm(after[:, :2] - after[:, 2:4], axis=1)
    free = np.abs(after[:, :2]) < 0.95
    return {
        "goal stays in place": share((after[:, 2:4] == before[:, 2:4]).all(1)),
        "clock goes on by a step": share(np.abs(after[:, 4] - before[:, 4] - 0.02) < 1e-3),
        "noise of a step / true": float(((after - before)[:, :2] - 0.1 * rows.action)[free].std() / NOISE),
        "share at the right wall": share(after[:, 0] == 1),
        "error of the reward": float(np.abs(rows.reward + distance).mean()),
        "share of terminals": share(rows.terminal),
        "terminals at the goal": share(distance < 1.2 * REACHED, rows.terminal),
    }


def pendulum(seed: int) -> Transitions:
    """An angle between -pi and pi and a speed with a limit. Nothing is random."""
    draw = np.random.default_rng(seed)
    angle, speed = draw.uniform(-np.pi, np.pi, ROWS), draw.uniform(-SPEED, SPEED, ROWS)
    action = draw.uniform(-2, 2, (ROWS, 1))
    after = _swung(angle, speed, action[:, 0])
    return _rows([(np.stack([angle, speed], 1), action, -(angle**2), np.stack(after, 1), np.zeros(ROWS, bool))])


def of_pendulum(rows: Transitions) -> Figures:
    angle, speed = rows.observation.T.astype(np.float64)
    expected = _swung(angle, speed, rows.action[:, 0])
    off = np.abs(on_circle(rows.next_observation[:, 0] - expected[0]))
    return {
        "median error of the next angle": float(np.median(off)),
        "next angle off by more than 0.3": share(off > 0.3),
        "steps across the end": share(np.abs(rows.next_observation[:, 0] - angle) > np.pi),
        "angles beyond the circle": share(np.abs(rows.next_observation[:, 0]) > np.float32(np.pi)),
        "error of the next speed / range": float(np.abs(rows.next_observation[:, 1] - expected[1]).mean() / SPEED),
    }


def _swung(angle: Array, speed: Array, torque: Array) -> tuple[Array, Array]:
    faster = np.clip(speed + (15 * np.sin(angle) + 3 * torque) * STEP, -SPEED, SPEED)
    return on_circle(angle + faster * STEP), faster


def stack(seed: int) -> Transitions:
    """The last three states of 3 columns, and the last action. Episodes of 100 steps begin with zeros."""
    draw = np.random.default_rng(seed)
    many = ROWS // 100
    states, last = [np.zeros((many, 3))] * 3, np.zeros((many, 2))
    parts = []
    for _ in range(100):
        action = np.tanh(draw.normal(size=(many, 2)))
        push = np.tanh(np.concatenate([action, action[:, :1] * action[:, 1:]], 1))
        following = [*states[1:], 0.95 * states[-1] + 0.2 * push + 0.05 * draw.normal(size=(many, 3))]
        before, after = np.concatenate([*states, last], 1), np.concatenate([*following, action], 1)
        parts.append((before, action, following[-1].sum(1), after, np.zeros(many, bool)))
        states, last = following, action
    return _rows(parts)


def of_stack(rows: Transitions) -> Figures:
    before, after = rows.observation, rows.next_observation
    return {
        "states move up by one": share(np.abs(after[:, :6] - before[:, 3:9]).max(1) < 1e-3),
        "the last action is remembered": share(np.abs(after[:, 9:] - rows.action).max(1) < 1e-3),
        "error of the reward": float(np.abs(rows.reward - after[:, 6:9].sum(1)).mean()),
        "share with an empty first state": share((before[:, :3] == 0).all(1)),
    }


def contact(seed: int) -> Transitions:
    """A body with a quaternion, six forces that are 0 unless it touches the ground, and rays that see up to 1 far."""
    draw = np.random.default_rng(seed)
    many = ROWS // 200
    here, turn = draw.normal(size=(2, many, 4))
    turn /= np.linalg.norm(turn, axis=1, keepdims=True)
    before = np.concatenate([here, turn, np.zeros((many, 6)), np.ones((many, 8))], 1)
    parts = []
    for _ in range(200):
        action = draw.uniform(-1, 1, (many, 3))
        push = np.concatenate([action, action[:, :1]], 1)
        here = 0.9 * here + push * [0.3, 0.3, 0.3, 1.0] + 0.1 * draw.normal(size=(many, 4))
        turn = turn + 0.1 * push
        turn /= np.linalg.norm(turn, axis=1, keepdims=True)
        force = np.exp(1.5 * draw.normal(size=(many, 6))) * np.abs(here[:, :1]) * (here[:, :1] < TOUCH)
        after = np.concatenate([here, turn, force, np.minimum(1, np.abs(here[:, :1] - RAYS))], 1)
        parts.append((before, action, here[:, 0] - 0.001 * force.sum(1), after, np.zeros(many, bool)))
        before = after
    return _rows(parts)


def of_contact(rows: Transitions) -> Figures:
    after = rows.next_observation.astype(np.float64)
    idle = after[:, 8:14] == 0
    return {
        "error of the quaternion's length": float(np.abs(np.linalg.norm(after[:, 4:8], axis=1) - 1).mean()),
        "share without contact": share(idle.all(1)),
        "some forces at 0, others not": share(idle.any(1) & ~idle.all(1)),
        "contact in the wrong place": share(~idle.all(1) != (after[:, 0] < TOUCH)),
        "rays that see nothing": share(after[:, 14:] == 1),
        "error of the rays": float(np.abs(after[:, 14:] - np.minimum(1, np.abs(after[:, :1] - RAYS))).mean()),
    }


def _rows(parts: list[tuple[Array, Array, Array, Array, Array]]) -> Transitions:
    before, action, reward, after, ended = (np.concatenate(each) for each in zip(*parts, strict=True))
    before, action, reward, after = (each.astype(np.float32) for each in (before, action, reward, after))
    return Transitions(before, action, reward, after, ended)


WORLDS: Mapping[str, tuple[Callable[[int], Transitions], Callable[[Transitions], Figures]]] = {
    "goal": (goal, of_goal),
    "pendulum": (pendulum, of_pendulum),
    "stack": (stack, of_stack),
    "contact": (contact, of_contact),
}

if __name__ == "__main__":
    main()

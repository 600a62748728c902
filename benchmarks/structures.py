"""Whether generated rows keep what columns have to do with each other, in worlds that the presets were not tuned on.

    python benchmarks/structures.py --preset laptop --out results/structures.md

Fits a preset on 20,000 rows of each world, draws as many, and measures on both what the world guarantees: a goal that
stays in place, an angle that goes round, frames that move up in a stack, forces that are 0 together, a shop whose
goods and money are whole numbers, prices that move in proportion, an arm that is up, a bonus at the end, gates that a
bird has to fly through, beams of a sensor that nearly follow from each other, a set point that depends on the hour,
arms that pay by chance, switches that are counted, tasks with a goal each, sensors that round, a machine that seldom
pays much.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from law_worlds import Array, on_circle, share
from machine import command_line, keep, origin, print_table

from synther import Synthesizer, Transitions
from synther.presets import PRESETS

ROWS = 20_000
NOISE, REACHED = 0.02, 0.1  # of a position that is pushed, and the distance from the goal at which an episode ends
STEP, SPEED = 0.05, 8.0  # seconds, and the highest speed of the pendulum
UP = 1.7  # height of the tip of an arm of two links, each of length 1
TOUCH = -0.8  # position below which a body touches the ground
RAYS = np.linspace(-2, 2, 8)

DEMAND = np.array([3, 4, 5, 6, 9, 14, 11])  # customers, on average, on each day of a week
SHELF = 60  # goods that fit into the shop
GATES, GAP = np.arange(8) / 10, 0.3  # lower edges, and how far the upper ones are above them
FAR, NEAR = 29, 3  # steps from a gate to the next, and those in which a bird is inside one
BEAMS, BEYOND = np.linspace(0, 0.9, 10), 0.6  # angles of a distance sensor, and the tilt at which a walker falls
POINT = np.random.default_rng(1).normal(20, 3, 24)  # mean set point of each hour
SUITS = np.linspace(-1, 1, 24).reshape(4, 6)  # how much each arm likes each number of the context
GOALS = np.random.default_rng(2).uniform(-1, 1, (5, 2))  # of each task
NEAR_GOAL, DONE = 0.1, 10.0  # distance at which a task is done, and what that pays
SWITCHES, FLIPS, PULLED = 14, 0.03, 0.9  # chances that a switch flips by itself, and when it is pulled
HALF, LEVEL, NOTCH = 0.5, 1 / 256, 1.0  # steps of a thermometer, a converter and a speedometer,
SHOWN = np.array([20, 0.5, 12])  # and what they usually show
SHAKES = np.array([0.3, 1 / 256, 0.7])  # noise of what they show
PULLS = np.array([[1.0, 0.5], [0.02, -0.01], [0.4, 1.0]])  # how far two actions move it
PLACE, LUCK = (1.0, 0.4), 0.3  # what position and action have to be above for a payout, and how likely it then is
RETURN, DRIFT = 0.05, 0.02  # std and mean of how much a price grows

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


def shop(seed: int) -> Transitions:
    """Stock, what arrives, and the day of the week. Customers come at random; all is counted in whole numbers."""
    draw, many = np.random.default_rng(seed), 200
    stock, arriving, day = draw.integers(0, 41, many), np.zeros(many, int), draw.integers(0, 7, many)
    parts = []
    for _ in range(ROWS // many):
        planned = np.clip(30 - stock - arriving, 0, 20)
        order = np.where(draw.random(many) < 0.5, draw.integers(0, 21, many), planned)
        there, wanted = np.minimum(stock + arriving, SHELF), draw.poisson(DEMAND[day])
        sold = np.minimum(there, wanted)
        left, later = there - sold, (day + 1) % 7
        before, after = np.stack([stock, arriving, day], 1), np.stack([left, order, later], 1)
        paid = _earned(sold, order, left) - 3 * (wanted - sold)
        parts.append((before, order, paid, after, np.zeros(many, bool)))
        stock, arriving, day = left, order, later
    rows = _rows(parts)
    return replace(rows, action=rows.action.astype(np.int64))


def _earned(sold: Array, order: Array, left: Array) -> Array:
    return np.asarray(5 * sold - 2 * order - 7 * (order > 0) - left)


def of_shop(rows: Transitions) -> Figures:
    (stock, arriving, day), (left, later, tomorrow) = (
        rows.observation.T.astype(int),
        rows.next_observation.T.astype(int),
    )
    there = np.minimum(stock + arriving, SHELF)
    sold = there - left
    lost = (_earned(sold, rows.action, left) - rows.reward) / 3
    possible = (sold >= 0) & (lost >= 0) & (lost == np.rint(lost)) & ((lost == 0) | (left == 0))
    expected = DEMAND[day]
    quiet = (expected < 5) & (there > 20)
    would_be = np.random.default_rng(0).poisson(expected) >= there
    return {
        "what was ordered arrives": share(later == rows.action),
        "the next day is the next": share(tomorrow == (day + 1) % 7),
        "nothing comes from nowhere": share(sold >= 0),
        "rewards that are possible": share(possible),
        "spread of the demand / true": float((sold + lost - expected).std() / np.sqrt(expected.mean())),
        "spread of sales on quiet days / true": float((sold - expected)[quiet].std() / np.sqrt(expected[quiet].mean())),
        "share of days sold out": share(left == 0),
        "sold out / as the demand says": share(left == 0) / share(would_be),
    }


def price(seed: int) -> Transitions:
    """A price that grows or falls by some per cent, a clock in seconds and the hour, which goes round."""
    draw, many = np.random.default_rng(seed), 100
    cost, clock = np.exp(draw.normal(3, 1.5, many)), 1.7e9 + draw.integers(0, 86_400, many)
    parts = []
    for _ in range(ROWS // many):
        action = draw.uniform(-1, 1, (many, 1))
        following = cost * np.exp(DRIFT * action[:, 0] + RETURN * draw.normal(size=many))
        later = clock + 60 * draw.integers(1, 4, many)
        before, after = (
            np.stack([paid, time, time % 86_400 / 3600], 1) for paid, time in ((cost, clock), (following, later))
        )
        parts.append((before, action, following - cost, after, np.zeros(many, bool)))
        cost, clock = following, later
    return _rows(parts, np.float64)


def of_price(rows: Transitions) -> Figures:
    cost, following = rows.observation[:, 0], rows.next_observation[:, 0]
    growth = np.log(following / cost) - DRIFT * rows.action[:, 0]
    passed, hours = (rows.next_observation - rows.observation)[:, 1:].T
    off = np.abs((hours - passed / 3600 + 12) % 24 - 12)
    return {
        "spread of growth / true": float(growth.std() / RETURN),
        "spread of growth below 5 / true": float(growth[cost < 5].std() / RETURN),
        "error of the reward / price": float((np.abs(rows.reward - following + cost) / cost).mean()),
        "clock goes on by 1, 2 or 3 minutes": share(np.isin(passed, (60, 120, 180))),
        "error of the next hour": float(off.mean()),
    }


def arm(seed: int) -> Transitions:
    """Two links as cosine and sine, turned by an action. An episode ends where the tip is up, which pays 100."""
    draw = np.random.default_rng(seed)
    angles, action = draw.uniform(-np.pi, np.pi, (ROWS, 2)), draw.uniform(-1, 1, (ROWS, 2))
    after = angles + 0.3 * action
    ended = _tip(_turned(after)) > UP
    paid = -0.1 * (action**2).sum(1) + 100 * ended
    return _rows([(_turned(angles), action, paid, _turned(after), ended)])


def _turned(angles: Array) -> Array:
    return np.concatenate([np.cos(angles), np.sin(angles)], 1)


def _tip(turned: Array) -> Array:
    """The height of the tip above the joint."""
    first, second, sine, other = turned.T
    return np.asarray(-first - (first * second - sine * other))


def of_arm(rows: Transitions) -> Figures:
    after = rows.next_observation.astype(np.float64)
    turned = np.arctan2(after[:, 2:], after[:, :2]) - np.arctan2(rows.observation[:, 2:], rows.observation[:, :2])
    up = _tip(after) > UP
    expected = -0.1 * (rows.action.astype(np.float64) ** 2).sum(1) + 100 * rows.terminal
    return {
        "share of terminals": share(rows.terminal),
        "terminals where the tip is up": share(up, rows.terminal),
        "tips up that are terminals": share(rows.terminal, up),
        "error of the reward": float(np.abs(rows.reward - expected).mean()),
        "error of the next angle": float(np.abs(on_circle(turned - 0.3 * rows.action)).mean()),
    }


def gates(seed: int) -> Transitions:
    """A bird that falls or flaps its wings: how far the next gate is, its edges, height and speed. Each step pays 0.1,
    and a gate 1. Near the ceiling it costs 0.5, and a crash, which ends an episode, costs 1."""
    draw, many = np.random.default_rng(seed), 200

    def fresh(count: int) -> Array:
        low = draw.choice(GATES, count)
        start = np.full(count, FAR), low, low + GAP, draw.uniform(0.3, 0.7, count), np.zeros(count)
        return np.stack(start, 1)

    here, parts = fresh(many), []
    for _ in range(ROWS // many):
        flaps = draw.random(many) < 0.12
        after = here.copy()
        after[:, 4] = np.where(flaps, 0.06, np.maximum(here[:, 4] - 0.008, -0.08))
        after[:, 3] += after[:, 4]
        passed = here[:, 0] == 0
        after[:, 0] = np.where(passed, FAR, here[:, 0] - 1)
        after[passed, 1:3] = fresh(int(passed.sum()))[:, 1:3]
        crash = _crashed(after)
        paid = np.select([crash, passed, after[:, 3] > 0.9], [-1.0, 1.0, -0.5], 0.1)
        parts.append((here, flaps[:, None], paid, after, crash))
        here = np.where(crash[:, None], fresh(many), after)
    return _rows(parts)


def _crashed(state: Array) -> Array:
    away, low, high, height, _ = state.T
    outside = (height < 0) | (height > 1)
    return np.asarray(outside | ((away <= NEAR) & ((height < low) | (height > high))))


def of_gates(rows: Transitions) -> Figures:
    before, after = rows.observation.astype(np.float64), rows.next_observation.astype(np.float64)
    crash, passed = _crashed(after), before[:, 0] == 0
    pays = {cost: np.isclose(rows.reward, cost) for cost in (-1.0, -0.5, 1.0)}
    low = ~crash & ~passed & (after[:, 3] > 0.9)
    return {
        "edges that belong together": share(np.abs(after[:, 2] - after[:, 1] - GAP) < 1e-6),
        "gate stays, or is a new one": share((after[:, 1] == before[:, 1]) | passed),
        "share of terminals": share(rows.terminal),
        "terminals where the bird crashes": share(crash, rows.terminal),
        "crashes that are terminals": share(rows.terminal, crash),
        "terminals that cost 1": share(pays[-1.0], rows.terminal),
        "share of rows that pay 1": share(pays[1.0]),
        "of these, past a gate": share(passed & ~crash, pays[1.0]),
        "share of rows that cost 0.5": share(pays[-0.5]),
        "of these, near the ceiling": share(low, pays[-0.5]),
        "error of the height": float(np.abs(after[:, 3] - before[:, 3] - after[:, 4]).mean()),
    }


def beams(seed: int) -> Transitions:
    """A walker above flat ground: height, tilt, both speeds, and how far the ground is in ten directions. Being fast
    pays about 0.1. A fall is rare, ends an episode, and costs 100."""
    draw, many = np.random.default_rng(seed), 200

    def seen(state: Array) -> Array:
        return np.concatenate([state, _far(state)], 1)

    here, parts = draw.normal(0, 0.3, (many, 4)), []
    for _ in range(ROWS // many):
        push = draw.uniform(-1, 1, (many, 2))
        after = here.copy()
        after[:, 2:] = _faster(here, push) + 0.02 * draw.normal(size=(many, 2))
        after[:, :2] += 0.1 * after[:, 2:]
        falls = np.abs(after[:, 1]) > BEYOND
        paid = np.where(falls, -100.0, 0.1 * after[:, 2] - 0.02 * (push**2).sum(1))
        parts.append((seen(here), push, paid, seen(after), falls))
        here = np.where(falls[:, None], draw.normal(0, 0.3, (many, 4)), after)
    return _rows(parts)


def _far(state: Array) -> Array:
    """From the walker to the ground, along each beam."""
    return np.asarray((1 + 0.3 * state[:, :1]) / np.cos(BEAMS + 0.02 * state[:, 1:2].clip(-2, 2)))


def _faster(state: Array, push: Array) -> Array:
    """The next speeds, but for noise. Near the ground, legs push back."""
    lifted = 0.5 * np.maximum(-state[:, :1] - 0.1, 0) * [1, 0]
    return np.asarray(0.8 * state[:, 2:4] - 0.2 * state[:, :2] + 0.2 * np.sign(push) + lifted)


def of_beams(rows: Transitions) -> Figures:
    here, after, ends = (rows.observation.astype(np.float64), rows.next_observation.astype(np.float64), rows.terminal)
    paid = 0.1 * after[:, 2] - 0.02 * (rows.action.astype(np.float64) ** 2).sum(1)
    return {
        "spread of the next speed / true": float((after[:, 2:4] - _faster(here, rows.action)).std() / 0.02),
        "error of the next height": float(np.abs(after[:, 0] - here[:, 0] - 0.1 * after[:, 2]).mean()),
        "error of the next beams": float(np.abs(after[:, 4:] - _far(after)).mean()),
        "error of the reward, no fall": float(np.abs(rows.reward - paid)[~ends].mean()),
        "share of terminals": share(ends),
        "terminals where the walker falls": share(np.abs(after[:, 1]) > BEYOND, ends),
        "terminals that cost 100": share(np.abs(rows.reward + 100) < 1, ends),
    }


def heating(seed: int) -> Transitions:
    """Hour, temperature, and a set point that depends on the hour and varies. Heat comes on below the set point in most
    rows. To be off the set point costs, and so does heat."""
    draw, many = np.random.default_rng(seed), 100
    here, parts = np.stack([draw.integers(0, 24, many), *draw.normal(20, 3, (2, many))], 1), []
    here[:, 2] = POINT[here[:, 0].astype(int)]
    for _ in range(ROWS // many):
        heat = np.where(draw.random(many) < 0.3, draw.random(many) < 0.5, here[:, 1] < here[:, 2])
        after = here.copy()
        after[:, 0] = (here[:, 0] + 1) % 24
        after[:, 1] += 0.1 * (10 - here[:, 1]) + 2.5 * heat + 0.1 * draw.normal(size=many)
        after[:, 2] = POINT[after[:, 0].astype(int)] + 0.3 * draw.normal(size=many)
        parts.append(
            (here, heat[:, None], -np.abs(after[:, 1] - after[:, 2]) - 0.2 * heat, after, np.zeros(many, bool))
        )
        here = after
    return _rows(parts)


def of_heating(rows: Transitions) -> Figures:
    here, after = rows.observation.astype(np.float64), rows.next_observation.astype(np.float64)
    heat, cold = rows.action[:, 0], here[:, 1] < here[:, 2]
    step = after[:, 1] - here[:, 1] - 0.1 * (10 - here[:, 1]) - 2.5 * heat
    point, later = (side[:, 2] - POINT[side[:, 0].astype(int) % 24] for side in (here, after))
    return {
        "the next hour is the next": share(after[:, 0] == (here[:, 0] + 1) % 24),
        "spread of the set point in an hour / true": float(point.std() / 0.3),
        "spread of the next one / true": float(later.std() / 0.3),
        "spread of the next temperature / true": float(step.std() / 0.1),
        "heat below the set point": share(heat == 1, cold),
        "heat above it": share(heat == 1, ~cold),
        "error of the reward": float(np.abs(rows.reward + np.abs(after[:, 1] - after[:, 2]) + 0.2 * heat).mean()),
    }


def arms(seed: int) -> Transitions:
    """One pull of four arms, which pay 1 or nothing: how likely is a matter of arm and context together."""
    draw = np.random.default_rng(seed)
    context, arm = draw.normal(size=(ROWS, 6)), draw.integers(0, 4, ROWS)
    paid = draw.random(ROWS) < _chance(context, arm)
    parts = (context.astype(np.float32), arm, paid.astype(np.float32), np.zeros((ROWS, 6), np.float32))
    return Transitions(*parts, np.ones(ROWS, bool))


def _chance(context: Array, arm: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-(context * SUITS[arm]).sum(1))))


def of_arms(rows: Transitions) -> Figures:
    chance = _chance(rows.observation, rows.action)
    parts = {"below 0.1": (0.0, 0.1), "0.1 to 0.3": (0.1, 0.3), "0.7 to 0.9": (0.7, 0.9), "above 0.9": (0.9, 1.0)}
    inside = {name: (chance >= low) & (chance < high) for name, (low, high) in parts.items()}
    paid = {name: share(rows.reward == 1, own) / float(chance[own].mean()) for name, own in inside.items()}
    return {f"paid / true, with a chance {name}": value for name, value in paid.items()}


def switches(seed: int) -> Transitions:
    """Fourteen switches that now and then flip by themselves. The one that is pulled mostly does. The reward is how
    many are on."""
    draw = np.random.default_rng(seed)
    here, pulled = draw.integers(0, 2, (ROWS, SWITCHES)), draw.integers(0, SWITCHES, ROWS)
    own = np.arange(SWITCHES) == pulled[:, None]
    after = np.where(draw.random(here.shape) < np.where(own, PULLED, FLIPS), 1 - here, here)
    parts = (here.astype(np.float32), pulled, after.sum(1).astype(np.float32), after.astype(np.float32))
    return Transitions(*parts, np.zeros(ROWS, bool))


def of_switches(rows: Transitions) -> Figures:
    flips = rows.observation != rows.next_observation
    own = np.arange(SWITCHES) == rows.action[:, None]
    return {
        "the reward is how many are on": share(rows.reward == rows.next_observation.sum(1)),
        "the pulled one flips / true": share(flips[own]) / PULLED,
        "another one flips / true": share(flips[~own]) / FLIPS,
    }


def tasks(seed: int) -> Transitions:
    """A point that is pushed towards the goal of its task (one-hot). A step costs the distance from the goal, and the
    goal, which ends an episode, pays 10 instead."""
    draw, many, kinds = np.random.default_rng(seed), 100, len(GOALS)

    def fresh(count: int) -> Array:
        return np.concatenate([draw.uniform(-1, 1, (count, 2)), np.eye(kinds)[draw.integers(0, kinds, count)]], 1)

    here, parts = fresh(many), []
    for _ in range(ROWS // many):
        push = (GOALS[here[:, 2:].argmax(1)] - here[:, :2] + 0.7 * draw.normal(size=(many, 2))).clip(-1, 1)
        after = here.copy()
        after[:, :2] += 0.1 * push + 0.01 * draw.normal(size=(many, 2))
        away = _from_goal(after)
        ends = away < NEAR_GOAL
        parts.append((here, push, np.where(ends, DONE, -away), after, ends))
        here = np.where((ends | (draw.random(many) < 0.01))[:, None], fresh(many), after)
    return _rows(parts)


def _from_goal(state: Array) -> Array:
    return np.asarray(np.linalg.norm(state[:, :2] - GOALS[state[:, 2:].argmax(1)], axis=1))


def of_tasks(rows: Transitions) -> Figures:
    here, after, ends = (rows.observation.astype(np.float64), rows.next_observation.astype(np.float64), rows.terminal)
    away = _from_goal(after)
    return {
        "the task stays": share((here[:, 2:] == after[:, 2:]).all(1)),
        "spread of the next place / true": float((after[:, :2] - here[:, :2] - 0.1 * rows.action).std() / 0.01),
        "share of terminals": share(ends),
        "terminals at the goal": share(away < NEAR_GOAL, ends),
        "rows at the goal that are terminal": share(ends, away < NEAR_GOAL),
        "terminals that pay 10": share(rows.reward == DONE, ends),
        "error of the reward elsewhere": float(np.abs(rows.reward + away)[~ends].mean()),
    }


def sensors(seed: int) -> Transitions:
    """A thermometer that shows half degrees, a converter of 256 levels and a speed in whole units. What they measure is
    pushed, drifts back and shakes about as much as they round."""
    draw, many = np.random.default_rng(seed), 100
    here, parts = 3 * SHAKES * draw.normal(size=(many, 3)), []
    for _ in range(ROWS // many):
        push = draw.uniform(-1, 1, (many, 2))
        after = 0.9 * here + push @ PULLS.T + SHAKES * draw.normal(size=(many, 3))
        seen = [_shown(each) for each in (here, after)]
        parts.append((seen[0], push, -0.1 * np.abs(seen[1][:, 0] - 20), seen[1], np.zeros(many, bool)))
        here = after
    return _rows(parts)


def _shown(state: Array) -> Array:
    steps = np.array([HALF, LEVEL, NOTCH])
    return np.asarray(np.rint((state + SHOWN) / steps) * steps)


def of_sensors(rows: Transitions) -> Figures:
    here, after = rows.observation.astype(np.float64), rows.next_observation.astype(np.float64)
    off = after - 0.9 * here - rows.action @ PULLS.T
    steps = np.array([HALF, LEVEL, NOTCH])
    rounded = np.hypot(SHAKES, steps * np.sqrt((1 + 0.9**2) / 12))  # both ends are rounded
    spread = off.std(0) / rounded
    return {
        "values on their steps": share((np.abs(after / steps - np.rint(after / steps)) < 1e-3).all(1)),
        "spread of the next temperature / true": float(spread[0]),
        "spread of the next level / true": float(spread[1]),
        "spread of the next speed / true": float(spread[2]),
        "error of the reward": float(np.abs(rows.reward + 0.1 * np.abs(after[:, 0] - 20)).mean()),
    }


def jackpot(seed: int) -> Transitions:
    """Small rewards, and in one of seventy rows a large one, whose size is a matter of the third column."""
    draw = np.random.default_rng(seed)
    here, push = draw.normal(size=(ROWS, 3)), draw.uniform(-1, 1, (ROWS, 1))
    pays = (here[:, 1] > PLACE[0]) & (push[:, 0] > PLACE[1]) & (draw.random(ROWS) < LUCK)
    paid = 0.1 * here[:, 0] + 0.05 * draw.normal(size=ROWS) + np.where(pays, 5 + 3 * np.abs(here[:, 2]), 0)
    after = 0.9 * here + 0.3 * draw.normal(size=here.shape)
    return _rows([(here, push, paid, after, np.zeros(ROWS, bool))])


def of_jackpot(rows: Transitions) -> Figures:
    here, large = rows.observation.astype(np.float64), rows.reward > 2.5
    told = 5 + 3 * np.abs(here[:, 2])
    right = (here[:, 1] > PLACE[0]) & (rows.action[:, 0] > PLACE[1])
    return {
        "share of payouts": share(large),
        "mean payout": float(rows.reward[large].mean()),
        "payouts in the right place": share(right, large),
        "correlation of payouts with their size": float(np.corrcoef(rows.reward[large], told[large])[0, 1]),
    }


def _rows(parts: list[tuple[Array, Array, Array, Array, Array]], dtype: type = np.float32) -> Transitions:
    before, action, reward, after, ended = (np.concatenate(each) for each in zip(*parts, strict=True))
    before, action, reward, after = (each.astype(dtype) for each in (before, action, reward, after))
    return Transitions(before, action, reward, after, ended)


WORLDS: Mapping[str, tuple[Callable[[int], Transitions], Callable[[Transitions], Figures]]] = {
    "goal": (goal, of_goal),
    "pendulum": (pendulum, of_pendulum),
    "stack": (stack, of_stack),
    "contact": (contact, of_contact),
    "shop": (shop, of_shop),
    "price": (price, of_price),
    "arm": (arm, of_arm),
    "gates": (gates, of_gates),
    "beams": (beams, of_beams),
    "heating": (heating, of_heating),
    "arms": (arms, of_arms),
    "switches": (switches, of_switches),
    "tasks": (tasks, of_tasks),
    "sensors": (sensors, of_sensors),
    "jackpot": (jackpot, of_jackpot),
}

if __name__ == "__main__":
    main()

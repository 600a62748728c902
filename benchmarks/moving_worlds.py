"""Worlds with continuous dynamics, for `structures.py`: a goal that does not move, an angle, stacked frames, contact
forces that are 0 together, prices with relative changes, an arm of two links, beams of a distance sensor that almost
determine each other, sensors that round, a boat with a compass, a wall, a speed that is paid in full inside a zone, a
finger that seldom touches the object it should push, a rover that often drives straight on, a purse that is often left
as it is or emptied, and a power plant that ramps.

For each world there is a function that generates rows, and a `measure_` function that measures on real or synthetic
rows what every row of the world guarantees."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from law_worlds import Array, on_circle, share

from synther import Transitions

ROWS = 20_000
"""Number of rows of a world."""
Figures = dict[str, float]
World = tuple[Callable[[int], Transitions], Callable[[Transitions], Figures]]
"""Two functions: one generates rows of a world from a seed, the other measures figures on rows of the world."""

NOISE, REACHED = 0.02, 0.1  # std of the noise of a position, and distance from the goal at which an episode ends
STEP, SPEED = 0.05, 8.0  # length of a step in seconds, and highest speed of the pendulum
UP = 1.7  # height of the arm's tip above which an episode ends; both links have length 1
TOUCH = -0.8  # position below which a body touches the ground
RAYS = np.linspace(-2, 2, 8)  # places from which a ray measures the distance to the body
BEAMS, BEYOND = np.linspace(0, 0.9, 10), 0.6  # angles of the beams of a sensor, and tilt above which a walker falls
HALF, LEVEL, NOTCH = 0.5, 1 / 256, 1.0  # rounding steps of the sensors: thermometer, converter, speedometer
SHOWN = np.array([20, 0.5, 12])  # mean value of each sensor
SHAKES = np.array([0.3, 1 / 256, 0.7])  # std of the noise of each sensor
PULLS = np.array([[1.0, 0.5], [0.02, -0.01], [0.4, 1.0]])  # effect of the two actions on each sensor
KEEL, GUSTS = 3.0, 0.05  # std of what waves turn a boat by, in degrees, and of the noise of its speed
HAVEN, CLOSE = np.array([1.0, -0.5]), 0.2  # a goal that is in no column, and the distance from it that ends an episode
RADIUS = 0.12  # distance at which a finger touches an object
ZONE, MARGIN = (1.0, 2.0), 1.0  # speeds that are paid in full, and how far beyond them the reward falls to 0
DEAD, STEERED, SHAKY = 0.6, 0.5, 0.05  # steering below which a rover drives straight on; its effect; its noise's std
BUYS, DEAR, INCOME, PAID = 0.3, 15.0, 20.0, 0.1  # action above which something is bought, scale of its price; of wages
TIMES, RAMP, START = 288, 0.1, 2.0  # times of a day, largest change of a plant's power, and cost of any purchase
SITES = np.random.default_rng(7).normal(size=(200, 3))  # features of the sites of the plants
RETURN, DRIFT = 0.05, 0.02  # std of the log growth of a price, and effect of the action on it


def goal(seed: int) -> Transitions:
    """Generate rows of a point between four walls, with the position of a goal and a clock. Episodes have 50 steps."""
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
    return rows_of(parts)


def measure_goal(rows: Transitions) -> Figures:
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
    """Generate rows of a pendulum: an angle between -pi and pi, and a limited speed. The dynamics are deterministic."""
    draw = np.random.default_rng(seed)
    angle, speed = draw.uniform(-np.pi, np.pi, ROWS), draw.uniform(-SPEED, SPEED, ROWS)
    action = draw.uniform(-2, 2, (ROWS, 1))
    after = _swung(angle, speed, action[:, 0])
    return rows_of([(np.stack([angle, speed], 1), action, -(angle**2), np.stack(after, 1), np.zeros(ROWS, bool))])


def measure_pendulum(rows: Transitions) -> Figures:
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
    """Return the next angle and the next speed of the pendulum."""
    faster = np.clip(speed + (15 * np.sin(angle) + 3 * torque) * STEP, -SPEED, SPEED)
    return on_circle(angle + faster * STEP), faster


def stack(seed: int) -> Transitions:
    """Generate rows with the last three states, of 3 columns each, and the last action.

    Episodes have 100 steps and begin with zeros.
    """
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
    return rows_of(parts)


def measure_stack(rows: Transitions) -> Figures:
    before, after = rows.observation, rows.next_observation
    return {
        "states move up by one": share(np.abs(after[:, :6] - before[:, 3:9]).max(1) < 1e-3),
        "the last action is remembered": share(np.abs(after[:, 9:] - rows.action).max(1) < 1e-3),
        "error of the reward": float(np.abs(rows.reward - after[:, 6:9].sum(1)).mean()),
        "share with an empty first state": share((before[:, :3] == 0).all(1)),
    }


def contact(seed: int) -> Transitions:
    """Generate rows of a body: positions, a quaternion, six forces that are 0 without ground contact, and distances."""
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
    return rows_of(parts)


def measure_contact(rows: Transitions) -> Figures:
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


def price(seed: int) -> Transitions:
    """Generate rows of a price that changes by a few per cent, a clock in seconds, and the hour of the day."""
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
    return rows_of(parts, np.float64)


def measure_price(rows: Transitions) -> Figures:
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
    """Generate rows of an arm with two links, given as cosines and sines of their angles, which the action changes.

    If the tip is high enough, the reward is 100 larger and the episode ends.
    """
    draw = np.random.default_rng(seed)
    angles, action = draw.uniform(-np.pi, np.pi, (ROWS, 2)), draw.uniform(-1, 1, (ROWS, 2))
    after = angles + 0.3 * action
    ended = _tip(_turned(after)) > UP
    paid = -0.1 * (action**2).sum(1) + 100 * ended
    return rows_of([(_turned(angles), action, paid, _turned(after), ended)])


def _turned(angles: Array) -> Array:
    """Return the cosines and sines of angles."""
    return np.concatenate([np.cos(angles), np.sin(angles)], 1)


def _tip(turned: Array) -> Array:
    """Return the height of the arm's tip above its joint."""
    first, second, sine, other = turned.T
    return np.asarray(-first - (first * second - sine * other))


def measure_arm(rows: Transitions) -> Figures:
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


def beams(seed: int) -> Transitions:
    """Generate rows of a walker above flat ground: height, tilt, both speeds, and the distance to the ground along ten
    beams.

    The reward is about 0.1 times a speed. A fall is rare, ends the episode and costs 100.
    """
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
    return rows_of(parts)


def _far(state: Array) -> Array:
    """Return the distance from the walker to the ground along each beam."""
    return np.asarray((1 + 0.3 * state[:, :1]) / np.cos(BEAMS + 0.02 * state[:, 1:2].clip(-2, 2)))


def _faster(state: Array, push: Array) -> Array:
    """Return the expected next speeds. Near the ground, the legs push back."""
    lifted = 0.5 * np.maximum(-state[:, :1] - 0.1, 0) * [1, 0]
    return np.asarray(0.8 * state[:, 2:4] - 0.2 * state[:, :2] + 0.2 * np.sign(push) + lifted)


def measure_beams(rows: Transitions) -> Figures:
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


def sensors(seed: int) -> Transitions:
    """Generate rows of three sensors: a thermometer of half degrees, a converter with 256 levels, and whole speeds.

    The measured quantities follow linear dynamics. Their noise is about as large as a rounding step.
    """
    draw, many = np.random.default_rng(seed), 100
    here, parts = 3 * SHAKES * draw.normal(size=(many, 3)), []
    for _ in range(ROWS // many):
        push = draw.uniform(-1, 1, (many, 2))
        after = 0.9 * here + push @ PULLS.T + SHAKES * draw.normal(size=(many, 3))
        seen = [_shown(each) for each in (here, after)]
        parts.append((seen[0], push, -0.1 * np.abs(seen[1][:, 0] - 20), seen[1], np.zeros(many, bool)))
        here = after
    return rows_of(parts)


def _shown(state: Array) -> Array:
    """Return the rounded values that the sensors show."""
    steps = np.array([HALF, LEVEL, NOTCH])
    return np.asarray(np.rint((state + SHOWN) / steps) * steps)


def measure_sensors(rows: Transitions) -> Figures:
    here, after = rows.observation.astype(np.float64), rows.next_observation.astype(np.float64)
    off = after - 0.9 * here - rows.action @ PULLS.T
    steps = np.array([HALF, LEVEL, NOTCH])
    rounded = np.hypot(SHAKES, steps * np.sqrt((1 + 0.9**2) / 12))  # observation and next observation are rounded
    spread = off.std(0) / rounded
    return {
        "values on their steps": share((np.abs(after / steps - np.rint(after / steps)) < 1e-3).all(1)),
        "spread of the next temperature / true": float(spread[0]),
        "spread of the next level / true": float(spread[1]),
        "spread of the next speed / true": float(spread[2]),
        "error of the reward": float(np.abs(rows.reward + 0.1 * np.abs(after[:, 0] - 20)).mean()),
    }


def boat(seed: int) -> Transitions:
    """Generate rows of a boat: heading in whole degrees, speed, and place. It is paid for what it makes to the east."""
    draw, many = np.random.default_rng(seed), ROWS // 100
    state = np.column_stack([draw.integers(0, 360, many), draw.uniform(0, 2, many), draw.normal(size=(many, 2))])
    parts = []
    for _ in range(100):
        action = draw.uniform(-1, 1, (many, 2))
        turn = np.rint(20 * action[:, 0] + KEEL * draw.normal(size=many))
        speed = 0.8 * state[:, 1] + 0.2 * (1 + action[:, 1]) + GUSTS * draw.normal(size=many)
        after = np.column_stack([(state[:, 0] + turn) % 360, speed, state[:, 2:] + _ahead(state)])
        parts.append((state, action, speed * np.cos(np.deg2rad(after[:, 0])), after, np.zeros(many, bool)))
        state = after
    return rows_of(parts)


def _ahead(state: Array) -> Array:
    """Return how far boats go in a step, to the east and to the north. (N, 2)"""
    angle = np.deg2rad(state[:, 0])
    return np.asarray(0.1 * state[:, 1, None] * np.column_stack([np.cos(angle), np.sin(angle)]))


def measure_boat(rows: Transitions) -> Figures:
    before, after = rows.observation.astype(np.float64), rows.next_observation.astype(np.float64)
    turn = (after[:, 0] - before[:, 0] - 20 * rows.action[:, 0] + 180) % 360 - 180
    faster = after[:, 1] - 0.8 * before[:, 1] - 0.2 * (1 + rows.action[:, 1])
    told = after[:, 1] * np.cos(np.deg2rad(after[:, 0]))
    return {
        "headings that are whole degrees": share((after[:, 0] % 1 == 0) & (after[:, 0] >= 0) & (after[:, 0] < 360)),
        "spread of turns / true": float(turn.std() / np.hypot(KEEL, np.sqrt(1 / 12))),
        "turns of more than 20 degrees by waves": share(np.abs(turn) > 20),
        "spread of speed / true": float(faster.std() / GUSTS),
        "error of the next place": float(np.abs(after[:, 2:] - before[:, 2:] - _ahead(before)).mean()),
        "error of the reward": float(np.abs(rows.reward - told).mean()),
    }


def wall(seed: int) -> Transitions:
    """Generate rows of a point that goes to a goal that is in no column, around a wall. It is paid its distance."""
    draw, many = np.random.default_rng(seed), ROWS // 100
    place, parts = draw.uniform(-2, 2, (many, 2)), []
    for _ in range(100):
        way = HAVEN - place
        action = np.clip(
            0.5 * way / np.linalg.norm(way, axis=1, keepdims=True) + 0.6 * draw.normal(size=(many, 2)), -1, 1
        )
        moved = place + 0.1 * action + 0.01 * draw.normal(size=(many, 2))
        moved = np.where(_inside(moved)[:, None], place, moved)
        distance = np.linalg.norm(moved - HAVEN, axis=1)
        ended = distance < CLOSE
        parts.append((place, action, -distance + 10 * ended, moved, ended))
        fresh = draw.uniform(-2, 2, (many, 2))
        place = np.where(ended[:, None], np.where(_inside(fresh)[:, None], -HAVEN, fresh), moved)
    return rows_of(parts)


def _inside(place: Array) -> Array:
    """Return which places (N, 2) are inside the wall. (N,)"""
    return np.asarray((np.abs(place[:, 0]) < 0.1) & (np.abs(place[:, 1]) < 0.4))


def measure_wall(rows: Transitions) -> Figures:
    before, after = rows.observation.astype(np.float64), rows.next_observation.astype(np.float64)
    stays = (rows.observation == rows.next_observation).all(1)
    asked, distance = before + 0.1 * rows.action, np.linalg.norm(after - HAVEN, axis=1)
    return {
        "points that stay": share(stays),
        "points that stay if the wall is in the way": share(stays, _inside(asked)),
        "noise of a step / true": float((after - asked)[~stays].std() / 0.01),
        "points in the wall": share(_inside(after) & ~stays),
        "error of the reward": float(np.abs(rows.reward + distance - 10 * rows.terminal).mean()),
        "share of terminals": share(rows.terminal),
        "terminals at the goal": share(distance < CLOSE, rows.terminal),
    }


def rows_of(parts: list[tuple[Array, Array, Array, Array, Array]], dtype: type = np.float32) -> Transitions:
    """Concatenate parts (observation, action, reward, next observation, terminal) to rows."""
    before, action, reward, after, ended = (np.concatenate(each) for each in zip(*parts, strict=True))
    before, action, reward, after = (each.astype(dtype) for each in (before, action, reward, after))
    return Transitions(before, action, reward, after, ended)


def zone(seed: int) -> Transitions:
    """Generate rows of a cart that is paid 1 while its speed is inside a zone, less near the zone, and 0 elsewhere."""
    draw = np.random.default_rng(seed)
    here, push = draw.normal(0, 1.5, (ROWS, 2)), draw.uniform(-1, 1, (ROWS, 1))
    speed = 0.9 * here[:, 1] + 0.5 * push[:, 0] + 0.1 * draw.normal(size=ROWS)
    after = np.c_[here[:, 0] + STEP * speed, speed]
    return rows_of([(here, push, _in_zone(after), after, np.zeros(ROWS, bool))])


def _in_zone(after: Array) -> Array:
    """Return the reward of rows with this next place and speed (N, 2). (N,)"""
    beyond = np.maximum(np.maximum(ZONE[0] - after[:, 1], after[:, 1] - ZONE[1]), 0)
    return np.maximum(1 - beyond / MARGIN, 0)


def measure_zone(rows: Transitions) -> Figures:
    off = rows.reward - _in_zone(rows.next_observation.astype(np.float64))
    return {
        "share that is paid in full": share(rows.reward == 1),
        "share that is paid nothing": share(rows.reward == 0),
        "error of the reward": float(np.abs(off).mean()),
        "rewards that are off by more than 0.1": share(np.abs(off) > 0.1),
    }


def push(seed: int) -> Transitions:
    """Generate rows of a finger and of an object that moves only if the finger pushes it, which is rare."""
    draw, many = np.random.default_rng(seed), ROWS // 50
    finger, thing = draw.uniform(-1, 1, (2, many, 2))
    parts = []
    for _ in range(50):
        action = np.clip(0.7 * draw.normal(size=(many, 2)), -1, 1)
        moved = np.clip(finger + 0.1 * action + 0.01 * draw.normal(size=(many, 2)), -1, 1)
        away = thing - moved
        far = np.linalg.norm(away, axis=1, keepdims=True)
        pushed = np.where(far < RADIUS, moved + away / far * RADIUS, thing)  # to where the finger just touches it
        before, after = np.c_[finger, thing], np.c_[moved, pushed]
        parts.append((before, action, -np.linalg.norm(pushed, axis=1), after, np.zeros(many, bool)))
        finger, thing = moved, pushed
    return rows_of(parts)


def measure_push(rows: Transitions) -> Figures:
    before, after = rows.observation.astype(np.float64), rows.next_observation.astype(np.float64)
    moves = (before[:, 2:] != after[:, 2:]).any(1)
    far = np.linalg.norm(after[:, :2] - before[:, 2:], axis=1)
    asked = before[:, :2] + 0.1 * rows.action
    inside = (np.abs(asked) < 0.95).all(1)
    return {
        "objects that move": share(moves),
        "of these, touched": share(far < RADIUS + 0.01, moves),
        "touched objects that move": share(moves, far < RADIUS - 0.01),
        "noise of the finger / true": float((after[:, :2] - asked)[inside].std() / 0.01),
        "error of the reward": float(np.abs(rows.reward + np.linalg.norm(after[:, 2:], axis=1)).mean()),
    }


def rover(seed: int) -> Transitions:
    """Generate rows of a rover: place, and cosine and sine of its heading, which stays unless it is steered enough."""
    draw, many = np.random.default_rng(seed), ROWS // 100
    place, angle = draw.normal(size=(many, 2)), draw.uniform(-np.pi, np.pi, many)
    heading, parts = np.stack([np.cos(angle), np.sin(angle)], 1), []
    for _ in range(100):
        action = draw.uniform(-1, 1, (many, 2))
        steered = np.abs(action[:, 1]) > DEAD
        angle = angle + steered * (STEERED * action[:, 1] + SHAKY * draw.normal(size=many))
        turned = np.where(steered[:, None], np.stack([np.cos(angle), np.sin(angle)], 1), heading)
        after = np.c_[place + 0.1 * (1 + action[:, :1]) * turned + 0.01 * draw.normal(size=(many, 2)), turned]
        parts.append((np.c_[place, heading], action, action[:, 0], after, np.zeros(many, bool)))
        place, heading = after[:, :2], turned
    return rows_of(parts)


def measure_rover(rows: Transitions) -> Figures:
    before, after = rows.observation.astype(np.float64), rows.next_observation.astype(np.float64)
    stays = (rows.observation[:, 2:] == rows.next_observation[:, 2:]).all(1)
    steering = rows.action[:, 1].astype(np.float64)
    angles = [np.arctan2(side[:, 3], side[:, 2]) for side in (before, after)]
    off = on_circle(angles[1] - angles[0] - STEERED * steering)[~stays & (np.abs(steering) > DEAD)]
    ahead = before[:, :2] + 0.1 * (1 + rows.action[:, :1].astype(np.float64)) * after[:, 2:]
    return {
        "heading stays": share(stays),
        "turns without steering": share(~stays, np.abs(steering) < DEAD),
        "drives straight on with steering": share(stays, np.abs(steering) > DEAD),
        "noise of a turn / true": float(off.std() / SHAKY),
        "noise of the place / true": float((after[:, :2] - ahead).std() / 0.01),
    }


def purse(seed: int) -> Transitions:
    """Generate rows of a purse and a price level. What is bought may empty the purse, and wages come in some rows."""
    draw, many = np.random.default_rng(seed), ROWS // 100
    money, level, parts = draw.uniform(20, 100, many), draw.normal(size=many), []
    for _ in range(100):
        action = draw.uniform(-1, 1, (many, 1))
        wages, price = draw.exponential(INCOME, many), draw.exponential(DEAR * (action[:, 0] + 0.5).clip(0.1))
        left = np.where(action[:, 0] > BUYS, np.maximum(money - price, 0), money)
        left = np.where(draw.random(many) < PAID, money + wages, left)
        later = 0.9 * level + 0.3 * draw.normal(size=many)
        parts.append((np.c_[money, level], action, left - money, np.c_[left, later], np.zeros(many, bool)))
        money, level = left, later
    return rows_of(parts)


def measure_purse(rows: Transitions) -> Figures:
    money, left, action = rows.observation[:, 0].astype(np.float64), rows.next_observation[:, 0], rows.action[:, 0]
    filled, bought = money > 0, action > BUYS
    chance = (1 - PAID) * np.exp(-money / (DEAR * (action + 0.5).clip(0.1))) * bought
    return {
        "money stays, of what there is": share(rows.observation[:, 0] == left, filled),
        "an empty purse stays empty": share(left == 0, ~filled),
        "is emptied / true": share(left == 0, filled) / float(chance[filled].mean()),
        "pays without buying": share(left < rows.observation[:, 0], ~bought),
        "wages / true": share(left > rows.observation[:, 0]) / PAID,
    }


def plant(seed: int) -> Transitions:
    """Generate rows of a power plant: its power, a load, cosine and sine of the time of day, and features of its site.

    The power follows the first action by at most `RAMP`. The second action buys power, or none in half of the rows.
    """
    draw, many = np.random.default_rng(seed), ROWS // 100
    time, site, parts = draw.integers(0, TIMES, many), SITES[draw.integers(0, len(SITES), many)], []
    power, load = draw.uniform(0.2, 1, many), draw.normal(size=many)
    for _ in range(100):
        target, bought = draw.uniform(0.2, 1, many), draw.uniform(0, 1, many) * (draw.random(many) < 0.5)
        after = power + np.clip(target - power, -RAMP, RAMP)
        later = 0.9 * load + 0.3 * np.sin(2 * np.pi * time / TIMES) + 0.1 * draw.normal(size=many)
        here, there = (_plant(*state, site) for state in ((power, load, time), (after, later, time + 1)))
        paid = later * after - 3 * bought - START * (bought > 0)
        parts.append((here, np.c_[target, bought], paid, there, np.zeros(many, bool)))
        power, load, time = after, later, time + 1
    return rows_of(parts)


def _plant(power: Array, load: Array, time: Array, site: Array) -> Array:
    """Return the observation of a plant."""
    angle = 2 * np.pi * (time % TIMES) / TIMES
    return np.asarray(np.c_[power, load, np.cos(angle), np.sin(angle), site])


def measure_plant(rows: Transitions) -> Figures:
    before, after = rows.observation.astype(np.float64), rows.next_observation.astype(np.float64)
    target, bought = rows.action.astype(np.float64).T
    time, later = (np.arctan2(side[:, 3], side[:, 2]) * TIMES / (2 * np.pi) for side in (before, after))
    expected = before[:, 0] + np.clip(target - before[:, 0], -RAMP, RAMP)
    paid = after[:, 1] * after[:, 0] - 3 * bought - START * (bought > 0)
    return {
        "times that exist": share(np.abs(np.exp(2j * np.pi * np.rint(time) / TIMES) - before[:, 2:4] @ [1, 1j]) < 1e-5),
        "time goes on by a step": share(np.abs((later - time - 1 + TIMES / 2) % TIMES - TIMES / 2) < 0.01),
        "sites that exist": share(np.abs(before[:, None, 4:] - SITES).max(2).min(1) < 1e-5),
        "steps beyond the ramp": share(np.abs(after[:, 0] - before[:, 0]) > RAMP + 1e-4),
        "error of the power": float(np.abs(after[:, 0] - expected).mean()),
        "noise of the load / true": float((after[:, 1] - 0.9 * before[:, 1] - 0.3 * before[:, 3]).std() / 0.1),
        "error of the reward": float(np.abs(rows.reward - paid).mean()),
    }


WORLDS: Mapping[str, World] = {
    "goal": (goal, measure_goal),
    "pendulum": (pendulum, measure_pendulum),
    "stack": (stack, measure_stack),
    "contact": (contact, measure_contact),
    "price": (price, measure_price),
    "arm": (arm, measure_arm),
    "beams": (beams, measure_beams),
    "sensors": (sensors, measure_sensors),
    "boat": (boat, measure_boat),
    "wall": (wall, measure_wall),
    "zone": (zone, measure_zone),
    "push": (push, measure_push),
    "rover": (rover, measure_rover),
    "purse": (purse, measure_purse),
    "plant": (plant, measure_plant),
}

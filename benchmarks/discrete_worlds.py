"""Worlds where something happens or does not: a shop whose goods and money are whole numbers, gates that a bird has to
fly through, a set point that depends on the hour, arms that pay by chance, switches that are counted, tasks with a goal
each, a machine that seldom pays much, offers that are filled, items that are clicked. What each guarantees is measured
on rows of it (structures.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from law_worlds import Array, share
from moving_worlds import ROWS, Figures, World, rows_of

from synther import Transitions

DEMAND = np.array([3, 4, 5, 6, 9, 14, 11])  # customers, on average, on each day of a week
SHELF = 60  # goods that fit into the shop
GATES, GAP = np.arange(8) / 10, 0.3  # lower edges, and how far the upper ones are above them
FAR, NEAR = 29, 3  # steps from a gate to the next, and those in which a bird is inside one
POINT = np.random.default_rng(1).normal(20, 3, 24)  # mean set point of each hour
SUITS = np.linspace(-1, 1, 24).reshape(4, 6)  # how much each arm likes each number of the context
GOALS = np.random.default_rng(2).uniform(-1, 1, (5, 2))  # of each task
NEAR_GOAL, DONE = 0.1, 10.0  # distance at which a task is done, and what that pays
SWITCHES, FLIPS, PULLED = 14, 0.03, 0.9  # chances that a switch flips by itself, and when it is pulled
PLACE, LUCK = (1.0, 0.4), 0.3  # what position and action have to be above for a payout, and how likely it then is
MOST_STOCK = 5
ITEMS = 0.8 * np.random.default_rng(5).normal(size=(100, 5))  # how much each item suits each part of a taste
POPULAR = np.random.default_rng(6).dirichlet(np.full(100, 0.5))  # how often each is shown


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
    rows = rows_of(parts)
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
    return rows_of(parts)


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
    return rows_of(parts)


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
    return rows_of(parts)


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


def jackpot(seed: int) -> Transitions:
    """Small rewards, and in one of seventy rows a large one, whose size is a matter of the third column."""
    draw = np.random.default_rng(seed)
    here, push = draw.normal(size=(ROWS, 3)), draw.uniform(-1, 1, (ROWS, 1))
    pays = (here[:, 1] > PLACE[0]) & (push[:, 0] > PLACE[1]) & (draw.random(ROWS) < LUCK)
    paid = 0.1 * here[:, 0] + 0.05 * draw.normal(size=ROWS) + np.where(pays, 5 + 3 * np.abs(here[:, 2]), 0)
    after = 0.9 * here + 0.3 * draw.normal(size=here.shape)
    return rows_of([(here, push, paid, after, np.zeros(ROWS, bool))])


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


def fills(seed: int) -> Transitions:
    """A market maker's stock, how much prices move, and the time. Each step it offers to buy and to sell at two
    distances from the price. The nearer an offer is, the likelier it is filled."""
    draw, many = np.random.default_rng(seed), 200
    steps = ROWS // many
    stock, moves, parts = np.zeros(many), draw.uniform(0.1, 1, many), []
    for step in range(steps):
        offers = draw.uniform(0, 2, (many, 2))
        bought, sold = (draw.random((many, 2)) < _filled(stock, moves, offers)).T
        after, moving = stock + bought - sold, np.clip(0.95 * moves + 0.025 + 0.1 * draw.normal(size=many), 0.05, 1.5)
        earned = offers[:, 0] * bought + offers[:, 1] * sold + after * 0.3 * moving * draw.normal(size=many)
        before, there = (
            np.stack([own, how, np.full(many, time / steps)], 1)
            for own, how, time in ((stock, moves, step), (after, moving, step + 1))
        )
        parts.append((before, offers, earned, there, np.zeros(many, bool)))
        stock, moves = after, moving
    return rows_of(parts)


def _filled(stock: Array, moves: Array, offers: Array) -> Array:
    """How likely an offer to buy and one to sell are filled. (N, 2)"""
    chance = np.exp(-offers / (0.5 + moves[:, None]))
    return np.asarray(chance * (np.abs(stock[:, None] + np.array([1, -1])) <= MOST_STOCK))


def of_fills(rows: Transitions) -> Figures:
    here, after = rows.observation.astype(np.float64), rows.next_observation.astype(np.float64)
    bought, sold = _filled(here[:, 0], here[:, 1], rows.action.astype(np.float64)).T
    change = after[:, 0] - here[:, 0]
    figures = _likely("stock grows", bought * (1 - sold), change == 1)
    return figures | {"stock changes by more than one": share(np.abs(change) > 1)}


def clicks(seed: int) -> Transitions:
    """One of a hundred items is shown, some far more often than others. How likely a click is is a matter of the item
    and the visitor's taste."""
    draw = np.random.default_rng(seed)
    taste, item = draw.normal(size=(ROWS, 5)), draw.choice(len(ITEMS), ROWS, p=POPULAR)
    clicked = draw.random(ROWS) < _clicked(taste, item)
    return Transitions(taste.astype(np.float32), item, clicked.astype(np.float32), taste[::-1], np.zeros(ROWS, bool))


def _clicked(taste: Array, item: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(2 - (taste * ITEMS[item]).sum(1))))


def of_clicks(rows: Transitions) -> Figures:
    return _likely("clicked", _clicked(rows.observation, rows.action), rows.reward == 1)


def _likely(name: str, chance: Array, happened: Array) -> Figures:
    """How often something happens, as a part of how often it should, where that is rare and where it is not."""
    parts = {"below 0.05": (0.0, 0.05), "0.05 to 0.2": (0.05, 0.2), "0.2 to 0.5": (0.2, 0.5), "above 0.5": (0.5, 1.01)}
    inside = {told: (chance >= low) & (chance < high) for told, (low, high) in parts.items()}
    found = {told: share(happened, own) / float(chance[own].mean()) for told, own in inside.items()}
    return {f"{name} / true, with a chance {told}": value for told, value in found.items()}


WORLDS: Mapping[str, World] = {
    "shop": (shop, of_shop),
    "gates": (gates, of_gates),
    "heating": (heating, of_heating),
    "arms": (arms, of_arms),
    "switches": (switches, of_switches),
    "tasks": (tasks, of_tasks),
    "jackpot": (jackpot, of_jackpot),
    "fills": (fills, of_fills),
    "clicks": (clicks, of_clicks),
}

"""Worlds with discrete events, for `structures.py`: a shop that counts goods and money in whole numbers, a bird that
flies through gates, heating with a set point for every hour, a bandit, switches, tasks with different goals, rare large
rewards (jackpot), a market maker (fills), recommended items (clicks), auctions (bids), skills with parameters,
traffic lights (junction), and customers of whom few buy (sales).

For each world there is a function that generates rows, and a `measure_` function that measures on real or synthetic
rows what every row of the world guarantees."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from law_worlds import Array, share
from moving_worlds import ROWS, Figures, World, rows_of

from synther import Transitions

DEMAND = np.array([3, 4, 5, 6, 9, 14, 11])  # mean number of customers on each day of the week
SHELF = 60  # largest stock of the shop
GATES, GAP = np.arange(8) / 10, 0.3  # possible lower edges of a gate, and distance between lower and upper edge
FAR, NEAR = 29, 3  # distance of a new gate in steps, and largest distance at which a bird is inside the gate
POINT = np.random.default_rng(1).normal(20, 3, 24)  # mean set point of each hour
SUITS = np.linspace(-1, 1, 24).reshape(4, 6)  # weight of each context column in the payout probability of each arm
GOALS = np.random.default_rng(2).uniform(-1, 1, (5, 2))  # position of the goal of each task
NEAR_GOAL, DONE = 0.1, 10.0  # distance from the goal at which a task is done, and the reward for that
SWITCHES, FLIPS, PULLED = 14, 0.03, 0.9  # number of switches; probability to flip: of others, of the pulled one
PLACE, LUCK = (1.0, 0.4), 0.3  # lower limits of position and action for a payout, and its probability above both
MOST_STOCK = 5  # largest number of units that a market maker holds or owes
ITEMS = 0.8 * np.random.default_rng(5).normal(size=(100, 5))  # weight of each taste column for each item
VALUED = np.array([1.0, 1.5, 2.2, 0.6, 3.3])  # median of the highest other bid, for each kind of advertisement
LANES, ARRIVE = 8, np.array([0.3, 0.5, 0.2, 0.6, 0.4, 0.3, 0.5, 0.2])  # lanes, and mean number of cars that arrive
DAMPED, SHAKEN = 0.9, 0.02  # factor of the first skill, and std of the noise of all skills
PAID_OFF = 0.5  # std of the noise of what a customer pays
POPULAR = np.random.default_rng(6).dirichlet(np.full(100, 0.5))  # probability that an item is shown


def shop(seed: int) -> Transitions:
    """Generate rows of a shop: stock, arriving goods and day of the week. All are whole numbers, demand is random."""
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
    """Return the reward of a day, without the cost of customers that leave with nothing."""
    return np.asarray(5 * sold - 2 * order - 7 * (order > 0) - left)


def measure_shop(rows: Transitions) -> Figures:
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
    """Generate rows of a bird that falls or flaps its wings: distance of the next gate, its lower and upper edge, and
    height and speed of the bird.

    A step pays 0.1, and a passed gate 1. A step near the ceiling costs 0.5. A crash costs 1 and ends the episode.
    """
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


def measure_gates(rows: Transitions) -> Figures:
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
    """Generate rows of a heating: hour, temperature, and a set point that depends on the hour and has noise.

    In 70 % of the rows the heat is on exactly below the set point, otherwise it is random. The distance from the set
    point and the heat are costs.
    """
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


def measure_heating(rows: Transitions) -> Figures:
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
    """Generate rows of a contextual bandit with four arms. A pull pays 1 or 0, with a probability that depends on arm
    and context. Every row is terminal."""
    draw = np.random.default_rng(seed)
    context, arm = draw.normal(size=(ROWS, 6)), draw.integers(0, 4, ROWS)
    paid = draw.random(ROWS) < _chance(context, arm)
    parts = (context.astype(np.float32), arm, paid.astype(np.float32), np.zeros((ROWS, 6), np.float32))
    return Transitions(*parts, np.ones(ROWS, bool))


def _chance(context: Array, arm: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-(context * SUITS[arm]).sum(1))))


def measure_arms(rows: Transitions) -> Figures:
    chance = _chance(rows.observation, rows.action)
    parts = {"below 0.1": (0.0, 0.1), "0.1 to 0.3": (0.1, 0.3), "0.7 to 0.9": (0.7, 0.9), "above 0.9": (0.9, 1.0)}
    inside = {name: (chance >= low) & (chance < high) for name, (low, high) in parts.items()}
    paid = {name: share(rows.reward == 1, own) / float(chance[own].mean()) for name, own in inside.items()}
    return {f"paid / true, with a chance {name}": value for name, value in paid.items()}


def switches(seed: int) -> Transitions:
    """Generate rows of fourteen switches. The pulled switch flips with probability 0.9, another one with probability
    0.03. The reward is the number of switches that are on."""
    draw = np.random.default_rng(seed)
    here, pulled = draw.integers(0, 2, (ROWS, SWITCHES)), draw.integers(0, SWITCHES, ROWS)
    own = np.arange(SWITCHES) == pulled[:, None]
    after = np.where(draw.random(here.shape) < np.where(own, PULLED, FLIPS), 1 - here, here)
    parts = (here.astype(np.float32), pulled, after.sum(1).astype(np.float32), after.astype(np.float32))
    return Transitions(*parts, np.zeros(ROWS, bool))


def measure_switches(rows: Transitions) -> Figures:
    flips = rows.observation != rows.next_observation
    own = np.arange(SWITCHES) == rows.action[:, None]
    return {
        "the reward is how many are on": share(rows.reward == rows.next_observation.sum(1)),
        "the pulled one flips / true": share(flips[own]) / PULLED,
        "another one flips / true": share(flips[~own]) / FLIPS,
    }


def tasks(seed: int) -> Transitions:
    """Generate rows of a point that is pushed towards the goal of its task. The task is one-hot in the observation.

    A step costs the distance from the goal. Reaching the goal pays 10 instead and ends the episode.
    """
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


def measure_tasks(rows: Transitions) -> Figures:
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
    """Generate rows with small rewards and, in one of seventy rows, a payout. Its size depends on the third column."""
    draw = np.random.default_rng(seed)
    here, push = draw.normal(size=(ROWS, 3)), draw.uniform(-1, 1, (ROWS, 1))
    pays = (here[:, 1] > PLACE[0]) & (push[:, 0] > PLACE[1]) & (draw.random(ROWS) < LUCK)
    paid = 0.1 * here[:, 0] + 0.05 * draw.normal(size=ROWS) + np.where(pays, 5 + 3 * np.abs(here[:, 2]), 0)
    after = 0.9 * here + 0.3 * draw.normal(size=here.shape)
    return rows_of([(here, push, paid, after, np.zeros(ROWS, bool))])


def measure_jackpot(rows: Transitions) -> Figures:
    here, large = rows.observation.astype(np.float64), rows.reward > 2.5
    expected = 5 + 3 * np.abs(here[:, 2])
    right = (here[:, 1] > PLACE[0]) & (rows.action[:, 0] > PLACE[1])
    return {
        "share of payouts": share(large),
        "mean payout": float(rows.reward[large].mean()),
        "payouts in the right place": share(right, large),
        "correlation of payouts with their size": float(np.corrcoef(rows.reward[large], expected[large])[0, 1]),
    }


def fills(seed: int) -> Transitions:
    """Generate rows of a market maker: its stock, the volatility of the price, and the time.

    In each step it offers to buy and to sell. The actions are the distances of both offers from the price. An offer
    that is closer to the price is more likely to be filled.
    """
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
    """Return the probabilities that the offer to buy and the offer to sell are filled, (N, 2)."""
    chance = np.exp(-offers / (0.5 + moves[:, None]))
    return np.asarray(chance * (np.abs(stock[:, None] + np.array([1, -1])) <= MOST_STOCK))


def measure_fills(rows: Transitions) -> Figures:
    here, after = rows.observation.astype(np.float64), rows.next_observation.astype(np.float64)
    bought, sold = _filled(here[:, 0], here[:, 1], rows.action.astype(np.float64)).T
    change = after[:, 0] - here[:, 0]
    figures = _likely("stock grows", bought * (1 - sold), change == 1)
    return figures | {"stock changes by more than one": share(np.abs(change) > 1)}


def clicks(seed: int) -> Transitions:
    """Generate rows of a visitor with a taste who is shown one of a hundred items.

    Some items are shown far more often than others. The probability of a click depends on item and taste.
    """
    draw = np.random.default_rng(seed)
    taste, item = draw.normal(size=(ROWS, 5)), draw.choice(len(ITEMS), ROWS, p=POPULAR)
    clicked = draw.random(ROWS) < _clicked(taste, item)
    return Transitions(taste.astype(np.float32), item, clicked.astype(np.float32), taste[::-1], np.zeros(ROWS, bool))


def _clicked(taste: Array, item: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(2 - (taste * ITEMS[item]).sum(1))))


def measure_clicks(rows: Transitions) -> Figures:
    return _likely("clicked", _clicked(rows.observation, rows.action), rows.reward == 1)


def bids(seed: int) -> Transitions:
    """Generate rows of a bidder: budget, kind of the next advertisement, and the lowest price that is accepted.

    A bid above all others wins and pays the highest other bid. Else the budget stays as it is.
    """
    draw = np.random.default_rng(seed)
    budget, kind, least = draw.uniform(20, 100, ROWS), draw.integers(len(VALUED), size=ROWS), draw.gamma(2, 0.2, ROWS)
    bid = np.exp(draw.normal(0.3, 0.6, ROWS))
    price = np.maximum(least, VALUED[kind] * np.exp(0.5 * draw.normal(size=ROWS)))
    won = bid > price
    left = np.where(won, budget - price, budget)
    clicked = won & (draw.random(ROWS) < 0.2)
    before, after = np.stack([budget, kind, least], 1), np.stack([left, np.roll(kind, -1), np.roll(least, -1)], 1)
    return rows_of([(before, bid[:, None], 10.0 * clicked, after, np.zeros(ROWS, bool))])


def measure_bids(rows: Transitions) -> Figures:
    (budget, kind, least), left, bid = rows.observation.T, rows.next_observation[:, 0], rows.action[:, 0]
    ratio = bid / VALUED[np.clip(kind.astype(int), 0, len(VALUED) - 1)]
    erf = np.vectorize(math.erf)
    chance = np.where(bid > least, 0.5 * (1 + erf(np.log(np.maximum(ratio, 1e-9)) / 0.5 / math.sqrt(2))), 0.0)
    paid = budget.astype(np.float64) - left
    return {
        "budget stays": share(paid == 0),
        "budget grows": share(paid < 0),
        "pays more than the bid": share(paid > bid + 1e-4),
    } | _likely("wins", chance, paid != 0)


def skills(seed: int) -> Transitions:
    """Generate rows of four skills, as a one-hot group of the action, and a number that two of them use.

    The first skill damps the state, the second one moves it, the third one turns it, and the last one mirrors it.
    """
    draw = np.random.default_rng(seed)
    state, skill, number = draw.normal(size=(ROWS, 2)), draw.integers(4, size=ROWS), draw.normal(0, 0.5, ROWS)
    number = np.where((skill == 1) | (skill == 2), number, 0.0)
    after = _skilled(state, skill, number) + SHAKEN * draw.normal(size=state.shape)
    action = np.column_stack([np.eye(4)[skill], number])
    return rows_of([(state, action, -np.abs(after).sum(1), after, np.zeros(ROWS, bool))])


def _skilled(state: Array, skill: Array, number: Array) -> Array:
    """Return the states that skills lead to, without noise. (N, 2)"""
    x, y = state.T
    moved = np.stack([x + number, y], 1)
    turned = np.stack([x * np.cos(number) - y * np.sin(number), x * np.sin(number) + y * np.cos(number)], 1)
    return np.stack([DAMPED * state, moved, turned, np.stack([-x, y], 1)])[skill, np.arange(len(state))]


def measure_skills(rows: Transitions) -> Figures:
    state, after, action = (each.astype(np.float64) for each in (rows.observation, rows.next_observation, rows.action))
    skill, number = action[:, :4].argmax(1), action[:, 4]
    off = after - _skilled(state, skill, number)
    spreads = {
        f"spread after {name} / true": float(np.sqrt(np.square(off[skill == own]).mean())) / SHAKEN
        for own, name in enumerate(("damping", "moving", "turning", "mirroring"))
    }
    return {
        "one skill at a time": share((np.sort(action[:, :4], 1) == [0, 0, 0, 1]).all(1)),
        "number only where it is used": share((number != 0) == ((skill == 1) | (skill == 2))),
    } | spreads


def junction(seed: int) -> Transitions:
    """Generate rows of traffic lights: which of four is green (one-hot), for how long, and eight queues. The action is
    to switch to the next light."""
    draw, many = np.random.default_rng(seed), ROWS // 100
    green, since, queues = np.zeros(many, np.int64), np.zeros(many), np.zeros((many, LANES))
    parts = []
    for _ in range(100):
        switch = draw.random(many) < 0.3
        before = np.column_stack([np.eye(4)[green], since, queues])
        green, since = np.where(switch, (green + 1) % 4, green), np.where(switch, 0, since + 1)
        left = np.maximum(queues - 3 * (np.arange(LANES) // 2 == green[:, None]), 0)
        queues = np.minimum(left + draw.poisson(ARRIVE, (many, LANES)), 20)
        after = np.column_stack([np.eye(4)[green], since, queues])
        parts.append((before, switch.astype(np.int64), -queues.sum(1), after, np.zeros(many, bool)))
    return rows_of(parts)


def measure_junction(rows: Transitions) -> Figures:
    before, after = rows.observation.astype(np.float64), rows.next_observation.astype(np.float64)
    switch, green, now = rows.action.ravel() > 0, before[:, :4].argmax(1), after[:, :4].argmax(1)
    left = np.maximum(before[:, 5:] - 3 * (np.arange(LANES) // 2 == now[:, None]), 0)
    arrived, free = after[:, 5:] - left, after[:, 5:] < 20
    rate = [float(own[ok].mean() / true) for own, ok, true in zip(arrived.T, free.T, ARRIVE, strict=True)]
    return {
        "the right light is green": share(now == (green + switch) % 4),
        "time goes on or begins again": share(after[:, 4] == np.where(switch, 0, before[:, 4] + 1)),
        "cars that leave on red": share((arrived < 0).any(1)),
        "cars that arrive / true, fewest": min(rate),
        "cars that arrive / true, most": max(rate),
        "correlation of the third light's queues": float(np.corrcoef(before[:, 9], before[:, 10])[0, 1]),
        "queue of the first lane on its green": float(before[green == 0, 5].mean()),
        "queue of the first lane before its green": float(before[green == 3, 5].mean()),
        "rewards that are right": share(rows.reward == -after[:, 5:].sum(1)),
    }


def sales(seed: int) -> Transitions:
    """Generate rows of customers, of whom one in ten buys. The reward is what the customer pays, or 0."""
    draw = np.random.default_rng(seed)
    here, offer = draw.normal(size=(ROWS, 4)), draw.uniform(-1, 1, (ROWS, 2))
    paid = np.where(draw.random(ROWS) < _buys(here, offer), _price(here, offer) + PAID_OFF * draw.normal(size=ROWS), 0)
    after = 0.9 * here + 0.3 * offer[:, :1] + 0.2 * draw.normal(size=here.shape)
    return rows_of([(here, offer, paid, after, np.zeros(ROWS, bool))])


def _buys(customer: Array, offer: Array) -> Array:
    """Return the probability that a customer (N, 4) buys at an offer (N, 2). (N,)"""
    return np.asarray(1 / (1 + np.exp(4 - 2.1 * customer[:, 0] - 1.4 * offer[:, 0])))


def _price(customer: Array, offer: Array) -> Array:
    """Return what a customer (N, 4) who buys pays on average. (N,)"""
    return np.asarray(5 + customer[:, 1] + 2 * offer[:, 1])


def measure_sales(rows: Transitions) -> Figures:
    here, offer, bought = rows.observation.astype(np.float64), rows.action.astype(np.float64), rows.reward != 0
    off = (rows.reward - _price(here, offer))[bought]
    return {
        "share of customers who buy": share(bought),
        **_likely("buy", _buys(here, offer), bought),
        "spread of what they pay / true": float(off.std() / PAID_OFF),
        "effect of the offer on what they pay": float(np.polyfit(offer[bought, 1], off, 1)[0] + 2),
    }


def _likely(name: str, chance: Array, happened: Array) -> Figures:
    """Return how often an event happened, relative to its mean true probability, in four groups of rows by that
    probability."""
    parts = {"below 0.05": (0.0, 0.05), "0.05 to 0.2": (0.05, 0.2), "0.2 to 0.5": (0.2, 0.5), "above 0.5": (0.5, 1.01)}
    inside = {part: (chance >= low) & (chance < high) for part, (low, high) in parts.items()}
    found = {part: share(happened, own) / float(chance[own].mean()) for part, own in inside.items()}
    return {f"{name} / true, with a chance {part}": value for part, value in found.items()}


WORLDS: Mapping[str, World] = {
    "shop": (shop, measure_shop),
    "gates": (gates, measure_gates),
    "heating": (heating, measure_heating),
    "arms": (arms, measure_arms),
    "switches": (switches, measure_switches),
    "tasks": (tasks, measure_tasks),
    "jackpot": (jackpot, measure_jackpot),
    "fills": (fills, measure_fills),
    "clicks": (clicks, measure_clicks),
    "bids": (bids, measure_bids),
    "skills": (skills, measure_skills),
    "junction": (junction, measure_junction),
    "sales": (sales, measure_sales),
}

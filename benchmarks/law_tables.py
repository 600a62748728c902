"""Worlds with a known transition table: the toy-text environments FrozenLake and Taxi of Gymnasium."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from law_worlds import IMPOSSIBLE, Array, Law, share

from synther import Transitions

NAMES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "frozenlake": (("FrozenLake-v1",), {"map_name": "8x8"}),
    "taxi": (("Taxi-v4", "Taxi-v3"), {}),
}
"""For each environment its ids, the newest version first, and the arguments of `gymnasium.make`."""
TIME_LIMIT = 200
"""Largest number of steps of an episode."""


def registered(name: str) -> tuple[str, dict[str, Any]]:
    """Return the id of an environment in the installed version of Gymnasium, and its options."""
    import gymnasium

    ids, options = NAMES[name]
    return next(env_id for env_id in ids if env_id in gymnasium.registry), options


@dataclass(frozen=True)
class Table:
    """The true transition table of a toy-text environment with S states and A actions."""

    probability: Array
    """Probability of each next state, (S, A, S). It is 0 for states in which no episode continues."""
    cumulative: Array
    """Cumulative probability over the next states, (S, A, S)."""
    reward: Array
    """Reward of each transition, (S, A, S)."""
    ended: Array
    """Whether a transition ends the episode, (S, A, S)."""
    start: Array
    """Probability that an episode starts in a state, (S,)."""
    intended: Array
    """Next state of each action if it does not slip, (S, A)."""


@cache
def table(name: str) -> Table:
    import gymnasium

    env_id, options = registered(name)
    env: Any = gymnasium.make(env_id, **options).unwrapped
    shape = len(env.P), len(env.P[0]), len(env.P)
    probability, reward, ended = np.zeros(shape), np.zeros(shape), np.zeros(shape, bool)
    for s, outcomes in env.P.items():
        for a, cases in outcomes.items():
            for chance, following, paid, end in cases:
                probability[s, a, following] += chance
                reward[s, a, following], ended[s, a, following] = paid, end
    intended = probability.argmax(2)
    if name == "frozenlake":
        sure: Any = gymnasium.make(env_id, **options, is_slippery=False).unwrapped
        intended = np.array([[sure.P[s][a][0][1] for a in range(shape[1])] for s in range(shape[0])])
    cumulative = probability.cumsum(2)
    cumulative /= cumulative[..., -1:]  # the last value is then exactly 1, above every random number
    start = np.asarray(env.initial_state_distrib)
    probability[~_acted_in(start, probability, ended)] = 0
    return Table(probability, cumulative, reward, ended, start, intended)


def _acted_in(start: Array, probability: Array, ended: Array) -> Array:
    """Mark the states in which an agent can act, (S,). A hole and the goal are not marked: the episode ended there."""
    ahead: Array = np.any((probability > 0) & ~ended, axis=1)
    reached: Array = np.asarray(start > 0)
    while (further := reached | ahead[reached].any(0)).sum() > reached.sum():
        reached = further
    return reached


def tabular(name: str, rows: int, seed: int) -> Transitions:
    """Generate episodes of a random policy in a toy-text environment. They are cut after 200 steps."""
    draw, truth = np.random.default_rng(seed), table(name)
    walkers = max(1, rows // 2_000)
    length = -(-rows // walkers)
    states, actions = truth.probability.shape[:2]
    steps = np.zeros(walkers, int)
    s = draw.choice(states, walkers, p=truth.start)
    seen = np.empty((5, length, walkers))
    for moment in range(length):
        a = draw.integers(0, actions, walkers)
        following = (truth.cumulative[s, a] <= draw.random((walkers, 1))).sum(1)
        steps += 1
        ended = truth.ended[s, a, following]
        cut = ~ended & ((steps == TIME_LIMIT) | (moment == length - 1))
        seen[:, moment] = s, a, following, ended, cut
        over = ended | cut
        s = following
        if over.any():
            s[over] = draw.choice(states, over.sum(), p=truth.start)
        steps[over] = 0
    flat = seen.transpose(0, 2, 1).reshape(5, -1)[:, :rows].astype(np.int64)
    flat[4, -1] |= ~flat[3, -1] & 1
    env_id, options = registered(name)
    return Transitions(
        flat[0], flat[1], truth.reward[flat[0], flat[1], flat[2]], flat[2], flat[3], flat[4], env_id=env_id,
        env_options=options,
    )  # fmt: skip


def _places(name: str, rows: Transitions) -> tuple[tuple[Array, Array, Array], Array]:
    """Return states, actions and next states as indices of the table, and mark the rows with three valid indices."""
    states, actions = table(name).probability.shape[:2]
    parts = rows.observation[:, 0], rows.action.reshape(-1), rows.next_observation[:, 0]
    inside = np.ones(len(rows), bool)
    for part, size in zip(parts, (states, actions, states), strict=True):
        inside &= (part == np.rint(part)) & (part >= 0) & (part < size)
    s, a, following = (np.where(inside, part, 0).astype(int) for part in parts)
    return (s, a, following), inside


def possible(name: str, rows: Transitions) -> Array:
    """Mark the transitions (s, a, s') that have a positive probability in the environment's table, (N,)."""
    index, inside = _places(name, rows)
    return np.asarray(inside & (table(name).probability[index] > 0))


def _wrong_outcome(name: str, rows: Transitions) -> float:
    index, _ = _places(name, rows)
    truth = table(name)
    wrong = (np.abs(rows.reward - truth.reward[index]) > 1e-3) | (rows.terminal != truth.ended[index])
    return share(wrong, possible(name, rows))


def _as_intended(rows: Transitions) -> float:
    """Return the share of steps without a slip, among state-action pairs with three different outcomes."""
    (s, a, following), _ = _places("frozenlake", rows)
    truth = table("frozenlake")
    open_ground = (truth.probability > 0).sum(2)[s, a] == 3
    return share(following == truth.intended[s, a], open_ground & possible("frozenlake", rows))


def _tabular_laws(name: str, title: str) -> tuple[Law, ...]:
    return (
        Law(title, "share of impossible transitions", lambda r: 1 - share(possible(name, r)), IMPOSSIBLE),
        Law(title, "wrong reward or terminal", partial(_wrong_outcome, name), IMPOSSIBLE),
    )


FROZENLAKE = (
    *_tabular_laws("frozenlake", "FrozenLake 8x8, slippery"),
    Law("FrozenLake 8x8, slippery", "goes the intended way", _as_intended),
    Law("FrozenLake 8x8, slippery", "share in the lower half", lambda r: share(r.observation[:, 0] >= 32)),
    Law("FrozenLake 8x8, slippery", "share of terminals", lambda r: share(r.terminal)),
)

TAXI = (
    *_tabular_laws("taxi", "Taxi"),
    Law("Taxi", "share of forbidden actions (reward -10)", lambda r: share(np.abs(r.reward + 10) < 1e-3)),
    Law("Taxi", "share with a passenger", lambda r: share(np.rint(r.observation[:, 0]) // 4 % 5 == 4)),
)

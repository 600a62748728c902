"""When an episode ends: a tree of thresholds on the rest of a row, learned from real rows.

Environments end an episode by comparing the state with a few limits. A generator decides early on its way from noise
whether a row is to be terminal, and then misses the limit by a little: half of its terminal rows are not. A tree knows
the limits from the real rows, and takes the generated row at its word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from synther.data.transitions import Transitions
from synther.errors import FormatError
from synther.schema import checked

Array = NDArray[Any]

DEEPEST = 8
FEWEST = 5
"""Real rows on either side of a threshold, and on either side of the whole question times ten."""
MOST_OTHERS = 50_000
"""Rows that are not terminal among those a tree is fitted on; each then counts for several."""
TRUSTED = 0.9
"""Precision and recall of the rarer answer, on held-out real rows, from which a tree may decide."""

_FEATURES = ("observation", "action", "reward", "next_observation")


@dataclass(frozen=True)
class TerminationTree:
    """Nodes as parallel lists, the root first. A node asks whether a feature is above its cut; a leaf answers."""

    feature: tuple[int, ...]
    """Column among observation, action, reward and next observation, in this order; -1 is a leaf."""
    cut: tuple[float, ...]
    below: tuple[int, ...]
    above: tuple[int, ...]
    terminal: tuple[bool, ...]
    """The answer of a leaf."""

    @classmethod
    def fit(cls, features: Array, terminal: NDArray[np.bool_], weight: Array) -> TerminationTree:
        """Grow the tree that separates `terminal` (N,) by `features` (N, F), by Gini's impurity."""
        nodes: list[tuple[int, float, int, int, bool]] = []

        def grow(rows: NDArray[np.intp], depth: int) -> int:
            here = len(nodes)
            weights = weight[rows]
            nodes.append((-1, 0.0, -1, -1, bool(weights[terminal[rows]].sum() * 2 > weights.sum())))
            split = _best_split(features[rows], terminal[rows], weights) if depth < DEEPEST else None
            if split is not None:
                column, cut = split
                above = features[rows, column] > np.array([cut])  # a single number could be rounded to their type
                children = grow(rows[~above], depth + 1), grow(rows[above], depth + 1)
                nodes[here] = (column, cut, *children, nodes[here][4])
            return here

        grow(np.arange(len(features)), 0)
        return cls(*zip(*nodes, strict=True))

    def decide(self, rows: Transitions) -> NDArray[np.bool_]:
        """Which rows are terminal. (N,)"""
        used = sorted({feature for feature in self.feature if feature >= 0})
        place = np.array([used.index(feature) if feature >= 0 else -1 for feature in self.feature])
        values = _features(rows, used)
        cut, below, above = np.array(self.cut), np.array(self.below), np.array(self.above)
        node = np.zeros(len(rows), np.intp)
        asked = np.arange(len(rows)) if used else np.arange(0)
        while len(asked):
            at = node[asked]
            node[asked] = np.where(values[asked, place[at]] > cut[at], above[at], below[at])
            asked = asked[place[node[asked]] >= 0]
        return np.array(self.terminal)[node]

    def to_json(self) -> dict[str, Any]:
        names = ("feature", "cut", "below", "above", "terminal")
        return {name: list(getattr(self, name)) for name in names}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> TerminationTree:
        tree: TerminationTree = checked(entry, cls, "a tree")
        nodes = len(tree.feature)
        if {len(part) for part in (tree.cut, tree.below, tree.above, tree.terminal)} != {nodes} or not nodes:
            raise FormatError("a tree: expected a feature, a cut, two children and an answer for each node")
        for node, children in enumerate(zip(tree.below, tree.above, strict=True)):
            if tree.feature[node] >= 0 and not all(node < child < nodes for child in children):  # else it never ends
                raise FormatError(f"a tree: node {node} has the children {children}: expected later nodes")
        return tree


def learn(rows: Transitions, seed: int = 0, truth: NDArray[np.bool_] | None = None) -> TerminationTree | None:
    """A tree that recognises terminal rows, or the rows marked in `truth` (N,). None if no tree can be trusted.

    It is tried first: fitted on four fifths of the rows and asked about the rest.
    """
    truth = rows.terminal if truth is None else truth
    ends, others = np.flatnonzero(truth), np.flatnonzero(~truth)
    if min(len(ends), len(others)) < 10 * FEWEST:
        return None
    draw = np.random.default_rng([seed, len(rows)])
    kept = draw.permutation(others)[:MOST_OTHERS]
    chosen = draw.permutation(np.concatenate([ends, kept]))
    features, terminal = _features(rows[chosen]), truth[chosen]
    weight = np.where(terminal, 1.0, len(others) / len(kept))
    fifth = len(chosen) // 5
    tried = TerminationTree.fit(features[fifth:], terminal[fifth:], weight[fifth:])
    rarer = len(ends) <= len(others)  # the answer whose rows a tree could miss and still be right about most
    asked, found = terminal[:fifth] == rarer, tried.decide(rows[chosen[:fifth]]) == rarer
    weighed = weight[:fifth]
    if weighed[asked & found].sum() < TRUSTED * max(weighed[asked].sum(), weighed[found].sum()):
        return None
    return TerminationTree.fit(features, terminal, weight)


@dataclass(frozen=True)
class UsualReward:
    """When a row has the reward that comes again and again: as thresholds on the rest of the row decide."""

    reward: float
    tree: TerminationTree
    """Tells the rows that have another reward."""

    @classmethod
    def learn(cls, rows: Transitions, reward: float) -> UsualReward | None:
        """Of real rows, of which most have this `reward`, or some do; None where no tree can be trusted."""
        tree = learn(_unpaid(rows), truth=rows.reward != rows.reward.dtype.type(reward))
        return None if tree is None else cls(reward, tree)

    def consistent(self, rows: Transitions, draw: np.random.Generator) -> Transitions:
        """`rows`, those whose reward contradicts the rest of the row replaced by others that the tree judges alike."""
        told, found = self.tree.decide(_unpaid(rows)), rows.reward != rows.reward.dtype.type(self.reward)
        taken = np.arange(len(rows))
        for answer in (False, True):
            wrong = np.flatnonzero((told == answer) & (found != answer))
            right = np.flatnonzero((told == answer) & (found == answer))
            if len(right):
                taken[wrong] = draw.choice(right, len(wrong))
        return rows[taken]

    def to_json(self) -> dict[str, Any]:
        return {"reward": self.reward, "tree": self.tree.to_json()}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> UsualReward:
        told = checked(entry, _Entry, "usual_reward")
        return cls(told["reward"], TerminationTree.from_json(told["tree"]))


class _Entry(TypedDict):
    reward: float
    tree: Any


def _unpaid(rows: Transitions) -> Transitions:
    return replace(rows, reward=np.zeros_like(rows.reward))


def _features(rows: Transitions, columns: list[int] | None = None) -> Array:
    """Observation, action, reward and next observation side by side (N, F), or some `columns` of them."""
    parts = [getattr(rows, field).reshape(len(rows), -1) for field in _FEATURES]
    if columns is None:
        return np.concatenate(parts, axis=1)
    values = np.empty((len(rows), len(columns)))
    for place, column in enumerate(columns):
        for part in parts:
            if column < part.shape[1]:
                values[:, place] = part[:, column]
                break
            column -= part.shape[1]
    return values


def _best_split(features: Array, terminal: NDArray[np.bool_], weight: Array) -> tuple[int, float] | None:
    """The column and the cut that leave the least impurity; None where the rows are of one kind or nothing helps."""
    if terminal.all() or not terminal.any():
        return None
    ends, others = np.where(terminal, weight, 0.0), np.where(terminal, 0.0, weight)
    least, best = _impurity(ends.sum(), others.sum()) * (1 - 1e-9), None
    for column in range(features.shape[1]):
        order = np.argsort(features[:, column], kind="stable")
        values = features[order, column]
        ends_below, others_below = np.cumsum(ends[order])[:-1], np.cumsum(others[order])[:-1]
        left = _impurity(ends_below, others_below)
        right = _impurity(ends.sum() - ends_below, others.sum() - others_below)
        total = np.where(values[1:] > values[:-1], left + right, np.inf)
        total[: FEWEST - 1], total[len(total) - FEWEST + 1 :] = np.inf, np.inf
        at = int(total.argmin()) if len(total) else 0
        if len(total) and total[at] < least:
            least, best = total[at], (column, (float(values[at]) + float(values[at + 1])) / 2)
    return best


def _impurity(ends: Any, others: Any) -> Any:
    """Gini's, times the weight of the rows."""
    return ends * others / np.maximum(ends + others, 1e-300)

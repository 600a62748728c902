"""Decide from the other columns of a row whether it is terminal, with a decision tree learned from real rows.

Environments end an episode by comparing the state with a few limits. For example, a Hopper episode ends if the height
is below 0.7. A diffusion model settles early in the denoising whether a row is terminal, and the generated state then
misses the limit by a little: half of the rows that the model makes terminal have a state inside the limits. The tree
learns the limits from the real rows and decides by the generated state.

Read in this order: `TerminationTree` (the tree), `learn` (fit and validate one), `Decision` (apply it on a device).
`terminal_reward`, `UsualReward` and `Regions` handle rewards and events that depend on such limits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther.data.quantiles import row_index
from synther.data.surfaces import Surface
from synther.data.transitions import Transitions
from synther.errors import FormatError
from synther.schema import checked

Array = NDArray[Any]

DEEPEST = 8
FEWEST = 5
"""Minimum number of real rows on each side of a threshold. `learn` needs ten times as many terminal rows, and ten
times as many others."""
MOST_OTHERS = 50_000
"""Maximum number of non-terminal rows that a tree is fitted on. If there are more, a random part of them is used, and
each row of this part has a weight above 1."""
TRUSTED = 0.9
"""A tree may decide only if precision and recall of the rarer answer reach this on held-out real rows."""
FEW_ENDS = 500
"""With at most this many rows of the rarer answer, a fifth of the rows is too small a test set. Each fifth is then
tested in turn (cross-validation)."""
SURE = 0.98
"""If precision and recall reach this, no surface is fitted: limits on single columns are the simpler explanation."""
LEAF, SURFACE = -1, -2
"""Feature of a leaf, and feature of a node that compares the height above the surface."""

_MOST_EVENTS = 6  # events that the tree of `Regions` is fitted to separate; the rarest ones are merged into one
_LEAST_SCORE = 0.6  # precision and recall from which the leaves of a tree are used as regions
_PRIOR_ROWS = 10.0  # shares in a node are shrunk towards those of its parent, as if it had this many more rows
_HOPELESS = 0.5  # cross-validation stops early if precision or recall is below this
_MOST_ENDS, _NEIGHBOURS = 2_000, 5  # terminal rows, and neighbours of each, that `terminal_reward` uses at most
_COMPARED = 256  # terminal rows in one batch of the search for neighbours
_WIDE = 2.0  # rewards are far apart if the gap between them is wider than this many times their own range
_LEAST_WEIGHT, _MOST_WEIGHT = 0.02, 8.0  # limits of the weight of an event in `Regions`, before normalisation

FEATURES = ("observation", "action", "reward", "next_observation")


@dataclass(frozen=True)
class Examples:
    """Rows that a tree is fitted on."""

    features: Array
    """(N, F)"""
    truth: NDArray[Any]
    """Class of each row, (N,)."""
    weight: Array
    """Weight of each row, (N,)."""
    orders: list[NDArray[np.intp]]
    """For each feature, the numbers of the rows in increasing order of it."""

    @classmethod
    def of(cls, features: Array, truth: NDArray[Any], weight: Array) -> Examples:
        """Sort the rows by each feature."""
        orders = [np.argsort(values, kind="stable") for values in np.ascontiguousarray(features.T)]
        return cls(features, truth, weight, orders)

    def without(self, part: slice) -> Examples:
        """Return the other rows, which need not be sorted again."""
        kept = np.ones(len(self.weight), bool)
        kept[part] = False
        number = np.cumsum(kept) - 1
        orders = [number[order[kept[order]]] for order in self.orders]
        return Examples(self.features[kept], self.truth[kept], self.weight[kept], orders)


@dataclass(frozen=True)
class TerminationTree:
    """A decision tree, stored as parallel lists with one entry for each node, the root first.

    A node that is not a leaf compares one feature of a row with a threshold. A leaf holds the answer.
    """

    feature: tuple[int, ...]
    """Number of the column that a node compares, counted over observation, action, reward and next observation. -1 is
    a leaf, -2 compares the height above the surface."""
    cut: tuple[float, ...]
    """Threshold of each node."""
    below: tuple[int, ...]
    """Next node for rows at or below the threshold."""
    above: tuple[int, ...]
    """Next node for rows above the threshold."""
    terminal: tuple[bool, ...]
    """Answer of a leaf."""
    surface: Surface | None = None
    """Surface that nodes with feature -2 use."""

    @classmethod
    def fit(cls, examples: Examples, surface: Surface | None = None) -> TerminationTree:
        """Grow the tree that predicts the class of examples from their features.

        Splits minimise the Gini impurity. There may be more than two classes, numbered from 0. The leaves of the tree
        are then meaningful, but its answers are not.
        """
        features, terminal, weight = examples.features, examples.truth, examples.weight
        columns, orders = features.shape[1], examples.orders
        if surface is not None:
            known = torch.from_numpy(features[:, surface.columns].T.astype(np.float64))
            heights = surface.on(known.device)(known).numpy()
            features = np.concatenate([features, heights[:, None]], axis=1)
            orders = [*orders, np.argsort(heights, kind="stable")]
        by_column = np.ascontiguousarray(features.T)
        last_class = max(int(terminal.max()), 1)
        class_weights = [np.where(terminal == number, weight, 0.0) for number in range(last_class + 1)]
        nodes: list[tuple[int, float, int, int, bool]] = []

        def grow(orders: list[NDArray[np.intp]], depth: int) -> int:
            """Add a node and the nodes below it, and return its number. `orders` are its rows as in `_best_split`."""
            node, rows = len(nodes), orders[0]
            nodes.append((-1, 0.0, -1, -1, bool(class_weights[1][rows].sum() * 2 > weight[rows].sum())))
            split = _best_split(by_column, orders, class_weights) if depth < DEEPEST else None
            if split is not None:
                column, cut = split
                above = by_column[column] > np.array([cut])  # a plain number would be rounded to the column's dtype
                sides = [[order[above[order] == side] for order in orders] for side in (False, True)]
                orders.clear()  # frees memory: the orders are as large as all features
                children = grow(sides[0], depth + 1), grow(sides[1], depth + 1)
                nodes[node] = (column if column < columns else SURFACE, cut, *children, nodes[node][4])
            return node

        grow([np.arange(len(features)), *orders], 0)
        uses_surface = any(feature == SURFACE for feature, *_ in nodes)
        parts: Any = zip(*nodes, strict=True)
        tree = cls(*parts)
        return replace(tree, surface=surface) if uses_surface else tree

    @cached_property
    def used(self) -> tuple[int, ...]:
        """The features that the tree needs, in increasing order: those of its nodes and those of its surface."""
        computed = () if self.surface is None else self.surface.columns
        return tuple(sorted({feature for feature in (*self.feature, *computed) if feature >= 0}))

    def asks_for_reward(self, rows: Transitions) -> bool:
        """Return whether the tree needs the reward. `rows` give the number of columns of each field."""
        return sum(_widths(rows)[: FEATURES.index("reward")]) in self.used

    def decide(self, rows: Transitions) -> NDArray[np.bool_]:
        """Return which rows the tree calls terminal. (N,)"""
        return np.array(self.terminal)[self.leaves(rows)]

    def leaves(self, rows: Transitions) -> NDArray[np.int64]:
        """Return the number of the leaf that each row reaches. (N,)"""
        values = torch.from_numpy(_features(rows, self.used).T)
        return np.asarray(Decision(self, torch.device("cpu")).leaves(values).numpy())

    def to_json(self) -> dict[str, Any]:
        names = ("feature", "cut", "below", "above", "terminal")
        surface = {} if self.surface is None else {"surface": asdict(self.surface)}
        return {name: list(getattr(self, name)) for name in names} | surface

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> TerminationTree:
        tree: TerminationTree = checked(entry, cls, "a tree")
        if (tree.surface is None) == (SURFACE in tree.feature):
            raise FormatError("a tree: expected a surface if and only if a node has the feature -2")
        nodes = len(tree.feature)
        if {len(part) for part in (tree.cut, tree.below, tree.above, tree.terminal)} != {nodes} or not nodes:
            raise FormatError("a tree: expected a feature, a cut, two children and an answer for each node")
        for node, children in enumerate(zip(tree.below, tree.above, strict=True)):
            # An earlier child would make a loop.
            if tree.feature[node] != LEAF and not all(node < child < nodes for child in children):
                raise FormatError(f"a tree: node {node} has the children {children}: expected later nodes")
        return tree


class Decision:
    """A tree on a device, which decides about many rows at once. All rows take as many steps as the deepest leaf needs;
    a leaf leads to itself."""

    def __init__(self, tree: TerminationTree, device: torch.device) -> None:
        nodes = range(len(tree.feature))
        is_leaf = [feature == LEAF for feature in tree.feature]
        self._heights = None
        if tree.surface is not None:
            self._columns = row_index([tree.used.index(column) for column in tree.surface.columns], device)
            self._heights = tree.surface.on(device)
        known = {feature: place for place, feature in enumerate((*tree.used, SURFACE))}
        place = [0 if is_leaf[node] else known[tree.feature[node]] for node in nodes]
        below, above = (
            [node if is_leaf[node] else children[node] for node in nodes] for children in (tree.below, tree.above)
        )
        depth = [0 for _ in nodes]
        for node in nodes:
            for child in {below[node], above[node]} - {node}:
                depth[child] = depth[node] + 1
        self._depth = max(depth)
        self._place, self._terminal = torch.tensor(place, device=device), torch.tensor(tree.terminal, device=device)
        self._below, self._above = (torch.tensor(each, device=device)[:, None] for each in (below, above))
        self._cut = torch.tensor(tree.cut, dtype=torch.float64, device=device)[:, None]

    def __call__(self, values: Tensor) -> Tensor:
        """Return the tree's answers (N,) for rows with the features `values` (U, N): the U features in `tree.used`."""
        return self._terminal[self.leaves(values)]

    def leaves(self, values: Tensor) -> Tensor:
        """Return the number of the leaf that each row reaches (N,), given the same `values` (U, N)."""
        if self._heights is not None:
            values = torch.cat([values, self._heights(values[self._columns])[None]])
        node = torch.zeros(1, values.shape[1], dtype=torch.int64, device=values.device)
        if self._depth:
            following = torch.where(values[self._place] > self._cut, self._above, self._below)
            for _ in range(self._depth):
                node = following.gather(0, node)
        return node[0]


def learn(rows: Transitions, seed: int = 0, truth: NDArray[np.bool_] | None = None) -> TerminationTree | None:
    """Fit a tree that predicts which rows are terminal, or which rows are marked in `truth` (N,).

    Return None if no tree can be trusted, which is tested with trees fitted on four fifths of the rows. A surface in
    the next observation is used if limits on single columns do not explain nearly all rows. The reward is used only if
    no tree can be trusted without it, because limits apply to the next state, and the reward follows from the state.
    """
    truth = rows.terminal if truth is None else truth
    ends, others = np.flatnonzero(truth), np.flatnonzero(~truth)
    if min(len(ends), len(others)) < 4 * FEWEST:
        return None
    chosen, weight = _chosen(ends, others, np.random.default_rng([seed, len(rows)]))
    terminal = truth[chosen]
    rarer = len(ends) <= len(others)  # the answer of fewer rows: missing all of them would hardly lower the accuracy
    fitted = rows[chosen]
    for inputs in (unpaid(fitted), fitted) if fitted.reward.any() else (fitted,):
        examples = Examples.of(_features(inputs), terminal, weight)
        next_columns = np.arange(examples.features.shape[1])[-_widths(inputs)[-1] :]
        score, computed = _held_out_score(examples, inputs, rarer), None
        if score < SURE:
            needed = 1 - (1 - score) / 2  # a surface must halve the errors
            better = _held_out_score(examples, inputs, rarer, next_columns, needed)
            if better > needed:
                score, computed = better, next_columns
        if score >= TRUSTED:
            return _grown(examples, rarer, computed)
    return None


def _chosen(ends: Array, others: Array, draw: np.random.Generator) -> tuple[Array, Array]:
    """Return the numbers of the rows to fit a tree on, and their weights: all `ends` and at most `MOST_OTHERS` of the
    `others`, in random order."""
    kept = draw.permutation(others)[:MOST_OTHERS]
    chosen = draw.permutation(np.concatenate([ends, kept]))
    return chosen, np.where(np.isin(chosen, ends), 1.0, len(others) / len(kept))


def _grown(examples: Examples, answer: bool, computed: Array | None = None) -> TerminationTree:
    """Fit a tree. With `computed` columns, first fit a surface in them that has the rows with this `answer` above it,
    and offer the height above the surface to the tree as one more feature."""
    surface = None if computed is None else Surface.fit(examples.features, examples.truth == answer, computed)
    return TerminationTree.fit(examples, surface)


def _held_out_score(
    examples: Examples, rows: Transitions, answer: bool, computed: Array | None = None, needed: float = 0.0
) -> float:
    """Return the lower one of precision and recall of an `answer`, on rows that the tree was not fitted on.

    The tree is fitted on four fifths of the rows and tested on the rest. With few rows of this answer, each fifth is
    tested in turn, until the score is hopeless or cannot reach the `needed` one any more.
    """
    fifth, correct = len(rows) // 5, 0.0
    totals = np.zeros(2)  # weights of the rows that have the answer, and of those that the tree gives it to
    turns = 1 if np.count_nonzero(examples.truth == answer) > FEW_ENDS else 5
    for turn in range(turns):
        part = slice(turn * fifth, (turn + 1) * fifth)
        tree = _grown(examples.without(part), answer, computed)
        actual, predicted = examples.truth[part] == answer, tree.decide(rows[part]) == answer
        part_weight = examples.weight[part]
        correct += float(part_weight[actual & predicted].sum())
        totals += [part_weight[actual].sum(), part_weight[predicted].sum()]
        rest = slice(part.stop, turns * fifth)
        untested = float(examples.weight[rest][examples.truth[rest] == answer].sum())
        if correct < _HOPELESS * totals.max() or correct + untested < needed * (totals.max() + untested):
            break
    return correct / float(totals.max()) if totals.any() else 1.0


def terminal_reward(rows: Transitions, seed: int = 0) -> float:
    """Return the extra reward of a terminal row, compared with a non-terminal row with the same other values.

    If the rewards of terminal rows are far from all others, it is the difference of the medians. Otherwise it is the
    coefficient of `terminal` in a linear regression of the reward on all columns and their squares. The regression
    uses rows next to the limit: the half of the terminal rows that is nearest to non-terminal rows, and these
    neighbours. Return 0 if there are too few rows, or if the coefficient is not clearly above the regression error.
    """
    ends, others = np.flatnonzero(rows.terminal), np.flatnonzero(~rows.terminal)
    if min(len(ends), len(others)) >= FEWEST and (apart := _far_apart(rows.reward[ends], rows.reward[others])):
        return apart
    draw = np.random.default_rng([seed, len(rows)])
    ends, others = draw.permutation(ends)[:_MOST_ENDS], draw.permutation(others)[:MOST_OTHERS]
    needed, most = 4 * sum(_widths(rows)), len(ends) * (1 + _NEIGHBOURS)
    if min(len(ends), len(others)) < 10 * FEWEST or most < needed:
        return 0.0
    chosen = rows[np.concatenate([ends, others])]
    values = torch.from_numpy(_features(unpaid(chosen)).astype(np.float64))
    values = (values - values.mean(0)) / values.std(0)
    values = values[:, values.isfinite().all(0)]  # without constant columns
    pieces = torch.split(values[: len(ends)], _COMPARED)
    found = [torch.cdist(some, values[len(ends) :]).topk(_NEIGHBOURS, largest=False) for some in pieces]
    distance, neighbour = (torch.cat(parts) for parts in zip(*found, strict=True))
    nearest = distance[:, 0].argsort()[: len(ends) // 2]
    used = torch.cat([nearest, len(ends) + torch.from_numpy(np.unique(neighbour[nearest].numpy()))])
    if len(used) < needed:
        return 0.0
    is_end, near = used < len(ends), values[used]
    known = torch.cat([near, near.square(), torch.ones(len(used), 1), is_end[:, None]], dim=1)
    reward = torch.from_numpy(chosen.reward.astype(np.float64))[used]
    weights = torch.linalg.lstsq(known, reward[:, None], driver="gelsd").solution[:, 0]
    price, error = float(weights[-1]), (reward - known @ weights).square()
    spread = float(torch.stack([error[is_end].mean(), error[~is_end].mean()]).max().sqrt())
    return price if spread < abs(price) / 2 else 0.0


def _far_apart(rewards: Array, others: Array) -> float:
    """Return the median of `rewards` minus the median of `others` if the gap between them is much wider than the range
    of either, else 0."""
    first, second = rewards.astype(np.float64), others.astype(np.float64)
    gap = max(first.min() - second.max(), second.min() - first.max())
    is_wide = gap > _WIDE * max(np.ptp(first), np.ptp(second))
    return float(np.median(first) - np.median(second)) if is_wide else 0.0


@dataclass(frozen=True)
class UsualReward:
    """Decides whether a row has the usual reward, which many rows share, by a tree on the rest of the row."""

    reward: float
    """The usual reward."""
    tree: TerminationTree
    """Its answer is True for rows with any other reward."""

    @classmethod
    def learn(cls, rows: Transitions, reward: float) -> UsualReward | None:
        """Fit on real rows, many of which have this `reward`. Return None if no tree can be trusted."""
        tree = learn(unpaid(rows), truth=rows.reward != rows.reward.dtype.type(reward))
        return None if tree is None else cls(reward, tree)

    def consistent(self, rows: Transitions, unusual: NDArray[np.bool_], draw: np.random.Generator) -> NDArray[np.int64]:
        """Return the numbers of the rows to take (N,), so that no reward contradicts the tree.

        `unusual` (N,) are the answers of the tree. If the reward of a row does not agree with its answer, a random row
        with the same answer and an agreeing reward takes its place.
        """
        differs = rows.reward != rows.reward.dtype.type(self.reward)
        taken = np.arange(len(rows))
        for answer in (False, True):
            wrong = np.flatnonzero((unusual == answer) & (differs != answer))
            right = np.flatnonzero((unusual == answer) & (differs == answer))
            if len(right):
                taken[wrong] = draw.choice(right, len(wrong))
        return taken

    def to_json(self) -> dict[str, Any]:
        return {"reward": self.reward, "tree": self.tree.to_json()}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> UsualReward:
        stored = checked(entry, _Entry, "usual_reward")
        return cls(stored["reward"], TerminationTree.from_json(stored["tree"]))


class _Entry(TypedDict):
    reward: float
    tree: Any


@dataclass(frozen=True)
class Regions:
    """How often each event happens in each region. An event is one of a few frequent rewards, with or without terminal.

    The regions are the leaves of a tree. The tree predicts the events too poorly to decide about them, but much better
    than a network that was fitted only briefly. So generated rows get importance weights that make each event as
    frequent in each region as in the real rows. Which rows of a region have an event stays random.
    """

    tree: TerminationTree
    """Its leaves are the regions. It does not use the reward."""
    rewards: tuple[float, ...]
    """Rewards that many rows share, in increasing order. Empty if there are none."""
    shares: tuple[tuple[float, ...], ...]
    """Share of each event in each node of the tree (M, E). Event 2i is the i-th of `rewards` without terminal, and
    event 2i + 1 is the same with terminal. The last two events stand for any other reward."""

    @classmethod
    def learn(cls, rows: Transitions, rewards: Sequence[float]) -> Regions | None:
        """Fit on real rows with these frequent `rewards`. Return None if rows are too few, or a tree predicts too
        little."""
        found = cls(TerminationTree((LEAF,), (0.0,), (LEAF,), (LEAF,), (False,)), tuple(rewards), ())
        events = found.events(rows)
        overall = np.bincount(events, minlength=found._count) / max(len(rows), 1)
        unusual = events != overall.argmax()
        ends, others = np.flatnonzero(unusual), np.flatnonzero(~unusual)
        if min(len(ends), len(others)) < 4 * FEWEST:
            return None
        chosen, weight = _chosen(ends, others, np.random.default_rng(len(rows)))
        inputs = unpaid(rows)[chosen]
        examples = Examples.of(_features(inputs), unusual[chosen], weight)
        if _held_out_score(examples, inputs, len(ends) <= len(others)) < _LEAST_SCORE:
            return None
        common = np.argsort(-overall, kind="stable")[: min(_MOST_EVENTS, np.count_nonzero(overall))]
        class_of = np.full(len(overall), len(common) - 1)  # the rarest events share the last class
        class_of[common] = np.arange(len(common))
        classes = replace(examples, truth=class_of[events[chosen]])
        found = replace(found, tree=TerminationTree.fit(classes))
        return replace(found, shares=tuple(map(tuple, found._shares(rows).tolist())))

    def events(self, rows: Transitions) -> NDArray[np.int64]:
        """Return the number of the event in each row. (N,)"""
        paid, values = rows.reward.astype(np.float64), np.append(self.rewards, np.inf)
        place = np.searchsorted(values, paid)
        return 2 * np.where(values[place] == paid, place, len(self.rewards)) + rows.terminal

    @property
    def _count(self) -> int:
        """Number of different events, E."""
        return 2 * (len(self.rewards) + 1)

    def places(self, rows: Transitions) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the leaf (N,) and the event (N,) of each row."""
        return self.tree.leaves(unpaid(rows)), self.events(rows)

    def weights(self, rows: Transitions, weight: Array | None = None) -> tuple[tuple[float, ...], ...]:
        """Return the importance weight of a generated row for each node and event (M, E), measured on generated `rows`.

        The weights average 1 in each node, so every node keeps its share of the rows. `weight` (N,) are the importance
        weights that `rows` already have.
        """
        wanted, generated = np.array(self.shares), self._shares(rows, weight)
        ratio = np.divide(wanted, generated, out=np.ones_like(wanted), where=generated > 0)
        weights = ratio.clip(_LEAST_WEIGHT, _MOST_WEIGHT)
        weights /= (generated * weights).sum(1, keepdims=True)
        return tuple(map(tuple, weights.tolist()))

    def _shares(self, rows: Transitions, weight: Array | None = None) -> Array:
        """Return the share of each event in each node (M, E), shrunk towards its share in the parent node."""
        tree, counts = self.tree, np.zeros((len(self.tree.feature), self._count))
        np.add.at(counts, self.places(rows), 1.0 if weight is None else weight)
        inner = [node for node, feature in enumerate(tree.feature) if feature != LEAF]
        for node in reversed(inner):
            counts[node] = counts[tree.below[node]] + counts[tree.above[node]]
        shares: Array = counts / counts.sum(1, keepdims=True).clip(1e-300)
        for node in inner:
            for child in (tree.below[node], tree.above[node]):
                shares[child] = (counts[child] + _PRIOR_ROWS * shares[node]) / (counts[child].sum() + _PRIOR_ROWS)
        return shares

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "tree": self.tree.to_json()}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Regions:
        stored = checked(entry, _Parts, "regions")
        found = cls(TerminationTree.from_json(stored["tree"]), stored["rewards"], stored["shares"])
        shape = len(found.tree.feature), found._count
        shares = [number for part in found.shares for number in part]
        fits = len(found.shares) == shape[0] and {len(part) for part in found.shares} == {shape[1]}
        if not fits or not all(0 <= number <= 1 for number in shares) or (np.diff(found.rewards) <= 0).any():
            raise FormatError("regions: expected the share of each event in each node of the tree")
        return found


class _Parts(TypedDict):
    tree: Any
    rewards: tuple[float, ...]
    shares: tuple[tuple[float, ...], ...]


def unpaid(rows: Transitions) -> Transitions:
    """Return the same rows with all rewards set to 0."""
    return replace(rows, reward=np.zeros_like(rows.reward))


def _widths(rows: Transitions) -> list[int]:
    """Return the number of columns of each of the `FEATURES`."""
    return [math.prod(getattr(rows, field).shape[1:]) for field in FEATURES]


def _features(rows: Transitions, columns: Sequence[int] | None = None) -> Array:
    """Return observation, action, reward and next observation side by side (N, F), or only some `columns` of them."""
    parts = [getattr(rows, field).reshape(len(rows), -1) for field in FEATURES]
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


def _best_split(
    by_column: Array, orders: Sequence[NDArray[np.intp]], class_weights: Sequence[Array]
) -> tuple[int, float] | None:
    """Return the column and the threshold that leave the least impurity, or None if no split lowers it.

    `by_column` (F, N) holds the features of all rows. `class_weights` holds one array (N,) for each class: the weight
    of a row if it belongs to the class, else 0. `orders` (1 + F, n) are the numbers of the n rows to split: in their
    original order, and then sorted by each column.
    """
    rows, *sorted_rows = orders
    totals = [weights[rows].sum() for weights in class_weights]
    least, best = _impurity(totals) * (1 - 1e-9), None
    if not least or len(rows) < 2 * FEWEST:
        return None
    for column, order in enumerate(sorted_rows):
        values = by_column[column][order]
        if values[0] == values[-1]:
            continue
        below = [weights[order].cumsum()[:-1] for weights in class_weights]
        left = _impurity(below)
        right = _impurity([total - part for total, part in zip(totals, below, strict=True)])
        total = np.where(values[1:] > values[:-1], left + right, np.inf)
        total[: FEWEST - 1], total[len(total) - FEWEST + 1 :] = np.inf, np.inf
        at = int(total.argmin())
        if total[at] < least:
            least, best = total[at], (column, (float(values[at]) + float(values[at + 1])) / 2)
    return best


def _impurity(weights: Sequence[Any]) -> Any:
    """Return the Gini impurity times half of the total weight, given the weight of the rows of each class."""
    return sum(one * other for one, other in combinations(weights, 2)) / np.maximum(sum(weights), 1e-300)

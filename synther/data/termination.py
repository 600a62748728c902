"""When an episode ends: a tree of thresholds on the rest of a row, learned from real rows.

Environments end an episode by comparing the state with a few limits. A generator decides early on its way from noise
whether a row is to be terminal, and then misses the limit by a little: half of its terminal rows are not. A tree knows
the limits from the real rows, and takes the generated row at its word.
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
"""Real rows on either side of a threshold, and on either side of the whole question times ten."""
MOST_OTHERS = 50_000
"""Rows that are not terminal among those a tree is fitted on; each then counts for several."""
TRUSTED = 0.9
"""Precision and recall of the rarer answer, on held-out real rows, from which a tree may decide."""
FEW_ENDS = 500
"""Rows with the rarer answer up to which a fifth of them tells too little about that."""
SURE = 0.98
"""Precision and recall from which no surface is looked for: a limit on a column is the simpler reason."""
LEAF, SURFACE = -1, -2
"""The feature of a leaf, and that of a node which asks for the height above the surface."""

_MOST_EVENTS = 6  # that a tree tells apart
_TELLING = 0.6  # precision and recall from which a tree's leaves are used as parts of the world
_BELIEVED = 10.0  # rows by which what happens in a part is drawn to what happens around it
_HOPELESS = 0.5  # precision and recall in one fifth of the rows below which the others are not asked about
_MOST_ENDS, _NEIGHBOURS = 2_000, 5  # that tell the price of a terminal
_COMPARED = 256  # of them at a time
_WIDE = 2.0  # times as wide as the rewards on either side of it is a gap that parts them
_LEAST_WEIGHT, _MOST_WEIGHT = 0.02, 8.0  # of a row for what happens in it

FEATURES = ("observation", "action", "reward", "next_observation")


@dataclass(frozen=True)
class TerminationTree:
    """Nodes as parallel lists, the root first. A node asks whether a feature is above its cut; a leaf answers."""

    feature: tuple[int, ...]
    """Column among observation, action, reward and next observation, in this order; -1 is a leaf, -2 the height above
    the surface."""
    cut: tuple[float, ...]
    below: tuple[int, ...]
    above: tuple[int, ...]
    terminal: tuple[bool, ...]
    """The answer of a leaf."""
    surface: Surface | None = None

    @classmethod
    def fit(
        cls, features: Array, terminal: NDArray[Any], weight: Array, surface: Surface | None = None
    ) -> TerminationTree:
        """Grow the tree that separates `terminal` (N,) by `features` (N, F), by Gini's impurity.

        Rows may also be of more than two kinds, numbered from 0: answers are then of no use, and leaves are.
        """
        columns = features.shape[1]
        if surface is not None:
            known = torch.from_numpy(features[:, surface.columns].T.astype(np.float64))
            heights = surface.on(known.device)(known).numpy()
            features = np.concatenate([features, heights[:, None]], axis=1)
        by_column = np.ascontiguousarray(features.T)
        kinds = [np.where(terminal == kind, weight, 0.0) for kind in range(max(int(terminal.max()), 1) + 1)]
        nodes: list[tuple[int, float, int, int, bool]] = []

        def grow(orders: list[NDArray[np.intp]], depth: int) -> int:
            """A node and what is below it. Rows are sorted by each column once, for the root, and keep their order."""
            here, rows = len(nodes), orders[0]
            nodes.append((-1, 0.0, -1, -1, bool(kinds[1][rows].sum() * 2 > weight[rows].sum())))
            split = _best_split(by_column, orders, kinds) if depth < DEEPEST else None
            if split is not None:
                column, cut = split
                above = by_column[column] > np.array([cut])  # a single number could be rounded to their type
                sides = [[order[above[order] == side] for order in orders] for side in (False, True)]
                orders.clear()  # no longer needed, and as large as all features
                children = grow(sides[0], depth + 1), grow(sides[1], depth + 1)
                nodes[here] = (column if column < columns else SURFACE, cut, *children, nodes[here][4])
            return here

        grow([np.arange(len(features)), *(np.argsort(values, kind="stable") for values in by_column)], 0)
        asked = any(feature == SURFACE for feature, *_ in nodes)
        parts: Any = zip(*nodes, strict=True)
        tree = cls(*parts)
        return replace(tree, surface=surface) if asked else tree

    @cached_property
    def used(self) -> tuple[int, ...]:
        """The features that it asks about, or computes something from."""
        computed = () if self.surface is None else self.surface.columns
        return tuple(sorted({feature for feature in (*self.feature, *computed) if feature >= 0}))

    def asks_for_reward(self, rows: Transitions) -> bool:
        return sum(_widths(rows)[: FEATURES.index("reward")]) in self.used

    def decide(self, rows: Transitions) -> NDArray[np.bool_]:
        """Which rows are terminal. (N,)"""
        return np.array(self.terminal)[self.leaves(rows)]

    def leaves(self, rows: Transitions) -> NDArray[np.int64]:
        """The node that each row ends up in. (N,)"""
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
            raise FormatError("a tree: expected a surface where a node asks for one, and nowhere else")
        nodes = len(tree.feature)
        if {len(part) for part in (tree.cut, tree.below, tree.above, tree.terminal)} != {nodes} or not nodes:
            raise FormatError("a tree: expected a feature, a cut, two children and an answer for each node")
        for node, children in enumerate(zip(tree.below, tree.above, strict=True)):
            if tree.feature[node] != LEAF and not all(node < child < nodes for child in children):  # else it never ends
                raise FormatError(f"a tree: node {node} has the children {children}: expected later nodes")
        return tree


class Decision:
    """A tree on a device. All rows go down it side by side, as far as its deepest leaf."""

    def __init__(self, tree: TerminationTree, device: torch.device) -> None:
        nodes = range(len(tree.feature))
        is_leaf = [feature == LEAF for feature in tree.feature]
        self._heights = None
        if tree.surface is not None:
            self._columns = row_index([tree.used.index(column) for column in tree.surface.columns], device)
            self._heights = tree.surface.on(device)
        known = {feature: place for place, feature in enumerate((*tree.used, SURFACE))}
        place = [0 if is_leaf[node] else known[tree.feature[node]] for node in nodes]
        below, above = (  # a leaf leads to itself
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
        """The answers to rows whose features that the tree uses are `values` (U, N). (N,)"""
        return self._terminal[self.leaves(values)]

    def leaves(self, values: Tensor) -> Tensor:
        """The nodes that they end up in. (N,)"""
        if self._heights is not None:
            values = torch.cat([values, self._heights(values[self._columns])[None]])
        node = torch.zeros(1, values.shape[1], dtype=torch.int64, device=values.device)
        if self._depth:
            following = torch.where(values[self._place] > self._cut, self._above, self._below)
            for _ in range(self._depth):
                node = following.gather(0, node)
        return node[0]


def learn(rows: Transitions, seed: int = 0, truth: NDArray[np.bool_] | None = None) -> TerminationTree | None:
    """A tree that recognises terminal rows, or the rows marked in `truth` (N,). None if no tree can be trusted.

    It is tried first: fitted on four fifths of the rows and asked about the rest. It looks for a surface in next
    observations where limits on columns alone do not tell nearly all, and asks for the reward only if no tree can be
    trusted without: a limit is one on where a step leads, and what is paid there follows.
    """
    truth = rows.terminal if truth is None else truth
    ends, others = np.flatnonzero(truth), np.flatnonzero(~truth)
    if min(len(ends), len(others)) < 10 * FEWEST:
        return None
    chosen, weight = _chosen(ends, others, np.random.default_rng([seed, len(rows)]))
    terminal = truth[chosen]
    rarer = len(ends) <= len(others)  # the answer whose rows a tree could miss and still be right about most
    told = rows[chosen]
    for asked in (unpaid(told), told) if told.reward.any() else (told,):
        features = _features(asked)
        following = np.arange(features.shape[1])[-_widths(asked)[-1] :]
        right, computed = _rightness(features, terminal, weight, asked, rarer), None
        if right < SURE:
            better = _rightness(features, terminal, weight, asked, rarer, following)
            if 1 - better < (1 - right) / 2:
                right, computed = better, following
        if right >= TRUSTED:
            return _grown(features, terminal, weight, rarer, computed)
    return None


def _chosen(ends: Array, others: Array, draw: np.random.Generator) -> tuple[Array, Array]:
    """The rows that a tree is fitted on, in random order: all `ends` and not too many `others`. And their weights."""
    kept = draw.permutation(others)[:MOST_OTHERS]
    chosen = draw.permutation(np.concatenate([ends, kept]))
    return chosen, np.where(np.isin(chosen, ends), 1.0, len(others) / len(kept))


def _grown(
    features: Array, terminal: NDArray[np.bool_], weight: Array, answer: bool, computed: Array | None = None
) -> TerminationTree:
    """A tree, which may ask for a surface in `computed` columns that has the rows with an `answer` above it."""
    surface = None if computed is None else Surface.fit(features, terminal == answer, computed)
    return TerminationTree.fit(features, terminal, weight, surface)


def _rightness(
    features: Array,
    terminal: NDArray[np.bool_],
    weight: Array,
    rows: Transitions,
    answer: bool,
    computed: Array | None = None,
) -> float:
    """The lower one of precision and recall of an answer, in a fifth of the rows, of a tree that knows the others. If a
    fifth has few rows with that answer, each fifth is asked about in turn, unless there is no hope after the first."""
    fifth, right, most = len(rows) // 5, 0.0, np.zeros(2)
    turns = 1 if np.count_nonzero(terminal == answer) > FEW_ENDS else 5
    for turn in range(turns):
        part = slice(turn * fifth, (turn + 1) * fifth)
        known = np.r_[0 : part.start, part.stop : len(rows)]
        tree = _grown(features[known], terminal[known], weight[known], answer, computed)
        asked, found, weighed = terminal[part] == answer, tree.decide(rows[part]) == answer, weight[part]
        right += float(weighed[asked & found].sum())
        most += [weighed[asked].sum(), weighed[found].sum()]
        if right < _HOPELESS * most.max():
            break
    return right / float(most.max()) if most.any() else 1.0


def terminal_reward(rows: Transitions, seed: int = 0) -> float:
    """How much more reward a terminal row has than a row that is like it in everything else.

    Where rewards of terminals are far from all others, the two medians tell. Elsewhere rows next to each other on both
    sides of a limit do: the half of the terminal rows that is nearest to others, and these others, by a regression on
    all columns and their squares. 0 where a terminal has no price of its own, or not the same one in all rows.
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
    values = values[:, values.isfinite().all(0)]  # what never changes tells nothing
    pieces = torch.split(values[: len(ends)], _COMPARED)
    found = [torch.cdist(some, values[len(ends) :]).topk(_NEIGHBOURS, largest=False) for some in pieces]
    distance, neighbour = (torch.cat(parts) for parts in zip(*found, strict=True))
    nearest = distance[:, 0].argsort()[: len(ends) // 2]
    used = torch.cat([nearest, len(ends) + torch.from_numpy(np.unique(neighbour[nearest].numpy()))])
    if len(used) < needed:
        return 0.0
    is_end, own = used < len(ends), values[used]
    known = torch.cat([own, own.square(), torch.ones(len(used), 1), is_end[:, None]], dim=1)
    reward = torch.from_numpy(chosen.reward.astype(np.float64))[used]
    weights = torch.linalg.lstsq(known, reward[:, None], driver="gelsd").solution[:, 0]
    price, error = float(weights[-1]), (reward - known @ weights).square()
    spread = float(torch.stack([error[is_end].mean(), error[~is_end].mean()]).max().sqrt())
    return price if spread < abs(price) / 2 else 0.0


def _far_apart(rewards: Array, others: Array) -> float:
    """How far the median of some rewards is from that of others, if the gap between them is wide beside both of them;
    else 0."""
    here, there = rewards.astype(np.float64), others.astype(np.float64)
    gap = max(here.min() - there.max(), there.min() - here.max())
    return float(np.median(here) - np.median(there)) if gap > _WIDE * max(np.ptp(here), np.ptp(there)) else 0.0


@dataclass(frozen=True)
class UsualReward:
    """When a row has the reward that comes again and again: as thresholds on the rest of the row decide."""

    reward: float
    tree: TerminationTree
    """Tells the rows that have another reward."""

    @classmethod
    def learn(cls, rows: Transitions, reward: float) -> UsualReward | None:
        """Of real rows, of which most have this `reward`, or some do; None where no tree can be trusted."""
        tree = learn(unpaid(rows), truth=rows.reward != rows.reward.dtype.type(reward))
        return None if tree is None else cls(reward, tree)

    def consistent(self, rows: Transitions, unusual: NDArray[np.bool_], draw: np.random.Generator) -> NDArray[np.int64]:
        """Which of the `rows` to take: those whose reward contradicts the tree, which calls some `unusual` (N,), are
        replaced by others that it judges alike. (N,)"""
        found = rows.reward != rows.reward.dtype.type(self.reward)
        taken = np.arange(len(rows))
        for answer in (False, True):
            wrong = np.flatnonzero((unusual == answer) & (found != answer))
            right = np.flatnonzero((unusual == answer) & (found == answer))
            if len(right):
                taken[wrong] = draw.choice(right, len(wrong))
        return taken

    def to_json(self) -> dict[str, Any]:
        return {"reward": self.reward, "tree": self.tree.to_json()}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> UsualReward:
        told = checked(entry, _Entry, "usual_reward")
        return cls(told["reward"], TerminationTree.from_json(told["tree"]))


class _Entry(TypedDict):
    reward: float
    tree: Any


@dataclass(frozen=True)
class Regions:
    """How often a row is terminal, or has each of a few rewards, in each part of the world.

    The parts are the leaves of a tree that does not tell well enough when that happens to decide about it. A generator
    that was fitted briefly tells it far worse. So rows are taken such that it happens in each part as often as in the
    real rows: what is left to chance there stays so.
    """

    tree: TerminationTree
    rewards: tuple[float, ...]
    """Those that come again and again, in increasing order; empty where none does."""
    shares: tuple[tuple[float, ...], ...]
    """Of each event in each node of the tree: each reward, and then any other, first without and then with a
    terminal."""

    @classmethod
    def learn(cls, rows: Transitions, rewards: Sequence[float]) -> Regions | None:
        """Of real rows with these `rewards`; None where a tree tells next to nothing."""
        found = cls(TerminationTree((LEAF,), (0.0,), (LEAF,), (LEAF,), (False,)), tuple(rewards), ())
        events = found.events(rows)
        overall = np.bincount(events, minlength=found._count) / max(len(rows), 1)
        unusual = events != overall.argmax()
        ends, others = np.flatnonzero(unusual), np.flatnonzero(~unusual)
        if min(len(ends), len(others)) < 4 * FEWEST:
            return None
        chosen, weight = _chosen(ends, others, np.random.default_rng(len(rows)))
        some, asked = unpaid(rows), unusual[chosen]
        features = _features(some[chosen])
        rarer = len(ends) <= len(others)
        if _rightness(features, asked, weight, some[chosen], rarer) < _TELLING:
            return None
        common = np.argsort(-overall, kind="stable")[: min(_MOST_EVENTS, np.count_nonzero(overall))]
        kinds = np.full(len(overall), len(common) - 1)  # the rarest go together
        kinds[common] = np.arange(len(common))
        found = replace(found, tree=TerminationTree.fit(features, kinds[events[chosen]], weight))
        return replace(found, shares=tuple(map(tuple, found._shares(rows).tolist())))

    def events(self, rows: Transitions) -> NDArray[np.int64]:
        """What happens in each row. (N,)"""
        paid, values = rows.reward.astype(np.float64), np.append(self.rewards, np.inf)
        place = np.searchsorted(values, paid)
        return 2 * np.where(values[place] == paid, place, len(self.rewards)) + rows.terminal

    @property
    def _count(self) -> int:
        """How many events there are."""
        return 2 * (len(self.rewards) + 1)

    def places(self, rows: Transitions) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The node and the event of each row. (N,)"""
        return self.tree.leaves(unpaid(rows)), self.events(rows)

    def weights(self, rows: Transitions, weight: Array | None = None) -> tuple[tuple[float, ...], ...]:
        """How likely a generated row is to be taken for each node and event, of some of them. Each node keeps its share
        of the rows. `weight` (N,) is how likely each is to be taken before that."""
        wanted, found = np.array(self.shares), self._shares(rows, weight)
        odds = np.divide(wanted, found, out=np.ones_like(wanted), where=found > 0).clip(_LEAST_WEIGHT, _MOST_WEIGHT)
        odds /= (found * odds).sum(1, keepdims=True)
        return tuple(map(tuple, odds.tolist()))

    def _shares(self, rows: Transitions, weight: Array | None = None) -> Array:
        """Of each event in each node, where small nodes are drawn to the one above them. (M, E)"""
        tree, counts = self.tree, np.zeros((len(self.tree.feature), self._count))
        np.add.at(counts, self.places(rows), 1.0 if weight is None else weight)
        inner = [node for node, feature in enumerate(tree.feature) if feature != LEAF]
        for node in reversed(inner):
            counts[node] = counts[tree.below[node]] + counts[tree.above[node]]
        shares: Array = counts / counts.sum(1, keepdims=True).clip(1e-300)
        for node in inner:
            for child in (tree.below[node], tree.above[node]):
                shares[child] = (counts[child] + _BELIEVED * shares[node]) / (counts[child].sum() + _BELIEVED)
        return shares

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "tree": self.tree.to_json()}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Regions:
        told = checked(entry, _Parts, "regions")
        found = cls(TerminationTree.from_json(told["tree"]), told["rewards"], told["shares"])
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
    """The same without rewards."""
    return replace(rows, reward=np.zeros_like(rows.reward))


def _widths(rows: Transitions) -> list[int]:
    return [math.prod(getattr(rows, field).shape[1:]) for field in FEATURES]


def _features(rows: Transitions, columns: Sequence[int] | None = None) -> Array:
    """Observation, action, reward and next observation side by side (N, F), or some `columns` of them."""
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
    by_column: Array, orders: Sequence[NDArray[np.intp]], kinds: Sequence[Array]
) -> tuple[int, float] | None:
    """The column and the cut that leave the least impurity; None where the rows are of one kind or nothing helps.

    Columns (F, N) are those of all rows, and so are their weights (N,), for each of the `kinds` by itself. `orders`
    (1 + F, n) are the rows to be split: as they came, and then sorted by each column."""
    rows, *sorted_rows = orders
    totals = [kind[rows].sum() for kind in kinds]
    least, best = _impurity(totals) * (1 - 1e-9), None
    if not least or len(rows) < 2 * FEWEST:
        return None
    for column, order in enumerate(sorted_rows):
        values = by_column[column][order]
        if values[0] == values[-1]:
            continue
        below = [kind[order].cumsum()[:-1] for kind in kinds]
        left = _impurity(below)
        right = _impurity([total - part for total, part in zip(totals, below, strict=True)])
        total = np.where(values[1:] > values[:-1], left + right, np.inf)
        total[: FEWEST - 1], total[len(total) - FEWEST + 1 :] = np.inf, np.inf
        at = int(total.argmin())
        if total[at] < least:
            least, best = total[at], (column, (float(values[at]) + float(values[at + 1])) / 2)
    return best


def _impurity(kinds: Sequence[Any]) -> Any:
    """Gini's, times half the weight of the rows, of which each kind has a part."""
    return sum(one * other for one, other in combinations(kinds, 2)) / np.maximum(sum(kinds), 1e-300)

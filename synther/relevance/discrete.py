"""How likely the discrete values of a row are given the rest, and weights that correct what a generator has wrong.

The chance of an action in a state, or of a discrete outcome, often depends on numbers. A generator blurs such chances:
a click that should come in one row of a hundred comes in one of twenty. Small networks learn the chances in seconds,
once from real rows and once from generated ones. A generated row is then taken with a weight: how likely its discrete
values are among real rows, divided by how likely they are among generated ones (importance sampling).

NOTE[paper]: the reference takes all rows as they are generated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther import compute
from synther.data.categories import Drawn
from synther.data.inference import MOST_CATEGORIES
from synther.data.kinds import Binary, Categorical, Codebook, Integer, Kind
from synther.data.layout import Layout
from synther.data.transitions import ROW_FIELDS, Transitions
from synther.progress import Silent
from synther.relevance import conditional
from synther.relevance.conditional import Networks, Outputs
from synther.relevance.dynamics import plain_layout

Array = NDArray[Any]

MEMBERS, WIDTH, DEPTH = 2, 64, 2
MOST_VALUES = 512
"""Values of the discrete columns of a group together, beyond which no chances are learned."""

_DEPENDING = (
    (("observation",), ("observation",)),  # on its numbers
    (("action",), ("observation",)),
    (("next_observation",), ("observation", "action")),
    (("reward", "terminal"), ("observation", "action", "next_observation")),
)
"""Fields, and those that their discrete values may depend on."""

_FEWEST_ROWS, _MOST_ROWS = 1_000, 50_000  # that chances are learned from,
_FEWEST_GENERATED = 10_000  # generated ones among them: weights from fewer are worse than none
_HELD_OUT = 10  # one row in so many tells when a fit is best, and whether weights are worth it
_BLURRED = 0.005  # nats by which the law of real rows has to be better before rows are weighted by it
_LEAST, _MOST = 0.02, 6.0  # weights: beyond the latter most rows would be copies
_LIMIT = 10.0  # standard deviations at which inputs are cut
_CHUNK = 1 << 15


@dataclass(frozen=True)
class Group:
    """Discrete columns of the matrix that depend on the same other columns."""

    inputs: tuple[int, ...]
    flags: tuple[int, ...]
    choices: tuple[tuple[int, ...], ...]

    @classmethod
    def every(cls, layout: Layout, skipped: Sequence[str]) -> tuple[Group, ...]:
        """The discrete columns of observations, actions, next observations, and of reward and terminal, as far as
        there is something that they can depend on. Fields that are `skipped` have none."""
        found = []
        decided = {(field, flag.column) for flag in layout.decided for field in flag.sides}
        for fields, given in _DEPENDING:
            inputs, flags, choices = list[int](), list[int](), list[tuple[int, ...]]()
            for place in layout.places:
                columns = tuple(range(place.matrix.start, place.matrix.stop))
                is_own, is_number = place.field in fields, place.kind.scaled
                if place.field in given and (is_number or not is_own):
                    inputs += columns
                if not is_own or is_number or place.field in skipped or (place.field, place.source.start) in decided:
                    continue
                if isinstance(place.kind, Binary):
                    flags += columns
                elif columns:
                    choices.append(columns)
            group = cls(tuple(inputs), tuple(flags), tuple(choices))
            if inputs and 0 < group.outputs.columns <= MOST_VALUES:
                found.append(group)
        return tuple(found)

    @property
    def columns(self) -> int:
        """How many discrete columns there are, a choice as one."""
        return len(self.flags) + len(self.choices)

    @property
    def outputs(self) -> Outputs:
        return Outputs(0, len(self.flags), tuple(map(len, self.choices)))

    def tensors(self, matrix: Array, mean: Array, std: Array) -> tuple[Tensor, Tensor]:
        """What is given (N, I), scaled by mean and std of the matrix (D,), and the discrete values as 0 and 1
        (N, columns)."""
        inputs, targets = list(self.inputs), [*self.flags, *(column for group in self.choices for column in group)]
        given = np.clip((matrix[:, inputs] - mean[inputs]) / std[inputs], -_LIMIT, _LIMIT)
        return torch.from_numpy(given.astype(np.float32)), torch.from_numpy((matrix[:, targets] > 0).astype(np.float32))


@dataclass(frozen=True, eq=False)
class DiscreteLaw:
    """How likely the discrete values of some rows are, column by column."""

    layout: Layout
    skipped: tuple[str, ...]
    """Fields whose values something else decides, or weighs."""
    mean: Array
    std: Array
    """Of the columns of the layout's matrix (D,)."""
    groups: tuple[Group, ...]
    networks: tuple[Networks, ...]
    unseen: Transitions | None = None
    """Rows that it has not learned from. No file keeps them."""

    @classmethod
    def fit(
        cls,
        rows: Transitions,
        layout: Layout,
        skipped: Sequence[str] = (),
        *,
        steps: int = conditional.MOST_STEPS,
        seed: int = 0,
    ) -> DiscreteLaw | None:
        """Learn from rows in at most so many steps; `layout` is that of a model of them. None without discrete columns
        that depend on others, in fields that are not `skipped`."""
        plain = _plain(layout)
        groups = Group.every(plain, skipped)
        if not groups or len(rows) < _FEWEST_ROWS:
            return None
        some = _some(rows, seed)
        matrix, fresh = plain.pack(some), list[Networks]()
        for number, group in enumerate(groups):
            source = compute.generator(torch.device("cpu"), 17, seed, number)
            fresh.append(Networks.fresh(len(group.inputs), group.outputs, MEMBERS, WIDTH, DEPTH, source))
        std = np.maximum(matrix.std(0), np.finfo(np.float64).tiny)
        law = cls(plain, tuple(skipped), matrix.mean(0), std, groups, tuple(fresh), some[::_HELD_OUT])
        return law._fitted(matrix, steps, seed)

    def refitted(self, rows: Transitions, seed: int) -> DiscreteLaw:
        """The same of other rows, learned from where this one is: what both have wrong is then wrong in the same way,
        and cancels in weights."""
        return self._fitted(self.layout.pack(_some(rows, seed)), conditional.MOST_STEPS // 2, seed, fresh=False)

    def _fitted(self, matrix: Array, most: int, seed: int, fresh: bool = True) -> DiscreteLaw:
        networks, steps = [], min(most, conditional.steps_for(len(matrix)))
        held_out = torch.arange(len(matrix)) % _HELD_OUT == 0
        for group, known in zip(self.groups, self.networks, strict=True):
            inputs, targets = group.tensors(matrix, self.mean, self.std)
            with Silent().phase("chances", steps) as phase:
                fitted, _ = conditional.fit(
                    known.copy(), inputs, targets, held_out, steps=steps, seed=seed, phase=phase, fresh=fresh
                )
            networks.append(fitted)
        return replace(self, networks=tuple(networks))

    @property
    def names(self) -> tuple[str, ...]:
        """Of the discrete columns."""
        firsts = [column for group in self.groups for column in (*group.flags, *(own[0] for own in group.choices))]
        return tuple(self.layout.names[column].partition("=")[0].partition("#")[0] for column in firsts)

    def log_likelihood(self, rows: Transitions, columns: Sequence[int] | None = None) -> Array:
        """Of the value that each discrete column has (N, columns). Those that are not among `columns` may be 0."""
        found = [self._of_matrix(self.layout.pack(chunk), columns) for chunk in rows.chunks(_CHUNK)]
        return np.concatenate(found)

    def _of_matrix(self, matrix: Array, columns: Sequence[int] | None) -> Array:
        found = np.zeros((len(matrix), sum(group.columns for group in self.groups)))
        start = 0
        for group, networks in zip(self.groups, self.networks, strict=True):
            own = range(start, start + group.columns)
            start = own.stop
            if columns is None or not {*own}.isdisjoint(columns):
                inputs, targets = group.tensors(matrix, self.mean, self.std)
                found[:, own.start : own.stop] = networks.law(inputs).mixture().log_likelihood(targets).numpy()
        return found

    def tensors(self) -> dict[str, Tensor]:
        """For a file, from which `restored` makes the same."""
        weights = [one.tensors().items() for one in self.networks]
        named = {f"{number}.{name}": each for number, own in enumerate(weights) for name, each in own}
        return named | {"mean": torch.from_numpy(self.mean), "std": torch.from_numpy(self.std)}

    @classmethod
    def restored(cls, layout: Layout, skipped: Sequence[str], tensors: Mapping[str, Tensor]) -> DiscreteLaw:
        """The law of a file; `layout` is that of its model."""
        plain, units = _plain(layout), [tensors[name].numpy() for name in ("mean", "std")]
        if {each.shape for each in units} != {(plain.width,)}:
            raise ValueError("its chances of discrete values do not fit its columns")
        groups = Group.every(plain, skipped)
        return cls(plain, tuple(skipped), units[0], units[1], groups, ()).with_weights(tensors)

    def with_weights(self, tensors: Mapping[str, Tensor]) -> DiscreteLaw:
        """The same columns with the networks of a file."""
        parts = dict[str, dict[str, Tensor]]()
        for name, tensor in tensors.items():
            part, _, rest = name.partition(".")
            parts.setdefault(part, {})[rest] = tensor
        networks = [Networks.restored(group.outputs, parts[str(number)]) for number, group in enumerate(self.groups)]
        if [one.inputs for one in networks] != [len(group.inputs) for group in self.groups]:
            raise ValueError("its chances of discrete values do not fit its columns")
        return replace(self, networks=tuple(networks))


@dataclass(frozen=True, eq=False)
class Reweighting:
    """How rows of a generator are weighted, whose discrete values come too often in one place and too rarely in
    another."""

    real: DiscreteLaw
    generated: DiscreteLaw
    blurred: tuple[int, ...]
    """The discrete columns that the generator has wrong."""

    @classmethod
    def learn(cls, real: DiscreteLaw, rows: Transitions, seed: int) -> Reweighting | None:
        """From generated rows; None where these have their discrete values as the real ones do, or are too few to
        tell.

        Real rows that neither law has learned from decide: where the law of generated rows tells as much about them,
        weights would only carry over what the law of real rows has not learned well. Generated rows decide where the
        real ones are not at hand any more.
        """
        if len(rows) < _FEWEST_GENERATED:
            return None
        generated = real.refitted(rows, seed)
        judge, sign = (_some(rows, seed)[::_HELD_OUT], -1.0) if real.unseen is None else (real.unseen, 1.0)
        better = sign * (real.log_likelihood(judge) - generated.log_likelihood(judge)).mean(0)
        blurred = tuple(np.flatnonzero(better > _BLURRED).tolist())
        return cls(real, generated, blurred) if blurred else None

    def weights(self, rows: Transitions) -> NDArray[np.float64]:
        """How likely each row is to be taken. (N,)"""
        real, generated = (law.log_likelihood(rows, self.blurred) for law in (self.real, self.generated))
        odds = (real - generated)[:, list(self.blurred)].sum(1)
        return np.asarray(np.exp(odds.clip(math.log(_LEAST), math.log(_MOST))))

    def tensors(self) -> dict[str, Tensor]:
        """What a file needs beside the law of the real rows."""
        own = {name: each for name, each in self.generated.tensors().items() if name not in ("mean", "std")}
        return own | {"blurred": torch.tensor(self.blurred)}

    @classmethod
    def restored(cls, real: DiscreteLaw, tensors: Mapping[str, Tensor]) -> Reweighting:
        own = dict(tensors)
        blurred = tuple(own.pop("blurred").tolist())
        if not all(0 <= column < sum(group.columns for group in real.groups) for column in blurred):
            raise ValueError("its weights of discrete values do not fit its columns")
        return cls(real, real.with_weights(own), blurred)


def _some(rows: Transitions, seed: int) -> Transitions:
    """As many as are learned from, in random order."""
    order = np.random.default_rng([18, seed]).permutation(len(rows))
    return rows[order[:_MOST_ROWS]]


def _plain(layout: Layout) -> Layout:
    """The same rows as a matrix in which every column is a number, a flag or part of a one-hot code. Codes stand for
    whole numbers of few values too, and for what is drawn from tables."""

    def plain(kind: Kind) -> Kind:
        if isinstance(kind, Integer) and kind.high - kind.low < MOST_CATEGORIES:
            return Categorical(int(kind.high - kind.low) + 1, int(kind.low))
        return Codebook(kind.rows) if isinstance(kind, Drawn) else kind

    found = replace(plain_layout(layout), turns=(), clips=(), following=(), at_end=None, terminal_reward=0.0)
    kinds: Any = {field: tuple(map(plain, getattr(found, field))) for field in ROW_FIELDS}
    return replace(found, **kinds)

"""Correct the probabilities of discrete values in generated rows, by weights of the rows.

The probability of an action in a state, or of a discrete outcome, often depends on numbers. A generator gets such
probabilities wrong. For example, a click that should occur in one row of a hundred occurs in one of twenty. Small
networks (conditional.py) learn the probabilities in seconds, once from real rows and once from generated rows. A
generated row then gets an importance weight: the probability of its discrete values among real rows, divided by their
probability among generated rows.

Read `Group` (which columns depend on which), then `DiscreteLaw` (the probabilities in some rows), then `Reweighting`.

NOTE[paper]: the reference keeps all rows as they are generated.
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
from synther.data.kind import first_columns
from synther.data.kinds import Binary, Categorical, Integer, Kind, Spiked
from synther.data.layout import Layout
from synther.data.transitions import ROW_FIELDS, Transitions
from synther.progress import Silent
from synther.relevance import conditional
from synther.relevance.conditional import Networks, Outputs
from synther.relevance.dynamics import plain_layout

Array = NDArray[Any]

MEMBERS, WIDTH, DEPTH = 2, 64, 2
MOST_VALUES = 512
"""Maximum number of values of all discrete columns of a group together. Larger groups are left out."""

_DEPENDING = (
    (("observation",), ("observation",)),  # discrete values of an observation depend on its numbers
    (("action",), ("observation",)),
    (("next_observation",), ("observation", "action")),
    (("reward", "terminal"), ("observation", "action", "next_observation")),
)
"""Fields with discrete values, and the fields on which these values may depend."""

_FEWEST_ROWS, _MOST_ROWS = 1_000, 50_000  # minimum and maximum number of rows from which probabilities are learned
_FEWEST_GENERATED = 10_000  # minimum number of generated rows: weights learned from fewer are worse than no weights
_HELD_OUT = 10  # one row in ten is held out, to stop the fit in time and to decide whether weights help
_WORTH_WEIGHTING = 0.005  # nats by which the law of real rows must be better than that of generated rows
_LEAST, _MOST = 0.02, 6.0  # bounds of weights: with larger weights, most rows would be copies
_LIMIT = 10.0  # number of standard deviations at which inputs are clipped
_CHUNK = 1 << 15  # number of rows that are computed together


@dataclass(frozen=True)
class Group:
    """Discrete columns of the matrix that depend on the same other columns. All fields are numbers of columns."""

    inputs: tuple[int, ...]
    """The columns on which the discrete columns depend."""
    flags: tuple[int, ...]
    choices: tuple[tuple[int, ...], ...]
    """The one-hot columns of each category."""

    @classmethod
    def every(cls, layout: Layout, skipped: Sequence[str]) -> tuple[Group, ...]:
        """Return the groups of a layout: for the discrete columns of observations, of actions, of next observations,
        and of reward and terminal. Fields in `skipped`, and groups without inputs, are left out."""
        groups = []
        decided = {(field, flag.column) for flag in layout.decided for field in flag.sides}
        ties = set[int | None]()
        for fields, given in _DEPENDING:
            inputs, flags, choices = list[int](), list[int](), list[tuple[int, ...]]()
            for place in layout.places:
                columns = tuple(range(place.matrix.start, place.matrix.stop))
                is_own, is_number = place.field in fields, place.kind.scaled
                if place.field in given and (is_number or not is_own):
                    inputs += columns
                if is_own and isinstance(place.kind, Spiked) and place.kind.tied not in ties:
                    flags += columns[1:]  # whether the column stays, or the reward is the usual one
                    ties.add(place.kind.tied)
                if not is_own or is_number or place.field in skipped or (place.field, place.source.start) in decided:
                    continue
                if isinstance(place.kind, Binary):
                    flags += columns
                elif columns:
                    choices.append(columns)
            group = cls(tuple(inputs), tuple(flags), tuple(choices))
            if inputs and 0 < group.outputs.columns <= MOST_VALUES:
                groups.append(group)
        return tuple(groups)

    @property
    def columns(self) -> int:
        """The number of discrete columns. A category counts as one column."""
        return len(self.flags) + len(self.choices)

    @property
    def outputs(self) -> Outputs:
        return Outputs(0, len(self.flags), tuple(map(len, self.choices)))

    def tensors(self, matrix: Array, mean: Array, std: Array) -> tuple[Tensor, Tensor]:
        """Return the inputs of the networks (N, I), and the discrete values as 0 and 1 (N, columns). `mean` and `std`
        (D,) of the columns of the matrix scale the inputs."""
        inputs, targets = list(self.inputs), [*self.flags, *(column for group in self.choices for column in group)]
        given = np.clip((matrix[:, inputs] - mean[inputs]) / std[inputs], -_LIMIT, _LIMIT)
        return torch.from_numpy(given.astype(np.float32)), torch.from_numpy((matrix[:, targets] > 0).astype(np.float32))


@dataclass(frozen=True, eq=False)
class DiscreteLaw:
    """The conditional probabilities of the discrete values in some rows, for each discrete column."""

    layout: Layout
    skipped: tuple[str, ...]
    """Fields that are left out, because a tree or a table of regions decides or weights their values."""
    mean: Array
    """Mean of each column of the layout's matrix. (D,)"""
    std: Array
    """Std of each column of the layout's matrix. (D,)"""
    groups: tuple[Group, ...]
    networks: tuple[Networks, ...]
    """The networks of each group."""
    unseen: Transitions | None = None
    """Held-out rows. They are not saved to files."""

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
        """Learn the probabilities in `rows` in at most `steps` steps. `layout` is the layout of the model.

        Return None if the rows are too few, or if no discrete column outside the `skipped` fields depends on others.
        """
        plain = _plain(layout)
        groups = Group.every(plain, skipped)
        if not groups or len(rows) < _FEWEST_ROWS:
            return None
        sample = _sample(rows, seed)
        matrix, fresh = plain.pack(sample), list[Networks]()
        for number, group in enumerate(groups):
            source = compute.generator(torch.device("cpu"), 17, seed, number)
            fresh.append(Networks.fresh(len(group.inputs), group.outputs, MEMBERS, WIDTH, DEPTH, source))
        std = np.maximum(matrix.std(0), np.finfo(np.float64).tiny)
        law = cls(plain, tuple(skipped), matrix.mean(0), std, groups, tuple(fresh), sample[::_HELD_OUT])
        return law._fitted(matrix, steps, seed)

    def refitted(self, rows: Transitions, seed: int) -> DiscreteLaw:
        """Return the law of other `rows`. The fit starts from the networks of this law, so errors that both laws have
        in common cancel in the weights."""
        return self._fitted(self.layout.pack(_sample(rows, seed)), conditional.MOST_STEPS // 2, seed, fresh=False)

    def _fitted(self, matrix: Array, most: int, seed: int, fresh: bool = True) -> DiscreteLaw:
        """Return a copy with networks fitted to the rows of `matrix`, in at most `most` steps. `fresh` says whether the
        networks are untrained."""
        networks, steps = [], min(most, conditional.steps_for(len(matrix)))
        held_out = torch.arange(len(matrix)) % _HELD_OUT == 0
        for group, start in zip(self.groups, self.networks, strict=True):
            inputs, targets = group.tensors(matrix, self.mean, self.std)
            with Silent().phase("chances", steps) as phase:
                fitted, _ = conditional.fit(
                    start.copy(), inputs, targets, held_out, steps=steps, seed=seed, phase=phase, fresh=fresh
                )
            networks.append(fitted)
        return replace(self, networks=tuple(networks))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the discrete columns."""
        firsts = [column for group in self.groups for column in (*group.flags, *(codes[0] for codes in group.choices))]
        return tuple(self.layout.names[column].partition("=")[0].partition("#")[0] for column in firsts)

    def log_likelihood(self, rows: Transitions, columns: Sequence[int] | None = None) -> Array:
        """Return the log-probability of the value of each discrete column. (N, columns)

        If `columns` is given, only these are needed, and the results of other columns may be 0.
        """
        chunks = [self._log_likelihood(self.layout.pack(chunk), columns) for chunk in rows.chunks(_CHUNK)]
        return np.concatenate(chunks)

    def _log_likelihood(self, matrix: Array, columns: Sequence[int] | None) -> Array:
        result = np.zeros((len(matrix), sum(group.columns for group in self.groups)))
        start = 0
        for group, networks in zip(self.groups, self.networks, strict=True):
            places = range(start, start + group.columns)
            start = places.stop
            if columns is None or not {*places}.isdisjoint(columns):
                inputs, targets = group.tensors(matrix, self.mean, self.std)
                result[:, places.start : places.stop] = networks.law(inputs).mixture().log_likelihood(targets).numpy()
        return result

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors for a file. `restored` is the inverse."""
        tensors = {"mean": torch.from_numpy(self.mean), "std": torch.from_numpy(self.std)}
        for number, networks in enumerate(self.networks):
            tensors |= compute.named(str(number), networks.tensors())
        return tensors

    @classmethod
    def restored(cls, layout: Layout, skipped: Sequence[str], tensors: Mapping[str, Tensor]) -> DiscreteLaw:
        """Return the law from the tensors of a file. `layout` is the layout of the model."""
        plain, units = _plain(layout), [tensors[name].numpy() for name in ("mean", "std")]
        if {each.shape for each in units} != {(plain.width,)}:
            raise ValueError("its probabilities of discrete values do not match its columns")
        groups = Group.every(plain, skipped)
        return cls(plain, tuple(skipped), units[0], units[1], groups, ()).with_weights(tensors)

    def with_weights(self, tensors: Mapping[str, Tensor]) -> DiscreteLaw:
        """Return a copy with the networks of a file."""
        parts = compute.by_part(tensors)
        networks = [Networks.restored(group.outputs, parts[str(number)]) for number, group in enumerate(self.groups)]
        if [one.inputs for one in networks] != [len(group.inputs) for group in self.groups]:
            raise ValueError("its probabilities of discrete values do not match its columns")
        return replace(self, networks=tuple(networks))


@dataclass(frozen=True, eq=False)
class Reweighting:
    """Importance weights of generated rows, which correct the probabilities of discrete values."""

    real: DiscreteLaw
    generated: DiscreteLaw
    blurred: tuple[int, ...]
    """The discrete columns with wrong probabilities in the generated rows."""

    @classmethod
    def learn(cls, real: DiscreteLaw, rows: Transitions, seed: int) -> Reweighting | None:
        """Learn weights from generated `rows`. Return None if their probabilities are right, or if there are too few
        rows.

        Held-out real rows decide which columns are weighted. If the law of generated rows predicts a column of these
        rows as well as the law of real rows, weights would only add the errors of the laws. If the real rows are not
        available any more (the model is from a file), held-out generated rows decide.
        """
        if len(rows) < _FEWEST_GENERATED:
            return None
        generated = real.refitted(rows, seed)
        judge, sign = (_sample(rows, seed)[::_HELD_OUT], -1.0) if real.unseen is None else (real.unseen, 1.0)
        better = sign * (real.log_likelihood(judge) - generated.log_likelihood(judge)).mean(0)
        blurred = tuple(np.flatnonzero(better > _WORTH_WEIGHTING).tolist())
        return cls(real, generated, blurred) if blurred else None

    def weights(self, rows: Transitions) -> NDArray[np.float64]:
        """Return the importance weight of each row, within bounds. (N,)"""
        real, generated = (law.log_likelihood(rows, self.blurred) for law in (self.real, self.generated))
        log_weight = (real - generated)[:, list(self.blurred)].sum(1)
        return np.asarray(np.exp(log_weight.clip(math.log(_LEAST), math.log(_MOST))))

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors for a file that also has the law of the real rows. `restored` is the inverse."""
        tensors = {name: each for name, each in self.generated.tensors().items() if name not in ("mean", "std")}
        return tensors | {"blurred": torch.tensor(self.blurred)}

    @classmethod
    def restored(cls, real: DiscreteLaw, tensors: Mapping[str, Tensor]) -> Reweighting:
        """Return the weights from the tensors of a file and the law of the real rows."""
        weights = dict(tensors)
        blurred = tuple(weights.pop("blurred").tolist())
        if not all(0 <= column < sum(group.columns for group in real.groups) for column in blurred):
            raise ValueError("its weights of discrete values do not match its columns")
        return cls(real, real.with_weights(weights), blurred)


def _sample(rows: Transitions, seed: int) -> Transitions:
    """Return at most `_MOST_ROWS` of the rows, in random order."""
    return rows.shuffled(_MOST_ROWS, [18, seed])


def _plain(layout: Layout) -> Layout:
    """Return a layout with a simpler matrix for the same rows: each column is a number, a flag, or part of a one-hot
    code. Whole numbers of few values, and outcomes that are drawn from tables, are one-hot too. Columns that often stay
    as they are, and rewards that are often the same, keep their flag."""

    def plain(kind: Kind) -> Kind:
        if isinstance(kind, Integer) and kind.high - kind.low < MOST_CATEGORIES:
            return Categorical(int(kind.high - kind.low) + 1, int(kind.low))
        return kind.as_codebook() if isinstance(kind, Drawn) else kind

    simple = replace(plain_layout(layout), turns=(), clips=(), following=(), at_end=None, terminal_reward=0.0)
    kinds: Any = {field: tuple(map(plain, getattr(simple, field))) for field in ROW_FIELDS}
    held = {one.column for one in layout.held}
    pairs = zip(first_columns(layout.next_observation), layout.next_observation, kinds["next_observation"], strict=True)
    kinds["next_observation"] = tuple(full if column in held else simpler for column, full, simpler in pairs)
    if layout.sparse is not None:
        kinds["reward"] = layout.reward
    # The regressions of the held columns know the columns of the layout itself.
    return replace(simple, **kinds, held=tuple(replace(one, line=None) for one in layout.held))

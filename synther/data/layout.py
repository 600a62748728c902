"""`Layout`: how rows of experience become a matrix and come back.

It alone knows the order of the columns, their kinds, their bounds and their rounding. `Encoder` and `Decoder` do the
work, each in one direction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from synther.data import inference, kinds
from synther.data.clipping import Clip
from synther.data.codes import CODINGS, Coding
from synther.data.declared import discrete_spaces
from synther.data.decoding import Decoder
from synther.data.encoding import Encoder
from synther.data.end_rewards import EndRewards
from synther.data.flags import Flag
from synther.data.following import Following, classes_of
from synther.data.identities import Identity
from synther.data.inference import Integers
from synther.data.kind import by_column
from synther.data.kinds import (
    Array,
    Binary,
    Constant,
    Continuous,
    Derived,
    Drawn,
    Integer,
    Kind,
    Levels,
    Logarithmic,
    Matrix,
    Real,
)
from synther.data.proportions import find_logarithmic
from synther.data.rewards import Formula
from synther.data.rounding import find_measured
from synther.data.spaces import Space
from synther.data.spheres import Sphere, find_spheres
from synther.data.transitions import EXTRA, PAIR, ROW_FIELDS, RowSource, Transitions
from synther.data.turning import Turn
from synther.data.wrapping import find_wrapped
from synther.errors import ConfigError, DataError

MOST_CLASSES = 64
"""Values of a column up to which rows are counted value by value."""


@dataclass(frozen=True)
class Place:
    """Where one kind sits: columns of its field, columns of the matrix, and their names."""

    field: str
    kind: Kind
    source: slice
    matrix: slice
    names: tuple[str, ...]


class Number(NamedTuple):
    """One column of a field that holds numbers."""

    column: int | None
    """Of the matrix; None where it is the same in all rows, namely `low`, or follows from others."""
    low: float
    high: float


@dataclass(frozen=True)
class Extra:
    """The kinds of an extra column of rows, which may be several columns wide."""

    name: str
    kinds: tuple[Kind, ...]
    dtype: str
    flat: bool
    """Whether its array is (N,)."""

    @property
    def key(self) -> str:
        return EXTRA + self.name


@dataclass(frozen=True)
class Layout:
    """The kinds of every field's columns, in the paper's order, and what it takes to restore the rows. Extra columns
    come after the fields.

    The matrix is float64 on purpose: a column like 1e6 + 1e-3 * noise has to survive until it is scaled.
    Timeouts are not modelled.
    """

    observation: tuple[Kind, ...]
    action: tuple[Kind, ...]
    reward: tuple[Kind, ...]
    next_observation: tuple[Kind, ...]
    terminal: tuple[Kind, ...]
    dtypes: tuple[str, ...]
    flat_action: bool
    action_space: Space | None = None
    observation_space: Space | None = None
    env_id: str | None = None
    env_options: dict[str, Any] | None = None
    extra: tuple[Extra, ...] = ()
    following: tuple[Following, ...] = ()
    """Tables that outcomes are drawn from. The table of an outcome comes after those of its parents."""
    spheres: tuple[Sphere, ...] = ()
    """Columns of observations, and of next ones, that have one length together."""
    turns: tuple[Turn, ...] = ()
    """Columns of observations that a step turns. The matrix has the angle in place of the next ones."""
    terminal_reward: float = 0.0
    """How much more reward a terminal row has than a row like it. The matrix has rewards without it: beside a bonus of
    100 in a few rows, what is paid in all the others would be lost."""
    at_end: EndRewards | None = None
    """What terminal rows are paid, where that is one of a few numbers. The matrix has ordinary rewards in place of
    these."""
    clips: tuple[Clip, ...] = ()
    """Columns of the next observation that the matrix has before they are clipped."""
    decided: tuple[Flag, ...] = ()
    """Columns of two values that trees decide about."""
    identities: tuple[Identity, ...] = ()
    """How columns follow from others that the matrix has, in an order in which they can be computed."""
    formula: Formula | None = None
    """What the rest of a row tells about its reward. The matrix has what it leaves."""

    @classmethod
    def infer(
        cls, rows: RowSource, coding: Coding = "onehot", spikes: bool = False, integers: Integers = "categorical"
    ) -> Layout:
        """The layout of `rows`. `coding` is how values without an order enter the matrix: "onehot" or "bits".

        With `spikes`, values that come again and again in a column of real numbers come back exact, and numbers of
        which there are only some come back as one of those. Columns of a few different integers are categories, unless
        `integers` is "ordered". Next observations are of the kinds of observations, or constant where all of them are
        0: rows for behaviour cloning need none.
        """
        if coding not in CODINGS:
            raise ConfigError(f"coding: expected {' or '.join(CODINGS)}, got {coding!r}")
        are_pairs = inference.are_pairs(rows)
        if are_pairs:
            rows = inference.Twice(rows)
        first, seen = inference.profile(rows)
        declared = discrete_spaces(rows, first, {field: bool(found.whole.all()) for field, found in seen.items()})
        observation = inference.observation_kinds(seen["observation"], declared["observation"], coding)
        action = inference.action_kinds(seen["action"], declared["action"], coding)
        reward: tuple[Kind, ...] = (inference.observed_kind(seen["reward"], 0),)
        sample = inference.sample(rows)
        observation = inference.grouped(observation, sample["observation"], rows, coding)
        if integers == "categorical":
            observation = inference.finite(observation, sample["observation"], coding, rows, "observation")
            reward = inference.finite(reward, sample["reward"], coding, rows, "reward")
        if spikes:
            told = None if are_pairs else inference.steps(rows)
            if told is not None:
                observation = find_wrapped(observation, told, seen["observation"], declared["observation"])
                observation = find_measured(observation, told)
            observation, action, reward = (
                inference.special(kinds_of, sample[field], seen[field], told if field == "observation" else None)
                for kinds_of, field in ((observation, "observation"), (action, "action"), (reward, "reward"))
            )
            if told is not None:
                observation = find_logarithmic(observation, told, seen["observation"])
            observation = inference.one_sided(observation, seen["observation"])
        inference.warn_of_integers(observation, sample["observation"])
        extra = []
        for name, array in first.extra.items():
            key = EXTRA + name
            if name == "next_action":
                found = inference.action_kinds(seen[key], declared["action"], coding)
            else:
                found = inference.extra_kinds(seen[key], sample[key], rows, key, coding)
            found = inference.special(found, sample[key], seen[key]) if spikes else found
            extra.append(Extra(name, found, array.dtype.name, array.ndim == 1))
        return cls(
            observation=observation,
            action=action,
            reward=reward,
            next_observation=(Constant(0.0),) * first.observation.shape[1] if are_pairs else observation,
            terminal=(inference.observed_kind(seen["terminal"], 0),),
            dtypes=tuple(getattr(first, field).dtype.name for field in ROW_FIELDS),
            flat_action=first.action.ndim == 1,
            action_space=declared["action"],
            observation_space=declared["observation"],
            env_id=first.env_id,
            env_options=first.env_options,
            extra=tuple(extra),
            spheres=find_spheres(observation, sample["observation"]) if spikes else (),
        )

    @cached_property
    def _kinds(self) -> dict[str, tuple[Kind, ...]]:
        """Those of each field and extra column, in the order of the matrix."""
        return {field: getattr(self, field) for field in ROW_FIELDS} | {extra.key: extra.kinds for extra in self.extra}

    @cached_property
    def places(self) -> tuple[Place, ...]:
        places: list[Place] = []
        column = 0
        for field, own in self._kinds.items():
            names = self._source_names(field)
            source = 0
            for kind in own:
                end, matrix_end = source + kind.source_width, column + kind.matrix_width
                places.append(Place(field, kind, slice(source, end), slice(column, matrix_end), names[source:end]))
                source, column = end, matrix_end
        return tuple(places)

    @cached_property
    def runs(self) -> tuple[Place, ...]:
        """The places, neighbours of one kind as one: kinds of numbers take each of their columns for itself."""
        runs: list[Place] = []
        for place in self.places:
            before = runs[-1] if runs else None
            number = place.kind.scaled and place.kind.matrix_width == 1
            if before and number and (place.field, place.kind) == (before.field, before.kind):
                source = slice(before.source.start, place.source.stop)
                matrix = slice(before.matrix.start, place.matrix.stop)
                runs[-1] = Place(place.field, place.kind, source, matrix, before.names + place.names)
            else:
                runs.append(place)
        return tuple(runs)

    def _source_names(self, field: str) -> tuple[str, ...]:
        flat = {"reward", "terminal", *(extra.key for extra in self.extra if extra.flat)}
        if field in flat or (field == "action" and self.flat_action):
            return (field,)
        return tuple(f"{field}[{column}]" for column in range(self.field_widths[field]))

    @property
    def computed(self) -> tuple[str, ...]:
        """What is computed from the rest of a row, in words."""
        told = [one.text(self._name) for one in self.identities]
        told += [text for flag in self.decided for text in flag.texts(self._name, self.field_widths)]
        if self.formula is not None:
            rest = "" if isinstance(self.reward[0], Derived) else " + what is generated"
            told.append(f"reward = {self.formula.text(self._name)}{rest}")
        return tuple(told)

    def _name(self, field: str, column: int) -> str:
        return self._source_names(field)[column]

    @cached_property
    def field_widths(self) -> dict[str, int]:
        """How many columns each field and extra column has."""
        return {field: sum(kind.source_width for kind in own) for field, own in self._kinds.items()}

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """All kinds, in the order of their columns in the matrix."""
        return tuple(place.kind for place in self.places)

    @property
    def width(self) -> int:
        """Columns of the matrix. It is 0 where every column is constant."""
        return sum(place.kind.matrix_width for place in self.places)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """One name for each column of the matrix: `observation[3]`, `reward`, `action=2`, `action.bit0`."""
        return tuple(name for place in self.places for name in place.kind.labels(place.names))

    @cached_property
    def source_names(self) -> tuple[str, ...]:
        """One name for each column of the rows, constant ones too."""
        return tuple(name for place in self.places for name in place.names)

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """Which field each column of the matrix belongs to."""
        return tuple(place.field for place in self.places for _ in range(place.kind.matrix_width))

    @cached_property
    def scaled_columns(self) -> NDArray[np.bool_]:
        """Which columns of the matrix are to be scaled (D,): not those that hold 0 and 1 or codes."""
        return np.array([scaled for place in self.places for scaled in place.kind.scaled_columns], bool)

    @cached_property
    def twins(self) -> tuple[int, ...]:
        """For each column of the matrix that of the same quantity a step later or earlier, or itself."""
        twins = list(range(self.width))
        here, there = ([place for place in self.places if place.field == field] for field in PAIR)
        for one, other in zip(here, there, strict=False):  # next observations that are all constant are not grouped
            if one.kind.matrix_width == other.kind.matrix_width and not isinstance(other.kind, Drawn):
                twins[one.matrix], twins[other.matrix] = twins[other.matrix], twins[one.matrix]
        return tuple(twins)

    @cached_property
    def logarithmic(self) -> tuple[int, ...]:
        """Columns of the matrix that hold logarithms."""
        return tuple(place.matrix.start for place in self.places if isinstance(place.kind, Logarithmic))

    @cached_property
    def drawn_columns(self) -> tuple[int, ...]:
        """Columns of the matrix whose normal numbers decide what is drawn from tables."""
        return tuple(self.places[table.outcome].matrix.start for table in self.following)

    @cached_property
    def flag_names(self) -> tuple[str, ...]:
        """The flags: figures of a row of the matrix that are cut at a threshold when it comes back, like terminal."""
        return tuple(name for place in self.places for name in place.kind.flag_labels(place.names))

    @property
    def thresholds(self) -> tuple[float, ...]:
        """Above which each flag is set."""
        return tuple(threshold for place in self.places for threshold in place.kind.thresholds)

    @property
    def lowest_thresholds(self) -> tuple[float, ...]:
        """Below which the threshold of each flag must not be."""
        return tuple(place.kind.lowest_threshold for place in self.places for _ in place.kind.thresholds)

    def flags(self, matrix: Matrix) -> Matrix:
        """The flags of rows of the matrix, before they are cut: near 0 or near 1. (N, F)"""
        return np.asarray(self._decoder.flags(torch.from_numpy(np.ascontiguousarray(matrix.T))).numpy().T)

    def with_thresholds(self, thresholds: Sequence[float]) -> Layout:
        """The same layout with another threshold for each flag."""
        if len(thresholds) != len(self.flag_names):
            raise DataError(f"expected {len(self.flag_names)} thresholds, one for each flag, got {len(thresholds)}")
        for name, threshold in zip(self.flag_names, thresholds, strict=True):
            if not np.isfinite(threshold):
                raise DataError(f"threshold of {name}: expected a finite number, got {threshold}")
        left = iter(map(float, thresholds))
        changed: dict[str, list[Kind]] = {field: [] for field in self._kinds}
        for place in self.places:
            own = tuple(next(left) for _ in place.kind.thresholds)
            changed[place.field].append(place.kind.with_thresholds(own))
        extra = tuple(replace(each, kinds=tuple(changed[each.key])) for each in self.extra)
        return replace(self, **{field: tuple(changed[field]) for field in ROW_FIELDS}, extra=extra)  # type: ignore[arg-type]

    def pack(self, rows: Transitions) -> Matrix:
        """The matrix (N, D) of `rows`, which must fit this layout. Nothing is scaled or clipped.

        Extra columns that the layout does not have are left out.
        """
        return self.pack_fields(self.columns_from(rows))

    def columns_from(self, rows: Transitions) -> dict[str, Array]:
        """The arrays of `rows` that this layout has, in its order."""
        missing = [extra.name for extra in self.extra if extra.name not in rows.extra]
        if missing:
            raise DataError(
                f"these rows have no extra column {', '.join(missing)}, the layout has: prepare them like those that "
                "it was made from, for example with n_step_rows or with_next_actions"
            )
        every = rows.arrays()
        return {field: every[field] for field in self._kinds}

    def pack_fields(self, fields: Mapping[str, Array]) -> Matrix:
        """The matrix (N, D) of rows of which only some fields are known. The columns of the others are 0."""
        return self._encoder(fields)

    def without_gaps(self, given: Matrix) -> Matrix:
        """Columns of the matrix that hold observation and action, special values at the ends of their range where they
        are and not moved out."""
        given = given.copy()
        for column, (low, high) in self.ends.items():
            if column in self.given_columns:
                place = self.given_columns.index(column)
                given[:, place] = given[:, place].clip(low, high)
        return given

    @cached_property
    def ends(self) -> dict[int, tuple[float, float]]:
        """The range that columns of the matrix have in rows, where the matrix goes beyond it: columns with special
        values at an end, which a gap sets apart, and columns that are clipped."""
        spiked = [(place.matrix.start, place.kind) for place in self.places if isinstance(place.kind, kinds.Spiked)]
        ends = {column: kind.bounds for column, kind in spiked if len(kind.inner) < len(kind.spikes)}
        after: Any = by_column(self.next_observation)
        return ends | {self.next_columns[clip.column]: after[clip.column].bounds for clip in self.clips}

    @cached_property
    def counted(self) -> tuple[int, ...]:
        """The places that outcomes are drawn for, or follow from."""
        return tuple(sorted({place for table in self.following for place in (table.outcome, *table.parents)}))

    def values(self, number: int, sources: Mapping[str, Array]) -> NDArray[np.int64]:
        """Which of its values a discrete place has in each row. (N,)"""
        place = self.places[number]
        return classes_of(place.kind, sources[place.field].reshape(len(sources[place.field]), -1)[:, place.source])

    @property
    def can_be_priced(self) -> bool:
        """Whether rewards can follow from terminals: they are plain numbers, beside a flag."""
        return isinstance(self.reward[0], Continuous | Derived) and isinstance(self.terminal[0], Binary)

    @property
    def pays_at_end(self) -> bool:
        """Whether the matrix has other rewards of terminal rows than these have."""
        return bool(self.terminal_reward or self.at_end)

    @cached_property
    def given_columns(self) -> list[int]:
        """The columns of the matrix that hold observation and action."""
        return [*self.columns_of("observation"), *self.columns_of("action")]

    @cached_property
    def next_columns(self) -> dict[int, int]:
        """The first column of the matrix for each kind of the next observation, by the first column of its field."""
        return {place.source.start: place.matrix.start for place in self.places if place.field == PAIR[1]}

    @property
    def mode_columns(self) -> list[int]:
        """The columns of the matrix that hold nominal outcomes."""
        return _columns(self.nominal_outcomes)

    @cached_property
    def nominal_outcomes(self) -> tuple[Place, ...]:
        """Next observations without an order between their values, such as the mode of a switch. Others may follow from
        them: a room is heated where the heating is on."""
        nominal = (Binary, kinds.Categorical, kinds.OneHot, kinds.Codebook)
        return tuple(run for run in self.runs if run.field == PAIR[1] and isinstance(run.kind, nominal))

    def columns_of(self, field: str) -> list[int]:
        """The columns of the matrix that hold a field."""
        return _columns([place for place in self.places if place.field == field])

    def fitting(self, rows: Transitions) -> NDArray[np.bool_]:
        """Which rows `pack` can take: those without a value that their column cannot have. (N,)"""
        return self._encoder.fitting(self.columns_from(rows))

    def dtype_of(self, field: str) -> np.dtype[Any]:
        if field in ROW_FIELDS:
            return np.dtype(self.dtypes[ROW_FIELDS.index(field)])
        return np.dtype(next(extra.dtype for extra in self.extra if extra.key == field))

    def unpack(self, matrix: Array) -> Transitions:
        """Rows from any finite matrix (N, D): rounded, clipped and typed like those the layout was made from."""
        if matrix.ndim != 2 or matrix.shape[1] != self.width:
            raise DataError(f"matrix has shape {matrix.shape}: expected (rows, {self.width})")
        return self._decoder(torch.from_numpy(np.ascontiguousarray(matrix))).rows

    @cached_property
    def _encoder(self) -> Encoder:
        return Encoder(self)

    @cached_property
    def _decoder(self) -> Decoder:
        return Decoder(self)

    def dressed(self, source: Array) -> Transitions:
        """Rows from all their columns side by side (N, W), in the order of the fields, valid as they are."""
        ends = np.cumsum(list(self.field_widths.values()))[:-1]
        parts = zip(self._kinds, np.split(source, ends, axis=1), strict=True)
        return self.as_transitions({field: part.astype(self.dtype_of(field)) for field, part in parts})

    def as_transitions(self, columns: dict[str, Array]) -> Transitions:
        """Rows of these arrays (N, W), one for each field and extra column."""
        return Transitions(
            observation=columns["observation"],
            action=columns["action"][:, 0] if self.flat_action else columns["action"],
            reward=columns["reward"][:, 0],
            next_observation=columns["next_observation"],
            terminal=columns["terminal"][:, 0],
            action_space=self.action_space,
            observation_space=self.observation_space,
            env_id=self.env_id,
            env_options=self.env_options,
            extra={e.name: columns[e.key][:, 0] if e.flat else columns[e.key] for e in self.extra},
        )

    def shown(self, field: str) -> tuple[Number | Place, ...]:
        """Where the numbers of a field are in the matrix, and the places of its values without an order."""
        return tuple(_number(place) or place for place in self.places if place.field == field)

    def numbers(self, field: str) -> tuple[Number, ...]:
        """Where the columns of a field are in the matrix, and between which values they lie, if all are numbers."""
        found = []
        for one in self.shown(field):
            if isinstance(one, Place):
                raise ConfigError(f"expected numbers: {one.names[0]} has values without an order")
            found.append(one)
        return tuple(found)

    @cached_property
    def _classed(self) -> tuple[Place, ...]:
        few = [place for place in self.places if 2 <= place.kind.class_count <= MOST_CLASSES]
        return tuple(place for place in few if place.field in ("observation", "action"))

    @property
    def class_counts(self) -> tuple[int, ...]:
        """Of each column of observation and action, or group of columns, with a few values: how many."""
        return tuple(place.kind.class_count for place in self._classed)

    def classes(self, rows: Transitions) -> NDArray[np.int64]:
        """Which of its values each of these has in each row. (N, G)"""
        found = np.empty((len(rows), len(self._classed)), np.int64)
        for group, place in enumerate(self._classed):
            source = getattr(rows, place.field).reshape(len(rows), -1)[:, place.source]
            found[:, group] = place.kind.classes(source)
        return found

    @cached_property
    def unsettled(self) -> tuple[Place, ...]:
        """Discrete columns of observation and action, and those of the next observation that others may follow from."""
        given = [run for run in self.runs if run.field in ("observation", "action") and run.kind.matrix_width]
        return (*(run for run in given if not isinstance(run.kind, Real)), *self.nominal_outcomes)


def _columns(places: Sequence[Place]) -> list[int]:
    return [column for place in places for column in range(place.matrix.start, place.matrix.stop)]


def _number(place: Place) -> Number | None:
    kind = place.kind
    if isinstance(kind, Constant):
        return Number(None, float(kind.value), float(kind.value))
    if isinstance(kind, Derived):
        return Number(None, 0.0, 0.0)
    if isinstance(kind, Real) and not isinstance(kind, Logarithmic):
        return Number(place.matrix.start, *kind.bounds)
    return Number(place.matrix.start, -math.inf, math.inf) if isinstance(kind, Integer | Levels) else None

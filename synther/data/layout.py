"""`Layout`: converts rows of experience to the matrix that the network learns, and generated matrices back to rows.

The layout alone knows the order of the columns, their kinds, their bounds and their rounding. For example, a discrete
action becomes a one-hot code in the matrix, and any generated code becomes one of the valid actions. `Encoder` does the
work from rows to matrix, `Decoder` from matrix to rows. Read `Layout.infer` first, then `pack` and `unpack`.
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

from synther.codes import CODINGS, Coding
from synther.data import inference, kinds
from synther.data.clipping import Clip
from synther.data.declared import discrete_spaces
from synther.data.decoding import Decoder
from synther.data.encoding import Encoder
from synther.data.end_rewards import EndRewards
from synther.data.flags import Flag
from synther.data.following import Following, classes_of
from synther.data.formulas import Formula
from synther.data.holding import Held
from synther.data.identities import Identity
from synther.data.inference import Integers
from synther.data.kind import by_column, first_columns
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
from synther.data.rounding import find_measured
from synther.data.spaces import Space
from synther.data.sparse_rewards import SparseReward
from synther.data.spheres import Sphere, find_spheres
from synther.data.spikes import special
from synther.data.transitions import EXTRA, PAIR, ROW_FIELDS, RowSource, Transitions
from synther.data.turning import Turn
from synther.data.wrapping import cosines_and_sines, find_wrapped
from synther.errors import ConfigError, DataError

MOST_CLASSES = 64
"""Columns of observation and action with at most this many values get a share for each value (`Layout.classes`)."""


@dataclass(frozen=True)
class Place:
    """Where the columns of one kind are: in their field and in the matrix."""

    field: str
    kind: Kind
    source: slice
    """Columns of the field."""
    matrix: slice
    """Columns of the matrix."""
    names: tuple[str, ...]
    """Names of the columns of the field."""


class Number(NamedTuple):
    """One column of a field that holds numbers."""

    column: int | None
    """Column of the matrix. None if the number is constant (its value is `low`), or computed from other columns."""
    low: float
    """Lower bound."""
    high: float
    """Upper bound."""


@dataclass(frozen=True)
class Extra:
    """The kinds of one entry of `Transitions.extra`, which may have several columns."""

    name: str
    kinds: tuple[Kind, ...]
    dtype: str
    flat: bool
    """Whether the array has shape (N,)."""

    @property
    def key(self) -> str:
        """The name with the prefix `extra/`."""
        return EXTRA + self.name


@dataclass(frozen=True)
class Layout:
    """The kinds of all columns, and everything that is needed to restore rows from a matrix.

    The fields are in the order of the paper. Extra columns follow them. Timeouts are not modelled. The matrix is
    float64 on purpose: a column like 1e6 + 1e-3 * noise would lose its noise in float32 before it is scaled.
    """

    observation: tuple[Kind, ...]
    action: tuple[Kind, ...]
    reward: tuple[Kind, ...]
    next_observation: tuple[Kind, ...]
    terminal: tuple[Kind, ...]
    dtypes: tuple[str, ...]
    """Types of the five fields."""
    flat_action: bool
    """Whether the array of actions has shape (N,)."""
    action_space: Space | None = None
    observation_space: Space | None = None
    env_id: str | None = None
    env_options: dict[str, Any] | None = None
    extra: tuple[Extra, ...] = ()
    following: tuple[Following, ...] = ()
    """Tables that discrete outcomes are drawn from. The table of an outcome comes after the tables of its parents."""
    spheres: tuple[Sphere, ...] = ()
    """Groups of observation columns with a constant length, such as sine and cosine. Also used for next
    observations."""
    turns: tuple[Turn, ...] = ()
    """Pairs of observation columns that a step rotates. The matrix holds the angle instead of the next values."""
    held: tuple[Held, ...] = ()
    """Columns that often stay as they are. The matrix holds the change instead of the next value."""
    terminal_reward: float = 0.0
    """Extra reward of a terminal row, compared with a non-terminal row with the same other values. The matrix holds
    rewards without it, because a bonus of 100 in a few rows would hide the differences between all other rewards."""
    at_end: EndRewards | None = None
    """Rewards of terminal rows, if they are one of a few numbers. The matrix holds ordinary rewards in their place."""
    clips: tuple[Clip, ...] = ()
    """Columns of the next observation that are clipped, or whose changes are. The matrix holds their values before
    clipping."""
    decided: tuple[Flag, ...] = ()
    """Columns with two values that a tree sets when rows are decoded."""
    identities: tuple[Identity, ...] = ()
    """Columns that are computed exactly from other columns, in the order in which they can be computed."""
    formula: Formula | None = None
    """Formula that predicts the reward from the rest of a row. The matrix holds its residual."""
    sparse: SparseReward | None = None
    """The reward, if many rows have the same. The matrix holds an amount and a flag instead."""

    @classmethod
    def infer(
        cls, rows: RowSource, coding: Coding = "onehot", spikes: bool = False, integers: Integers = "categorical"
    ) -> Layout:
        """Find the layout of `rows`.

        `coding` is how categories enter the matrix: "onehot" or "bits". With `spikes`, special structure of real
        columns is detected as well: values that occur again and again, sets of possible values, angles, logarithms,
        bounds at 0, and spheres. Columns with a few different integers are categories, or ordered numbers if `integers`
        is "ordered". Next observations have the kinds of the observations. They are constant if all of them are 0, as
        in rows for behaviour cloning.
        """
        if coding not in CODINGS:
            raise ConfigError(f"coding: expected {' or '.join(CODINGS)}, got {coding!r}")
        are_pairs = inference.are_pairs(rows)
        if are_pairs:
            rows = inference.ObservationsTwice(rows)
        first, seen = inference.profile(rows)
        declared = discrete_spaces(rows, first, {field: bool(found.whole.all()) for field, found in seen.items()})
        observation = inference.observation_kinds(seen["observation"], declared["observation"], coding)
        action = inference.action_kinds(seen["action"], declared["action"], coding)
        reward: tuple[Kind, ...] = (inference.observed_kind(seen["reward"], 0),)
        sample = inference.sample(rows)
        observation = inference.grouped(observation, sample["observation"], rows, coding, PAIR)
        action = inference.grouped(action, sample["action"], rows, coding, ("action",))
        if integers == "categorical":
            observation = inference.finite(observation, sample["observation"], coding, rows, "observation")
            if declared["action"] is None:
                action = inference.finite(action, sample["action"], coding, rows, "action")
            reward = inference.finite(reward, sample["reward"], coding, rows, "reward")
        spheres: tuple[Sphere, ...] = ()
        if spikes:
            steps = None if are_pairs else inference.steps(rows)
            if steps is not None:
                observation = find_measured(observation, steps)
            observation, action, reward = (
                special(kinds_of, sample[field], seen[field], steps if field == "observation" else None)
                for kinds_of, field in ((observation, "observation"), (action, "action"), (reward, "reward"))
            )
            if steps is not None:
                observation = find_wrapped(observation, steps, seen["observation"], declared["observation"])
                observation = find_logarithmic(observation, steps, seen["observation"])
            observation = inference.one_sided(observation, seen["observation"])
            spheres = find_spheres(observation, sample["observation"], steps, rows)
            on_circles = {column for sphere in spheres if sphere.points for column in sphere.columns}
            kinds_of = zip(first_columns(observation), observation, strict=True)
            observation = tuple(Continuous() if column in on_circles else kind for column, kind in kinds_of)
        inference.warn_of_integers(observation, sample["observation"])
        extra = []
        for name, array in first.extra.items():
            key = EXTRA + name
            if name == "next_action":
                found = inference.action_kinds(seen[key], declared["action"], coding)
            else:
                found = inference.extra_kinds(seen[key], sample[key], rows, key, coding)
            found = special(found, sample[key], seen[key]) if spikes else found
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
            spheres=spheres,
        )

    @cached_property
    def _kinds(self) -> dict[str, tuple[Kind, ...]]:
        """The kinds of each field and extra column, in the order of the matrix."""
        return {field: getattr(self, field) for field in ROW_FIELDS} | {extra.key: extra.kinds for extra in self.extra}

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """One place for each kind, in the order of the matrix."""
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
        """The places, with neighbours of the same field and kind merged into one, so that they are encoded together.

        Only numbers are merged, because their kinds treat every column separately.
        """
        runs: list[Place] = []
        for place in self.places:
            before = runs[-1] if runs else None
            is_number = place.kind.scaled and place.kind.matrix_width == 1
            if before and is_number and (place.field, place.kind) == (before.field, before.kind):
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
        """One line of text for each column that is computed from the rest of a row."""
        lines = [one.text(self._name) for one in self.identities]
        lines += [text for flag in self.decided for text in flag.texts(self._name, self.field_widths)]
        if self.formula is not None:
            rest = "" if isinstance(self.reward[0], Derived) else " + what is generated"
            price = self.terminal_reward
            extra = f" {'-' if price < 0 else '+'} {abs(price):g} terminal" if price else ""
            lines.append(f"reward = {self.formula.text(self._name)}{extra}{rest}")
        return tuple(lines)

    def _name(self, field: str, column: int) -> str:
        return self._source_names(field)[column]

    @cached_property
    def field_widths(self) -> dict[str, int]:
        """Number of columns of each field and extra column in the rows."""
        return {field: sum(kind.source_width for kind in own) for field, own in self._kinds.items()}

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """All kinds, in the order of their columns in the matrix."""
        return tuple(place.kind for place in self.places)

    @property
    def width(self) -> int:
        """Number of columns of the matrix. It is 0 if every column is constant."""
        return sum(place.kind.matrix_width for place in self.places)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """One name for each column of the matrix: `observation[3]`, `reward`, `action=2`, `action.bit0`."""
        return tuple(name for place in self.places for name in place.kind.labels(place.names))

    @cached_property
    def source_names(self) -> tuple[str, ...]:
        """One name for each column of the rows, including constant columns."""
        return tuple(name for place in self.places for name in place.names)

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """The field of each column of the matrix."""
        return tuple(place.field for place in self.places for _ in range(place.kind.matrix_width))

    @cached_property
    def scaled_columns(self) -> NDArray[np.bool_]:
        """Which columns of the matrix are scaled (D,). Columns of 0 and 1, and columns of codes, are not."""
        return np.array([scaled for place in self.places for scaled in place.kind.scaled_columns], bool)

    @cached_property
    def twins(self) -> tuple[int, ...]:
        """For each column of the matrix, the column of the same quantity one step later or earlier. Columns without
        such a partner have themselves."""
        twins = list(range(self.width))
        before, after = ([place for place in self.places if place.field == field] for field in PAIR)
        for one, other in zip(before, after, strict=False):  # constant next observations may have more places
            if one.kind.matrix_width == other.kind.matrix_width and not isinstance(other.kind, Drawn):
                twins[one.matrix], twins[other.matrix] = twins[other.matrix], twins[one.matrix]
        return tuple(twins)

    @cached_property
    def logarithmic(self) -> tuple[int, ...]:
        """Columns of the matrix that hold logarithms."""
        return tuple(place.matrix.start for place in self.places if isinstance(place.kind, Logarithmic))

    @cached_property
    def drawn_columns(self) -> tuple[int, ...]:
        """Columns of the matrix that hold the standard normal numbers by which outcomes are drawn from tables."""
        return tuple(self.places[table.outcome].matrix.start for table in self.following)

    @cached_property
    def flag_names(self) -> tuple[str, ...]:
        """Names of the flags. A flag is a number in a row of the matrix that is compared with a threshold when the row
        is decoded, for example terminal."""
        names, held = list[str](), {one.column: one for one in self.held if one.flag is None}
        for place in self.places:
            one = held.get(place.source.start) if place.field == PAIR[1] else None
            own = place.names[0]
            became = () if one is None else (f"{own} stays", *(f"{own} becomes {spike!r}" for _, spike in one.landings))
            names += became or place.kind.flag_labels(place.names)
        return tuple(names)

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The threshold of each flag. The flag is set above it."""
        return tuple(threshold for place in self.places for threshold in place.kind.thresholds)

    @property
    def lowest_thresholds(self) -> tuple[float, ...]:
        """The lowest threshold that each flag may have."""
        return tuple(place.kind.lowest_threshold for place in self.places for _ in place.kind.thresholds)

    def flags(self, matrix: Matrix) -> Matrix:
        """Return the flags (N, F) of rows of the matrix, before they are compared with the thresholds: near 0 or 1."""
        return np.asarray(self._decoder.flags(torch.from_numpy(np.ascontiguousarray(matrix.T))).numpy().T)

    def with_thresholds(self, thresholds: Sequence[float]) -> Layout:
        """Return the same layout with these thresholds, one for each flag."""
        if len(thresholds) != len(self.flag_names):
            raise DataError(f"expected {len(self.flag_names)} thresholds, one for each flag, got {len(thresholds)}")
        for name, threshold in zip(self.flag_names, thresholds, strict=True):
            if not np.isfinite(threshold):
                raise DataError(f"threshold of {name}: expected a finite number, got {threshold}")
        remaining = iter(map(float, thresholds))
        changed: dict[str, list[Kind]] = {field: [] for field in self._kinds}
        for place in self.places:
            own = tuple(next(remaining) for _ in place.kind.thresholds)
            changed[place.field].append(place.kind.with_thresholds(own))
        extra = tuple(replace(each, kinds=tuple(changed[each.key])) for each in self.extra)
        return replace(self, **{field: tuple(changed[field]) for field in ROW_FIELDS}, extra=extra)  # type: ignore[arg-type]

    def pack(self, rows: Transitions) -> Matrix:
        """Return the matrix (N, D) of `rows`, which must fit this layout. Nothing is scaled or clipped.

        Extra columns that the layout does not have are ignored.
        """
        return self.pack_fields(self.columns_from(rows))

    def columns_from(self, rows: Transitions) -> dict[str, Array]:
        """Return the arrays of `rows` for the fields and extra columns of this layout, in its order."""
        missing = [extra.name for extra in self.extra if extra.name not in rows.extra]
        if missing:
            raise DataError(
                f"these rows have no extra column {', '.join(missing)}, but the layout has: prepare them like the rows "
                "that the layout was made from, for example with n_step_rows or with_next_actions"
            )
        every = rows.arrays()
        return {field: every[field] for field in self._kinds}

    def pack_fields(self, fields: Mapping[str, Array]) -> Matrix:
        """Return the matrix (N, D) of rows for which only these `fields` are known. The columns of other fields are
        0."""
        return self._encoder(fields)

    def regressors(self, matrix: Matrix) -> Matrix:
        """Return what regressions on observation and action see of a `matrix` (N, D) as `pack` encodes it. (N, G + 2 C)

        These are its columns of observation and action, and cosine and sine of circular ones. Spikes at the ends of a
        range, which a gap separates from other values, are moved back to their true value.
        """
        given = matrix[:, self.given_columns]
        for column, (low, high) in self.ends.items():
            if column in self.given_columns:
                place = self.given_columns.index(column)
                given[:, place] = given[:, place].clip(low, high)
        if not self.circles:
            return given
        waves = cosines_and_sines(matrix[:, list(self.circles)], [*self.circles.values()])
        return np.concatenate([given, waves], axis=1)

    @cached_property
    def circles(self) -> dict[int, float]:
        """Circular columns among the given columns of the matrix, and their periods."""
        given = (place for place in self.places if place.field in ("observation", "action"))
        return {place.matrix.start: place.kind.circle for place in given if place.kind.circle}

    @cached_property
    def ends(self) -> dict[int, tuple[float, float]]:
        """True range of the values of those matrix columns in which the matrix exceeds it. These are columns with a
        spike at an end of the range, which a gap moves out, and columns that are stored before clipping."""
        spiked = [(place.matrix.start, place.kind) for place in self.places if isinstance(place.kind, kinds.Spiked)]
        ends = {column: (kind.low, kind.high) for column, kind in spiked if len(kind.inner) < len(kind.spikes)}
        after: Any = by_column(self.next_observation)
        clips = (clip for clip in self.clips if not clip.of_change)
        return ends | {self.next_columns[clip.column]: after[clip.column].bounds for clip in clips}

    @cached_property
    def table_places(self) -> tuple[int, ...]:
        """Numbers of the places that are drawn from tables, and of the places that these depend on."""
        return tuple(sorted({place for table in self.following for place in (table.outcome, *table.parents)}))

    def values(self, number: int, sources: Mapping[str, Array]) -> NDArray[np.int64]:
        """Return which of its values the discrete place with this `number` has in each row. (N,)"""
        place = self.places[number]
        return classes_of(place.kind, sources[place.field].reshape(len(sources[place.field]), -1)[:, place.source])

    @property
    def can_be_priced(self) -> bool:
        """Whether terminal rows may have another reward: rewards are plain numbers or sparse, and terminals flags."""
        is_plain = isinstance(self.reward[0], Continuous | Derived) or self.sparse is not None
        return is_plain and isinstance(self.terminal[0], Binary)

    @property
    def pays_at_end(self) -> bool:
        """Whether the rewards of terminal rows are changed in the matrix and restored afterwards."""
        return bool(self.terminal_reward or self.at_end)

    @cached_property
    def given_columns(self) -> list[int]:
        """The columns of the matrix that hold observation and action."""
        return [*self.columns_of("observation"), *self.columns_of("action")]

    @cached_property
    def next_columns(self) -> dict[int, int]:
        """The first matrix column of each kind of the next observation, keyed by its first column in the field."""
        return {place.source.start: place.matrix.start for place in self.places if place.field == PAIR[1]}

    @property
    def mode_columns(self) -> list[int]:
        """The columns of the matrix that hold `nominal_outcomes`."""
        return _columns(self.nominal_outcomes)

    @cached_property
    def nominal_outcomes(self) -> tuple[Place, ...]:
        """Places of next observations without an order between their values, such as the mode of a switch. Other
        outcomes may depend on them: a room gets warmer if the heating is on."""
        nominal = (Binary, kinds.Categorical, kinds.OneHot, kinds.Codebook)
        return tuple(run for run in self.runs if run.field == PAIR[1] and isinstance(run.kind, nominal))

    def columns_of(self, field: str) -> list[int]:
        """Return the columns of the matrix that hold a field."""
        return _columns([place for place in self.places if place.field == field])

    def fitting(self, rows: Transitions) -> NDArray[np.bool_]:
        """Return which rows `pack` accepts: rows without a value that is impossible in its column. (N,)"""
        return self._encoder.fitting(self.columns_from(rows))

    def dtype_of(self, field: str) -> np.dtype[Any]:
        """Return the type of a field or extra column in rows."""
        if field in ROW_FIELDS:
            return np.dtype(self.dtypes[ROW_FIELDS.index(field)])
        return np.dtype(next(extra.dtype for extra in self.extra if extra.key == field))

    def unpack(self, matrix: Array) -> Transitions:
        """Return rows for any finite matrix (N, D), rounded, clipped and typed like the rows the layout was made
        from."""
        if matrix.ndim != 2 or matrix.shape[1] != self.width:
            raise DataError(f"matrix has shape {matrix.shape}: expected (rows, {self.width})")
        return self._decoder(torch.from_numpy(np.ascontiguousarray(matrix))).rows

    @cached_property
    def _encoder(self) -> Encoder:
        return Encoder(self)

    @cached_property
    def _decoder(self) -> Decoder:
        return Decoder(self)

    def rows_from_columns(self, source: Array) -> Transitions:
        """Return rows for a matrix of their unencoded columns side by side (N, W), in the order of the fields."""
        ends = np.cumsum(list(self.field_widths.values()))[:-1]
        parts = zip(self._kinds, np.split(source, ends, axis=1), strict=True)
        return self.as_transitions({field: part.astype(self.dtype_of(field)) for field, part in parts})

    def as_transitions(self, columns: dict[str, Array]) -> Transitions:
        """Return rows made of these arrays (N, W), one for each field and extra column."""
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
        """Return where the columns of a field are in the matrix: a `Number` for each number, and the place of each
        column or group of columns without an order."""
        return tuple(_number(place) or place for place in self.places if place.field == field)

    def numbers(self, field: str) -> tuple[Number, ...]:
        """Return where the columns of a field are in the matrix, and their bounds. All of them must be numbers."""
        numbers = []
        for one in self.shown(field):
            if isinstance(one, Place):
                raise ConfigError(f"expected numbers: {one.names[0]} has values without an order")
            numbers.append(one)
        return tuple(numbers)

    @cached_property
    def _classed(self) -> tuple[Place, ...]:
        few = [place for place in self.places if 2 <= place.kind.class_count <= MOST_CLASSES]
        return tuple(place for place in few if place.field in ("observation", "action"))

    @property
    def class_counts(self) -> tuple[int, ...]:
        """Number of values of each column, or group of columns, of observation and action that has at most
        `MOST_CLASSES` values."""
        return tuple(place.kind.class_count for place in self._classed)

    def classes(self, rows: Transitions) -> NDArray[np.int64]:
        """Return which of its values each of the G groups in `class_counts` has in each row. (N, G)"""
        classes = np.empty((len(rows), len(self._classed)), np.int64)
        for group, place in enumerate(self._classed):
            source = getattr(rows, place.field).reshape(len(rows), -1)[:, place.source]
            classes[:, group] = place.kind.classes(source)
        return classes

    @cached_property
    def unsettled(self) -> tuple[Place, ...]:
        """Places that are rounded to valid values before other outcomes are computed from them: the discrete columns of
        observation and action, and the `nominal_outcomes`."""
        given = [run for run in self.runs if run.field in ("observation", "action") and run.kind.matrix_width]
        return (*(run for run in given if not isinstance(run.kind, Real)), *self.nominal_outcomes)


def _columns(places: Sequence[Place]) -> list[int]:
    return [column for place in places for column in range(place.matrix.start, place.matrix.stop)]


def _number(place: Place) -> Number | None:
    """Return where the number of a place is in the matrix, or None if it holds categories or a logarithm."""
    kind = place.kind
    if isinstance(kind, Constant):
        return Number(None, float(kind.value), float(kind.value))
    if isinstance(kind, Derived):
        return Number(None, 0.0, 0.0)
    if isinstance(kind, kinds.Spiked):
        return Number(place.matrix.start, kind.low, kind.high)
    if isinstance(kind, Real) and not isinstance(kind, Logarithmic):
        return Number(place.matrix.start, *kind.bounds)
    return Number(place.matrix.start, -math.inf, math.inf) if isinstance(kind, Integer | Levels) else None

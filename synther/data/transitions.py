"""`Transitions`: a validated data set of N rows of experience, with named fields.

Read `Transitions` and `Transitions.of` first. The functions below the class convert and check single fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from synther.data import spaces
from synther.data.spaces import Space
from synther.errors import DataError, MissingExtra
from synther.plain import whole_seed
from synther.schema import printable

Array = NDArray[Any]

ROW_FIELDS = ("observation", "action", "reward", "next_observation", "terminal")
"""The fields of a row, in the order of the paper's matrix."""

PAIR = ("observation", "next_observation")
"""The two fields that hold the same quantities, before and after a step."""

FIELDS = (*ROW_FIELDS, "timeout")

_ABOUT = ("action_space", "observation_space", "env_id", "env_options")
"""Fields of `Transitions` that hold one value for all rows."""

_ALIASES = {
    "observation": ("observations", "obs", "state", "states"),
    "action": ("actions", "act", "acts"),
    "reward": ("rewards", "rew", "rews"),
    "next_observation": ("next_observations", "next_obs", "next_state", "next_states"),
    "terminal": ("terminals", "terminated", "terminations", "done", "dones"),
    "timeout": ("timeouts", "truncated", "truncations"),
}
FIELD_OF_KEY = {alias: field for field, aliases in _ALIASES.items() for alias in (field, *aliases)}
"""Maps each accepted name of a dict key or file entry to its field."""

EXTRA = "extra/"
"""Prefix of the names of extra columns, in `arrays()`, files, layouts and reports."""

ENDS = ("done", "dones")
"""Names that usually mark every end of an episode, including timeouts."""

_SHUFFLING = 19  # seed of random orders
_COLUMN = re.compile(r"(?P<name>.+)\[(?P<place>\d+)\]|(?P<known>.+)[_.](?P<number>\d+)")
_CHECK_ROWS = 1 << 20  # rows that are checked at a time


class Row(NamedTuple):
    """One row of experience."""

    observation: Array
    """(O,)"""
    action: Any
    """(A,), or one integer"""
    reward: Any
    next_observation: Array
    """(O,)"""
    terminal: Any
    timeout: Any = None
    """None if unknown."""
    extra: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class Transitions:
    """N rows of experience.

    observation       (N, O)  numbers
    action            (N, A)  numbers, or (N,) integers for one discrete action
    reward            (N,)    numbers
    next_observation  (N, O)
    terminal          (N,)    bool: the next state is absorbing. None: no row is terminal
    timeout           (N,)    bool: the episode was cut after this row. None: unknown
    extra             further columns by name, each of shape (N,) or (N, K), which are modelled like the others

    Agents use two extra columns: `discount` (N,), from 0 to 1, by which they multiply the value of the next
    observation, for example in n-step rows, and `next_action`, with the shape of `action`.

    `action_space` and `observation_space` say which values are possible. Without them, this is concluded from the rows.
    `env_options` are the keyword arguments of `gymnasium.make` besides `env_id`. Arrays that already have the right
    shape and type are not copied, so do not write to them.
    """

    observation: Array
    action: Array
    reward: Array
    next_observation: Array
    terminal: Array = None  # type: ignore[assignment]  # filled in by __post_init__
    timeout: Array | None = None
    action_space: Space | None = None
    observation_space: Space | None = None
    env_id: str | None = None
    env_options: dict[str, Any] | None = None
    extra: Mapping[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        observation = _matrix("observation", self.observation)
        rows = len(observation)
        if rows == 0:
            raise DataError("observation has no rows: expected at least one transition")
        fields: dict[str, Array | None] = {
            "observation": observation,
            "action": _action(self.action),
            "reward": _reward(self.reward),
            "next_observation": _matrix("next_observation", self.next_observation),
            "terminal": _flags("terminal", np.zeros(rows, bool) if self.terminal is None else self.terminal),
            "timeout": None if self.timeout is None else _flags("timeout", self.timeout),
        }
        extra = _extra(self.extra)
        for name, array in {**fields, **_prefixed(extra)}.items():
            if array is not None and len(array) != rows:
                raise DataError(
                    f"{name} has {len(array):,} rows, observation has {rows:,}: every array needs one row for each step"
                )
        next_observation = fields["next_observation"]
        assert next_observation is not None
        if next_observation.shape != observation.shape:
            raise DataError(
                f"next_observation has {next_observation.shape[1]} columns, observation has {observation.shape[1]}: "
                "expected the same number"
            )
        if next_observation.dtype != observation.dtype:  # convert to the type that holds the values of both
            common = np.result_type(next_observation, observation)
            fields["observation"] = observation.astype(common)
            fields["next_observation"] = next_observation.astype(common)
        for name, array in fields.items():
            if array is not None:
                _check_finite(name, array)
            object.__setattr__(self, name, array)
        object.__setattr__(self, "extra", extra)
        for name, array in _prefixed(extra).items():
            _check_finite(name, array)
        for name in ("action_space", "observation_space"):
            spaces.check_parts(getattr(self, name), name)
        object.__setattr__(self, "env_options", _options(self.env_options))
        if self.action_space is not None:
            spaces.check(self.action_space, self.action.reshape(rows, -1), "action")
        self._check_meanings()
        if self.observation_space is not None and spaces.width(self.observation_space) != observation.shape[1]:
            raise DataError(
                f"observation_space describes {spaces.width(self.observation_space)} columns, "
                f"observation has {observation.shape[1]}"
            )

    def _check_meanings(self) -> None:
        """Raise an error if an extra column that agents use has wrong values or a wrong shape."""
        discount, next_action = self.extra.get("discount"), self.extra.get("next_action")
        if discount is not None and (discount.ndim != 1 or (discount < 0).any() or (discount > 1).any()):
            raise DataError("extra column discount: expected one number from 0 to 1 for each row")
        if next_action is None:
            return
        if next_action.shape != self.action.shape:
            raise DataError(
                f"extra column next_action has shape {next_action.shape}: expected the shape of action, "
                f"{self.action.shape}"
            )
        if self.action_space is not None:
            spaces.check(self.action_space, next_action.reshape(len(self), -1), f"{EXTRA}next_action")

    @classmethod
    def of(cls, rows: Mapping[str, ArrayLike] | None = None, /, **arrays: Any) -> Self:
        """Build from a dict of arrays or a pandas DataFrame, from keyword arrays, or from both.

        The usual names are accepted (`observations`, `obs`, `next_obs`, `dones`, `terminals`, `truncations`, ...).
        `done` and `dones` are read as terminals. If timeouts are given too, these rows are not terminal.
        Columns `observation[0]`, `observation[1]`, ... are joined to one array, and so are `obs_0`, `obs_1`, ...
        Keys that begin with `infos` or `metadata`, as in D4RL, are ignored. Any other unknown key is an error.
        Pass extra columns as `extra={"discount": ...}`, or under keys such as `extra/discount`.
        """
        given: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        if rows is not None and not hasattr(rows, "keys"):
            raise DataError(f"expected a dict of arrays, or arrays by name, got {type(rows).__name__}")
        named = _joined({**({} if rows is None else rows), **arrays})
        for key, value in named.items():
            if str(key).startswith(("infos", "metadata")):
                continue
            if str(key).startswith(EXTRA):
                extra[str(key).removeprefix(EXTRA)] = value
                continue
            field = key if key in (*_ABOUT, "extra") else FIELD_OF_KEY.get(key)
            if field is None:
                raise DataError(
                    f"unknown key {key!r}: expected {', '.join(FIELDS)} or one of their usual plurals; drop it, or "
                    "pass it as extra={name: array}"
                )
            if field in given:
                raise DataError(f"{field} was given twice, the second time as {key!r}")
            given[field] = value
        if given.get("timeout") is not None and any(key in ENDS for key in named):
            given["terminal"] = without_timeouts(given["terminal"], given["timeout"])
        missing = [name for name in ROW_FIELDS[:4] if name not in given]
        if missing:
            takes = "; read(path) takes it from the next row of a file with timeouts"
            advice = takes * (missing == ["next_observation"])
            raise DataError(f"missing {', '.join(missing)}: got {', '.join(given) or 'nothing'}{advice}")
        if extra:
            given["extra"] = {**(given.get("extra") or {}), **extra}
        return cls(**given)

    @classmethod
    def concatenate(cls, parts: Sequence[Transitions]) -> Transitions:
        """Return all rows of `parts` in order.

        Timeouts are kept only if every part has them. All parts must have the same extra columns. A space or an
        environment id is kept only if it is equal in all parts.
        """
        if not parts:
            raise DataError("nothing to concatenate: expected at least one Transitions")
        first = parts[0]
        for number, part in enumerate(parts[1:], start=1):
            for name in ("observation", "action"):
                expected, shape = getattr(first, name).shape[1:], getattr(part, name).shape[1:]
                if expected != shape:
                    raise DataError(
                        f"cannot concatenate: rows of {name} have shape {shape} in part {number}, but {expected} in "
                        "part 0"
                    )
            expected, shape = ({name: a.shape[1:] for name, a in rows.extra.items()} for rows in (first, part))
            if expected != shape:
                raise DataError(
                    f"cannot concatenate: part {number} has the extra columns {shape or 'none'}, part 0 has "
                    f"{expected or 'none'}; drop them with without_extra()"
                )
        joined: dict[str, Any] = {name: np.concatenate([getattr(p, name) for p in parts]) for name in ROW_FIELDS}
        if all(part.timeout is not None for part in parts):
            joined["timeout"] = np.concatenate([part.timeout for part in parts])
        joined["extra"] = {name: np.concatenate([part.extra[name] for part in parts]) for name in first.extra}
        for name in _ABOUT:
            value = getattr(first, name)
            joined[name] = value if all(getattr(part, name) == value for part in parts) else None
        return cls(**joined)

    def __len__(self) -> int:
        return len(self.observation)

    def __iter__(self) -> Iterator[Row]:
        """Iterate over single rows. Working on whole arrays, such as `rows.reward`, is much faster."""
        return (self[row] for row in range(len(self)))

    @overload
    def __getitem__(self, rows: int) -> Row: ...

    @overload
    def __getitem__(self, rows: slice | Array | Sequence[int]) -> Transitions: ...

    def __getitem__(self, rows: int | slice | Array | Sequence[int]) -> Row | Transitions:
        """Return one row by its number, or the rows of a slice, an index array or a boolean mask, which must select at
        least one row."""
        if isinstance(rows, str):
            raise TypeError(
                "an index of Transitions is a number, a slice, an index array or a mask; for a field write rows.reward"
            )
        if isinstance(rows, (int, np.integer)) and not isinstance(rows, bool):
            fields: dict[str, Any] = {
                name: None if (array := getattr(self, name)) is None else array[rows] for name in FIELDS
            }
            return Row(**fields, extra={name: array[rows] for name, array in self.extra.items()})
        picked = {name: array[rows] for name, array in self.arrays().items()}
        if picked["reward"].ndim != 1:
            raise TypeError("an index of Transitions has one dimension: a slice, an index array or a mask")
        if len(picked["reward"]) == 0:
            raise DataError(f"the selection has none of the {len(self):,} rows: expected at least one")
        return self._trusted(picked)

    def _trusted(self, arrays: dict[str, Array]) -> Transitions:
        """Return rows with these `arrays`, selected from validated rows, without validating them again."""
        part = object.__new__(Transitions)
        for name in self.__dataclass_fields__:
            object.__setattr__(part, name, arrays.get(name, None if name in FIELDS else getattr(self, name)))
        object.__setattr__(part, "extra", {name: arrays[EXTRA + name] for name in self.extra})
        return part

    def chunks(self, rows: int) -> Iterator[Transitions]:
        """Iterate over consecutive views of at most `rows` rows."""
        for start in range(0, len(self), rows):
            yield self[start : start + rows]

    def arrays(self) -> dict[str, Array]:
        """Return a dict from field name to array, without `timeout` if it is unknown. Extra columns come last, under
        `extra/NAME`."""
        every = {name: getattr(self, name) for name in FIELDS} | _prefixed(self.extra)
        return {name: array for name, array in every.items() if array is not None}

    def modelled(self) -> dict[str, Array]:
        """Return `arrays()` without the timeouts: the arrays that generators learn and that comparisons use."""
        return {name: array for name, array in self.arrays().items() if name != "timeout"}

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with one column for each number: `observation[0]`, `observation[1]`, ..., `reward`,
        ... `Transitions.of(frame)` converts it back."""
        try:
            import pandas
        except ImportError:
            raise MissingExtra("pandas", "stats", "a pandas DataFrame") from None
        columns: dict[str, Array] = {}
        for name, array in self.arrays().items():
            if array.ndim == 1:
                columns[name] = array
            else:
                columns |= {f"{name}[{place}]": array[:, place] for place in range(array.shape[1])}
        return pandas.DataFrame(columns)

    def without_extra(self, *names: str) -> Transitions:
        """Return the same rows without the extra columns `names`. Without names, all extra columns are dropped."""
        for name in names:
            if name not in self.extra:
                raise DataError(f"no extra column {name!r}: the rows have {', '.join(self.extra) or 'none'}")
        kept = {name: array for name, array in self.extra.items() if names and name not in names}
        return replace(self, extra=kept)

    def refuse_extra(self, purpose: str) -> None:
        """Raise an error if there are extra columns, because `purpose` (for the error text) cannot store them."""
        if self.extra:
            names = ", ".join(self.extra)
            raise DataError(f"{purpose} has no place for the extra columns {names}: drop them with without_extra()")

    def subsample(self, fraction: float, seed: int = 0) -> Transitions:
        """Return a random fraction of the rows, at least one, drawn without replacement and kept in their order."""
        if not 0 < fraction <= 1:
            raise DataError(f"fraction must be above 0 and at most 1, got {fraction}")
        count = max(1, round(fraction * len(self)))
        rows = np.random.default_rng(whole_seed(seed)).choice(len(self), size=count, replace=False)
        return self[np.sort(rows)]

    def shuffled(self, most: int, seed: int | Sequence[int] = _SHUFFLING) -> Transitions:
        """Return at most `most` rows in random order. The same rows and seed always give the same result.

        Every k-th row would not do: columns such as an hour of the day repeat with the number of the row.
        """
        return self[np.random.default_rng(seed).permutation(len(self))[:most]]

    def with_spaces(self, action: Space | None = None, observation: Space | None = None) -> Transitions:
        """Return the same rows with other spaces, which are tuples of the parts in `synther.data.spaces`. The rows are
        checked against them."""
        return replace(
            self, action_space=action or self.action_space, observation_space=observation or self.observation_space
        )

    def equals(self, other: Transitions) -> bool:
        """Return whether both have the same fields with the same values."""
        mine, theirs = self.arrays(), other.arrays()
        return mine.keys() == theirs.keys() and all(np.array_equal(mine[name], theirs[name]) for name in mine)

    def summary(self) -> str:
        """Return a few lines of text that describe the rows."""
        actions = "1 discrete column" if self.action.ndim == 1 else _columns(self.action)
        with np.errstate(over="ignore", invalid="ignore"):
            mean, std = self.reward.mean(dtype=np.float64), self.reward.std(dtype=np.float64)
        lines = [
            f"{len(self):,} transitions" + (f" of {self.env_id}" if self.env_id else ""),
            f"observation  {_columns(self.observation)}, {self.observation.dtype}",
            f"action       {actions}, {self.action.dtype}, {_span(self.action)}",
            f"reward       mean {mean:.4g}, std {std:.4g}, {_span(self.reward)}",
            f"terminal     {_rows(int(self.terminal.sum()))} ({100 * np.mean(self.terminal):.3g} %)",
        ]
        if self.timeout is not None:
            lines.append(f"timeout      {_rows(int(self.timeout.sum()))}")
        for name, array in self.extra.items():
            lines.append(
                f"extra        {name}: {_columns(array.reshape(len(self), -1))}, {array.dtype}, {_span(array)}"
            )
        return "\n".join(map(printable, lines))

    def __repr__(self) -> str:
        observation, action = self.observation.shape[1], self.action.shape[1:]
        return (
            f"Transitions({_rows(len(self))}, observation {observation}, action {action[0] if action else 'discrete'})"
        )


class RowSource(Protocol):
    """Rows that can be read in chunks, several times: Transitions in memory, or rows stored on disk."""

    def __len__(self) -> int: ...

    def chunks(self, rows: int) -> Iterator[Transitions]: ...


def without_timeouts(done: ArrayLike, timeout: ArrayLike) -> Array:
    """Return the terminals: the rows marked in `done` but not in `timeout`."""
    ends, cuts = _flags("done", done), _flags("timeout", timeout)
    return ends & ~cuts if len(ends) == len(cuts) else ends


def numbered(key: str) -> tuple[str, int] | None:
    """Return name and number of a column key such as `observation[2]`, or such as `obs_2` and `obs.2` if the name is an
    accepted field name. Return None for other keys."""
    match = _COLUMN.fullmatch(key)
    if match is None:
        return None
    if match["name"] is not None:
        return match["name"], int(match["place"])
    return (match["known"], int(match["number"])) if match["known"] in FIELD_OF_KEY else None


def _joined(named: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the same dict, with columns such as `observation[0]`, `observation[1]` joined to one array
    `observation`."""
    joined: dict[Any, Any] = {}
    parts: dict[str, dict[int, Any]] = {}
    for key, value in named.items():
        column = numbered(key) if isinstance(key, str) else None
        if column is None:
            joined[key] = value
        else:
            parts.setdefault(column[0], {})[column[1]] = value
    for name, columns in parts.items():
        if sorted(columns) != list(range(len(columns))):
            raise DataError(f"{name} has the columns {sorted(columns)}: expected 0 to {len(columns) - 1}")
        if name in joined:
            raise DataError(f"{name} was given twice, once as columns and once as an array")
        joined[name] = np.stack([np.asarray(columns[place]) for place in range(len(columns))], 1)
    return joined


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def _columns(array: Array) -> str:
    return "1 column" if array.shape[1] == 1 else f"{array.shape[1]} columns"


def _span(array: Array) -> str:
    return f"from {array.min():.4g} to {array.max():.4g}"


def _numeric(name: str, values: ArrayLike) -> Array:
    """Return `values` as a numeric array in native byte order, at most float64. `name` is for error texts."""
    if np.ma.is_masked(values):
        raise DataError(f"{name} has masked values: expected a number everywhere; drop the rows, or fill them in")
    try:
        array = np.asarray(values)
        if array.dtype == object and array.ndim == 1 and len(array):  # a pandas column that holds vectors
            array = np.asarray(array.tolist())
    except ValueError as error:
        raise DataError(f"{name} is ragged: expected rows of equal length ({error})") from None
    except (TypeError, RuntimeError) as error:  # such as a tensor on a GPU, or one that requires gradients
        raise DataError(f"{name} is not an array: expected numbers in main memory ({error})") from None
    if array.dtype.kind not in "biuf":
        raise DataError(
            f"{name} has dtype {array.dtype}{_odd_value(array)}: expected real numbers, integers or booleans. Encode "
            "categories as whole numbers, flatten dicts, and drop rows with missing values, or fill them in"
        )
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        with np.errstate(over="ignore"):  # numbers too large for float64 become infinite, and are refused later
            array = array.astype(np.float64)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _odd_value(array: NDArray[Any]) -> str:
    """Return a phrase on the first value that is no number, and its column."""
    for place, value in zip(np.ndindex(array.shape), array.flat, strict=True):
        if not isinstance(value, (bool, int, float, np.number, np.bool_)):
            where = f" in column {place[1]}" if len(place) > 1 else ""
            return f" and the value {value!r:.60}{where}"
    return ""


def _matrix(name: str, values: ArrayLike) -> Array:
    """Return `values` as numbers (N, W). An array (N,) becomes one column."""
    array = _numeric(name, values)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise DataError(
            f"{name} has shape {array.shape}: expected (rows, columns); flatten each row to one vector first"
        )
    if array.shape[1] == 0:
        raise DataError(f"{name} has no columns: shape {array.shape}")
    return array


def _action(values: ArrayLike) -> Array:
    """Return actions as numbers (N, A), or as integers (N,) for one discrete action."""
    array = _numeric("action", values)
    if array.dtype.kind == "b":
        array = array.astype(np.int64)
    whole = array.dtype.kind in "iu"
    if array.ndim == 2 and array.shape[1] == 1 and whole:
        array = array[:, 0]
    if array.ndim == 1 and whole:
        return array
    return _matrix("action", array)


def _reward(values: ArrayLike) -> Array:
    """Return rewards (N,) as floats. Integers become float32 if it holds them exactly, else float64."""
    array = _column("reward", values)
    if array.dtype.kind == "f":
        return array
    single = array.astype(np.float32)
    return single if (single == array).all() else array.astype(np.float64)


def _extra(given: Mapping[str, ArrayLike] | None) -> dict[str, Array]:
    """Return the extra columns as arrays, after checking their names, types and shapes."""
    if given is not None and not isinstance(given, Mapping):
        raise DataError(f"extra: expected a dict of arrays by name, got {type(given).__name__}")
    checked: dict[str, Array] = {}
    for name, values in (given or {}).items():
        if not isinstance(name, str) or not name.isidentifier() or name in FIELD_OF_KEY or name in _ABOUT:
            raise DataError(f"extra column {name!r}: expected an identifier that is not the name of a field")
        if name == "next_action":
            checked[name] = _action(values)
            continue
        array = _numeric(f"{EXTRA}{name}", values)
        if array.ndim not in (1, 2) or 0 in array.shape[1:]:
            raise DataError(f"extra column {name!r} has shape {array.shape}: expected (rows,) or (rows, columns)")
        checked[name] = array[:, 0] if array.ndim == 2 and name == "discount" and array.shape[1] == 1 else array
    return checked


def _prefixed(extra: Mapping[str, Array]) -> dict[str, Array]:
    return {f"{EXTRA}{name}": array for name, array in extra.items()}


def _options(given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the options as they are after a round trip through JSON, or None if there are none."""
    try:
        options = json.loads(json.dumps(None if given is None else dict(given)))
    except (TypeError, ValueError):
        raise DataError(f"env_options must be a dict that can be written as JSON, got {given!r}") from None
    return options or None


def _flags(name: str, values: ArrayLike) -> Array:
    """Return booleans (N,) for values that are 0 or 1."""
    array = _column(name, values)
    if array.dtype != bool:
        wrong = (array != 0) & (array != 1)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise DataError(f"{name}[{row}] is {array[row]}: expected 0 or 1, or booleans")
        array = array.astype(bool)
    return array


def _column(name: str, values: ArrayLike) -> Array:
    """Return numbers (N,) for an array (N,) or (N, 1)."""
    array = _numeric(name, values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(f"{name} has shape {array.shape}: expected (rows,), one value for each row")
    return array


def _check_finite(name: str, array: Array) -> None:
    """Raise an error that names the first value that is infinite or not a number."""
    if array.dtype.kind != "f":
        return
    for start in range(0, len(array), _CHECK_ROWS):
        finite = np.isfinite(array[start : start + _CHECK_ROWS])
        if not finite.all():
            place = np.argwhere(~finite)[0]
            row = start + int(place[0])
            where = f"{name}[{row}, {place[1]}]" if array.ndim == 2 else f"{name}[{row}]"
            value = array[row, place[1]] if array.ndim == 2 else array[row]
            raise DataError(f"{where} is {value}: expected a finite number; drop the row or repair what recorded it")

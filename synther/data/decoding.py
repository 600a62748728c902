"""`Decoder`: turns generated matrices into rows, on the device of the network.

For example, a generated terminal of 0.97 becomes True, and an action of 1.02 becomes 1.0. Tensors in this module have
one row for each column of the matrix, (D, N), in float64. All columns of real numbers are decoded together, and so are
all flags. The decoded rows are one block of bytes with all fields, so that one copy brings them to main memory.

Other kinds, such as categories, are decoded with NumPy (`Kind.decode`). If there is such a column, the decoder works on
the CPU, even if the network is on a GPU.

`Decoder` uses one `_Part` for each group of kinds. Read `Decoder.packed` and `Decoder._fill` first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther.data.clipping import put_limited
from synther.data.flags import Flags
from synther.data.following import classes_of
from synther.data.holding import put_held
from synther.data.kind import Array, Kind, Matrix
from synther.data.numbers import Continuous, Numbers, Real
from synther.data.quantiles import row_index
from synther.data.scaling import Scaler
from synther.data.spheres import Projection
from synther.data.termination import FEATURES, Decision, TerminationTree
from synther.data.turning import put_turned
from synther.data.values import Binary, Constant, Derived
from synther.errors import DataError

if TYPE_CHECKING:
    from synther.data.layout import Layout, Place
    from synther.data.transitions import Transitions

CHUNK = 1 << 14  # rows that a CPU decodes at a time: a few dozen columns of these fit in its cache
_ALIGNED = 16  # the array of each field begins at a multiple of this many bytes
_ANYWHERE = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
"""Types that PyTorch supports on every device."""
_UNUSUAL = "unusual"  # name of the entry that holds `Decoded.unusual`, next to the fields

Fields = dict[str, Tensor]
"""The columns (N, W) of each field."""


@dataclass(frozen=True)
class Decoded:
    """Decoded rows in main memory."""

    rows: Transitions
    unusual: NDArray[np.bool_] | None
    """Which rows should not have the usual reward, as a tree decides (N,). None if there is no such tree."""

    def part(self, start: int, end: int) -> Decoded:
        """Return the rows from `start` to `end`."""
        if (start, end) == (0, len(self.rows)):
            return self
        return Decoded(self.rows[start:end], None if self.unusual is None else self.unusual[start:end])


class Decoder:
    """Turns a matrix into rows with the scale, the bounds and the types of the real rows."""

    def __init__(
        self,
        layout: Layout,
        scaler: Scaler | None = None,
        ending: TerminationTree | None = None,
        unusual: TerminationTree | None = None,
        device: torch.device | None = None,
        drawn: Sequence[Sequence[float]] = (),
    ) -> None:
        """Prepare decoding on a device.

        `scaler` undoes the scaling. Without it, the matrix must be unscaled. `ending` is a tree that decides which rows
        are terminal. `unusual` is a tree that decides which rows do not have the usual reward; if there are only two
        rewards, the usual one is the lower one. `drawn` holds mean and std of the generated numbers for each table of
        the layout. Default: 0 and 1.
        """
        types = {layout.dtype_of(field).name for field in layout.field_widths}
        device = device if device is not None and types <= {*_ANYWHERE} and _is_plain(layout) else torch.device("cpu")
        self.layout, self.device = layout, device
        self._unscale = None if scaler is None else scaler.unscaler(device)
        self._flags = Flags(layout, device)
        settling = _Settling(layout, device, self._flags)
        self._settle = settling if settling.is_needed else None
        self._drawn = list(zip(layout.drawn_columns, drawn, strict=True)) if drawn else []
        self._parts = _parts(layout, device)
        is_constant = all(isinstance(kind, Constant) for kind in layout.next_observation)  # as in behaviour cloning
        self._projection = Projection(layout.spheres, device)
        turned = {turn.columns for turn in layout.turns}
        computed = {one.column for one in layout.identities if one.field == "next_observation"}
        next_spheres = [
            sphere
            for sphere in layout.spheres
            if not is_constant
            and (sphere.columns not in turned or sphere.points)
            and computed.isdisjoint(sphere.columns)
        ]
        self._next_projection = Projection(next_spheres, device)
        flagged = [number for part in self._parts for number in part.flag_places]
        self._flag_order = row_index(np.argsort(flagged, kind="stable").tolist(), device)
        self._ending = None if ending is None else _Judge(ending, layout, device)
        self._unusual = None if unusual is None else _Judge(unusual, layout, device)
        (reward,) = layout.reward
        self._reward_is_computed = isinstance(reward, Derived)
        self._two_rewards = (reward.low, reward.high) if isinstance(reward, Binary) else None
        self._at_end = None if layout.at_end is None else layout.at_end.on(device)
        shapes = [(field, width, layout.dtype_of(field)) for field, width in layout.field_widths.items()]
        self._shapes = shapes if unusual is None else [*shapes, (_UNUSUAL, 1, np.dtype(bool))]

    def __call__(self, matrix: Tensor) -> Decoded:
        """Return the rows of a matrix (N, D)."""
        return self.rows(self.packed(matrix.to(self.device)).cpu().numpy(), len(matrix))

    def raw(self, matrix: Tensor) -> Tensor:
        """Return the unscaled columns (D, N) of the layout's matrix, for generated rows (N, D)."""
        columns = torch.empty(matrix.shape[::-1], dtype=torch.float64, device=self.device).copy_(matrix.t())
        return columns if self._unscale is None else self._unscale(columns, self._settle)

    def flags(self, raw: Tensor) -> Tensor:
        """Return the flags (F, N) of unscaled columns (D, N), in the layout's order, before they are compared with
        their thresholds."""
        return torch.cat([raw[:0], *(part.flags(raw) for part in self._parts)])[self._flag_order]

    def packed(self, matrix: Tensor) -> Tensor:
        """Decode a matrix (N, D) that is on the decoder's device. Return bytes that `rows` reads."""
        count = len(matrix)
        memory = torch.empty(self._spans(count)[-1], dtype=torch.uint8, device=self.device)
        fields = self._fields(memory, count)
        if self.device.type != "cpu":
            raw = self.raw(matrix)
            memory[0] = raw.isfinite().all()
            self._fill(fields, raw)
            return memory
        memory[0] = 1
        for start in range(0, count, CHUNK):
            part = slice(start, start + CHUNK)
            raw = self.raw(matrix[part])
            self._check_finite(raw, start)
            for column, (mean, std) in self._drawn:
                raw[column] = (raw[column] - mean) / std
            self._fill(fields if count <= CHUNK else {name: each[part] for name, each in fields.items()}, raw)
        return memory

    def _fill(self, fields: Fields, raw: Tensor) -> None:
        """Write the decoded values of unscaled columns (D, N) into `fields`. Each step may use the results of the steps
        before it."""
        for part in self._parts:
            part.decode(raw, fields)
        self._projection.put(fields["observation"])
        put_turned(self.layout.turns, fields)
        put_held(self.layout.held, fields)
        put_limited(self.layout.clips, fields)
        self._next_projection.put(fields["next_observation"])
        for identity in self.layout.identities:
            identity.put(fields)
        self._flags.put(fields)
        reward = fields["reward"]
        if self.layout.formula is not None:
            predicted = self.layout.formula(fields)
            reward[:, 0] = (predicted if self._reward_is_computed else predicted + reward[:, 0]).to(reward.dtype)
        if self._unusual is not None:
            unusual = self._unusual(fields)
            fields[_UNUSUAL][:, 0] = unusual
            if self._two_rewards is not None:
                usual, other = self._two_rewards
                reward[:, 0].fill_(usual).masked_fill_(unusual, other)
        if self._ending is not None:
            fields["terminal"][:, 0] = self._ending(fields)
        if self.layout.terminal_reward:
            reward += fields["terminal"].to(reward.dtype) * self.layout.terminal_reward
        if self._at_end is not None:
            reward.copy_(torch.where(fields["terminal"], self._at_end(reward).to(reward.dtype), reward))

    def rows(self, memory: NDArray[np.uint8], count: int) -> Decoded:
        """Return `count` rows from the bytes that `packed` returned, copied to main memory. The rows are views of
        them."""
        if not memory[0]:
            raise DataError("the model generated numbers that are not finite: it has diverged, fit it again")
        arrays = {
            field: memory[start : start + count * width * dtype.itemsize].view(dtype).reshape(count, width)
            for (field, width, dtype), start in zip(self._shapes, self._spans(count), strict=False)
        }
        unusual = arrays.pop(_UNUSUAL, None)
        return Decoded(self.layout.as_transitions(arrays), None if unusual is None else unusual[:, 0])

    def _check_finite(self, raw: Tensor, start: int) -> None:
        """Raise an error that names the first number that is not finite. `start` is the number of the first row."""
        if bool(raw.isfinite().all()):
            return
        column, row = np.argwhere(~np.isfinite(raw.numpy()))[0]
        raise DataError(
            f"column {column} ({self.layout.names[column]}) of the matrix is {raw[column, row]} in row {start + row}: "
            "expected finite numbers; the model that generated them has diverged"
        )

    def _spans(self, count: int) -> list[int]:
        """Return the byte at which the array of each field begins, and the end of the last one. Byte 0 is 1 if all
        numbers are finite."""
        spans = [_ALIGNED]
        for _, width, dtype in self._shapes:
            spans.append(spans[-1] + -(-count * width * dtype.itemsize // _ALIGNED) * _ALIGNED)
        return spans

    def _fields(self, memory: Tensor, count: int) -> Fields:
        """Return views of the bytes as the arrays of the fields."""
        fields = {}
        for (field, width, dtype), start in zip(self._shapes, self._spans(count), strict=False):
            own = memory[start : start + count * width * dtype.itemsize]
            fields[field] = own.view(getattr(torch, dtype.name)).view(count, width)
        return fields


def _is_plain(layout: Layout) -> bool:
    """Return whether all kinds of the layout can be decoded on any device."""
    return not layout.unsettled and all(isinstance(kind, (Real, Binary, Constant, Derived)) for kind in layout.kinds)


class _Settling:
    """Replaces generated observations and actions by the values that they will have in rows: clipped, on a spike, on a
    sphere, on a lattice. Outcomes that a regression computes from them then fit the final rows."""

    def __init__(self, layout: Layout, device: torch.device, flags: Flags) -> None:
        round_columns = {column for sphere in layout.spheres for column in sphere.columns}
        given = [place for place in layout.places if place.field in ("observation", "action")]
        places = [
            place
            for place in given
            if (isinstance(place.kind, Real) and not isinstance(place.kind, Continuous))
            or (place.field == "observation" and place.source.start in round_columns)
        ]
        kinds: Any = [place.kind for place in places]
        starts, fields = [place.matrix.start for place in places], [place.field for place in places]
        self._numbers = Numbers(kinds, starts, device, fields) if places else None
        rank = {place.source.start: number for number, place in enumerate(places) if place.field == "observation"}
        spheres = [replace(one, columns=tuple(rank[column] for column in one.columns)) for one in layout.spheres]
        self._projection = Projection(spheres, device)
        self._flags = flags
        self._discrete = layout.unsettled
        self.is_needed = bool(places or self._discrete)

    def __call__(self, raw: Tensor) -> None:
        """Change unscaled columns (D, N) in place."""
        if self._discrete:  # then the decoder is on the CPU
            settle(self._discrete, raw.numpy().T)
        if self._numbers is not None:
            numbers = self._numbers(raw)
            self._projection.put(numbers.t())
            self._numbers.put(numbers, raw)
        if self._discrete:
            self._flags.settle(raw)


def settle(places: Sequence[Place], matrix: Matrix) -> None:
    """Replace the values of discrete `places` in rows (N, D) of the matrix by the valid codes or lattice values that
    they will be decoded to. Other outcomes can then be computed from these."""
    for place in places:
        matrix[:, place.matrix] = place.kind.encode(place.kind.decode(matrix[:, place.matrix]))


class _Part:
    """Decodes all columns of one group of kinds. `places` are these columns and the numbers of their places."""

    def __init__(self, places: Sequence[tuple[int, Place]]) -> None:
        self.flag_places = [number for number, place in places for _ in place.kind.thresholds]
        """The number of the place of each flag."""

    def flags(self, raw: Tensor) -> Tensor:
        """Return the flags (F, N) of unscaled columns (D, N)."""
        return raw[:0]

    def decode(self, raw: Tensor, fields: Fields) -> None:
        """Decode unscaled columns (D, N) into the columns of the fields."""
        raise NotImplementedError


class _RealPart(_Part):
    """All columns of real numbers."""

    def __init__(self, places: Sequence[tuple[int, Place]], layout: Layout, device: torch.device) -> None:
        super().__init__(places)
        kinds: Any = [place.kind for _, place in places]
        starts, fields = [place.matrix.start for _, place in places], [place.field for _, place in places]
        self._numbers = Numbers(kinds, starts, device, fields)
        self._targets = _targets([place for _, place in places], layout, device)

    def flags(self, raw: Tensor) -> Tensor:
        return self._numbers.flags(raw)

    def decode(self, raw: Tensor, fields: Fields) -> None:
        numbers = self._numbers(raw)
        for target in self._targets:
            target.put(numbers, fields)


class _FlagPart(_Part):
    """All columns of two values."""

    def __init__(self, places: Sequence[tuple[int, Place]], layout: Layout, device: torch.device) -> None:
        super().__init__(places)
        kinds: Any = [place.kind for _, place in places]
        self._rows = row_index([place.matrix.start for _, place in places], device)
        self._threshold, self._low, self._high = (
            torch.tensor([getattr(kind, name) for kind in kinds], dtype=torch.float64, device=device)[:, None]
            for name in ("threshold", "low", "high")
        )
        self._targets = _targets([place for _, place in places], layout, device)

    def flags(self, raw: Tensor) -> Tensor:
        return raw[self._rows]

    def decode(self, raw: Tensor, fields: Fields) -> None:
        values = torch.where(raw[self._rows] > self._threshold, self._high, self._low)
        for target in self._targets:
            target.put(values, fields)


class _ConstantPart(_Part):
    """All constant columns."""

    def __init__(self, places: Sequence[tuple[int, Place]], layout: Layout, device: torch.device) -> None:
        super().__init__(places)
        self._values = []
        for target in _targets([place for _, place in places], layout, device):
            values = [place.kind.value for _, place in places[target.group]]  # type: ignore[attr-defined]
            typed = np.array([np.array(value).astype(layout.dtype_of(target.field)) for value in values])
            self._values.append((target, torch.from_numpy(typed).to(device)))

    def decode(self, raw: Tensor, fields: Fields) -> None:
        for target, values in self._values:
            fields[target.field][:, target.source] = values


class _TablePart(_Part):
    """All other columns, which are decoded with NumPy on the CPU."""

    def __init__(self, places: Sequence[tuple[int, Place]], layout: Layout, device: torch.device) -> None:
        super().__init__(places)
        self._places, self._layout = [place for _, place in places], layout

    def decode(self, raw: Tensor, fields: Fields) -> None:
        matrix = raw.numpy().T
        if self._layout.following:
            matrix = matrix.copy(order="F")
            _put_drawn(self._layout, matrix)
        for place in self._places:
            decoded, own = place.kind.decode(matrix[:, place.matrix]), fields[place.field].numpy()
            own[:, place.source] = _cast(decoded, own.dtype)


def _put_drawn(layout: Layout, matrix: Matrix) -> None:
    """Replace the normal numbers of table outcomes in rows (N, D) of the matrix by the number of the value that they
    draw from the table."""
    outcomes = {table.outcome for table in layout.following}
    values = {}
    for number in layout.table_places:
        if number not in outcomes:
            place = layout.places[number]
            values[number] = classes_of(place.kind, place.kind.decode(matrix[:, place.matrix]))
    for table, column in zip(layout.following, layout.drawn_columns, strict=True):
        values[table.outcome] = table.drawn(values, matrix[:, column])
        matrix[:, column] = values[table.outcome]


def _parts(layout: Layout, device: torch.device) -> list[_Part]:
    """Return the parts that decode all columns of the layout, except those that are computed from other columns."""
    groups: dict[type[_Part], list[tuple[int, Place]]] = {}
    for number, place in enumerate(layout.places):
        if isinstance(place.kind, Derived):
            continue
        owner = next((part for kind, part in _OWNERS.items() if isinstance(place.kind, kind)), _TablePart)
        groups.setdefault(owner, []).append((number, place))
    return [part(places, layout, device) for part, places in groups.items()]  # type: ignore[call-arg]


_OWNERS: dict[type[Kind], type[_Part]] = {Real: _RealPart, Binary: _FlagPart, Constant: _ConstantPart}


@dataclass(frozen=True)
class _Target:
    """Where a run of neighbouring columns of a field comes from, among the columns that a part decodes together."""

    field: str
    source: slice
    """Columns of the field."""
    group: slice
    """The same columns among those of the part."""
    whole: tuple[float, float] | None
    """Limits of the field's dtype if it is an integer type, else None."""
    rounded: tuple[Tensor, Tensor] | None
    """Bounds of the columns in the field's dtype if it is a float type with less precision than float64, else None."""

    def put(self, values: Tensor, fields: Fields) -> None:
        """Write the decoded `values` (C, N) of the part into the field."""
        target, values = fields[self.field], values[self.group]
        if self.whole is not None:
            values = values.clamp(*self.whole)
        if self.rounded is not None:
            values = values.to(target.dtype).clamp_(*self.rounded)
        target[:, self.source] = values.t()


def _targets(places: Sequence[Place], layout: Layout, device: torch.device) -> list[_Target]:
    """Group the places of a part into runs of neighbouring columns of the same field."""
    targets, start = [], 0
    for end in range(1, len(places) + 1):
        first, last = places[start], places[end - 1]
        after = places[end] if end < len(places) else None
        if after is not None and (after.field, after.source.start) == (last.field, last.source.stop):
            continue
        dtype = layout.dtype_of(first.field)
        whole = _limits(dtype.name) if dtype.kind in "iu" else None
        rounded = _bounds([place.kind for place in places[start:end]], dtype, device)
        source = slice(first.source.start, last.source.stop)
        targets.append(_Target(first.field, source, slice(start, end), whole, rounded))
        start = end
    return targets


def _bounds(kinds: Sequence[Kind], dtype: np.dtype[Any], device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Return the lower and upper bounds (C, 1) of real columns in `dtype`. Return None for float64 and integer
    types."""
    numbers = [kind for kind in kinds if isinstance(kind, Real)]
    if dtype.kind != "f" or dtype == np.float64 or not numbers:
        return None
    pairs = np.clip(
        np.array([_inside(*kind.bounds, dtype) for kind in numbers], dtype), *map(dtype.type, _limits(dtype.name))
    )
    low, high = torch.from_numpy(pairs).to(device).unbind(1)
    return low[:, None], high[:, None]


@lru_cache(maxsize=1024)
def _inside(low: float, high: float, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Return the bounds in `dtype`, rounded inwards, so that decoded values are inside the Box of the environment. For
    example, 0.1 as float32 is above 0.1."""
    with np.errstate(over="ignore"):
        lowest, highest = dtype.type(low), dtype.type(high)
    if float(lowest) < low:
        lowest = np.nextafter(lowest, dtype.type(np.inf))
    if float(highest) > high:
        highest = np.nextafter(highest, dtype.type(-np.inf))
    return (lowest, highest) if lowest <= highest else (dtype.type(low), dtype.type(high))


def _cast(values: Array, dtype: np.dtype[Any]) -> Array:
    """Convert values to `dtype`. Values beyond its limits are clipped to them."""
    if values.dtype.kind != "f" or dtype.kind == "b":
        return values.astype(dtype)
    return np.clip(values, *_limits(dtype.name)).astype(dtype)


@lru_cache(maxsize=32)
def _limits(dtype: str) -> tuple[float, float]:
    """Return the lowest and the highest float64 that the type can hold."""
    if np.dtype(dtype).kind == "f":
        return -float(np.finfo(dtype).max), float(np.finfo(dtype).max)
    info = np.iinfo(dtype)
    high = float(info.max)
    if int(high) > info.max:  # 2**63 is the float64 nearest to the largest int64
        high = math.nextafter(high, 0.0)
    return float(info.min), high


class _Judge:
    """A tree that decides about rows from their decoded fields."""

    def __init__(self, tree: TerminationTree, layout: Layout, device: torch.device) -> None:
        self._decide = Decision(tree, device)
        every = [(field, column) for field in FEATURES for column in range(layout.field_widths[field])]
        self._used = [every[feature] for feature in tree.used]

    def __call__(self, fields: Fields) -> Tensor:
        """Return the answers of the tree. (N,)"""
        used = [fields[field][:, column].double() for field, column in self._used]
        return self._decide(torch.stack(used) if used else fields["reward"].new_empty((0, len(fields["reward"]))))

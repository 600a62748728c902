"""The data of all members, stored once. Tables of rows are in one matrix, and arms define which rows a member draws.

Example: table 0 has real rows, table 1 synthetic rows. One member learns from `Arm((0,), (1.0,))`, real rows only, and
another from `Arm((0, 1), (0.5, 0.5))`, half of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from synther.errors import ConfigError, DataError

_LEAST_STD = 1e-3  # added to the std of each observation column, so that constant columns can be normalized


class Table(Protocol):
    """N rows of experience as arrays or tensors, for example `Transitions`.

    Observations and next observations are (N, O), actions (N, A), rewards and terminals (N,).
    """

    @property
    def observation(self) -> Any: ...
    @property
    def action(self) -> Any: ...
    @property
    def reward(self) -> Any: ...
    @property
    def next_observation(self) -> Any: ...
    @property
    def terminal(self) -> Any: ...


class Batch(NamedTuple):
    """The rows of an update, as views of one tensor."""

    observation: Tensor
    """Observations (S, B, O), normalized if the agent normalizes."""
    action: Tensor
    """Actions (S, B, A), within [-1, 1]."""
    reward: Tensor
    """Rewards (S, B)."""
    next_observation: Tensor
    """Next observations (S, B, O), normalized like the observations."""
    terminal: Tensor
    """Terminals (S, B), 0 or 1."""
    pair: Tensor
    """Observation and action side by side (S, B, O + A)."""
    next_action: Tensor | None = None
    """The data's actions in the next rows (S, B, A), if the algorithm needs them."""
    next_known: Tensor | None = None
    """Whether each next action is known (S, B): 1 if it is, else 0."""
    discount: Tensor | None = None
    """Factors of the next observations' values (S, B), if rows have their own discounts."""

    def apply(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """Return a batch in which `function` is applied to each part."""
        return Batch(*(None if part is None else function(part) for part in self))  # type: ignore[arg-type]

    def at(self, number: int) -> Batch:
        """Return batch `number` of batches (S, updates, B, ...)."""
        return self.apply(lambda part: part[:, number])

    @classmethod
    def of(cls, rows: Tensor, observation: int, action: int) -> Batch:
        """Split rows (..., width) into their parts.

        The columns are observation, action, reward, terminal and next observation. If the rows have them, next action,
        the flag that it is known, and discount follow.
        """
        pair = observation + action
        end = pair + 2 + observation
        known = end + action  # the column after the next action
        more = rows.shape[-1] - end  # 0, or 1 with a discount, action + 1 with next actions, action + 2 with both
        return cls(
            observation=rows[..., :observation],
            action=rows[..., observation:pair],
            reward=rows[..., pair],
            terminal=rows[..., pair + 1],
            next_observation=rows[..., pair + 2 : end],
            pair=rows[..., :pair],
            next_action=rows[..., end:known] if more > 1 else None,
            next_known=rows[..., known] if more > 1 else None,
            discount=rows[..., -1] if more in (1, action + 2) else None,
        )


@dataclass(frozen=True)
class Arm:
    """The tables that batches are drawn from, and their shares. `Arm((0, 1), (0.5, 0.5))` draws half from each."""

    tables: tuple[int, ...] = (0,)
    shares: tuple[float, ...] = (1.0,)
    real: int = 0
    """The table with the real rows. Its mean and standard deviation normalize the observations."""

    def __post_init__(self) -> None:
        if not self.tables or len(self.tables) != len(self.shares):
            raise ConfigError(f"an arm needs one share for each table, got {self.tables} and {self.shares}")
        if min(self.shares) < 0 or abs(sum(self.shares) - 1) > 1e-6:
            raise ConfigError(f"the shares of an arm must be at least 0 and sum to 1, got {self.shares}")

    def counts(self, batch: int) -> list[int]:
        """Return how many of the `batch` rows of a batch come from each table. Shares are rounded up or down."""
        ends = np.rint(np.cumsum(self.shares) * batch).astype(int)
        counts: list[int] = np.diff(ends, prepend=0).tolist()
        for share, count in zip(self.shares, counts, strict=True):
            if share > 0 and count == 0:
                raise ConfigError(
                    f"a share of {share:g} of {batch} rows is less than one row: raise it, or agent.batch_size"
                )
        return counts


@dataclass(frozen=True)
class Member:
    """One of the agents that train together: a seed, and the arm that defines its batches."""

    seed: int
    arm: Arm = Arm()


class Rows:
    """Tables in one matrix with the columns observation, action, reward, terminal and next observation.

    - `tables`: the tables. If it is a generator, only one table is in memory at a time.
    - `low`, `high` (A,): the action bounds (default: -1 and 1). Actions are stored scaled to [-1, 1].
    - `count`: the expected number of tables. If all have as many rows as the first, memory is allocated only once.
    - `names`: the names of the tables in error messages (default: their numbers).
    - `next_actions`: also store the next action, and a flag that it is known. It is the extra column `next_action` of a
      table. Without this column, it is the action of the next row, and known if that row belongs to the same episode.
    - `discount`: also store the extra column `discount`, or this number for tables without it.
    """

    def __init__(
        self,
        tables: Iterable[Table],
        *,
        device: torch.device,
        low: ArrayLike | None = None,
        high: ArrayLike | None = None,
        count: int = 1,
        names: Sequence[str] = (),
        next_actions: bool = False,
        discount: float | None = None,
    ) -> None:
        self.device, self._names, self.next_actions, self.discount = device, names, next_actions, discount
        self.starts: list[int] = []
        self.lengths: list[int] = []
        room = sum(len(table.reward) for table in tables) if isinstance(tables, Sequence) else 0
        for table in tables:
            if not self.lengths:
                self._measure(table, low, high)
                width = 2 * self.observation_size + self.action_size + 2
                if next_actions:
                    width += self.action_size + 1
                if discount is not None:
                    width += 1
                self.matrix = torch.empty(room or count * len(table.reward), width, device=device)
            self._append(table)
            del table  # free it before the next one is made
        if not self.lengths:
            raise DataError("an agent needs at least one table of rows, got none")
        self.matrix = self.matrix[: sum(self.lengths)]

    @property
    def width(self) -> int:
        """Number of columns of the matrix."""
        return self.matrix.shape[1]

    def spans(self, arm: Arm, batch: int) -> tuple[Tensor, Tensor]:
        """Return, for each of the `batch` places in a batch, start and length of its table in the matrix (B,)."""
        self._check(*arm.tables, arm.real)
        counts = torch.tensor(arm.counts(batch))
        starts = torch.tensor([self.starts[table] for table in arm.tables]).repeat_interleave(counts)
        lengths = torch.tensor([self.lengths[table] for table in arm.tables]).repeat_interleave(counts)
        return starts.to(self.device), lengths.to(self.device)

    def standard(self, table: int) -> tuple[Tensor, Tensor]:
        """Return mean (O,) and standard deviation plus 1e-3 (O,) of a table's observations."""
        self._check(table)
        observations = self.matrix[self.starts[table] :][: self.lengths[table], : self.observation_size]
        mean = observations.mean(0, dtype=torch.float64).float()
        std = (observations - mean).square_().mean(0, dtype=torch.float64).sqrt_().float()
        if not bool(std.isfinite().all()):
            raise DataError(
                "the observations are too large to be normalized, because their squares overflow float32: scale them, "
                "or set agent.normalize to False"
            )
        return mean, std + _LEAST_STD

    def placed(self, observation: Tensor, elsewhere: float) -> Tensor:
        """Return rows (S, 1, width) with `observation` (S, O) as observation and as next observation.

        The other columns are filled with `elsewhere`.
        """
        row = observation.new_full((len(observation), 1, self.width), elsewhere)
        row[:, 0, : self.observation_size] = observation
        following = self.observation_size + self.action_size + 2
        row[:, 0, following : following + self.observation_size] = observation
        return row

    def batch(self, rows: Tensor) -> Batch:
        """Return rows (S, B, width) as a `Batch`."""
        return Batch.of(rows, self.observation_size, self.action_size)

    def _bound(self, name: str, value: ArrayLike | None, default: float) -> Tensor:
        """Return an action bound (A,), checked."""
        bound = torch.full((self.action_size,), default) if value is None else _column(value)
        if bound.shape != (self.action_size,) or not bool(bound.isfinite().all()):
            raise DataError(f"{name} must be {self.action_size} finite numbers, got {bound.tolist()}")
        return bound.to(self.device)

    def _measure(self, table: Table, low: ArrayLike | None, high: ArrayLike | None) -> None:
        """Set the sizes from the first table, and the action bounds."""
        first = _column(table.observation), _column(table.action)
        if first[0].dim() != 2 or first[1].dim() != 2:
            shapes = " and ".join(str(tuple(column.shape)) for column in first)
            raise DataError(f"expected observations (N, O) and continuous actions (N, A), got {shapes}")
        self.observation_size, self.action_size = (column.shape[1] for column in first)
        self.low, self.high = self._bound("low", low, -1.0), self._bound("high", high, 1.0)
        if not bool((self.low < self.high).all()):
            raise DataError(f"every action needs low < high, got {self.low.tolist()} and {self.high.tolist()}")

    def _append(self, table: Table) -> None:
        """Copy a table into the matrix, and check its values."""
        index, start, count = len(self.lengths), sum(self.lengths), len(table.reward)
        called = f"the {self._names[index]} rows" if index < len(self._names) else f"table {index}"
        if count == 0:
            raise DataError(f"no rows in {called}: expected at least one")
        if start + count > len(self.matrix):
            self.matrix = torch.cat([self.matrix[:start], self.matrix.new_empty(count, self.width)])
        self.starts.append(start)
        self.lengths.append(count)
        into = self.batch(self.matrix[start : start + count])
        for name in ("observation", "action", "reward", "next_observation", "terminal"):
            column, place = _column(getattr(table, name)), getattr(into, name)
            if column.shape != place.shape:
                shapes = f"{tuple(place.shape)}, got {tuple(column.shape)}"
                raise DataError(f"{name} of {called}, which has {count} rewards, must have shape {shapes}")
            place.copy_(column)
            if not bool(place.isfinite().all()):
                raise DataError(f"{name} of {called} has values that are not finite numbers in float32")
        if not bool(((into.terminal == 0) | (into.terminal == 1)).all()):
            raise DataError(f"terminal of {called} must be 0 or 1 in every row")
        self._scale("actions", into.action, called)
        extra: Mapping[str, Any] = getattr(table, "extra", {})
        if "discount" in extra and into.discount is None:
            raise ConfigError(
                f"{called} has an extra column discount: build the rows with discount=0.99, which the other tables use"
            )
        if into.discount is not None:
            into.discount.copy_(_column(extra.get("discount", np.full(count, self.discount))))
        if into.next_action is not None and into.next_known is not None:
            self._set_next_actions(into, into.next_action, into.next_known, table, called)

    def _set_next_actions(self, rows: Batch, action: Tensor, known: Tensor, table: Table, called: str) -> None:
        """Set the next actions of a table's rows (scaled), and which of them are known. See `Rows`."""
        given = getattr(table, "extra", {}).get("next_action")
        if given is not None:
            action.copy_(_column(given))
            self._scale("next actions", action, called)
            known.fill_(1)
            return
        linked = (rows.next_observation[:-1] == rows.observation[1:]).all(1) & (rows.terminal[:-1] == 0)
        timeout = getattr(table, "timeout", None)
        if timeout is not None:
            linked &= _column(timeout).to(self.device)[:-1] == 0
        action.zero_()
        action[:-1] = rows.action[1:] * linked.unsqueeze(1)
        known.zero_()
        known[:-1] = linked.float()

    def _scale(self, name: str, action: Tensor, called: str) -> None:
        """Scale actions to [-1, 1] in place, and check that they are within their bounds."""
        action.sub_(self.low).mul_(2 / (self.high - self.low)).sub_(1)
        if bool((action.abs() > 1 + 1e-4).any()):
            bounds = f"{self.low.tolist()} and {self.high.tolist()}"
            raise DataError(
                f"{name} of {called} leave the bounds {bounds}: clip them, or set the right bounds with low and high, "
                "an action space in the data, or an environment id"
            )

    def _check(self, *tables: int) -> None:
        """Raise an error if a table does not exist."""
        for table in tables:
            if not 0 <= table < len(self.lengths):
                raise ConfigError(
                    f"an arm uses table {table}, but there are {len(self.lengths)} tables, counted from 0"
                )


def _column(values: Any) -> Tensor:
    """Return an array or tensor as a float32 tensor."""
    column = values if isinstance(values, Tensor) else torch.from_numpy(np.require(values, requirements="W"))
    return column.to(torch.float32)

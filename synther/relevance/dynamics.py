"""An ensemble of small networks that learns what follows an observation and an action, from real rows.

One part learns p(s' | s, a), the other p(r, terminal | s, a, s'). Both give distributions, so noise stays noise. The
ensemble draws outcomes, says how consistent other rows are, and gives rows another reward and terminal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, TypedDict

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from synther import compute
from synther.data.checks import check_rows
from synther.data.episodes import episode_ids
from synther.data.kinds import Binary, Bounded, Categorical, Codebook, Continuous, Kind, OneHot, Spiked
from synther.data.layout import Layout
from synther.data.transitions import ROW_FIELDS, Transitions
from synther.errors import DataError
from synther.plain import whole_seed
from synther.progress import Progress, resolve
from synther.relevance import conditional
from synther.relevance.conditional import Law, Networks, Outputs
from synther.relevance.consistency import Consistency, Filter, Tails, check_keep
from synther.schema import checked

log = logging.getLogger(__name__)

Array = NDArray[Any]
Outcomes = Callable[[Array, Array, int], Transitions]
"""Of observations, actions and a seed: rows with these, and outcomes that were drawn for them."""

MEMBERS, WIDTH, DEPTH = 5, 128, 2
MOST_COLUMNS = 4_096
"""Columns of the rows, a category as one for each of its values, beyond which there is no ensemble."""

SELECTING, MEASURING, MOST_HELD_OUT, FEWEST_EPISODES = 0.05, 0.1, 20_000, 20
"""Shares of the rows that tell when a fit is best, and by which other rows are then measured; the most of either; and
from how many episodes on they are whole ones."""

_HELD_OUT = SELECTING + MEASURING
_FEWEST_ROWS = 20  # below which the same rows serve for everything
_MOST_NUMBERS = 50_000_000  # in memory; more rows than fit are drawn from at random
_FEWEST_LEARNED = 20_000  # but as many as these are always learned from
_CHUNK = 1 << 15
_LIMIT = 10.0  # standard deviations at which inputs are cut,
_TARGET_LIMIT = 15.0  # and targets that are learned from
_STILL = 1e-6  # a column whose changes are smaller than this share of its own size never changes,
_STILL_UNIT = 1e-2  # and its changes are measured in this share


@dataclass(frozen=True)
class Part:
    """Columns of the layout's matrix by what they hold, in the order of the targets of a network."""

    real: tuple[int, ...]
    flags: tuple[int, ...]
    choices: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, layout: Layout, *fields: str) -> Part:
        real: list[int] = []
        flags: list[int] = []
        choices: list[tuple[int, ...]] = []
        start = 0
        for field in ROW_FIELDS:
            for kind in getattr(layout, field):
                columns = tuple(range(start, start + kind.matrix_width))
                start += len(columns)
                if field not in fields or not columns:
                    continue
                if kind.scaled:
                    real += columns
                elif isinstance(kind, Binary):
                    flags += columns
                else:
                    choices.append(columns)
        return cls(tuple(real), tuple(flags), tuple(choices))

    @property
    def columns(self) -> list[int]:
        return [*self.real, *self.flags, *(column for group in self.choices for column in group)]

    @property
    def outputs(self) -> Outputs:
        return Outputs(len(self.real), len(self.flags), tuple(map(len, self.choices)))

    def names(self, layout: Layout) -> list[str]:
        """One name for each real number, flag and category."""
        firsts = [*self.real, *self.flags, *(group[0] for group in self.choices)]
        return [layout.names[column].partition("=")[0].partition("#")[0] for column in firsts]


@dataclass(frozen=True, eq=False)
class Units:
    """Mean and standard deviation of every column of the matrix, and of the changes of observations (D,)."""

    mean: Array
    std: Array
    change_mean: Array
    change_std: Array

    @classmethod
    def of(cls, matrix: Array, layout: Layout) -> Units:
        with np.errstate(over="ignore", invalid="ignore"):
            mean, std = matrix.mean(0), matrix.std(0)
            change = matrix - matrix[:, layout.twins]
            change_mean, change_std = change.mean(0), change.std(0)
        if not (np.isfinite(std).all() and np.isfinite(change_std).all()):
            name = layout.names[int(np.argmin(np.isfinite(std) & np.isfinite(change_std)))]
            raise DataError(f"{name} is too large for an ensemble: divide it, or fit without one")
        coded = ~layout.scaled_columns
        std = np.where(coded | (std == 0), 1.0, std)
        still = change_std <= _STILL * std
        return cls(np.where(coded, 0.0, mean), std, change_mean, np.where(still, _STILL_UNIT * std, change_std))

    def arrays(self) -> dict[str, Array]:
        return vars(self)


class Ensemble:
    """`Ensemble.fit(rows)`: networks that predict what follows an observation and an action.

    Continuous and discrete actions and observations are supported, and any mixture: real numbers and ordered integers
    are normally distributed given (s, a), categories and flags have a probability each. Real numbers are predicted
    independently of each other given (s, a), and with a single peak: outcomes with two peaks are drawn as one wide one.
    """

    def __init__(
        self,
        layout: Layout,
        units: Units,
        transition: Networks | None,
        label: Networks | None,
        consistency: Consistency,
        held_out_loss: float,
        terminal_rate: float,
    ) -> None:
        self.terminal_rate = terminal_rate
        self.layout, self.units, self.consistency = layout, units, consistency
        self.transition, self.label, self.held_out_loss = transition, label, held_out_loss
        self._following, self._labels = Part.of(layout, "next_observation"), Part.of(layout, "reward", "terminal")
        self._given = [column for column, field in enumerate(layout.fields) if field in ("observation", "action")]

    @classmethod
    def fit(
        cls,
        rows: Transitions,
        *,
        layout: Layout | None = None,
        members: int = MEMBERS,
        width: int = WIDTH,
        depth: int = DEPTH,
        steps: int | None = None,
        seed: int = 0,
        device: str | torch.device = "auto",
        progress: Progress | bool = True,
    ) -> Ensemble:
        """Learn from `rows`. `layout` is that of a model of the same rows. The same seed gives the same networks.

        Some rows are held out, in whole episodes where at least 20 are known: 5 %, on which the networks with the
        smallest loss are chosen, and another 10 %, by which `scores` measures other rows. Fewer than 20 rows serve for
        all three.
        """
        check_rows(rows)
        seed, progress = whole_seed(seed), resolve(progress)
        where = compute.pick_device(str(device))
        plain = plain_layout(Layout.infer(rows) if layout is None else layout)
        if plain.width > MOST_COLUMNS:
            raise DataError(
                f"these rows have {plain.width:,} columns, a category as one for each of its values: an ensemble is "
                f"fitted on at most {MOST_COLUMNS:,}. Fit without an ensemble, or merge rare categories"
            )
        learned, selecting, measuring = _split(rows, plain.width, seed)
        matrix, asked = plain.pack(rows[np.concatenate([learned, selecting])]), plain.pack(rows[measuring])
        held_out = torch.arange(len(matrix), device=where) >= len(learned)
        units = Units.of(matrix[: len(learned)], plain)
        nothing, rate = Tails(np.empty((0, 0)), 0), float(rows.terminal.mean())
        unfitted = cls(plain, units, None, None, Consistency(nothing, nothing), 0.0, rate)
        parts = [part for part in (unfitted._following, unfitted._labels) if part.columns]
        if not parts:
            raise DataError("next observations, rewards and terminals of these rows are all constant: nothing to learn")
        steps = conditional.steps_for(len(learned)) if steps is None else steps
        losses = []
        advice = "fit on a share of the rows, or on a CPU"
        with progress.phase("ensemble", len(parts) * steps) as phase, compute.working_on(where, advice):
            for number, part in enumerate(parts):
                inputs = unfitted._inputs(matrix, part).to(where)
                targets = unfitted._targets(matrix, part).clamp(-_TARGET_LIMIT, _TARGET_LIMIT).to(where)
                source = compute.generator(torch.device("cpu"), 12, seed, number)
                fresh = Networks.fresh(inputs.shape[1], part.outputs, members, width, depth, source)
                fitted, loss = conditional.fit(fresh, inputs, targets, held_out, steps=steps, seed=seed, phase=phase)
                losses.append(loss)
                if part is unfitted._following:
                    unfitted.transition = fitted
                else:
                    unfitted.label = fitted
        consistency = Consistency.of(unfitted._surprises(asked))
        return cls(plain, units, unfitted.transition, unfitted.label, consistency, sum(losses), rate)

    @property
    def names(self) -> tuple[str, ...]:
        """The outcomes: real columns, flags and categories of next observations, then of reward and terminal."""
        return (*self._following.names(self.layout), *self._labels.names(self.layout))

    @property
    def members(self) -> int:
        return self._networks[0].members

    @property
    def parameters(self) -> int:
        return sum(networks.parameters for networks in self._networks)

    @property
    def _networks(self) -> list[Networks]:
        return [networks for networks in (self.transition, self.label) if networks is not None]

    @property
    def _device(self) -> torch.device:
        return self._networks[0].device

    def to(self, device: torch.device) -> Self:
        for networks in self._networks:
            networks.to(device)
        return self

    def __repr__(self) -> str:
        return f"Ensemble({self.members} members, {self.parameters:,} parameters, on {self._device})"

    def scores(self, rows: Transitions, seed: int = 0) -> tuple[Array, Array]:
        """How inconsistent each row is, and the number of the outcome (of `names`) that is most so, both (N,).

        A score is -log of the share of held-out real rows that are at most as consistent: 0 to infinity, 1 on average
        for real rows.
        """
        draw = np.random.default_rng([13, whole_seed(seed)])
        surprises = np.concatenate([self._surprises(self.layout.pack(chunk)) for chunk in rows.chunks(_CHUNK)])
        return self.consistency.scores(surprises, draw.random(len(rows)))

    def filter(self, rows: Transitions, keep: float, seed: int = 0) -> Filter:
        """What keeps this share of rows like `rows`, those that are less consistent than real rows least of all."""
        scores, _ = self.scores(rows, seed)
        return Filter.of(scores, rows.terminal, check_keep(keep), self.consistency.rows, self.terminal_rate)

    def outcomes(self, observation: ArrayLike, action: ArrayLike, seed: int = 0) -> Transitions:
        """Rows with these observations (N, O) and actions (N, A) or (N,), and outcomes that a random member draws."""
        rows = self._with_outcomes(observation, action)
        source = compute.generator(self._device, 14, whole_seed(seed))
        return Transitions.concatenate([self._drawn(chunk, source) for chunk in rows.chunks(_CHUNK)])

    def relabelled(self, rows: Transitions, seed: int = 0) -> Transitions:
        """`rows` with the reward and terminal of the ensemble: drawn given (s, a, s') from the mean of its members,
        with the noise that they see in real rows."""
        if self.label is None:
            return rows
        source = compute.generator(self._device, 15, whole_seed(seed))
        parts = []
        for chunk in rows.chunks(_CHUNK):
            matrix = self.layout.pack(chunk)
            self._fill(matrix, self._labels, self._law(matrix, self._labels).average(), source)
            made = self.layout.unpack(matrix)
            parts.append(replace(chunk, reward=made.reward, terminal=made.terminal))
        return Transitions.concatenate(parts)

    def _with_outcomes(self, observation: ArrayLike, action: ArrayLike) -> Transitions:
        """Rows of these observations and actions with some outcome that the layout can pack."""
        here, acted = np.asarray(observation), np.asarray(action)
        blank = self.layout.unpack(np.zeros((len(here), self.layout.width)))
        if here.shape != blank.observation.shape or len(acted) != len(here):
            raise DataError(
                f"observation has shape {here.shape} and action {acted.shape}: expected as many rows of both, and "
                f"{blank.observation.shape[1]} columns of observations"
            )
        return replace(blank, observation=here.astype(blank.observation.dtype), action=acted)

    def _drawn(self, rows: Transitions, source: torch.Generator) -> Transitions:
        matrix = self.layout.pack(rows)
        member = torch.randint(self.members, (len(rows),), generator=source, device=self._device)
        for part in (self._following, self._labels):
            if part.columns:
                self._fill(matrix, part, self._law(matrix, part).of(member), source)
        return replace(self.layout.unpack(matrix), observation=rows.observation, action=rows.action)

    def _law(self, matrix: Array, part: Part) -> Law:
        networks = self.transition if part is self._following else self.label
        assert networks is not None
        return networks.law(self._inputs(matrix, part).to(networks.device))

    def _inputs(self, matrix: Array, part: Part) -> Tensor:
        """What is known when `part` follows: s and a, and for reward and terminal also s' and s' - s. (N, I)"""
        units = self.units
        scaled = (matrix - units.mean) / units.std
        columns = [scaled[:, self._given]]
        if part is self._labels:
            following = self._following
            columns += [scaled[:, following.columns], self._changes(matrix, following.real)]
        return torch.from_numpy(np.clip(np.concatenate(columns, 1), -_LIMIT, _LIMIT).astype(np.float32))

    def _targets(self, matrix: Array, part: Part) -> Tensor:
        """(N, columns)"""
        units, real = self.units, list(part.real)
        numbers = (matrix[:, real] - units.mean[real]) / units.std[real]
        if part is self._following:
            numbers = self._changes(matrix, part.real)
        rest = matrix[:, part.columns[len(real) :]] > 0  # flags are 0 and 1, codes -1 and 1
        return torch.from_numpy(np.concatenate([numbers, rest], 1).astype(np.float32))

    def _changes(self, matrix: Array, real: tuple[int, ...]) -> Array:
        units, columns = self.units, list(real)
        before = matrix[:, [self.layout.twins[column] for column in columns]]
        changes: Array = (matrix[:, columns] - before - units.change_mean[columns]) / units.change_std[columns]
        return changes

    def _fill(self, matrix: Array, part: Part, law: Law, source: torch.Generator) -> None:
        """Put drawn targets into the columns of `part`."""
        drawn = law.draw(source).double().cpu().numpy()
        units, real = self.units, list(part.real)
        numbers = drawn[:, : len(real)]
        if part is self._following:
            before = matrix[:, [self.layout.twins[column] for column in real]]
            matrix[:, real] = before + numbers * units.change_std[real] + units.change_mean[real]
        else:
            matrix[:, real] = numbers * units.std[real] + units.mean[real]
        flags = len(real) + len(part.flags)
        matrix[:, list(part.flags)] = drawn[:, len(real) : flags]
        matrix[:, part.columns[flags:]] = 2 * drawn[:, flags:] - 1

    def _surprises(self, matrix: Array) -> Array:
        """How unusual each outcome is given what came before it. (N, C)"""
        found = []
        for part in (self._following, self._labels):
            if part.columns:
                law = self._law(matrix, part).mixture()
                found.append(law.surprises(self._targets(matrix, part).to(law.mean.device)).double().cpu().numpy())
        return np.concatenate(found, 1)

    def to_json(self) -> dict[str, Any]:
        """What a file needs beside `tensors` and the layout."""
        rows = {"real_rows": self.consistency.rows, "terminal_rate": self.terminal_rate}
        fitted = {"members": self.members, "parameters": self.parameters, "held_out_loss": self.held_out_loss}
        return {**fitted, **rows}

    def tensors(self) -> dict[str, Tensor]:
        named = {"transition": self.transition, "label": self.label}
        tensors = {
            f"{part}.{name}": tensor
            for part, networks in named.items()
            if networks is not None
            for name, tensor in networks.tensors().items()
        }
        arrays = {f"units.{name}": array for name, array in self.units.arrays().items()}
        arrays |= {f"consistency.{name}": array for name, array in self.consistency.arrays().items()}
        return tensors | {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}

    @classmethod
    def restored(cls, layout: Layout, entry: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Ensemble:
        """The ensemble of a file, on the CPU; `layout` may be that of its model."""
        told = checked(entry, _Entry, "ensemble")
        plain = plain_layout(layout)
        groups: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            group, _, rest = name.partition(".")
            groups.setdefault(group, {})[rest] = tensor
        units = Units(**{name: tensor.numpy() for name, tensor in groups["units"].items()})
        parts = {"transition": ("next_observation",), "label": ("reward", "terminal")}
        networks = {
            name: Networks.restored(Part.of(plain, *fields).outputs, groups[name]) if name in groups else None
            for name, fields in parts.items()
        }
        tails = groups["consistency"]
        rows = told["real_rows"]
        consistency = Consistency(*(Tails(tails[name].numpy(), rows) for name in ("columns", "total")))
        loss, rate = told["held_out_loss"], told["terminal_rate"]
        found = cls(plain, units, networks["transition"], networks["label"], consistency, loss, rate)
        if {len(array) for array in units.arrays().values()} != {plain.width} or len(tails["columns"]) != len(
            found.names
        ):
            raise ValueError("its ensemble does not fit its columns")
        return found


class _Entry(TypedDict):
    real_rows: int
    held_out_loss: float
    terminal_rate: float


@dataclass(frozen=True)
class OneStep:
    """How well outcomes are predicted, in standard deviations of the real changes; columns that never change are left
    out. Lower errors are better; the spread should be that of the real outcomes."""

    error: float
    """Root mean square distance of the mean of the drawn next observations from the real ones."""
    spread: float
    """Root mean square standard deviation of the drawn next observations around their mean."""
    reward_error: float
    reward_spread: float


def one_step(outcomes: Outcomes, rows: Transitions, *, draws: int = 8, seed: int = 0) -> OneStep:
    """One-step error and spread of anything that draws outcomes for given observations and actions, on real rows that
    it has not learned from: `one_step(ensemble.outcomes, held_out)`."""
    if draws < 2:
        raise DataError(f"draws must be at least 2 to measure a spread, got {draws}")
    drawn = [outcomes(rows.observation, rows.action, seed + number) for number in range(draws)]
    figures: list[float] = []
    truth = rows.next_observation.astype(np.float64)
    for found, real, size in (
        ([each.next_observation for each in drawn], truth, (truth - rows.observation).std(0)),
        ([each.reward[:, None] for each in drawn], rows.reward[:, None].astype(np.float64), rows.reward.std()[None]),
    ):
        varies = size > 0
        stack = np.stack(found).astype(np.float64)[:, :, varies] / size[varies]
        error = np.square(stack.mean(0) - real[:, varies] / size[varies])
        spread = stack.var(0, ddof=1)
        figures += [float(np.sqrt(part.mean())) if varies.any() else 0.0 for part in (error, spread)]
    return OneStep(*figures)


def plain_layout(layout: Layout) -> Layout:
    """The same rows, without extra columns, as a matrix in which every column is a number, a flag or part of a one-hot
    code."""

    def plain(kind: Kind) -> Kind:
        if isinstance(kind, Spiked):
            return Bounded(kind.low, kind.high)
        return replace(kind, coding="onehot") if isinstance(kind, (Categorical, OneHot, Codebook)) else kind

    kinds: dict[str, Any] = {field: tuple(map(plain, getattr(layout, field))) for field in ROW_FIELDS}
    if layout.formula is not None:
        kinds["reward"] = (Continuous(),)
    return replace(layout, **kinds, extra=(), formula=None)


def _split(rows: Transitions, width: int, seed: int) -> tuple[Array, Array, Array]:
    """Numbers of the rows to learn from, of those that tell when a fit is best, and of those to measure others by."""
    count, draw = len(rows), np.random.default_rng([16, seed])
    if count < _FEWEST_ROWS:
        return np.arange(count), np.arange(0), np.arange(count)
    ids = episode_ids(rows)
    if ids is None or ids[-1] + 1 < FEWEST_EPISODES:
        ids = np.arange(count)
    order = draw.permutation(ids[-1] + 1)
    before = np.empty(len(order))
    before[order] = np.cumsum(np.bincount(ids)[order])  # rows of an episode and of those ahead of it in the order
    share = before[ids] / count
    # The first of a share may be longer than the share: it is not left empty.
    first, second = (max(limit, float(np.unique(share)[number])) for number, limit in ((0, SELECTING), (1, _HELD_OUT)))
    parts = share <= first, (share > first) & (share <= second), share > second
    most = max(_FEWEST_LEARNED, _MOST_NUMBERS // max(width, 1))
    chosen = []
    for part, limit in zip(parts, (MOST_HELD_OUT, MOST_HELD_OUT, most), strict=True):
        numbers = np.flatnonzero(part)
        chosen.append(numbers if len(numbers) <= limit else np.sort(draw.choice(numbers, limit, replace=False)))
    return chosen[2], chosen[0], chosen[1]

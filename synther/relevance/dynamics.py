"""`Ensemble`: small networks that learn the dynamics from real rows, as distributions.

One part learns p(s' | s, a), the other p(r, terminal | s, a, s'). Because both predict distributions, outcomes that are
random in the real rows stay random. The ensemble can draw outcomes for given observations and actions, measure how
consistent other rows are, and replace rewards and terminals.

Read `Ensemble.fit` first, then `scores` (consistency), `outcomes` and `relabelled` (drawing). `Part` and `Units` say
which columns are predicted and how they are scaled. `one_step` measures the prediction error of any such model.
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
from synther.data.kind import by_column
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
"""A function of observations, actions and a seed. It returns rows with these observations and actions, and with
outcomes that were drawn for them."""

MEMBERS, WIDTH, DEPTH = 5, 128, 2
"""Default number of members, and width and number of the hidden layers of their networks."""
MOST_COLUMNS = 4_096
"""Maximum number of columns for an ensemble. A category counts as one column for each of its values."""

SELECTING, MEASURING, MOST_HELD_OUT, FEWEST_EPISODES = 0.05, 0.1, 20_000, 20
"""Share of the rows on which the best weights are selected, share of the rows with which other rows are compared, and
maximum number of rows of each. With at least FEWEST_EPISODES episodes, whole episodes are held out."""

_HELD_OUT = SELECTING + MEASURING
_FEWEST_ROWS = 20  # with fewer rows, all rows are used for everything
_MOST_NUMBERS = 50_000_000  # if rows times columns is larger, the ensemble learns from a random sample of the rows
_FEWEST_LEARNED = 20_000  # minimum size of this sample
_CHUNK = 1 << 15  # number of rows that are computed together
_LIMIT = 10.0  # number of standard deviations at which inputs are clipped
_TARGET_LIMIT = 15.0  # number of standard deviations at which targets are clipped during the fit
_STILL = 1e-6  # a column is constant within rows if the std of its changes is at most this share of its own std
_STILL_UNIT = 1e-2  # changes of such a column are scaled by this share of its own std


@dataclass(frozen=True)
class Part:
    """The targets of one network: numbers of columns of the layout's matrix, by kind, in the order of the targets."""

    real: tuple[int, ...]
    flags: tuple[int, ...]
    choices: tuple[tuple[int, ...], ...]
    """The one-hot columns of each category."""

    @classmethod
    def of(cls, layout: Layout, *fields: str) -> Part:
        """Return the columns of these fields."""
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
        """Return one name for each real number, flag and category."""
        firsts = [*self.real, *self.flags, *(group[0] for group in self.choices)]
        return [layout.names[column].partition("=")[0].partition("#")[0] for column in firsts]


@dataclass(frozen=True, eq=False)
class Units:
    """Mean and standard deviation of each column of the matrix, and of its changes within a row. Each is (D,).

    The change of a next observation is its difference from the observation.
    """

    mean: Array
    std: Array
    change_mean: Array
    change_std: Array

    @classmethod
    def of(cls, matrix: Array, layout: Layout) -> Units:
        """Measure the units in the rows of `matrix` (N, D)."""
        with np.errstate(over="ignore", invalid="ignore"):
            mean, std = matrix.mean(0), matrix.std(0)
            change = matrix - matrix[:, layout.twins]
            change_mean, change_std = change.mean(0), change.std(0)
        if not (np.isfinite(std).all() and np.isfinite(change_std).all()):
            name = layout.names[int(np.argmin(np.isfinite(std) & np.isfinite(change_std)))]
            raise DataError(
                f"the values of {name} are too large for an ensemble: divide them by a constant, or fit without an "
                "ensemble"
            )
        coded = ~layout.scaled_columns
        std = np.where(coded | (std == 0), 1.0, std)
        still = change_std <= _STILL * std
        return cls(np.where(coded, 0.0, mean), std, change_mean, np.where(still, _STILL_UNIT * std, change_std))

    def arrays(self) -> dict[str, Array]:
        return vars(self)


class Ensemble:
    """Networks that predict the outcomes of observations and actions. Create one with `Ensemble.fit(rows)`.

    Continuous and discrete actions and observations are supported, and any mixture of them. Real numbers and ordered
    integers are predicted as normal distributions given (s, a), and categories and flags as probabilities of their
    values. Real numbers are predicted independently of each other given (s, a). An outcome with two peaks is drawn from
    one wide peak, because a normal distribution has only one.
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
        self._next, self._labels = Part.of(layout, "next_observation"), Part.of(layout, "reward", "terminal")
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
        """Fit an ensemble to `rows`. `layout` may be the layout of a model of the same rows. The same seed gives the
        same networks.

        Some rows are held out: 5 % to select the weights with the lowest loss, and another 10 % with which `scores`
        compares other rows. Whole episodes are held out if at least 20 episodes are known. With fewer than 20 rows, all
        rows are used for everything.
        """
        check_rows(rows)
        seed, progress = whole_seed(seed), resolve(progress)
        torch_device = compute.pick_device(str(device))
        plain = plain_layout(Layout.infer(rows) if layout is None else layout)
        if plain.width > MOST_COLUMNS:
            raise DataError(
                f"an ensemble supports at most {MOST_COLUMNS:,} columns, but these rows have {plain.width:,} (a "
                "category has one for each of its values): fit without an ensemble, or merge rare categories"
            )
        learned, selecting, measuring = _split(rows, plain.width, seed)
        matrix, measured = plain.pack(rows[np.concatenate([learned, selecting])]), plain.pack(rows[measuring])
        held_out = torch.arange(len(matrix), device=torch_device) >= len(learned)
        units = Units.of(matrix[: len(learned)], plain)
        empty, rate = Tails(np.empty((0, 0)), 0), float(rows.terminal.mean())
        ensemble = cls(plain, units, None, None, Consistency(empty, empty), 0.0, rate)
        parts = [part for part in (ensemble._next, ensemble._labels) if part.columns]
        if not parts:
            raise DataError("next observations, rewards and terminals of these rows are all constant: nothing to learn")
        steps = conditional.steps_for(len(learned)) if steps is None else steps
        losses = []
        advice = "fit on a share of the rows, or on a CPU"
        with progress.phase("ensemble", len(parts) * steps) as phase, compute.working_on(torch_device, advice):
            for number, part in enumerate(parts):
                inputs = ensemble._inputs(matrix, part).to(torch_device)
                targets = ensemble._targets(matrix, part).clamp(-_TARGET_LIMIT, _TARGET_LIMIT).to(torch_device)
                source = compute.generator(torch.device("cpu"), 12, seed, number)
                fresh = Networks.fresh(inputs.shape[1], part.outputs, members, width, depth, source)
                fitted, loss = conditional.fit(fresh, inputs, targets, held_out, steps=steps, seed=seed, phase=phase)
                losses.append(loss)
                if part is ensemble._next:
                    ensemble.transition = fitted
                else:
                    ensemble.label = fitted
        ensemble.consistency, ensemble.held_out_loss = Consistency.of(ensemble._surprises(measured)), sum(losses)
        return ensemble

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the outcomes: real columns, flags and categories of next observations, then of reward and
        terminal."""
        return (*self._next.names(self.layout), *self._labels.names(self.layout))

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
        """Return how inconsistent each row is, and the number of its most inconsistent outcome (in `names`), both (N,).

        A score is -log of the share of held-out real rows that are at most as consistent as this row. It ranges from 0
        to infinity. Its mean over real rows is 1.
        """
        draw = np.random.default_rng([13, whole_seed(seed)])
        surprises = np.concatenate([self._surprises(self.layout.pack(chunk)) for chunk in rows.chunks(_CHUNK)])
        return self.consistency.scores(surprises, draw.random(len(rows)))

    def filter(self, rows: Transitions, keep: float, seed: int = 0) -> Filter:
        """Fit a filter that keeps a share `keep` of rows like the generated `rows`. Rows that are less consistent than
        real rows are discarded first."""
        scores, _ = self.scores(rows, seed)
        return Filter.of(scores, rows.terminal, check_keep(keep), self.consistency.rows, self.terminal_rate)

    def outcomes(self, observation: ArrayLike, action: ArrayLike, seed: int = 0) -> Transitions:
        """Return rows with these observations (N, O) and actions (N, A) or (N,), and with outcomes that a random member
        draws for each row."""
        rows = self._with_outcomes(observation, action)
        source = compute.generator(self._device, 14, whole_seed(seed))
        return Transitions.concatenate([self._drawn(chunk, source) for chunk in rows.chunks(_CHUNK)])

    def relabelled(self, rows: Transitions, seed: int = 0) -> Transitions:
        """Replace the reward and terminal of `rows` by draws from p(r, terminal | s, a, s'), averaged over the members.
        The draws are as random as outcomes are in real rows."""
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
        """Return rows with these observations and actions, and with any outcomes that the layout can pack."""
        observations, actions = np.asarray(observation), np.asarray(action)
        blank = self.layout.unpack(np.zeros((len(observations), self.layout.width)))
        if observations.shape != blank.observation.shape or len(actions) != len(observations):
            raise DataError(
                "expected observations and actions for the same number of rows, and observations with "
                f"{blank.observation.shape[1]} columns, got observation of shape {observations.shape} and action of "
                f"shape {actions.shape}"
            )
        return replace(blank, observation=observations.astype(blank.observation.dtype), action=actions)

    def _drawn(self, rows: Transitions, source: torch.Generator) -> Transitions:
        """Draw outcomes for the observations and actions of `rows`."""
        matrix = self.layout.pack(rows)
        member = torch.randint(self.members, (len(rows),), generator=source, device=self._device)
        for part in (self._next, self._labels):
            if part.columns:
                self._fill(matrix, part, self._law(matrix, part).of(member), source)
        return replace(self.layout.unpack(matrix), observation=rows.observation, action=rows.action)

    def _law(self, matrix: Array, part: Part) -> Law:
        """Predict the distribution of `part` for the rows of `matrix`."""
        networks = self.transition if part is self._next else self.label
        assert networks is not None
        return networks.law(self._inputs(matrix, part).to(networks.device))

    def _inputs(self, matrix: Array, part: Part) -> Tensor:
        """Return the scaled inputs of the networks of `part`: s and a, and for reward and terminal also s' and s' - s.
        (N, I)"""
        units = self.units
        scaled = (matrix - units.mean) / units.std
        columns = [scaled[:, self._given]]
        if part is self._labels:
            columns += [scaled[:, self._next.columns], self._changes(matrix, self._next.real)]
        return torch.from_numpy(np.clip(np.concatenate(columns, 1), -_LIMIT, _LIMIT).astype(np.float32))

    def _targets(self, matrix: Array, part: Part) -> Tensor:
        """Return the scaled targets of the networks of `part`. Of next observations, the targets are the changes.
        (N, columns)"""
        units, real = self.units, list(part.real)
        numbers = (matrix[:, real] - units.mean[real]) / units.std[real]
        if part is self._next:
            numbers = self._changes(matrix, part.real)
        rest = matrix[:, part.columns[len(real) :]] > 0  # in the matrix, flags are 0 or 1, and one-hot codes -1 or 1
        return torch.from_numpy(np.concatenate([numbers, rest], 1).astype(np.float32))

    def _changes(self, matrix: Array, real: tuple[int, ...]) -> Array:
        """Return the scaled changes s' - s of these columns of the next observation. (N, R)"""
        units, columns = self.units, list(real)
        before = matrix[:, [self.layout.twins[column] for column in columns]]
        changes: Array = (matrix[:, columns] - before - units.change_mean[columns]) / units.change_std[columns]
        return changes

    def _fill(self, matrix: Array, part: Part, law: Law, source: torch.Generator) -> None:
        """Draw targets from `law`, and write them to the columns of `part` in `matrix`, unscaled."""
        drawn = law.draw(source).double().cpu().numpy()
        units, real = self.units, list(part.real)
        numbers = drawn[:, : len(real)]
        if part is self._next:
            before = matrix[:, [self.layout.twins[column] for column in real]]
            matrix[:, real] = before + numbers * units.change_std[real] + units.change_mean[real]
        else:
            matrix[:, real] = numbers * units.std[real] + units.mean[real]
        flags = len(real) + len(part.flags)
        matrix[:, list(part.flags)] = drawn[:, len(real) : flags]
        matrix[:, part.columns[flags:]] = 2 * drawn[:, flags:] - 1

    def _surprises(self, matrix: Array) -> Array:
        """Return how unusual each outcome of a row is, given the inputs of its network. See `Law.surprises`. (N, C)"""
        surprises = []
        for part in (self._next, self._labels):
            if part.columns:
                law = self._law(matrix, part).mixture()
                surprises.append(law.surprises(self._targets(matrix, part).to(law.mean.device)).double().cpu().numpy())
        return np.concatenate(surprises, 1)

    def to_json(self) -> dict[str, Any]:
        """Return everything that a file needs besides `tensors` and the layout."""
        rows = {"real_rows": self.consistency.rows, "terminal_rate": self.terminal_rate}
        fitted = {"members": self.members, "parameters": self.parameters, "held_out_loss": self.held_out_loss}
        return {**fitted, **rows}

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors for a file."""
        tensors: dict[str, Tensor] = {}
        for part, networks in (("transition", self.transition), ("label", self.label)):
            tensors |= {} if networks is None else compute.named(part, networks.tensors())
        for part, arrays in (("units", self.units.arrays()), ("consistency", self.consistency.arrays())):
            contiguous = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
            tensors |= compute.named(part, contiguous)
        return tensors

    @classmethod
    def restored(cls, layout: Layout, entry: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Ensemble:
        """Return the ensemble from the JSON `entry` and the tensors of a file, on the CPU. `layout` may be the layout
        of the model."""
        stored = checked(entry, _Entry, "ensemble")
        plain = plain_layout(layout)
        groups = compute.by_part(tensors)
        units = Units(**{name: tensor.numpy() for name, tensor in groups["units"].items()})
        parts = {"transition": ("next_observation",), "label": ("reward", "terminal")}
        networks = {
            name: Networks.restored(Part.of(plain, *fields).outputs, groups[name]) if name in groups else None
            for name, fields in parts.items()
        }
        tails = groups["consistency"]
        rows = stored["real_rows"]
        consistency = Consistency(*(Tails(tails[name].numpy(), rows) for name in ("columns", "total")))
        loss, rate = stored["held_out_loss"], stored["terminal_rate"]
        ensemble = cls(plain, units, networks["transition"], networks["label"], consistency, loss, rate)
        widths = {len(array) for array in units.arrays().values()}
        if widths != {plain.width} or len(tails["columns"]) != len(ensemble.names):
            raise ValueError("its ensemble does not match its columns")
        return ensemble


class _Entry(TypedDict):
    real_rows: int
    held_out_loss: float
    terminal_rate: float


@dataclass(frozen=True)
class OneStep:
    """Errors of predicted outcomes, in standard deviations of the real changes (and of the real rewards). Columns that
    never change are left out. Lower errors are better. The spread should be that of the real outcomes."""

    error: float
    """Root mean square distance between the mean of the drawn next observations and the real next observation."""
    spread: float
    """Root mean square standard deviation of the drawn next observations around their mean."""
    reward_error: float
    """The same error of rewards, in standard deviations of the real rewards."""
    reward_spread: float
    """The same spread of rewards, in standard deviations of the real rewards."""


def one_step(outcomes: Outcomes, rows: Transitions, *, draws: int = 8, seed: int = 0) -> OneStep:
    """Measure the one-step error and spread of a dynamics model: `one_step(ensemble.outcomes, held_out)`.

    `outcomes` is any function that draws outcomes for given observations and actions. `rows` should be real rows that
    the model was not fitted to. `draws` outcomes are drawn for each row.
    """
    if draws < 2:
        raise DataError(f"draws must be at least 2 to measure a spread, got {draws}")
    drawn = [outcomes(rows.observation, rows.action, seed + number) for number in range(draws)]
    figures: list[float] = []
    truth = rows.next_observation.astype(np.float64)
    for predicted, real, size in (
        ([each.next_observation for each in drawn], truth, (truth - rows.observation).std(0)),
        ([each.reward[:, None] for each in drawn], rows.reward[:, None].astype(np.float64), rows.reward.std()[None]),
    ):
        varies = size > 0
        stack = np.stack(predicted).astype(np.float64)[:, :, varies] / size[varies]
        error = np.square(stack.mean(0) - real[:, varies] / size[varies])
        spread = stack.var(0, ddof=1)
        figures += [float(np.sqrt(part.mean())) if varies.any() else 0.0 for part in (error, spread)]
    return OneStep(*figures)


def plain_layout(layout: Layout) -> Layout:
    """Return a layout with a simpler matrix for the same rows: each column is a number, a flag, or part of a one-hot
    code. Extra columns are left out."""

    def plain(kind: Kind) -> Kind:
        if isinstance(kind, Spiked):
            return Bounded(*kind.bounds)
        return replace(kind, coding="onehot") if isinstance(kind, (Categorical, OneHot, Codebook)) else kind

    kinds: dict[str, Any] = {field: tuple(map(plain, getattr(layout, field))) for field in ROW_FIELDS}
    if layout.held:  # next values again instead of changes, and angles without a flag
        before, after = by_column(kinds["observation"]), by_column(kinds["next_observation"])
        own = {one.column: before[one.column] if one.sine is None else Continuous() for one in layout.held}
        kinds["next_observation"] = tuple((after | own).values())
    if layout.formula is not None:
        kinds["reward"] = (Continuous(),)
    return replace(layout, **kinds, extra=(), held=(), formula=None, sparse=None)


def _split(rows: Transitions, width: int, seed: int) -> tuple[Array, Array, Array]:
    """Split the rows at random, in whole episodes if possible. Return the numbers of the rows to learn from, of the
    rows to select the best weights, and of the rows with which other rows are compared."""
    count, draw = len(rows), np.random.default_rng([16, seed])
    if count < _FEWEST_ROWS:
        return np.arange(count), np.arange(0), np.arange(count)
    ids = episode_ids(rows)
    if ids is None or ids[-1] + 1 < FEWEST_EPISODES:
        ids = np.arange(count)
    order = draw.permutation(ids[-1] + 1)
    before = np.empty(len(order))
    before[order] = np.cumsum(np.bincount(ids)[order])  # number of rows up to the end of each episode in this order
    share = before[ids] / count
    # If the first episode is longer than a share, the share still gets this episode, so that no part is empty.
    first, second = (max(limit, float(np.unique(share)[number])) for number, limit in ((0, SELECTING), (1, _HELD_OUT)))
    parts = share <= first, (share > first) & (share <= second), share > second
    most = max(_FEWEST_LEARNED, _MOST_NUMBERS // max(width, 1))
    chosen = []
    for part, limit in zip(parts, (MOST_HELD_OUT, MOST_HELD_OUT, most), strict=True):
        numbers = np.flatnonzero(part)
        chosen.append(numbers if len(numbers) <= limit else np.sort(draw.choice(numbers, limit, replace=False)))
    return chosen[2], chosen[0], chosen[1]

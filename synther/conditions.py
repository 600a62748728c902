"""Conditions: numbers about rows that a network learns from, and by which rows can be asked for.

A condition is one number for each row, such as its reward. The network sees it as a quantile, the share of rows with a
lower number, so that "the top 10 %" means the same after every fit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NotRequired, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther.data.episodes import episode_ids
from synther.data.transitions import Transitions
from synther.diffusion.edm import Guidance
from synther.errors import ConfigError, DataError, SyntherError
from synther.relevance import RELEVANCE, relevance
from synther.schema import checked

Array = NDArray[Any]

HIDDEN = 0.25
"""Probability that a condition is hidden from the network while it learns, which guidance needs."""
_KNOTS = 1001
OWN_RELEVANCE = "relevance"
"""Name of a condition whose numbers come from a function of the user's own."""
TD_ERROR = "td_error"
"""Name of a condition whose numbers come from the critics of the agent that is being trained."""
START = "start"
"""The condition that a fit adds by itself: whether a row begins an episode."""
RARE_STARTS = 0.05
"""Starts are a condition of their own only if no more than this share of the rows begin an episode."""
FEWEST_STARTS = 20
_OF_ALL_ROWS = ("return", "curiosity")
"""Relevance functions whose number of a row depends on other rows."""
_EXAMPLES = 2_048
"""Real rows whose conditions a model remembers."""
_START_SHARE, _MOST_REPEATS = 0.05, 50  # how often a fit draws starts, and how many times as often as other rows

Given = str | Array | Callable[[Transitions], Array]
"""A condition's numbers: the name of a relevance function, one number for each row, or a function that gives them."""


@dataclass(frozen=True)
class Between:
    """Rows whose condition lies between two quantiles."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= 1:
            raise ConfigError(f"expected quantiles 0 <= low < high <= 1, got {self.low} and {self.high}")

    def quantiles(self, count: int, random: np.random.Generator, scale: Scale) -> Array:
        return scale.quantiles(scale.values(random.uniform(self.low, self.high, count)))

    def to_json(self) -> list[Any]:
        return ["between", self.low, self.high]


@dataclass(frozen=True, eq=False)
class Among:
    """Rows whose condition is one of some values, drawn at random."""

    values: Array

    def __post_init__(self) -> None:
        found = np.asarray(self.values, np.float64)
        if found.ndim != 1 or not len(found) or not np.isfinite(found).all():
            raise ConfigError(f"expected the values of a condition as one or more finite numbers, got {self.values!r}")
        object.__setattr__(self, "values", found)

    def quantiles(self, count: int, random: np.random.Generator, scale: Scale) -> Array:
        return scale.quantiles(random.choice(self.values, count))

    def to_json(self) -> list[Any]:
        return ["among", hashlib.sha256(self.values.tobytes()).hexdigest()]


Request = Between | Among


def top(share: float) -> Between:
    """The rows with the highest values of a condition: `top(0.1)` are the best tenth."""
    return Between(1 - _share(share), 1.0)


def bottom(share: float) -> Between:
    """The rows with the lowest values of a condition."""
    return Between(0.0, _share(share))


def between(low: float, high: float) -> Between:
    """The rows between two quantiles of a condition."""
    return Between(low, high)


def _share(share: float) -> float:
    if not 0 < share <= 1:
        raise ConfigError(f"expected a share of rows above 0 and at most 1, got {share}")
    return share


def parse(text: str) -> Request:
    """A request as it is typed: top:0.1, bottom:0.2, between:0.4:0.6 (quantiles), or a value such as 3.5."""
    kind, *numbers = text.split(":")
    makers: dict[str, tuple[int, Callable[..., Request]]] = {"top": (1, top), "bottom": (1, bottom)}
    makers["between"] = 2, between
    try:
        if kind in makers and len(numbers) == makers[kind][0]:
            return makers[kind][1](*map(float, numbers))
        if not numbers:
            return Among(np.array([float(kind)]))
    except ValueError:
        pass
    raise ConfigError(f"expected top:SHARE, bottom:SHARE, between:LOW:HIGH or a value, got {text!r}")


def parse_all(texts: Sequence[str]) -> dict[str, Request | None]:
    """Conditions as they are typed, by name: reward, or reward=top:0.1 with a request."""
    found: dict[str, Request | None] = {}
    for text in texts:
        name, has_request, asked = text.partition("=")
        if name in found:
            raise ConfigError(f"condition {name!r} is given twice")
        found[name] = parse(asked) if has_request else None
    return found


def asked(texts: Sequence[str], known: Sequence[str]) -> dict[str, Request] | None:
    """The requests among typed conditions: None where there are none. One without a name is for a single condition."""
    if len(texts) == 1 and "=" not in texts[0] and texts[0] not in known:
        texts = [f"{known[0] if len(known) == 1 else ''}={texts[0]}"]
    return {name: request for name, request in parse_all(texts).items() if request is not None} or None


def region(rows: Transitions, requests: Mapping[str, Request]) -> Transitions:
    """The rows that meet all requests, which name relevance functions and ranges of quantiles."""
    inside = np.ones(len(rows), bool)
    for name, request in requests.items():
        if not isinstance(request, Between):
            raise ConfigError(f"condition {name!r}: expected a range (top:0.1, bottom:0.1, between:0.4:0.6)")
        values = relevance(name, rows)
        quantiles = Scale.fit(name, values).quantiles(values)
        inside &= (quantiles >= request.low) & (quantiles <= request.high)
    return rows[inside]


@dataclass(frozen=True, eq=False)
class Scale:
    """A condition's name, and its values at evenly spaced quantiles (Q,)."""

    name: str
    knots: Array

    @classmethod
    def fit(cls, name: str, values: Array) -> Scale:
        return cls(name, np.quantile(values, np.linspace(0, 1, _KNOTS), method="inverted_cdf"))

    def quantiles(self, values: Array) -> Array:
        """The shares of rows with lower values, where those with the same count for a half. (N,)"""
        below, above = self._steps
        known = self._values
        return (np.interp(values, known, below) + np.interp(values, known, above)) / 2

    def values(self, quantiles: Array) -> Array:
        """Values at `quantiles`: between two knots if they are close, and one that rows have if there are few."""
        if len(self._values) < _KNOTS // 2:
            nearest: Array = self.knots[np.rint(np.asarray(quantiles) * (_KNOTS - 1)).astype(np.int64)]
            return nearest
        return np.interp(quantiles, np.linspace(0, 1, _KNOTS), self.knots)

    @cached_property
    def _values(self) -> Array:
        return np.unique(self.knots)

    @cached_property
    def _steps(self) -> tuple[Array, Array]:
        """The first and the last quantile of each different value."""
        first = np.searchsorted(self.knots, self._values, "left") / (_KNOTS - 1)
        last = (np.searchsorted(self.knots, self._values, "right") - 1) / (_KNOTS - 1)
        return first, last


@dataclass(frozen=True)
class Conditions:
    """The conditions of a model. The first may be whether a row begins an episode; a user named the others."""

    scales: tuple[Scale, ...] = ()
    starts: float | None = None
    """The share of real rows that begin an episode. None: starts are no condition of this model."""
    examples: tuple[Array, ...] = field(default=(), compare=False)
    """Quantiles of the named conditions in some real rows (M, K). Two arrays where starts are a condition: of rows that
    begin no episode, and of rows that begin one. Else one array."""

    @property
    def count(self) -> int:
        return self._own + len(self.scales)

    @property
    def _own(self) -> int:
        return 0 if self.starts is None else 1

    @property
    def named(self) -> tuple[str, ...]:
        """Those that a user named, which rows can be asked for by."""
        return tuple(scale.name for scale in self.scales)

    @property
    def names(self) -> tuple[str, ...]:
        return ((START,) if self._own else ()) + self.named

    @property
    def hidden(self) -> tuple[float, ...]:
        """How probably each is hidden while the network learns. Starts never are."""
        return (0.0,) * self._own + (HIDDEN,) * len(self.scales)

    def asking(self, condition: Any = None, guidance: float | Mapping[str, float] = 1.0) -> Asking | None:
        """What the network is to be asked; None where it takes no conditions."""
        if condition is None and (isinstance(guidance, Mapping) or guidance != 1.0):
            raise ConfigError("guidance needs a condition: sample(..., condition=top(0.1), guidance=2.0)")
        starts = None
        if isinstance(condition, str) and condition == START:
            condition = {START: 1.0}
        if isinstance(condition, Mapping) and START in condition:
            starts = self._asked_starts(condition[START])
            condition = {name: asked for name, asked in condition.items() if name != START} or None
        requests = {} if condition is None else self._requests(condition)
        weights = self._guidance(guidance, requests)
        requests = {name: request for name, request in requests.items() if weights[name]}
        return Asking(self, requests, self._guided(guidance, weights), starts) if self.count else None

    def taught(self) -> Asking | None:
        """What a student is shown: rows that nothing is asked of, with starts as often as a fit draws them."""
        asked = self.asking()
        if asked is None or self.starts is None:
            return asked
        often = _times(self.starts) * self.starts
        return replace(asked, starts=often / (often + 1 - self.starts))

    def _asked_starts(self, share: Any) -> float:
        if self.starts is None:
            raise ConfigError(
                f"condition {START!r}: this model was not told which rows begin an episode. Fit with data.starts, on "
                f"rows of which at least {FEWEST_STARTS} and at most {RARE_STARTS:.0%} do"
            )
        if not isinstance(share, bool | int | float) or not 0 <= share <= 1:
            raise ConfigError(f"condition {START!r}: expected the share of rows that begin an episode, got {share!r}")
        return float(share)

    def _requests(self, condition: Any) -> dict[str, Request]:
        known = self.named
        if not known:
            raise ConfigError("this model was fitted without conditions: fit(rows, condition='reward') allows them")
        if not isinstance(condition, Mapping):
            if len(known) > 1:
                raise ConfigError(
                    f"this model has the conditions {', '.join(known)}: say which, as in {{{known[0]!r}: top(0.1)}}"
                )
            condition = {known[0]: condition}
        unknown = [name for name in condition if name not in known]
        if unknown or not condition:
            raise ConfigError(f"expected conditions of this model ({', '.join(known)}), got {unknown or 'none'}")
        return {name: _request(name, asked) for name, asked in condition.items()}

    def _guidance(self, guidance: float | Mapping[str, float], asked: Iterable[str]) -> dict[str, float]:
        """How much each condition that was asked for counts."""
        if not isinstance(guidance, Mapping):
            return dict.fromkeys(asked, _weight(guidance))
        if set(guidance) != set(asked):
            raise ConfigError(f"expected a guidance for each condition ({', '.join(asked)}), got {', '.join(guidance)}")
        return {name: _weight(weight) for name, weight in guidance.items()}

    def _guided(self, guidance: float | Mapping[str, float], weights: Mapping[str, float]) -> Guidance:
        """Those that count, by place: each by itself where each has a weight of its own."""
        places = {name: self.names.index(name) for name, weight in weights.items() if weight}
        if isinstance(guidance, Mapping):
            return tuple(((place,), weights[name]) for name, place in places.items())
        return ((tuple(places.values()), float(guidance)),) if places else ()

    def to_json(self) -> dict[str, Any]:
        scales = {scale.name: scale.knots.tolist() for scale in self.scales}
        return {"scales": scales, "starts": self.starts, "examples": [each.tolist() for each in self.examples]}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Conditions:
        told = checked(entry, _Entry, "conditions")
        scales = tuple(Scale(name, np.array(knots, np.float64)) for name, knots in told["scales"].items())
        if any(scale.knots.shape != (_KNOTS,) or not np.isfinite(scale.knots).all() for scale in scales):
            raise ValueError("a condition has no quantiles")
        starts = told["starts"]
        if starts is not None and not 0 < starts < 1:
            raise ValueError(f"the share of starts is {starts}")
        examples = tuple(np.array(each, np.float64) for each in told.get("examples", []))
        if any(each.ndim != 2 or each.shape[1] != len(scales) or not np.isfinite(each).all() for each in examples):
            raise ValueError("examples of conditions have another shape")
        return cls(scales, starts, examples)


class _Entry(TypedDict):
    scales: dict[str, list[float]]
    starts: float | None
    examples: NotRequired[list[list[list[float]]]]  # which earlier files have not


def _request(name: str, asked: Any) -> Request:
    if isinstance(asked, Between | Among):
        return asked
    if isinstance(asked, str):
        return parse(asked)
    if isinstance(asked, Transitions):
        return Among(relevance(name, asked))
    return Among(np.atleast_1d(np.asarray(asked)))


def _weight(weight: float) -> float:
    if not np.isfinite(weight) or weight < 0:
        raise ConfigError(f"guidance must be a finite number of at least 0, got {weight}")
    return float(weight)


@dataclass(frozen=True)
class Asking:
    """What the rows of a model are asked to be. Starts come at their real share.

    If nothing is asked, the network gets the conditions of random real rows. Without conditions it would make worse
    rows, because it learned from few rows without them.
    """

    conditions: Conditions
    requests: Mapping[str, Request]
    guidance: Guidance
    starts: float | None = None
    """The share of rows that begin an episode; None: that of the real rows."""
    hidden: bool = False
    """Whether conditions that are not asked for stay unknown. Part of each row is then given, and random ones might not
    fit it."""

    def draw(self, count: int, random: np.random.Generator) -> NDArray[np.float32]:
        """The conditions of so many rows: quantiles (count, K), of which NaN is unknown."""
        begins = np.zeros(count, bool)
        if self.conditions.starts is not None:
            share = self.conditions.starts if self.starts is None else self.starts
            begins = random.random(count) < share
        if not self.requests and not self.hidden:
            named = self._as_in_real_rows(begins, random)
        else:
            named = np.full((count, len(self.conditions.scales)), np.nan)
            for place, scale in enumerate(self.conditions.scales):
                if scale.name in self.requests:
                    named[:, place] = self.requests[scale.name].quantiles(count, random, scale)
        own = [] if self.conditions.starts is None else [begins[:, None]]
        return np.concatenate([*own, named], axis=1).astype(np.float32)

    def _as_in_real_rows(self, begins: NDArray[np.bool_], random: np.random.Generator) -> Array:
        """Those of a real row for each, and hardly another quantile."""
        found = np.full((len(begins), len(self.conditions.scales)), np.nan)
        for begin, examples in enumerate(self.conditions.examples):
            rows = np.flatnonzero(begins == begin)
            near = random.uniform(-0.5, 0.5, (len(rows), examples.shape[1])) / _EXAMPLES
            found[rows] = np.clip(examples[random.integers(len(examples), size=len(rows))] + near, 0, 1)
        if self.conditions.examples:
            for place, scale in enumerate(self.conditions.scales):  # back to a value that rows have
                found[:, place] = scale.quantiles(scale.values(found[:, place]))
        return found

    def to_json(self) -> dict[str, Any]:
        """For the identity of what is drawn."""
        requests = {name: asked.to_json() for name, asked in self.requests.items()}
        return {"requests": requests, "guidance": self.guidance, "starts": self.starts, "hidden": self.hidden}


@dataclass(frozen=True)
class Relevant:
    """Rows of a refresh are to be like the real ones that matter most."""

    relevance: str
    """Name of a relevance function, `OWN_RELEVANCE` or `TD_ERROR`."""
    share: float = 0.25
    """Of the real rows, the most relevant ones."""
    guidance: float = 2.0

    def __post_init__(self) -> None:
        if self.relevance not in (OWN_RELEVANCE, TD_ERROR):
            RELEVANCE.check(self.relevance, "relevance")
        _share(self.share)
        _weight(self.guidance)

    def asked(self) -> dict[str, Any]:
        """As arguments of `Synthesizer.sample`."""
        return {"condition": {self.relevance: top(self.share)}, "guidance": self.guidance}


@dataclass(frozen=True)
class Told:
    """What a fit tells the network about each row."""

    conditions: Conditions
    columns: NDArray[np.float32]
    """(N, K)"""
    first: NDArray[np.bool_] | None
    """Which rows begin an episode, where the network is told. (N,)"""

    @property
    def repeats(self) -> NDArray[np.int64] | None:
        """How many times as often as others each row is drawn. (N,)"""
        if self.first is None:
            return None
        assert self.conditions.starts is not None
        return np.where(self.first, _times(self.conditions.starts), 1)

    def seen(self, matrix: Tensor) -> Tensor:
        """Scaled rows (N, D), and beside them what the network is told. (N, D + K)"""
        return torch.cat([matrix, torch.from_numpy(self.columns).to(matrix)], dim=1)


def tell(rows: Transitions, condition: Any, first: NDArray[np.bool_] | None) -> Told:
    """What a fit on `rows` tells the network: the `condition` that a user gave, and which rows begin an episode
    (`first`, None: not known, or not to be told), if these are rare."""
    named = _named(condition)
    values = {name: _numbers(name, given, rows) for name, given in named.items()}
    scales = tuple(Scale.fit(name, each) for name, each in values.items())
    if first is not None and not _are_rare(first):
        first = None
    conditions = Conditions(scales, None if first is None else float(first.mean()))
    told = _told(conditions, list(values.values()), first, len(rows))
    return replace(told, conditions=replace(conditions, examples=_examples(told))) if scales else told


def _examples(told: Told) -> tuple[Array, ...]:
    named = told.columns if told.first is None else told.columns[:, 1:]
    groups = [named] if told.first is None else [named[~told.first], named[told.first]]
    random = np.random.default_rng(0)
    some = (group[random.permutation(len(group))[:_EXAMPLES]] for group in groups)
    return tuple(np.round(group.astype(np.float64), 5) for group in some)


def tell_more(told: Conditions, rows: Transitions, condition: Any, first: NDArray[np.bool_] | None) -> Told:
    """The same about more `rows`, as it was `told` about the first ones. Nothing known of `first`: none begins an
    episode."""
    values = [_numbers(name, given, rows) for name, given in _named(condition).items()]
    if told.starts is None:
        return _told(told, values, None, len(rows))
    return _told(told, values, np.zeros(len(rows), bool) if first is None else first, len(rows))


def check_streamed(condition: Any) -> None:
    """Refuse conditions that cannot be found out from some of the rows at a time."""
    for name, given in _named(condition).items():
        is_array = not isinstance(given, str) and not callable(given)
        if is_array or given in _OF_ALL_ROWS:
            what = "an array of numbers" if is_array else f"{given!r}"
            raise ConfigError(
                f"condition {name!r}: {what} needs all rows in memory, and these are streamed: use reward or a "
                "function of each row alone, or raise fit.window_rows where memory allows it"
            )


def _told(conditions: Conditions, values: list[Array], first: NDArray[np.bool_] | None, rows: int) -> Told:
    columns = [scale.quantiles(each) for scale, each in zip(conditions.scales, values, strict=True)]
    if first is not None:
        columns.insert(0, first)
    told = np.stack(columns, axis=1) if columns else np.empty((rows, 0))
    return Told(conditions, told.astype(np.float32), first)


def first_rows(rows: Transitions) -> NDArray[np.bool_] | None:
    """Which rows begin an episode (N,); None where that is not known."""
    ids = episode_ids(rows) if len(rows) else None
    return None if ids is None else np.concatenate([[True], ids[1:] != ids[:-1]])


def _times(starts: float) -> int:
    """How many times as often as others a fit draws rows that begin an episode, of which there is this share."""
    return min(max(round(_START_SHARE / starts), 1), _MOST_REPEATS)


def _are_rare(first: NDArray[np.bool_]) -> bool:
    """Whether rows that begin an episode are worth to be told: rare, and enough to learn them."""
    count = np.count_nonzero(first)
    return bool(count >= FEWEST_STARTS and count <= RARE_STARTS * len(first))


def _named(condition: Any) -> dict[str, Given]:
    """A condition as it was given, by name."""
    if condition is None:
        return {}
    if isinstance(condition, Mapping):
        named = dict(condition)
    elif isinstance(condition, str):
        named = {condition: condition}
    elif callable(condition):
        named = {getattr(condition, "__name__", "condition"): condition}
    elif isinstance(condition, Sequence) and condition and all(isinstance(each, str) for each in condition):
        named = {name: name for name in condition}
    else:
        values = np.asarray(condition)
        if values.ndim not in (1, 2):
            raise ConfigError(
                "condition: expected a name, a function of rows, an array (N,) or (N, K), or a dict of these by name; "
                f"got {condition!r}"
            )
        named = {"condition": values} if values.ndim == 1 else {f"condition{i}": v for i, v in enumerate(values.T)}
    for name in named:
        if not isinstance(name, str) or name == START or not name:
            raise ConfigError(f"condition: expected a name other than {START!r}, which is reserved, got {name!r}")
    return named


def _numbers(name: str, given: Given, rows: Transitions) -> NDArray[np.float64]:
    try:
        found = (
            relevance(given, rows)
            if isinstance(given, str)
            else np.asarray(given(rows) if callable(given) else given, np.float64)
        )
    except SyntherError:
        raise
    except (TypeError, ValueError) as error:
        raise DataError(f"condition {name!r}: expected one number for each row ({error})") from None
    if found.shape != (len(rows),):
        raise DataError(f"condition {name!r}: expected {len(rows)} numbers, one for each row, got shape {found.shape}")
    if not np.isfinite(found).all():
        row = int(np.argmin(np.isfinite(found)))
        raise DataError(f"condition {name!r}: expected finite numbers, got {found[row]} in row {row}")
    return found

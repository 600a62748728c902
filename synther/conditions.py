"""Conditions: extra inputs of the network that describe a row, so that rows with certain properties can be sampled.

A condition is one number per row, for example its reward. During a fit the network sees this number next to the row.
Later, `sample(..., condition=top(0.1))` generates rows like the real rows in the top 10 % of that number. The network
sees the number as a quantile (the share of rows with a lower number), so "the top 10 %" means the same after every fit.

`Conditions` is what a fitted model stores. `ConditionSampler` draws the conditions of generated rows. The conditions of
the real rows of a fit are computed in synthesizer/row_conditions.py.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from synther.data.transitions import Transitions
from synther.diffusion.edm import Guidance
from synther.errors import ConfigError
from synther.relevance import RELEVANCE, relevance
from synther.schema import checked

log = logging.getLogger(__name__)

Array = NDArray[Any]

HIDDEN = 0.25
"""Probability with which each condition is hidden from the network during the fit. Classifier-free guidance needs it,
because it compares the network with and without the condition."""
_KNOTS = 1001
"""Number of evenly spaced quantiles that a `Scale` stores."""
OWN_RELEVANCE = "relevance"
"""Name of a condition that a user-defined function computes."""
TD_ERROR = "td_error"
"""Name of a condition that is computed from the critics of the agent in training."""
START = "start"
"""Name of the condition that a fit adds by itself: whether a row is an episode start."""
RARE_STARTS = 0.05
"""Maximum share of episode starts among the rows for which a fit adds the condition `START`."""
FEWEST_STARTS = 20
"""Minimum number of episode starts for which a fit adds the condition `START`."""
EXAMPLES = 2_048
"""Maximum number of real rows (per group) whose conditions a model stores as examples."""
_START_SHARE = 0.05
"""Share of episode starts among the rows that a fit draws, if starts are rarer in the data."""
_MOST_REPEATS = 50
"""A fit draws an episode start at most this many times as often as another row."""


@dataclass(frozen=True)
class Between:
    """Request rows with a condition between two quantiles."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= 1:
            raise ConfigError(f"expected quantiles 0 <= low < high <= 1, got {self.low} and {self.high}")

    def quantiles(self, count: int, random: np.random.Generator, scale: Scale) -> Array:
        """Draw the quantiles of `count` rows. Each is the quantile of a value that the condition can have."""
        return scale.quantiles(scale.values(random.uniform(self.low, self.high, count)))

    def to_json(self) -> list[Any]:
        return ["between", self.low, self.high]


@dataclass(frozen=True, eq=False)
class Among:
    """Request rows with one of these values of a condition, chosen at random for each row."""

    values: Array

    def __post_init__(self) -> None:
        values = np.asarray(self.values, np.float64)
        if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
            raise ConfigError(f"expected the values of a condition as one or more finite numbers, got {self.values!r}")
        object.__setattr__(self, "values", values)

    def quantiles(self, count: int, random: np.random.Generator, scale: Scale) -> Array:
        """Draw the quantiles of `count` rows."""
        return scale.quantiles(random.choice(self.values, count))

    def to_json(self) -> list[Any]:
        return ["among", hashlib.sha256(self.values.tobytes()).hexdigest()]


Request = Between | Among


def top(share: float) -> Between:
    """Request rows like those with the highest values of a condition. `top(0.1)` requests the highest tenth."""
    return Between(1 - _share(share), 1.0)


def bottom(share: float) -> Between:
    """Request rows like those with the lowest values of a condition. `bottom(0.1)` requests the lowest tenth."""
    return Between(0.0, _share(share))


def between(low: float, high: float) -> Between:
    """Request rows between two quantiles of a condition. `between(0.4, 0.6)` requests the middle fifth."""
    return Between(low, high)


def _share(share: float) -> float:
    """Check a share of rows."""
    if not 0 < share <= 1:
        raise ConfigError(f"expected a share of rows above 0 and at most 1, got {share}")
    return share


def parse(text: str) -> Request:
    """Parse a request from the command line: top:0.1, bottom:0.2, between:0.4:0.6 (quantiles), or a value like 3.5."""
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
    """Parse conditions from the command line, each as NAME or NAME=REQUEST, for example `reward=top:0.1`.

    Return the request of each name, or None for a name without a request.
    """
    parsed: dict[str, Request | None] = {}
    for text in texts:
        name, has_request, request = text.partition("=")
        if name in parsed:
            raise ConfigError(f"condition {name!r} is given twice")
        parsed[name] = parse(request) if has_request else None
    return parsed


def asked(texts: Sequence[str], known: Sequence[str]) -> dict[str, Request] | None:
    """Parse conditions from the command line and return only those with a request, by name. None if there are none.

    A single request needs no name (`top:0.1`) if the model has only one condition. `known` are the model's conditions.
    """
    if len(texts) == 1 and "=" not in texts[0] and texts[0] not in known:
        texts = [f"{known[0] if len(known) == 1 else ''}={texts[0]}"]
    return {name: request for name, request in parse_all(texts).items() if request is not None} or None


def region(rows: Transitions, requests: Mapping[str, Request]) -> Transitions:
    """Return the rows that meet all requests. Each name is a relevance function, each request a range of quantiles."""
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
    """Converts the values of one condition to quantiles and back. `knots` (Q,) are its values at evenly spaced
    quantiles."""

    name: str
    knots: Array

    @classmethod
    def fit(cls, name: str, values: Array) -> Scale:
        """Compute the quantiles of the values of the real rows (N,)."""
        return cls(name, np.quantile(values, np.linspace(0, 1, _KNOTS), method="inverted_cdf"))

    def quantiles(self, values: Array) -> Array:
        """Return the quantile of each value: the share of rows with a lower value, plus half the share of rows with
        the same value. (N,)"""
        below, above = self._steps
        known = self._values
        return (np.interp(values, known, below) + np.interp(values, known, above)) / 2

    def values(self, quantiles: Array) -> Array:
        """Return the values at `quantiles`. They are interpolated between knots. If the condition has few different
        values, the nearest knot is returned instead, so that the result is a value of a real row."""
        if len(self._values) < _KNOTS // 2:
            nearest: Array = self.knots[np.rint(np.asarray(quantiles) * (_KNOTS - 1)).astype(np.int64)]
            return nearest
        return np.interp(quantiles, np.linspace(0, 1, _KNOTS), self.knots)

    def warn_of_values_beyond(self, request: Request | None) -> None:
        """Log a warning if a request has values that no real row reaches."""
        values = request.values if isinstance(request, Among) else self.knots[:0]
        low, high = self.knots[0], self.knots[-1]
        beyond = values[(values < low) | (values > high)]
        if beyond.size:
            log.warning(
                "condition %r: %g is requested, but the real rows have values from %.4g to %.4g: rows like those with "
                "the nearest value are generated", self.name, beyond[0], low, high,
            )  # fmt: skip

    @cached_property
    def _values(self) -> Array:
        return np.unique(self.knots)

    @cached_property
    def _steps(self) -> tuple[Array, Array]:
        """Return the first and the last quantile of each different value."""
        first = np.searchsorted(self.knots, self._values, "left") / (_KNOTS - 1)
        last = (np.searchsorted(self.knots, self._values, "right") - 1) / (_KNOTS - 1)
        return first, last


@dataclass(frozen=True)
class Conditions:
    """The conditions of a model: optionally whether a row is an episode start (always first), then the conditions that
    the user named."""

    scales: tuple[Scale, ...] = ()
    """One scale for each condition that the user named."""
    starts: float | None = None
    """Share of episode starts among the real rows. None if episode starts are not a condition of this model."""
    examples: tuple[Array, ...] = field(default=(), compare=False)
    """Quantiles of the named conditions in some real rows (M, K). If episode starts are a condition, there are two
    arrays: first for rows that are no episode start, then for episode starts. Otherwise there is one array."""

    @property
    def count(self) -> int:
        return self._start_columns + len(self.scales)

    @property
    def _start_columns(self) -> int:
        return 0 if self.starts is None else 1

    @property
    def named(self) -> tuple[str, ...]:
        """The names of the conditions that the user defined for the fit."""
        return tuple(scale.name for scale in self.scales)

    @property
    def names(self) -> tuple[str, ...]:
        return ((START,) if self._start_columns else ()) + self.named

    @property
    def hidden(self) -> tuple[float, ...]:
        """The probability with which each condition is hidden during the fit. Episode starts are never hidden."""
        return (0.0,) * self._start_columns + (HIDDEN,) * len(self.scales)

    def asking(self, condition: Any = None, guidance: float | Mapping[str, float] = 1.0) -> ConditionSampler | None:
        """Return the object that draws the conditions of generated rows. None if the model has no conditions.

        The arguments are those of `Synthesizer.sample`.
        """
        if condition is None and (isinstance(guidance, Mapping) or guidance != 1.0):
            raise ConfigError("guidance needs a condition: sample(..., condition=top(0.1), guidance=2.0)")
        starts = None
        if isinstance(condition, str) and condition == START:
            condition = {START: 1.0}
        if isinstance(condition, Mapping) and START in condition:
            starts = self._start_share(condition[START])
            condition = {name: request for name, request in condition.items() if name != START} or None
        requests = {} if condition is None else self._requests(condition)
        weights = self._weights(guidance, requests)
        requests = {name: request for name, request in requests.items() if weights[name]}
        return ConditionSampler(self, requests, self._guidance(guidance, weights), starts) if self.count else None

    def taught(self) -> ConditionSampler | None:
        """Return the object that draws the conditions from which a student learns: no requests, and as many episode
        starts as the fit of the network draws. None if the model has no conditions."""
        sampler = self.asking()
        if sampler is None or self.starts is None:
            return sampler
        repeated = start_repeats(self.starts) * self.starts
        return replace(sampler, starts=repeated / (repeated + 1 - self.starts))

    def _start_share(self, share: Any) -> float:
        """Check the requested share of episode starts."""
        if self.starts is None:
            raise ConfigError(
                f"condition {START!r}: this model has not learned which rows begin an episode. Fit with data.starts, "
                f"on rows with at least {FEWEST_STARTS} episode starts, which make up at most {RARE_STARTS:.0%} of them"
            )
        if not isinstance(share, bool | int | float) or not 0 <= share <= 1:
            raise ConfigError(f"condition {START!r}: expected the share of rows that begin an episode, got {share!r}")
        return float(share)

    def _requests(self, condition: Any) -> dict[str, Request]:
        """Return the request for each named condition, from any of the forms that `Synthesizer.sample` accepts."""
        known = self.named
        if not known:
            raise ConfigError(
                "this model was fitted without conditions: fit it again with one, such as fit(rows, "
                "condition='reward'), or --condition reward of `synther fit`"
            )
        if not isinstance(condition, Mapping):
            if len(known) > 1:
                raise ConfigError(
                    f"this model has the conditions {', '.join(known)}: name one, as in {{{known[0]!r}: top(0.1)}}"
                )
            condition = {known[0]: condition}
        unknown = [name for name in condition if name not in known]
        if unknown or not condition:
            raise ConfigError(f"expected conditions of this model ({', '.join(known)}), got {unknown or 'none'}")
        requests = {name: _request(name, request) for name, request in condition.items()}
        for scale in self.scales:
            scale.warn_of_values_beyond(requests.get(scale.name))
        return requests

    def _weights(self, guidance: float | Mapping[str, float], requested: Iterable[str]) -> dict[str, float]:
        """Return the guidance weight of each requested condition."""
        if not isinstance(guidance, Mapping):
            return dict.fromkeys(requested, _weight(guidance))
        if set(guidance) != set(requested):
            raise ConfigError(
                f"expected a guidance for each condition ({', '.join(requested)}), got {', '.join(guidance)}"
            )
        return {name: _weight(weight) for name, weight in guidance.items()}

    def _guidance(self, guidance: float | Mapping[str, float], weights: Mapping[str, float]) -> Guidance:
        """Return the guidance by the numbers of the conditions, without conditions of weight 0.

        If `guidance` is a number, all conditions together have this weight. A dict has a weight for each condition.
        """
        places = {name: self.names.index(name) for name, weight in weights.items() if weight}
        if isinstance(guidance, Mapping):
            return tuple(((place,), weights[name]) for name, place in places.items())
        return ((tuple(places.values()), float(guidance)),) if places else ()

    def to_json(self) -> dict[str, Any]:
        scales = {scale.name: scale.knots.tolist() for scale in self.scales}
        return {"scales": scales, "starts": self.starts, "examples": [each.tolist() for each in self.examples]}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Conditions:
        stored = checked(entry, _Entry, "conditions")
        scales = tuple(Scale(name, np.array(knots, np.float64)) for name, knots in stored["scales"].items())
        if any(scale.knots.shape != (_KNOTS,) or not np.isfinite(scale.knots).all() for scale in scales):
            raise ValueError(f"conditions: expected {_KNOTS} finite quantiles for each condition")
        starts = stored["starts"]
        if starts is not None and not 0 < starts < 1:
            raise ValueError(f"conditions: expected a share of episode starts between 0 and 1, got {starts}")
        examples = tuple(np.array(each, np.float64) for each in stored.get("examples", []))
        if any(each.ndim != 2 or each.shape[1] != len(scales) or not np.isfinite(each).all() for each in examples):
            raise ValueError(f"conditions: expected examples of {len(scales)} finite columns")
        return cls(scales, starts, examples)


class _Entry(TypedDict):
    scales: dict[str, list[float]]
    starts: float | None
    examples: NotRequired[list[list[list[float]]]]  # missing in files of earlier versions


def _request(name: str, request: Any) -> Request:
    """Convert what a user passed as the request of condition `name`."""
    if isinstance(request, Between | Among):
        return request
    if isinstance(request, str):
        return parse(request)
    if isinstance(request, Transitions):
        return Among(relevance(name, request))
    return Among(np.atleast_1d(np.asarray(request)))


def _weight(weight: float) -> float:
    """Check a guidance weight."""
    if not isinstance(weight, (int, float, np.number)) or not np.isfinite(weight) or weight < 0:
        raise ConfigError(f"guidance must be a finite number of at least 0, got {weight!r}")
    return float(weight)


@dataclass(frozen=True)
class ConditionSampler:
    """Draws the conditions of generated rows. By default episode starts have the same share as in the real rows.

    Without requests, the network gets the conditions of random real rows. If the conditions were hidden instead, the
    rows would be worse, because the network saw only few rows with hidden conditions during the fit.
    """

    conditions: Conditions
    requests: Mapping[str, Request]
    guidance: Guidance
    starts: float | None = None
    """Share of episode starts among the generated rows. None: the share among the real rows."""
    hidden: bool = False
    """Whether conditions without a request are hidden from the network. Used if a part of each row is given: a random
    condition might contradict this part."""

    def draw(self, count: int, random: np.random.Generator) -> NDArray[np.float32]:
        """Draw the conditions of `count` rows as quantiles (count, K). NaN means that the condition is hidden."""
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
        start_column = [] if self.conditions.starts is None else [begins[:, None]]
        return np.concatenate([*start_column, named], axis=1).astype(np.float32)

    def _as_in_real_rows(self, begins: NDArray[np.bool_], random: np.random.Generator) -> Array:
        """Draw the named conditions of random real rows (N, K), each quantile with a little noise.

        `begins` (N,) marks the rows that are episode starts: they get the conditions of real episode starts.
        """
        quantiles = np.full((len(begins), len(self.conditions.scales)), np.nan)
        for begin, examples in enumerate(self.conditions.examples):
            rows = np.flatnonzero(begins == begin)
            noise = random.uniform(-0.5, 0.5, (len(rows), examples.shape[1])) / EXAMPLES
            quantiles[rows] = np.clip(examples[random.integers(len(examples), size=len(rows))] + noise, 0, 1)
        if self.conditions.examples:
            for place, scale in enumerate(self.conditions.scales):  # the noise must not lead to values that no row has
                quantiles[:, place] = scale.quantiles(scale.values(quantiles[:, place]))
        return quantiles

    def to_json(self) -> dict[str, Any]:
        """Return a description that is part of the identity of a file of generated rows."""
        requests = {name: request.to_json() for name, request in self.requests.items()}
        return {"requests": requests, "guidance": self.guidance, "starts": self.starts, "hidden": self.hidden}


@dataclass(frozen=True)
class Relevant:
    """Settings of a refresh that generates rows like the most relevant real rows."""

    relevance: str
    """Name of a relevance function, `OWN_RELEVANCE` or `TD_ERROR`."""
    share: float = 0.25
    """Share of the real rows that count as the most relevant ones."""
    guidance: float = 2.0
    """Guidance weight. Values above 1 go further in the direction of the most relevant rows."""

    def __post_init__(self) -> None:
        if self.relevance not in (OWN_RELEVANCE, TD_ERROR):
            RELEVANCE.check(self.relevance, "relevance")
        _share(self.share)
        _weight(self.guidance)

    def asked(self) -> dict[str, Any]:
        """Return these settings as keyword arguments of `Synthesizer.sample`."""
        return {"condition": {self.relevance: top(self.share)}, "guidance": self.guidance}


def start_repeats(starts: float) -> int:
    """Return how many times each episode start takes part in a fit. `starts` is their share among the real rows."""
    return min(max(round(_START_SHARE / starts), 1), _MOST_REPEATS)

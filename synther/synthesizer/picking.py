"""Rows of a model after a second look: inconsistent ones discarded, and rewards and terminals replaced."""

from __future__ import annotations

import inspect
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.data.transitions import Transitions
from synther.errors import ConfigError, DataError
from synther.guides import identity_of
from synther.relevance.consistency import Filter, check_keep
from synther.relevance.dynamics import Ensemble
from synther.synthesizer.drawing import Drawing

log = logging.getLogger(__name__)

Array = NDArray[Any]
Relabel = str | Mapping[str, Callable[[Transitions], Any]]
"""How rewards and terminals are replaced: "ensemble", or functions of rows by the names reward and terminal."""

RELABELLED = ("reward", "terminal")
PILOT_ROWS = 8_192
"""Synthetic rows whose scores decide how likely others are kept."""

_PILOT_SEED = 2**31 + 2  # beside those of drawing.py
_FILTERING, _RELABELLING = 6, 7  # streams, likewise
_MARGIN = 1.02  # more rows than are expected to be needed


@dataclass(frozen=True)
class Choice:
    """What `sample` was told about which rows to keep and what to replace, checked."""

    keep: float = 1.0
    relabel: Relabel | None = None
    ensemble: Ensemble | None = None

    @classmethod
    def of(cls, keep: float, relabel: Relabel | None, ensemble: Ensemble | None) -> Choice:
        keep = check_keep(keep)
        if relabel is not None and relabel != "ensemble":
            _check_functions(relabel)
        for name, used in (("keep", keep < 1), ("relabel='ensemble'", relabel == "ensemble")):
            if used and ensemble is None:
                raise ConfigError(
                    f"{name} needs a model with an ensemble, and this one has none: fit it with fit(rows, "
                    "ensemble=True), or `synther fit --ensemble`"
                )
        return cls(keep, relabel, ensemble)

    @property
    def is_plain(self) -> bool:
        return self.keep == 1 and self.relabel is None

    def to_json(self) -> dict[str, Any]:
        """What tells its rows from those of another choice, as far as that can be said."""
        functions = {} if isinstance(self.relabel, str) or self.relabel is None else self.relabel
        named = {name: _described(function) for name, function in functions.items()}
        return {"keep": self.keep, "relabel": self.relabel if isinstance(self.relabel, str) else named}


@dataclass
class Discarded:
    """How many rows were looked at, and why some were discarded."""

    drawn: int = 0
    at_random: int = 0
    causes: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        inconsistent = self.causes.total()
        gone = self.at_random + inconsistent
        text = f"the filter discarded {gone:,} of {self.drawn:,} rows"
        if inconsistent:
            shares = [f"{name} {count / inconsistent:.0%}" for name, count in self.causes.most_common(3)]
            text += f": {inconsistent:,} as less consistent than real rows, mostly because of {', '.join(shares)}"
        if self.at_random:
            text += f"{';' if inconsistent else ':'} {self.at_random:,} at random, being as consistent as real rows"
        return text


class Picking:
    """The rows of a drawing of which some are kept, and others take their place."""

    def __init__(self, drawing: Drawing, choice: Choice) -> None:
        self.drawing, self.choice = drawing, choice
        self.discarded = Discarded()

    def identity(self, count: int, seed: int) -> dict[str, Any]:
        """What makes so many rows what they are."""
        drawing = self.drawing
        identity = {
            "model": drawing.model.digest(),
            "calibration": drawing.calibration.to_json(),
            "sampler": asdict(drawing.config),
            "precision": drawing.sampler.precision,
            "block_rows": drawing.sampler.block_rows,
            "seed": seed,
            "count": count,
        }
        if drawing.wishes.asking is not None:
            identity["asked"] = drawing.wishes.asking.to_json()
        if drawing.wishes.guide is not None:
            identity["guide"] = identity_of(drawing.wishes.guide)
        if not self.choice.is_plain:
            identity["choice"] = self.choice.to_json()
        return identity

    def blocks(self, count: int, seed: int, first: int = 0, have: int = 0) -> Iterator[Transitions]:
        """What is kept of each block from number `first` on, until it makes `count` rows with the `have` that were kept
        of earlier blocks. The last one is cut."""
        if self.choice.is_plain:
            yield from self.drawing.blocks(count, seed, first)
            return
        block_rows, keep = self.drawing.sampler.block_rows, self.choice.keep
        if keep < 1:
            _ = self._filter  # before threads are at work
        while have < count:
            last = first + max(1, math.ceil(_MARGIN * (count - have) / keep / block_rows))
            for rows in self.drawing.blocks(last * block_rows, seed, first):
                picked = self._picked(rows, seed, first)[: count - have]
                first += 1
                have += len(picked)
                yield picked
                if have >= count:
                    break
        if keep < 1:
            log.info("%s", self.discarded)

    def _picked(self, rows: Transitions, seed: int, block: int) -> Transitions:
        if self.choice.keep < 1:
            rows = self._kept(rows, np.random.default_rng([_FILTERING, seed, block]))
        relabel, ensemble = self.choice.relabel, self.choice.ensemble
        if relabel is None:
            return rows
        if isinstance(relabel, str):
            assert ensemble is not None
            drawn = np.random.default_rng([_RELABELLING, seed, block]).integers(2**31)
            return ensemble.relabelled(rows, int(drawn))
        return relabelled(rows, relabel)

    def _kept(self, rows: Transitions, draw: np.random.Generator) -> Transitions:
        ensemble, found = self.choice.ensemble, self._filter
        assert ensemble is not None
        scores, causes = ensemble.scores(rows, int(draw.integers(2**31)))
        chance, luck = found.chance(scores, rows.terminal), draw.random(len(rows))
        kept = luck < chance
        if not kept.any():  # a block has at least one row
            kept[np.argmax(chance / np.maximum(luck, 1e-9))] = True
        at_random = ~kept & (luck >= np.array(found.base)[rows.terminal.astype(np.int64)])
        self.discarded.drawn += len(rows)
        self.discarded.at_random += int(at_random.sum())
        counts = np.bincount(causes[~kept & ~at_random], minlength=len(ensemble.names))
        for name, number in zip(ensemble.names, counts.tolist(), strict=True):
            if number:
                self.discarded.causes[name] += number
        return rows[kept]

    @cached_property
    def _filter(self) -> Filter:
        """Found on rows of a seed of their own, so that it is the same for every seed and count."""
        ensemble, drawing = self.choice.ensemble, self.drawing
        assert ensemble is not None
        pilots = drawing.model.pilots if drawing._plain is drawing else {}
        if drawing.config not in pilots:
            count = max(PILOT_ROWS, drawing.sampler.block_rows)
            rows = Transitions.concatenate(list(drawing.blocks(count, _PILOT_SEED)))
            pilots[drawing.config] = rows
        return ensemble.filter(pilots[drawing.config], self.choice.keep, _PILOT_SEED)


def relabelled(rows: Transitions, functions: Mapping[str, Callable[[Transitions], Any]]) -> Transitions:
    """`rows` with what the functions say; both see the rows as they were."""
    found: dict[str, Array] = {}
    for name, function in functions.items():
        try:
            values = np.asarray(function(rows))
        except (TypeError, RuntimeError) as error:  # a tensor of a GPU, or one that wants gradients
            raise DataError(f"relabel: {name} gave no array in main memory ({error})") from None
        if values.shape != (len(rows),):
            raise DataError(
                f"relabel: {name} gave shape {values.shape} for {len(rows):,} rows: expected {(len(rows),)}"
            )
        if values.dtype.kind not in "biuf" or not np.isfinite(values).all():
            raise DataError(f"relabel: {name} gave values that are not finite numbers")
        if name == "terminal" and not np.isin(values, (0, 1)).all():
            raise DataError("relabel: terminal gave values other than 0 and 1: expected booleans")
        found[name] = values.astype(getattr(rows, name).dtype)
    return replace(rows, **found)  # type: ignore[arg-type]


def _check_functions(relabel: Any) -> None:
    expected = "expected 'ensemble', or a dict of functions by the names reward and terminal"
    if not isinstance(relabel, Mapping) or not relabel:
        raise ConfigError(f"relabel is {relabel!r}: {expected}")
    for name, function in relabel.items():
        if name not in RELABELLED:
            raise ConfigError(f"relabel has an unknown name {name!r}: {expected}")
        if not callable(function):
            raise ConfigError(f"relabel[{name!r}] is no function: expected one of Transitions to (N,) numbers")


def _described(function: Callable[..., Any]) -> str:
    """The source of a function, or its name: a file that goes on with another function starts over."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return repr(getattr(function, "__qualname__", function))

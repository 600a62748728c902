"""`Picking`: after rows were generated, discard inconsistent ones and replace rewards and terminals.

These are the options `keep` and `relabel` of `Synthesizer.sample`. Without them, all generated rows are kept unchanged.
"""

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
"""How rewards and terminals are replaced: "ensemble", or a dict of functions of rows with the keys reward and
terminal."""

RELABELLED = ("reward", "terminal")
"""The fields that `relabel` can replace."""
PILOT_ROWS = 8_192
"""Minimum number of synthetic rows on which the filter is fitted."""

_PILOT_SEED = 2**31 + 2  # above 2**31, beside the seeds of `Drawing._stream`
_FILTERING, _RELABELLING = 6, 7  # streams of random numbers, beside those of drawing.py
_MARGIN = 1.02  # generate 2 % more rows than are expected to be needed


@dataclass(frozen=True)
class Choice:
    """The checked options `keep` and `relabel` of `sample`."""

    keep: float = 1.0
    relabel: Relabel | None = None
    ensemble: Ensemble | None = None

    @classmethod
    def of(cls, keep: float, relabel: Relabel | None, ensemble: Ensemble | None) -> Choice:
        """Check the options. `ensemble` is that of the model, if it has one."""
        keep = check_keep(keep)
        if relabel is not None and relabel != "ensemble":
            _check_functions(relabel)
        for name, used in (("keep", keep < 1), ("relabel='ensemble'", relabel == "ensemble")):
            if used and ensemble is None:
                raise ConfigError(
                    f"{name} needs a model with an ensemble, but this model has none: fit it with fit(rows, "
                    "ensemble=True), or `synther fit --ensemble`"
                )
        return cls(keep, relabel, ensemble)

    @property
    def is_plain(self) -> bool:
        return self.keep == 1 and self.relabel is None

    def to_json(self) -> dict[str, Any]:
        """Return a description for the identity of a file of rows. Functions are described by their source code."""
        functions = {} if isinstance(self.relabel, str) or self.relabel is None else self.relabel
        named = {name: _described(function) for name, function in functions.items()}
        return {"keep": self.keep, "relabel": self.relabel if isinstance(self.relabel, str) else named}


@dataclass
class Discarded:
    """Counts how many rows were checked and why some were discarded, for a log message."""

    drawn: int = 0
    at_random: int = 0
    """Number of rows that are as consistent as real rows, and were discarded to reach the share `keep`."""
    causes: Counter[str] = field(default_factory=Counter)
    """Number of inconsistent rows that were discarded, by the name of their most inconsistent outcome."""

    def __str__(self) -> str:
        inconsistent = self.causes.total()
        discarded = self.at_random + inconsistent
        text = f"the filter discarded {discarded:,} of {self.drawn:,} rows"
        if inconsistent:
            shares = [f"{name} {count / inconsistent:.0%}" for name, count in self.causes.most_common(3)]
            text += f": {inconsistent:,} less consistent than real rows, mostly because of {', '.join(shares)}"
        if self.at_random:
            text += f"{';' if inconsistent else ':'} {self.at_random:,} at random, as consistent as real rows"
        return text


class Picking:
    """Generates rows with a `Drawing`, discards and replaces according to a `Choice`, and continues until there are
    enough rows."""

    def __init__(self, drawing: Drawing, choice: Choice) -> None:
        self.drawing, self.choice = drawing, choice
        self.discarded = Discarded()

    def identity(self, count: int, seed: int) -> dict[str, Any]:
        """Return a description of everything that determines `count` rows of this seed. An interrupted file continues
        only if it has the same identity."""
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
        if drawing.constraints.conditions is not None:
            identity["asked"] = drawing.constraints.conditions.to_json()
        if drawing.constraints.guide is not None:
            identity["guide"] = identity_of(drawing.constraints.guide)
        if not self.choice.is_plain:
            identity["choice"] = self.choice.to_json()
        return identity

    def blocks(self, count: int, seed: int, first: int = 0, have: int = 0) -> Iterator[Transitions]:
        """Yield the kept rows of each block, starting with block number `first`, until there are `count` rows in total.
        `have` rows were kept from earlier blocks. The last block is cut to the remaining rows."""
        if self.choice.is_plain:
            yield from self.drawing.blocks(count, seed, first)
            return
        block_rows, keep = self.drawing.sampler.block_rows, self.choice.keep
        if keep < 1:
            _ = self._filter  # fit the filter before threads start
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
            relabel_seed = np.random.default_rng([_RELABELLING, seed, block]).integers(2**31)
            return ensemble.relabelled(rows, int(relabel_seed))
        return relabelled(rows, relabel)

    def _kept(self, rows: Transitions, draw: np.random.Generator) -> Transitions:
        """Return the rows that the filter keeps, and count the others in `discarded`."""
        ensemble, filter_ = self.choice.ensemble, self._filter
        assert ensemble is not None
        scores, causes = ensemble.scores(rows, int(draw.integers(2**31)))
        chance, uniform = filter_.chance(scores, rows.terminal), draw.random(len(rows))
        kept = uniform < chance
        if not kept.any():  # a block must not be empty: keep the row that came closest
            kept[np.argmax(chance / np.maximum(uniform, 1e-9))] = True
        at_random = ~kept & (uniform >= np.array(filter_.base)[rows.terminal.astype(np.int64)])
        self.discarded.drawn += len(rows)
        self.discarded.at_random += int(at_random.sum())
        counts = np.bincount(causes[~kept & ~at_random], minlength=len(ensemble.names))
        for name, number in zip(ensemble.names, counts.tolist(), strict=True):
            if number:
                self.discarded.causes[name] += number
        return rows[kept]

    @cached_property
    def _filter(self) -> Filter:
        """The fitted filter. It is fitted on rows with a fixed seed, so it is the same for each seed and count."""
        ensemble, drawing = self.choice.ensemble, self.drawing
        assert ensemble is not None
        pilots = drawing.model.pilots if drawing.constraints.none else {}
        if drawing.config not in pilots:
            count = max(PILOT_ROWS, drawing.sampler.block_rows)
            rows = Transitions.concatenate(list(drawing.blocks(count, _PILOT_SEED)))
            pilots[drawing.config] = rows
        return ensemble.filter(pilots[drawing.config], self.choice.keep, _PILOT_SEED)


def relabelled(rows: Transitions, functions: Mapping[str, Callable[[Transitions], Any]]) -> Transitions:
    """Replace rewards and terminals by the results of `functions`. All functions get the original rows."""
    replaced: dict[str, Array] = {}
    for name, function in functions.items():
        try:
            values = np.asarray(function(rows))
        except (TypeError, RuntimeError) as error:  # for example a tensor on a GPU, or one that requires gradients
            raise DataError(f"relabel: {name} did not return an array in main memory ({error})") from None
        if values.shape != (len(rows),):
            raise DataError(
                f"relabel: {name} returned shape {values.shape} for {len(rows):,} rows: expected {(len(rows),)}"
            )
        if values.dtype.kind not in "biuf" or not np.isfinite(values).all():
            raise DataError(f"relabel: {name} returned values that are not finite numbers")
        if name == "terminal" and not np.isin(values, (0, 1)).all():
            raise DataError("relabel: terminal returned values other than 0 and 1: expected booleans")
        replaced[name] = values.astype(getattr(rows, name).dtype)
    return replace(rows, **replaced)  # type: ignore[arg-type]


def _check_functions(relabel: Any) -> None:
    expected = "expected 'ensemble', or a dict of functions with the keys reward and terminal"
    if not isinstance(relabel, Mapping) or not relabel:
        raise ConfigError(f"relabel is {relabel!r}: {expected}")
    for name, function in relabel.items():
        if name not in RELABELLED:
            raise ConfigError(f"relabel has an unknown name {name!r}: {expected}")
        if not callable(function):
            raise ConfigError(
                f"relabel[{name!r}] is not a function: expected one that takes Transitions and returns numbers (N,)"
            )


def _described(function: Callable[..., Any]) -> str:
    """Return the source code of a function, or its name. A file that is continued with another function starts over."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return repr(getattr(function, "__qualname__", function))

"""`SyntheticRows`: keeps synthetic rows and regenerates them at each refresh. The real rows are stored elsewhere."""

from __future__ import annotations

import dataclasses
import difflib
import logging
import os
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Literal, Self, TypedDict, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther import compute
from synther.conditions import OWN_RELEVANCE, Relevant
from synther.data.checks import check_count
from synther.data.transitions import Transitions
from synther.errors import ConfigError, Failed, FormatError, SyntherError
from synther.guides import Gradient, Guide
from synther.presets import Settings
from synther.presets import preset as named
from synther.progress import Progress, resolve
from synther.relevance import Relevance
from synther.replay import adapting, files
from synther.replay.adapting import RefreshTime, Stored
from synther.replay.background import Background
from synther.replay.columns import Columns
from synther.replay.mixture import Mixture
from synther.replay.refit import Generation, Job, Look, Refit, Refresh, drawn, held_out_rows, seed_of, usual_samples
from synther.replay.ring import Ring
from synther.schema import checked
from synther.synthesizer import Synthesizer

log = logging.getLogger(__name__)

_OPTIONS = ("refresh_every", "samples", "refit", "replace", "background", "seed", "precision")
_BATCHES, _FITS, _HELD_OUT = range(3)  # random streams, one per purpose
_SEVERAL = 64  # among this many rows, some are not held out


class ReplayOptions(TypedDict, total=False):
    """The options of `SyntheticRows` and of all buffers that use it."""

    ratio: float | Literal["auto"]
    td_error: Relevance | None
    refresh: RefreshTime
    refresh_every: int
    samples: int | None
    preset: str | Settings
    refit: Refit
    replace: float
    background: bool
    relevance: str | Relevance | None
    relevant: float
    guidance: float
    guide: Guide | Gradient | None
    shuffled: bool
    seed: int
    device: str
    precision: compute.Precision
    progress: Progress | bool


def check_options(options: Iterable[str], *others: str) -> None:
    """Raise an error for names that are neither options of a replay nor in `others`."""
    known = [*others, *ReplayOptions.__annotations__]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"expected some of {', '.join(known)}"
            raise ConfigError(f"unknown option {name}: {hint}")


class SyntheticRows:
    """Keeps the newest `samples` synthetic rows. A refresh fits the generator on real rows and replaces synthetic rows.

    `SyntheticReplay` also stores the real rows; it documents the options. Buffers for other libraries store real rows
    in their own way. They call `refresh_on` with these rows when a refresh is `due`, and use `split` to find out how
    many rows of a batch to `draw` from here.
    """

    withholds: ClassVar[bool] = False
    """Whether the buffer can keep held-out rows out of batches, which `ratio="auto"` needs."""

    def __init__(
        self,
        *,
        ratio: float | Literal["auto"] = 0.5,
        td_error: Relevance | None = None,
        refresh: RefreshTime = "fixed",
        refresh_every: int = 10_000,
        samples: int | None = None,
        preset: str | Settings = "auto",
        refit: Refit = "warm",
        replace: float = 1.0,
        background: bool = False,
        relevance: str | Relevance | None = None,
        relevant: float = 0.25,
        guidance: float = 2.0,
        guide: Guide | Gradient | None = None,
        shuffled: bool = True,
        seed: int = 0,
        device: str = "auto",
        precision: compute.Precision = "auto",
        progress: Progress | bool = True,
    ) -> None:
        self.refresh_every = whole("refresh_every", refresh_every)
        if refit not in get_args(Refit):
            raise ConfigError(f"refit must be one of {', '.join(get_args(Refit))}, got {refit!r}")
        if not 0 < replace <= 1:
            raise ConfigError(
                f"replace, the fraction of synthetic rows that a refresh replaces, must lie in (0, 1], got {replace}"
            )
        self.device = compute.pick_device(device)
        self.samples = check_count(usual_samples(self.device) if samples is None else samples)
        self.precision = compute.pick_precision(precision, self.device)
        self.settings = named(preset, gpu=self.device.type == "cuda")
        self.refit: Refit = refit
        # Converted to plain Python types, because they are saved as JSON.
        self.replace, self.background, self.seed = float(replace), bool(background), whole("seed", seed, 0)
        name = OWN_RELEVANCE if callable(relevance) else relevance
        self.relevance = relevance
        self.relevant = None if name is None else Relevant(name, float(relevant), float(guidance))
        if guide is not None and self.background:
            raise ConfigError("a guide cannot be sent to the background: expected background=False, or no guide")
        self.guide = guide
        self.progress = progress
        if refresh not in get_args(RefreshTime):
            raise ConfigError(f"refresh must be one of {', '.join(get_args(RefreshTime))}, got {refresh!r}")
        self.refreshes: RefreshTime = refresh
        self.td_error, self.adapts_ratio = td_error, ratio == "auto"
        if self.adapts_ratio != (td_error is not None):
            raise ConfigError(
                "ratio='auto' needs td_error=f, a function that returns the TD errors (N,) of Transitions, and other "
                f"ratios take no td_error: got ratio {ratio!r} and td_error {td_error!r}"
            )
        if self.adapts_ratio and not self.withholds:
            raise ConfigError(
                "ratio='auto' needs real rows that no batch contains, and this buffer cannot keep rows out of batches: "
                "choose a number, or use SyntheticReplay"
            )
        if self.adapts_ratio or refresh == "auto":
            adapting.check_holdout(self.settings.fit.holdout)
        self.mixture = Mixture(adapting.FIRST_RATIO if ratio == "auto" else ratio, shuffled=shuffled)
        self.looks: list[Look] = []
        """The decisions of `ratio="auto"` and `refresh="auto"`, with the numbers behind them."""
        self.generator = compute.generator(self.device, self.seed, _BATCHES)
        self.columns: Columns | None = None
        self.synthetic: Ring | None = None
        """The synthetic rows. None before the first refresh."""
        self._history: list[Refresh] = []
        self._model: Synthesizer | None = None
        self._running: tuple[Refresh, Background] | None = None
        self._owed = False  # whether a refresh was started and then cancelled, so that it is due again

    @property
    def ratio(self) -> float:
        """The synthetic fraction of a batch. It can be changed at any time, unless it adapts itself."""
        return self.mixture.ratio

    @ratio.setter
    def ratio(self, ratio: float) -> None:
        if self.adapts_ratio:
            raise ConfigError("ratio='auto' chooses the ratio itself: pass a number as `ratio` to choose your own")
        self.mixture.ratio = ratio

    @property
    def history(self) -> list[Refresh]:
        """The records of all refreshes."""
        self.collect()
        return self._history

    @property
    def model(self) -> Synthesizer | None:
        """The generator of the latest successful refresh."""
        self.collect()
        return self._model

    def __repr__(self) -> str:
        self.collect()
        rows = 0 if self.synthetic is None else len(self.synthetic)
        return f"{type(self).__name__}({rows:,} rows, ratio {self.mixture.ratio:g}, on {self.device})"

    def due(self, added: int, stored: Callable[[], Stored] | None = None) -> bool:
        """Return whether a refresh is due after `added` real rows were added.

        `stored` returns the rows in the buffer. Without it, ratio and refreshes do not adapt.
        """
        if self._running is not None or not self.mixture.ratio > 0:
            return False
        last = self._history[-1].added if self._history else 0
        is_time = added // self.refresh_every > last // self.refresh_every
        adapts = self.adapts_ratio or self.refreshes == "auto"
        if self._owed or not adapts or stored is None or self._model is None:
            return self._owed or is_time
        looked = max(last, self.looks[-1].added if self.looks else 0)
        if added - looked >= adapting.look_every(self.refresh_every):
            self._look(added, last, looked, stored())
            if self.refreshes == "auto":
                return self.looks[-1].refresh
        return is_time and self.refreshes == "fixed"

    def _look(self, added: int, last: int, looked: int, stored: Stored) -> None:
        """Decide whether to refresh, adapt the ratio, and log both decisions.

        `last` and `looked` are the numbers of rows that had been added at the last refresh and at the last check.
        """
        assert self._model is not None
        held_out = stored.held_out((self.seed, _HELD_OUT), self.settings.fit.holdout)
        found: dict[str, Any] = {"refresh": False, "ratio": self.mixture.ratio}
        if self.refreshes == "auto":
            drift = stored.drift(self._model, held_out, added - last, added - looked)
            is_late = added - last >= adapting.LONGEST * self.refresh_every
            found |= {"unseen": drift.unseen, "newest": drift.newest, "refresh": drift.is_there or is_late}
        if self.td_error is not None and held_out.any():
            picked = [adapting.spread_over(np.flatnonzero(marks)) for marks in (held_out, ~held_out)]
            errors = [adapting.td_errors(self.td_error, stored.rows[places]) for places in picked]
            self.mixture.ratio = adapting.next_ratio(self.mixture.ratio, *errors)
            held_out_error, trained_error = (float(each.mean()) for each in errors)
            found |= {"held_out_error": held_out_error, "trained_error": trained_error, "ratio": self.mixture.ratio}
        self.looks.append(Look(added, **found))
        log.info("checked the generator after %s rows: %s", f"{added:,}", self.looks[-1])

    def refresh_on(self, rows: Transitions, added: int, **where: Any) -> None:
        """Fit on `rows` and generate synthetic rows now, or start both in the background.

        `added` is the number of real rows that were added so far. `where` are the arguments `gone` and `places` of
        `job_on`. A refresh that is already running in the background is cancelled.
        """
        self.collect()
        self.close()
        self._make_room(Columns.of(rows))
        job = self.job_on(rows, **where)
        self._owed = False
        begun = Refresh(len(self._history), added, len(rows), job.samples)
        try:
            if self.background:
                self._running = begun, Background(job)
            else:
                self._keep(begun, job.run(resolve(self.progress)))
        except SyntherError as error:
            self._failed(begun, error)

    def job_on(self, rows: Transitions, *, gone: int = 0, places: NDArray[np.int64] | None = None) -> Job:
        """Return the job of a refresh on `rows`. `gone` is the number of earlier rows that are no longer in the buffer.

        If the rows are not in the order in which they were added, `places` has each row's index in its ring buffer.
        """
        again = self.synthetic is not None and len(self.synthetic) > 0
        own = self.relevance
        return Job.of(
            Columns.of(rows),
            rows,
            self.settings,
            self.refit,
            stream=(self.seed, _HELD_OUT),
            gone=gone,
            places=places,
            before=self._model,
            samples=max(1, round(self.replace * self.samples)) if again else self.samples,
            seed=seed_of(self.seed, _FITS, len(self._history)),
            device=str(self.device),
            precision=self.precision,
            relevant=self.relevant,
            condition=np.asarray(own(rows), np.float64) if callable(own) else None,
            guide=self.guide,
        )

    def redraw(self, guide: Guide | Gradient | None = None) -> None:
        """Replace the synthetic rows by new samples of the current generator, without fitting it again.

        Call it to guide rows by what an agent has learned since the refresh. Default `guide`: the guide of this replay.
        Raises an error before the first refresh.
        """
        self.collect()
        if self._model is None or self.synthetic is None:
            raise ConfigError("there is no generator yet: call redraw after the first refresh")
        seed = int(torch.randint(2**31, (), generator=self.generator, device=self.device))
        chosen, progress = guide if guide is not None else self.guide, resolve(self.progress)
        rows = drawn(self._model, self._known_columns, self.samples, seed, progress, self.relevant, chosen)
        self.synthetic.add(rows)

    def held_out_numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of the held-out rows among those with the consecutive `numbers`.

        A row's number is its position in the order in which rows were added, counted from 0.
        """
        # If `held_out_rows` would hold out all rows, it holds out none. So it always gets several numbers.
        extended = np.arange(numbers[0], max(int(numbers[-1]) + 1, int(numbers[0]) + _SEVERAL))
        marks = held_out_rows((self.seed, _HELD_OUT), extended, self.settings.fit.holdout)
        return marks[: len(numbers)]

    def split(self, batch_size: int) -> tuple[int, int]:
        """Return the numbers of real and synthetic rows in the next batch."""
        self.collect()
        has_rows = self.synthetic is not None and len(self.synthetic) > 0
        return self.mixture.split(batch_size) if has_rows else (batch_size, 0)

    def draw(self, count: int) -> Tensor:
        """Draw `count` synthetic rows (count, width) with replacement."""
        if self.synthetic is None:
            raise ConfigError("there are no synthetic rows yet: call draw after the first refresh")
        return self.synthetic.sample(count, self.generator)

    def order(self, batch_size: int) -> Tensor | None:
        """Return a random order for the rows of a batch, or None if batches are not shuffled."""
        if not self.mixture.shuffled:
            return None
        return torch.randperm(batch_size, generator=self.generator, device=self.device)

    def wait(self) -> None:
        """Wait until a refresh in the background is finished, and use its rows."""
        if self._running is not None:
            self._running[1].wait()
            self.collect()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save to a folder. After `load`, batches and refreshes continue exactly as they would have without saving.

        `save` does not wait for a refresh in the background. That refresh is due again after loading.
        """
        self.collect()
        files.write(path, self._described(), {**self._tensors(), "generator": self.generator.get_state()}, self._model)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        device: str = "auto",
        relevance: Relevance | None = None,
        td_error: Relevance | None = None,
        guide: Guide | Gradient | None = None,
        progress: Progress | bool = True,
    ) -> Self:
        """Load a replay that was saved with `save`. On another kind of device, its random numbers are different.

        Functions are not in the file: pass your own `relevance` function, `td_error` and `guide` again.
        """
        kind = compute.pick_device(device).type
        described, tensors, model = files.read(path, device)
        if relevance is None and described.get("options", {}).get("relevance") == OWN_RELEVANCE:
            raise ConfigError(
                f"{path} was saved with your own relevance function, which is not in the file: load(path, relevance=f)"
            )
        adapts = described.get("options", {}).get("ratio") == "auto"
        if td_error is None and adapts:
            raise ConfigError(f"{path} was saved with a td_error, which is not in the file: load(path, td_error=f)")
        if td_error is not None and not adapts:
            raise ConfigError(f"{path} was saved without ratio='auto', and other ratios take no td_error: leave it out")
        try:
            options = described["options"]
            options["preset"] = Settings.from_json(options["preset"])
            if kind != described["device"]:
                options["precision"] = "auto"
            if options.get("relevance") == OWN_RELEVANCE:
                options["relevance"] = relevance
            arguments: Any = {"td_error": td_error, "guide": guide, "device": device, "progress": progress}
            replay = cls(**cls._given(options), **arguments)
            if replay.adapts_ratio:
                replay.mixture.ratio = float(described["ratio"])
            replay.looks = checked(described.get("looks", []), list[Look], "looks")
            if model is not None:
                model.precision = replay.precision
            replay._model = model
            replay._owed = described.get("owed", False)  # absent in older files
            replay.mixture.mixed = described["mixed"]
            replay._history = checked(described["history"], list[Refresh], "history")
            if described["store"] is not None:
                replay._restore(described["store"], tensors)
            if kind == described["device"]:
                replay.generator.set_state(tensors["generator"])
            return replay
        except Exception as error:  # parts of a damaged file that do not match can raise nearly any error
            raise FormatError(f"{path} is a damaged replay file: {error}") from error

    def close(self) -> None:
        """Cancel a refresh that is running in the background. It is due again when the next row is added."""
        if self._running is not None:
            self._running[1].close()
            self._running, self._owed = None, True

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling. A running refresh is due again after unpickling."""
        self.collect()
        changes = {"_running": None, "_owed": self._owed or self._running is not None}
        return {**self.__dict__, **changes, "generator": self.generator.get_state().numpy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.generator = torch.Generator(self.device)
        self.generator.set_state(torch.from_numpy(state["generator"].copy()))

    def collect(self) -> None:
        """Use the result of a refresh in the background, if it is finished."""
        if self._running is None or not self._running[1].done:
            return
        begun, background = self._running
        self._running = None
        try:
            self._keep(begun, background.result())
        except Failed as error:
            self._failed(begun, error)

    @property
    def _known_columns(self) -> Columns:
        assert self.columns is not None
        return self.columns

    def _make_room(self, columns: Columns) -> None:
        """Create the ring buffer of the synthetic rows, or a new one if rows have another width than before."""
        if self.synthetic is None or self._known_columns.width != columns.width:
            self.synthetic = Ring(self.samples, columns.width, self.device)
        self.columns = columns

    def _keep(self, begun: Refresh, generation: Generation) -> None:
        """Use the generator and the rows of a successful refresh."""
        assert self.synthetic is not None
        self._model = generation.model
        self.synthetic.add(generation.rows)
        self._history.append(generation.recorded(begun))
        log.info("refresh after %s rows: %s", f"{begun.added:,}", self._history[-1])

    def _failed(self, begun: Refresh, error: Exception) -> None:
        """Record and log a refresh that failed. The old generator and its rows stay."""
        self._history.append(dataclasses.replace(begun, reason=str(error)))
        result = "the old synthetic rows stay" if self._model is not None else "batches stay real"
        log.warning("the refresh after %s rows failed, %s: %s", f"{begun.added:,}", result, error)

    def _described(self) -> dict[str, Any]:
        """Return everything except tensors and the generator, as JSON values."""
        options = {name: getattr(self, name) for name in _OPTIONS}
        ratio = "auto" if self.adapts_ratio else self.mixture.ratio
        options |= {"ratio": ratio, "shuffled": self.mixture.shuffled, "preset": self.settings.to_json()}
        options |= {} if self.refreshes == "fixed" else {"refresh": self.refreshes}
        if self.relevant is not None:
            relevant = self.relevant
            options |= {"relevance": relevant.relevance, "relevant": relevant.share, "guidance": relevant.guidance}
        store = None
        if self.columns is not None and self.synthetic is not None:
            ring = self.synthetic
            store = {"columns": self.columns.to_json(), "synthetic": [ring.capacity, ring.added]}
        return {
            "options": options,
            "device": self.device.type,
            "mixed": self.mixture.mixed,
            "ratio": self.mixture.ratio,
            "looks": [dataclasses.asdict(look) for look in self.looks],
            "history": [dataclasses.asdict(refresh) for refresh in self._history],
            "owed": self._owed or self._running is not None,
            "store": store,
        }

    def _tensors(self) -> dict[str, Tensor]:
        return {} if self.synthetic is None else {"synthetic": self.synthetic.by_age()}

    @classmethod
    def _given(cls, options: dict[str, Any]) -> dict[str, Any]:
        """Convert the options of a saved file to arguments of the constructor."""
        return options

    def _restore(self, store: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self._make_room(Columns.from_json(store["columns"]))
        assert self.synthetic is not None
        self.synthetic.restore(tensors["synthetic"], store["synthetic"][1])


def whole(name: str, value: int, least: int = 1) -> int:
    """Return an option as int. Whole floats such as 1e6 are accepted. Raises an error for any other value, and for
    values below `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not value >= least or value % 1:
        raise ConfigError(f"{name} must be a whole number and at least {least}, got {value!r}")
    return int(value)

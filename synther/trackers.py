"""Write measurements to TensorBoard and Weights & Biases.

`Trackers` writes the measurements of a training run. `Watched` is a progress object that writes the measurements of any
fit to TensorBoard while it runs:

    model.fit(rows, progress=Watched("watched"))

If a tracker fails, the work continues without it.
"""

from __future__ import annotations

import logging
import re
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from synther.errors import ConfigError, MissingExtra, SyntherError
from synther.folder import read_object, write_object
from synther.progress import Measuring, Phase, Progress, measured, on_stderr

log = logging.getLogger(__name__)

Wanted = Literal["auto", "on", "off"]
"""Whether to write TensorBoard events. "auto" writes them if TensorBoard is installed."""

Layout = dict[str, dict[str, list[Any]]]
"""Charts by group and title, in the format of TensorBoard's page "Custom Scalars"."""
LayoutOf = Callable[[Collection[str]], Layout]
"""A function that returns the charts for curves with the given names."""


def of_fits(tags: Collection[str]) -> Layout:
    """Return the charts of a fit, for curves with these names."""
    charts = {"loss": _lines("fit/(loss|held_out)"), "against real rows": _lines("comparison/.*")}
    return _with_curves({"Generator": charts}, tags)


def of_runs(tags: Collection[str]) -> Layout:
    """Return the charts of a training run, for curves with these names.

    They show a band over the seeds for each arm, losses, refreshes of the generators, and speed. If TensorBoard shows
    several runs, it merges charts that are equal in all runs, so each merged chart has the curves of all runs.
    """
    means = [tag.split("/") for tag in sorted(tags) if tag.endswith("/mean") and not tag.startswith("refresh/")]
    agents = {}
    for kind in ("return", "score"):
        agents[kind] = _lines(f"{kind}/.*/mean")
        agents |= {f"{kind}, {arm}": _band(f"{kind}/{arm}") for name, arm, _ in means if name == kind}
    losses = sorted({name for name, _, _ in means} - {"return", "score"})
    layout = {
        "Agents": {**agents, "diverged seeds": _lines("diverged/.*")},
        "Losses": {loss: _lines(f"{re.escape(loss)}/.*/mean") for loss in losses},
        "Generators": {
            "held-out loss": _band("refresh/held_out"),
            "seconds": _lines("refresh/.*_seconds"),
            "failed fits": _lines("refresh/failed"),
        },
        "Speed": {"per second": _lines("speed/.*")},
    }
    return _with_curves(layout, tags)


def _band(name: str) -> list[Any]:
    """Return a chart with the mean of a figure, and a band from its minimum to its maximum."""
    return ["Margin", [f"{name}/{part}" for part in ("mean", "min", "max")]]


def _lines(pattern: str) -> list[Any]:
    """Return a chart of all curves with names that match `pattern` completely. TensorBoard only matches the start of
    names, so the pattern ends with `$`."""
    return ["Multiline", [f"{pattern}$"]]


def _with_curves(layout: Layout, tags: Collection[str]) -> Layout:
    """Return `layout` without empty charts, because TensorBoard shows a warning in place of an empty chart."""

    def has_curves(kind: str, names: list[str]) -> bool:
        return all(any(re.match(name, tag) if kind == "Multiline" else name == tag for tag in tags) for name in names)

    kept = {
        group: {title: chart for title, chart in charts.items() if has_curves(*chart)}
        for group, charts in layout.items()
    }
    return {group: charts for group, charts in kept.items() if charts}


class Trackers:
    """All trackers of the run in `folder`. A tracker that fails logs one warning and is then ignored."""

    def __init__(self, folder: Path, tensorboard: Wanted, wandb: str | None, layout: LayoutOf) -> None:
        self._all: dict[str, _TensorBoard | _WeightsAndBiases] = {}
        if _wanted(tensorboard):
            with self._forgiving("TensorBoard"):
                self._all["TensorBoard"] = _TensorBoard(folder, layout)
        if wandb is not None:
            with self._forgiving("Weights & Biases"):
                self._all["Weights & Biases"] = _WeightsAndBiases(folder, wandb)

    def write(self, step: int, seconds: float, figures: Mapping[str, float]) -> None:
        """Write figures by name, measured at `step`, `seconds` after the start."""
        for name, tracker in list(self._all.items()):
            with self._forgiving(name):
                tracker.write(step, seconds, figures)

    def close(self, failed: bool = False) -> None:
        """Finish all trackers. `failed` says that the run ended with an error."""
        for name, tracker in list(self._all.items()):
            with self._forgiving(name):
                tracker.close(failed)

    @contextmanager
    def _forgiving(self, name: str) -> Iterator[None]:
        """Log a warning and remove the tracker if it raises an exception. Errors of SynthER itself are raised."""
        try:
            yield
        except SyntherError:
            raise
        except Exception as error:  # for example a full disk, or no network
            self._all.pop(name, None)
            log.warning("%s failed (%s: %s): the work continues without it", name, type(error).__name__, error)


class Watched:
    """Progress that also writes measurements as TensorBoard events to `folder`.

    `inner` shows the progress as usual. If a phase is repeated, such as the fit of every refresh, its curve continues
    after that of the previous one.
    """

    def __init__(self, folder: str | PathLike[str], inner: Progress | None = None) -> None:
        self.folder, self._inner = Path(folder).expanduser(), inner or on_stderr()
        check("on", None)
        self._trackers: Trackers | None = None
        self._began = time.monotonic()
        self._steps: dict[str, int] = {}

    @contextmanager
    def phase(self, name: str, total: int, start: int = 0) -> Iterator[Phase]:
        before = self._steps.get(name, 0)
        with self._inner.phase(name, total, start) as inner:
            yield _WatchedPhase(self, name, before, inner)

    def write(self, name: str, step: int, figures: Mapping[str, float]) -> None:
        """Write figures as `name/FIGURE`."""
        self._steps[name] = step
        if self._trackers is None:  # created late, because creating it deletes the events of an earlier run
            self._trackers = Trackers(self.folder, "on", None, of_fits)
        tagged = {f"{name}/{figure}": value for figure, value in figures.items()}
        self._trackers.write(step, time.monotonic() - self._began, tagged)

    def fitted(self, history: Sequence[Mapping[str, float]]) -> None:
        """Write the measurements of a fit that an earlier process has finished."""
        if "fit" not in self._steps:
            for entry in history:
                figures = {name: entry[name] for name in ("loss", "held_out") if name in entry}
                self.write("fit", int(entry["step"]), figures)

    def close(self) -> None:
        if self._trackers is not None:
            self._trackers.close()


class _WatchedPhase(Measuring):
    """A phase that passes progress to `inner` and measurements to its owner. `before` is the last step before it."""

    def __init__(self, owner: Watched, name: str, before: int, inner: Phase) -> None:
        self._owner, self._name, self._before, self._inner = owner, name, before, inner

    def advance(self, amount: int, note: str = "") -> None:
        self._inner.advance(amount, note)

    def measured(self, step: int, figures: Mapping[str, float]) -> None:
        self._owner.write(self._name, self._before + step, figures)
        measured(self._inner, step, figures)


class _TensorBoard:
    """Writes events to the subfolder `tensorboard`. Each process deletes and rewrites it, because single events cannot
    be removed."""

    def __init__(self, folder: Path, layout: LayoutOf) -> None:
        events, description = folder / "tensorboard", folder / "run.json"
        if events.exists():
            shutil.rmtree(events)
        self._began = description.stat().st_mtime if description.exists() else time.time()
        self._writer = _library("torch.utils.tensorboard").SummaryWriter(str(events))
        self._layout, self._tags, self._shown = layout, set[str](), Layout()

    def write(self, step: int, seconds: float, figures: Mapping[str, float]) -> None:
        self._tags |= figures.keys()
        layout = self._layout(self._tags)
        if layout != self._shown:  # TensorBoard shows the latest layout
            self._writer.add_custom_scalars(layout)
            self._shown = layout
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step, walltime=self._began + seconds)
        self._writer.flush()

    def close(self, failed: bool) -> None:
        self._writer.close()


class _WeightsAndBiases:
    """Writes to one run of Weights & Biases, with an id that is saved in `wandb.json`.

    A process that continues a run writes all measurements again. Online runs know their last step, and only later
    measurements are sent. Offline runs of an earlier process are removed.
    """

    def __init__(self, folder: Path, project: str) -> None:
        wandb = _library("wandb")
        file = folder / "wandb.json"
        saved = read_object(file) if file.exists() else {}
        if saved.get("project") != project:
            saved = {"project": project, "id": secrets.token_hex(8)}
            write_object(file, saved)
        for earlier in (folder / "wandb").glob("offline-run-*"):
            shutil.rmtree(earlier)
        try:
            self._run = wandb.init(
                project=project,
                id=saved["id"],
                resume="allow",
                name=folder.resolve().name,
                dir=str(folder),
                config=read_object(folder / "run.json"),
                settings=wandb.Settings(console="off", silent=True),
            )
        except wandb.errors.UsageError as error:
            raise ConfigError(f"Weights & Biases: {error} Or set WANDB_MODE=offline, or remove --wandb") from None

    def write(self, step: int, seconds: float, figures: Mapping[str, float]) -> None:
        if step >= self._run.step:  # each step can be logged once, in ascending order
            self._run.log({**figures, "seconds": seconds}, step=step, commit=True)

    def close(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


def check(tensorboard: Wanted, wandb: str | None) -> None:
    """Raise `MissingExtra` if a tracker is not installed. Call this before creating a folder."""
    if tensorboard == "on":
        _library("torch.utils.tensorboard")
    if wandb is not None:
        _library("wandb")


def _wanted(tensorboard: Wanted) -> bool:
    """Return whether to write TensorBoard events. For "auto", log why if TensorBoard is not installed."""
    if tensorboard == "auto":
        try:
            _library("torch.utils.tensorboard")
        except MissingExtra as error:
            log.info("%s", error)
            return False
    return tensorboard != "off"


def _library(name: str) -> Any:
    """Import a library of a tracker, or raise `MissingExtra`."""
    try:
        return import_module(name)
    except ImportError:
        what = "writing TensorBoard events" if "tensorboard" in name else "tracking a run with Weights & Biases"
        raise MissingExtra(name.rpartition(".")[2], "track", what) from None

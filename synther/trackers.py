"""TensorBoard and Weights & Biases, and fits that can be watched in TensorBoard while they run.

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

Layout = dict[str, dict[str, list[Any]]]
"""Charts by group and title, as TensorBoard's page "Custom Scalars" takes them."""
LayoutOf = Callable[[Collection[str]], Layout]
"""The charts of the curves that have these names."""


def of_fits(tags: Collection[str]) -> Layout:
    """The charts of a fit in which curves of these names were written."""
    charts = {"loss": _lines("fit/(loss|held_out)"), "against real rows": _lines("comparison/.*")}
    return _with_curves({"Generator": charts}, tags)


def of_runs(tags: Collection[str]) -> Layout:
    """The charts of a run: a band over the seeds for each arm, losses, refreshes of generators, speed.

    Where TensorBoard shows several runs, charts that are the same in all of them become one, with the curves of all.
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
    return ["Margin", [f"{name}/{part}" for part in ("mean", "min", "max")]]


def _lines(pattern: str) -> list[Any]:
    """All curves whose whole name is of the pattern. TensorBoard only asks that its start be."""
    return ["Multiline", [f"{pattern}$"]]


def _with_curves(layout: Layout, tags: Collection[str]) -> Layout:
    """`layout` without charts that would be empty: TensorBoard shows a warning in their place."""

    def has_curves(kind: str, names: list[str]) -> bool:
        return all(any(re.match(name, tag) if kind == "Multiline" else name == tag for tag in tags) for name in names)

    kept = {
        group: {title: chart for title, chart in charts.items() if has_curves(*chart)}
        for group, charts in layout.items()
    }
    return {group: charts for group, charts in kept.items() if charts}


class Trackers:
    """All trackers of the work in `folder`. One that fails causes one warning and is dropped."""

    def __init__(self, folder: Path, tensorboard: Wanted, wandb: str | None, layout: LayoutOf) -> None:
        self._all: dict[str, _TensorBoard | _WeightsAndBiases] = {}
        if _wanted(tensorboard):
            with self._forgiving("TensorBoard"):
                self._all["TensorBoard"] = _TensorBoard(folder, layout)
        if wandb is not None:
            with self._forgiving("Weights & Biases"):
                self._all["Weights & Biases"] = _WeightsAndBiases(folder, wandb)

    def write(self, step: int, seconds: float, figures: Mapping[str, float]) -> None:
        for name, tracker in list(self._all.items()):
            with self._forgiving(name):
                tracker.write(step, seconds, figures)

    def close(self, failed: bool = False) -> None:
        for name, tracker in list(self._all.items()):
            with self._forgiving(name):
                tracker.close(failed)

    @contextmanager
    def _forgiving(self, name: str) -> Iterator[None]:
        try:
            yield
        except SyntherError:
            raise
        except Exception as error:  # a full disk, a lost network, whatever their libraries raise
            self._all.pop(name, None)
            log.warning("%s failed (%s: %s): the work continues without it", name, type(error).__name__, error)


class Watched:
    """Progress that is also written as TensorBoard events to `folder`, and shown by `inner` as usual.

    A phase that comes again, such as the fit of every refresh, continues the curve of the one before.
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
        if self._trackers is None:  # not before there is something: another run may own the folder
            self._trackers = Trackers(self.folder, "on", None, of_fits)
        told = {f"{name}/{figure}": value for figure, value in figures.items()}
        self._trackers.write(step, time.monotonic() - self._began, told)

    def fitted(self, history: Sequence[Mapping[str, float]]) -> None:
        """Write the measurements of a fit if an earlier process has finished it."""
        if "fit" not in self._steps:
            for entry in history:
                told = {name: entry[name] for name in ("loss", "held_out") if name in entry}
                self.write("fit", int(entry["step"]), told)

    def close(self) -> None:
        if self._trackers is not None:
            self._trackers.close()


class _WatchedPhase(Measuring):
    def __init__(self, owner: Watched, name: str, before: int, inner: Phase) -> None:
        self._owner, self._name, self._before, self._inner = owner, name, before, inner

    def advance(self, amount: int, note: str = "") -> None:
        self._inner.advance(amount, note)

    def measured(self, step: int, figures: Mapping[str, float]) -> None:
        self._owner.write(self._name, self._before + step, figures)
        measured(self._inner, step, figures)


class _TensorBoard:
    """Events in a folder of their own, which is written again each time: single events cannot be removed from it."""

    def __init__(self, folder: Path, layout: LayoutOf) -> None:
        own, described = folder / "tensorboard", folder / "run.json"
        if own.exists():
            shutil.rmtree(own)
        self._began = described.stat().st_mtime if described.exists() else time.time()
        self._writer = _library("torch.utils.tensorboard").SummaryWriter(str(own))
        self._layout, self._tags, self._shown = layout, set[str](), Layout()

    def write(self, step: int, seconds: float, figures: Mapping[str, float]) -> None:
        self._tags |= figures.keys()
        layout = self._layout(self._tags)
        if layout != self._shown:  # the latest is the one that is drawn
            self._writer.add_custom_scalars(layout)
            self._shown = layout
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step, walltime=self._began + seconds)
        self._writer.flush()

    def close(self, failed: bool) -> None:
        self._writer.close()


class _WeightsAndBiases:
    """One run there for one run here, with an id that is kept in `wandb.json`.

    Earlier measurements are written again if they are missing there. Online runs report their last step; offline runs
    of an earlier process are removed.
    """

    def __init__(self, folder: Path, project: str) -> None:
        wandb = _library("wandb")
        kept = folder / "wandb.json"
        known = read_object(kept) if kept.exists() else {}
        if known.get("project") != project:
            known = {"project": project, "id": secrets.token_hex(8)}
            write_object(kept, known)
        for left in (folder / "wandb").glob("offline-run-*"):
            shutil.rmtree(left)
        try:
            self._run = wandb.init(
                project=project,
                id=known["id"],
                resume="allow",
                name=folder.resolve().name,
                dir=str(folder),
                config=read_object(folder / "run.json"),
                settings=wandb.Settings(console="off", silent=True),
            )
        except wandb.errors.UsageError as error:
            raise ConfigError(f"Weights & Biases: {error} Or set WANDB_MODE=offline, or leave --wandb out") from None

    def write(self, step: int, seconds: float, figures: Mapping[str, float]) -> None:
        if step >= self._run.step:  # they take each number once, and in order
            self._run.log({**figures, "seconds": seconds}, step=step, commit=True)

    def close(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


def check(tensorboard: Wanted, wandb: str | None) -> None:
    """Refuse trackers that are not installed, before there is a folder."""
    if tensorboard == "on":
        _library("torch.utils.tensorboard")
    if wandb is not None:
        _library("wandb")


def _wanted(tensorboard: Wanted) -> bool:
    if tensorboard == "auto":
        try:
            _library("torch.utils.tensorboard")
        except MissingExtra as error:
            log.info("%s", error)
            return False
    return tensorboard != "off"


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        what = "writing TensorBoard events" if "tensorboard" in name else "tracking a run with Weights & Biases"
        raise MissingExtra(name.rpartition(".")[2], "track", what) from None

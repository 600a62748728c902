"""TensorBoard and Weights & Biases, and fits that can be watched in TensorBoard while they run.

    model.fit(rows, progress=Watched("watched"))

If a tracker fails, the work continues without it.
"""

from __future__ import annotations

import logging
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
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

OF_FITS: Layout = {
    "Generator": {
        "loss": ["Multiline", ["fit/loss", "fit/held_out"]],
        "against real rows": ["Multiline", ["comparison/.*"]],
    }
}


def of_runs(arms: Sequence[str]) -> Layout:
    """The charts of a run: a band over the seeds for each arm, losses, refreshes of generators, speed."""
    both = [(kind, arm) for kind in ("return", "score") for arm in arms]
    bands = {
        f"{kind}, {arm}": ["Margin", [f"{kind}/{arm}/{part}" for part in ("mean", "min", "max")]] for kind, arm in both
    }
    means = {kind: ["Multiline", [f"{kind}/.*/mean"]] for kind in ("return", "score")}
    return {
        "Agents": {**means, **bands, "diverged seeds": ["Multiline", ["diverged/.*"]]},
        "Losses": {"mean over seeds": ["Multiline", [r"(?!return|score|refresh).*/.*/mean"]]},
        "Generators": {
            "held-out loss": ["Margin", [f"refresh/held_out/{part}" for part in ("mean", "min", "max")]],
            "seconds": ["Multiline", ["refresh/.*_seconds"]],
        },
        "Speed": {"updates per second": ["Multiline", ["speed/.*"]]},
    }


class Trackers:
    """All trackers of the work in `folder`. One that fails causes one warning and is dropped."""

    def __init__(self, folder: Path, tensorboard: Wanted, wandb: str | None, layout: Layout) -> None:
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
            self._trackers = Trackers(self.folder, "on", None, OF_FITS)
        told = {f"{name}/{figure}": value for figure, value in figures.items()}
        self._trackers.write(step, time.monotonic() - self._began, told)

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

    def __init__(self, folder: Path, layout: Layout) -> None:
        own, described = folder / "tensorboard", folder / "run.json"
        if own.exists():
            shutil.rmtree(own)
        self._began = described.stat().st_mtime if described.exists() else time.time()
        self._writer = _library("torch.utils.tensorboard").SummaryWriter(str(own))
        self._writer.add_custom_scalars(layout)

    def write(self, step: int, seconds: float, figures: Mapping[str, float]) -> None:
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

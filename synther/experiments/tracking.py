"""Show measurements while a run goes on: TensorBoard events in its folder, and Weights & Biases if asked for.

Both receive the lines of the log, from the first line each time the run is resumed. So they show every measurement
once, whatever happened to the run. If a tracker fails, training continues.
"""

from __future__ import annotations

import logging
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import numpy as np

from synther.errors import ConfigError, MissingExtra, SyntherError
from synther.experiments.results import Measurement, by_arm
from synther.experiments.spec import Tracked
from synther.folder import read_object, write_object

log = logging.getLogger(__name__)


class Tracker(Protocol):
    def write(self, updates: int, seconds: float, figures: Mapping[str, float]) -> None: ...
    def close(self, failed: bool) -> None: ...


class Tracking:
    """All trackers of the run in `folder`. One that fails causes one warning and is dropped."""

    def __init__(self, folder: Path, arms: Sequence[str], spec: Tracked) -> None:
        self._arms, self._before = arms, (0, 0.0)
        self._trackers: dict[str, Tracker] = {}
        if _wanted(spec.tensorboard):
            with self._forgiving("TensorBoard"):
                self._trackers["TensorBoard"] = _TensorBoard(folder)
        if spec.wandb is not None:
            with self._forgiving("Weights & Biases"):
                self._trackers["Weights & Biases"] = _WeightsAndBiases(folder, spec.wandb)

    def write(self, measurement: Measurement) -> None:
        found = figures(measurement, self._arms)
        updates, seconds = self._before
        if measurement.seconds > seconds:
            found["speed/updates_per_second"] = (measurement.updates - updates) / (measurement.seconds - seconds)
        self._before = measurement.updates, measurement.seconds
        for name, tracker in list(self._trackers.items()):
            with self._forgiving(name):
                tracker.write(measurement.updates, measurement.seconds, found)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *failure: object) -> None:
        for name, tracker in list(self._trackers.items()):
            with self._forgiving(name):
                tracker.close(failed=kind is not None)

    @contextmanager
    def _forgiving(self, name: str) -> Iterator[None]:
        try:
            yield
        except SyntherError:
            raise
        except Exception as error:  # a full disk, a lost network, whatever their libraries raise
            self._trackers.pop(name, None)
            log.warning("%s failed (%s: %s): training continues without it", name, type(error).__name__, error)


def check(spec: Tracked) -> None:
    """Refuse trackers that are not installed, before there is a folder."""
    if spec.tensorboard == "on":
        _library("torch.utils.tensorboard")
    if spec.wandb is not None:
        _library("wandb")


def figures(measurement: Measurement, arms: Sequence[str]) -> dict[str, float]:
    """Mean, minimum and maximum of every number over an arm's seeds, without seeds that have diverged."""
    numbers = {"score": measurement.mean_scores, "return": measurement.mean_returns, **measurement.losses}
    found: dict[str, float] = {}
    for name, values in numbers.items():
        for arm, own in by_arm(values or (), arms).items():
            there = [value for value in own if value is not None]
            if there:
                summary = {"mean": float(np.mean(there)), "min": min(there), "max": max(there)}
                found |= {f"{name}/{arm}/{kind}": value for kind, value in summary.items()}
    for arm, gone in by_arm(measurement.diverged, arms).items():
        found[f"diverged/{arm}"] = float(sum(gone))
    return found


class _TensorBoard:
    """Events in a folder of their own, which is written again each time: single events cannot be removed from it."""

    def __init__(self, folder: Path) -> None:
        own = folder / "tensorboard"
        if own.exists():
            shutil.rmtree(own)
        self._began = (folder / "run.json").stat().st_mtime
        self._writer = _library("torch.utils.tensorboard").SummaryWriter(str(own))

    def write(self, updates: int, seconds: float, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, updates, walltime=self._began + seconds)
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

    def write(self, updates: int, seconds: float, figures: Mapping[str, float]) -> None:
        if updates >= self._run.step:  # they take each number once, and in order
            self._run.log({**figures, "seconds": seconds}, step=updates, commit=True)

    def close(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


def _wanted(tensorboard: Literal["auto", "on", "off"]) -> bool:
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

"""What holds for every kind of run: stopped and resumed, extended, refused, locked and evaluated in the same way."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from synther import read
from synther.envs import evaluation
from synther.errors import ConfigError
from synther.experiments import offline, online, record
from synther.experiments.evaluation import score
from synther.experiments.loop import CHECKPOINT
from synther.experiments.pixels import retrain_to
from synther.experiments.pixels import train_to as train_on_frames
from synther.experiments.sources import Augmented, Given, TrainingData
from synther.folder import RunFolder
from synther.pixels.latents import encode
from synther.upsample import upsample

from ..pixels.lamps import Lamps
from ..support import small_job
from ..support.processes import Here
from ..support.watch import Stopped, Watch
from . import seeing, trainings
from .online import runs as rows_online
from .online_pixels import runs as frames_online
from .online_pixels.conftest import one_process
from .pendulum import Guess, linked


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Evaluations start no process, and checkpoints are written whenever that is possible."""
    with pytest.MonkeyPatch.context() as patched, one_process():
        for module in (offline, online):
            patched.setattr(module, "Evaluator", Guess)
        patched.setattr(evaluation, "Workers", Here)
        patched.setattr(record, "_CHECKPOINT_SHARE", float("inf"))
        patched.setattr("synther.upsample.draw", lambda real, fake, path, found: path.write_bytes(b""))
        yield


@dataclass(frozen=True)
class Kind:
    """A kind of run: `run(folder, progress, **changes)`."""

    run: Callable[..., object]
    same: Callable[[Path, Path], bool]
    other: dict[str, Any]
    """Changes that make it another run."""
    longer: dict[str, Any] | None = None
    """Changes that make it a longer run, where one can be extended."""
    world: Callable[..., Any] | None = None
    """Draws what pixel agents see in an evaluation."""
    trained: tuple[str, int] | None = None
    """In which unit, and how long, its agents are trained, where it has any."""


def run_offline(folder: Path, progress: Any = False, **changes: Any) -> object:
    return trainings.run(folder, replace(trainings.PLAN, **changes), progress=progress)


def run_online(folder: Path, progress: Any = False, **changes: Any) -> object:
    return rows_online.run(folder, replace(rows_online.PLAN, **{"steps": 60, **changes}), progress)


def run_offline_n_step(folder: Path, progress: Any = False, **changes: Any) -> object:
    real = linked()
    material = TrainingData.mixed(real, Augmented("additive", real, 40), 0.5)
    return trainings.run(folder, replace(trainings.PLAN, **{"n_step": 3, **changes}), material, progress)


def run_online_n_step(folder: Path, progress: Any = False, **changes: Any) -> object:
    """With time limits within segments."""
    return run_online(folder, progress, **{"n_step": 3, "env_options": {"max_episode_steps": 8}, **changes})


def run_online_pixels(folder: Path, progress: Any = False, **changes: Any) -> object:
    return frames_online.run(folder, replace(frames_online.PLAN, **{"steps": 24, **changes}), Lamps, progress)


def run_frames(folder: Path, progress: Any = False, **changes: Any) -> object:
    return train_on_frames(replace(seeing.PLAN, **changes), seeing.frames(), folder, progress=progress)


def run_heads(folder: Path, progress: Any = False, **changes: Any) -> object:
    stage_one = folder.with_name("stage one")
    run_frames(stage_one)
    latents = encode(stage_one / CHECKPOINT, seeing.frames(), shifts=1, device="cpu")
    spec, sources = replace(seeing.PLAN, **changes), [Given(rows) for rows in latents]
    return retrain_to(spec, stage_one, sources, folder, features="both", progress=progress)


def run_upsample(folder: Path, progress: Any = False, samples: int = 3_000) -> object:
    return upsample(small_job.made(), folder, small_job.model(), samples, suffix=".npz", progress=progress)


def same_policies(one: Path, other: Path) -> bool:
    logs = [[trainings.logged(log.parent) for log in sorted(folder.rglob("log.jsonl"))] for folder in (one, other)]
    tensors = [file for file in seeing.files(one) if file.endswith(".safetensors")]
    return (
        seeing.files(one) == seeing.files(other) and logs[0] == logs[1] and trainings.same_tensors(one, other, *tensors)
    )


def same_rows(one: Path, other: Path) -> bool:
    equal = read(one / "synthetic.npz").equals(read(other / "synthetic.npz"))
    return equal and seeing.files(one) == seeing.files(other)


KINDS = {
    "offline": Kind(run_offline, trainings.same, {"seed": 1}, {"updates": 75}, trained=("updates", 45)),
    "online": Kind(run_online, rows_online.same, {"learning_starts": 13}, {"steps": 75}, trained=("steps", 60)),
    "offline n-step": Kind(run_offline_n_step, trainings.same, {"n_step": 2}),
    "online n-step": Kind(run_online_n_step, rows_online.same, {"n_step": 2}),
    "online_pixels": Kind(
        run_online_pixels, frames_online.same, {"update_every": 1}, {"steps": 30}, Lamps, ("steps", 24)
    ),
    "frames": Kind(run_frames, same_policies, {"seeds": 3}, None, seeing.Wall, ("updates", 12)),
    "heads": Kind(run_heads, same_policies, {"updates": 13}, None, seeing.Wall, ("updates", 12)),
    "upsample": Kind(run_upsample, same_rows, {"samples": 3_001}),
}


@pytest.fixture(params=KINDS)
def kind(request) -> Kind:
    return KINDS[request.param]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Callable[[Kind], tuple[Path, int]]:
    """A run of a kind that nothing has stopped, and how often it reported progress."""
    known: dict[int, tuple[Path, int]] = {}

    def of(kind: Kind) -> tuple[Path, int]:
        if id(kind) not in known:
            watch, folder = Watch(), tmp_path_factory.mktemp("finished") / "run"
            kind.run(folder, watch)
            known[id(kind)] = folder, len(watch.amounts)
        return known[id(kind)]

    return of


LATE = ("frames", "heads", "upsample")
"""Kinds that are also stopped late. Other tests stop the others at many places."""
STOPS = [(name, share) for name in KINDS for share in (0.5, 0.9) if share < 0.9 or name in LATE]


@pytest.mark.parametrize(("name", "share"), STOPS)
def test_stopped_and_resumed_it_equals_a_run_that_was_not(name, share, finished, tmp_path):
    kind = KINDS[name]
    whole, reports = finished(kind)
    with pytest.raises(Stopped):
        kind.run(tmp_path / "run", Watch(reports=max(2, round(share * reports))))
    rest = Watch()
    kind.run(tmp_path / "run", rest)
    assert len(rest.amounts) < reports  # it did not start again from nothing
    assert kind.same(whole, tmp_path / "run")


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.longer])
def test_extended_and_stopped_it_equals_a_run_that_was_as_long_from_the_start(name, finished, tmp_path):
    kind = KINDS[name]
    kind.run(tmp_path / "at once", **kind.longer)
    shutil.copytree(finished(kind)[0], tmp_path / "run")
    before = (tmp_path / "run" / "result.json").read_text()
    with pytest.raises(Stopped):
        kind.run(tmp_path / "run", Watch(reports=2), **kind.longer)
    assert (tmp_path / "run" / "result.json").read_text() == before  # which it has still
    kind.run(tmp_path / "run", **kind.longer)
    assert kind.same(tmp_path / "at once", tmp_path / "run")
    with pytest.raises(ConfigError, match=f"other options: {next(iter(kind.longer))}"):
        kind.run(tmp_path / "run")


def test_a_finished_run_changes_nothing_and_other_options_are_refused(kind, finished):
    folder, _ = finished(kind)
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    kind.run(folder)
    with pytest.raises(ConfigError, match=f"other options: {next(iter(kind.other))}"):
        kind.run(folder, **kind.other)
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before


def test_a_folder_that_another_process_works_in_is_refused_unless_the_run_is_finished(kind, finished, tmp_path):
    with RunFolder(tmp_path / "run").lock(), pytest.raises(ConfigError, match="is working in"):
        kind.run(tmp_path / "run")
    with RunFolder(finished(kind)[0]).lock():
        kind.run(finished(kind)[0])


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.trained])
def test_it_can_be_evaluated(name, finished):
    kind = KINDS[name]
    world = {} if kind.world is None else {"make_env": kind.world}
    found = score(finished(kind)[0], episodes=1, workers=1, progress=False, **world)
    (arm,) = found.arms.values()
    assert len(found.seeds) == len(arm.returns) == 2
    assert None not in arm.returns
    assert (found.unit, arm.updates) == kind.trained
    if name == "online_pixels":
        assert found.evaluation.returns.tolist() == trainings.logged(found.file.parent)[-1]["returns"]
    if world:
        other = score(found.file.parent, episodes=1, number=1, workers=1, progress=False, **world)
        assert other.evaluation.returns.tolist() != found.evaluation.returns.tolist()
        with pytest.raises(ConfigError, match="env-options"):
            score(found.file.parent, env_options={"max_episode_steps": 4}, progress=False, **world)

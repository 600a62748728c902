"""Whatever is killed again and again by the system still ends with the same files."""

from __future__ import annotations

import importlib
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from synther import read
from synther.experiments import record
from synther.experiments.sources import TrainingData
from synther.synthesizer import single_file
from synther.upsample import upsample

from ..support import small_job
from ..support.processes import forked
from ..support.watch import Slow
from . import seeing, trainings
from .pendulum import swings

OFFLINE = replace(trainings.PLAN, evaluate=False, updates=150, tensorboard="on")
SAMPLES = 3000


def lives(work: Callable[[], object]) -> int:
    """How often the work was killed until it came to its end, each time after longer than before."""
    kills = 0
    while True:
        process, ended = forked(work), (0, 0)
        until = time.monotonic() + random.uniform(0.02, 0.15 * 1.5**kills)
        while not ended[0] and time.monotonic() < until:
            time.sleep(0.01)
            ended = os.waitpid(process, os.WNOHANG)
        if ended[0]:
            assert os.waitstatus_to_exitcode(ended[1]) == 0
            return kills
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        kills += 1


@pytest.fixture
def killed(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(record, "_CHECKPOINT_SHARE", float("inf"))
    monkeypatch.setattr(single_file, "SPOOLED_BLOCKS", 1)
    monkeypatch.setattr("synther.upsample.draw", lambda real, fake, path, found: path.write_bytes(b""))
    folder, slow = tmp_path / "killed", Slow(0.02)
    importlib.import_module("torch.utils.tensorboard")  # once, not in every life
    rows, small, model = TrainingData(swings(env_id=None)), small_job.made(), small_job.model()
    assert lives(lambda: trainings.run(folder / "offline", OFFLINE, rows, slow)) >= 2
    how: dict = {"suffix": ".npz", "progress": slow}
    assert lives(lambda: upsample(small, folder / "upsampled", model, SAMPLES, **how)) >= 2
    return folder


def test_killed_again_and_again_it_still_ends_with_the_same_files(killed, tmp_path):
    trainings.run(tmp_path / "offline", OFFLINE, TrainingData(swings(env_id=None)))
    (killed / "offline" / ".run.lock").unlink(missing_ok=True)  # of a life that ended between its result and its end
    assert trainings.same(tmp_path / "offline", killed / "offline")
    shown, log = trainings.events(killed / "offline")["actor/real/max"], trainings.logged(killed / "offline")
    assert shown == [(line["updates"], pytest.approx(max(line["losses"]["actor"]))) for line in log]

    rows, model = small_job.made(), small_job.model()
    whole = upsample(rows, tmp_path / "upsampled", model, SAMPLES, suffix=".npz", progress=False)
    assert seeing.files(killed / "upsampled") == seeing.files(tmp_path / "upsampled")
    assert read(killed / "upsampled" / "synthetic.npz").equals(read(whole.data))
    assert (killed / "upsampled" / "comparison.json").read_text() == whole.figures.read_text()

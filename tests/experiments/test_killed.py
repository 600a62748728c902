"""Whatever is killed again and again by the system still ends with the same files."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from synther import read, write
from synther.experiments.sources import TrainingData
from synther.upsample import upsample

from .. import small_job
from ..slow import SLOW
from . import seeing, trainings
from .pendulum import swings

OFFLINE = replace(trainings.PLAN, evaluate=False, updates=150, tensorboard="on")
SAMPLES = 3000

KILLER = (
    SLOW
    + """
import os, pickle, random, signal, sys
from pathlib import Path
import torch, torch.utils.tensorboard
import torch.fx.experimental.symbolic_shapes  # as the first update does, in every life
import synther.upsample, synther.synthesizer
from synther import Synthesizer, read
from synther.experiments import record
from synther.experiments.offline import train_to
from synther.experiments.sources import TrainingData
from synther.upsample import upsample

torch.set_num_threads(1)
os.fsync = lambda handle: None
record._CHECKPOINT_SHARE = float("inf")
synther.synthesizer._SHARD_BLOCKS = 1
synther.upsample.draw = lambda real, fake, path, found: path.write_bytes(b"")
folder, slow = Path(sys.argv[1]), Slow(0.02)
plan, settings, samples = pickle.loads((folder / "given").read_bytes())
rows, small = read(folder / "rows.npz"), read(folder / "small.npz")

def offline():
    train_to(plan, TrainingData(rows), folder / "offline", progress=slow)

def upsampled():
    model = Synthesizer("laptop", **settings)
    upsample(small, folder / "upsampled", model, samples, suffix=".npz", progress=slow)

for work in (offline, upsampled):
    kills = 0
    while True:
        worker = os.fork()
        if not worker:
            work()
            os._exit(0)
        until, ended = time.monotonic() + random.uniform(0.02, 0.15 * 1.5**kills), (0, 0)
        while not ended[0] and time.monotonic() < until:
            time.sleep(0.01)
            ended = os.waitpid(worker, os.WNOHANG)
        if ended[0]:
            print(work.__name__, kills, os.waitstatus_to_exitcode(ended[1]))
            break
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
        kills += 1
"""
)


@pytest.fixture
def killed(tmp_path) -> Path:
    """One process for both, because to start one takes longer than what it does."""
    folder = tmp_path / "killed"
    write(swings(env_id=None), folder / "rows.npz")  # nothing to import first, in every life
    write(small_job.made(), folder / "small.npz")
    (folder / "given").write_bytes(pickle.dumps((OFFLINE, small_job.TINY, SAMPLES)))
    ended = subprocess.run([sys.executable, "-c", KILLER, str(folder)], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    lines = [line.split() for line in ended.stdout.splitlines()]
    assert [(name, code) for name, _, code in lines] == [("offline", "0"), ("upsampled", "0")]
    assert all(int(kills) >= 2 for _, kills, _ in lines)
    return folder


def test_killed_again_and_again_it_still_ends_with_the_same_files(killed, tmp_path, monkeypatch):
    trainings.run(tmp_path / "offline", OFFLINE, TrainingData(swings(env_id=None)))
    assert trainings.same(tmp_path / "offline", killed / "offline")
    shown, log = trainings.events(killed / "offline")["actor/real/max"], trainings.logged(killed / "offline")
    assert shown == [(line["updates"], pytest.approx(max(line["losses"]["actor"]))) for line in log]

    monkeypatch.setattr("synther.upsample.draw", lambda real, fake, path, found: path.write_bytes(b""))
    rows, model = small_job.made(), small_job.model()
    whole = upsample(rows, tmp_path / "upsampled", model, SAMPLES, suffix=".npz", progress=False)
    assert seeing.files(killed / "upsampled") == seeing.files(tmp_path / "upsampled")
    assert read(killed / "upsampled" / "synthetic.npz").equals(read(whole.data))
    assert (killed / "upsampled" / "comparison.json").read_text() == whole.figures.read_text()

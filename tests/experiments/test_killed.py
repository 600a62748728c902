"""Whatever is killed again and again by the system still ends with the same files."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from synther import read, write
from synther.experiments.loop import CHECKPOINT
from synther.experiments.pixels import retrain_to
from synther.experiments.pixels import train_to as train_on_frames
from synther.experiments.sources import Given, TrainingData
from synther.pixels import files as pictures
from synther.pixels.latents import encode
from synther.upsample import upsample

from .. import small_job
from ..slow import SLOW
from . import seeing, trainings
from .pendulum import swings

OFFLINE = replace(trainings.PLAN, evaluate=False, updates=150, tensorboard="on")
FRAMES = replace(seeing.PLAN_BC, updates=20)
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
from synther.experiments import loop
from synther.experiments import pixels as training
from synther.experiments.pixels import retrain_to
from synther.experiments.sources import Given, TrainingData
from synther.upsample import upsample
from synther.pixels import files
from synther.pixels.latents import encode

torch.set_num_threads(1)
os.fsync = lambda handle: None
record._CHECKPOINT_SHARE = float("inf")
loop.SHOWN_UPDATES["cpu"] = 4
synther.synthesizer._SHARD_BLOCKS = 1
synther.upsample.draw = lambda real, fake, path, found: path.write_bytes(b"")
folder, slow = Path(sys.argv[1]), Slow(0.02)
plan, plan_of_frames, settings, samples = pickle.loads((folder / "given").read_bytes())
rows, small, frames = read(folder / "rows.npz"), read(folder / "small.npz"), files.read(folder / "frames.hdf5")

def offline():
    train_to(plan, TrainingData(rows), folder / "offline", progress=slow)

def pixels():
    one = folder / "one"
    training.train_to(plan_of_frames, frames, one, progress=slow)
    latents = encode(one / loop.CHECKPOINT, frames, features="actor", device="cpu", progress=slow)
    sources = [Given(each) for each in latents]
    retrain_to(plan_of_frames, one, sources, folder / "two", features="actor", progress=slow)

def upsampled():
    model = Synthesizer("laptop", **settings)
    upsample(small, folder / "upsampled", model, samples, suffix=".npz", progress=slow)

for work in (offline, pixels, upsampled):
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
    """One process for all, because to start one takes longer than what it does."""
    folder = tmp_path / "killed"
    write(swings(env_id=None), folder / "rows.npz")  # nothing to import first, in every life
    write(small_job.made(), folder / "small.npz")
    pictures.write(seeing.frames(), folder / "frames.hdf5")
    (folder / "given").write_bytes(pickle.dumps((OFFLINE, FRAMES, small_job.TINY, SAMPLES)))
    ended = subprocess.run([sys.executable, "-c", KILLER, str(folder)], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    lines = [line.split() for line in ended.stdout.splitlines()]
    assert [(name, code) for name, _, code in lines] == [(name, "0") for name in ("offline", "pixels", "upsampled")]
    assert all(int(kills) >= 2 for _, kills, _ in lines)
    return folder


def test_killed_again_and_again_it_still_ends_with_the_same_files(killed, tmp_path, monkeypatch):
    trainings.run(tmp_path / "offline", OFFLINE, TrainingData(swings(env_id=None)))
    assert trainings.same(tmp_path / "offline", killed / "offline")
    shown, log = trainings.events(killed / "offline")["actor/real/max"], trainings.logged(killed / "offline")
    assert shown == [(line["updates"], pytest.approx(max(line["losses"]["actor"]))) for line in log]

    train_on_frames(FRAMES, seeing.frames(), tmp_path / "one", progress=False)
    latents = encode(tmp_path / "one" / CHECKPOINT, seeing.frames(), features="actor", device="cpu", progress=False)
    sources = [Given(rows) for rows in latents]
    retrain_to(FRAMES, tmp_path / "one", sources, tmp_path / "two", features="actor", progress=False)
    for stage, inside in (("one", "."), ("two", "seeds-3-4")):
        assert seeing.files(killed / stage) == seeing.files(tmp_path / stage)
        assert trainings.logged(killed / stage / inside) == trainings.logged(tmp_path / stage / inside)
        assert trainings.same_tensors(tmp_path / stage, killed / stage, "policy.safetensors")

    monkeypatch.setattr("synther.upsample.draw", lambda real, fake, path, found: path.write_bytes(b""))
    whole = upsample(
        small_job.made(), tmp_path / "upsampled", small_job.model(), SAMPLES, suffix=".npz", progress=False
    )
    assert seeing.files(killed / "upsampled") == seeing.files(tmp_path / "upsampled")
    assert read(killed / "upsampled" / "synthetic.npz").equals(read(whole.data))
    assert (killed / "upsampled" / "comparison.json").read_text() == whole.figures.read_text()

"""Whatever a file holds, a reader gives a right answer or one of our own errors, and takes no more memory than it may.

The default suite tries the same few hundred files every time; `pytest -m slow tests/fuzz` tries many others.
"""

from __future__ import annotations

import json
import resource
import shutil
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage

from synther import Synthesizer, Transitions, read, write
from synther.agents.policy import load_policy
from synther.agents.policy import write as write_agent
from synther.assess.fidelity import compare
from synther.cli import main
from synther.envs.policies import policies_of, read_policy
from synther.errors import SyntherError
from synther.experiments.results import EvalPoint, Result
from synther.folder import write_object
from synther.pixels import files as frames_files
from synther.pixels.frames import Frames
from synther.replay.synthetic import SyntheticReplay

from ..support import small_job
from ..support.short import short_ensembles
from . import damage
from .damage import Damage

ROWS = 30
MEMORY = 1 << 30
"""Bytes that all readers together may grow by."""


@dataclass(frozen=True)
class Reader:
    make: Callable[[Path], None]
    """Write a file or folder that can be read."""
    read: Callable[[Path], Any]
    harm: tuple[Damage, ...]
    examples: int
    """In the default suite."""
    name: str = "it"


def episodes() -> Transitions:
    walk = np.random.default_rng(0).normal(size=(ROWS + 1, 3)).astype(np.float32)
    last = np.arange(ROWS) % 10 == 9
    rows = Transitions(walk[:-1], walk[:-1, :2], walk[:-1, 0], walk[1:], np.zeros(ROWS, bool), last)
    return replace(rows, env_id="Pendulum-v1", env_options={"g": 9.0})


def frames(path: Path) -> None:
    image = np.random.default_rng(0).integers(0, 256, (ROWS, 3, 5, 5), np.uint8)
    first = np.arange(ROWS) == 0
    frames_files.write([Frames(image, np.zeros((ROWS, 2)), np.zeros(ROWS), np.ones(ROWS), first)], path)


def episode(path: Path) -> None:
    image = np.random.default_rng(0).integers(0, 256, (ROWS, 5, 5, 3), np.uint8)
    np.savez(path, image=image, action=np.zeros((ROWS, 2)), reward=np.zeros(ROWS), discount=np.ones(ROWS))


def compact(path: Path) -> None:
    arrays = {"observations": np.zeros((32, 3)), "actions": np.zeros((30, 2)), "rewards": np.zeros(30)}
    np.savez(path, **arrays, episode_lengths=np.array([10, 20]), terminated=np.array([True, False]), env_id="X-v0")


def model(path: Path) -> None:
    fitted = Synthesizer("laptop", **{**small_job.TINY, "fit": {"steps": 20, "evaluate_every": 10}})
    with pytest.MonkeyPatch.context() as patch:
        short_ensembles(patch)
        fitted.fit(small_job.made(), condition="reward", ensemble=True, progress=False).save(path)


def draw_rows(path: Path) -> None:
    loaded = Synthesizer.load(path, device="cpu")
    try:
        loaded.sample(4, seed=0, progress=False)
    except torch.OutOfMemoryError:
        pytest.fail("too large")


def agent(path: Path) -> None:
    about = {"sizes": [3, 8, 2], "free": 0, "squash": "tanh"}
    scales = {f"scales.{name}": torch.ones(1, 3) for name in ("mean", "std")}
    scales |= {f"scales.{name}": torch.ones(2) for name in ("low", "high")}
    described = {"algorithm": "bc", "seeds": [0], "updates": 5, "policy": about}
    write_agent(path, described, {"actor": torch.zeros(1, 64), **scales})


def act(path: Path) -> None:
    load_policy(path).act(np.zeros((2, 3), np.float32))
    assert main(["inspect", str(path)]) in (0, 2)


def archive(path: Path) -> None:
    arrays = {"E/a/weight0": np.zeros((3, 4)), "E/a/bias0": np.zeros(4), "E/a/weight1": np.zeros((4, 4))}
    np.savez(path, **arrays, **{"E/a/bias1": np.zeros(4)})


def play(path: Path) -> None:
    policies_of(path)
    read_policy(path, "E", "a").act(np.zeros((1, 3)), np.random.default_rng(0))


def replay(path: Path) -> None:
    made = SyntheticReplay(100, preset="laptop", device="cpu", refresh_every=1000, samples=10, progress=False)
    rows = episodes()
    made.add(rows.observation, rows.action, rows.reward, rows.next_observation, rows.terminal)
    made.save(path)


def replayed(path: Path) -> None:
    SyntheticReplay.load(path, device="cpu", progress=False).sample(4)


def run(path: Path) -> None:
    result = Result(
        10, 1.0, {"real": (EvalPoint(10, (1.0, None), None),)}, {"real": (1,)}, {"training": 1.0}, {"a": "b"}
    )
    path.mkdir()
    write_object(path / "run.json", {"env_id": "Pendulum-v1", "env_options": None, "updates": 10, "episodes": 2})
    write_object(path / "result.json", result.to_json())
    rows = small_job.made()
    write_object(path / "comparison.json", compare(rows, rows).to_json())


def inspected(path: Path) -> None:
    """The command turns our own errors into exit code 2, and any other into 1."""
    assert main(["inspect", str(path)]) in (0, 2)
    assert main(["evaluate", str(path), "--episodes", "1"]) == 2


def rows_of(path: Path) -> None:
    """Rows that can be read can be told about and written."""
    found = read(path)
    found.summary()


def in_safetensors(path: Path, draw: damage.Draw) -> None:
    damage.safetensors(path / "replay.safetensors", draw)


def in_minari(path: Path, draw: damage.Draw) -> None:
    damage.hdf5(path / "data" / "main_data.hdf5", draw)


def arrow(path: Path) -> None:
    box, rows = gymnasium.spaces.Box(-9, 9, (2,), np.float32), np.zeros((ROWS + 1, 2), np.float32)
    seen = gymnasium.spaces.Dict({"a": box, "b": gymnasium.spaces.Discrete(3)})
    path.mkdir()
    storage = MinariStorage.new(path / "data", seen, box, data_format="arrow")
    storage.update_metadata({"dataset_id": "it-v0"})
    ends = {"terminations": np.zeros(ROWS, bool), "truncations": np.arange(ROWS) == ROWS - 1}
    observed = {"a": rows, "b": rows[:, 0].astype(int)}
    storage.update_episodes([EpisodeBuffer(observations=observed, actions=rows[1:], rewards=rows[1:, 0], **ends)])


def in_arrow(path: Path, draw: damage.Draw) -> None:
    damage.damaged_bytes(path / "data" / "0" / "part-0.arrow", draw)


def rows_file(path: Path) -> None:
    write(episodes(), path)


READERS = {
    "npz": Reader(rows_file, rows_of, (damage.npz, damage.damaged_bytes), 40, "a.npz"),
    "compact npz": Reader(compact, rows_of, (damage.npz, damage.damaged_bytes), 40, "a.npz"),
    "hdf5": Reader(rows_file, rows_of, (damage.hdf5, damage.damaged_bytes), 60, "a.hdf5"),
    "parquet": Reader(rows_file, rows_of, (damage.parquet, damage.damaged_bytes), 60, "a.pq"),
    "minari": Reader(rows_file, rows_of, (damage.json_file("data/metadata.json"), in_minari), 25),
    "minari with arrow": Reader(arrow, rows_of, (damage.json_file("data/metadata.json"), in_arrow, in_arrow), 40),
    "frames": Reader(frames, frames_files.read, (damage.hdf5, damage.damaged_bytes), 40, "a.hdf5"),
    "frames npz": Reader(episode, frames_files.read, (damage.npz, damage.damaged_bytes), 40, "a.npz"),
    "model": Reader(model, draw_rows, (damage.safetensors,) * 4 + (damage.damaged_bytes,), 40, "a.safetensors"),
    "agent": Reader(agent, act, (damage.safetensors, damage.damaged_bytes), 25, "a.safetensors"),
    "policies": Reader(archive, play, (damage.npz, damage.damaged_bytes), 30, "a.npz"),
    "replay": Reader(replay, replayed, (in_safetensors,), 40),
    "run": Reader(run, inspected, (damage.json_file("run.json"), damage.json_file("result.json")), 15),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """What each reader can read, made once."""
    folder, made = tmp_path_factory.mktemp("whole"), {}

    def of(name: str) -> Path:
        if name not in made:
            made[name] = folder / name.replace(" ", "-") / READERS[name].name
            made[name].parent.mkdir()
            READERS[name].make(made[name])
        return made[name]

    return of


def copied(source: Path, target: Path) -> Path:
    if target.is_dir():
        shutil.rmtree(target)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)
    return target


def tried(name: str, source: Path, folder: Path, **how: Any) -> None:
    reader = READERS[name]
    reader.read(copied(source, folder / reader.name))

    @settings(deadline=None, database=None, suppress_health_check=list(HealthCheck), **how)
    @given(st.data())
    def attempt(data: st.DataObject) -> None:
        path = copied(source, folder / reader.name)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            data.draw(st.sampled_from(reader.harm))(path, data.draw)
            with suppress(SyntherError):
                reader.read(path)

    attempt()


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_read_or_refused(name: str, whole, tmp_path, capsys) -> None:
    tried(name, whole(name), tmp_path, max_examples=READERS[name].examples, derandomize=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_many_damaged_files_are_read_or_refused(name: str, whole, tmp_path, capsys) -> None:
    source = whole(name)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tried(name, source, tmp_path, max_examples=50 * READERS[name].examples)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MEMORY


def test_json_is_damaged_inside() -> None:
    """The strategy reaches the leaves."""
    found = []

    @settings(max_examples=50, derandomize=True, database=None)
    @given(st.data())
    def attempt(data: st.DataObject) -> None:
        found.append(json.dumps(damage.damaged_json({"a": {"b": [1, 2]}}, data.draw)))

    attempt()
    assert any('"b": [1, ' in text for text in found)

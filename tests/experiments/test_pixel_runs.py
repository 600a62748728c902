"""Pixel runs as plain data, executed in two halves: where there is a GPU, and where frames can be drawn."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from synther.errors import ConfigError, FormatError, SyntherError
from synther.experiments import loop, record
from synther.experiments.results import Result
from synther.experiments.spec import ChangeOptions, Place, Recipe
from synther.experiments.specs import STAGE_ONE, Retraining
from synther.pixels import evaluation, files
from synther.progress import Silent
from synther.synthesizer import Synthesizer

from ..support.watch import Stopped, Watch
from .seeing import BC, PLAN, TINY, frames, play_here

RECIPE = Recipe(preset="fast", samples=30, changes={**TINY, "sampler": {"steps": 2}})
ARMS = {"latents": Retraining(shifts=2), "critic": Retraining("critic", RECIPE)}
ARMS["half"] = Retraining("critic", RECIPE, 0.5)
RUN = replace(PLAN, name="point-mass-drq", task="point_mass-easy", level="collected", arms=ARMS)
RUN = replace(RUN, measure_every=3, updates=6, episodes=2)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    files.write(frames(env_id=None), folder / "point_mass-easy-collected.hdf5")
    return folder


@pytest.fixture
def place(data, tmp_path) -> Place:
    return Place(tmp_path / "models", data, device="cpu", command="synther paper run example")


@pytest.fixture
def dark(monkeypatch) -> None:
    monkeypatch.setattr(evaluation, "obstacle", lambda env_id: f"cannot draw {env_id} here")


@pytest.fixture(scope="module", autouse=True)
def short():
    """Measured and saved every three updates."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(record, "_CHECKPOINT_SHARE", float("inf"))
        patched.setitem(loop.SHOWN_UPDATES, "cpu", 3)
        yield


@pytest.fixture(scope="module")
def whole(short, data, tmp_path_factory) -> dict[str, tuple]:
    """What a run that nothing has stopped comes to."""
    folder = tmp_path_factory.mktemp("finished") / RUN.name
    with pytest.MonkeyPatch.context() as patched:
        play_here(patched)
        RUN.execute(folder, Place(folder, data, device="cpu"), Silent())
    return finals(folder)


def finals(folder: Path) -> dict[str, tuple]:
    result = Result.from_json(json.loads((folder / "result.json").read_text()))
    return {arm: curve[-1].returns for arm, curve in result.curves.items()}


def test_what_is_changed_and_what_is_not():
    assert RUN.data_set == "point_mass-easy-collected"
    changed = RUN.changed(ChangeOptions(updates=4, seeds=1, samples=10, preset="laptop"))
    assert (changed.updates, changed.seeds, changed.arms["latents"].recipe) == (4, 1, None)
    assert changed.arms["critic"].recipe == replace(RECIPE, samples=10, preset="laptop")
    more = RUN.changed(ChangeOptions(samples=5_000_000, fit_steps=100_000)).arms["critic"].recipe
    assert more is not None
    assert (more.samples, more.settings().fit.steps) == (5_000_000, 100_000)
    assert more.settings().network == RECIPE.settings().network
    with pytest.raises(ConfigError, match="--evaluate-every"):
        RUN.changed(ChangeOptions(evaluate_every=5))


def test_trained_in_the_dark_and_evaluated_without_data(place, dark, tmp_path, monkeypatch, request):
    folder = tmp_path / "run"
    with pytest.raises(SyntherError, match=r"the same command .*\(cannot draw dm_control/point_mass"):
        RUN.execute(folder, place, Silent())
    assert not RUN.result(folder).exists()
    assert json.loads((folder / "provenance.json").read_text()) == {
        "command": "synther paper run example",
        "data": "frames read from point_mass-easy-collected.hdf5, whose 4 whole episodes return -1.2 ± 1.9",
        "rows": 32,
        "generators": {
            arm: retraining.recipe.settings().to_json() for arm, retraining in RUN.arms.items() if retraining.recipe
        },
    }
    elsewhere = tmp_path / "elsewhere"
    kept = ("run.json", "provenance.json", "trained.json", "policy.safetensors")
    shutil.copytree(
        folder,
        elsewhere,
        ignore=lambda at, names: [name for name in names if (Path(at) / name).is_file() and name not in kept],
    )
    request.getfixturevalue("playing")
    RUN.execute(elsewhere, replace(place, data=None), Silent())
    assert list(finals(elsewhere)) == [STAGE_ONE, *RUN.arms]
    assert len(set(finals(elsewhere).values())) == 4
    models = [file.name for file in folder.iterdir() if file.name.endswith("-models")]
    assert models == ["critic-models"]  # which both arms share
    assert not (folder / "encoded").exists()
    assert all(np.isfinite(returns).all() for returns in finals(elsewhere).values())


def test_stopped_anywhere_it_comes_to_the_same_result(whole, place, playing, tmp_path):
    for moves in (8, 6):
        with pytest.raises(Stopped):
            RUN.execute(tmp_path / "run", place, Watch(reports=moves + 1))
        assert not RUN.result(tmp_path / "run").exists()
    RUN.execute(tmp_path / "run", place, Silent())
    assert finals(tmp_path / "run") == whole


def test_heads_of_bc_on_pairs(place, playing, tmp_path):
    arms = {"latents": Retraining("actor"), "pairs": Retraining("actor", RECIPE, pairs=True)}
    run = replace(RUN, algorithm="bc", arms=arms, agent=BC, seeds=1, updates=2)
    run.execute(tmp_path / "run", place, Silent())
    model = Synthesizer.load(tmp_path / "run" / "pairs-models" / "seed-3.safetensors", device="cpu")
    assert len(model.layout.names) == 50 + 2  # no rewards, no next latents
    assert np.isfinite(finals(tmp_path / "run")["pairs"]).all()


@pytest.mark.cuda
def test_stopped_on_a_gpu_it_comes_to_the_same_result(place, playing, tmp_path):
    there, long = replace(place, device="cuda"), replace(RUN, updates=24)
    long.execute(tmp_path / "whole", there, Silent())
    with pytest.raises(Stopped):
        long.execute(tmp_path / "run", there, Watch(reports=13))
    long.execute(tmp_path / "run", there, Silent())
    assert finals(tmp_path / "run") == finals(tmp_path / "whole")


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"level": "expert"}, FormatError, "no frames of point_mass-easy-expert"),
        ({"agent": {"colour": 1}}, ConfigError, "unknown option drq_bc.colour"),
    ],
)
def test_what_cannot_be_trained_leaves_no_folder(changes, error, says, place, tmp_path):
    with pytest.raises(error, match=says):
        replace(RUN, **changes).execute(tmp_path / "run", place, Silent())
    assert not (tmp_path / "run").exists()

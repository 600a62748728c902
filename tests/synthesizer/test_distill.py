"""A model with a student: who draws which rows, in memory and from a file, and a killed distillation that goes on."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.torch import save_file

from synther import Synthesizer, top
from synther.diffusion.config import SamplerConfig
from synther.errors import ConfigError, FormatError
from synther.synthesizer import student_checkpoint
from synther.synthesizer.together import fit_models

from ..support.watch import Stopped, Watch
from .rows import QUICK, made, plain
from .test_model_file import taken_apart

SHORT = {"steps": 20, "rows": 600}
QUIET = {"seed": 0, "progress": False}


@pytest.fixture(scope="module")
def distilled(saved) -> Synthesizer:
    return Synthesizer.load(saved).distill(2, steps=200, rows=1_500, progress=False)


@pytest.fixture(scope="module")
def written(distilled, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "distilled.safetensors"
    distilled.save(path)
    return path


def test_it_draws_rows_that_nothing_is_asked_of(distilled, model):
    plain = distilled.sample(600, **QUIET)
    assert plain.equals(distilled.sample(600, **QUIET, sampler="distilled"))
    assert plain.equals(distilled.sample(600, **QUIET, sampler=distilled.student.sampler))
    assert not plain.equals(model.sample(600, **QUIET))
    assert distilled.sampler_for().network_calls == 2
    assert distilled.sampler_for(asked=True) == distilled.sampler_for("teacher") == model.settings.sampler


def test_its_rows_are_like_those_of_its_teacher(distilled, fake, real):
    drawn = distilled.sample(20_000, **QUIET)
    assert drawn.terminal.mean() == pytest.approx(real.terminal.mean(), rel=0.15)
    assert np.abs(drawn.observation[:, 4].mean() - real.observation[:, 4].mean()) < 0.03
    for column in (0, 1):
        ours, theirs = drawn.observation[:, column], fake.observation[:, column]
        assert ours.mean() == pytest.approx(theirs.mean(), abs=0.1 * theirs.std())
        assert ours.std() == pytest.approx(theirs.std(), rel=0.1)


@pytest.mark.parametrize(
    "asked",
    [
        {"sampler": "teacher"},
        {"sampler": {}},
        {"sampler": "euler"},
        {"sampler": {"steps": 3}},
        {"sampler": SamplerConfig("heun", 3)},
        {"like": made(50)},
        {"given": {"observation": made(40).observation, "action": made(40).action}},
    ],
    ids=str,
)
def test_other_requests_are_the_teachers(distilled, model, asked):
    count = None if "given" in asked else 300
    assert distilled.sample(count, **QUIET, **asked).equals(model.sample(count, **QUIET, **asked))


def test_conditions_and_guides_are_the_teachers(tmp_path):
    model = Synthesizer("laptop", **QUICK).fit(plain(), condition="reward", progress=False)

    def rows(**asked):
        return model.sample(100, **QUIET, **asked)

    def uphill(observation, action):
        return -observation, -action

    asked = [{"condition": top(0.1)}, {"condition": top(0.1), "guidance": 2.0}, {"guide": uphill}]
    before = [rows(**each) for each in asked]
    free = rows()
    model.distill(1, **SHORT, progress=False)
    assert all(rows(**each).equals(known) for each, known in zip(asked, before, strict=True))
    assert not rows().equals(free)
    with pytest.raises(ConfigError, match="distilled"):
        rows(condition=top(0.1), sampler="distilled")


def test_to_a_file_and_back(distilled, written, tmp_path):
    loaded, watch = Synthesizer.load(written), Watch()
    assert loaded.sample(600, seed=0, progress=watch).equals(distilled.sample(600, **QUIET))
    assert loaded.sample(600, seed=0, sampler="teacher", progress=watch).equals(
        distilled.sample(600, **QUIET, sampler="teacher")
    )
    assert watch.names == ["sample", "sample"]  # nothing is found out again
    assert (loaded.settings, loaded.student.sampler) == (distilled.settings, distilled.student.sampler)
    assert (loaded.student.steps, loaded.student.history) == (200, distilled.student.history)
    rows = loaded.sample_to(tmp_path / "x.npz", 700, seed=4, progress=False)
    assert rows.equals(distilled.sample(700, seed=4, progress=False))
    loaded.distill(1, **SHORT, progress=False)  # which replaces the other
    assert loaded.sampler_for().network_calls == 1


@pytest.mark.parametrize("damage", ["weights", "start", "text", "values", "sampler"])
def test_half_a_student(written, damage, tmp_path):
    tensors, metadata = taken_apart(written)
    group = {"weights": "student.", "start": "student_start."}.get(damage)
    if group is not None:
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(group)}
    elif damage == "text":
        del metadata["student"]
    elif damage == "values":
        student = json.loads(metadata["student"])
        student["calibration"]["weights"] = [[1.0]]
        metadata["student"] = json.dumps(student)
    else:
        metadata["student"] = metadata["student"].replace('"distilled"', '"euler"')
    save_file(tensors, tmp_path / "x.safetensors", metadata)
    with pytest.raises(FormatError, match=r"x\.safetensors"):
        Synthesizer.load(tmp_path / "x.safetensors")


CHANGED = {**QUICK, "distill": {"calls": 2, **SHORT}}


@pytest.fixture(scope="module")
def whole() -> Synthesizer:
    return Synthesizer("laptop", **CHANGED).fit(made(300), progress=False)


@pytest.mark.parametrize("stop", [("fit", 20), ("teach", 512), ("distill", 20)], ids=str)
def test_a_killed_fit_goes_on_to_the_same_student(whole, stop, tmp_path):
    path = tmp_path / "checkpoint"
    with pytest.raises(Stopped):
        Synthesizer("laptop", **CHANGED).fit(made(300), checkpoint=path, progress=Watch(stop))
    watch = Watch()
    resumed = Synthesizer("laptop", **CHANGED).fit(made(300), checkpoint=path, progress=watch)
    assert watch.names == ["fit", "match", "calibrate", "teach", "distill", "match", "calibrate"]
    begun = {name: start for name, _, start, _ in watch.phases}
    assert (begun["fit"], begun["distill"]) == {"fit": (10, 0), "teach": (20, 0), "distill": (20, 10)}[stop[0]]
    assert resumed.sample(600, **QUIET).equals(whole.sample(600, **QUIET))
    assert student_checkpoint(path).exists()


def test_models_fitted_together_have_students():
    models = [Synthesizer("laptop", **CHANGED, seed=seed) for seed in (0, 1)]
    fit_models(models, [plain(), plain()], progress=False)
    alone = Synthesizer("laptop", **CHANGED, seed=0).fit(plain(), progress=False)
    assert [model.student.sampler.network_calls for model in models] == [2, 2]
    close = np.isclose(models[0].sample(50, **QUIET).observation, alone.sample(50, **QUIET).observation, atol=1e-2)
    assert close.mean() > 0.9


def test_what_is_refused(quick, model):
    with pytest.raises(ConfigError, match="fit"):
        Synthesizer("laptop").distill()
    for calls in (0, 17, 1.5):
        with pytest.raises(ConfigError, match=r"distill\.calls"):
            quick.distill(calls, progress=False)
    assert quick.student is None
    for sampler in ("distilled", {"kind": "distilled"}, SamplerConfig("distilled", 2)):
        with pytest.raises(ConfigError, match="student"):
            model.sample(5, sampler=sampler, progress=False)
    with pytest.raises(ConfigError, match="distilled"):
        Synthesizer("laptop", sampler={"kind": "distilled"})


def test_rows_of_a_table_need_no_student():
    states = np.arange(400).reshape(-1, 1) % 4
    rows = plain(
        400, observation=states, next_observation=(states + 1) % 4, action=states[:, 0] % 2, reward=np.ones(400)
    )
    model = Synthesizer("laptop", **CHANGED).fit(rows, progress=False)
    assert model.student is None
    with pytest.raises(ConfigError, match="table"):
        model.distill(progress=False)

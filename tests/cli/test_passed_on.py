"""Every option reaches what does the work: the work itself is left out."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from synther import read, write
from synther.data.fingerprint import fingerprint
from synther.datasets import Dataset
from synther.experiments.results import EvalPoint, Result


class Reached(Exception):
    """So far, and no further."""


@pytest.fixture
def reached(monkeypatch, synther):
    """`reached("synther.room.function", *words)`: what the function was called with, by names and in order."""

    def call(target: str, *words: object) -> SimpleNamespace:
        found = SimpleNamespace()

        def stop(*given: Any, **named: Any) -> None:
            found.given, found.named = given, named
            raise Reached

        monkeypatch.setattr(target, stop)
        answer = synther(*words)
        assert "Reached" in answer.err, answer.err
        return found

    return call


TRAIN = "synther.experiments.offline.train_to"


def test_train(reached, data, tmp_path):
    words = {
        "updates": 50, "seeds": 3, "seed": 4, "evaluate-every": 7, "episodes": 2, "env-id": "Pendulum-v1",
        "workers": 5, "device": "cpu", "precision": "float32", "tensorboard": "off", "wandb": "ours",
    }  # fmt: skip
    named = [word for name, value in words.items() for word in (f"--{name}", value)]
    rest = ("--agent.batch-size", 9, "--quiet")
    found = reached(TRAIN, "train", "td3_bc", data, "--out", tmp_path / "run", *named, *rest)
    plan, _, out = found.given
    assert {name: getattr(plan, name.replace("-", "_")) for name in words} == words
    assert (plan.config.batch_size, plan.evaluate, out, found.named) == (9, True, tmp_path / "run", {"progress": False})


@pytest.mark.parametrize("seed", [0, 3])
def test_train_takes_the_share_of_the_rows_that_the_seed_tells_and_disturbs_no_others(reached, data, seed, tmp_path):
    named = ("--fraction", 0.1, "--data-seed", seed, "--augment", "additive", "--samples", 40, "--ratio", 0.25)
    found = reached(TRAIN, "train", "bc", data, "--out", tmp_path / "run", *named)
    material = found.given[1]
    assert fingerprint(material.real) == fingerprint(read(data).subsample(0.1, seed))
    noise = material.others["synthetic"]
    assert (noise.kind, noise.samples, noise.seed) == ("additive", 40, seed)
    assert fingerprint(noise.real) == fingerprint(material.real)
    assert material.arms == {"mixed": {"synthetic": 0.25, "real": 0.75}}


def test_train_evaluates_in_the_world_of_its_data_unless_another_is_named(reached, monkeypatch, data, rows, tmp_path):
    known = Dataset("maze", rows, "Pendulum-v1", {"g": 9.0}, {"bc": {"width": 7}}, episodes=33)
    monkeypatch.setattr("synther.datasets.read", lambda name, **how: known)
    plan, material = reached(TRAIN, "train", "bc", "maze", "--out", tmp_path / "run").given[:2]
    assert (plan.env_id, plan.env_options, plan.episodes, plan.config.width) == (None, None, 33, 7)
    assert (material.real.env_id, material.real.env_options) == ("Pendulum-v1", {"g": 9.0})
    other = ("--env-id", "Other-v0", "--episodes", 5, "--agent.width", 6)
    plan = reached(TRAIN, "train", "bc", "maze", "--out", tmp_path / "run", *other).given[0]
    assert (plan.env_id, plan.env_options, plan.episodes, plan.config.width) == ("Other-v0", None, 5, 6)


def test_train_draws_from_a_model_with_the_seed_of_data(reached, data, model, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(model.parent))  # a shell leaves the ~ of `--synthetic=~/model` as it is
    named = (f"--synthetic=~/{model.name}", "--samples", 40, "--data-seed", 5, "--device", "cpu")
    found = reached(TRAIN, "train", "bc", data, "--out", tmp_path / "run", *named)
    source = found.given[1].others["synthetic"]
    assert (source.model, source.samples, source.seed, source.device) == (model, 40, 5, "cpu")


def test_train_tells_the_final_from_the_best(monkeypatch, synther, data, tmp_path):
    curve = (EvalPoint(20, (8.0, 4.0), (80.0, 40.0)), EvalPoint(40, (1.0, 3.0), (10.0, 30.0)))
    result = Result(40, 2.0, {"real": curve}, {"real": ()})
    monkeypatch.setattr(TRAIN, lambda *given, **named: result)
    lines = synther("train", "bc", data, "--out", tmp_path / "run", "--seeds", 2).out.splitlines()
    assert [" ".join(line.split()) for line in lines if line.split()[:1] in (["final"], ["best"])] == [
        "final score 20.0 ± 10.0 after 40 updates",
        "final return 2.0 ± 1.0 after 40 updates",
        "best score 60.0 ± 20.0 after 20 updates",
        "best return 6.0 ± 2.0 after 20 updates",
    ]


def test_assess(reached, data, rows, tmp_path):
    write(rows[:50], tmp_path / "held_out.npz")
    write(replace(rows[:70], reward=np.zeros(70)), tmp_path / "fake.npz")
    words = ("--held-out", tmp_path / "held_out.npz", "--seed", 6, "--device", "cpu", "--no-simulator")
    target = "synther.report.assess_to"
    found = reached(target, "assess", data, tmp_path / "fake.npz", "--out", tmp_path / "report", *words)
    plan, pair = found.given
    assert (plan.folder, plan.seed, plan.device, plan.simulator) == (tmp_path / "report", 6, "cpu", False)
    assert [len(part) for part in (pair.real, pair.synthetic, pair.held_out)] == [300, 70, 50]
    assert (pair.real_name, pair.synthetic_name) == (data.name, "fake.npz")


def test_assess_draws_with_its_seed(reached, data, model, tmp_path):
    target = "synther.synthesizer.Synthesizer.sample"
    found = reached(target, "assess", data, model, "--out", tmp_path / "report", "--seed", 6, "--samples", 80)
    assert (found.given[1:], found.named["seed"]) == ((80,), 6)


def test_compare(reached, data, tmp_path):
    words = {
        "samples": 11, "trials": 2, "epochs": 3, "trial-epochs": 4, "trial-rows": 5, "jobs": 6, "seed": 7,
        "env-id": "Hopper-v4", "device": "cpu", "precision": "float32",
    }  # fmt: skip
    named = [word for name, value in words.items() for word in (f"--{name}", value)]
    target = "synther.compare.run.compare_generators"
    rest = ("--generators", "noise,tvae", "--fraction", 0.1, "--fit.steps", 8)
    found = reached(target, "compare", data, "--out", tmp_path / "table", *named, *rest)
    real, out, names, plan = found.given
    assert {name: getattr(plan, name.replace("-", "_")) for name in words} == words
    assert (out, names) == (tmp_path / "table", ("tvae", "additive", "multiplicative", "dynamics"))
    assert plan.settings.fit.steps == 8
    assert fingerprint(real) == fingerprint(read(data).subsample(0.1, 7))


def test_paper(reached, tmp_path):
    changes = {"updates": 20, "seeds": 2, "evaluate-every": 5, "samples": 300, "preset": "best"}
    named = [word for name, value in changes.items() for word in (f"--{name}", value)]
    place = ("--data", tmp_path, "--device", "cpu", "--workers", 3)
    target = "synther.experiments.spec.execute_all"
    found = reached(target, "paper", "run", "full_eval", "--out", tmp_path / "paper", "--only", "iql", *named, *place)
    jobs, folder, where = found.given
    out = (tmp_path / "paper").resolve()
    assert jobs
    for job in jobs:
        assert "iql" in job.name
        assert (job.updates, job.seeds, job.evaluate_every) == (20, 2, 5)
        for recipe in job.sources.values():
            assert recipe.samples is None or recipe.samples <= 300
            assert recipe.preset == ("best" if recipe.generator == "diffusion" else "paper")
    assert (folder, where.store, where.data) == (out / "runs", out / "models", tmp_path.resolve())
    assert (where.device, where.workers) == ("cpu", 3)


def test_pixels(reached, monkeypatch, tmp_path):
    monkeypatch.setattr("synther.pixels.files.read", lambda frames, progress: (frames, progress))
    run, out = tmp_path / "run", tmp_path / "out"
    words = ("--features", "actor", "--pairs", "--seed", 3, "--device", "cpu", "--quiet")
    found = reached("synther.experiments.pixels.encode_to", "pixels", "encode", run, "frames", "--out", out, *words)
    assert found.given == (run, ("frames", False), out)
    how = {"features": "actor", "shifts": 8, "pairs": True, "seed": 3, "device": "cpu", "progress": False}
    assert found.named == how
    words = ("--episodes", 4, "--env-id", "dm_control/walker-walk-v0", "--workers", 2, "--repeat", 3)
    found = reached("synther.experiments.evaluation.evaluate", "pixels", "evaluate", run, *words)
    expected = {"episodes": 4, "env_id": "dm_control/walker-walk-v0", "repeat": 3, "workers": 2, "progress": True}
    assert (found.given, found.named) == ((run,), expected)
    importlib.import_module("synther.experiments.pixels")  # which else would keep what follows for good
    monkeypatch.setattr("synther.experiments.pixels.identity", lambda run: {"of": run})
    monkeypatch.setattr("synther.experiments.pixels.stored", lambda data, agents: ("critic", [data, agents]))
    words = ("--updates", 9, "--measure-every", 4, "--precision", "float32", "--device", "cpu", "--tensorboard", "off")
    target = "synther.experiments.pixels.retrain_to"
    found = reached(target, "pixels", "retrain", run, tmp_path / "latents", "--out", out, *words)
    spec, *rest = found.given
    assert (spec.updates, spec.measure_every, spec.precision) == (9, 4, "float32")
    assert (spec.device, spec.tensorboard) == ("cpu", "off")
    assert rest == [run, [tmp_path / "latents", {"of": run}], out]
    assert found.named == {"features": "critic", "ratio": 0.5, "progress": True}
    words = ("--samples", "2K", "--device", "cpu", "--precision", "float32", "--fit.steps", 5)
    target = "synther.experiments.pixels.upsample"
    found = reached(target, "pixels", "upsample", tmp_path / "latents", "--out", out, *words)
    latents, folder, settings, samples = found.given
    assert (latents, folder, settings.fit.steps, samples) == (Path(tmp_path / "latents"), out, 5, 2_000)
    assert found.named == {"device": "cpu", "precision": "float32", "progress": True}

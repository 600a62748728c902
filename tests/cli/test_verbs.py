"""Every verb at work: what it writes, what it prints and where."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from synther import Synthesizer, Transitions, read, top, write
from synther.agents.agent import Agent
from synther.agents.bc import BCConfig
from synther.agents.policy import load_policy
from synther.agents.rows import Member, Rows
from synther.cli import VERBS
from synther.data.fingerprint import fingerprint
from synther.data.spaces import Box
from synther.envs.rollout import rollout
from synther.experiments.results import Measurement, Result
from synther.guides import policy_guide
from synther.locks import owned
from synther.pixels import files
from synther.pixels.frames import Frames
from synther.presets import ABOUT, PRESETS

from ..support.short import short_ensembles

pytestmark = pytest.mark.usefixtures("quick_report", "no_processes")

SEEING = ("--seeds", 1, "--updates", 2, "--agent.width", 8, "--agent.batch-size", 2, "--no-evaluate")


class TestFit:
    def test_it_saves_a_model_and_once_done_only_reports(self, synther, data, rows, tiny, tmp_path):
        path = tmp_path / "deep" / "m.safetensors"
        command = ("fit", data, "--out", path, *tiny)
        code, out, err = synther(*command)
        assert code == 0
        assert str(path) in out
        assert "20 in " in out
        assert [line.split(":")[0] for line in err.splitlines() if "100 %" in line] == ["fit", "match", "calibrate"]
        assert [file.name for file in path.parent.iterdir()] == ["m.safetensors"]
        model = Synthesizer.load(path)
        assert (model.record.rows, model.record.steps, model.settings.network.width) == (300, 20, 16)
        assert model.sample(5, seed=0, progress=False).env_id == "Made-v0"
        before = path.stat().st_mtime_ns
        again = synther(*command, "--json")
        assert (again.code, again.err, path.stat().st_mtime_ns) == (0, "", before)
        assert (again.json["model"], again.json["rows"], again.json["steps"]) == (str(path), 300, 20)
        assert {"seconds", "loss", "held_out"} <= set(again.json)

    def test_several_models(self, synther, data, tiny, tmp_path):
        command = ("fit", data, "--models", 2, "--seed", 3, "--out", tmp_path, "--json", *tiny)
        assert [model["name"] for model in synther(*command).json["models"]] == ["seed-3", "seed-4"]
        assert [Synthesizer.load(tmp_path / f"seed-{seed}" / "model.safetensors").seed for seed in (3, 4)] == [3, 4]
        others = synther(*command, "--fit.steps", 10)
        assert others.code == 2
        assert all("other data or options" in model["error"] for model in others.json["models"])
        for wrong in (("--models", 2, "--out", "m.safetensors"), ("--parallel", 2, "--out", "m.safetensors")):
            refused = synther("fit", data, *wrong, *tiny)
            assert refused.code == 2
            assert "--models" in refused.err

    def test_a_share_of_the_rows(self, synther, data, rows, tiny, tmp_path):
        options = ("--fraction", 0.5, "--seed", 3, *tiny)
        assert synther("fit", data, "--out", tmp_path / "m.safetensors", *options).code == 0
        record = Synthesizer.load(tmp_path / "m.safetensors").record
        assert (record.rows, record.data) == (150, fingerprint(rows.subsample(0.5, 3)))


def test_rows_are_asked_for_by_condition(synther, data, rows, tiny, tmp_path):
    """From the fit to the comparison. How well a model answers is tested in tests/synthesizer."""
    path, more = tmp_path / "m.safetensors", tmp_path / "more.npz"
    assert synther("fit", data, "--out", path, "--condition", "reward", *tiny).code == 0
    assert synther("inspect", path, "--json").json["conditions"] == ["reward"]
    asked = ("--condition", "top:0.1", "--guidance", 2)
    assert synther("sample", path, "--samples", 50, "--out", more, *asked).code == 0
    model = Synthesizer.load(path)
    assert read(more).equals(model.sample(50, condition=top(0.1), guidance=2.0, seed=0, progress=False))
    folder, request = tmp_path / "both", ("--condition", "reward=top:0.5", *tiny)
    done = synther("upsample", data, "--samples", 50, "--out", folder, *request, "--json")
    assert done.code == 0
    assert done.json["rows_real"] == np.count_nonzero(rows.reward >= np.median(rows.reward))
    assert synther("fit", data, "--out", path, *tiny).code == 2  # it is a model with conditions
    for wrong in (("fit", data, "--condition", "joy", "--out", tmp_path / "n.safetensors", *tiny),
                  ("sample", path, "--condition", "joy=top:0.1", "--out", tmp_path / "n.npz"),
                  ("sample", path, "--condition", "top:2", "--out", tmp_path / "n.npz"),
                  ("assess", data, more, "--condition", "top:0.1", "--out", tmp_path / "report"),
                  ("upsample", data, "--guidance", 2, "--out", tmp_path / "other", *tiny)):  # fmt: skip
        assert synther(*wrong).code == 2


def test_inconsistent_rows_are_discarded(synther, data, tiny, tmp_path, monkeypatch):
    """From the fit to the rows. What the filter discards is tested in tests/relevance."""
    short_ensembles(monkeypatch)
    path, more = tmp_path / "m.safetensors", tmp_path / "more.npz"
    assert synther("fit", data, "--out", path, "--ensemble", *tiny).code == 0
    assert synther("inspect", path, "--json").json["ensemble"]["members"] == 5
    chosen = ("--keep", 0.8, "--relabel", "ensemble")
    assert synther("sample", path, "--samples", 50, "--out", more, *chosen).code == 0
    model = Synthesizer.load(path)
    assert read(more).equals(model.sample(50, keep=0.8, relabel="ensemble", seed=0, progress=False))
    folder = tmp_path / "both"
    assert synther("upsample", data, "--samples", 50, "--out", folder, "--keep", 0.8, *tiny).code == 0
    model = Synthesizer.load(folder / "model.safetensors")
    assert read(folder / "synthetic.hdf5").equals(model.sample(50, keep=0.8, seed=0, progress=False))
    for wrong in (("fit", data, "--out", path, *tiny),  # it is a model with an ensemble
                  ("sample", path, "--keep", 2, "--out", tmp_path / "n.npz"),
                  ("upsample", data, "--keep", 0, "--out", tmp_path / "other", *tiny)):  # fmt: skip
        assert synther(*wrong).code == 2


def test_n_step_rows_with_next_actions(synther, tiny, tmp_path):
    """Fitted on, written, assessed, and trained on by an agent that needs next actions."""
    count, made = 200, np.random.default_rng(0)
    states = made.normal(size=(count + 1, 3))
    cut = np.arange(count) % 20 == 19
    actions, rewards = made.uniform(-1, 1, (count, 1)), made.normal(size=count)
    real = Transitions(states[:-1], actions, rewards, states[1:], timeout=cut, action_space=(Box.uniform(-1, 1, 1),))
    data, path, more = tmp_path / "real.npz", tmp_path / "m.safetensors", tmp_path / "more.parquet"
    write(real, data)
    how = ("--n-step", 3, "--discount", 0.9, "--next-actions")
    assert synther("fit", data, "--out", path, *how, *tiny, "--json").json["rows"] == count - 10
    assert synther("sample", path, "--samples", 100, "--out", more).code == 0
    found = read(more)
    assert set(np.round(found.extra["discount"], 6).tolist()) <= {0.9, 0.81, 0.729}
    assert synther("inspect", more, "--json").json["columns"][-1]["name"] == "extra/discount"
    report = synther("assess", data, more, "--out", tmp_path / "report", *how, "--json")
    assert report.code == 0
    assert "extra/next_action[0]" in report.json["columns"]
    code, _, err = synther("assess", data, more, "--out", tmp_path / "other")
    assert code == 2
    assert "--next-actions" in err
    assert synther("fit", data, "--out", path, "--n-step", 0, *tiny).code == 2
    quick = ("--updates", 20, "--seeds", 1, "--device", "cpu", "--no-evaluate", "--agent.width", 8)
    quick += ("--agent.batch-size", 8)
    for number, source in enumerate(([more], [path, "--samples", 50], [more, "--ratio", 0.5])):
        out = tmp_path / f"run{number}"
        assert synther("train", "rebrac", data, "--synthetic", *source, "--out", out, *quick).code == 0


class TestDistill:
    def test_a_saved_model_gets_a_student_which_then_draws(self, synther, model, tmp_path):
        path, more = tmp_path / "m.safetensors", tmp_path / "more.npz"
        path.write_bytes(model.read_bytes())
        command = ("distill", path, "--calls", 1, "--steps", 20, "--rows", 600)
        code, out, err = synther(*command)
        assert code == 0
        assert str(path) in out
        done = [line.split(":")[0] for line in err.splitlines() if "100 %" in line]
        assert done == ["teach", "distill", "match", "calibrate"]
        assert [file.name for file in tmp_path.iterdir()] == ["m.safetensors"]
        before = path.stat().st_mtime_ns
        again = synther(*command, "--json")
        assert (again.code, path.stat().st_mtime_ns, again.json["calls"], again.json["steps"]) == (0, before, 1, 20)
        assert synther("inspect", path, "--json").json["student"]["steps"] == 20
        loaded, old = Synthesizer.load(path), Synthesizer.load(model)
        for words, expected in (
            ([], loaded.sample(50, seed=0, progress=False)),
            (["--sampler", "distilled"], loaded.sample(50, seed=0, progress=False)),
            (["--sampler", "teacher"], old.sample(50, seed=0, progress=False)),
            (["--steps", 3], old.sample(50, seed=0, sampler={"steps": 3}, progress=False)),
        ):
            assert synther("sample", path, "--samples", 50, "--out", more, *words).code == 0
            assert read(more).equals(expected)
            more.unlink()

    def test_a_fit_can_do_it_too_and_takes_a_later_student_for_its_own(self, synther, data, tiny, tmp_path):
        path, other = tmp_path / "m.safetensors", tmp_path / "n.safetensors"
        short = ("--distill.steps", 20, "--distill.rows", 600)
        assert synther("fit", data, "--out", path, *tiny, "--distill.calls", 2, *short).code == 0
        assert [file.name for file in tmp_path.iterdir()] == ["m.safetensors"]
        assert synther("fit", data, "--out", other, *tiny).code == 0
        assert synther("distill", other, "--steps", 20, "--rows", 600).code == 0
        assert synther("fit", data, "--out", other, *tiny).code == 0
        drawn = [Synthesizer.load(each).sample(50, seed=0, progress=False) for each in (path, other)]
        assert drawn[0].equals(drawn[1])

    def test_it_is_not_done_twice_at_once(self, synther, model, tmp_path):
        path = tmp_path / "m.safetensors"
        path.write_bytes(model.read_bytes())
        with owned(tmp_path / ".m.safetensors.lock"):
            code, _, err = synther("distill", path)
        assert code == 2
        assert ".m.safetensors.lock" in err
        assert path.read_bytes() == model.read_bytes()


class TestSample:
    @pytest.mark.parametrize("suffix", [".npz", ".parquet"])
    def test_it_writes_the_rows_of_the_model(self, synther, model, suffix, tmp_path):
        path = tmp_path / f"more{suffix}"
        code, out, err = synther("sample", model, "--samples", "1.2K", "--out", path)
        assert code == 0
        assert "1,200" in out
        assert str(path) in out
        assert [line.split(":")[0] for line in err.splitlines() if "100 %" in line] == ["sample", "write"]
        assert read(path).equals(Synthesizer.load(model).sample(1200, seed=0, progress=False))
        assert sorted(file.name for file in tmp_path.iterdir()) == [f".{path.name}.made", path.name]

    def test_seed_and_sampler_decide(self, synther, model, tmp_path):
        options = {"[a]": [], "b": ["--seed", 0], "c": ["--seed", 1], "d": ["--sampler", "heun"], "e": ["--steps", 3]}
        for name, words in options.items():
            path = tmp_path / f"{name}.npz"
            answer = synther("sample", model, "--samples", 20, "--out", path, "--quiet", "--json", *words)
            assert answer.json == {"data": str(path), "samples": 20, "files": 1, "bytes": path.stat().st_size}
        drawn = {name: read(tmp_path / f"{name}.npz").reward for name in options}
        np.testing.assert_array_equal(drawn["[a]"], drawn["b"])
        for name in "cde":
            assert not np.array_equal(drawn["[a]"], drawn[name]), name

    def test_rows_can_have_the_actions_of_agents(self, synther, refused, data, rows, model, tmp_path):
        quick = ("--updates", 30, "--seeds", 2, "--device", "cpu", "--no-evaluate", "--agent.width", 8)
        assert synther("train", "bc", data, "--out", tmp_path / "run", *quick).code == 0
        agents = tmp_path / "run" / "checkpoint.safetensors"
        drawn, by = {}, ("--policy", agents)
        asked = {"plain": (), "none": (*by, "--policy-strength", 0), "whole": by, "loose": (*by, "--policy-std", 0.3)}
        for name, words in asked.items():
            path = tmp_path / f"{name}.npz"
            command = ("sample", model, "--samples", 200, "--out", path, *words)
            assert synther(*command).code == 0
            assert synther(*command).code == 0, "a second time, nothing is done"
            drawn[name] = read(path)
        assert drawn["none"].equals(drawn["plain"])
        policy = load_policy(agents)

        def distance(made: Transitions) -> float:
            return float(np.abs(policy.act(made.observation) - made.action).min(0).mean())  # to one of the agents

        assert distance(drawn["whole"]) < distance(drawn["loose"]) < distance(drawn["plain"])
        sample = ("sample", model, "--samples", 200, "--out", tmp_path / "whole.npz")
        assert "whole.npz" in refused(*sample, "--policy", agents, "--policy-strength", 0.5)
        new = ("sample", model, "--out", tmp_path / "new.npz")
        assert "--policy" in refused(*new, "--policy-strength", 0.5)
        assert "no such file" in refused(*new, "--policy", tmp_path / "lost.safetensors")
        assert "[0, 1]" in refused(*new, "--policy", agents, "--policy-strength", 2)

        wide = replace(
            rows, observation=np.tile(rows.observation, 2), next_observation=np.tile(rows.next_observation, 2)
        )
        write(wide, tmp_path / "wide.npz")
        assert synther("train", "bc", tmp_path / "wide.npz", "--out", tmp_path / "other", *quick).code == 0
        strange = tmp_path / "other" / "checkpoint.safetensors"
        told = "4 observation and 1 action columns, the rows 2 and 1"
        assert told in refused(*new, "--policy", strange)
        train = ("train", "td3_bc", data, "--synthetic", model, "--samples", 60, *quick, "--agent.batch-size", 8)
        assert synther(*train, "--policy", agents, "--out", tmp_path / "guided").code == 0
        described = json.loads((tmp_path / "guided" / "run.json").read_text())["synthetic"]["synthetic"]
        assert (described["strength"], described["std"], len(described)) == (1.0, None, 6)
        kept = read(tmp_path / "guided" / "synthetic.npz")
        assert kept.equals(Synthesizer.load(model).sample(60, seed=0, guide=policy_guide(policy), progress=False))
        assert told in refused(*train, "--policy", strange, "--out", tmp_path / "never")
        assert "--synthetic" in refused("train", "bc", data, "--policy", agents, "--out", tmp_path / "never")

    def test_a_folder_takes_the_same_rows_and_is_data(self, synther, refused, model, tiny, tmp_path):
        folder = tmp_path / "more.parquet"
        command = ("sample", model, "--samples", 600, "--out", f"{folder}/")
        found = synther(*command, "--quiet", "--json").json
        size = (folder / "part-000000.parquet").stat().st_size
        assert found == {"data": str(folder), "samples": 600, "files": 1, "bytes": size}
        assert read(folder).equals(Synthesizer.load(model).sample(600, seed=0, progress=False))
        before = (folder / "part-000000.parquet").stat().st_mtime_ns
        assert synther(*command).code == 0
        assert (folder / "part-000000.parquet").stat().st_mtime_ns == before
        assert "seed" in refused(*command, "--seed", 1)
        assert "--out" in refused("sample", model, "--parallel", 2, "--out", tmp_path / "more.npz")
        assert synther("inspect", folder, "--json").json["rows"] == 600
        assert synther("fit", folder, "--out", tmp_path / "again.safetensors", *tiny).code == 0

    def test_what_exists_is_not_replaced(self, refused, model, data):
        before = data.read_bytes()
        assert f"{data} exists" in refused("sample", model, "--samples", 10, "--out", data)
        assert data.read_bytes() == before


class TestUpsample:
    def test_from_file_to_files(self, synther, refused, data, tiny, tmp_path):
        folder = tmp_path / "run"
        command = ("upsample", data, "--out", folder, *tiny, "--samples")
        code, out, err = synther(*command, 600)
        assert code == 0
        assert "300 real rows against 600 synthetic ones" in out
        for name in ("model.safetensors", "synthetic.hdf5", "comparison.png", "comparison.json"):
            assert str(folder / name) in out
        done = [line.split(":")[0] for line in err.splitlines() if "100 %" in line]
        assert done == ["fit", "match", "calibrate", "sample", "write"]
        made = read(folder / "synthetic.hdf5")
        assert made.equals(Synthesizer.load(folder / "model.safetensors").sample(600, seed=0, progress=False))
        again = synther(*command, 600, "--json")
        assert (again.code, again.err, again.json["real_rows"], again.json["samples"]) == (0, "", 300, 600)
        assert again.json["files"]["data"] == str(folder / "synthetic.hdf5")
        assert 0 <= again.json["marginal"] <= 1
        assert "other options: samples" in refused(*command, 700)


class TestInspect:
    def test_data(self, told, data, rows):
        out, found = told("inspect", data)
        assert out.startswith(rows.summary())
        for name in ("observation[1]", "action[0]", "reward", "next_observation[1]", "terminal"):
            assert f"  {name} " in out
        assert (found["kind"], found["rows"], found["env_id"]) == ("data", 300, "Made-v0")
        assert found["terminal_rate"] == 0.1
        columns = {column["name"]: column for column in found["columns"]}
        assert len(columns) == 7
        assert columns["reward"]["mean"] == pytest.approx(rows.reward.mean(dtype=float), rel=1e-12)
        assert columns["reward"]["min"] == rows.reward.min()

    def test_a_run(self, told, tmp_path):
        run = {"algorithm": "bc", "updates": 20, "agent": {"width": 8, "alpha": None}}
        (tmp_path / "run.json").write_text(json.dumps(run))
        out, _ = told("inspect", tmp_path)
        assert re.search(r"^  result +none yet: run the same command again to resume$", out, re.MULTILINE)
        assert re.search(r"^  agent\.width +8$", out, re.MULTILINE)
        assert "alpha" not in out
        result = Result.of([Measurement(20, 1.0, {}, [[1.0, 3.0], [2.0, 6.0]])], ["real"])
        written = json.dumps(result.to_json())
        (tmp_path / "result.json").write_text(written)
        out, found = told("inspect", tmp_path)
        assert re.search(r"^  real, final return +3\.0 ± 1\.0 after 20 updates$", out, re.MULTILINE)
        assert (found["kind"], found["run"], found["files"]) == ("run", run, ["result.json", "run.json"])
        assert found["result"] == json.loads(written)

    def test_numbers_whose_squares_are_infinite(self, synther, tmp_path):
        values = np.array([[1e300], [-1e300], [1e308]])
        rest = {"next_observation": values, "action": values / 1e308, "reward": [0, 1, 2]}
        np.savez(tmp_path / "x.npz", observation=values, **rest)
        columns = synther("inspect", tmp_path / "x.npz", "--json").json["columns"]
        assert columns[0]["std"] == pytest.approx(1e308 * np.sqrt(2) / 3, rel=1e-6)

    def test_frames(self, synther, told, tmp_path):
        first = np.arange(12) % 6 == 0
        image = np.zeros((12, 3, 8, 8), np.uint8)
        frames = Frames(image, np.zeros((12, 2)), np.ones(12), np.ones(12), first, "Made-v0", 2)
        files.write(frames, tmp_path / "f.hdf5")
        out, found = told("inspect", tmp_path / "f.hdf5")
        for text in ("Made-v0", "12 of 3 x 8 x 8", "action repeat   2", "5.0 ± 0.0"):
            assert text in out
        assert (found["kind"], found["episodes"], found["return"]["mean"]) == ("frames", 2, 5.0)
        assert (found["return"]["episodes"], found["shadow_size"], found["recorded"]) == ([5, 5], None, {})
        about = {"mean_return": 7.0, "std_return": 0.5, "whole_episodes": 1, "recorded": '{"seed": 3}'}
        files.write(replace(frames, shadow_size=64), tmp_path / "f.hdf5", about)
        out, found = told("inspect", tmp_path / "f.hdf5")
        for text in ("shadow size     64", "7.0 ± 0.5", "2, 1 of them cut"):  # as only who recorded them can tell
            assert text in out
        assert (found["return"]["mean"], found["recorded"]) == (7.0, {"seed": 3})
        (tmp_path / "half.hdf5").write_bytes((tmp_path / "f.hdf5").read_bytes()[:3000])
        code, out, err = synther("inspect", tmp_path / "half.hdf5")
        assert (code, out) == (2, "")
        assert err.startswith(f"synther: {tmp_path / 'half.hdf5'}: expected an HDF5 file")

    def test_agents(self, told, rows, tmp_path):
        agent = Agent(BCConfig(width=4, depth=1, batch_size=4), Rows([rows], device=torch.device("cpu")), [Member(7)])
        agent.train(3)
        agent.save(tmp_path / "a.safetensors")
        out, found = told("inspect", tmp_path / "a.safetensors")
        for text in ("algorithm   bc", "seeds       7", "updates     3", "actor       2 - 4 - 1"):
            assert text in out
        assert (found["kind"], found["algorithm"], found["updates"]) == ("agents", "bc", 3)

    def test_a_model(self, told, model):
        out, found = told("inspect", model)
        for text in ("Made-v0", "residual, 1 x 16", "300 rows, 20 steps", "unipc, 2 steps", "terminal > 0."):
            assert text in out
        loaded = Synthesizer.load(model)
        assert (found["kind"], found["env_id"], found["record"]["rows"]) == ("model", "Made-v0", 300)
        assert found["columns"] == list(loaded.layout.names)
        assert found["settings"] == loaded.settings.to_json()
        assert found["parameters"] == sum(weight.numel() for weight in loaded.network.parameters())


class TestPresets:
    def test_the_table(self, told):
        out, found = told("presets")
        for name in PRESETS:
            assert f"  {name} " in out
            assert ABOUT[name] in out
        assert found == {name: {"about": ABOUT[name], **PRESETS[name].to_json()} for name in PRESETS}


@pytest.mark.parametrize("verb", VERBS)
def test_silence(synther, verb, data, model, tiny, tmp_path):
    if verb == "pixels":
        first = np.arange(8) % 4 == 0
        frames = Frames(np.zeros((8, 3, 16, 16), np.uint8), np.zeros((8, 1)), np.zeros(8), np.ones(8), first)
        files.write(frames, tmp_path / "frames.hdf5")
    words = {
        "upsample": [data, "--samples", 20, "--out", tmp_path / "run", *tiny],
        "fit": [data, "--out", tmp_path / "m.safetensors", *tiny],
        "sample": [model, "--samples", 20, "--out", tmp_path / "x.npz"],
        "distill": [shutil.copy(model, tmp_path), "--steps", 10, "--rows", 600],
        "assess": [data, data, "--out", tmp_path / "report"],
        "compare": [data, "--generators", "noise", "--samples", 20, "--out", tmp_path / "compared"],
        "train": ["bc", data, "--out", tmp_path / "trained", "--seeds", 1, "--updates", 10, "--no-evaluate"],
        "evaluate": [tmp_path / "trained", "--env-id", "Pendulum-v1", "--episodes", 1],
        "online": ["Pendulum-v1", "--out", tmp_path / "online", "--seeds", 1, "--steps", 9, "--episodes", 1],
        "collect": ["Pendulum-v1", "--steps", 20, "--out", tmp_path / "rows.npz"],
        "pixels": ["train", "bc", tmp_path / "frames.hdf5", "--out", tmp_path / "seen", *SEEING],
        "paper": ["list"],
        "inspect": [data],
        "presets": [],
        "doctor": [],
        "completion": ["bash"],
    }[verb]
    if verb == "evaluate":
        write(rollout("Pendulum-v1", 50), tmp_path / "swings.npz")
        learning = ("--seeds", 1, "--updates", 10, "--no-evaluate", "--quiet")
        assert synther("train", "bc", tmp_path / "swings.npz", "--out", tmp_path / "trained", *learning).code == 0
    code, out, err = synther(verb, *words, "--quiet")
    assert (code, err) == (0, "")
    assert out.strip()


def test_the_home_folder(synther, data, tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert synther("fit", data, "--out=~/m.safetensors", *tiny).code == 0
    assert synther("sample", "~/m.safetensors", "--samples", 10, "--out=~/x.npz").code == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == [".x.npz.made", "m.safetensors", "x.npz"]


@pytest.fixture
def folder(rows, tmp_path):
    """Where `my-replay` lies, in D4RL's spelling of file names."""
    path = tmp_path / "sets"
    path.mkdir()
    write(rows, path / "my_replay-v2.npz")
    return path


def test_each_verb_finds_it(synther, folder, tiny, tmp_path, rows):
    named = ("my-replay", "--data", folder)
    assert json.loads(synther("inspect", *named, "--json").out)["rows"] == len(rows)
    assert synther("fit", *named, "--out", tmp_path / "model.safetensors", *tiny).code == 0
    made = synther("upsample", *named, "--out", tmp_path / "made", "--samples", 50, "--json", *tiny)
    assert json.loads(made.out)["real_rows"] == len(rows)
    noise = ("--generators", "additive", "--samples", "50", "--json")
    assert synther("compare", *named, *noise, "--out", tmp_path / "compared").code == 0
    judged = ("assess", "my-replay", tmp_path / "made" / "synthetic.hdf5", "--data", folder)
    assert synther(*judged, "--out", tmp_path / "report").code == 0


@pytest.mark.parametrize("verb", ["fit", "upsample", "compare", "inspect"])
def test_one_that_is_not_there_is_named(synther, verb, tmp_path):
    out = () if verb == "inspect" else ("--out", tmp_path / "out.safetensors")
    code, _, err = synther(verb, "walker2d-medium", "--data", tmp_path, *out)
    assert (code, err.count("\n")) == (2, 1)
    assert "'walker2d-medium'" in err


def test_a_file_is_read_whatever_its_name_means(synther, rows, tmp_path):
    """Its rows are of another environment than the data set of that name."""
    write(rows, tmp_path / "hopper-medium.npz")
    assert synther("inspect", tmp_path / "hopper-medium.npz").code == 0


def test_long_work_begins_with_what_how_much_and_where(synther, caplog, data, model, tiny, tmp_path):
    commands = {
        ("fit", data, "--out", tmp_path / "m.safetensors", *tiny, "--device", "cpu"): ("300 rows", "20 steps", "cpu"),
        ("sample", model, "--samples", 20, "--out", tmp_path / "x.npz"): ("20 rows", "unipc", "x.npz"),
        ("train", "bc", data, "--out", tmp_path / "t", "--seeds", 2, "--updates", 10, "--no-evaluate"): ("2 agents",),
        ("collect", "Pendulum-v1", "--steps", 20, "--out", tmp_path / "c.npz"): ("20 steps", "Pendulum-v1", "random"),
    }
    for words, told in commands.items():
        caplog.clear()
        assert synther(*words).code == 0
        assert [line for line in caplog.messages if all(text in line for text in told)]

"""Two sets of rows and the model between them: what the report holds, who judges, and what is left out with a word."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from synther import Synthesizer, Transitions, __version__, read
from synther import report as module
from synther.data.spaces import Discrete
from synther.diffusion.config import SamplerConfig
from synther.envs.making import opened
from synther.envs.rollout import rollout
from synther.envs.simulator import simulate
from synther.errors import ConfigError, DataError, MissingExtra, Unwritable
from synther.formats import shipped
from synther.progress import Silent
from synther.report import Assessed, Pair, Plan, assess_to

from .support.short import short_learners
from .support.small_job import made
from .support.small_job import model as small
from .support.watch import Watch

PLAIN = {
    "sampler": {"steps": 5, "restarts": 0},
    "data": {"scaling": "standard", "spikes": False, "terminals": "generated", "threshold": "half"},
}
FILES = ["assessment.json", "report.html"]


def drawn(env_id: str, states: np.ndarray, **size: int) -> list[np.ndarray]:
    """In the place of the simulator's pictures, which take seconds."""
    return [np.full((4, 4, 3), number, np.uint8) for number in range(len(states))]


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Nothing here depends on how well networks learn, or on how many rows samplers are compared."""
    with pytest.MonkeyPatch.context() as patch:
        short_learners(patch)
        patch.setattr(module, "EFFORT", {"cpu": 0.0, "cuda": 0.0})
        patch.setattr(module, "JUDGED_ROWS", 20)
        patch.setattr(module, "render_states", drawn)
        yield


@pytest.fixture(scope="module")
def hopper() -> Transitions:
    return read(shipped.hopper())[:400]


@pytest.fixture(scope="module")
def model(hopper) -> Synthesizer:
    return small(**PLAIN).fit(hopper, progress=False)


@pytest.fixture(scope="module")
def pair(hopper, model) -> Pair:
    return Pair(hopper, model.sample(150, seed=0, progress=False), "hopper-sac", "synthetic.npz", model=model)


@pytest.fixture(scope="module")
def done(pair, tmp_path_factory) -> Assessed:
    return assess_to(Plan(tmp_path_factory.mktemp("report") / "new" / "folder"), pair, progress=False)


def few(pair: Pair, **changes) -> Pair:
    """Too few rows for networks, which is soon done."""
    return replace(pair, **{"synthetic": pair.synthetic[:40], "model": None, **changes})


def run(folder: Path, pair: Pair, **plan) -> Assessed:
    return assess_to(Plan(folder, **plan), pair, progress=False)


class TestReport:
    def test_a_page_and_figures_in_strict_json(self, done):
        assert sorted(file.name for file in done.report.parent.iterdir()) == FILES
        assert done.assessment.verdict.sentence.split(":")[0] in done.report.read_text()
        assert done.assessment.version.startswith(__version__)
        assert f"SynthER {__version__}" in done.report.read_text()
        kept = json.loads(done.figures.read_text(), parse_constant=pytest.fail)
        assert kept == json.loads(json.dumps(done.assessment.to_json()))
        assert (kept["rows_real"], kept["rows_synthetic"], kept["rows_held_out"]) == (400, 150, 80)
        names = ("Hopper-v5", "hopper-sac", "synthetic.npz")
        assert (kept["env_id"], kept["real_name"], kept["synthetic_name"]) == names
        measures = {entry["name"]: entry for entry in kept["measures"]}
        assert 0 <= measures["marginal"]["value"] < measures["marginal"]["real"] <= 1
        assert measures["dynamics_error"]["real"] < 1e-6 < measures["dynamics_error"]["value"]

    def test_the_simulator_judges_and_the_size_of_the_model_counts(self, done, model):
        assert done.assessment.cloud.judge == "Hopper-v5 in MuJoCo"
        assert not any("no simulator" in note for note in done.assessment.notes)
        parameters = sum(weights.numel() for weights in model.network.parameters())
        assert done.assessment.measure("compression").value == 400 * (2 * 11 + 3 + 2) / parameters

    def test_rows_go_from_noise_to_data(self, done):
        process = done.assessment.process
        assert (process.sigmas[0], process.sigmas[-1]) == (10.0, 0.0)
        assert list(process.sigmas) == sorted(set(process.sigmas), reverse=True)
        assert {len(rows) for rows in process.steps} == {300}
        spreads = [np.std(rows) for rows in process.steps]
        assert 7.5 < spreads[0] < 15  # noise of its own size, in a plane of unit directions
        assert spreads[-1] < 5
        assert len(process.frames) == len(process.sigmas)

    def test_plain_samplers_are_compared_with_the_models_own(self, done):
        efforts = done.assessment.efforts
        assert [effort.calls for effort in efforts] == [4, 5, 8, 16, 32, 64]
        own = efforts[1].sampler
        assert [effort.sampler for effort in efforts] == ["unipc", own, *["unipc"] * 4]
        assert own == "the model's sampler: unipc, 5 steps"
        for effort in efforts:
            assert 0 < effort.marginal < 1
            assert 0 < effort.correlation < 1
            assert effort.dynamics > 0
            assert effort.seconds > 0
        assert any(note.startswith("network calls: each sampler generated 500 rows") for note in done.assessment.notes)


class TestModels:
    def test_one_of_other_data(self, pair, hopper, monkeypatch, tmp_path):
        monkeypatch.setattr(module, "CALLS", ())
        found = run(tmp_path, few(pair, real=hopper[:300], model=pair.model), simulator=False).assessment
        assert "the model was fitted on other data than these real rows (400 rows)" in found.notes
        assert found.process is not None
        assert len(found.efforts) == 1

    def test_one_of_some_of_the_rows(self, pair, hopper, tmp_path):
        """In which a column never changed: that shows in a later row."""
        here, there = hopper.observation.copy(), hopper.next_observation.copy()
        here[:200, 3] = there[:200, 3] = 0
        real = replace(hopper, observation=here, next_observation=there)
        model = small(**PLAIN).fit(real[:200], progress=False)
        found = run(tmp_path, few(pair, real=real, model=model), simulator=False).assessment
        assert found.notes[0].startswith("the model cannot generate such rows and is ignored: observation[3] is")

    def test_terminals_of_other_samplers_are_decided_as_those_of_its_own(self):
        goal = np.arange(600) % 4 == 0
        rows = replace(made(600), reward=goal.astype(np.float32), terminal=goal)
        model = small().fit(rows, progress=False)
        assert model.ending is not None
        rows = module._drawn(model, SamplerConfig("euler", 3), 200, 0)
        np.testing.assert_array_equal(rows.terminal, model.ending.decide(rows))


class TestProcess:
    def test_what_cannot_be_drawn_is_said(self, model, hopper, monkeypatch):
        def broken(*args):
            raise ConfigError("cannot draw Hopper-v5 here")

        monkeypatch.setattr(module, "render_states", broken)
        process, notes = module._process(model, hopper, "Hopper-v5", 0)
        assert process.frames == ()
        assert notes == ("states are not rendered: cannot draw Hopper-v5 here",)
        assert module._process(model, hopper, "Made-v0", 0)[1] == ()

    def test_levels_between_which_rows_change_alike(self):
        even = np.tan(np.linspace(1.5, 0, 10)).tolist()
        assert module._evenly_noisy(even, 1.0) == list(range(10))
        assert module._evenly_noisy([2 * sigma for sigma in even], 2.0) == list(range(10))
        assert module._evenly_noisy([80.0, 0.0], 1.0) == [0, 1]
        many = [*np.geomspace(80, 0.002, 500).tolist(), 0.0]
        chosen = module._evenly_noisy(many, 1.0)
        assert (len(chosen), chosen[0], chosen[-1]) == (10, 0, 500)
        assert np.ptp(np.diff(np.arctan([many[at] for at in chosen]))) < 0.02


class TestEfforts:
    def test_how_to_read_them_is_said(self, hopper):
        note = module._ceiling(hopper, 500, 0)
        assert note.startswith("network calls: each sampler generated 500 rows; 200 real rows reach marginal 0.9")
        assert module._ceiling(hopper[:1], 500, 0) == "network calls: each sampler generated 500 rows"

    def test_nothing_twice_and_no_simulator(self, hopper):
        model = small(**{**PLAIN, "sampler": {"steps": 8, "restarts": 0, "matched": False}}).fit(hopper, progress=False)
        efforts, _ = module._efforts(model, hopper, None, 0, Silent())
        assert [effort.calls for effort in efforts] == [4, 8, 16, 32, 64]
        assert efforts[1].sampler == "the model's sampler: unipc, 8 steps"
        assert all(effort.dynamics is None for effort in efforts)

    def test_matched_and_restarted(self, hopper):
        sampler = {"steps": 5, "restarts": 1, "restart_steps": 3, "matched": True}
        model = small(**{**PLAIN, "sampler": sampler}).fit(hopper, progress=False)
        its, ours = model.sample(30, seed=0, progress=False), module._drawn(model, model.settings.sampler, 30, 0)
        np.testing.assert_array_equal(ours.observation, its.observation)
        efforts, _ = module._efforts(model, hopper, None, 0, Silent())
        assert [effort.calls for effort in efforts] == [4, 8, 8, 16, 32, 64]
        assert [effort.sampler for effort in efforts if effort.calls == 8] == [
            "unipc", "the model's sampler: unipc, 5 steps and 3 in a restart",
        ]  # fmt: skip


class TestJudges:
    def test_the_environment_is_asked_as_it_was_made(self, tmp_path):
        with opened("Hopper-v5", frame_skip=1) as env:
            rows = replace(rollout(env, 80), env_id="Hopper-v5", env_options={"frame_skip": 1})
        found = run(tmp_path, Pair(rows[::2], rows[1::2], "a", "b")).assessment
        assert found.cloud.judge == "Hopper-v5 in MuJoCo with frame_skip 1"
        assert found.measure("dynamics_error").value < 1e-9

    def test_a_task_whose_observations_are_others(self, tmp_path):
        rows = replace(made(), env_id="Hopper-v5")
        pair = Pair(rows, rows[:40], "a", "b")
        found = run(tmp_path / "a", pair).assessment
        assert found.notes[0].startswith("Hopper-v5 in MuJoCo cannot judge these rows: ")
        with pytest.raises(DataError, match="Hopper-v5"):
            run(tmp_path / "b", pair, env_id="Hopper-v5")
        assert not (tmp_path / "b").exists()

    def test_a_library_that_is_not_installed(self, pair, tmp_path, monkeypatch):
        def missing(*args, **options):
            raise MissingExtra("gymnasium", "gym", "running Hopper-v5")

        monkeypatch.setattr("synther.envs.simulator.simulate", missing)
        found = run(tmp_path / "a", few(pair)).assessment
        assert found.notes[0].startswith(
            "Hopper-v5 in MuJoCo cannot judge these rows: running Hopper-v5 needs gymnasium"
        )
        with pytest.raises(MissingExtra):
            run(tmp_path / "b", few(pair), env_id="Hopper-v5")

    def test_discrete_actions(self, tmp_path, monkeypatch):
        monkeypatch.setattr(module, "CALLS", (4,))
        draw = np.random.default_rng(0)
        observation = draw.uniform(-0.2, 0.2, (300, 4)).astype(np.float32)
        action = draw.integers(0, 2, 300)
        following, reward, terminal = simulate("CartPole-v1", observation, action, processes=1)
        about = {"action_space": (Discrete(2),), "env_id": "CartPole-v1"}
        real = Transitions(observation, action, reward, following, terminal, **about)
        model = small(**PLAIN).fit(real, progress=False)
        found = run(tmp_path, Pair(real, model.sample(150, seed=0, progress=False), "a", "b", model=model)).assessment
        assert found.cloud.judge == "CartPole-v1 in Gymnasium"
        assert found.measure("dynamics_error").real < 1e-6
        assert 0 <= found.measure("policy_score").value <= 1
        assert [effort.calls for effort in found.efforts] == [4, 5]
        assert found.process is not None


class TestPlans:
    def test_what_cannot_succeed_does_not_begin(self, tmp_path, monkeypatch):
        (tmp_path / "taken").write_text("mine")
        for folder in (tmp_path / "taken", tmp_path / "taken" / "deep" / "report"):
            with pytest.raises(ConfigError, match="taken is a file"):
                Plan(folder)
        with monkeypatch.context() as patch:
            patch.setattr("os.access", lambda path, mode: path != tmp_path)  # whoever runs this may be root
            with pytest.raises(Unwritable, match=tmp_path.name):
                Plan(tmp_path / "deep" / "report")
        with pytest.raises(DataError, match="'Nowhere-v0'"):
            Plan(tmp_path, env_id="Nowhere-v0")
        assert Plan(tmp_path, env_id="Nowhere-v0", simulator=False).env_id == "Nowhere-v0"


class TestFaults:
    @pytest.fixture
    def before(self, pair, tmp_path) -> dict[str, bytes]:
        run(tmp_path, few(pair), simulator=False)
        return {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    @pytest.mark.parametrize("name", FILES)
    def test_interrupted_while_writing(self, pair, before, name, tmp_path, monkeypatch):
        rename = os.replace

        def interrupted(source: Path, target: Path) -> None:
            if Path(target).name == name:
                raise KeyboardInterrupt
            rename(source, target)

        monkeypatch.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, few(pair, synthetic=pair.synthetic[:30]), simulator=False)
        after = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
        assert sorted(after) == FILES
        assert after[name] == before[name]

    def test_stopped_in_the_middle_nothing_is_there(self, pair, tmp_path):
        with pytest.raises(KeyboardInterrupt):
            assess_to(Plan(tmp_path / "new"), few(pair), progress=Watch(0, error=KeyboardInterrupt))
        assert list(tmp_path.iterdir()) == []

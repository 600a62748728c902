"""What trained pixel agents are worth: episodes that are played once, and count for the policy that played them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from synther.errors import ConfigError
from synther.experiments.evaluation import evaluate, score, why_not
from synther.experiments.pixels import encode_to, retrain_to, train_to
from synther.experiments.results import EvalPoint
from synther.experiments.sources import Stored
from synther.folder import RunFolder
from synther.pixels import evaluation
from synther.pixels.evaluation import Place, Played
from synther.pixels.policy import load_pixel_policy

from ..support.processes import Here
from ..support.watch import Stopped, Watch
from .seeing import ENV_ID, PLAN, Wall, frames


@pytest.fixture
def copied(run, tmp_path) -> Path:
    """What an evaluation needs, on another machine."""
    (tmp_path / "run").mkdir()
    for name in ("run.json", "trained.json", "policy.safetensors"):
        (tmp_path / "run" / name).write_bytes((run / name).read_bytes())
    return tmp_path / "run"


def test_it_becomes_the_result(copied, playing):
    result = evaluate(copied, episodes=2, progress=False)
    final = result.final("frames")
    assert final.updates == 12
    lines = [json.loads(line) for line in (copied / "episodes.jsonl").read_text().splitlines()]
    totals = {(line["member"], line["episode"]): line["return"] for line in lines}
    assert [line["length"] for line in lines] == [3] * 4
    for member in (0, 1):
        mean = (totals[member, 0] + totals[member, 1]) / 2
        assert final.returns[member] == pytest.approx(mean)
        assert final.scores[member] == pytest.approx(mean / 10)
    assert json.loads((copied / "result.json").read_text()) == json.loads(json.dumps(result.to_json()))
    assert result.origin["environment"] == f"{ENV_ID}, 2 episodes of each seed, every action 2 times"
    with RunFolder(copied).lock(), pytest.raises(ConfigError, match="is working in"):
        evaluate(copied, episodes=3, progress=False)


def test_worlds_are_drawn_as_the_frames_were(playing, tmp_path):
    train_to(PLAN, replace(frames(), shadow_size=64), tmp_path / "run", progress=False)
    evaluate(tmp_path / "run", episodes=1, progress=False)
    score(tmp_path / "run", episodes=1, progress=False, make_env=Wall)
    assert Wall.shadows[-1] == 64
    evaluation._held.cache_clear()
    Wall.shadows.clear()
    latents = encode_to(tmp_path / "run", frames(), tmp_path / "latents", shifts=1, progress=False)
    sources = [Stored(file) for file in latents]
    retrain_to(PLAN, tmp_path / "run", sources, tmp_path / "heads", features="both", progress=False)
    evaluate(tmp_path / "heads", episodes=1, progress=False)
    assert Wall.shadows == [64]


def test_stopped_it_goes_on_and_more_episodes_are_only_added(copied, playing, monkeypatch):
    whole = evaluate(copied, episodes=3, progress=False)
    kept = (copied / "episodes.jsonl").read_text()
    (copied / "episodes.jsonl").unlink()
    with pytest.raises(Stopped):
        evaluate(copied, episodes=3, progress=Watch(reports=3))
    with (copied / "episodes.jsonl").open("a") as file:
        file.write('{}\nno object\n[1]\n{"member": 0, "epi')  # the last line was cut
    monkeypatch.setattr(Here, "submitted", 0)
    assert evaluate(copied, episodes=2, progress=False) != whole
    assert evaluate(copied, episodes=3, progress=False) == whole
    assert Here.submitted == 3
    assert sorted((copied / "episodes.jsonl").read_text().splitlines()) == sorted(kept.splitlines())


def test_episodes_of_another_environment_or_repetition_do_not_count(copied, playing, caplog):
    for played, changes in ((1, {}), (2, {"env_id": "Elsewhere-v0"}), (3, {"repeat": 4}), (3, {})):
        found = evaluate(copied, episodes=1, progress=False, **changes)
        assert len((copied / "episodes.jsonl").read_text().splitlines()) == 2 * played
        assert found.origin["environment"].endswith(f"every action {changes.get('repeat', 2)} times")
    about = json.loads((copied / "run.json").read_text())
    (copied / "run.json").write_text(json.dumps({**about, "action_repeat": None}))
    assert evaluate(copied, episodes=1, progress=False) == found
    assert "--repeat" in caplog.text


def test_a_policy_that_diverged_in_one_episode_has_no_return(copied, playing, monkeypatch):
    policy = load_pixel_policy(copied / "policy.safetensors")
    policy.actor.weights[1] = float("nan")
    policy.save(copied / "policy.safetensors")
    result = evaluate(copied, episodes=1, progress=False)
    assert [value is None for value in result.final("frames").returns] == [False, True]
    assert result.diverged == {"frames": (1,)}
    totals = {Place(0, 0): 1.0, Place(0, 1): None, Place(1, 0): 2.0, Place(1, 1): 4.0}
    played = [(place, Played(total, 3)) for place, total in totals.items()]
    monkeypatch.setattr(evaluation, "play", lambda *given, **how: iter(played))
    (copied / "episodes.jsonl").unlink()
    final = evaluate(copied, episodes=2, progress=False).final("frames")
    assert final == EvalPoint(12, (None, 3.0), (None, pytest.approx(0.3)))


def test_where_it_cannot_be(copied, run, monkeypatch, tmp_path):
    monkeypatch.setattr(evaluation, "obstacle", lambda env_id: f"no picture of {env_id}")
    assert why_not(copied) == "no picture of dm_control/point_mass-easy-v0"
    with pytest.raises(ConfigError, match="no picture of"):
        evaluate(copied, progress=False)
    about = json.loads((copied / "run.json").read_text())
    (copied / "run.json").write_text(json.dumps({**about, "env_id": None}))
    with pytest.raises(ConfigError, match="--env-id"):
        evaluate(copied, progress=False)
    (copied / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"run\.json is damaged"):
        evaluate(copied, progress=False)
    with pytest.raises(ConfigError, match="holds no finished training"):
        evaluate(tmp_path, progress=False)


def test_episodes_of_another_policy_do_not_count(copied, playing):
    """And are kept: they took minutes."""
    before, first = evaluate(copied, episodes=1, progress=False), (copied / "policy.safetensors").read_bytes()
    policy = load_pixel_policy(copied / "policy.safetensors")
    policy.actor.weights.neg_()
    policy.save(copied / "policy.safetensors")
    assert evaluate(copied, episodes=1, progress=False).curves != before.curves
    assert len((copied / "episodes.jsonl").read_text().splitlines()) == 4
    (copied / "policy.safetensors").write_bytes(first)
    assert evaluate(copied, episodes=1, progress=False) == before
    assert len((copied / "episodes.jsonl").read_text().splitlines()) == 4

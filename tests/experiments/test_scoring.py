"""What saved agents are worth: the same as the training said, and elsewhere."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from synther.agents.policy import load_policy
from synther.collect.rows import frozen
from synther.envs import evaluation
from synther.envs.evaluation import Evaluator
from synther.errors import ConfigError, DataError, FormatError
from synther.experiments.evaluation import score
from synther.experiments.sources import Augmented, TrainingData

from ..here import Here
from .pendulum import swings
from .trainings import PLAN, logged, run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two arms of two seeds."""
    real = swings()
    noise = Augmented("additive", real, 40)
    material = TrainingData(real, {"noise": noise}, {"real": {"real": 1.0}, "noisy": {"noise": 1.0}})
    folder = tmp_path_factory.mktemp("scoring") / "run"
    run(folder, replace(PLAN, updates=20, seed=3, workers=1), material)
    return folder


def test_the_number_of_a_measurement_gives_its_returns_again(trained):
    found = score(trained, number=20, workers=1, progress=False)
    line = logged(trained)[-1]
    assert found.evaluation.returns.tolist() == line["returns"]
    assert (found.env_id, found.env_options, found.seeds, found.unit) == ("Pendulum-v1", {}, (3, 4), "updates")
    means = np.mean(line["returns"], axis=1)
    assert list(found.arms) == ["real", "noisy"]
    assert found.arms["real"].returns == pytest.approx(means[:2])
    assert found.arms["noisy"].returns == pytest.approx(means[2:])
    assert found.arms["noisy"].updates == 20


def test_other_starts_more_episodes_and_another_environment(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "Workers", Here)
    file, how = shutil.copy(trained / "checkpoint.safetensors", tmp_path / "agents.safetensors"), {"episodes": 2}
    with pytest.raises(ConfigError, match="--env-id"):
        score(file, progress=False)  # agents without their run
    options = {"max_episode_steps": 4}
    found = score(file, env_id="Pendulum-v1", env_options=options, progress=False, **how)
    with Evaluator("Pendulum-v1", [3, 4, 3, 4], options=options, **how) as evaluator:
        expected = evaluator.evaluate(frozen(load_policy(file)), 0)
    assert found.evaluation.returns.tolist() == expected.returns.tolist()
    assert found.evaluation.lengths.tolist() == [[4, 4]] * 4
    assert {arm: len(point.returns) for arm, point in found.arms.items()} == {"agents": 4}
    told = found.to_json()
    assert (told["env_options"], told["returns"]) == (options, expected.returns.tolist())


def test_what_cannot_be_evaluated(trained, tmp_path):
    with pytest.raises(DataError, match="Hopper-v5"):
        score(trained, env_id="Hopper-v5", progress=False)
    with pytest.raises(FormatError, match="no such file"):
        score(tmp_path / "nowhere", progress=False)
    with pytest.raises(FormatError, match=r"has no checkpoint\.safetensors"):
        score(tmp_path, progress=False)

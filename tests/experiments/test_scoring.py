"""What saved agents are worth: the same as the training said, and elsewhere."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from synther.agents.policy import load_policy
from synther.collect.rows import frozen
from synther.envs.evaluation import Evaluator
from synther.errors import ConfigError, DataError, FormatError
from synther.experiments.evaluation import score
from synther.experiments.pixels import train_to as train_on_frames
from synther.experiments.sources import Augmented, TrainingData

from ..pixels.lamps import Lamps
from . import seeing
from .online_pixels import runs as online_pixels
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


def test_other_starts_more_episodes_and_another_environment(trained):
    file = trained / "checkpoint.safetensors"
    found = score(file, episodes=2, env_options={"max_episode_steps": 4}, workers=1, progress=False)
    with Evaluator("Pendulum-v1", [3, 4, 3, 4], episodes=2, workers=1, options={"max_episode_steps": 4}) as evaluator:
        expected = evaluator.evaluate(frozen(load_policy(file)), 0)
    assert found.evaluation.returns.tolist() == expected.returns.tolist()
    assert found.evaluation.lengths.tolist() == [[4, 4]] * 4
    told = found.to_json()
    assert (told["env_options"], told["returns"]) == ({"max_episode_steps": 4}, expected.returns.tolist())
    with pytest.raises(DataError, match="takes 3 observation columns and gives 1 actions: Hopper-v5 has 11 and 3"):
        score(trained, env_id="Hopper-v5", progress=False)


def test_agents_without_their_run(trained, tmp_path):
    alone = shutil.copy(trained / "checkpoint.safetensors", tmp_path / "agents.safetensors")
    with pytest.raises(ConfigError, match=r"nothing says which environment .* name it with --env-id"):
        score(alone, progress=False)
    found = score(alone, env_id="Pendulum-v1", episodes=1, workers=1, progress=False)
    assert list(found.arms) == ["agents"]
    assert len(found.arms["agents"].returns) == 4


def test_what_holds_no_agents_is_told(tmp_path):
    with pytest.raises(FormatError, match="no such file; expected an agent"):
        score(tmp_path / "nowhere", progress=False)
    with pytest.raises(FormatError, match=r"has no checkpoint\.safetensors: expected the folder of `synther train`"):
        score(tmp_path, progress=False)


def test_agents_of_frames(tmp_path):
    """Of `pixels train`, whose file of policies names no seeds."""
    train_on_frames(seeing.PLAN, seeing.frames(), tmp_path, progress=False)
    found = score(tmp_path, episodes=2, workers=1, progress=False, make_env=seeing.Wall)
    assert (found.env_id, found.seeds, found.unit) == (seeing.ENV_ID, (3, 4), "updates")
    assert found.arms["agents"].updates == seeing.PLAN.updates
    assert found.evaluation.lengths.tolist() == [[3, 3]] * 2
    again = score(tmp_path, episodes=2, number=1, workers=1, progress=False, make_env=seeing.Wall)
    assert again.evaluation.returns.tolist() != found.evaluation.returns.tolist()  # other starts
    with pytest.raises(ConfigError, match="env-options"):
        score(tmp_path, env_options={"max_episode_steps": 4}, progress=False)


def test_agents_that_act_on_frames(tmp_path):
    plan = replace(online_pixels.PLAN, synthetic=None, steps=18, evaluate_every=18)
    online_pixels.run(tmp_path, plan, Lamps)
    found = score(tmp_path, workers=1, progress=False, make_env=Lamps)
    assert (found.seeds, found.unit, found.arms["agents"].updates) == ((3, 4), "steps", 18)
    assert found.evaluation.returns.tolist() == logged(tmp_path)[-1]["returns"]

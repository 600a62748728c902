from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from synther.envs import evaluation
from synther.envs.evaluation import Evaluator, Pending, Played
from synther.envs.making import Trusted
from synther.envs.policies import MlpPolicy
from synther.envs.scores import reference
from synther.errors import ConfigError, DataError, Failed

from ..support.processes import Here, gone

BROKEN = """
import os
import gymnasium
import numpy as np

class Broken(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        if action[0] == 1:
            os._exit(3)
        if action[0] > 0:
            raise RuntimeError("wires crossed")
        return np.zeros(2, np.float32), 1.0, False, False, {}

gymnasium.register("Broken-v0", Broken, max_episode_steps=4)
"""

KILLED = """
import time
import numpy as np
from synther.envs.evaluation import Evaluator
from synther.envs.policies import MlpPolicy

if __name__ == "__main__":
    evaluator = Evaluator("Pendulum-v1", [0], episodes=1, workers=1)
    evaluator.evaluate([MlpPolicy(((np.zeros((3, 1)), np.zeros(1)),))])
    print("playing", *evaluator._workers._pool._processes, flush=True)
    time.sleep(60)
"""


def pushing(action: float, inputs: int = 3, outputs: int = 1) -> MlpPolicy:
    """The same action everywhere, in [-1, 1]."""
    return MlpPolicy(((np.zeros((inputs, outputs)), np.full(outputs, action)),), "clamp")


def swinging(seed: int) -> MlpPolicy:
    rng = np.random.default_rng(seed)
    return MlpPolicy(((rng.normal(size=(3, 32)), rng.normal(size=32)), (rng.normal(size=(32, 1)), rng.normal(size=1))))


SHORT = {"max_episode_steps": 30}


@pytest.fixture(scope="module")
def evaluator() -> Iterator[Evaluator]:
    with Evaluator("Pendulum-v1", [4, 9, 4], episodes=7, workers=2, options=SHORT) as opened:
        yield opened


def test_returns_are_those_of_the_environment_itself(evaluator: Evaluator) -> None:
    found = evaluator.evaluate([pushing(0.5), pushing(-1), pushing(0)], number=3)
    assert found.number == 3
    assert found.returns.shape == (3, 7)
    assert (found.lengths == 30).all()
    assert found.scores is None
    env = gymnasium.make("Pendulum-v1")
    for member, (seed, action) in enumerate(((4, 0.5), (9, -1), (4, 0))):
        for episode in range(7):
            env.reset(seed=int(np.random.SeedSequence((1, seed, 3, episode)).generate_state(1)[0]))
            total = sum(float(env.step(np.array([action], np.float32))[1]) for _ in range(30))
            assert found.returns[member, episode] == pytest.approx(total, rel=1e-9)


def test_episodes_depend_on_the_seed_the_number_and_the_policy_alone(evaluator: Evaluator, monkeypatch) -> None:
    policies = [swinging(1), swinging(2), swinging(1)]
    found = evaluator.evaluate(policies, number=2)
    np.testing.assert_array_equal(found.returns[0], found.returns[2])
    assert len(np.unique(found.returns[:2])) == 14
    assert not np.isin(evaluator.evaluate(policies, number=1).returns, found.returns).any()
    monkeypatch.setattr(evaluation, "Workers", Here)
    with Evaluator("Pendulum-v1", [9], episodes=3, workers=1, options=SHORT) as alone:
        np.testing.assert_array_equal(alone.evaluate([policies[1]], number=2).returns, found.returns[1:2, :3])


def test_what_is_trained_on_meanwhile_is_not_seen(evaluator: Evaluator) -> None:
    policies = [swinging(seed) for seed in range(3)]
    expected = evaluator.evaluate(policies).returns
    pending = [evaluator.start(policies), evaluator.start(policies, number=1)]
    for policy in policies:
        policy.layers[0][0][:] = 0
    np.testing.assert_array_equal(pending[0].result().returns, expected)
    assert pending[0].done()
    assert not np.array_equal(pending[1].result().returns, expected)
    assert [one.number for one in pending] == [0, 1]


def test_scores_options_and_early_ends(monkeypatch) -> None:
    monkeypatch.setattr(evaluation, "Workers", Here)
    with Evaluator("Hopper-v5", [0], episodes=6, workers=1, options={"healthy_reward": 100.0}) as evaluator:
        found = evaluator.evaluate([pushing(0, 11, 3)])
    assert found.scores is None  # nobody has published anything of that task
    with Evaluator("Hopper-v5", [0], episodes=2, workers=1) as evaluator:
        usual = evaluator.evaluate([pushing(0, 11, 3)])
    np.testing.assert_array_equal(usual.scores, reference("Hopper-v5").score(usual.returns))
    assert (found.lengths < 1000).all()  # a hopper that does nothing falls
    assert len(np.unique(found.lengths)) > 1
    assert ((found.returns > 95 * found.lengths) & (found.returns < 105 * found.lengths)).all()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"env_id": "Pendulem-v1"}, "'Pendulem-v1'"),
        ({"members": []}, "members"),
        ({"members": [0, -1]}, "-1"),
        ({"episodes": 0}, "episodes"),
        ({"workers": 0}, "worker"),
    ],
)
def test_wrong_arguments(given: dict[str, Any], text: str) -> None:
    with pytest.raises((ConfigError, DataError), match=text):
        Evaluator(**{"env_id": "Pendulum-v1", "members": [0], **given})


def test_wrong_policies(evaluator: Evaluator) -> None:
    with pytest.raises(ConfigError, match="3 members"):
        evaluator.start([pushing(0)])
    with pytest.raises(ConfigError, match="-1"):
        evaluator.start([pushing(0)] * 3, number=-1)
    with pytest.raises(DataError, match=r"evaluation 5, member 1 \(seed 9\): Pendulum-v1"):
        evaluator.evaluate([pushing(0), pushing(0, inputs=4), pushing(0)], number=5)
    for local in (type("Local", (), {"__qualname__": "f.<locals>.Local"})(), lambda: None):
        with pytest.raises(ConfigError, match=r"at the top level of a module"):
            evaluator.start([local] * 3)
    assert evaluator.evaluate([pushing(0)] * 3).returns.shape == (3, 7)  # the workers live on


def test_a_policy_that_has_diverged_spoils_no_other(evaluator: Evaluator) -> None:
    expected = evaluator.evaluate([swinging(0)] * 3)
    overflowing = MlpPolicy(((np.full((3, 2), 1e38), np.zeros(2)), (np.array([[1e38], [-1e38]]), np.zeros(1))))
    found = evaluator.evaluate([swinging(0), pushing(np.nan), overflowing])
    np.testing.assert_array_equal(found.returns[0], expected.returns[0])
    assert np.isnan(found.returns[1:]).all()
    assert (found.lengths == [[30] * 7, [0] * 7, [0] * 7]).all()


def test_who_diverges_in_a_later_episode_has_no_return_at_all() -> None:
    pieces: list[Future[Played]] = [Future() for _ in range(4)]
    for piece, played in zip(pieces, ([(1.0, 9)] * 5, None, [(2.0, 9)] * 5, [(3.0, 8)] * 2), strict=True):
        piece.set_result(played)
    found = Pending(None, 0, [4, 5], 7, [pieces[:2], pieces[2:]]).result()
    np.testing.assert_array_equal(found.returns, [[np.nan] * 7, [2.0] * 5 + [3.0] * 2])
    assert found.lengths.tolist() == [[0] * 7, [9] * 5 + [8] * 2]


def test_broken_environments_and_dead_workers_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_envs.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    fine, raises, dies = (pushing(action, 2) for action in (0, 0.5, 1))
    with Evaluator(Trusted("broken_envs:Broken-v0"), [0, 7], episodes=2, workers=1) as evaluator:
        assert (evaluator.evaluate([fine, fine]).returns == 4).all()
        with pytest.raises(DataError, match=r"member 1 \(seed 7\): broken_envs:Broken-v0 failed .*: wires crossed"):
            evaluator.evaluate([fine, raises])
        for attempt in (evaluator.evaluate, evaluator.start):
            with pytest.raises(Failed, match="died"):
                attempt([fine, dies])


def test_workers_leave_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent:
        word, *workers = parent.stdout.readline().split()
        assert word == "playing"
        assert len(workers) == 1
        parent.send_signal(signal.SIGKILL)
    assert gone(map(int, workers)), "the workers outlived their parent"

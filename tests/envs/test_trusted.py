"""An id or options from a file import no module and open no file; what the user typed may."""

from __future__ import annotations

import copy
import pickle
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from synther.envs.evaluation import Evaluator
from synther.envs.making import Trusted, opened
from synther.envs.recording import record
from synther.envs.rollout import rollout
from synther.envs.vector_env import VectorEnv
from synther.errors import DataError

NAME = "foreign_envs_of_a_test"
ENV_ID = f"{NAME}:Foreign-v0"
SOURCE = """
from pathlib import Path
import gymnasium
Path(__file__).with_suffix(".imported").touch()
gymnasium.register("Foreign-v0", "gymnasium.envs.classic_control.pendulum:PendulumEnv", max_episode_steps=5)
"""


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is there once the module has been imported."""
    (tmp_path / f"{NAME}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    gymnasium.registry.pop("Foreign-v0", None)
    return tmp_path / f"{NAME}.imported"


@pytest.mark.parametrize(
    "use",
    [
        lambda env_id: opened(env_id).__enter__(),
        lambda env_id: Evaluator(env_id, [0], workers=1),
        lambda env_id: VectorEnv(env_id, [0]),
        lambda env_id: record(env_id, [], 1),
    ],
    ids=["opened", "Evaluator", "VectorEnv", "record"],
)
def test_a_plain_id_imports_nothing(use: Any, marker: Path) -> None:
    with pytest.raises(DataError, match=rf"'{NAME}'.*--env-id"):
        use(ENV_ID)
    assert not marker.exists()


def test_a_trusted_id_may_import_its_module_also_in_a_worker(marker: Path) -> None:
    for copied in (pickle.loads(pickle.dumps(Trusted(ENV_ID))), copy.deepcopy(Trusted(ENV_ID))):
        assert isinstance(copied, Trusted)
        assert copied == ENV_ID
    assert type(str(Trusted(ENV_ID))) is str
    with opened(copied) as env:
        assert env.spec.id == "Foreign-v0"
    assert marker.exists()


def test_an_argument_of_rollout_is_typed_and_its_rows_may_be_opened_again(marker: Path) -> None:
    rows = rollout(ENV_ID, 3)
    assert marker.exists()
    assert rows.env_id == ENV_ID
    with opened(rows.env_id):
        pass


@pytest.mark.parametrize(
    "value",
    ["/tmp/robot.xml", "../robot.xml", "./robot.xml", "~/robot.xml", "robot.xml", "C:\\robot", "module:Env-v0",
     "os.system", ["fine", {"deep": "module:Env"}], {"a/b": 1}],
    ids=str,
)  # fmt: skip
def test_options_that_may_name_a_file_or_code(value: Any) -> None:
    with pytest.raises(DataError, match=r"'xml_file' .*--env-options"):
        opened("Pendulum-v1", xml_file=value).__enter__()
    with pytest.raises(DataError, match="unexpected keyword argument 'xml_file'"):  # of the environment itself
        opened(Trusted("Pendulum-v1"), xml_file=value).__enter__()


def test_plain_options_are_as_welcome_as_before() -> None:
    with opened(
        "FrozenLake-v1", map_name="4x4", is_slippery=False, max_episode_steps=7, render_mode="rgb_array"
    ) as env:
        assert env.spec.max_episode_steps == 7
    with opened("FrozenLake-v1", desc=["SFFF", "FFFG"]) as env:
        assert env.observation_space.n == 8

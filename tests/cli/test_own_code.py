"""Algorithms and networks that a user types as `module:name`."""

from __future__ import annotations

import ast
import json
import shutil
import sys
from pathlib import Path

import pytest

from synther import read

pytestmark = pytest.mark.usefixtures("no_processes")

AWAC = Path(__file__).parents[2] / "examples" / "awac.py"
QUICK = (
    *("--updates", "40", "--evaluate-every", "20", "--seeds", "2", "--device", "cpu", "--episodes", "1", "--quiet"),
    *("--agent.width", "8", "--agent.depth", "1", "--agent.batch-size", "8"),
)
OWN = """
from dataclasses import dataclass
from torch import nn
from synther.agents.td3 import TD3, TD3Config

@dataclass(frozen=True)
class QuietConfig(TD3Config):
    exploration_noise: float = 0.01

class Quiet(TD3):
    config_class = QuietConfig

def elu(inputs, outputs, options):
    return nn.Sequential(nn.Linear(inputs, options.width), nn.ELU(), nn.Linear(options.width, outputs))

def one_short(inputs, outputs, options):
    return nn.Linear(inputs - 1, outputs)

NUMBER = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch) -> Path:
    """A folder with a user's code, which is the current one."""
    shutil.copy(AWAC, tmp_path / "own_awac.py")
    (tmp_path / "own_code.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_environment_of_ones_own_is_no_algorithm(synther, own):
    answer = synther("online", "own_code:NUMBER", "--out", "run")
    assert answer.code == 2
    assert "Algorithm" not in answer.err
    assert "own_code:NUMBER" in answer.err


def test_an_algorithm_of_sixty_lines(synther, own):
    code = ast.parse(AWAC.read_text())
    for node in ast.walk(code):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
    assert len(ast.unparse(code).splitlines()) <= 60

    command = ("train", "own_awac:AWAC", "hopper-sac", "--fraction", "0.05", "--out", "run", *QUICK, "--json")
    ended = synther(*command, "--agent.temperature", "0.5")
    assert ended.code == 0
    found = json.loads(ended.out)
    assert (found["algorithm"], len(found["arms"]["real"]["final"]["scores"])) == ("own_awac:AWAC", 2)
    assert json.loads((own / "run" / "run.json").read_text())["agent"]["temperature"] == 0.5
    again = synther(*command, "--agent.temperature", "0.5")  # finished already
    assert json.loads(again.out)["arms"] == found["arms"]
    played = synther("evaluate", "run", "--episodes", "1", "--quiet", "--json")
    assert (played.code, len(json.loads(played.out)["seeds"])) == (0, 2)


def test_an_online_agent_and_networks(synther, own):
    command = (
        "online",
        "Pendulum-v1",
        "--agent",
        "own_code:Quiet",
        "--agent.actor-network=own_code:elu",
        "--out",
        "run",
    )
    small = ("--steps", "40", "--learning-starts", "20", "--evaluate-every", "40", "--episodes", "1", "--device", "cpu")
    quick = ("--seeds", "1", "--agent.width", "8", "--agent.batch-size", "8", "--quiet")
    ended = synther(*command, *small, *quick, "--agent.critic-network", "layer_norm")
    assert ended.code == 0, ended.err
    agent = json.loads((own / "run" / "run.json").read_text())["agent"]
    assert (agent["exploration_noise"], agent["actor_network"]) == (0.01, "own_code:elu")


def test_an_environment(synther, own):
    (own / "own_envs.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('Own-v0', 'gymnasium.envs.classic_control.pendulum:PendulumEnv', max_episode_steps=5)\n"
    )
    path = list(sys.path)
    ended = synther("collect", "own_envs:Own-v0", "--steps", "10", "--out", "own.npz", "--quiet")
    assert ended.code == 0, ended.err
    assert read("own.npz").env_id == "own_envs:Own-v0"
    assert sys.path == path


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("no_such_module:Agent", "hopper-sac"), "no_such_module"),
        (("own_awac:Missing", "hopper-sac"), "Missing"),
        (("own_code:NUMBER", "hopper-sac"), "Algorithm"),
        (("own_code:elu", "hopper-sac"), "Algorithm"),
        (("td3_bc", "hopper-sac", "--agent.critic-network", "no_such_module:net"), "critic-network"),
        (("td3_bc", "hopper-sac", "--agent.actor-network", "own_code:NUMBER"), "own_code:NUMBER"),
        (("td3_bc", "hopper-sac", "--agent.actor-network", "own_code:one_short"), "one_short"),
    ],
    ids=str,
)
def test_what_cannot_be_used_is_refused_before_anything_is_written(refused, own, arguments, named):
    assert named in refused("train", *arguments, "--fraction", "0.05", "--out", own / "run", *QUICK)


def test_names_in_files_import_nothing(refused, synther, own):
    """A run with an unregistered network is refused, even if a module of that name could be imported."""
    command = ("train", "bc", "hopper-sac", "--fraction", "0.05", "--out", "run", *QUICK)
    assert synther(*command, "--agent.actor-network", "own_code:elu").code == 0
    from synther.agents.networks import NETWORKS

    NETWORKS.remove("own_code:elu")
    assert "own_code:elu" in refused("evaluate", "run", "--episodes", "1")
    assert "own_code:tanh" in refused("evaluate", "run", "--network", "own_code:tanh")

    ended = synther("evaluate", "run", "--episodes", "1", "--network", "own_code:elu", "--quiet")
    assert ended.code == 0, ended.err
    NETWORKS.remove("own_code:elu")
    play = ("collect", "Hopper-v5", "--policy", "run/checkpoint.safetensors", "--steps", "5", "--out", "played.npz")
    ended = synther(*play, "--network", "own_code:elu", "--quiet")
    assert ended.code == 0, ended.err

"""Files of agents that are refused. `test_contract.py` goes on from files, and loads policies from them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from synther.agents.agent import Agent
from synther.agents.policy import load_policy
from synther.agents.rows import Arm, Member
from synther.errors import ConfigError, FormatError

from .tables import CONFIGS, rows, table

TABLES = (table(40), table(25, 1))
MEMBERS = [Member(3), Member(4, Arm((0, 1), (0.5, 0.5)))]
SEEN = table(6, 7).observation


def fresh(name: str = "td3_bc", members=MEMBERS, tables=TABLES, **changes: object) -> Agent:
    return Agent(replace(CONFIGS[name], **changes), rows(*tables), members)


OTHER = {
    "algorithm, config": fresh("bc"),
    "config": fresh(learning_rate=1e-3),
    "members": fresh(members=[Member(3), Member(5)]),
    "tables": fresh(tables=(*TABLES, TABLES[0])),
    "data": fresh(tables=(TABLES[0]._replace(observation=TABLES[0].observation + 1), TABLES[1])),
}


@pytest.mark.parametrize(("what", "other"), OTHER.items(), ids=OTHER)
def test_anothers_file_is_refused(what, other, tmp_path):
    fresh().save(tmp_path / "agent.safetensors")
    before = {name: tensor.clone() for name, tensor in other.state().items()}
    with pytest.raises(ConfigError, match=f"another {what}"):
        other.load(tmp_path / "agent.safetensors")
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.state().items())
    with pytest.raises(ConfigError):
        other.load_state(fresh(width=9).state(), 0)


@pytest.mark.parametrize("load", [load_policy, lambda path: fresh().load(path)], ids=["policy", "agent"])
def test_truncated_foreign_and_absent_files_are_refused(load, tmp_path):
    path = tmp_path / "agent.safetensors"
    fresh().save(path)
    whole = path.read_bytes()
    for length in (0, len(whole) // 1000, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError, match=path.name):
            load(path)
    with pytest.raises(FormatError, match="no such file"):
        load(tmp_path / "nothing")
    save_file({"actor": torch.zeros(1)}, tmp_path / "foreign")
    with pytest.raises(FormatError, match="synther-agent-1"):
        load(tmp_path / "foreign")
    path.write_bytes(whole)
    save_file(load_file(path), tmp_path / "mute", {"format": "synther-agent-1", "agent": "{}"})
    with pytest.raises((FormatError, ConfigError), match="mute"):
        load(tmp_path / "mute")

"""An agent's file: training goes on from it as if nothing had happened, and policies are loaded from it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from synther.agents.agent import Agent
from synther.agents.policy import load_policy
from synther.agents.rows import Arm, Member
from synther.errors import ConfigError, FormatError

from ..support.states import assert_same
from .tables import CONFIGS, rows, table

TABLES = (table(40), table(25, 1))
MEMBERS = [Member(3), Member(4, Arm((0, 1), (0.5, 0.5)))]
SEEN = table(6, 7).observation


def fresh(name: str = "td3_bc", members=MEMBERS, tables=TABLES, **changes: object) -> Agent:
    return Agent(replace(CONFIGS[name], **changes), rows(*tables), members)


@pytest.mark.parametrize("name", CONFIGS)
def test_resumed_equals_uninterrupted(name, tmp_path):
    whole, first, second = fresh(name), fresh(name), fresh(name)
    whole.train(22)
    first.train(19)
    first.save(tmp_path / "agent.safetensors")
    second.load(tmp_path / "agent.safetensors")
    assert second.updates == 19
    for found in (second, load_policy(tmp_path / "agent.safetensors")):
        np.testing.assert_array_equal(found.act(SEEN), first.act(SEEN))
    second.train(3)
    assert_same(whole, second)


def test_state_goes_over_by_value():
    one, other = fresh(), fresh(members=[Member(8), Member(9)])
    one.train(20)
    other.load_state(one.state(), one.updates)
    np.testing.assert_array_equal(one.act(SEEN), other.act(SEEN))
    one.train(1)
    assert other.updates == 20
    assert not torch.equal(one.state()["critics"], other.state()["critics"])
    with pytest.raises(ConfigError, match="belongs to an agent with other options, members or data"):
        other.load_state(fresh(width=9).state(), 0)


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
    with pytest.raises(ConfigError, match=f"belongs to an agent with another {what}"):
        other.load(tmp_path / "agent.safetensors")
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.state().items())


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
@pytest.mark.parametrize("load", [load_policy, lambda path: fresh().load(path)], ids=["policy", "agent"])
def test_a_truncated_file_is_refused(share, load, tmp_path):
    path = tmp_path / "agent.safetensors"
    fresh().save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(FormatError, match="cannot be read as an agent"):
        load(path)


@pytest.mark.parametrize("load", [load_policy, lambda path: fresh().load(path)], ids=["policy", "agent"])
def test_foreign_and_absent_files_are_refused(load, tmp_path):
    with pytest.raises(FormatError, match="no such file"):
        load(tmp_path / "nothing")
    save_file({"actor": torch.zeros(1)}, tmp_path / "foreign")
    with pytest.raises(FormatError, match="synther-agent-1"):
        load(tmp_path / "foreign")
    fresh().save(tmp_path / "whole")
    tensors = load_file(tmp_path / "whole")
    save_file(tensors, tmp_path / "mute", {"format": "synther-agent-1", "agent": "{}"})
    with pytest.raises((FormatError, ConfigError), match="mute"):
        load(tmp_path / "mute")

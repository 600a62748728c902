"""What holds for every algorithm."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from itertools import combinations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from synther.agents.agent import ALGORITHMS, HEADS, Agent
from synther.agents.bc import BCConfig
from synther.agents.cql import CQLConfig
from synther.agents.edac import EDACConfig
from synther.agents.iql import IQLConfig
from synther.agents.policy import load_policy
from synther.agents.rows import Arm, Member, Rows
from synther.agents.td3_bc import TD3BCConfig
from synther.errors import ConfigError, DataError, FormatError

from ..support.states import assert_member, assert_same, assert_sound
from . import tables
from .tables import CONFIGS, HEAD_CONFIGS, table

TABLES = (table(40, observations=4), table(25, 1, observations=4))
MEMBERS = [Member(3), Member(4, Arm((1,), real=1)), Member(3, Arm((0, 1), (0.5, 0.5)))]

UPDATES = 22
"""More than a round has, which is 20, or 21 where the policy learns from every third."""

EVERY = CONFIGS | HEAD_CONFIGS
every = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
every_and_heads = pytest.mark.parametrize("config", EVERY.values(), ids=EVERY)


def rows(*given: tables.Table, **options: object) -> Rows:
    """With next actions, which one algorithm needs and the others overlook."""
    return tables.rows(*given, next_actions=True, **options)


def trained(config, members=MEMBERS, updates=UPDATES, data=None) -> Agent:
    agent = Agent(config, data or rows(*TABLES), members)
    agent.train(updates)
    return agent


@cache
def usual(config) -> Agent:
    """All members, after all updates, to be looked at and not to be trained."""
    return trained(config)


def test_every_algorithm_is_here():
    known = (*ALGORITHMS.items(), *HEADS.items())
    assert {type(config) for config in EVERY.values()} == {kind.config_class for _, kind in known}


@every_and_heads
def test_members_together_equal_each_alone(config):
    together = usual(config)
    assert together.updates == UPDATES
    assert set(together.losses()) == set(together.algorithm.losses)
    assert_sound(together, 3)
    index = list(EVERY.values()).index(config) % 3  # one of them, in turn
    assert_member(together, index, trained(config, [MEMBERS[index]]))
    weights = together.state()["actor"]
    for one, other in combinations(range(3), 2):
        assert not torch.allclose(weights[one], weights[other], atol=1e-3)


@every_and_heads
def test_resumed_or_cut_equals_uninterrupted(config, tmp_path):
    """The cuts fall within rounds and between them. State stays where it is: a captured round works on addresses."""
    first, second = trained(config, updates=7), Agent(config, rows(*TABLES), MEMBERS)
    places = {name: tensor.data_ptr() for name, tensor in second.state().items()}
    first.save(tmp_path / "agent.safetensors")
    second.load(tmp_path / "agent.safetensors")
    assert second.updates == 7
    seen = TABLES[1].observation[:, : second.algorithm.actor.sizes[0]]
    policy, acted = first.policy(), first.act(seen)
    for found in (second, load_policy(tmp_path / "agent.safetensors")):
        np.testing.assert_array_equal(found.act(seen), acted)
    losses, state = first.losses()["actor"], {name: tensor.clone() for name, tensor in first.state().items()}
    before = losses.copy()
    for updates in (13, 1, 0, 1):
        second.train(updates)
        first.train(updates)
    for resumed in (first, second):
        assert_same(usual(config), resumed)
    assert {name: tensor.data_ptr() for name, tensor in second.state().items()} == places
    np.testing.assert_array_equal(losses, before)
    np.testing.assert_array_equal(policy.act(seen), acted)
    assert not np.allclose(second.act(seen), acted)
    second.load_state(state, 7)
    assert all(torch.equal(tensor, state[name]) for name, tensor in second.state().items())


def test_every_update_has_random_numbers_of_its_own():
    agent = Agent(replace(CONFIGS["cql"], batch_size=50), rows(*TABLES), [Member(3), Member(4)])
    update, seen = agent.algorithm.update, []

    def watched(batch, noise, step):
        seen.append((noise.normal.clone(), noise.uniform.clone(), batch.reward.clone()))
        return update(batch, noise, step)

    agent.algorithm.update = watched
    agent.train(40)
    normal, uniform, reward = (torch.stack(part, 1).flatten(2) for part in zip(*seen, strict=True))  # (S, updates, n)
    for drawn in (normal, uniform, reward):
        every_one = drawn.flatten(0, 1)
        alike = torch.corrcoef(every_one).fill_diagonal_(0).abs().max()
        # Of independent draws the correlation deviates by 1 / sqrt(n); 3,160 pairs stay within 5 of that.
        assert alike < 5 / every_one.shape[1] ** 0.5
    assert normal.mean().abs() < 0.02
    assert normal.var().item() == pytest.approx(1, abs=0.02)
    assert uniform.var().item() == pytest.approx(1 / 3, abs=0.01)
    assert uniform.abs().max() <= 1


@every
def test_a_member_that_diverges_leaves_the_others_alone(config):
    sound, sick = (Agent(config, rows(*TABLES), MEMBERS) for _ in range(2))
    for tensor in sick.state().values():
        if tensor.dim() > 1:
            tensor[1] = float("nan")
    sound.train(5)
    sick.train(5)
    assert np.isnan(sick.losses()["actor"][1])
    for name, tensor in sound.state().items():
        if tensor.dim():
            others = [0, 2]
            torch.testing.assert_close(sick.state()[name][others], tensor[others], rtol=0, atol=0, msg=name)


@every
def test_targets_follow_by_tau(config):
    agent = Agent(replace(config, tau=1.0) if hasattr(config, "tau") else config, rows(*TABLES), MEMBERS)
    agent.train(agent.algorithm.period)
    state = agent.state()
    targets = [name for name in state if name.startswith("target_")]
    assert bool(targets) == (config != CONFIGS["bc"])
    for name in targets:
        torch.testing.assert_close(state[name], state[name.removeprefix("target_")])
    before = {name: state[name].clone() for name in targets}
    still = Agent(replace(config, tau=0.0) if hasattr(config, "tau") else config, rows(*TABLES), MEMBERS)
    first = {name: still.state()[name].clone() for name in targets}
    still.train(agent.algorithm.period)
    for name in targets:
        assert torch.equal(still.state()[name], first[name])
        assert not torch.equal(before[name], first[name])


@pytest.mark.parametrize("name", ["bc", "td3_bc", "iql", "edac"])
def test_nothing_comes_after_a_terminal(name):
    """CQL is not here: it also draws from its policy at next states."""
    ends = TABLES[0]._replace(terminal=np.ones(40))
    garbage = ends._replace(next_observation=table(40, 9, observations=4).next_observation)
    assert_same(*(trained(CONFIGS[name], MEMBERS[:1], 6, rows(data)) for data in (ends, garbage)))
    going_on = [rows(data._replace(terminal=np.zeros(40))) for data in (ends, garbage)]
    one, other = (trained(CONFIGS[name], MEMBERS[:1], 6, data).state()["actor"] for data in going_on)
    assert torch.equal(one, other) == (name == "bc")


@every
def test_actions(config):
    low, high = np.array([-3.0, 0.0]), np.array([-1.0, 10.0])
    source = TABLES[0]._replace(action=low + (high - low) * (TABLES[0].action + 1) / 2)
    agent = trained(config, MEMBERS[:1] * 3, 6, rows(source, low=low, high=high))
    unit = trained(config, MEMBERS[:1] * 3, 6)
    seen = TABLES[1].observation
    actions = agent.act(seen)
    assert actions.shape == (3, 25, 2)
    assert actions.dtype == np.float32
    np.testing.assert_allclose(actions, low + (high - low) * (unit.act(seen) + 1) / 2, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(agent.act(np.stack([seen] * 3)), actions)
    np.testing.assert_allclose(agent.act(seen[:1]), actions[:, :1], rtol=1e-5)
    np.testing.assert_allclose(agent.act(seen[0]), actions[:, 0], rtol=1e-5)
    extreme = agent.act(1e6 * seen)
    assert (extreme >= low.astype(np.float32)).all()
    assert (extreme <= high.astype(np.float32)).all()


@every
def test_acting_scales_observations_as_training_does(config):
    """The same data in other units gives the same policy, where observations are scaled."""
    factor, shift = np.array([10.0, 100.0, 3.0, 1.0]), np.array([5.0, -1.0, 0.0, 9.0])
    here, there = (factor * x + shift for x in (TABLES[0].observation, TABLES[0].next_observation))
    moved = rows(TABLES[0]._replace(observation=here, next_observation=there))
    one, other = (trained(config, MEMBERS[:1], 10, data) for data in (rows(TABLES[0]), moved))
    same = np.allclose(one.act(TABLES[0].observation), other.act(here), atol=0.05)
    assert same == config.normalize


def test_reference_settings():
    assert TD3BCConfig() == TD3BCConfig(256, 2, 256, 3e-4, True, 0.99, 0.005, 2.5, 0.2, 0.5, 2)
    assert IQLConfig().over(1_000_000) == IQLConfig(256, 2, 256, 3e-4, True, 0.99, 0.005, 0.7, 3.0, False, 1_000_000)
    assert EDACConfig() == EDACConfig(256, 3, 256, 3e-4, False, 0.99, 0.005, 10, 1.0)
    assert CQLConfig() == CQLConfig(256, 3, 256, 3e-4, True, 0.99, 0.005, 3e-5, 10, 10.0, None)
    assert BCConfig() == BCConfig(256, 2, 256, 3e-4, True)
    assert IQLConfig().over(70) == IQLConfig(decay_updates=70)
    assert IQLConfig(decay_updates=9).over(70) == IQLConfig(decay_updates=9)
    assert TD3BCConfig().over(70) == TD3BCConfig()
    config = BCConfig(width=8.0, batch_size=np.int64(4), learning_rate=1)  # type: ignore[arg-type]
    assert config == BCConfig(8, batch_size=4, learning_rate=1.0)
    assert type(config.width) is type(config.batch_size) is int


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((BCConfig, {"width": width}) for width in (0, 8.5, "8")),
        *((BCConfig, {"learning_rate": rate}) for rate in (0.0, math.inf)),
        (TD3BCConfig, {"discount": 1.5}),
        (TD3BCConfig, {"policy_delay": 0}),
        (TD3BCConfig, {"normalize": 1}),
        *((IQLConfig, {"expectile": expectile}) for expectile in (2.0, math.nan)),
        (IQLConfig, {"decay_updates": 0}),
        *((EDACConfig, {"num_critics": count}) for count in (1, 2.5)),
        (CQLConfig, {"policy_rate": -1.0}),
        (CQLConfig, {"target_action_gap": math.inf}),
        (CQLConfig, {"actions": 0}),
    ],
)
def test_wrong_settings_are_refused(kind, options):
    (name,) = options
    with pytest.raises(ConfigError, match=rf"agent\.{name} must"):
        kind(**options)


def test_other_refusals():
    data = rows(*TABLES)
    for config, members, options, named in (
        (BCConfig(), [], {}, "member"),
        ({}, MEMBERS, {}, "dict"),
        (BCConfig(), MEMBERS, {"precision": "bf16"}, "precision"),
        (BCConfig(), [Member(-1)], {}, "seed"),
    ):
        with pytest.raises(ConfigError, match=named):
            Agent(config, data, members, **options)
    agent = Agent(CONFIGS["bc"], data, MEMBERS)
    with pytest.raises(ConfigError, match="-1"):
        agent.train(-1)
    for shape in ((2,), (5, 2), (2, 5, 4), (3, 5, 2), (1, 3, 5, 4)):
        with pytest.raises(DataError, match="observations of shape"):
            agent.act(np.zeros(shape))


TD3_BC = CONFIGS["td3_bc"]
MOVED = TABLES[0]._replace(observation=TABLES[0].observation + 1)
OTHER = {
    "algorithm, config": trained(CONFIGS["bc"], updates=0),
    "config": trained(replace(TD3_BC, learning_rate=1e-3), updates=0),
    "members": trained(TD3_BC, [Member(3), Member(5)], updates=0),
    "tables": trained(TD3_BC, updates=0, data=rows(*TABLES, TABLES[0])),
    "data": trained(TD3_BC, updates=0, data=rows(MOVED, TABLES[1])),
}


@pytest.mark.parametrize(("what", "other"), OTHER.items(), ids=OTHER)
def test_anothers_file_is_refused(what, other, tmp_path):
    trained(TD3_BC, updates=0).save(tmp_path / "agent.safetensors")
    before = {name: tensor.clone() for name, tensor in other.state().items()}
    with pytest.raises(ConfigError, match=f"another {what}"):
        other.load(tmp_path / "agent.safetensors")
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.state().items())
    with pytest.raises(ConfigError):
        other.load_state(trained(replace(TD3_BC, width=9), updates=0).state(), 0)


@pytest.mark.parametrize(
    "load", [load_policy, lambda path: trained(TD3_BC, updates=0).load(path)], ids=["policy", "agent"]
)
def test_truncated_foreign_and_absent_files_are_refused(load, tmp_path):
    path = tmp_path / "agent.safetensors"
    trained(TD3_BC, updates=0).save(path)
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

from __future__ import annotations

import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

from synther.agents.agent import Agent
from synther.agents.bc import BCConfig
from synther.agents.critics import backup
from synther.agents.rows import Arm, Member, Rows
from synther.data.transitions import Transitions
from synther.errors import ConfigError, DataError

from .tables import CONFIGS, CPU, Table, rows, table


def drawn(data: Rows, members: list[Member], batch: int, rounds: int = 1, **options: object) -> torch.Tensor:
    """The rows of whole rounds, as the agent's updates see them. (updates, S, B, width)"""
    agent = Agent(BCConfig(width=4, batch_size=batch, **options), data, members)
    parts = []
    for number in range(rounds):
        agent._round.fill(number)
        parts.append(agent._round._rows.clone())
    return torch.cat(parts)


def test_columns_come_back_by_name_and_actions_in_the_unit_box():
    source = table(9)
    batch = rows(source).batch(rows(source).matrix.unsqueeze(0))
    for name in ("observation", "action", "reward", "next_observation", "terminal"):
        np.testing.assert_allclose(getattr(batch, name)[0], getattr(source, name), rtol=1e-6)
    np.testing.assert_allclose(batch.pair[0], np.hstack([source.observation, source.action]), rtol=1e-6)
    wide = rows(source._replace(action=np.linspace([-2, 0], [2, 10], 9)), low=[-2, 0], high=[2, 10])
    np.testing.assert_allclose(wide.batch(wide.matrix).action, np.linspace([-1, -1], [1, 1], 9), atol=1e-6)
    fixed = Table(*(np.asarray(part, np.float32) for part in source))
    for part in fixed:  # PyTorch warns of read-only arrays, and warnings are errors here
        part.flags.writeable = False
    assert torch.equal(rows(fixed).matrix, rows(source).matrix)
    Agent(BCConfig(width=4), rows(fixed), [Member(0)]).act(fixed.observation)


def test_a_member_draws_all_of_its_own_table_evenly():
    tables = [table(size, seed) for seed, size in enumerate((4, 7, 1))]
    data = rows(*tables)
    seen = drawn(data, [Member(0, Arm((i,))) for i in range(3)], 50, rounds=10, normalize=False)
    for member, source in enumerate(tables):
        rewards = seen[:, member, :, 5].flatten()
        values, counts = rewards.unique(return_counts=True)
        np.testing.assert_allclose(values, np.sort(source.reward), rtol=1e-6)
        # 10,000 draws; five deviations of a binomial count.
        share = 1 / len(source.reward)
        assert ((counts - 10_000 * share).abs() <= 5 * np.sqrt(10_000 * share * (1 - share))).all()


def test_a_mixture_has_exact_counts_in_every_batch():
    tables = [table(5, seed)._replace(reward=np.full(5, float(seed))) for seed in range(3)]
    arms = [Arm((0, 2), (0.3, 0.7)), Arm((1,)), Arm((0, 2), (0.0, 1.0))]
    seen = drawn(rows(*tables), [Member(0, arm) for arm in arms], 10)
    assert (seen[..., 5] == torch.tensor([[0.0] * 3 + [2.0] * 7, [1.0] * 10, [2.0] * 10])).all()
    for shares, batch, counts in (((0.5, 0.5), 7, [4, 3]), ((1 / 3,) * 3, 256, [85, 86, 85]), ((0.0, 1.0), 6, [0, 6])):
        assert Arm(tuple(range(len(shares))), shares).counts(batch) == counts


def test_observations_are_scaled_by_the_members_own_real_data():
    real, other = table(400), table(300, 1)
    other = other._replace(observation=100 + 5 * other.observation)
    arms = [Arm((0,)), Arm((1,)), Arm((1,), real=1)]
    seen = drawn(rows(real, other), [Member(0, arm) for arm in arms], 300, rounds=3)
    for member, (source, scale) in enumerate([(real, real), (other, real), (other, other)]):
        mean, std = scale.observation.mean(0), scale.observation.std(0) + 1e-3
        first = (source.observation - mean) / std
        low, high = first.min(0), first.max(0)
        values = seen[:, member, :, :3].flatten(0, 1).numpy()
        np.testing.assert_allclose(values.min(0), low, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(values.max(0), high, rtol=1e-4, atol=1e-4)
        following = (source.next_observation - mean) / std
        np.testing.assert_allclose(seen[:, member, :, 7:].flatten(0, 1).numpy().max(0), following.max(0), rtol=1e-4)
        assert set(seen[:, member, :, 6].unique().tolist()) == {0.0, 1.0}


def test_scales_of_large_offsets_constants_and_numbers_that_are_too_large():
    source = table(2_000)
    shifted = source._replace(observation=source.observation + 1e4)
    mean, std = rows(shifted).standard(0)
    np.testing.assert_allclose(mean, source.observation.mean(0) + 1e4, rtol=1e-6)
    np.testing.assert_allclose(std, source.observation.std(0) + 1e-3, rtol=1e-3)
    source.observation[:, 1] = 7.0
    mean, std = rows(source).standard(0)
    assert (mean[1], std[1].item()) == (7.0, pytest.approx(1e-3))
    source.observation[0, 1] *= 1e25
    with pytest.raises(DataError, match="too large"):
        rows(source).standard(0)


GOOD = table(4)


REFUSED = {
    "reward of table 0, ": lambda: rows(GOOD._replace(reward=GOOD.reward[:, None])),
    "terminal of table 0, ": lambda: rows(GOOD._replace(terminal=GOOD.terminal[:, None])),
    r"got \(4, 2\)": lambda: rows(GOOD._replace(next_observation=GOOD.next_observation[:, :2])),
    r"got \(4, 3\)": lambda: rows(GOOD._replace(reward=GOOD.reward[:3])),
    r"got \(4,\) and \(4, 2\)": lambda: rows(GOOD._replace(observation=GOOD.observation[:, 0])),
    r"got \(4, 3\) and \(4,\)": lambda: rows(GOOD._replace(action=GOOD.action[:, 0])),
    "reward of table 0 .*finite": lambda: rows(GOOD._replace(reward=np.array([0, 1, np.nan, 2]))),
    "terminal of table 0 must": lambda: rows(GOOD._replace(terminal=np.array([0, 1, 0.5, 0]))),
    "leave the bounds": lambda: rows(GOOD._replace(action=1.1 * np.sign(GOOD.action))),
    "reward of the fake rows": lambda: Rows([GOOD._replace(reward=np.full(4, 1e39))], device=CPU, names=["fake"]),
    "at least one table": lambda: Rows([], device=CPU),
    "no rows in table 1": lambda: rows(GOOD, table(0)),
    "low must be 2": lambda: rows(GOOD, low=[-1]),
    "low < high": lambda: rows(GOOD, low=[2, 2]),
    "uses table 1": lambda: Agent(BCConfig(), rows(GOOD), [Member(0, Arm((1,)))]),
    "uses table 2": lambda: Agent(BCConfig(), rows(GOOD), [Member(0, Arm(real=2))]),
    "one share for each table": lambda: Arm((0, 1)),
    "sum to 1": lambda: Arm((0, 1), (0.5, 0.6)),
    r"agent\.batch_size": lambda: Arm((0, 1), (0.01, 0.99)).counts(10),
}


@pytest.mark.parametrize(("named", "call"), REFUSED.items(), ids=REFUSED)
def test_refusals(named, call):
    with pytest.raises((DataError, ConfigError), match=named):
        call()


def test_tables_that_are_made_one_by_one_do_not_wait_for_each_other():
    alive: list[weakref.ref] = []

    def made(size: int) -> Table:
        assert [one() for one in alive] == [None] * len(alive)
        found = table(size, seed=size)
        alive.append(weakref.ref(found.observation))
        return found

    sizes = (5, 3, 9)
    data = Rows((made(size) for size in sizes), device=CPU, count=3)
    want = rows(*(table(size, seed=size) for size in sizes))
    assert (data.starts, data.lengths) == (want.starts, want.lengths)
    assert torch.equal(data.matrix, want.matrix)


def test_extra_columns_of_rows_are_used_where_tables_have_them():
    own, other = table(20), table(10, seed=1)
    extra = {"next_action": np.tile([[0.0, 2.0]], (20, 1)), "discount": np.linspace(0, 1, 20)}
    full = Transitions(**own._asdict() | {"action": own.action + 1}, extra=extra)
    plain = Transitions(**other._asdict() | {"action": other.action + 1})
    both = Rows([full, plain], device=CPU, low=[0, 0], high=[2, 2], next_actions=True, discount=0.5)
    batch = both.batch(both.matrix)
    assert batch.next_action[:20].tolist() == [[-1, 1]] * 20
    assert batch.next_known.tolist() == [1] * 20 + [0] * 10
    np.testing.assert_allclose(batch.discount, [*np.linspace(0, 1, 20), *[0.5] * 10], rtol=1e-6)
    np.testing.assert_allclose(batch.next_observation[:20], own.next_observation, rtol=1e-6)
    alone = Rows([full], device=CPU, low=[0, 0], high=[2, 2], discount=0.5)
    assert alone.batch(alone.matrix).next_action is None
    torch.testing.assert_close(alone.batch(alone.matrix).discount, batch.discount[:20])
    with pytest.raises(ConfigError, match="discount"):
        Rows([full], device=CPU, low=[0, 0], high=[2, 2])
    far = replace(full, extra={**extra, "next_action": np.full((20, 2), 3.0)})
    with pytest.raises(DataError, match="next actions"):
        Rows([far], device=CPU, low=[0, 0], high=[2, 2], next_actions=True, discount=0.5)


def test_a_target_counts_the_next_value_by_the_discount_of_its_row():
    own = Rows([Transitions(**table(6)._asdict(), extra={"discount": np.arange(6) / 6})], device=CPU, discount=0.9)
    batch, value = own.batch(own.matrix[None]), torch.arange(6.0)[None]
    expected = batch.reward + (torch.arange(6) / 6) * (1 - batch.terminal) * value
    torch.testing.assert_close(backup(batch, value, 0.9), expected)


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "bc"])
def test_rows_of_one_discount_are_trained_on_as_with_that_option(name):
    """So every algorithm takes the discounts of the rows."""
    config = replace(CONFIGS[name], discount=0.7)
    own = Transitions(**table()._asdict(), extra={"discount": np.full(40, 0.7)})
    weights = []
    for given, how, chosen in (
        (own, {"discount": 0.2}, replace(config, discount=0.2)),
        (own.without_extra(), {}, config),
        (own.without_extra(), {}, replace(config, discount=0.2)),
    ):
        agent = Agent(chosen, Rows([given], device=CPU, next_actions=True, **how), [Member(0)])
        agent.train(6)
        weights.append(agent.algorithm.state())
    for key, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][key])
    assert any(not torch.allclose(tensor, weights[2][key]) for key, tensor in weights[0].items())

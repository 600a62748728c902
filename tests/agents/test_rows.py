from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch

from synther.agents.agent import Agent
from synther.agents.bc import BCConfig
from synther.agents.rows import Arm, Member, Rows
from synther.errors import ConfigError, DataError

from .tables import CPU, Table, rows, table


def drawn(data: Rows, members: list[Member], batch: int, rounds: int = 1, **options: object) -> torch.Tensor:
    """The rows of whole rounds, as the agent's updates see them. (updates, S, B, width)"""
    agent = Agent(BCConfig(width=4, batch_size=batch, **options), data, members)
    parts = []
    for number in range(rounds):
        agent._round.fill(number)
        parts.append(agent._round._rows.clone())
    return torch.cat(parts)


def test_columns_come_back_by_name():
    source = table(9)
    batch = rows(source).batch(rows(source).matrix.unsqueeze(0))
    for name in ("observation", "action", "reward", "next_observation", "terminal"):
        np.testing.assert_allclose(getattr(batch, name)[0], getattr(source, name), rtol=1e-6)
    np.testing.assert_allclose(batch.pair[0], np.hstack([source.observation, source.action]), rtol=1e-6)


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
    arm = Arm((0, 2), (0.3, 0.7))
    seen = drawn(rows(*tables), [Member(0, arm), Member(0, Arm((1,)))], 10)
    assert (seen[..., 5] == torch.tensor([[0.0] * 3 + [2.0] * 7, [1.0] * 10])).all()


@pytest.mark.parametrize(
    ("shares", "batch", "counts"),
    [((1.0,), 7, [7]), ((0.5, 0.5), 256, [128, 128]), ((0.5, 0.5), 7, [4, 3]), ((1 / 3,) * 3, 256, [85, 86, 85])],
)
def test_counts_fill_the_batch(shares, batch, counts):
    assert Arm(tuple(range(len(shares))), shares).counts(batch) == counts


def test_a_share_of_zero_is_never_drawn():
    arm = Arm((0, 1), (0.0, 1.0))
    assert arm.counts(6) == [0, 6]
    other = table(5)._replace(reward=np.full(5, 9.0))
    assert (drawn(rows(table(5), other), [Member(0, arm)], 6)[..., 5] == 9).all()


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


def test_a_constant_observation_is_scaled_by_a_thousand():
    source = table(5)
    source.observation[:, 1] = 7.0
    mean, std = rows(source).standard(0)
    assert mean[1] == 7.0
    assert std[1].item() == pytest.approx(1e-3)


def test_a_large_offset_does_not_drown_the_deviation():
    source = table(2_000)
    shifted = source._replace(observation=source.observation + 1e4)
    mean, std = rows(shifted).standard(0)
    np.testing.assert_allclose(mean, source.observation.mean(0) + 1e4, rtol=1e-6)
    np.testing.assert_allclose(std, source.observation.std(0) + 1e-3, rtol=1e-3)


def test_what_is_too_large_to_be_scaled_is_not_scaled_to_nothing():
    source = table(5)
    source.observation[:, 1] *= 1e25
    with pytest.raises(DataError, match="too large to be normalized"):
        rows(source).standard(0)


def test_arrays_that_nobody_may_write_to_are_read():
    """PyTorch warns of them, and warnings are errors here."""
    source = Table(*(np.asarray(part, np.float32) for part in table(9)))
    for part in source:
        part.flags.writeable = False
    assert torch.equal(rows(source).matrix, rows(table(9)).matrix)
    Agent(BCConfig(width=4), rows(source), [Member(0)]).act(source.observation)


def test_errors_call_tables_by_their_names():
    wrong = GOOD._replace(reward=np.full(4, 1e39))
    with pytest.raises(DataError, match="reward of the synthetic rows"):
        Rows([GOOD, wrong], device=CPU, names=["real", "synthetic"])


def test_actions_are_brought_into_the_unit_box():
    source = table(9)._replace(action=np.linspace([-2, 0], [2, 10], 9))
    data = rows(source, low=[-2, 0], high=[2, 10])
    np.testing.assert_allclose(data.batch(data.matrix).action, np.linspace([-1, -1], [1, 1], 9), atol=1e-6)


GOOD = table(4)
WRONG = {
    "reward of table 0": {"reward": GOOD.reward[:, None]},
    "terminal of table 0": {"terminal": GOOD.terminal[:, None]},
    "got (4, 2)": {"next_observation": GOOD.next_observation[:, :2]},
    "got (4, 3)": {"reward": GOOD.reward[:3]},
    "got (4,) and (4, 2)": {"observation": GOOD.observation[:, 0]},
    "got (4, 3) and (4,)": {"action": GOOD.action[:, 0]},
    "reward of table 0 has values that are not finite": {"reward": np.array([0, 1, np.nan, 2])},
    "terminal of table 0 must be 0 or 1": {"terminal": np.array([0, 1, 0.5, 0])},
    "leave the bounds": {"action": 1.1 * np.sign(GOOD.action)},
}


@pytest.mark.parametrize(("message", "change"), WRONG.items(), ids=WRONG)
def test_wrong_tables_are_refused(message, change):
    with pytest.raises(DataError) as error:
        rows(GOOD._replace(**change))
    assert message in str(error.value)


REFUSED = {
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
def test_other_refusals(named, call):
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

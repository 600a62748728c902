"""Worlds that go on decision by decision: what their records depend on, and what can go wrong."""

from __future__ import annotations

import numpy as np
import pytest

from synther.envs.workers import Workers
from synther.errors import ConfigError, DataError
from synther.pixels import vector_env
from synther.pixels.vector_env import PixelVectorEnv, Records

from .lamps import Doors, Lamps

ENV_ID = "dm_control/cartpole-balance-v0"


@pytest.fixture
def made(in_this_process):
    def make(seeds=(3, 4, 5), processes=2, make_env=Doors):
        return PixelVectorEnv(ENV_ID, seeds, size=16, repeat=2, processes=processes, make_env=make_env)

    return make


def told(made: PixelVectorEnv, decisions: int = 20) -> list[list[Records]]:
    """The records of each world, one by one."""
    found: list[list[Records]] = [[] for _ in range(len(made.reset(5).reward))]

    def keep(records: Records, who: np.ndarray) -> None:
        for place, member in enumerate(who):
            found[member].append(records.some(slice(place, place + 1)))

    everybody = np.arange(len(found))
    keep(made.reset(5), everybody)
    for number in range(5, 5 + decisions):
        stepped = made.step(np.full((len(found), 1), 0.5, np.float32), number)
        keep(stepped.records, everybody)
        keep(stepped.restarts, np.flatnonzero(stepped.over))
    return found


def same(one: list[Records], other: list[Records]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(Records.joined(one), Records.joined(other), strict=True))


def test_records_are_those_of_the_worlds(made):
    for seed, own in zip((3, 4, 5), told(made()), strict=True):
        env, number, over = Doors("", size=16, repeat=2, stack=1), 5, True
        for record in own:
            assert record.first[0] == over
            if over:
                start = int(np.random.SeedSequence((3, seed, number)).generate_state(1)[0])
                np.testing.assert_array_equal(record.image[0], env.reset(start))
                assert (record.action[0, 0], record.reward[0], record.discount[0]) == (0, 0, 1)
                over = False
            else:
                image, reward, terminal, timeout = env.step(np.array([0.5]))
                np.testing.assert_array_equal(record.image[0], image)
                assert record.reward[0] == np.float32(reward)
                assert (record.action[0, 0], record.discount[0]) == (0.5, 1 - terminal)
                number, over = number + 1, terminal or timeout
        assert any(record.first[0] for record in own[1:])


def test_neither_processes_nor_company_matter(made):
    every = told(made())
    assert not same(every[0], every[1])
    for one, other in zip(every, told(made(processes=None)), strict=True):
        assert same(one, other)
    assert same(told(made([4]))[0], every[1])


def test_refusals(made, monkeypatch):
    with pytest.raises(ConfigError, match="seed"):
        made([])
    monkeypatch.setattr(Lamps, "fault", "reward")
    with pytest.raises(DataError, match=r"seed 3 .*reward nan"):
        told(made(make_env=Lamps))


def test_in_a_process_of_its_own(made):
    here = told(made([3], make_env=Lamps), 2)[0]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(vector_env, "Workers", Workers)
        with made([3], make_env=Lamps) as there:
            assert (there.low.tolist(), there.high.tolist()) == ([-1.0], [1.0])
            assert same(told(there, 2)[0], here)

"""n-step targets: rows that are joined as they come in, and the discount that agents bootstrap with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from synther import Transitions
from synther.agents.agent import ALGORITHMS, Agent
from synther.agents.algorithm import Noise, Shape, n_step_config
from synther.agents.learner import ONLINE_AGENTS, Learner
from synther.agents.replay_buffer import NStepRows, SeedReplayBuffer
from synther.agents.rows import Member, Rows
from synther.agents.td3_bc import TD3BC, TD3BCConfig
from synther.data.episodes import n_step_rows
from synther.errors import ConfigError, DataError

from .steps import HIGH, LOW, WIDE, WIDTH, A, experience
from .tables import CPU

REWARD = WIDE + A


def lives(steps: int, seed: int, members: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Rows (members, steps, width) of episodes that end in terminals and time limits, and where these are."""
    draw, rows = np.random.default_rng(seed), experience(steps, seed, members)
    rows[..., REWARD + 1] = draw.random((members, steps)) < 0.15
    ends = (draw.random((members, steps)) < 0.15) & (rows[..., REWARD + 1] == 0)
    over = ends | (rows[..., REWARD + 1] == 1)
    for step in range(steps - 1):
        going = ~over[:, step]
        rows[going, step + 1, :WIDE] = rows[going, step, REWARD + 2 :]
    return rows, ends


def table(rows: np.ndarray, ends: np.ndarray) -> Transitions:
    parts = rows[:, :WIDE], rows[:, WIDE:REWARD], rows[:, REWARD], rows[:, REWARD + 2 :], rows[:, REWARD + 1] > 0
    return Transitions(*parts, ends)


def buffer(capacity: int = 500) -> SeedReplayBuffer:
    return SeedReplayBuffer(2, WIDE, LOW, HIGH, capacity=capacity, samples=0, device=CPU)


@pytest.mark.parametrize("n", [1, 2, 3, 6])
@pytest.mark.parametrize("size", [1, 2, 7, 200])
def test_rows_are_the_same_however_they_come_in(n, size):
    rows, ends = lives(200, n)
    joining = NStepRows(buffer(), n, 0.9)
    parts = [joining.add(rows[:, at : at + size], ends[:, at : at + size]) for at in range(0, 200, size)]
    for member in range(2):
        found = np.concatenate([part[member] for part in parts])
        expected = n_step_rows(table(rows[member], ends[member]), n, 0.9, whole=True)
        assert len(found) == len(expected)
        assert table(found, np.zeros(len(found), bool)).equals(replace(expected, timeout=np.zeros(len(found), bool)))


def test_a_row_is_there_as_soon_as_its_steps_are():
    rows = experience(6, 0, 2)
    rows[..., REWARD + 1] = 0
    rows[0, 4, REWARD + 1] = 1  # of the first member a terminal, of the second a time limit
    joining = NStepRows(buffer(), 3, 0.5)
    counts = [[len(own) for own in joining.add(rows[:, [t]], np.array([[False], [t == 4]]))] for t in range(6)]
    assert counts == [[0, 0], [0, 0], [1, 1], [1, 1], [3, 1], [0, 0]]
    with pytest.raises(DataError, match="shape"):
        joining.add(rows[:, :1, 1:])


def textbook_target(rows: np.ndarray, at: int, n: int, discount: float, value) -> float:
    """r_0 + g r_1 + ... + g^n V(s_n), or without the value where the episode ends before."""
    target = 0.0
    for step in range(n):
        target += discount**step * float(rows[at + step, REWARD])
        if rows[at + step, REWARD + 1]:
            return target
    return target + discount**n * value(rows[at + n - 1, REWARD + 2 :])


@pytest.mark.parametrize("n", [1, 3])
def test_an_update_has_the_textbook_target(n):
    """The loss of the critics, from the definition of n-step targets on the rows of single steps."""
    rows, ends = (part[0] for part in lives(60, 4))
    made = n_step_rows(table(rows, ends), n, 0.9, whole=True)
    config = TD3BCConfig(width=8, batch_size=len(made), discount=0.9, target_noise=0.0, normalize=False)
    algorithm = TD3BC(n_step_config(TD3BC, config, n), Shape(WIDE, A, (0,), CPU))
    batch = Rows([made], device=CPU, low=LOW, high=HIGH).matrix.unsqueeze(0)
    batch = Rows([made], device=CPU, low=LOW, high=HIGH).batch(batch)

    @torch.no_grad()
    def value(observation: np.ndarray) -> float:
        seen = torch.from_numpy(observation.copy()).view(1, 1, -1)
        pair = torch.cat([seen, algorithm.target_actor(seen).tanh()], -1)
        return float(algorithm.target_critics(pair).min())

    over = ends | (rows[:, REWARD + 1] > 0)
    starts = [t for t in range(len(rows)) if not over[t : t + n - 1].any() and t + n <= len(rows)]
    starts += [t for t in range(len(rows)) if t not in starts and _ends_terminal(rows, over, t)]
    targets = torch.tensor([textbook_target(rows, at, n, 0.9, value) for at in sorted(starts)])
    assert len(targets) == len(made)
    with torch.no_grad():
        predicted = algorithm.critics(batch.pair).squeeze(-1)
        expected = (predicted - targets).square().mean(-1).sum()
    losses = algorithm.update(batch, Noise(torch.zeros(1, len(made), A), torch.zeros(1, len(made), 0)), 0)
    torch.testing.assert_close(losses["critic"], expected.view(1), rtol=1e-5, atol=1e-5)


def _ends_terminal(rows: np.ndarray, over: np.ndarray, at: int) -> bool:
    left = np.flatnonzero(over[at:])
    return len(left) > 0 and bool(rows[at + left[0], REWARD + 1])


@pytest.mark.parametrize("name", ["sac", "simba", "td3", "crossq", "dqn"])
def test_online_agents_learn_from_n_step_rows_and_resume(name, tmp_path):
    """The others are SAC with other options."""
    rows, ends = lives(28, 7)
    actions: dict = {"low": LOW, "high": HIGH}
    if name == "dqn":
        action = np.random.default_rng(0).integers(2, 6, (2, 28, 1)).astype(np.float32)
        rows = np.concatenate([rows[..., :WIDE], action, rows[..., REWARD:]], -1)
        actions = {"low": [2.0], "high": [5.0], "choices": 4}
    agent = ONLINE_AGENTS.get(name).config
    config = replace(agent, width=8, critic_width=8, batch_size=16, utd=min(agent.utd, 2))

    def learner(n: int = 3) -> Learner:
        return Learner(config, (0, 1), WIDE, capacity=18, device=CPU, n_step=n, **actions)

    def live(own: Learner, first: int, last: int) -> None:
        for step in range(first, last):
            own.add(rows[:, step], ends[:, step])
            if step >= 12:
                own.train()

    whole, stopped, resumed = learner(), learner(), learner()
    assert whole.algorithm.config.discount == pytest.approx(config.discount**3)
    assert whole.config == config
    live(whole, 0, 28)
    live(stopped, 0, 17)
    stopped.save(tmp_path / "agent.safetensors")
    with pytest.raises(ConfigError, match="n_step"):
        learner(2).load(tmp_path / "agent.safetensors")
    assert resumed.load(tmp_path / "agent.safetensors") == 17
    resumed.add(rows[:, :17], ends[:, :17])
    live(resumed, 17, 28)
    assert torch.equal(whole.rows.matrix, resumed.rows.matrix)
    for key, tensor in whole.state().items():
        assert torch.equal(tensor, resumed.state()[key]), key
    np.testing.assert_array_equal(whole.random_action(), resumed.random_action())
    joined = whole.joined(rows, ends)
    assert whole.rows.added.tolist() == [len(own) for own in joined]
    alone = Learner(config, (0,), WIDE, capacity=18, device=CPU, **actions)
    alone.rows.add(joined[0][None])
    torch.testing.assert_close(alone.rows.matrix[0], whole.rows.matrix[0])


def test_a_learner_without_a_complete_row_says_what_is_missing():
    learner = Learner(replace(ONLINE_AGENTS.get("sac").config, width=8), (0,), WIDE, LOW, HIGH, capacity=9, device=CPU,
                      n_step=4)  # fmt: skip
    learner.add(np.zeros((1, 3, WIDTH), np.float32))
    with pytest.raises(DataError, match="n_step"):
        learner.train()


def test_agents_without_n_step_targets_refuse():
    rows, ends = (part[0] for part in lives(60, 4))
    made = n_step_rows(table(rows, ends), 3, 0.9, whole=True)
    packed = Rows([made], device=CPU, low=LOW, high=HIGH, next_actions=True)
    for name in ("bc", "rebrac"):
        with pytest.raises(ConfigError, match="n_step 3"):
            Agent(ALGORITHMS.get(name).config_class(), packed, [Member(0)], n_step=3)
    with pytest.raises(ConfigError, match="n_step"):
        Agent(TD3BCConfig(), packed, [Member(0)], n_step=0)


def test_an_offline_agent_keeps_its_discount_and_resumes_only_with_the_same_n(tmp_path):
    rows, ends = (part[0] for part in lives(60, 4))
    packed = Rows([n_step_rows(table(rows, ends), 3, 0.9, whole=True)], device=CPU, low=LOW, high=HIGH)
    config = TD3BCConfig(width=8, batch_size=8, discount=0.9)
    agent = Agent(config, packed, [Member(0)], n_step=3)
    assert (agent.config.discount, agent.algorithm.config.discount) == (0.9, pytest.approx(0.729))
    agent.save(tmp_path / "agent.safetensors")
    Agent(config, packed, [Member(0)], n_step=3).load(tmp_path / "agent.safetensors")
    with pytest.raises(ConfigError, match="n_step"):
        Agent(config, packed, [Member(0)]).load(tmp_path / "agent.safetensors")

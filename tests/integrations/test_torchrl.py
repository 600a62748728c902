"""The buffer between TorchRL's own roll-outs and losses.

Imported when it is used: TorchRL takes seconds, for which every process that collects tests would wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

from synther.errors import ConfigError, DataError

from ..replay.rows import OPTIONS

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torchrl.modules import ProbabilisticActor

    from synther.integrations.torchrl import SyntheticReplayBuffer


def torque(bound: float = 2) -> Any:
    from torchrl.data import Bounded

    return Bounded(-bound, bound, (1,))


def pendulums() -> Any:
    from torchrl.envs import GymEnv, SerialEnv

    return SerialEnv(2, lambda: GymEnv("Pendulum-v1"))


def buffer(*spec: Any, **changes: Any) -> SyntheticReplayBuffer:
    """For the actions of `spec`, by default a torque."""
    from synther.integrations.torchrl import SyntheticReplayBuffer

    options = {"batch_size": 32, "device": "cpu", **OPTIONS, **changes}
    return SyntheticReplayBuffer(1000, *(spec or [torque()]), **options)


def steps(count: int = 80, action: torch.Tensor | None = None) -> TensorDict:
    """Rows whose reward counts, and each of which goes on from the one before."""
    from tensordict import TensorDict

    torch.manual_seed(0)
    seen = torch.randn(count + 1, 3)
    number = torch.arange(count)[:, None]
    ended, cut = number % 7 == 6, number % 7 == 3
    following = {"reward": number + 0.25, "observation": seen[1:]}
    following |= {"terminated": ended, "truncated": cut, "done": ended | cut}
    drawn = 4 * torch.rand(count, 1) - 2 if action is None else action
    return TensorDict({"observation": seen[:-1], "action": drawn, "next": following}, [count])


def test_real_rows_come_out_as_they_went_in():
    from torchrl.data import Unbounded

    ours, given = buffer(refresh_every=1000), steps()
    ours.extend(given)
    batch = ours.sample(500)
    which = (batch["next", "reward"][:, 0] - 0.25).long()
    assert set(which.tolist()) == set(range(80))
    for key in ("observation", "action", ("next", "observation"), ("next", "reward"), ("next", "terminated")):
        assert torch.equal(batch[key], given[key][which]), key
        assert batch[key].dtype == given[key].dtype
    assert torch.equal(batch["next", "done"], batch["next", "terminated"])
    assert not batch["synthetic"].any()
    assert ours.transitions().timeout.tolist() == given["next", "truncated"][:, 0].tolist()
    singly = buffer(refresh_every=1000)
    for step in given:
        singly.add(step)
    assert len(singly) == 80
    assert singly.transitions().equals(ours.transitions())
    unbounded = buffer(Unbounded((1,)), refresh_every=1000)
    unbounded.extend(steps(action=torch.full((80, 1), 50.0)))
    assert (unbounded.sample(3)["action"] == 50).all()


def test_trajectories_are_cut_where_the_next_one_does_not_go_on():
    env = pendulums()
    ours = buffer(env.action_spec_unbatched, refresh_every=1000)
    for _ in range(2):
        ours.extend(env.rollout(20))
    rows = ours.transitions()
    assert np.flatnonzero(rows.timeout).tolist() == [19, 39, 59, 79]
    led = (rows.next_observation[:-1] == rows.observation[1:]).all(1)
    assert led.tolist() == (~rows.timeout[:-1]).tolist()


def test_a_trajectory_that_comes_in_parts_is_whole_and_one_that_stops_is_cut():
    ours, given = buffer(refresh_every=1000), steps(40)
    given["next", "truncated"][:], given["next", "terminated"][:] = False, False
    for part in (given[:15], given[15:16], given[16:20], given[30:]):
        ours.extend(part)
    assert np.flatnonzero(ours.transitions().timeout).tolist() == [19]
    ours.extend(given[::2])  # which is none
    assert ours.transitions().timeout is None
    ours = buffer(refresh_every=1000)
    ours.extend(steps(28).reshape(4, 7))  # each of which terminates
    rows = ours.transitions()
    assert np.flatnonzero(rows.terminal).tolist() == [6, 13, 20, 27]
    assert np.flatnonzero(rows.timeout).tolist() == [3, 10, 17, 24]


def test_single_steps_of_environments_that_take_turns_have_no_timeouts():
    ours, given = buffer(refresh_every=1000), steps(40).reshape(2, 20)
    for step in range(20):
        ours.extend(given[:, step : step + 1])
    rows = ours.transitions()
    assert rows.timeout is None
    assert sorted(rows.reward) == [number + 0.25 for number in range(40)]
    alone = buffer(refresh_every=1000)
    for step in range(20):
        for environment in range(2):
            alone.add(given[environment, step])
    assert alone.transitions().timeout is None


def test_padding_of_trajectories_is_no_experience():
    ours, given = buffer(refresh_every=1000), steps(20).reshape(2, 10)
    mask = torch.ones(2, 10, dtype=torch.bool)
    mask[1, 6:] = False
    given["collector", "mask"] = mask
    ours.extend(given)
    rows = ours.transitions()
    assert rows.reward.tolist() == [number + 0.25 for number in range(16)]
    # Those of the episodes, and of the trajectories: the last one goes no further than row 15.
    assert np.flatnonzero(rows.timeout).tolist() == [3, 9, 10, 15]


def _actor() -> ProbabilisticActor:
    from tensordict.nn import TensorDictModule
    from torchrl.modules import NormalParamExtractor, ProbabilisticActor, TanhNormal

    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2), NormalParamExtractor())
    module = TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"])
    limits = {"low": -2, "high": 2}
    return ProbabilisticActor(
        module, spec=torque(), in_keys=["loc", "scale"], distribution_class=TanhNormal, distribution_kwargs=limits
    )


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return self.net(torch.cat([observation, action], -1))


def _sac(actor: ProbabilisticActor) -> Any:
    from torchrl.modules import ValueOperator
    from torchrl.objectives import SACLoss

    critic = ValueOperator(Critic(), in_keys=["observation", "action"])
    return SACLoss(actor, critic, num_qvalue_nets=2, action_spec=torque())


def _ddpg() -> Any:
    from tensordict.nn import TensorDictModule
    from torchrl.modules import ValueOperator
    from torchrl.objectives import DDPGLoss

    policy = TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["action"])
    return DDPGLoss(policy, ValueOperator(Critic(), in_keys=["observation", "action"]))


def _learned(loss: Any, batch: Any) -> None:
    from torchrl.objectives import SoftUpdate

    SoftUpdate(loss, eps=0.99)  # without one the loss warns
    total = sum(value for name, value in loss(batch).items() if name.startswith("loss"))
    total.backward()
    assert torch.isfinite(total)
    gradients = [parameter.grad for parameter in loss.parameters() if parameter.grad is not None]
    assert gradients
    assert any(gradient.abs().max() > 0 for gradient in gradients)


@pytest.mark.parametrize("algorithm", ["sac", "ddpg"])
def test_losses_take_mixed_batches_of_a_real_environment(algorithm):
    env = pendulums()
    ours = buffer(env.action_spec_unbatched)
    ours.extend(env.rollout(40))
    batch = ours.sample()
    assert int(batch["synthetic"].sum()) == 16
    assert batch["action"].abs().max() <= 2
    _learned(_sac(_actor()) if algorithm == "sac" else _ddpg(), batch)


@pytest.mark.parametrize("categorical", [False, True], ids=["one-hot", "categorical"])
def test_discrete_actions_keep_their_form(categorical):
    from torchrl.envs import GymEnv
    from torchrl.modules import QValueActor
    from torchrl.objectives import DQNLoss

    env = GymEnv("CartPole-v1", categorical_action_encoding=categorical)
    ours = buffer(env.action_spec_unbatched)
    rolled = env.rollout(100, break_when_any_done=False)
    ours.extend(rolled)
    batch = ours.sample(64)
    assert int(batch["synthetic"].sum()) == 32
    assert (batch["action"].dtype, batch["action"].shape[1:]) == (rolled["action"].dtype, rolled["action"].shape[1:])
    real = ours.transitions().action.tolist()
    assert real == (rolled["action"] if categorical else rolled["action"].argmax(-1)).tolist()
    values = QValueActor(nn.Linear(4, 2), in_keys=["observation"], spec=env.action_spec)
    _learned(DQNLoss(values, action_space=env.action_spec), batch)


@pytest.mark.filterwarnings("ignore:Creating .* which inherits from WeightUpdaterBase:DeprecationWarning")
def test_in_the_hands_of_a_trainer(tmp_path):
    from torchrl.trainers import ReplayBufferTrainer

    hook = ReplayBufferTrainer(buffer(), flatten_tensordicts=True)
    hook.extend(steps(100).reshape(2, 50))
    assert hook.sample(None).batch_size == (32,)
    hook.update_priority(hook.sample(None))
    torch.save(hook.state_dict(), tmp_path / "state.pt")
    other = ReplayBufferTrainer(buffer())
    other.load_state_dict(torch.load(tmp_path / "state.pt"))
    _same(hook.replay_buffer, other.replay_buffer)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
def test_a_whole_trainer_of_torchrls():
    from torchrl.collectors import Collector
    from torchrl.envs import GymEnv
    from torchrl.objectives import SoftUpdate
    from torchrl.trainers.algorithms.sac import SACTrainer

    actor, ours = _actor(), buffer()
    loss = _sac(actor)
    SACTrainer(
        collector=Collector(GymEnv("Pendulum-v1"), actor, frames_per_batch=40, total_frames=120),
        total_frames=120,
        frame_skip=1,
        optim_steps_per_batch=2,
        loss_module=loss,
        optimizer=torch.optim.Adam(loss.parameters(), 1e-3),
        replay_buffer=ours,
        target_net_updater=SoftUpdate(loss, eps=0.99),
        logger=None,
        enable_logging=False,
        progress_bar=False,
    ).train()
    assert len(ours) == 120
    assert ours.replay.history[-1].kept


def test_saved_to_a_folder_and_loaded(tmp_path):
    ours, other = buffer(), buffer(seed=3)
    ours.extend(steps(70))
    ours.dumps(tmp_path / "replay")
    other.loads(tmp_path / "replay")
    _same(ours, other)
    with pytest.raises(ConfigError):
        buffer(torque(1)).loads(tmp_path / "replay")


def _same(one: SyntheticReplayBuffer, other: SyntheticReplayBuffer) -> None:
    for ours in (one, other):
        ours.extend(steps(60))  # over the next refresh
    assert len(one.replay.history) == len(other.replay.history) >= 2
    assert (one.sample(64) == other.sample(64)).all()


@pytest.mark.parametrize(
    "spec",
    [
        lambda data: data.Bounded(-1, 1, (2, 3)),
        lambda data: data.OneHot(3, shape=(2, 3)),
        lambda data: data.Categorical(3, shape=(2,)),
        lambda data: data.MultiOneHot((2, 3)),
        lambda data: None,
    ],
    ids=["two environments", "one-hot of two", "categorical of two", "several", "none"],
)
def test_other_actions_are_refused_at_once(spec: Callable[[Any], Any]):
    from torchrl import data

    with pytest.raises(ConfigError, match="action_spec_unbatched"):
        buffer(spec(data))


def test_other_rows_are_refused():
    ours, image = buffer(), steps(4)
    image["observation"] = torch.zeros(4, 3, 8, 8)
    with pytest.raises(DataError, match="flatten or encode"):
        ours.extend(image)
    for key in ("observation", "action", ("next", "reward"), ("next", "terminated")):
        with pytest.raises(DataError, match="roll-out, got"):
            ours.extend(steps().exclude(key))
    ahead = steps(10)
    ahead["steps_to_next_obs"] = torch.full((10, 1), 3)  # targets would be discounted once
    with pytest.raises(DataError, match="MultiStep"):
        ours.extend(ahead)
    assert len(ours) == 0
    ahead["steps_to_next_obs"][:] = 1
    ours.extend(ahead)
    assert len(ours) == 10

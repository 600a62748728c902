"""The buffer between TorchRL's own roll-outs and losses.

Imported when it is used: TorchRL takes seconds, for which every process that collects tests would wait.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from synther.errors import ConfigError, DataError

from ..replay.rows import OPTIONS, drift_at

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


def buffer(size: int = 1000, **changes: Any) -> SyntheticReplayBuffer:
    from torchrl.data import LazyTensorStorage

    from synther.integrations.torchrl import SyntheticReplayBuffer

    options = {"batch_size": 32, "device": "cpu", "storage": LazyTensorStorage(size), **OPTIONS, **changes}
    return SyntheticReplayBuffer(**options)


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


def test_it_is_a_buffer_of_torchrls_that_draws_as_theirs_until_the_first_refresh():
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

    theirs, ours = TensorDictReplayBuffer(storage=LazyTensorStorage(1000), batch_size=32), buffer(refresh_every=1000)
    assert isinstance(ours, TensorDictReplayBuffer)
    drawn = []
    for one in (theirs, ours):
        one.extend(steps())
        torch.manual_seed(1)
        drawn.append([one.sample() for _ in range(3)])
    for one, other in zip(*drawn, strict=True):
        assert not other["synthetic"].any()
        assert (one == other.exclude("synthetic")).all()
    assert ours["action"].shape == (80, 1)
    assert len(ours[3:7]) == 4
    assert ours.write_count == 80


def test_a_row_comes_back_with_every_key_it_had():
    """Including keys that transforms and collectors of TorchRL add."""
    ours, given = buffer(), steps()
    number = torch.arange(80)[:, None]
    given["step_count"], given["next", "step_count"] = number, number + 1
    given["camera", "pose"], given["next", "camera", "pose"] = torch.rand(80, 2, 2), torch.rand(80, 2, 2).double()
    given["next", "camera", "pose"] = given["next", "camera", "pose"].float()
    given["log_prob"] = torch.rand(80)
    given["collector", "traj_ids"] = number
    ours.extend(given)
    batch = ours.sample()
    assert int(batch["synthetic"].sum()) == 16
    for key, value in given.items(include_nested=True, leaves_only=True):
        assert (batch[key].dtype, batch[key].shape[1:]) == (value.dtype, value.shape[1:]), key
    made = batch[batch["synthetic"]]
    assert (made["collector", "traj_ids"] == 0).all()
    assert made["step_count"].float().mean() > 10
    assert made["log_prob"].std() > 0
    assert (made["index"] == -1).all()
    assert torch.equal(made["next", "done"], made["next", "terminated"])
    assert not made["next", "truncated"].any()
    real = batch[~batch["synthetic"]]
    assert torch.equal(real["step_count"], given["step_count"][real["index"]])
    assert list(ours.transitions().extra) == ["key_log_prob"]


@pytest.mark.parametrize("storage", ["LazyMemmapStorage", "ListStorage"])
@pytest.mark.parametrize("prefetch", [None, 2])
def test_transforms_see_all_rows_and_batches_can_be_prefetched(storage, prefetch):
    import torchrl.data
    from torchrl.envs import RewardScaling

    ours = buffer(storage=getattr(torchrl.data, storage)(1000), prefetch=prefetch)
    ours.append_transform(RewardScaling(1000.0, 0.5, in_keys=[("next", "reward")]))
    ours.append_transform(lambda data: data.to(torch.float64))
    ours.extend(steps())
    for _ in range(4):
        batch, info = ours.sample(return_info=True)
    assert batch["observation"].dtype == torch.float64
    assert torch.equal(info["synthetic"], batch["synthetic"])
    assert int(info["synthetic"].sum()) == 16
    assert batch["next", "reward"].min() > 900, "without the transform, real and synthetic rewards are below 100"


@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0])
def test_batches_have_their_size_and_share(ratio):
    ours = buffer(ratio=ratio, sampler=None)
    ours.extend(steps())
    drawn = [ours.sample() for _ in range(10)]
    assert [len(batch) for batch in drawn] == [32] * 10
    assert sum(int(batch["synthetic"].sum()) for batch in drawn) == 320 * ratio


def test_the_oldest_rows_come_first_and_timeouts_where_they_are_known():
    ours, given = buffer(50, refresh_every=1000), steps(80)
    ours.extend(given[:40])
    ours.extend(given[40:])
    rows = ours.transitions()
    assert rows.reward.tolist() == given["next", "reward"][30:, 0].tolist()
    assert rows.timeout.tolist() == given["next", "truncated"][30:, 0].tolist()
    ours.extend(given[::2])  # which do not go on from each other
    assert ours.transitions().timeout is None


def test_emptied_it_begins_anew():
    ours = buffer()
    ours.extend(steps())
    ours.sample()
    ours.empty()
    assert (len(ours), ours.synthetic.history) == (0, [])
    ours.extend(steps(40))
    assert not ours.sample()["synthetic"].any()


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
    ours = buffer(action_spec=env.action_spec_unbatched)
    ours.extend(env.rollout(40).reshape(-1))
    batch = ours.sample()
    assert int(batch["synthetic"].sum()) == 16
    assert batch["action"].abs().max() <= 2
    _learned(_sac(_actor()) if algorithm == "sac" else _ddpg(), batch)


@pytest.mark.parametrize("declared", [False, True], ids=["", "declared"])
@pytest.mark.parametrize("categorical", [False, True], ids=["one-hot", "categorical"])
def test_discrete_actions_keep_their_form(categorical, declared):
    from torchrl.envs import GymEnv
    from torchrl.modules import QValueActor
    from torchrl.objectives import DQNLoss

    env = GymEnv("CartPole-v1", categorical_action_encoding=categorical)
    ours = buffer(action_spec=env.action_spec_unbatched if declared else None, batch_size=64)
    rolled = env.rollout(100, break_when_any_done=False)
    ours.extend(rolled)
    batch = ours.sample()
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
    assert ours.synthetic.history[-1].kept


@pytest.mark.parametrize("way", ["folder", "pickle"])
def test_saved_and_loaded(way, tmp_path):
    ours, other = buffer(), buffer(seed=3)
    ours.extend(steps(70))
    ours.sample()
    if way == "folder":
        ours.dumps(tmp_path / "replay")
        other.loads(tmp_path / "replay")
    else:
        other = pickle.loads(pickle.dumps(ours))
    _same(ours, other)


def _same(one: SyntheticReplayBuffer, other: SyntheticReplayBuffer) -> None:
    drawn = []
    for ours in (one, other):
        ours.extend(steps(60))  # over the next refresh
        torch.manual_seed(4)
        drawn.append(ours.sample())
    assert len(one.synthetic.history) == len(other.synthetic.history) >= 2
    assert (drawn[0] == drawn[1]).all()


@pytest.mark.parametrize(
    "spec",
    [
        lambda data: data.Bounded(-1, 1, (2, 3)),
        lambda data: data.OneHot(3, shape=(2, 3)),
        lambda data: data.Categorical(3, shape=(2,)),
        lambda data: data.MultiOneHot((2, 3)),
    ],
    ids=["two environments", "one-hot of two", "categorical of two", "several"],
)
def test_other_actions_are_refused_at_once(spec: Callable[[Any], Any]):
    from torchrl import data

    with pytest.raises(ConfigError, match="action_spec_unbatched"):
        buffer(action_spec=spec(data))


def test_what_cannot_work_is_refused_at_once():
    from torchrl.data import LazyTensorStorage
    from torchrl.data.replay_buffers import Sequence, SliceSampler

    for how, said in (
        ({"sampler": SliceSampler(num_slices=4)}, "SliceSampler"),
        ({"sample_unit": Sequence(4)}, "sample_unit"),
        ({"storage": LazyTensorStorage(100, ndim=2)}, "ndim"),
        ({"sample": 5}, "sample"),
    ):
        with pytest.raises(ConfigError, match=said):
            buffer(**how)


def test_steps_that_cannot_be_modelled_are_refused():
    image, several = steps(), steps()
    for place in ("observation", ("next", "observation")):
        image[place] = torch.zeros(80, 3, 8, 8)
    for given, said in (
        (image, "encode"),
        (several.reshape(40, 2), r"reshape\(-1\)"),
        *((steps().exclude(key), "roll-out") for key in ("action", ("next", "reward"), ("next", "terminated"))),
        (steps().exclude("observation"), "next"),
    ):
        given = given.exclude(("next", "done")) if given is not several else given
        with pytest.raises(DataError, match=said):
            buffer(refresh_every=10_000).extend(given)
        with pytest.raises(DataError, match=said):
            buffer(refresh_every=10_000).add(given[0])
    never = buffer(ratio=0.0)
    never.extend(image)
    assert never.sample()["observation"].shape[1:] == (3, 8, 8)


def test_rows_of_several_steps_keep_their_number():
    """By which losses discount what follows."""
    ours, given = buffer(batch_size=200), steps()
    given["steps_to_next_obs"] = torch.randint(1, 4, (80, 1))
    ours.extend(given)
    made = ours.sample()
    assert set(made["steps_to_next_obs"][made["synthetic"]].ravel().tolist()) <= {1, 2, 3}


def test_refreshes_can_follow_the_newest_steps(monkeypatch):
    seen = drift_at(3, monkeypatch)
    ours, every = buffer(size=75, refresh="auto"), steps(108)
    for start in range(0, 108, 12):
        ours.extend(every[start : start + 12])
        ours.sample()
    assert seen[:3] == [[number + 0.25 for number in range(start, start + 12)] for start in (60, 72, 84)]
    assert [one.added for one in ours.synthetic.history] == [60, 96]
